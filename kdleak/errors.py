"""The error tree: every error says what was tried, what came back, and what to do next.

Exit codes are part of the command line's contract:
0 done, 1 a gate the user asked for was exceeded, 2 usage, 3 target, engine or symbols,
4 incomplete result, 5 disarm not confirmed, 70 internal error, 130 interrupted.
"""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """What a kdleak process returns to its caller."""

    DONE = 0
    GATE_EXCEEDED = 1
    USAGE = 2
    TARGET = 3
    INCOMPLETE = 4
    DISARM_NOT_CONFIRMED = 5
    INTERNAL = 70
    INTERRUPTED = 130


class KdleakError(Exception):
    """Base of every error a user may see.

    Args:
        tried: what kdleak was doing, as one clause ("reading 64 bytes at fffff803`1c2a4f10").
        came_back: what happened instead ("the target answered 0xc0000001").
        next_step: what the reader can do about it.
    """

    exit_code = ExitCode.TARGET

    def __init__(self, tried: str, came_back: str = "", next_step: str = "") -> None:
        self.tried = tried
        self.came_back = came_back
        self.next_step = next_step
        super().__init__(self._sentence())

    def _sentence(self) -> str:
        text = self.tried
        if self.came_back:
            text += f": {self.came_back}"
        text = text.rstrip(".") + "."
        if self.next_step:
            text += f" Next: {self.next_step.rstrip('.')}."
        return text


class UsageError(KdleakError):
    """What the user asked for makes no sense: refused before anything is touched."""

    exit_code = ExitCode.USAGE


class BadTag(UsageError):
    """A pool tag that is not one to four characters."""


class BadConnection(UsageError):
    """A ``-k`` connection string that cannot be understood. Never quotes the key."""


class MissingDependency(UsageError):
    """A feature needs a package that is not installed."""


class TargetError(KdleakError):
    """Something about the target machine, the dump, or the way to it."""


class NotLive(TargetError):
    """A live operation (write, resume, interrupt) was asked of a dump."""


class MemoryUnreadable(TargetError):
    """Memory of the target could not be read.

    Attributes:
        address: first address that could not be read.
        size: bytes that were asked for, from the start of the request.
    """

    def __init__(self, address: int, size: int, came_back: str = "", next_step: str = "") -> None:
        self.address = address
        self.size = size
        super().__init__(
            f"reading {size} bytes of target memory at {format_address(address)}",
            came_back or "the memory is not present",
            next_step,
        )


class MemoryNotWritten(TargetError):
    """A write to the target was refused or could not be read back."""


class SymbolNotFound(TargetError):
    """A symbol is in no symbol table that could be loaded."""


class LinkError(TargetError):
    """The connection to the target: could not be made, or was lost."""


class NoTarget(LinkError):
    """Nothing answered within the time allowed."""


class WrongKey(LinkError):
    """KDNET datagrams arrive, but not one authenticates with the key given."""


class PortInUse(LinkError):
    """The local port is taken by another program."""


class LinkLost(LinkError):
    """The target was there and stopped answering."""


class TargetRestarted(LinkError):
    """The target rebooted: its memory, and with it whatever we changed, is gone."""


class ProtocolError(LinkError):
    """The peer sent something that the KD protocol does not allow."""


class UnsupportedTarget(TargetError):
    """The target is a kind of machine this engine cannot handle."""


class ForeignStop(TargetError):
    """The target stopped for a reason that is not ours; it is left stopped and disarmed."""


class TagAlreadyArmed(TargetError):
    """nt!PoolHitTag holds a value that somebody else put there: nothing is touched."""


class TargetBusy(TargetError):
    """Another kdleak process has this target's journal entry open."""


class JournalError(KdleakError):
    """The journal on disk cannot be used; without it nothing is written to a target."""


class IncompleteResult(KdleakError):
    """The result is there but does not cover all that was asked."""

    exit_code = ExitCode.INCOMPLETE


class DisarmNotConfirmed(KdleakError):
    """nt!PoolHitTag may still hold our tag: the one thing that must never be silent."""

    exit_code = ExitCode.DISARM_NOT_CONFIRMED


def format_address(address: int) -> str:
    """The one way kdleak prints an address: as WinDbg does, ``fffff803`1c2a4f10``.

    One of 32 bits has eight digits, as in the debugger's output for 32-bit targets: ``8051f260``.
    """
    if 0 <= address < 1 << 32:
        return f"{address:08x}"
    return f"{(address >> 32) & 0xFFFFFFFF:08x}`{address & 0xFFFFFFFF:08x}"
