"""Virtual memory of the target over its physical memory, through its page tables.

Reads what Windows could have touched without a disk: valid pages, large ones included, pages in
transition, prototype entries once, and demand-zero pages as zeros. Nothing is copied that need
not be: pages are views of the dump file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from kdleak.errors import MemoryUnreadable, MissingDependency, format_address
from kdleak.nt.space.paging import (
    LAYOUTS,
    PAGE_MASK,
    PAGE_SHIFT,
    PAGE_SIZE,
    PagingMode,
    SoftwareState,
    canonical,
    kernel_half,
    large_page_address,
    prototype_address,
    software_state,
    transition_frame,
)

if TYPE_CHECKING:
    from kdleak.nt.space.page_scan import PageScan

ABSENT = -1
"""Instead of a frame: not in memory."""
ZERO = -2
"""Instead of a frame: a demand-zero page."""

LARGEST_READ = 1 << 28
"""Most bytes of one ``read``: more can only be asked for by a damaged structure."""

_TABLES_KEPT = 4096
_FRAMES_KEPT = 1 << 16
_MOST_GAPS = 1 << 18
_NO_END = 1 << 36  # Windows' frame numbers have 36 bits
_LARGE_MACHINE = 1 << 28  # frames of 1 TiB
_ZEROS = memoryview(bytes(PAGE_SIZE))


class PhysicalMemory(Protocol):
    """Physical memory of the target, page by page."""

    def page(self, frame: int) -> memoryview | None:
        """The 4096 bytes of a page frame, None when they are not there."""

    def read_physical(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes; raises MemoryUnreadable."""


@runtime_checkable
class HasEnd(Protocol):
    """A page map that knows the machine's highest page frame."""

    @property
    def pages(self) -> int:
        """Pages the map claims."""

    @property
    def end(self) -> int:
        """Highest frame + 1."""


class VirtualMemory:
    """One address space of the target; a ``MemoryReader``.

    Table pages and translations are remembered, in bounded numbers. They are views of the
    physical memory: call ``close`` before that is closed.

    Args:
        physical: where the pages are.
        mode: how its page tables are read.
        root: the directory table base; bits that are no address are ignored.
        pointer_size: bytes, 4 or 8.
        invalid_mask: the kernel's InvalidPteMask where known (see ``transition_frame``).

    Attributes:
        end: highest frame that the physical memory claims + 1.
        machine_end: highest frame of the machine + 1: the dump may have less. Taken for that of
            a machine of 1 TiB until it is set.
        remarks: what could not be trusted or was cut short, one sentence each.
    """

    def __init__(
        self,
        physical: PhysicalMemory,
        mode: PagingMode,
        root: int,
        pointer_size: int,
        *,
        invalid_mask: int = 0,
    ) -> None:
        self.physical = physical
        self.mode = mode
        self.layout = LAYOUTS[mode]
        self.root = root & self.layout.root_mask
        self.pointer_size = pointer_size
        self.invalid_mask = invalid_mask
        self.remarks: list[str] = []
        pages = getattr(physical, "pages", None)
        self.end = pages.end if isinstance(pages, HasEnd) else _NO_END
        self.machine_end = max(self.end, _LARGE_MACHINE)
        self._code: Literal["I", "Q"] = "I" if self.layout.entry_size == 4 else "Q"
        self._upper = tuple(
            (level, level.shift, (1 << level.bits) - 1) for level in self.layout.levels[:-1]
        )
        self._last_mask = (1 << self.layout.levels[-1].bits) - 1
        self._tables: dict[int, memoryview[int] | None] = {}
        self._frames: dict[int, int] = {}

    @property
    def kernel_half(self) -> tuple[int, int]:
        """The kernel's half of the address space as (start, end); 32-bit sign-extended."""
        return kernel_half(self.mode)

    def close(self) -> None:
        """Let go of every view of the physical memory; the object stays usable."""
        self._tables.clear()
        self._frames.clear()

    def remark(self, sentence: str) -> None:
        """Remember a remark once."""
        if sentence not in self.remarks:
            self.remarks.append(sentence)

    # ---- one address ----

    def translate(self, address: int) -> int | None:
        """Physical address, None where no physical page is behind it (demand zero included)."""
        frame = self.frame(address)
        return None if frame < 0 else frame << PAGE_SHIFT | address & PAGE_MASK

    def frame(self, address: int) -> int:
        """Page frame number behind an address, or ``ABSENT``, or ``ZERO``.

        The frame is what the tables say: whether a dump contains it is ``page``'s answer.
        """
        number = address >> PAGE_SHIFT
        known = self._frames.get(number)
        if known is None:
            known, _ = self._walk(address, prototypes=True)
            if len(self._frames) >= _FRAMES_KEPT:
                self._frames.clear()
            self._frames[number] = known
        return known

    def page(self, address: int) -> memoryview | None:
        """The 4096 bytes of the page that contains ``address``, no copy; None when absent."""
        frame = self.frame(address)
        if frame >= 0:
            return self.physical.page(frame)
        return _ZEROS if frame == ZERO else None

    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes at ``address``.

        Raises:
            MemoryUnreadable: with the address of the first byte that is not there.
        """
        if size <= 0:
            return b""
        if size > LARGEST_READ:
            raise MemoryUnreadable(address, size, "that is more than one read may ask for")
        offset = address & PAGE_MASK
        page = self.page(address)
        if page is None:
            raise MemoryUnreadable(address, size)
        if offset + size <= PAGE_SIZE:
            return bytes(page[offset : offset + size])
        parts: list[memoryview] = [page[offset:]]
        at, left = address - offset + PAGE_SIZE, size - PAGE_SIZE + offset
        while left > 0:
            page = self.page(at)
            if page is None:
                raise MemoryUnreadable(
                    at,
                    size,
                    f"the {size} bytes from {format_address(address)} are there up to "
                    f"{format_address(at)} only",
                )
            parts.append(page if left >= PAGE_SIZE else page[:left])
            at += PAGE_SIZE
            left -= PAGE_SIZE
        return b"".join(parts)

    def _table(self, frame: int) -> memoryview[int] | None:
        """A table page as entries; None when the dump has no such page."""
        try:
            return self._tables[frame]
        except KeyError:
            pass
        page = self.physical.page(frame)
        entries = None if page is None else page.cast(self._code)
        if len(self._tables) >= _TABLES_KEPT:
            self._tables.clear()
        self._tables[frame] = entries
        return entries

    def _walk(self, address: int, *, prototypes: bool) -> tuple[int, int]:
        """Frame (or ABSENT, ZERO), and bytes from the entry's first on that it speaks for."""
        low = canonical(self.mode, address)
        layout = self.layout
        if low is None:
            return ABSENT, PAGE_SIZE
        frame, first = self.root >> PAGE_SHIFT, (self.root & PAGE_MASK) // layout.entry_size
        for level, shift, mask in self._upper:
            table = self._table(frame)
            if table is None:
                return ABSENT, level.span << level.bits
            entry = table[first + (low >> shift & mask)]
            if entry & layout.table_mask == layout.table_value:
                frame, first = (entry & layout.frame_mask) >> PAGE_SHIFT, 0
                continue
            if level.large and entry & layout.large_mask == layout.large_value:
                start = large_page_address(self.mode, entry, level)
                if start is not None:
                    return (start + (low & level.span - 1)) >> PAGE_SHIFT, PAGE_SIZE
            return ABSENT, level.span
        table = self._table(frame)
        if table is None:
            return ABSENT, PAGE_SIZE << layout.levels[-1].bits
        return self._leaf(table[low >> PAGE_SHIFT & self._last_mask], prototypes), PAGE_SIZE

    def _leaf(self, entry: int, prototypes: bool) -> int:
        layout = self.layout
        if entry & layout.leaf_mask == layout.leaf_value:
            return (entry & layout.frame_mask) >> PAGE_SHIFT
        if entry & 1 or not entry:
            return ABSENT
        state = software_state(self.mode, entry, self.invalid_mask)
        if state is SoftwareState.TRANSITION:
            return transition_frame(self.mode, entry, self.machine_end, self.invalid_mask)
        if state is SoftwareState.DEMAND_ZERO:
            return ZERO
        if state is SoftwareState.PROTOTYPE and prototypes:
            return self.prototype_frame(entry)
        return ABSENT

    def prototype_frame(self, entry: int) -> int:
        """Frame (or ABSENT, ZERO) behind a prototype entry: that entry is read and used once.

        A prototype entry that itself names another (a mapped file) leads to a disk.
        """
        address = prototype_address(self.mode, entry, self.invalid_mask)
        if address is None:
            return ABSENT
        size = self.layout.entry_size
        # Prototype entries are looked up in valid and transition pages only, so this ends here.
        frame, _ = self._walk(address, prototypes=False)
        page = self.physical.page(frame) if frame >= 0 else None
        offset = address & PAGE_MASK
        if page is None or offset % size:
            return ABSENT
        return self._leaf(int.from_bytes(page[offset : offset + size], "little"), False)

    # ---- ranges ----

    def available(self, address: int, size: int) -> Iterator[tuple[int, memoryview]]:
        """The parts of a range that are there, ascending, page by page and without a copy.

        Absent subtrees are stepped over. A range with more gaps than any real one ends early,
        with a remark.
        """
        at, end, gaps = address, address + size, 0
        while at < end:
            offset = at & PAGE_MASK
            stop = min(at - offset + PAGE_SIZE, end)
            frame, span = self._walk(at, prototypes=True)
            page = _ZEROS if frame == ZERO else None
            if frame >= 0:
                page = self.physical.page(frame)
            if page is not None:
                yield at, page[offset : offset + stop - at]
                at = stop
                continue
            gaps += 1
            if gaps > _MOST_GAPS:
                self.remark(
                    f"memory from {format_address(address)} on has too many gaps: only the part "
                    f"below {format_address(at)} was looked at"
                )
                return
            at = self._next(at, span)

    def _next(self, at: int, span: int) -> int:
        """The first address past what an absent entry covers, or past the hole of addresses."""
        if canonical(self.mode, at) is None and at < self.kernel_half[0]:
            return self.kernel_half[0]
        return (at & ~(span - 1)) + span

    def batches(
        self,
        start: int,
        end: int,
        pages: int = 512,
        *,
        skip: Sequence[tuple[int, int]] = (),
        writable_only: bool = False,
        no_execute_only: bool = False,
        page_tables: bool = False,
    ) -> PageScan:
        """Every page of [start, end) that is there, ascending, many at a time: see ``PageScan``."""
        try:
            from kdleak.nt.space.page_scan import PageScan  # noqa: PLC0415 - needs numpy
        except ModuleNotFoundError as error:
            raise MissingDependency(
                "reading memory of a dump in bulk",
                "numpy is not installed",
                'pip install "kdleak[dump]"',
            ) from error

        return PageScan(
            self,
            start,
            end,
            pages,
            skip=skip,
            writable_only=writable_only,
            no_execute_only=no_execute_only,
            page_tables=page_tables,
        )
