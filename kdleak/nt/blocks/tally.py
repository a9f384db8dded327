"""Counts of the blocks of a tag by size, and the few that are told about one by one.

However many blocks there are, what is kept of them is one row of counters per size and at most
``limit`` blocks of each state.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Dict, List, Optional, Tuple

import numpy as np
import numpy.typing as npt

from kdleak.found import BlockSource, BlockState, SizeClass
from kdleak.model import Pool, PoolCounters
from kdleak.nt.blocks.big_page_rows import NONPAGED_POOL, PAGED_POOL
from kdleak.nt.blocks.pool_pages import Addresses, Flags, Sizes
from kdleak.nt.memory import PAGE_SIZE

POOLS = {NONPAGED_POOL: Pool.NONPAGED, PAGED_POOL: Pool.PAGED}


class Seen(enum.IntEnum):
    """How a block was seen, finer than ``BlockState``."""

    ALLOCATED = 0
    FREE = 1
    LOOKS_IN_USE = 2
    """Its header marks it in use, and nothing else speaks of it."""
    UNKNOWN = 3


_STATES = {
    Seen.ALLOCATED: BlockState.ALLOCATED,
    Seen.FREE: BlockState.FREE,
    Seen.LOOKS_IN_USE: BlockState.UNKNOWN,
    Seen.UNKNOWN: BlockState.UNKNOWN,
}
_TOLD_FIRST = (Seen.ALLOCATED, Seen.LOOKS_IN_USE, Seen.UNKNOWN, Seen.FREE)
MOST_SIZES = 1 << 16
"""Sizes counted apart, in each pool and state: more than any real tag has."""
_SMALL = 0x2000  # bytes: sizes below are counted in a table
_POOLS = 3


@dataclass(frozen=True)
class FoundBlock:
    """A block to tell about.

    Attributes:
        address: of its body.
        size: bytes charged.
        header: bytes of its header, 0 for a big block.
        pool: as in ``big_page_rows``.
        seen: how it was seen.
        source: what that rests on.
    """

    address: int
    size: int
    header: int
    pool: int
    seen: Seen
    source: BlockSource

    @property
    def state(self) -> BlockState:
        """For the report."""
        return _STATES[self.seen]


@dataclass(frozen=True)
class Blocks:
    """Blocks of the tag; one entry of each array per block.

    Attributes:
        addresses: of their bodies.
        sizes: bytes charged.
        pools: as in ``big_page_rows``.
        seen: values of ``Seen``.
        source: what all of them rest on.
        header: bytes of each one's header, 0 for big blocks.
    """

    addresses: Addresses
    sizes: Sizes
    pools: npt.NDArray[np.int8]
    seen: npt.NDArray[np.int8]
    source: BlockSource
    header: int

    def take(self, chosen: Flags) -> Blocks:
        """Those of a mask."""
        return replace(
            self,
            addresses=self.addresses[chosen],
            sizes=self.sizes[chosen],
            pools=self.pools[chosen],
            seen=self.seen[chosen],
        )


class BlockTally:
    """All blocks of one tag.

    Args:
        limit: most blocks to tell about one by one.
        size: tell only about blocks of that size; None: of any. All are counted.

    Attributes:
        too_many_sizes: there were more than ``MOST_SIZES``; the others are counted as of size 0.
    """

    def __init__(self, limit: int, size: Optional[int] = None) -> None:
        self._limit = limit
        self._size = size
        self._counts: Dict[Tuple[int, Seen], Dict[int, int]] = {}
        self._kept: Dict[Seen, List[FoundBlock]] = {seen: [] for seen in Seen}
        self._confirmed: List[int] = []
        self._slack: Dict[int, int] = {}
        self.too_many_sizes = False

    def add(self, blocks: Blocks) -> None:
        """Count blocks, which must come in order of address from each source."""
        groups = blocks.seen.astype(np.int64) * _POOLS + (blocks.pools + 1)
        there = np.flatnonzero(np.bincount(groups, minlength=len(Seen) * _POOLS))
        if not blocks.header:
            self._add_slack(blocks)
        for group in there.tolist():
            sizes = blocks.sizes if len(there) == 1 else blocks.sizes[groups == group]
            self._count(group % _POOLS - 1, Seen(group // _POOLS), sizes)
        for state in sorted({Seen(group // _POOLS) for group in there.tolist()}):
            self._keep(state, blocks)

    def _add_slack(self, blocks: Blocks) -> None:
        """Bytes between the ends of big blocks in use and the ends of their last pages."""
        slack = np.where(blocks.seen == Seen.ALLOCATED, -blocks.sizes % PAGE_SIZE, 0)
        for pool in POOLS:
            more = int(slack[blocks.pools == pool].sum())
            self._slack[pool] = self._slack.get(pool, 0) + more

    def _count(self, pool: int, seen: Seen, sizes: Sizes) -> None:
        counts = self._counts.setdefault((pool, seen), {})
        if int(sizes.max()) < _SMALL:
            table = np.bincount(sizes)
            different = np.flatnonzero(table)
            numbers = table[different]
        else:
            different, numbers = np.unique(sizes, return_counts=True)
        for size, number in zip(different.tolist(), numbers.tolist()):
            if size not in counts and len(counts) >= MOST_SIZES:
                self.too_many_sizes = True
                size = 0  # noqa: PLW2901 - a size that is not known
            counts[size] = counts.get(size, 0) + number

    def _keep(self, seen: Seen, blocks: Blocks) -> None:
        kept = self._kept[seen]
        room = self._limit - len(kept)
        if room <= 0:
            return
        chosen = blocks.seen == seen
        if self._size is not None:
            chosen &= blocks.sizes == self._size
        for index in np.flatnonzero(chosen)[:room].tolist():
            kept.append(
                FoundBlock(
                    int(blocks.addresses[index]),
                    int(blocks.sizes[index]),
                    blocks.header,
                    int(blocks.pools[index]),
                    seen,
                    blocks.source,
                )
            )

    # -- results

    def total(self, pool: int, seen: Seen) -> Tuple[int, int]:
        """(blocks, bytes) of a pool in a state."""
        counts = self._counts.get((pool, seen), {})
        return sum(counts.values()), sum(size * count for size, count in counts.items())

    def settle(self, pool: int, counters: PoolCounters) -> bool:
        """Whether a pool's blocks in use are exactly those that its counters count.

        Where blocks whose headers alone mark them in use make up the difference, in number and
        in bytes, they are in use and are counted so from here on.
        """
        blocks, size = self.total(pool, Seen.ALLOCATED)
        if self._agrees(pool, blocks, size, counters):
            return True
        looking = self.total(pool, Seen.LOOKS_IN_USE)
        if not self._agrees(pool, blocks + looking[0], size + looking[1], counters):
            return False
        moved = self._counts.pop((pool, Seen.LOOKS_IN_USE), {})
        counts = self._counts.setdefault((pool, Seen.ALLOCATED), {})
        for size, count in moved.items():
            counts[size] = counts.get(size, 0) + count
        self._confirmed.append(pool)
        return True

    def _agrees(self, pool: int, blocks: int, size: int, counters: PoolCounters) -> bool:
        """The same number and bytes; big blocks may be charged by whole pages."""
        possible = (size, size + self._slack.get(pool, 0))
        return blocks == counters.outstanding and counters.bytes in possible

    def sizes(self) -> Tuple[SizeClass, ...]:
        """Every block by size, ascending."""
        table: Dict[int, SizeClass] = {}
        for (_, seen), counts in self._counts.items():
            field = _STATES[seen].value
            for size, count in counts.items():
                row = table.get(size, SizeClass(size))
                table[size] = replace(row, **{field: getattr(row, field) + count})
        return tuple(table[size] for size in sorted(table))

    def told(self) -> Tuple[FoundBlock, ...]:
        """The blocks to tell about, in order of address: those in use before the others."""
        chosen: List[FoundBlock] = []
        for seen in _TOLD_FIRST:
            for block in self._kept[seen]:
                confirmed = seen is Seen.LOOKS_IN_USE and block.pool in self._confirmed
                chosen.append(replace(block, seen=Seen.ALLOCATED) if confirmed else block)
        chosen.sort(key=lambda block: _TOLD_FIRST.index(block.seen))
        return tuple(sorted(chosen[: self._limit], key=lambda block: block.address))
