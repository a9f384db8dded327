"""Recognising the kernel's tag tables by what they hold, where no symbol says where they are.

A tag's row follows from a hash of the tag, so a table proves itself: in memory that is none,
hardly any four bytes lie where the hash of their value would put them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kdleak.errors import MemoryUnreadable
from kdleak.nt.layouts import TrackerLayout
from kdleak.nt.memory import PAGE_SIZE, MemoryReader
from kdleak.nt.places.image_data import ImageData
from kdleak.nt.tag_table import TagTable, layout_fits, tag_hash
from kdleak.tags import PROTECTED_POOL

MAXIMUM_CANDIDATES = 0x8000
"""Most pointers of nt's data that are followed."""

ENOUGH_KEYS = 16
"""Tags that have to be seen before memory counts as a tag table, where only its contents speak."""

FEW_KEYS = 4
"""As ``ENOUGH_KEYS``, for memory that a debugger data block or symbol calls a tag table."""

_SAMPLED_PAGES = (0, 1, 2, 4, 8, 16)
_SAMPLE_MASK, _SAMPLE_REACH = 0xFF, 0x30  # a tag may lie this far behind its slot in a sample
_SAMPLE_KEYS, _SAMPLE_ENOUGH, _SAMPLE_FITS = 4, 48, 0.7
_SMALLEST_MASK, _LARGEST_MASK = 0x7F, 0xFFFF
_FITS, _TEXT = 0.9, 0.75
_AGREE_ENOUGH, _CONFLICTS = 64, 0.02
_MAXIMUM_SLOTS = 0x800


@dataclass(frozen=True)
class ProvedTable:
    """A tag table that the hash proves.

    Attributes:
        address: its first row.
        layout: form of its rows.
        mask: of the hash; the table has ``mask + 2`` rows.
        fit: share of its tags that lie where the hash says.
    """

    address: int
    layout: TrackerLayout
    mask: int
    fit: float

    @property
    def end(self) -> int:
        """The first byte behind it."""
        return self.address + (self.mask + 2) * self.layout.row_size


@dataclass(frozen=True)
class TableArray:
    """nt!ExPoolTagTables as found.

    Attributes:
        address: of its first slot.
        tables: the tables of its first slots: those of processors 0, 1, ...; 0 where a processor
            has none.
        agreeing: slots beyond the first whose table names the same tags in the same rows.
    """

    address: int
    tables: tuple[int, ...]
    agreeing: int


class TagTableSearch:
    """Finds tag tables from pointers to them.

    Args:
        memory: reads the target.
        data: nt's variables.
        layouts: row layouts, the likeliest first.
        pointer_size: 4 or 8.
        processors: logical processors, 0 where unknown.
    """

    def __init__(
        self,
        memory: MemoryReader,
        data: ImageData,
        layouts: Sequence[TrackerLayout],
        pointer_size: int,
        processors: int = 0,
    ) -> None:
        self._memory = memory
        self._data = data
        self._layouts = tuple(layouts)
        self._width = pointer_size
        self._processors = min(processors, _MAXIMUM_SLOTS)

    # -- one table

    def prove(self, address: int, keys: int = ENOUGH_KEYS) -> ProvedTable | None:
        """The table at an address, if the hash proves that one is there.

        Args:
            address: of its first row.
            keys: tags that have to be seen.
        """
        if not address or address % self._width:
            return None
        for layout in self._likely_layouts(address):
            found = self._measure(address, layout, keys)
            if found is not None:
                return found
        return None

    def _likely_layouts(self, address: int) -> list[TrackerLayout]:
        """Layouts with which a few of the first pages look like a table; most memory has none."""
        tallies = [_Tally(layout) for layout in self._layouts]
        for page in _SAMPLED_PAGES:
            offset = page * PAGE_SIZE
            try:
                raw = self._memory.read(address + offset, PAGE_SIZE)
            except MemoryUnreadable:
                continue
            for tally in tallies:
                tally.take(raw, offset)
            tallies = [tally for tally in tallies if tally.possible]
            if not tallies or all(tally.seen >= _SAMPLE_ENOUGH for tally in tallies):
                break
        return [tally.layout for tally in tallies if tally.seen >= _SAMPLE_KEYS]

    def _measure(self, address: int, layout: TrackerLayout, least: int) -> ProvedTable | None:
        """The largest size with which the hash agrees.

        The first half of a table agrees with half its mask too, and twice its size does not.
        """
        best: ProvedTable | None = None
        misses = 0
        mask = _SMALLEST_MASK
        while mask <= _LARGEST_MASK and misses < 2:
            table = TagTable(self._memory, address, layout, mask + 2)
            table.fetch_all()
            keys = table.keys()
            fit = layout_fits(keys, mask)
            if fit < _FITS:
                misses += best is not None
            elif _are_tags([key for key in keys[: mask + 1] if key], least):
                misses = 0
                best = ProvedTable(address, layout, mask, fit)
            mask = 2 * mask + 1
        return best

    def all_tables(self) -> list[ProvedTable]:
        """Every tag table that a variable of nt points to.

        A part of a table can pass for a smaller one; what lies inside another is left out. One
        that names the same tags in the same rows as another is believed to be like it, without
        a proof of its own: its ``fit`` is the other's.
        """
        found: list[ProvedTable] = []
        known: list[tuple[ProvedTable, _KeyRows]] = []
        for value in self._data.page_pointers()[:MAXIMUM_CANDIDATES]:
            if (found and value < found[-1].end) or not self._likely_layouts(value):
                continue
            table = next(
                (
                    replace(one, address=value)
                    for one, rows in known
                    if rows.compare(value, both=True)
                ),
                None,
            )
            if table is None:
                table = self.prove(value)
                if table is None:
                    continue
                known = [*known[-3:], (table, _KeyRows(self._memory, table))]
            found.append(table)
        return found

    # -- the tables of all processors

    def array_at(self, address: int, first: ProvedTable) -> TableArray:
        """The tables that the slots from ``address`` on point to, as long as they agree.

        Up to the target's own count of processors, a table that is not there belongs to the list.

        Args:
            address: of a variable that points to ``first``.
            first: the table whose rows the others are compared with.
        """
        rows = _KeyRows(self._memory, first)
        tables = [first.address]
        agreeing = 0
        pending: list[int] = []  # slots that say nothing, kept when one behind them agrees
        for slot in range(1, _MAXIMUM_SLOTS):
            value = self._data.pointer_at(address + slot * self._width)
            if value is None or (value and (value in tables or value in pending)):
                break
            verdict = rows.compare(value) if value and not value % PAGE_SIZE else None
            if value and verdict is None:
                break  # a number, or memory that is no table
            if verdict:
                tables += [*pending, value]
                pending = []
                agreeing += 1
            else:
                pending.append(value)
                if slot >= self._processors and len(pending) > 1:
                    break
        tables += pending[: max(self._processors - len(tables), 0)]
        while not tables[-1]:
            tables.pop()
        return TableArray(address, tuple(tables), agreeing)

    def arrays_of(self, tables: Sequence[ProvedTable], *, leading: bool) -> list[TableArray]:
        """Places that look like nt!ExPoolTagTables with one of the tables in the first slot.

        Args:
            tables: tag tables.
            leading: each is known to be a first one. If not, it may be the second, of a list
                whose first table is not there, and what is found has to be as long as the
                target has processors.
        """
        places = [(place, one) for one in tables for place in self._data.places_of(one.address)]
        found = []
        seen = 0  # the end of the last list: the rest of a list is no list of its own
        for place, table in sorted(places, key=lambda item: item[0]):
            if place < seen:
                continue
            one = self.array_at(place, table)
            if one.agreeing:
                seen = place + len(one.tables) * self._width
                if leading or self._begins(one):
                    found.append(one)
        return found

    def _begins(self, array: TableArray) -> bool:
        """Whether a list begins where it was found, and is not the rest of one.

        nt!PoolTrackTable holds the pointer of the first slot too. Where it does not show, a
        pointer in front may be the first, to a table that is not there.
        """
        if len(array.tables) < self._processors:
            return False
        if len(self._data.places_of(array.tables[0])) > 1:
            return True
        before = self._data.pointer_at(array.address - self._width)
        return before is not None and not (before >> 31 and not before % PAGE_SIZE)


def _are_tags(keys: list[int], least: int) -> bool:
    """Whether numbers look like the tags of a table: each once, and nearly all are text."""
    text = sum(_is_text(key) for key in keys)
    return len(keys) >= least and len(set(keys)) == len(keys) and text >= _TEXT * len(keys)


def _is_text(key: int) -> bool:
    return all(0x20 <= byte < 0x7F for byte in key.to_bytes(4, "little"))


class _Tally:
    """How many tags of a sample lie near the slot of their hash, with one layout."""

    def __init__(self, layout: TrackerLayout) -> None:
        self.layout = layout
        self.seen = 0
        self._kept = 0

    def take(self, raw: bytes, offset: int) -> None:
        """Look at one piece of what may be a table."""
        for row, key in keys_in(raw, offset, self.layout.row_size):
            self.seen += 1
            self._kept += (row - tag_hash(key)) & _SAMPLE_MASK <= _SAMPLE_REACH

    @property
    def possible(self) -> bool:
        """Whether what was seen so far allows that it is a table."""
        return self.seen < _SAMPLE_KEYS or self._kept >= _SAMPLE_FITS * self.seen


class _KeyRows:
    """The tags of one table by row, to compare other tables with."""

    def __init__(self, memory: MemoryReader, table: ProvedTable) -> None:
        self._memory = memory
        self._size = table.layout.row_size
        self._rows = table.mask + 1
        own = TagTable(memory, table.address, table.layout, table.mask + 2)
        own.fetch_all()
        self._keys = own.keys()
        self._missing = own.missing

    def compare(self, address: int, *, both: bool = False) -> bool | None:
        """Whether another table names the same tags in the same rows.

        Args:
            address: of the other table.
            both: rows that this one does not use do not count. If not, this one must have all
                tags of the other, as the first table does.

        Returns:
            True when it does; None when it names others; False when it names none at all, or
            cannot be read.
        """
        same = other = 0
        for offset in range(0, self._rows * self._size, PAGE_SIZE):
            try:
                raw = self._memory.read(address + offset, PAGE_SIZE)
            except MemoryUnreadable:
                continue
            for row, key in keys_in(raw, offset, self._size):
                if row >= self._rows or row in self._missing:
                    continue
                own = self._keys[row]
                if own == key:
                    same += 1
                elif own or not both:
                    other += 1
            if other > 1 and other > _CONFLICTS * (same + other):
                return None
            if same >= _AGREE_ENOUGH:
                return True
        if other:
            return True if same and other <= _CONFLICTS * (same + other) else None
        return same > 0


def keys_in(raw: bytes, offset: int, row_size: int) -> list[tuple[int, int]]:
    """(row, tag) of the used rows whose key lies in a piece of a table.

    Args:
        raw: the piece; its length is a multiple of 4.
        offset: of the piece in the table, a multiple of 4.
        row_size: bytes of a row, a multiple of 4.
    """
    row = -(-offset // row_size)
    words = struct.unpack(f"<{len(raw) // 4}I", raw)[
        (row * row_size - offset) // 4 :: row_size // 4
    ]
    return [
        (row + index, word & ~PROTECTED_POOL)
        for index, word in enumerate(words)
        if word & ~PROTECTED_POOL
    ]
