"""Pages of physical memory as rows of numpy arrays: the contents side of ``page_scan``.

A dump lies in one buffer, so that pages are a view of it or one gather; any other physical memory
is asked page by page.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from kdleak.nt.space.paging import PAGE_MASK, PAGE_SHIFT, PAGE_SIZE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kdleak.nt.space.virtual import PhysicalMemory

_LOOK_UP = 1 << 14  # frames per question to the page map, which needs room for each
_UNKNOWN_PAGES = 1 << 20
_FORGOTTEN_AFTER = 1 << 14  # pages, 64 MiB: as much of a mapped file stays in our memory


@runtime_checkable
class BulkPages(Protocol):
    """A page map that answers for many frames at once (``PageMap``)."""

    pages: int
    end: int

    def offsets(self, frames: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Offset of each frame's bytes in the buffer, -1 where absent."""

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """(first frame, count, offset in the buffer), ascending."""


@runtime_checkable
class BulkPhysicalMemory(Protocol):
    """Physical memory that lies in one buffer (``DumpFile``)."""

    data: memoryview
    pages: BulkPages


@runtime_checkable
class ForgetfulMemory(Protocol):
    """Physical memory that grows with what was looked at until it is told to forget it."""

    def forget_pages(self) -> None:
        """Give back what was looked at; views of it stay good."""


class PageSource:
    """Where the bytes of page frames are.

    Args:
        physical: what to read.
        end: highest frame + 1; frames from there on are absent without being looked up.

    Attributes:
        claimed: pages that the physical memory claims to have.
        looked_up: frames whose place was looked up so far.
    """

    def __init__(self, physical: PhysicalMemory, end: int) -> None:
        self._physical = physical
        self._end = end
        self.claimed = _UNKNOWN_PAGES
        self.looked_up = 0
        self._handed_out = 0
        self._map: BulkPages | None = None
        if isinstance(physical, BulkPhysicalMemory) and isinstance(physical.pages, BulkPages):
            self._map = physical.pages
            self._bytes = np.frombuffer(physical.data, dtype=np.uint8)
            self._bytes.flags.writeable = False
            self.claimed = physical.pages.pages

    def places(self, frames: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Where each frame is, for ``rows``; -1 where it is absent."""
        found = np.full(len(frames), -1, dtype=np.int64)
        known = np.flatnonzero(frames < np.uint64(self._end))
        self.looked_up += len(known)
        for at in range(0, len(known), _LOOK_UP):
            some = known[at : at + _LOOK_UP]
            found[some] = self._look_up(frames[some])
        return found

    def _look_up(self, frames: NDArray[np.uint64]) -> NDArray[np.int64]:
        if self._map is not None:
            return self._map.offsets(frames)
        page = self._physical.page
        return np.array(
            [-1 if page(frame) is None else frame for frame in frames.tolist()], dtype=np.int64
        )

    def rows(self, places: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The pages at these places (none is -1), 4096 bytes a row; not to be written to."""
        self._handed_out += len(places)
        if self._handed_out >= _FORGOTTEN_AFTER:
            self._handed_out = 0
            if isinstance(self._physical, ForgetfulMemory):
                self._physical.forget_pages()
        if self._map is None:
            return self._copied(places)
        count = len(places)
        first = int(places[0]) if count else 0
        if not count or (places[1:] - places[:-1] == PAGE_SIZE).all():
            return self._bytes[first : first + count * PAGE_SIZE].reshape(count, PAGE_SIZE)
        # Pages of a dump lie whole pages apart, from wherever the first one is.
        shift = first & PAGE_MASK
        if ((places - shift) & PAGE_MASK).any():
            rows = np.stack([self._bytes[at : at + PAGE_SIZE] for at in places.tolist()])
        else:
            whole = (len(self._bytes) - shift) // PAGE_SIZE
            table = self._bytes[shift : shift + whole * PAGE_SIZE].reshape(whole, PAGE_SIZE)
            rows = table[(places - shift) >> PAGE_SHIFT]
        rows.flags.writeable = False
        return rows

    def _copied(self, places: NDArray[np.int64]) -> NDArray[np.uint8]:
        rows = np.zeros((len(places), PAGE_SIZE), dtype=np.uint8)
        for index, frame in enumerate(places.tolist()):
            page = self._physical.page(frame)
            if page is not None:
                rows[index] = np.frombuffer(page, dtype=np.uint8)
        rows.flags.writeable = False
        return rows
