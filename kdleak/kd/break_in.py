"""Telling break-in stops apart, and keeping account of break-in requests sent too often.

A request that reaches a stopped target is not lost: it breaks in again right after the next
resume. So the host counts what it sent, and absorbs at most one such stop.
"""

from __future__ import annotations

from collections.abc import Callable

from kdleak.kd.packets import Machine, StateChange, Status

SURPLUS_SECONDS = 2.0
"""How long after a resume a stop may still be put down to a surplus request."""

DBG_STATUS_CONTROL_C = 1
"""What the kernel passes to DbgBreakPointWithStatus at a break-in."""

_ARM64_BREAK = b"\x00\x00\x3e\xd4"
_RCX = slice(0x80, 0x84)
_ESP = slice(0xC4, 0xC8)
_X0 = slice(0x08, 0x0C)


def points_at_break(state: StateChange, machine: int) -> int:
    """Bytes of the break instruction the program counter is on, 0 when it is on none."""
    exception = state.exception
    if exception is None or exception.code not in (Status.BREAKPOINT, Status.ASSERTION_FAILURE):
        return 0
    stream = state.control_report.instruction_stream
    if machine == Machine.ARM64:
        is_break = len(stream) >= 4 and stream[3] == 0xD4 and stream[2] & 0xE0 == 0x20
        return 4 if is_break or stream.startswith(_ARM64_BREAK) else 0
    if stream.startswith(b"\xcc"):
        return 1
    if stream.startswith((b"\xcd\x2c", b"\xcd\x03")):
        return 2
    return 0


def status_of_break_in(machine: int, context: bytes, read: Callable[[int, int], bytes]) -> bool:
    """Whether the first argument of the function stopped at says "break-in"."""
    if machine == Machine.AMD64:
        argument = context[_RCX]
    elif machine == Machine.ARM64:
        argument = context[_X0]
    elif machine == Machine.I386:
        stack = int.from_bytes(context[_ESP], "little", signed=True)
        argument = read((stack + 4) & 0xFFFFFFFFFFFFFFFF, 4)
    else:
        return False
    return int.from_bytes(argument, "little") == DBG_STATUS_CONTROL_C and len(argument) == 4


class BreakInAccount:
    """Break-in requests sent, and the stops they explain."""

    def __init__(self) -> None:
        self._outstanding = 0
        self._explained = False
        self._place: int | None = None
        self._resumed_at = 0.0

    def sent(self) -> None:
        """One more request is on its way."""
        self._outstanding += 1

    def stopped(self, state: StateChange) -> None:
        """The target has stopped: note whether a request of ours explains it."""
        self._explained = False
        exception = state.exception
        if not self._outstanding or exception is None or exception.code != Status.BREAKPOINT:
            return
        if self._place is None:
            self._place = state.program_counter
        if state.program_counter == self._place:
            self._outstanding -= 1
            self._explained = True

    def resumed(self, now: float) -> None:
        """The target runs again; only one request can still be under way."""
        self._outstanding = min(self._outstanding, 1)
        self._resumed_at = now

    @property
    def pending(self) -> bool:
        """Whether a request was sent that no stop has answered yet."""
        return self._outstanding > 0

    def is_surplus(self, now: float) -> bool:
        """Whether the last stop, which nobody asked for, is a request sent too often before."""
        return self._explained and now - self._resumed_at <= SURPLUS_SECONDS
