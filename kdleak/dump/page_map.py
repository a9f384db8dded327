"""Where a physical page lies in the file: constant time and little memory, however large the dump.

Two kinds of map exist. Run maps (complete dumps, and the range lists of ``.dump`` on a live
session) are searched by bisection. Bitmaps are never copied: they stay in the mapped file, with
one number per 32 KB of bits, and one per 64 bytes where somebody looked.

A frame is a physical page number: address divided by 4096. A map promises pages; the file may end
before them. Promised and absent pages are absent to everybody who looks one up, and counted.
"""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Iterator
from operator import add
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PAGE_SIZE = 0x1000


class PageMap(Protocol):
    """Physical pages of a dump by frame number."""

    pages: int
    """Pages that the map claims."""
    cut_off: int
    """Pages of these that lie behind the end of the file."""
    end: int
    """Highest claimed frame + 1."""

    def claims(self, frame: int) -> bool:
        """Whether the map has this frame, in the file or cut off."""

    def offset(self, frame: int) -> int | None:
        """Offset in the file of the page's 4096 bytes; None where the dump does not have it."""

    def offsets(self, frames: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The same for many frames at once; -1 where the dump does not have the page."""

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """(first frame, count, file offset) of what the file has, ascending by frame.

        Frames and offsets of a run are contiguous.
        """

    def release(self) -> None:
        """Lets go of the mapped file; nothing can be looked up afterwards."""


class EmptyMap:
    """The map of a dump without physical pages: triage, header only."""

    pages = 0
    cut_off = 0
    end = 0

    def claims(self, frame: int) -> bool:  # noqa: ARG002 - the protocol's
        """No frame is here."""
        return False

    def offset(self, frame: int) -> int | None:  # noqa: ARG002 - the protocol's
        """No page is here."""
        return None

    def offsets(self, frames: NDArray[np.uint64]) -> NDArray[np.int64]:
        """All -1."""
        import numpy  # noqa: ICN001, PLC0415 - optional, and slow to load

        return numpy.full(len(frames), -1, dtype=numpy.int64)

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """Nothing."""
        return iter(())

    def release(self) -> None:
        """Nothing is held."""


class RunMap:
    """Pages in runs of frames that follow each other in the file.

    Args:
        firsts: first frame of each run, as array("Q"), ascending; runs do not overlap.
        counts: frames of each run, none 0.
        positions: pages before the run's first one in the file.
        base: file offset of the first page.
        size: bytes of the file.
    """

    def __init__(
        self,
        firsts: array[int],
        counts: array[int],
        positions: array[int],
        base: int,
        size: int,
    ) -> None:
        self._firsts = firsts
        self._counts = counts
        self._positions = positions
        self._base = base
        self._present = max(size - base, 0) // PAGE_SIZE  # pages that the file has room for
        self.pages = sum(self._counts)
        self.end = self._firsts[-1] + self._counts[-1] if self._firsts else 0
        self.cut_off = 0
        if max(map(add, self._positions, self._counts), default=0) > self._present:
            self.cut_off = sum(
                min(max(position + count - self._present, 0), count)
                for position, count in zip(self._positions, self._counts, strict=True)
            )
        self._tables: Any = None

    def claims(self, frame: int) -> bool:
        """Whether a run has this frame."""
        return self._position(frame) >= 0

    def offset(self, frame: int) -> int | None:
        """See PageMap."""
        position = self._position(frame)
        if position < 0 or position >= self._present:
            return None
        return self._base + position * PAGE_SIZE

    def _position(self, frame: int) -> int:
        index = bisect.bisect_right(self._firsts, frame) - 1
        if index < 0:
            return -1
        inside = frame - self._firsts[index]
        return self._positions[index] + inside if inside < self._counts[index] else -1

    def offsets(self, frames: NDArray[np.uint64]) -> NDArray[np.int64]:
        """See PageMap."""
        import numpy as np  # noqa: PLC0415 - optional, and slow to load

        if self._tables is None:
            self._tables = tuple(
                np.frombuffer(table, dtype=np.uint64).astype(np.int64)
                for table in (self._firsts, self._counts, self._positions)
            )
        firsts, counts, positions = self._tables
        if not len(firsts):
            return np.full(len(frames), -1, dtype=np.int64)
        frames = np.asarray(frames, dtype=np.uint64)
        wide = np.minimum(frames, np.uint64(self.end)).astype(np.int64)
        index = np.searchsorted(firsts, wide, side="right") - 1
        inside = wide - firsts[index]
        position = positions[index] + inside
        good = (index >= 0) & (inside < counts[index]) & (position < self._present)
        found: NDArray[np.int64] = np.where(good, self._base + position * PAGE_SIZE, -1)
        return found

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """See PageMap."""
        for first, count, position in zip(self._firsts, self._counts, self._positions, strict=True):
            here = min(count, max(self._present - position, 0))
            if here:
                yield first, here, self._base + position * PAGE_SIZE

    def release(self) -> None:
        """Nothing of the file is held: the list was copied."""
