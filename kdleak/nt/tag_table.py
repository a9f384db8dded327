"""One pool tag table: the hash that places tags in it, and reading its rows with few requests."""

from __future__ import annotations

import struct
from typing import Iterator, List, Optional, Sequence, Set, Tuple

from kdleak.errors import MemoryUnreadable
from kdleak.nt.layouts import TrackerLayout
from kdleak.nt.memory import PAGE_SIZE, MemoryReader
from kdleak.tags import PROTECTED_POOL

HASH_MULTIPLIER = 40543
NEAR = 64
"""Rows a tag may lie behind its hash slot and still speak for a layout."""


def multiply_hash(value: int) -> int:
    """The kernel's hash: the halves of the 64-bit product with 40543, combined by XOR."""
    product = (HASH_MULTIPLIER * value) & 0xFFFFFFFFFFFFFFFF
    return (product & 0xFFFFFFFF) ^ (product >> 32)


def tag_hash(tag: int) -> int:
    """Hash of a tag's value, computed as the kernel does, without the protected bit."""
    return multiply_hash(tag & ~PROTECTED_POOL & 0xFFFFFFFF)


def tag_slot(tag: int, mask: int) -> int:
    """Row where the search for a tag begins in a table with this mask."""
    return tag_hash(tag) & mask


def layout_fits(keys: Sequence[int], mask: int) -> float:
    """Share of the keys that lie where linear probing from their hash slot would put them.

    With the right layout and mask nearly all do; read with a wrong stride hardly any does. The
    overflow row, behind the hashed ones, has no part in it.
    """
    count = mask + 1
    hashed = list(keys[:count]) + [0] * (count - len(keys))
    used = kept = 0
    run = 0  # used rows in front of this one, without a gap
    for index in range(-NEAR, count):
        key = hashed[index % count]
        if not key:
            run = 0
            continue
        if index >= 0:
            used += 1
            if (index - tag_slot(key, mask)) % count <= min(run, NEAR):
                kept += 1
        run += 1
    return kept / used if used else 0.0


class TagTable:
    """Rows of one processor's table, as far as they were fetched.

    Attributes:
        missing: rows that were asked for and could not be read.
    """

    def __init__(
        self, memory: MemoryReader, address: int, layout: TrackerLayout, rows: int
    ) -> None:
        self.address = address
        self.rows = rows
        self.missing: Set[int] = set()
        self._memory = memory
        self._layout = layout
        self._data = bytearray(rows * layout.row_size)

    def key(self, row: int) -> int:
        """The tag of a row; 0 where it is unused or was not read."""
        at = row * self._layout.row_size
        return int.from_bytes(self._data[at : at + 4], "little") & ~PROTECTED_POOL

    def keys(self) -> List[int]:
        """The tags of all rows."""
        # Of each row its first word: all words of an absurdly large table would be too many.
        first = struct.Struct(f"<I{self._layout.row_size - 4}x")
        return [key & ~PROTECTED_POOL for (key,) in first.iter_unpack(self._data)]

    def counters(self, row: int) -> Tuple[int, ...]:
        """The six unsigned counters of a row; see ``TrackerLayout.counters``."""
        return self._layout.counters(self._data, row * self._layout.row_size)

    def fetch(self, rows: Sequence[int], request_bytes: Optional[int]) -> None:
        """Read the rows named (ascending); what fails is added to ``missing``.

        Args:
            rows: rows wanted. Others in between may be read along where that saves requests.
            request_bytes: most bytes of one request; None reads all in one piece.
        """
        for first, last in spans(rows, self._layout.row_size, request_bytes):
            self._fetch_span(first, last)

    def fetch_all(self) -> None:
        """Read the whole table in one go; the reader cuts it as its link needs."""
        self._fetch_span(0, self.rows - 1)

    def _fetch_span(self, first: int, last: int) -> None:
        size = self._layout.row_size
        start, end = first * size, (last + 1) * size
        try:
            self._data[start:end] = self._memory.read(self.address + start, end - start)
        except MemoryUnreadable:
            self._fetch_pages(first, last)

    def _fetch_pages(self, first: int, last: int) -> None:
        """Find out which pages of a span that failed are there."""
        size = self._layout.row_size
        start, end = first * size, (last + 1) * size
        holes: List[Tuple[int, int]] = []
        for at, length in _pages(self.address + start, end - start):
            offset = at - self.address
            try:
                self._data[offset : offset + length] = self._memory.read(at, length)
            except MemoryUnreadable:
                holes.append((offset, offset + length))
        for low, high in holes:
            self.missing.update(range(low // size, -(-high // size)))
            # Of rows that are there in part, the part must not count; the others are zeros yet.
            for row in (low // size, (high - 1) // size):
                self._data[row * size : (row + 1) * size] = bytes(size)


def spans(
    rows: Sequence[int], row_size: int, request_bytes: Optional[int]
) -> Iterator[Tuple[int, int]]:
    """Cut ascending rows into as few (first, last) requests as possible.

    A request brings up to ``request_bytes`` bytes for the price of one round trip, so starting
    each at the first row still wanted and taking all that fit gives the fewest requests.
    """
    if not rows:
        return
    if request_bytes is None:
        yield rows[0], rows[-1]
        return
    most = max(request_bytes // row_size, 1)
    first = last = rows[0]
    for row in rows:
        if row - first >= most:
            yield first, last
            first = row
        last = row
    yield first, last


def _pages(address: int, size: int) -> Iterator[Tuple[int, int]]:
    """The parts of a range that lie in one page each."""
    end = address + size
    while address < end:
        stop = min((address // PAGE_SIZE + 1) * PAGE_SIZE, end)
        yield address, stop - address
        address = stop
