"""Undoing what an earlier kdleak left in a target that it could not disarm any more.

The journal says what was written where. Nothing is touched unless the value found is the one the
journal says we wrote; the original goes back only then.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Callable, List, Optional

from kdleak.allocator_frames import StopClass, classify
from kdleak.arm import require_live, write_and_read_back
from kdleak.engine.base import Engine
from kdleak.errors import JournalError, KdleakError, UsageError, format_address
from kdleak.interrupt_guard import InterruptGuard
from kdleak.journal import Journal, JournalEntry, JournalFile
from kdleak.model import StopKind
from kdleak.pool_hit_tag import (
    SIZE,
    SYMBOL,
    as_number,
    describe,
    looks_armed,
    repair_commands,
)
from kdleak.result import DisarmState, DisarmStatus, RestoreItem, RestoreResult
from kdleak.tags import PoolTag

_LEFT_OVER = 64
"""Breaks of a tag left armed that are let go: at most one per processor can be waiting."""

_SETTLE_SECONDS = 0.25


def restore(
    engine: Engine,
    journal: Journal,
    *,
    force_value: Optional[int] = None,
    narrate: Callable[[str], None] = lambda _: None,
) -> RestoreResult:
    """Undo what an earlier kdleak left in this target (``kdleak restore``).

    Args:
        engine: a live engine on the target, stopped or running.
        journal: where the entries are.
        force_value: 32-bit value to write when the journal has no entry for this target
            (somebody armed the tag by hand); None touches nothing then.
        narrate: takes sentences for the user.

    Returns:
        What was found and done for each entry of this target; entries of other targets and
        damaged files are kept and named in the remarks.

    Raises:
        NotLive: a dump.
        TargetBusy: a living kdleak process is hunting in this target.
        UsageError: ``force_value`` does not fit 32 bits.
        TargetError: the target, the link, or symbols; the journal entries are kept.
    """
    require_live(engine)
    if force_value is not None and not 0 <= force_value <= 0xFFFFFFFF:
        raise UsageError(f"writing {force_value:#x} to {SYMBOL}", "it holds 32 bits")
    if engine.stop.kind is StopKind.STILL_RUNNING:
        engine.interrupt()
    for remark in engine.reload():
        narrate(remark)
    work = _Restoring(engine, journal, engine.symbol(SYMBOL))
    was_armed = looks_armed(engine.read(work.address, SIZE))
    guard = InterruptGuard()
    guard.install()
    try:
        work.go_through_journal()
        state = work.overall(force_value)
        if was_armed and state.safe:
            work.let_go_left_over_hits()
    finally:
        guard.remove()
    return RestoreResult(
        state,
        tuple(work.items),
        tuple(work.remarks),
        work.passed_hits,
        work.leave_stopped,
        interrupted=guard.pressed > 0,
    )


@dataclass
class _Restoring:
    engine: Engine
    journal: Journal
    address: int
    items: List[RestoreItem] = field(default_factory=list)
    remarks: List[str] = field(default_factory=list)
    tags: List[PoolTag] = field(default_factory=list)
    passed_hits: int = 0
    leave_stopped: bool = False

    def go_through_journal(self) -> None:
        scan = self.journal.scan()
        for damaged in scan.damaged:
            self.remarks.append(
                f"Journal file {damaged.path.name} cannot be used ({damaged.why}); it is kept."
            )
        for found in scan.files:
            entry = found.entry
            here = entry.where == self.engine.where
            if entry.same_boot(self.engine.target, self.address):
                self._this_boot(found, here=here)
            elif here and entry.build == self.engine.target.build:
                self._earlier_boot(found)
            else:
                self.remarks.append(
                    f"Journal file {found.path.name} is about another target "
                    f"({entry.where}, build {entry.build}); it is kept."
                )
        for found in scan.past:
            # Set aside when another boot answered on its connection: that was another machine.
            if found.entry.same_boot(self.engine.target, self.address):
                self._this_boot(found, here=True)

    def _this_boot(self, found: JournalFile, *, here: bool) -> None:
        entry = found.entry
        with self.journal.claim_file(found) as claim:
            current = self.engine.read(self.address, SIZE)
            if current == entry.original:
                if not here:
                    # Another machine of the same build without address randomisation looks alike.
                    self.remarks.append(
                        f"Journal file {found.path.name} was made over {entry.where}; nothing is "
                        "armed here, so it may be about another machine. It is kept."
                    )
                    return
                self._close(found, claim.close, self._confirmed(current), "already original")
            elif current == entry.armed:
                self.tags.append(entry.tag)
                back = write_and_read_back(self.engine, self.address, entry.original)
                if back == entry.original:
                    self._close(found, claim.close, self._confirmed(back), "put back")
                else:
                    self._keep(
                        found,
                        f"wrote {describe(entry.original)}, but it reads {describe(back)}",
                        "the target did not take the original value",
                    )
            else:
                self._keep(
                    found,
                    f"it holds {describe(current)}, neither what we wrote "
                    f"({describe(entry.armed)}) nor the original ({describe(entry.original)})",
                    "something else is there: not touched",
                )

    def _earlier_boot(self, found: JournalFile) -> None:
        entry = found.entry
        with self.journal.claim_file(found) as claim:
            state = DisarmState(
                DisarmStatus.NOT_NEEDED, self.address, why="the target restarted since"
            )
            remark = (
                f"nt was at {format_address(entry.kernel_base)} then and is at "
                f"{format_address(self.engine.target.kernel_base)} now: restarted, so the armed "
                f"'{entry.tag.text}' is gone (original was {describe(entry.original)}); the entry "
                "is set aside, in case this is another machine"
            )
            self._close(found, claim.set_aside, state, remark)

    def _confirmed(self, raw: bytes) -> DisarmState:
        return DisarmState(DisarmStatus.CONFIRMED, self.address, as_number(raw))

    def _close(
        self, found: JournalFile, close: Callable[[], None], state: DisarmState, remark: str
    ) -> None:
        closed = True
        try:
            close()
        except JournalError as error:
            closed = False
            self.remarks.append(str(error))
        self._add(found.path.name, found.entry, state, remark, closed=closed)

    def _keep(self, found: JournalFile, why: str, remark: str) -> None:
        state = DisarmState(
            DisarmStatus.NOT_CONFIRMED,
            self.address,
            as_number(found.entry.original),
            why,
            repair_commands(found.entry.original),
        )
        self._add(found.path.name, found.entry, state, remark, closed=False)

    def _add(
        self, name: str, entry: JournalEntry, state: DisarmState, remark: str, *, closed: bool
    ) -> None:
        self.items.append(RestoreItem(name, entry.where, entry.tag, state, remark, closed))

    def overall(self, force_value: Optional[int]) -> DisarmState:
        """The state of the target as a whole, after the journal and a value given by hand."""
        for status in (DisarmStatus.NOT_CONFIRMED, DisarmStatus.CONFIRMED):
            for item in self.items:
                if item.state.status is status:
                    return item.state
        current = self.engine.read(self.address, SIZE)
        if force_value is not None:
            wanted = force_value.to_bytes(SIZE, "little")
            self.tags.append(PoolTag.from_bytes(current))
            back = write_and_read_back(self.engine, self.address, wanted)
            if back == wanted:
                return self._confirmed(back)
            why = f"wrote {describe(wanted)}, but it reads {describe(back)}"
            return DisarmState(
                DisarmStatus.NOT_CONFIRMED, self.address, force_value, why, repair_commands(wanted)
            )
        if looks_armed(current):
            return DisarmState(
                DisarmStatus.NOT_CONFIRMED,
                self.address,
                None,
                f"it holds {describe(current)}, and the journal has no entry for it",
                (
                    "kdleak restore --value 0x...    (the idle value: 0xffffff0f or 0)",
                    f"ed {SYMBOL} 0    (in WinDbg)",
                ),
            )
        return DisarmState(
            DisarmStatus.NOT_NEEDED,
            self.address,
            as_number(current),
            f"{SYMBOL} holds {describe(current)}, which is no tag",
        )

    def let_go_left_over_hits(self) -> None:
        """Let the target run past breaks that were already on their way when it was armed."""
        try:
            for _ in range(_LEFT_OVER):
                stop = self.engine.stop
                what = classify(stop, self.engine.stack(), None, None).what
                if what is StopClass.FOREIGN:
                    self.leave_stopped = True
                    self.remarks.append(
                        f"The target stopped for a reason of its own ({stop.kind.value}); it is "
                        "left stopped."
                    )
                    return
                self.passed_hits += what is StopClass.HIT
                if self.engine.resume(_SETTLE_SECONDS).kind is StopKind.STILL_RUNNING:
                    return
        except KdleakError as error:
            self.remarks.append(f"While the target was let run: {error}")


if __name__ == "__main__":  # `!py -m kdleak.restore` in WinDbg: the one door up to a higher floor
    from kdleak.windbg import main

    sys.exit(main(sys.argv[1:], "restore"))
