"""What nt!PoolHitTag held in a log: before, armed, and whether it was put back."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Optional, Tuple

from kdleak.dialect.session import PoolHitTagUse
from kdleak.pool_hit_tag import SYMBOL, describe, looks_armed
from kdleak.tags import PoolTag


class TagState(enum.Enum):
    """How nt!PoolHitTag was left, as far as the log shows."""

    NOT_WRITTEN = "not written"
    """No command of the log writes it."""
    RESTORED = "restored"
    """The value from before was written, and read back."""
    CLEARED = "cleared"
    """A value that is no tag was written and read back; what stood there before is not shown."""
    NOT_CONFIRMED = "not confirmed"
    """Something that is no tag was written last, and no later line shows the value from before."""
    LEFT_ARMED = "left armed"
    """The last the log shows is a tag in it."""


@dataclass(frozen=True)
class LoggedTagValue:
    """The contents of nt!PoolHitTag through a log. Values are 32-bit.

    Attributes:
        before: shown before the first write; None if it was not shown.
        armed: every tag written, in order, each once.
        last_written: by the last write; None without a write.
        after: shown after the last write; None if it was not shown.
        state: see TagState.
        sentence: the state in words.
    """

    before: Optional[int]
    armed: Tuple[PoolTag, ...]
    last_written: Optional[int]
    after: Optional[int]
    state: TagState
    sentence: str

    @property
    def safe(self) -> bool:
        """The log shows that nothing was left behind."""
        return self.state in {TagState.NOT_WRITTEN, TagState.RESTORED, TagState.CLEARED}


def tag_value_of(use: Optional[PoolHitTagUse]) -> LoggedTagValue:
    """Follow the writes and reads of a log.

    Args:
        use: what the log shows of PoolHitTag; None if it never touches it.
    """
    if use is None or not use.writes:
        before = use.reads[-1][1] if use and use.reads else None
        sentence = f"this log does not write {SYMBOL}."
        return LoggedTagValue(before, (), None, None, TagState.NOT_WRITTEN, sentence)
    first, last = use.writes[0], use.writes[-1]
    before = next((value for line, value in reversed(use.reads) if line < first.line), None)
    after = next((value for line, value in reversed(use.reads) if line > last.line), None)
    armed = tuple(
        dict.fromkeys(
            PoolTag.from_bytes(_raw(write.value))
            for write in use.writes
            if looks_armed(_raw(write.value)) and write.value != before
        )
    )
    state, sentence = _state(before, last.value, last.line, after)
    return LoggedTagValue(before, armed, last.value, after, state, sentence)


def _state(
    before: Optional[int], written: int, line: int, after: Optional[int]
) -> Tuple[TagState, str]:
    now = written if after is None else after
    if looks_armed(_raw(now)) and now != before:
        return (
            TagState.LEFT_ARMED,
            f"{SYMBOL} is left armed: the last value in this log is {describe(_raw(now))}; this "
            "log does not show it taken back.",
        )
    if after is None:
        return (
            TagState.NOT_CONFIRMED,
            f"{describe(_raw(written))} was written to {SYMBOL} (line {line}), not confirmed by "
            "this log: the value is not shown afterwards.",
        )
    if before is None:
        return (
            TagState.CLEARED,
            f"{SYMBOL} ended at 0x{after:08x}, which is no tag; what it held before is not in "
            "this log.",
        )
    if after != before:
        return (
            TagState.NOT_CONFIRMED,
            f"{SYMBOL} ended at 0x{after:08x}; before it held 0x{before:08x}, and this log does "
            "not show that put back.",
        )
    return TagState.RESTORED, f"{SYMBOL} is back at 0x{after:08x} (read back in this log)."


def _raw(value: int) -> bytes:
    return (value & 0xFFFFFFFF).to_bytes(4, "little")
