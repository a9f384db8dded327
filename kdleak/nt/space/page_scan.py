"""Every mapped page of a range of virtual memory, many at a time: the bulk side of ``virtual``.

Tables are read a directory at a time: one gather brings in its page tables, and every entry in
them is judged in one pass of numpy. Pages come from the mapped file by one gather per batch, or
as a view of it where they lie one behind the other.

Page tables of a damaged or hostile dump can map each other without end: a table that is its own
child covers half the address space with nothing. Bounds, each of which is said when it is met:

- a table page is walked once per level (where it is met first); the ancestors of a table, and so
  the self-map through which Windows sees its own tables, are not walked as its children;
- table pages walked, frames looked up and pages handed out are limited by the size of the dump,
  prototype entries followed by a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kdleak.nt.space.page_source import PageSource
from kdleak.nt.space.paging import (
    PAGE_MASK,
    PAGE_SHIFT,
    PAGE_SIZE,
    PROTECTION_EXECUTE,
    PROTECTION_WRITE,
    PROTOTYPE,
    SWIZZLE,
    TRANSITION,
    PagingMode,
    canonical_parts,
    entry_executable,
    entry_writable,
    large_page_address,
    table_rights,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kdleak.nt.space.paging import Level
    from kdleak.nt.space.virtual import VirtualMemory

_ROWS = 64  # page tables judged at once: their entries stay in the processor's cache
_STRIDE = 1 << 14  # frames of a 1 GiB page taken at once
_MOST_PROTOTYPES = 1 << 17
_MOST_TABLES = 1 << 20  # 2 TiB of mapped memory
_MOST_END = 1 << 26
_SMALLEST_LIMIT = 1 << 15


@dataclass(frozen=True, eq=False)
class PageBatch:
    """Some pages, ascending by address.

    Attributes:
        addresses: of each page.
        data: their bytes, one row of 4096 each; read-only, and where possible the dump file's
            own memory, so no batch may outlive the dump.
    """

    addresses: NDArray[np.uint64]
    data: NDArray[np.uint8]


class _Place(NamedTuple):
    """Where a walk is.

    Attributes:
        depth: index of the table's level.
        start: lowest address (meaningful bits only) that the table covers.
        above: frames of the tables it hangs under.
        rights: whether these let the kernel (write, execute).
    """

    depth: int
    start: int
    above: tuple[int, ...]
    rights: tuple[bool, bool]


class PageScan:
    """One pass over the mapped pages of [start, end): iterate it for ``PageBatch`` after batch.

    Demand-zero pages have no contents and are not among them. 32-bit addresses come sign-extended
    when ``start`` is.

    Args:
        memory: the address space.
        start: first address, rounded down to a page.
        end: address after the last byte, at most 2**64.
        pages: most pages of a batch.
        skip: ranges (start, end) to leave out; a page only partly in one is handed out.
        writable_only: only pages that the kernel may write, hardware-clean ones included.
        no_execute_only: only pages that the kernel may not execute.
        page_tables: walk the self-map as well, so that table pages are handed out as data.

    Attributes:
        mapped: pages that the tables map (and the filters let through) so far.
        absent: those of them that the dump does not have.
        absent_tables: table pages that the dump does not have; what they map is unknown.
        tables: table pages walked.
    """

    def __init__(
        self,
        memory: VirtualMemory,
        start: int,
        end: int,
        pages: int = 512,
        *,
        skip: Sequence[tuple[int, int]] = (),
        writable_only: bool = False,
        no_execute_only: bool = False,
        page_tables: bool = False,
    ) -> None:
        if pages < 1:
            raise ValueError("a batch has at least one page")
        self._memory = memory
        self._mode = memory.mode
        self._layout = memory.layout
        self._levels = memory.layout.levels
        self._pages = pages
        self._ranges = _ranges(memory.mode, start & ~PAGE_MASK, end, skip)
        self._writable_only = writable_only
        self._no_execute_only = no_execute_only
        self._page_tables = page_tables
        self._dtype = np.dtype("<u4" if memory.layout.entry_size == 4 else "<u8")
        self._source = PageSource(memory.physical, memory.end)
        self._walked: dict[tuple[int, int], int] = {}
        self._prototypes = 0
        limit = max(self._source.claimed, _SMALLEST_LIMIT)
        self._most_tables = min(limit // 4, _MOST_TABLES)
        self._most_pages = 4 * limit
        self._most_looked_up = 16 * limit + min(memory.end, _MOST_END)
        self.mapped = 0
        self.absent = 0
        self.absent_tables = 0
        self.tables = 0
        self._batches = self._join()

    def __iter__(self) -> Iterator[PageBatch]:
        return self._batches

    def __next__(self) -> PageBatch:
        return next(self._batches)

    # ---- batches ----

    def _join(self) -> Iterator[PageBatch]:
        """Stretches of found pages, cut and joined to batches."""
        held: list[tuple[NDArray[np.uint64], NDArray[np.int64]]] = []
        count = 0
        for found in self._found():
            held.append(found)
            count += len(found[0])
            if count < self._pages:
                continue
            addresses, places = (np.concatenate(parts) for parts in zip(*held, strict=True))
            whole = count - count % self._pages
            for at in range(0, whole, self._pages):
                part = slice(at, at + self._pages)
                yield PageBatch(addresses[part], self._source.rows(places[part]))
            held = [(addresses[whole:], places[whole:])]
            count -= whole
        if count:
            addresses, places = (np.concatenate(parts) for parts in zip(*held, strict=True))
            yield PageBatch(addresses, self._source.rows(places))

    def _found(self) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.int64]]]:
        """(addresses, places) of pages that are there."""
        root, offset = self._memory.root >> PAGE_SHIFT, self._memory.root & PAGE_MASK
        top = _Place(0, 0, (), (True, True))
        for base, low, high in self._ranges:
            entries = self._entries(0, root, offset)
            if entries is None:
                return
            for addresses, frames in self._table(entries, root, top, (low, high)):
                places = self._source.places(frames)
                there = places >= 0
                kept = int(np.count_nonzero(there))
                self.mapped += len(places)
                self.absent += len(places) - kept
                if kept:
                    yield addresses[there] + np.uint64(base), places[there]
                if self.mapped - self.absent > self._most_pages:
                    self._cut("map the pages of the dump over and over")
                    return
                if self._source.looked_up > self._most_looked_up:
                    self._cut("map far more memory than the dump has")
                    return

    def _cut(self, what: str) -> None:
        self._memory.remark(f"the page tables {what}: the rest of what they map was not looked at")

    # ---- tables ----

    def _entries(self, depth: int, frame: int, offset: int = 0) -> NDArray[np.uint64] | None:
        """A table above the last level; None, and counted, when the dump does not have it."""
        page = self._memory.physical.page(frame)
        if page is None:
            self.absent_tables += 1
            return None
        count = 1 << self._levels[depth].bits
        return np.frombuffer(page, self._dtype, count, offset).astype(np.uint64)

    def _may_walk(self, depth: int, frame: int, at: int, above: tuple[int, ...]) -> bool:
        if frame in above and not self._page_tables:
            return False
        known = self._walked.get((depth, frame))
        if known is not None:
            if known != at:
                self._memory.remark(
                    "the page tables use some table in more than one place: memory that is there "
                    "twice was looked at once"
                )
            return known == at
        if self.tables >= self._most_tables:
            self._cut("are more than the dump has room for")
            return False
        self._walked[depth, frame] = at
        self.tables += 1
        return True

    def _table(
        self, entries: NDArray[np.uint64], frame: int, place: _Place, bounds: tuple[int, int]
    ) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.uint64]]]:
        """(addresses, frames) of what one table maps in the bounds [low, high), ascending."""
        level = self._levels[place.depth]
        first = max(bounds[0] - place.start, 0) >> level.shift
        last = min(-((place.start - bounds[1]) // level.span), 1 << level.bits)
        above = (*place.above, frame)
        place = place._replace(above=above)
        if place.depth == len(self._levels) - 2:
            yield from self._directory(entries, first, last, place, bounds)
            return
        siblings = self._directories(entries) if self._mode is PagingMode.X86_PAE else ()
        for index in (np.flatnonzero(entries[first:last] & np.uint64(1)) + first).tolist():
            entry = int(entries[index])
            at = place.start + (index << level.shift)
            if entry & self._layout.table_mask == self._layout.table_value:
                below = (entry & self._layout.frame_mask) >> PAGE_SHIFT
                if not self._may_walk(place.depth + 1, below, at, above):
                    continue
                inner = self._entries(place.depth + 1, below)
                if inner is not None:
                    rights = table_rights(self._mode, level, entry, place.rights)
                    inside = _Place(place.depth + 1, at, above + siblings, rights)
                    yield from self._table(inner, below, inside, bounds)
                continue
            large = entry & self._layout.large_mask == self._layout.large_value
            if large and level.large and self._wanted(entry, place.rights):
                yield from self._huge(level, entry, at, bounds)

    def _directories(self, entries: NDArray[np.uint64]) -> tuple[int, ...]:
        """The directories of PAE: its self-map leads from the last one to all four."""
        layout = self._layout
        return tuple(
            (entry & layout.frame_mask) >> PAGE_SHIFT
            for entry in entries.tolist()
            if entry & layout.table_mask == layout.table_value
        )

    def _wanted(self, entry: int, rights: tuple[bool, bool]) -> bool:
        """Whether the filters let a large page through."""
        if self._writable_only and not (rights[0] and entry_writable(self._mode, entry)):
            return False
        executable = rights[1] and entry_executable(self._mode, entry)
        return not (self._no_execute_only and executable)

    def _huge(
        self, level: Level, entry: int, at: int, bounds: tuple[int, int]
    ) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.uint64]]]:
        """The pages of a large page above the directories."""
        physical = large_page_address(self._mode, entry, level)
        if physical is None:
            return
        low, high = max(bounds[0], at), min(bounds[1], at + level.span)
        high = min(high, at + (self._memory.end << PAGE_SHIFT) - physical)
        for start in range(low, high, _STRIDE * PAGE_SIZE):
            stop = min(start + _STRIDE * PAGE_SIZE, high)
            addresses = np.arange(start, stop, PAGE_SIZE, dtype=np.uint64)
            first = (physical + start - at) >> PAGE_SHIFT
            yield addresses, np.arange(len(addresses), dtype=np.uint64) + np.uint64(first)

    def _directory(
        self,
        entries: NDArray[np.uint64],
        first: int,
        last: int,
        place: _Place,
        bounds: tuple[int, int],
    ) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.uint64]]]:
        """What a table of the level above the last maps, some of its tables at a time."""
        layout, level = self._layout, self._levels[-2]
        u64 = np.uint64
        some = entries[first:last]
        is_table = (some & u64(layout.table_mask)) == u64(layout.table_value)
        is_large = (some & u64(layout.large_mask)) == u64(layout.large_value)
        rows = np.flatnonzero(is_table | is_large)
        for at in range(0, len(rows), _ROWS):
            chosen = rows[at : at + _ROWS]
            starts = (chosen.astype(np.uint64) + u64(first) << u64(level.shift)) + u64(place.start)
            frames, there = self._leaves(some[chosen], is_large[chosen], starts.tolist(), place)
            if not there.any():
                continue
            width = frames.shape[1]
            addresses = starts[:, None] + (np.arange(width, dtype=np.uint64) << u64(PAGE_SHIFT))
            if int(starts[0]) < bounds[0] or int(starts[-1]) + level.span > bounds[1]:
                there &= (addresses >= u64(bounds[0])) & (addresses <= u64(bounds[1] - 1))
            yield addresses[there], frames[there]

    def _leaves(
        self,
        entries: NDArray[np.uint64],
        large: NDArray[np.bool_],
        starts: list[int],
        place: _Place,
    ) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        """Frames that entries of a directory lead to, a row for each, and which of them count."""
        level, width = self._levels[-2], 1 << self._levels[-1].bits
        frames = np.zeros((len(entries), width), dtype=np.uint64)
        there = np.zeros(frames.shape, dtype=np.bool_)
        tables: list[tuple[int, int, tuple[bool, bool]]] = []  # row, frame, rights
        for row, (entry, is_large) in enumerate(zip(entries.tolist(), large.tolist(), strict=True)):
            if is_large:
                physical = large_page_address(self._mode, entry, level)
                first = -1 if physical is None else physical >> PAGE_SHIFT
                if 0 <= first < self._memory.end and self._wanted(entry, place.rights):
                    frames[row] = np.arange(first, first + width, dtype=np.uint64)
                    there[row] = True
                continue
            frame = (entry & self._layout.frame_mask) >> PAGE_SHIFT
            if self._may_walk(place.depth + 1, frame, starts[row], place.above):
                tables.append((row, frame, table_rights(self._mode, level, entry, place.rights)))
        if tables:
            self._page_tables_of(tables, frames, there)
        return frames, there

    def _page_tables_of(
        self,
        tables: list[tuple[int, int, tuple[bool, bool]]],
        frames: NDArray[np.uint64],
        there: NDArray[np.bool_],
    ) -> None:
        """Judge every entry of page tables; fills in their rows of ``frames`` and ``there``."""
        numbers = np.array([frame for _, frame, _ in tables], dtype=np.uint64)
        places = self._source.places(numbers)
        have = np.flatnonzero(places >= 0)
        self.absent_tables += len(tables) - len(have)
        if not len(have):
            return
        found = [tables[index] for index in have.tolist()]
        rows = np.array([row for row, _, _ in found])
        entries = self._source.rows(places[have]).view(self._dtype).astype(np.uint64, copy=False)
        numbers, good = self._judge(entries)
        if self._writable_only or self._no_execute_only:
            rights = np.array([rights for _, _, rights in found], dtype=np.bool_)
            good &= self._filter(entries, rights)
        frames[rows], there[rows] = numbers, good

    def _judge(self, entries: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        """The frame of every last-level entry, and whether it has one."""
        layout, u64 = self._layout, np.uint64
        good = (entries & u64(layout.leaf_mask)) == u64(layout.leaf_value)
        frames = (entries & u64(layout.frame_mask)) >> u64(PAGE_SHIFT)
        kind = entries & u64(PROTOTYPE | TRANSITION | 1)
        transition = kind == u64(TRANSITION)
        if transition.any():
            frames[transition] = self._transition(entries[transition])
            good |= transition
        prototypes = (entries & u64(PROTOTYPE | 1)) == u64(PROTOTYPE)
        for row, column in zip(*np.nonzero(prototypes), strict=True):
            self._prototypes += 1
            if self._prototypes > _MOST_PROTOTYPES:
                self._cut("hold more prototype entries than are followed")
                break
            frame = self._memory.prototype_frame(int(entries[row, column]))
            if frame >= 0:
                frames[row, column], good[row, column] = frame, True
        return frames, good

    def _transition(self, entries: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """``paging.transition_frame`` for many."""
        mask = np.uint64(self._layout.transition_mask)
        if self._mode is PagingMode.X86:
            return (entries & mask) >> np.uint64(PAGE_SHIFT)
        plain = (entries & np.uint64(SWIZZLE)) != 0
        inverted = entries ^ np.uint64(self._memory.invalid_mask)
        frames = (np.where(plain, entries, inverted) & mask) >> np.uint64(PAGE_SHIFT)
        end = self._memory.machine_end
        past = ~plain & (frames >= np.uint64(end))
        frames[past] &= np.uint64((1 << (end - 1).bit_length()) - 1)
        return frames

    def _filter(self, entries: NDArray[np.uint64], rights: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which last-level entries the filters let through; ``rights`` are of each row."""
        layout, u64 = self._layout, np.uint64
        valid = (entries & u64(1)) == u64(1)
        wanted = np.ones(entries.shape, dtype=np.bool_)
        if self._writable_only:
            hardware = (entries & u64(layout.write_bits)) != 0
            if layout.read_only_bits:
                hardware |= (entries & u64(layout.read_only_bits)) == 0
            software = (entries & u64(PROTECTION_WRITE)) != 0
            wanted &= np.where(valid, hardware, software) & rights[:, :1]
        if self._no_execute_only:
            hardware = (entries & u64(layout.no_execute_bit)) == 0
            software = (entries & u64(PROTECTION_EXECUTE)) != 0
            wanted &= ~(np.where(valid, hardware, software) & rights[:, 1:])
        return wanted


def _ranges(
    mode: PagingMode, start: int, end: int, skip: Sequence[tuple[int, int]]
) -> list[tuple[int, int, int]]:
    """[start, end) without what is skipped, as (base, low, high) of ``canonical_parts``."""
    wanted: list[tuple[int, int]] = []
    at = start
    for low, high in sorted(((s + PAGE_MASK) & ~PAGE_MASK, e & ~PAGE_MASK) for s, e in skip):
        if low >= high or high <= at:
            continue
        if low >= end:
            break
        if low > at:
            wanted.append((at, low))
        at = high
    if at < end:
        wanted.append((at, end))
    found: list[tuple[int, int, int]] = []
    for first, last in wanted:
        for base, low, high in canonical_parts(mode):
            inside = max(first - base, low), min(last - base, high)
            if inside[0] < inside[1]:
                found.append((base, *inside))
    return found
