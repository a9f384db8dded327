"""Reading a KD target's memory as this floor wants it: exactly, or not at all."""

from __future__ import annotations

from collections.abc import Callable

from kdleak.engine.native_signals import HoldSignals
from kdleak.errors import MemoryUnreadable
from kdleak.kd.host import KdHost

_REQUESTS_HELD = 16  # requests in a row during which Ctrl+C waits


class KdMemory:
    """A ``MemoryReader`` over a KD host.

    Args:
        host: the debugger's role.
        hold: keeps Ctrl+C out of requests.
        stopped: tells whether the target is stopped; a running one answers no requests.
    """

    def __init__(self, host: KdHost, hold: HoldSignals, stopped: Callable[[], bool]) -> None:
        self._host = host
        self._hold = hold
        self._stopped = stopped

    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes.

        Raises:
            MemoryUnreadable: any of them is not there.
            LinkLost: the target does not answer.
        """
        if not self._stopped():
            raise MemoryUnreadable(address, size, "the target is running", "interrupt it first")
        parts: list[bytes] = []
        at, left = address, size
        while left > 0:
            step = min(left, self._host.max_read * _REQUESTS_HELD)
            with self._hold:
                data = self._host.read_virtual(at, step)
            if not data:
                raise MemoryUnreadable(at, size)
            parts.append(data)
            at += len(data)
            left -= len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)
