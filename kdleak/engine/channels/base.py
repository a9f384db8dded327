"""What a channel is: the thin binding that carries a debugger's text, and nothing else.

The engine above (``kdleak.engine.dbgeng``) knows what to ask and what the answers mean; a
channel only gets a command to the debugger and its text back. A few bindings can hand over
memory and registers without text; they offer that as ``QuickAccess``, because every command
that DbgEng executes at a stop costs the target three or four round trips (it walks the top
frame for its own use first), while reading memory through its interface costs none but the read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Optional, Protocol

LOCAL_KERNEL = "local kernel"
"""``Channel.session`` of a local kernel session: nothing there can be stopped."""
LIVE_KERNEL = "live kernel"
DUMP = "dump"

CHECK_DUMP = "check that the file is a kernel crash dump and may be read"
"""What to do about a dump that a debugger does not open."""


@dataclass(frozen=True)
class Resumed:
    """What a debugger said between a resume (or a break-in) and now.

    Attributes:
        text: everything printed meanwhile: prints of the target, module loads, the break banner.
        running: the target still runs (the time was over); ``text`` is what came so far.
        broke_in: the channel itself stopped the target because the time was over, since it cannot
            give back control otherwise (inside WinDbg the thread that waits is the one that
            executes); the target is stopped then.
        processor: number of the processor that stopped, None where the binding does not say.
        code: NTSTATUS of the exception that stopped it, where the binding knows it without text.
        first_chance: as the binding says; means nothing without ``code``.
    """

    text: str = ""
    running: bool = False
    broke_in: bool = False
    processor: Optional[int] = None
    code: Optional[int] = None
    first_chance: bool = True


class QuickAccess(Protocol):
    """Memory and registers of a stopped target without going through commands."""

    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes of virtual memory.

        Raises:
            MemoryUnreadable: when any byte of it is not there.
        """

    def registers(self) -> Dict[str, int]:
        """Integer registers of the processor that stopped, by lower-case WinDbg name."""


class Channel(Protocol):
    """A debugger session, attached to one target, that takes commands.

    Every method raises only errors of the tree in ``kdleak.errors``. Not thread-safe, but
    ``interrupt`` may be called after a KeyboardInterrupt left ``resume``.
    """

    @property
    def name(self) -> str:
        """Kind of binding: "kd", "pykd", "pybag", "replay"."""

    @property
    def where(self) -> str:
        """The target as the user named it, without secrets."""

    @property
    def session(self) -> str:
        """What is at the other end: ``LIVE_KERNEL``, ``LOCAL_KERNEL`` or ``DUMP``."""

    @property
    def quick(self) -> Optional[QuickAccess]:
        """Memory and registers without text, None where the binding has none."""

    @property
    def running(self) -> bool:
        """Whether the target runs as far as this side knows."""

    def execute(self, command: str, timeout: Optional[float] = None) -> str:
        """Run one debugger command line on the stopped target and return all its text.

        Line ends are LF; prompts and the channel's own marks are removed. What the debugger
        reports as a failure of the command comes back as its text: the engine judges it.

        Args:
            command: as typed in WinDbg; several may be joined with ";".
            timeout: seconds; None for the channel's default.

        Raises:
            LinkLost: no answer within ``timeout``, or the debugger process ended.
        """

    def resume(self, timeout: Optional[float]) -> Resumed:
        """``g``, then wait until the target stops or ``timeout`` seconds are over.

        On a target that runs already it only waits. With None it waits for ever;
        KeyboardInterrupt passes through with the target running.

        Raises:
            LinkLost: the debugger process ended or said that the connection is lost.
        """

    def interrupt(self, timeout: float) -> Resumed:
        """Stop a running target (Ctrl+Break).

        Raises:
            LinkLost: it did not stop within ``timeout`` seconds. May be called again.
        """

    def close(self, leave_stopped: bool = False) -> None:
        """Leave the session; a live target runs on unless ``leave_stopped``.

        Headless channels end their debugger process (``qd``; ``q`` leaves a kernel target
        stopped). Inside WinDbg the session stays the user's; the target is left as it is.
        Never raises for a lost link.
        """
