"""The passes of a search for pool blocks; ``nt.block_search`` says what they rest on."""

from __future__ import annotations

from typing import Callable, List, Optional, Sequence, Tuple

import numpy as np
import numpy.typing as npt

from kdleak.errors import KdleakError, MemoryUnreadable, SymbolNotFound, format_address
from kdleak.found import BlockSearch, BlockSource, GapKind, PoolBlock
from kdleak.model import Module, Pool, Symbolized, TagUsage
from kdleak.nt.bigpages import BigPageTable
from kdleak.nt.blocks.big_page_rows import (
    NONPAGED_POOL,
    PAGED_POOL,
    UNKNOWN_POOL,
    BigPageRows,
    intervals,
)
from kdleak.nt.blocks.comparison import compare
from kdleak.nt.blocks.contents import ContentsReader
from kdleak.nt.blocks.pool_pages import (
    CACHE_ALIGNED,
    Addresses,
    Flags,
    HeaderHits,
    Sizes,
    chained_pages,
    find_headers,
    inside_page,
    is_paged,
    looks_in_use,
)
from kdleak.nt.blocks.pool_state_search import find_pool_state
from kdleak.nt.blocks.search import PageBatch, SearchedMemory
from kdleak.nt.blocks.segment_heap import SegmentHeaps
from kdleak.nt.blocks.segment_heap_layout import FIRST_SEGMENT_HEAP_BUILD
from kdleak.nt.blocks.subsegments import NOT_A_CHUNK
from kdleak.nt.blocks.tally import POOLS, Blocks, BlockTally, FoundBlock, Seen
from kdleak.nt.layouts import pool_header_size
from kdleak.nt.memory import PAGE_SIZE
from kdleak.quantities import amount
from kdleak.tags import PROTECTED_POOL, PoolTag

_BATCH = 2048
"""Pages looked at together, 8 MiB: fewer cost more calls, more do not gain."""
_FIRST_COPIED_HEADER_BUILD = FIRST_SEGMENT_HEAP_BUILD
_FIRST_BUILD_WITHOUT_CHAINS = 18362
"""1903: a page that is a chain of headers can only be a copy of an older kernel's."""
_KEPT_GAPS = 8
_LARGEST_IMAGE = 1 << 29
"""Bytes; what claims to be larger is a damaged list of modules, and must not hide the pool."""

_SEEN_IN_HEAP = np.array([Seen.ALLOCATED, Seen.FREE, Seen.UNKNOWN], dtype=np.int8)


class PoolScan:
    """One search; see ``search_blocks`` for the arguments."""

    def __init__(
        self,
        tag: PoolTag,
        memory: SearchedMemory,
        modules: Sequence[Module],
        symbol: Callable[[str], int],
        *,
        build: int,
        pointer_size: int,
        pool: Optional[Pool] = None,
    ) -> None:
        self._tag = tag
        self._value = tag.value & ~PROTECTED_POOL
        self._memory = memory
        self._modules = modules
        self._symbol = symbol
        self._build = build
        self._pointer_size = pointer_size
        self._unit = pool_header_size(pointer_size)
        self._pool = pool
        self._skip: List[Tuple[int, int]] = [
            (module.base, module.base + module.size)
            for module in modules
            if 0 < module.size <= _LARGEST_IMAGE
        ]
        empty = np.zeros(0, dtype=np.uint64)
        self._big_starts: Addresses = empty
        self._big_ends: Addresses = empty
        self._heaps: Optional[SegmentHeaps] = None
        self._chains_are_pool = build < _FIRST_BUILD_WITHOUT_CHAINS
        self._tally = BlockTally(0)
        self._searched: List[str] = []
        self._gaps: List[str] = []
        self._gap_kinds: List[Tuple[str, GapKind]] = []
        self._pages = 0
        self._confirmed = 0

    # -- the passes

    def run(
        self,
        limit: int,
        size: Optional[int],
        deadline: Optional[float],
        clock: Callable[[], float],
    ) -> None:
        """Look through everything once."""
        self._tally = BlockTally(limit, size)
        self._search_big_pages()
        self._find_heaps()
        self._search_pages(deadline, clock)

    def _search_big_pages(self) -> None:
        try:
            table = BigPageRows(self._memory, self._symbol, self._build, self._pointer_size)
        except SymbolNotFound:
            self._gaps.append(
                "nt!PoolBigPageTable was not found: blocks larger than a page are missing"
            )
            return
        except MemoryUnreadable:
            self._gaps.append(
                "nt!PoolBigPageTable is not in memory: blocks larger than a page are missing"
            )
            return
        if not table.plausible:
            self._gaps.append(
                f"nt!PoolBigPageTable makes no sense (0x{table.rows:x} rows): blocks larger than "
                "a page are missing"
            )
            return
        self._skip.append((table.address, table.address + table.size))
        in_use: List[Tuple[Addresses, Sizes]] = []
        for rows in table.slices():
            in_use.append((rows.addresses[~rows.freed], rows.sizes[~rows.freed]))
            mine = rows.tags == np.uint32(self._value)
            if mine.any():
                freed = rows.freed[mine]
                seen = np.where(freed, np.int8(Seen.FREE), np.int8(Seen.ALLOCATED))
                self._add(
                    Blocks(
                        rows.addresses[mine],
                        rows.sizes[mine],
                        rows.pools[mine],
                        seen,
                        BlockSource.BIG_PAGES,
                        header=0,
                    )
                )
        self._big_starts, self._big_ends = intervals(in_use)
        count = len(self._big_starts)
        self._searched.append(
            f"{amount(table.rows, 'row')} of the big page table ({count:,} of them in use)"
        )
        if table.missing:
            self._gaps.append(
                f"of the big page table {amount(table.missing, 'page')} could not be read"
            )

    def _find_heaps(self) -> None:
        if self._build < FIRST_SEGMENT_HEAP_BUILD:
            return
        state = self._pool_state()
        if not state:
            self._gaps.append(
                "nt!ExPoolState was not found: chunks of the segment heap are known by their "
                "headers only"
            )
            return
        try:
            heaps = SegmentHeaps(self._memory, state, self._build, self._pointer_size)
        except MemoryUnreadable:
            self._gaps.append(
                "nt!ExPoolState is not in memory: chunks of the segment heap are known by their "
                "headers only"
            )
            return
        if not heaps.heaps:
            self._gaps.append(
                f"the layout of the segment heap of build {self._build} is not known: its chunks "
                "are known by their headers only"
            )
            return
        self._heaps = heaps
        self._chains_are_pool = False
        self._searched.append(
            f"{amount(len(heaps.heaps), 'segment heap')} with "
            f"{amount(len(heaps.places), 'subsegment')} in {amount(heaps.segments, 'segment')}"
        )
        for gap in list(dict.fromkeys(heaps.gaps))[:_KEPT_GAPS]:
            self._gaps.append(gap)

    def _pool_state(self) -> int:
        """Address of nt!ExPoolState, by its symbol or by what it points to; 0 if neither."""
        try:
            return self._symbol("nt!ExPoolState")
        except SymbolNotFound:
            pass
        kernel = next((module for module in self._modules if module.name == "nt"), None)
        if kernel is None:
            return 0
        found = find_pool_state(self._memory, kernel, self._build, self._pointer_size)
        if found:
            self._searched.append(
                f"nt!ExPoolState was taken for {format_address(found)}, by the heaps it points to"
            )
        return found or 0

    def _search_pages(self, deadline: Optional[float], clock: Callable[[], float]) -> None:
        start, end = self._memory.kernel_half
        scan = self._memory.batches(start, end, _BATCH, skip=sorted(self._skip), writable_only=True)
        for batch in scan:
            if deadline is not None and self._pages and clock() >= deadline:
                gap = (
                    f"the time given was over after {self._pages:,} pages: those at higher "
                    "addresses were not looked at"
                )
                self._gaps.append(gap)
                self._gap_kinds.append((gap, GapKind.TIME))
                break
            self._pages += len(batch.addresses)
            self._search_batch(batch)
        self._searched.append(f"{amount(self._pages, 'writable page')} outside of images")
        if scan.absent:
            self._gaps.append(f"not in the dump: {amount(scan.absent, 'mapped page')}")
        if scan.absent_tables:
            self._gaps.append(
                f"not in the dump: {amount(scan.absent_tables, 'page table')}; what they map is "
                "unknown"
            )

    def _search_batch(self, batch: PageBatch) -> None:
        hits = find_headers(batch.addresses, batch.data, self._value, self._pointer_size)
        if not len(hits):
            return
        if len(self._big_starts):
            hits = hits.only(~self._in_big_block(hits.addresses))
        hits = self._take_heap_chunks(hits)
        hits = hits.only(inside_page(hits))
        if self._chains_are_pool and len(hits):
            hits = self._take_chains(hits, batch)
        if len(hits):
            self._take_headers(hits)

    def _in_big_block(self, addresses: Addresses) -> Flags:
        """Whether an address lies in a big block: what stands there is its owner's data."""
        index = np.searchsorted(self._big_starts, addresses, side="right") - 1
        return (index >= 0) & (addresses < self._big_ends[index])

    def _take_heap_chunks(self, hits: HeaderHits) -> HeaderHits:
        """Count what the segment heap confirms; returns the rest."""
        if self._heaps is None or not len(hits):
            return hits
        hits, bodies = self._without_copies(hits)
        states = self._heaps.states(hits.addresses, hits.sizes)
        known = states != NOT_A_CHUNK
        if known.any():
            seen = _SEEN_IN_HEAP[states[known]]
            self._confirmed += int(np.count_nonzero(known))
            self._add_small(hits.only(known), seen, BlockSource.SEGMENT_HEAP, bodies[known])
        return hits.only(~known)

    def _take_chains(self, hits: HeaderHits, batch: PageBatch) -> HeaderHits:
        """Count what lies in pages that are one chain of headers; returns the rest."""
        fits, starts = chained_pages(batch.data, np.unique(hits.rows), self._pointer_size)
        chained = fits[hits.rows]
        chosen = chained & starts[hits.rows, hits.offsets // self._unit]
        if chosen.any():
            blocks = hits.only(chosen)
            self._confirmed += len(blocks)
            seen = np.where(
                looks_in_use(blocks.types, self._build), np.int8(Seen.ALLOCATED), Seen.UNKNOWN
            ).astype(np.int8)
            seen[blocks.types == 0] = Seen.FREE
            bodies = blocks.addresses + np.uint64(self._unit)
            self._add_small(blocks, seen, BlockSource.POOL_PAGE, bodies)
        return hits.only(~chained)

    def _take_headers(self, hits: HeaderHits) -> None:
        """Count headers that nothing confirms."""
        hits, bodies = self._without_copies(hits)
        seen = np.where(
            looks_in_use(hits.types, self._build), np.int8(Seen.LOOKS_IN_USE), Seen.UNKNOWN
        ).astype(np.int8)
        seen[hits.types == 0] = Seen.FREE
        self._add_small(hits, seen, BlockSource.HEADER, bodies)

    def _without_copies(self, hits: HeaderHits) -> Tuple[HeaderHits, Addresses]:
        """Without the copies in front of cache-aligned blocks; and where each block's body is.

        The real header lies PreviousSize in front of such a copy; the body behind the copy.
        """
        bodies = hits.addresses + np.uint64(self._unit)
        if self._build < _FIRST_COPIED_HEADER_BUILD:
            return hits, bodies
        copies = np.flatnonzero((hits.types & CACHE_ALIGNED != 0) & (hits.previous > 0))
        if not len(copies):
            return hits, bodies
        real = hits.addresses[copies] - hits.previous[copies].astype(np.uint64)
        index = np.minimum(np.searchsorted(hits.addresses, real), len(hits) - 1)
        found = (hits.addresses[index] == real) & (hits.sizes[index] > hits.previous[copies])
        found &= hits.rows[index] == hits.rows[copies]
        bodies[index[found]] = bodies[copies[found]]
        keep = np.ones(len(hits), dtype=np.bool_)
        keep[copies[found]] = False
        return hits.only(keep), bodies[keep]

    # -- counting

    def _add_small(
        self,
        hits: HeaderHits,
        seen: npt.NDArray[np.int8],
        source: BlockSource,
        bodies: Addresses,
    ) -> None:
        paged = is_paged(hits.types, self._build)
        pools = np.where(paged, np.int8(PAGED_POOL), np.int8(NONPAGED_POOL)).astype(np.int8)
        pools[hits.types == 0] = UNKNOWN_POOL
        self._add(Blocks(bodies, hits.sizes, pools, seen, source, self._unit))

    def _add(self, blocks: Blocks) -> None:
        if self._pool is not None:
            wanted = PAGED_POOL if self._pool is Pool.PAGED else NONPAGED_POOL
            blocks = blocks.take((blocks.pools == wanted) | (blocks.pools == UNKNOWN_POOL))
        self._tally.add(blocks)

    # -- the result

    def result(
        self, counters: Optional[TagUsage], nearest: Callable[[int], Symbolized]
    ) -> BlockSearch:
        """What was found, told and compared with the counters."""
        complete = False
        if counters is not None:
            complete, differences = compare(self._tally, counters, self._pool)
            self._gaps += [sentence for sentence, _ in differences]
            self._gap_kinds += differences
        else:
            self._gaps.append("what the tag tables count is not known: nothing to compare with")
        if self._confirmed and not complete:
            self._gaps.append("freed blocks that a lookaside list keeps look as if in use")
        if self._tally.too_many_sizes:
            self._gaps.append("there are too many sizes: the rest is counted as of size 0")
        blocks = tuple(self._described(nearest))
        return BlockSearch(
            tag=self._tag,
            blocks=blocks,
            sizes=self._tally.sizes(),
            counters=counters,
            searched=tuple(self._searched),
            gaps=tuple(self._gaps),
            bytes_searched=self._pages * PAGE_SIZE,
            complete=complete,
            gap_kinds=tuple(self._gap_kinds),
        )

    def _described(self, nearest: Callable[[int], Symbolized]) -> List[PoolBlock]:
        table: Optional[BigPageTable] = None
        try:
            self._symbol("nt!PoolBigPageTable")
            table = BigPageTable(
                self._memory,
                self._symbol,
                self._build,
                self._pointer_size,
                request_bytes=PAGE_SIZE,
            )
        except KdleakError:
            pass  # said when its rows were searched
        reader = ContentsReader(self._memory, self._modules, nearest, self._pointer_size, table)
        return [self._describe(block, reader) for block in self._tally.told()]

    def _describe(self, block: FoundBlock, reader: ContentsReader) -> PoolBlock:
        contents = reader.read(block.address, max(block.size - block.header, 0))
        return PoolBlock(
            address=block.address,
            size=block.size,
            tag=self._tag,
            pool=POOLS.get(block.pool),
            state=block.state,
            source=block.source,
            first_bytes=contents.first_bytes,
            strings=contents.strings,
            pointers=contents.pointers,
        )
