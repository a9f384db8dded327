"""The kernel's pool tag tables: finding them, and adding up what they say.

Every logical processor has a table of its own and row *i* of each belongs to the same tag, so a
tag's figures are the sums over all of them. Where a tag's row lies follows from a hash of the
tag; that hash also proves that the row layout chosen is the one the target uses.
"""

from __future__ import annotations

import time
from typing import Callable, Dict, List, Optional, Tuple

from kdleak.errors import MemoryUnreadable, SymbolNotFound, UnsupportedTarget
from kdleak.model import PoolSnapshot, TagUsage
from kdleak.nt.layouts import TrackerLayout, tracker_candidates
from kdleak.nt.memory import MemoryReader, read_pointer, sign_extend
from kdleak.nt.tag_sums import Counters, add, as_read, merge, normalised
from kdleak.nt.tag_table import TagTable, layout_fits, tag_hash, tag_slot
from kdleak.quantities import amount
from kdleak.tags import PoolTag

__all__ = ["PoolTagTables", "read_pool_usage", "tag_hash", "tag_slot"]

OVERFLOW_KEY = 0x6C66764F
"""``Ovfl``: the key of the last row, which collects what fits nowhere else."""

MAXIMUM_ROWS = (1 << 20) + 1
MAXIMUM_PROCESSORS = 0x800
"""Slots of nt!ExPoolTagTables on current kernels."""
_LARGEST_TABLES = 1 << 30
"""Bytes of all tables together; those of the largest machine are a third of it."""

_OLDEST_ARRAY = 64  # slots of nt!ExPoolTagTables on NT 5 and 6
_USUAL_MASK, _LARGEST_MASK = 0x7FF, 0xFFFF
_FITS, _FITS_WELL = 0.5, 0.9  # shares of the tags that lie where the hash says
_NAMES_SHOWN = 8

Sums = Dict[int, Counters]
"""Tag value -> the six counters, added up modulo their widths."""


def read_pool_usage(  # noqa: PLR0917 - the order callers use is part of the interface
    memory: MemoryReader,
    symbol: Callable[[str], int],
    build: int,
    pointer_size: int,
    tag: Optional[PoolTag] = None,
    clock: Callable[[], float] = time.perf_counter,
    *,
    processors: int = 0,
    request_bytes: Optional[int] = None,
) -> PoolSnapshot:
    """One snapshot; see ``PoolTagTables`` for the arguments and errors."""
    return PoolTagTables(
        memory,
        symbol,
        build,
        pointer_size,
        clock,
        processors=processors,
        request_bytes=request_bytes,
    ).usage(tag)


class PoolTagTables:
    """The tag tables of one target, located once.

    Args:
        memory: reads the target; it must not serve bytes from before the target last ran.
        symbol: address of ``nt!Name``, raising ``SymbolNotFound``.
        build: Windows build number; picks the row layout that is tried first.
        pointer_size: 4 or 8.
        clock: seconds, for ``PoolSnapshot.taken_at``.
        processors: logical processors, 0 where unknown.
        request_bytes: most bytes one round trip to the target brings; None where reading is
            free of round trips. Decides how tables are cut into reads.

    ``usage`` raises:
        SymbolNotFound: nt!PoolTrackTable is not known.
        MemoryUnreadable: the variables, or the leading table, cannot be read.
        UnsupportedTarget: no known layout fits what is there.
    """

    def __init__(
        self,
        memory: MemoryReader,
        symbol: Callable[[str], int],
        build: int,
        pointer_size: int,
        clock: Callable[[], float] = time.perf_counter,
        *,
        processors: int = 0,
        request_bytes: Optional[int] = None,
    ) -> None:
        self._memory = memory
        self._symbol = symbol
        self._build = build
        self._pointer_size = pointer_size
        self._clock = clock
        self._processors = processors
        self._request_bytes = request_bytes
        self._candidates = tracker_candidates(build, pointer_size)
        self._layout = self._candidates[0]
        self._proved = False
        self._tables: List[int] = []
        self._rows = 0
        self._mask = 0
        self._notes: List[str] = []
        self._size_note: List[str] = []
        self._slots: Dict[int, int] = {}
        self._overflowed = False

    def usage(self, tag: Optional[PoolTag] = None) -> PoolSnapshot:
        """Usage of every tag, or of one.

        One tag costs one row of each processor, after a few more requests the first time.
        """
        taken_at = self._clock()
        if not self._tables:
            self._locate()
        gaps: List[str] = []
        self._overflowed = False
        sums = self._sum_all(gaps) if tag is None else self._sum_one(tag.value, gaps)
        rows = [normalised(key, total, self._layout) for key, total in sums.items()]
        rows += self._expansion(tag, gaps)
        source = f"tag tables of {amount(len(self._tables), 'processor')}"
        return PoolSnapshot(taken_at, merge(rows), source, tuple(self._notes + gaps))

    # -- where the tables are

    def _locate(self) -> None:
        main = read_pointer(self._memory, self._symbol("nt!PoolTrackTable"), self._pointer_size)
        if main == 0:
            raise UnsupportedTarget(
                "reading the pool tag tables",
                "nt!PoolTrackTable is 0",
                "let the target boot further, or check that the symbols match its nt",
            )
        self._read_size()
        notes = list(self._size_note)
        tables = self._processor_tables(notes)
        if main in tables:
            # It has the keys of all rows, so it leads.
            tables.remove(main)
            tables.insert(0, main)
        elif tables:
            notes.append(
                "nt!PoolTrackTable is not one of nt!ExPoolTagTables; the sums are over the latter"
            )
        self._notes = notes
        self._tables = tables or [main]

    def _read_size(self) -> None:
        try:
            rows = self._number("nt!PoolTrackTableSize")
            mask = self._number("nt!PoolTrackTableMask")
        except (SymbolNotFound, MemoryUnreadable):
            self._rows = self._mask = 0  # settled by the hash later
            return
        if not 0 < mask < rows <= MAXIMUM_ROWS or mask & (mask + 1):
            raise UnsupportedTarget(
                "reading the pool tag tables",
                f"nt!PoolTrackTableSize is 0x{rows:x} and nt!PoolTrackTableMask 0x{mask:x}",
                "check that the symbols match the target's nt",
            )
        if rows > mask + 2:
            # The kernel makes the mask from the size, 2**n + 1: one of them is damaged.
            likely = mask if (rows - 2) & (rows - 1) else rows - 2
            self._size_note = [
                f"nt!PoolTrackTableSize of 0x{rows:x} and nt!PoolTrackTableMask of 0x{mask:x} do "
                f"not go together: 0x{likely + 2:x} rows were read"
            ]
            rows, mask = likely + 2, likely
        self._rows, self._mask = rows, mask

    def _processor_tables(self, notes: List[str]) -> List[int]:
        try:
            array = self._symbol("nt!ExPoolTagTables")
        except SymbolNotFound:
            if self._processors != 1:
                notes.append(
                    "nt!ExPoolTagTables is not known: only nt!PoolTrackTable was read, the "
                    "figures lack what other processors counted"
                )
            return []
        count = min(self._processors, MAXIMUM_PROCESSORS) or _OLDEST_ARRAY
        width = self._pointer_size
        raw = self._read_array(array, count, notes)
        found: List[int] = []
        for at in range(0, len(raw), width):
            value = sign_extend(int.from_bytes(raw[at : at + width], "little"), width)
            if value == 0 and not self._processors:
                break
            # 0 is a processor that was never started; twice the same cannot be two tables.
            if value and value not in found:
                found.append(value)
        return found

    def _read_array(self, array: int, count: int, notes: List[str]) -> bytes:
        """The slots of nt!ExPoolTagTables; an unreadable one is 0, which is told."""
        width = self._pointer_size
        try:
            return self._memory.read(array, count * width)
        except MemoryUnreadable:
            pass
        slots = [self._slot(array + number * width) for number in range(count)]
        absent = slots.count(None)
        notes.append(
            f"{absent} of {count} entries of nt!ExPoolTagTables are unreadable: the figures lack "
            "what these processors counted"
        )
        return b"".join(slot or bytes(width) for slot in slots)

    def _slot(self, address: int) -> Optional[bytes]:
        try:
            return self._memory.read(address, self._pointer_size)
        except MemoryUnreadable:
            return None

    def _number(self, name: str) -> int:
        return int.from_bytes(self._memory.read(self._symbol(name), self._pointer_size), "little")

    # -- which layout they have

    def _leading_table(self) -> TagTable:
        """Read the leading table whole; the first time, settle layout and size by the hash."""
        if self._proved:
            return self._read_leading(self._layout, self._rows)
        best = 0.0
        for layout in self._candidates:
            mask, table, fit = self._fit(layout)
            if len(table.missing) == table.rows and self._mask:
                raise MemoryUnreadable(table.address, table.rows * layout.row_size)
            if fit >= _FITS:
                self._settle(layout, mask)
                return table
            best = max(best, fit)
        raise UnsupportedTarget(
            "reading the pool tag tables",
            f"no known row layout fits build {self._build}: at best {best:.0%} of the tags lie "
            "where the kernel's hash puts them",
            "check that the symbols match the target's nt; if they do, report the build",
        )

    def _fit(self, layout: TrackerLayout) -> Tuple[int, TagTable, float]:
        """The leading table read with a layout, and how well it fits.

        Where the size is not known it is the largest that fits: the first half of a table
        fits the hash of a table of half the size too.
        """
        mask = self._mask or _USUAL_MASK
        table = self._read_leading(layout, self._rows or mask + 2)
        fit = layout_fits(table.keys(), mask)
        if self._mask:
            return mask, table, fit
        if fit < _FITS:
            mask >>= 1
            table = self._read_leading(layout, mask + 2)
            return mask, table, layout_fits(table.keys(), mask)
        while mask < _LARGEST_MASK:
            larger = self._read_leading(layout, 2 * mask + 3)
            if layout_fits(larger.keys(), 2 * mask + 1) < _FITS_WELL:
                break
            mask, table = 2 * mask + 1, larger
        return mask, table, fit

    def _read_leading(self, layout: TrackerLayout, rows: int) -> TagTable:
        table = TagTable(self._memory, self._tables[0], layout, rows)
        table.fetch_all()
        return table

    def _settle(self, layout: TrackerLayout, mask: int) -> None:
        if layout is not self._candidates[0]:
            self._notes.append(
                f"rows of 0x{layout.row_size:x} bytes fit the tag hash, not those of "
                f"0x{self._candidates[0].row_size:x} bytes expected for build {self._build}"
            )
        if not self._mask:
            self._mask, self._rows = mask, mask + 2
            self._notes.append(
                f"the size of the tables is not known; 0x{self._rows:x} rows fit the tag hash"
            )
        self._layout = layout
        self._proved = True

    # -- the sums

    def _sum_all(self, gaps: List[str]) -> Sums:
        leading = self._leading_table()
        size = self._rows * self._layout.row_size * len(self._tables)
        if size > _LARGEST_TABLES:
            raise UnsupportedTarget(
                "reading the pool tag tables",
                f"{len(self._tables)} tables of 0x{self._rows:x} rows are {size >> 20:,} MB",
                "check that the symbols match the target's nt",
            )
        keys = leading.keys()
        wanted = [row for row, key in enumerate(keys) if key or row in leading.missing]
        if self._rows == self._mask + 2 and not keys[-1] and wanted[-1:] != [self._rows - 1]:
            wanted.append(self._rows - 1)  # the overflow row may be without a key
        tables = [leading]
        for address in self._tables[1:]:
            table = TagTable(self._memory, address, self._layout, self._rows)
            table.fetch(wanted, self._request_bytes)
            tables.append(table)
        nowhere = set.intersection(*(table.missing for table in tables))
        sums: Sums = {}
        foreign = 0
        for row in wanted:
            if row in nowhere:
                continue
            key = next((k for k in (t.key(row) for t in tables) if k), 0)
            if not key and row == self._rows - 1:
                key = OVERFLOW_KEY
            parts = [t.counters(row) for t in tables if t.key(row) in (0, key)]
            foreign += len(tables) - len(parts)
            total = add(self._layout, parts)
            if key and (key != OVERFLOW_KEY or any(total)):
                known = sums.get(key)
                sums[key] = add(self._layout, [known, total]) if known else total
        self._tell_missing(tables, keys, gaps)
        self._overflowed = OVERFLOW_KEY in sums or all(
            keys[row] or row in leading.missing for row in range(self._mask + 1)
        )
        if foreign:
            gaps.append(
                f"{foreign} rows name another tag than the same row of the first table and were "
                "left out"
            )
        return sums

    @staticmethod
    def _tell_missing(tables: List[TagTable], keys: List[int], gaps: List[str]) -> None:
        if tables[0].missing:
            gaps.append(
                f"{len(tables[0].missing)} rows of the first table are unreadable: tags may be "
                "missing, and others lack what that processor counted"
            )
        for number, table in enumerate(tables[1:], start=1):
            if not table.missing:
                continue
            tags = sorted(PoolTag(keys[row]).text for row in table.missing if keys[row])
            shown = ", ".join(tags[:_NAMES_SHOWN]) + (", ..." if tags[_NAMES_SHOWN:] else "")
            gaps.append(
                f"{len(table.missing)} rows of table {number} are unreadable: the figures of "
                f"{len(tags)} tags lack what that processor counted ({shown})"
            )

    def _sum_one(self, tag: int, gaps: List[str]) -> Sums:
        if tag == OVERFLOW_KEY:
            # Counted in the last row, and in another one if somebody uses the tag himself.
            return {key: total for key, total in self._sum_all(gaps).items() if key == tag}
        if not self._proved and not self._mask:
            self._leading_table()
        row = self._slots.get(tag)
        if row is None:
            row = self._find_row_unproved(tag) if not self._proved else self._find_row(tag)
            if row is None and not self._proved:
                # Absent, or the wrong stride: the whole table tells.
                self._leading_table()
                row = self._find_row(tag)
            if row is None:
                return {}
            self._slots[tag] = row
            self._proved = True  # it lies where the hash says, with this layout
        parts: List[Counters] = []
        for number, address in enumerate(self._tables):
            at = address + row * self._layout.row_size
            try:
                raw = self._memory.read(at, self._layout.row_size)
            except MemoryUnreadable:
                gaps.append(
                    f"the row of {PoolTag(tag).text} in table {number} is unreadable: its "
                    "figures lack what that processor counted"
                )
                continue
            key = PoolTag.from_bytes(raw).value
            if key in (0, tag):
                parts.append(self._layout.counters(raw, 0))
            else:
                gaps.append(f"row 0x{row:x} of table {number} names another tag: left out")
        return {tag: add(self._layout, parts)} if parts else {}

    def _find_row_unproved(self, tag: int) -> Optional[int]:
        """As ``_find_row``, with a layout that may be too long for the table's memory."""
        try:
            return self._find_row(tag)
        except MemoryUnreadable:
            return None

    def _find_row(self, tag: int) -> Optional[int]:
        """The row of a tag in the leading table, by the hash; None when it has none."""
        size = self._layout.row_size
        # Neighbours come along in the request that brings the row itself.
        window = max(min((self._request_bytes or 0x400) // size, 8), 1)
        count = self._mask + 1
        row = tag_slot(tag, self._mask)
        seen = 0
        while seen < count:
            length = min(window, count - row)
            raw = self._memory.read(self._tables[0] + row * size, length * size)
            for index in range(length):
                key = PoolTag.from_bytes(raw[index * size : index * size + 4]).value
                if key == tag:
                    return row + index
                if key == 0:
                    return None
            seen += length
            row = (row + length) % count
        self._overflowed = True
        return None

    # -- the expansion table

    def _expansion(self, tag: Optional[PoolTag], gaps: List[str]) -> List[TagUsage]:
        """Rows of the list that takes over when the hash table is full; normally there is none.

        There is one copy of it for all processors, and the kernel reports it as it stands. The
        kernel never takes a tag out of the hash table, so where a row of that is unused, there
        is nothing in the list, and not knowing it is no gap.
        """
        try:
            rows = self._number("nt!PoolTrackTableExpansionSize")
            if rows == 0:
                return []
            address = read_pointer(
                self._memory, self._symbol("nt!PoolTrackTableExpansion"), self._pointer_size
            )
        except (SymbolNotFound, MemoryUnreadable):
            if self._overflowed:
                gaps.append(
                    "the tag table is full and nt!PoolTrackTableExpansion is not known: the tags "
                    "in it are missing"
                )
            return []
        if address == 0:
            return []
        if rows > MAXIMUM_ROWS:
            gaps.append(f"nt!PoolTrackTableExpansionSize is 0x{rows:x}: not read")
            return []
        table = TagTable(self._memory, address, self._layout, rows)
        table.fetch_all()
        if table.missing:
            gaps.append(f"{len(table.missing)} rows of nt!PoolTrackTableExpansion are unreadable")
        found: List[TagUsage] = []
        for row, key in enumerate(table.keys()):
            if key and tag in (None, PoolTag(key)):
                found.append(as_read(key, table.counters(row), self._layout))
        return found
