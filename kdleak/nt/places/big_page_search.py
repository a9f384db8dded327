"""Recognising nt!PoolBigPageTable by what it holds, where no symbol says where it is.

Its rows are addresses of blocks, and the row of a block follows from a hash of its address: that
proves the table and its number of rows.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from kdleak.errors import MemoryUnreadable
from kdleak.nt.layouts import FIRST_MULTIPLY_HASH_BUILD, BigPageLayout
from kdleak.nt.memory import PAGE_SIZE, MemoryReader
from kdleak.nt.places.image_data import ImageData
from kdleak.nt.places.tag_table_search import MAXIMUM_CANDIDATES
from kdleak.nt.tag_table import multiply_hash
from kdleak.tags import PROTECTED_POOL

_SAMPLED_PAGES = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_SAMPLE_ROWS, _SAMPLE_ENOUGH, _SAMPLE_GOOD = 4, 64, 0.95
_SAMPLED_OF_A_RANGE = 64
_SMALLEST, _LARGEST = 0x100, 1 << 24  # rows
_ROWS, _FITS = 16, 0.8
_REACH = 0x80  # rows a block may lie behind its slot


@dataclass(frozen=True)
class ProvedBigPageTable:
    """A table of big blocks that the hash proves.

    Attributes:
        address: its first row.
        rows: how many it has, a power of two.
        used: rows in use, of those looked at.
        fit: share of them that lie where the hash says.
    """

    address: int
    rows: int
    used: int
    fit: float


class BigPageSearch:
    """Finds the table of big blocks from pointers to it.

    Args:
        memory: reads the target.
        data: nt's variables.
        layout: form of its rows.
        build: Windows build number; picks the hash.
    """

    def __init__(
        self, memory: MemoryReader, data: ImageData, layout: BigPageLayout, build: int
    ) -> None:
        self._memory = memory
        self._data = data
        self._layout = layout
        self._build = build
        self._pages = (1 << 8 * layout.pointer_size) // PAGE_SIZE - 1

    def all_tables(self) -> list[ProvedBigPageTable]:
        """Every table of big blocks that a variable of nt points to.

        A part of a table can pass for a smaller one; what lies inside another is left out.
        """
        found: list[ProvedBigPageTable] = []
        end = 0
        for value in self._data.page_pointers()[:MAXIMUM_CANDIDATES]:
            if value < end or not self._looks_right(value):
                continue
            table = self.prove(value)
            if table is not None:
                found.append(table)
                end = value + table.rows * self._layout.row_size
        return found

    def _looks_right(self, address: int) -> bool:
        used = seen = good = 0
        for page in _SAMPLED_PAGES:
            offset = page * PAGE_SIZE
            try:
                raw = self._memory.read(address + offset, PAGE_SIZE)
            except MemoryUnreadable:
                continue
            blocks, rows, right = self._rows(raw, offset)
            used, seen, good = used + len(blocks), seen + rows, good + right
            if seen and good < _SAMPLE_GOOD * seen:
                return False
            if used >= _SAMPLE_ENOUGH:
                break
        return used >= _SAMPLE_ROWS

    def _rows(self, raw: bytes, offset: int) -> tuple[list[tuple[int, int]], int, int]:
        """Look at the rows that lie whole in a piece.

        Returns:
            (row, page number) of the blocks in use, the rows that are not zero, and how many of
            these look as they should.
        """
        layout = self._layout
        size, width = layout.row_size, layout.pointer_size
        first = -(-offset // size)
        low = 1 << (8 * width - 1)
        blocks: list[tuple[int, int]] = []
        seen = good = 0
        form = "<I" if width == 4 else "<Q"
        for at in range(first * size - offset, len(raw) - size + 1, size):
            start = struct.unpack_from(form, raw, at)[0]
            if start <= 1:
                # Never used: the rest of the row says nothing on some builds.
                good += start
                seen += start
                continue
            seen += 1
            if start & 0xFFE or start < low:
                continue
            key = struct.unpack_from("<I", raw, at + layout.key)[0] & ~PROTECTED_POOL
            bytes_at = at + layout.size
            length = int.from_bytes(raw[bytes_at : bytes_at + layout.size_width], "little")
            if not key or not 0 < length < 1 << 44:
                continue
            good += 1
            if not start & 1:
                blocks.append(((offset + at) // size, start // PAGE_SIZE & self._pages))
        return blocks, seen, good

    def prove(self, address: int) -> ProvedBigPageTable | None:
        """The table at an address, with the largest number of rows that the hash agrees with.

        The first half of a table agrees with half its size too, and twice its size does not. Of
        a large table a part is looked at.
        """
        best: ProvedBigPageTable | None = None
        blocks: list[tuple[int, int]] = []
        read_to = 0
        misses = 0
        rows = _SMALLEST
        while rows <= _LARGEST and misses < 2:
            fresh = self._sampled_rows(address, read_to, rows)
            if fresh is None:
                break  # what follows is no row of this table
            blocks += fresh
            read_to = rows
            fit = self._fit(blocks, rows)
            if fit < _FITS:
                misses += best is not None
            elif len(blocks) >= _ROWS:
                misses = 0
                best = ProvedBigPageTable(address, rows, len(blocks), fit)
            rows *= 2
        return best

    def _sampled_rows(self, address: int, first: int, end: int) -> list[tuple[int, int]] | None:
        """(row, page number) of blocks in rows ``first`` to ``end``, from at most 64 pages.

        Returns:
            None when the memory holds something else. Empty when none of it is there.
        """
        start, stop = first * self._layout.row_size, end * self._layout.row_size
        pages = range(start // PAGE_SIZE, -(-stop // PAGE_SIZE))
        blocks: list[tuple[int, int]] = []
        seen = good = 0
        for page in pages[:: -(-len(pages) // _SAMPLED_OF_A_RANGE)]:
            low = max(page * PAGE_SIZE, start)
            high = min((page + 1) * PAGE_SIZE, stop)
            try:
                raw = self._memory.read(address + low, high - low)
            except MemoryUnreadable:
                continue
            found, rows, right = self._rows(raw, low)
            blocks += found
            seen, good = seen + rows, good + right
        return blocks if good >= _SAMPLE_GOOD * seen else None

    def _fit(self, blocks: list[tuple[int, int]], rows: int) -> float:
        """The share of the blocks that lie at most a little behind their slot."""
        if not blocks:
            return 0.0
        reach = min(_REACH, rows // 8)
        best = 0
        for slots in self._slots([page for _, page in blocks]):
            near = sum(
                (row - slot) & (rows - 1) <= reach
                for (row, _), slot in zip(blocks, slots, strict=True)
            )
            best = max(best, near)
        return best / len(blocks)

    def _slots(self, pages: list[int]) -> list[list[int]]:
        """The blocks' hashes in the forms the build may use.

        From Windows 10 the page number is multiplied, its low 32 bits only or all of it; before,
        its bytes are combined.
        """
        if self._build >= FIRST_MULTIPLY_HASH_BUILD:
            return [
                [multiply_hash(page & 0xFFFFFFFF) for page in pages],
                [multiply_hash(page) for page in pages],
            ]
        low = [page & 0xFFFFFFFF for page in pages]
        return [
            [page >> 24 ^ page >> 16 ^ page >> 8 ^ page for page in some] for some in (low, pages)
        ]
