"""What became of nt!PoolHitTag: the safety line, what was written, and a restore."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Optional, Tuple

from kdleak.tags import PoolTag

REPLAYED = "replayed, no target was touched; in the recording: "
"""What the safety line of a replay begins with."""


class DisarmStatus(enum.Enum):
    """Whether nt!PoolHitTag is known to hold its original value again."""

    CONFIRMED = "confirmed"
    """The original value was written (or still there) and read back."""
    NOT_CONFIRMED = "not confirmed"
    """The tag may still be armed; ``repair`` says how to put it right."""
    NOT_NEEDED = "not needed"
    """Nothing of ours is in the target: never written, or the target restarted."""


@dataclass(frozen=True)
class DisarmState:
    """How the undoing of our one change to the target ended.

    Attributes:
        status: see DisarmStatus.
        address: of nt!PoolHitTag, 0 when it was never looked up.
        value: the 32-bit value read back (CONFIRMED), or the original one that belongs there
            (NOT_CONFIRMED); None when it is not known.
        why: what stands in the way, or why nothing was needed; "" when CONFIRMED.
        repair: exact WinDbg and kdleak commands that put it right, in order.
        remarks: anything else worth a line (a journal file that could not be removed, ...).
        replayed: it is about a recorded session, as it ended then.
    """

    status: DisarmStatus
    address: int = 0
    value: Optional[int] = None
    why: str = ""
    repair: Tuple[str, ...] = ()
    remarks: Tuple[str, ...] = ()
    replayed: bool = False

    @property
    def safe(self) -> bool:
        """Nothing of ours can be left in the target."""
        return self.status is not DisarmStatus.NOT_CONFIRMED

    def sentence(self) -> str:
        """The safety line: always the last line of a live hunt's report."""
        return f"{REPLAYED if self.replayed else ''}{self._outcome()}"

    def _outcome(self) -> str:
        if self.status is DisarmStatus.CONFIRMED:
            return f"disarmed: nt!PoolHitTag is back at 0x{self.value or 0:08x} (read back)."
        if self.status is DisarmStatus.NOT_NEEDED:
            return f"disarmed: nothing to undo ({self.why or 'nt!PoolHitTag was not written'})."
        return f"DISARM NOT CONFIRMED: nt!PoolHitTag may still be armed ({self.why})."


@dataclass(frozen=True)
class TargetChange:
    """What was written to the target, and how often.

    Attributes:
        address: of nt!PoolHitTag.
        original: its 32-bit value before we came.
        armed: the value written to arm.
        times_armed: completed arm operations (one, or one per burst).
    """

    address: int
    original: int
    armed: int
    times_armed: int


@dataclass(frozen=True)
class RestoreItem:
    """What came of one journal entry.

    Attributes:
        file_name: name of the journal file, without its folder.
        where: the connection it was made over.
        tag: the tag that was armed.
        state: outcome; NOT_CONFIRMED also stands for "something else is there, not touched".
        remark: one sentence about what was found and done.
        closed: the entry is gone from the journal.
    """

    file_name: str
    where: str
    tag: Optional[PoolTag]
    state: DisarmState
    remark: str
    closed: bool


@dataclass(frozen=True)
class RestoreResult:
    """Outcome of ``restore``.

    Attributes:
        state: the outcome for the target at hand as a whole.
        items: one per journal entry that belongs to this target.
        remarks: damaged journal files, entries of other targets, a left-over hit.
        passed_hits: breaks of a tag left armed that the target was let go from.
        leave_stopped: the target stopped for a reason of its own and waits for its user.
        interrupted: Ctrl+C was pressed meanwhile.
    """

    state: DisarmState
    items: Tuple[RestoreItem, ...] = ()
    remarks: Tuple[str, ...] = ()
    passed_hits: int = 0
    leave_stopped: bool = False
    interrupted: bool = False
