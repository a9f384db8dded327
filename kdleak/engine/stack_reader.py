"""Reading the tops of kernel stacks with one request each, as small as experience allows."""

from __future__ import annotations

from typing import Callable, List, Set

_PAGE = 0x1000


class StackReader:
    """Reads the tops of kernel stacks, normally with one request each.

    How much is asked for is learned from how much earlier stacks needed. A request that runs
    past the top of a stack fails as a whole on some targets, so the pages that were found absent
    behind stacks are remembered.

    Args:
        once: reads up to a number of bytes at an address with one request; b"" when nothing is
            there.
        most: bytes one request can bring.
        cross: whether a first look may run over the end of a page. DbgEng walks the page tables
            for an absent page, about ten requests, so over it only what is needed is asked for.
    """

    SMALLEST = 0x100
    _FIRST = 0x400
    REMEMBERED = 64
    _MOST_ABSENT = 4096

    def __init__(
        self,
        once: Callable[[int, int], bytes],
        most: Callable[[], int],
        *,
        cross: bool = True,
    ) -> None:
        self._once = once
        self._most = most
        self._cross = cross
        self._needs: List[int] = []
        self._absent: Set[int] = set()

    @property
    def size(self) -> int:
        """Bytes the next stack is asked for."""
        if not self._needs:
            return min(self._FIRST, self._most())
        # A little more than the deepest of late, so that small changes cost no second request.
        wanted = -(-(max(self._needs) + 0x40) // 0x40) * 0x40
        return min(max(wanted, self.SMALLEST), self._most())

    def learn(self, used: int) -> None:
        """Take note of how many bytes a stack needed."""
        self._needs.append(used)
        del self._needs[: -self.REMEMBERED]

    def read(self, address: int, size: int) -> bytes:
        """Up to ``size`` bytes, b"" when there is nothing; normally one request."""
        boundary = (address // _PAGE + 1) * _PAGE
        end = address + min(size, self._most())
        if not self._cross:
            end = min(end, boundary)
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
