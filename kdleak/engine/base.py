"""The Engine contract: the same small set of operations whatever carries them out.

The procedure above knows engines only through this protocol. An implementation raises only
errors of the tree in ``kdleak.errors``. Methods marked *live* raise ``NotLive`` on a dump.
"""

from __future__ import annotations

from types import TracebackType
from typing import Optional, Protocol, Sequence, Tuple, Type

from kdleak.model import (
    Module,
    PoolSnapshot,
    Registers,
    Stack,
    Stop,
    Symbolized,
    TargetInfo,
)
from kdleak.tags import PoolTag


class Engine(Protocol):
    """A debugger engine attached to one target.

    A live engine is handed over with the target *stopped*; ``stop`` says why it is stopped.
    """

    @property
    def name(self) -> str:
        """Kind of engine: "native", "dbgeng over pykd"."""

    @property
    def where(self) -> str:
        """The target as the user named it, without secrets: ``net:port=50000``, a file name."""

    @property
    def target(self) -> TargetInfo:
        """What is under the debugger."""

    @property
    def stop(self) -> Stop:
        """Why the target is stopped now; ``STILL_RUNNING`` while it runs."""

    @property
    def requests(self) -> int:
        """Round trips to the target so far; 0 where the engine cannot count them."""

    @property
    def seconds_stopped(self) -> float:
        """Seconds the target has been stopped since we attached, as seen from here."""

    def reload(self) -> Sequence[str]:
        """Read the module list and load symbols again (WinDbg's ``.reload``).

        Returns:
            Remarks worth showing, one sentence each (a PDB that was not found, ...).
        """

    def modules(self) -> Tuple[Module, ...]:
        """Loaded modules in load order."""

    def symbol(self, name: str) -> int:
        """Address of a symbol written as WinDbg does, ``nt!PoolHitTag``; case-insensitive.

        Raises:
            SymbolNotFound: with what was searched.
        """

    def nearest(self, address: int) -> Symbolized:
        """The nearest symbol at or below an address. Never raises for an unknown address."""

    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes of target virtual memory.

        Raises:
            MemoryUnreadable: when any byte of it is not there.
        """

    def pool_usage(self, tag: Optional[PoolTag] = None) -> PoolSnapshot:
        """Usage of all tags, or of one (which may read much less of the target)."""

    def registers(self) -> Registers:
        """Registers of the processor that stopped. At most one round trip per stop."""

    def stack(self, depth: int = 32) -> Stack:
        """Call stack of the processor that stopped, at most ``depth`` frames."""

    def stack_memory(self) -> Tuple[int, bytes]:
        """What is already known of the stack at this stop: (address, bytes), without a round trip.

        Empty bytes where the engine keeps none.
        """

    def write(self, address: int, data: bytes) -> None:
        """*Live.* Write target virtual memory. Only ``kdleak.arm`` may call it.

        Raises:
            MemoryNotWritten: when the target refused.
        """

    def resume(self, timeout: Optional[float]) -> Stop:
        """*Live.* Let the target run until it stops or ``timeout`` seconds are over.

        A stop at a break instruction in the target's own code is stepped over first, so that
        it does not break at the same place again. Module loads, prints and other traffic are
        served meanwhile. With None it waits for ever; KeyboardInterrupt passes through with
        the target still running.

        Raises:
            LinkLost, TargetRestarted: while waiting.
        """

    def interrupt(self, timeout: float = 30.0) -> Stop:
        """*Live.* Stop a running target (break-in). Returns at once if it is stopped already.

        The stop may be of another kind than BREAK_IN when something else came first.

        Raises:
            LinkLost: nothing answered within ``timeout`` seconds.
        """

    def close(self) -> None:
        """Leave: breakpoints removed, a live target running. Never raises for a lost link."""

    def __enter__(self) -> Engine: ...  # noqa: PYI034 - no Self on 3.9

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None: ...
