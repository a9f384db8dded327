"""Reading a KD target's memory as this floor wants it: exactly, or not at all."""

from __future__ import annotations

from collections.abc import Callable

from kdleak.engine.native_signals import HoldSignals
from kdleak.errors import MemoryUnreadable
from kdleak.kd.host import KdHost

_PAGE = 0x1000
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


class StackReader:
    """Reads the tops of kernel stacks with one request each.

    How much is asked for is learned from how much earlier stacks needed. A request that runs
    past the top of a stack fails as a whole on some targets, so the pages that were found absent
    behind stacks are remembered.

    Args:
        host: the debugger's role.
        hold: keeps Ctrl+C out of requests.
    """

    SMALLEST = 0x100
    _FIRST = 0x400
    _REMEMBERED = 16
    _MOST_ABSENT = 4096

    def __init__(self, host: KdHost, hold: HoldSignals) -> None:
        self._host = host
        self._hold = hold
        self._needs: list[int] = []
        self._absent: set[int] = set()

    @property
    def size(self) -> int:
        """Bytes the next stack is asked for."""
        most = self._host.max_read
        if not self._needs:
            return min(self._FIRST, most)
        # A little more than the deepest of late, so that small changes cost no second request.
        wanted = -(-(max(self._needs) + 0x40) // 0x40) * 0x40
        return min(max(wanted, self.SMALLEST), most)

    def learn(self, used: int) -> None:
        """Take note of how many bytes a stack needed."""
        self._needs.append(used)
        del self._needs[: -self._REMEMBERED]

    def read(self, address: int, size: int) -> bytes:
        """Up to ``size`` bytes, b"" when there is nothing; normally one request."""
        boundary = (address // _PAGE + 1) * _PAGE
        end = address + min(size, self._host.max_read)
        wanted = next((page for page in range(boundary, end, _PAGE) if page in self._absent), end)
        data = self._once(address, wanted - address)
        if not data and boundary < wanted:
            data = self._once(address, boundary - address)
        stop = address + len(data)
        # Absent once is not absent for ever: stacks come and go.
        self._absent.difference_update(range(boundary - _PAGE, stop, _PAGE))
        if data and stop < wanted and stop % _PAGE == 0:
            if len(self._absent) >= self._MOST_ABSENT:
                self._absent.clear()
            self._absent.add(stop)
        return data

    def _once(self, address: int, size: int) -> bytes:
        with self._hold:
            return self._host.read_virtual_once(address, size)
