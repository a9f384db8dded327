"""What was seen of a tag's blocks beside what the tag tables count."""

from __future__ import annotations

from typing import List, Optional, Sequence, Tuple

from kdleak.found import GapKind
from kdleak.model import Pool, PoolCounters, TagUsage
from kdleak.nt.blocks.big_page_rows import UNKNOWN_POOL
from kdleak.nt.blocks.tally import POOLS, BlockTally, Seen
from kdleak.quantities import amount

Difference = Tuple[str, GapKind]
"""A difference as a sentence, and which kind of gap it is."""


def compare(
    tally: BlockTally, counters: TagUsage, only: Optional[Pool]
) -> Tuple[bool, Tuple[Difference, ...]]:
    """Whether what is in use is what the counters count, in number and bytes.

    Headers that only look as if in use are settled where they make up the difference exactly.

    Args:
        tally: every block seen.
        counters: of the tag.
        only: the pool that was searched for; None: both.

    Returns:
        And the differences.
    """
    if tally.total(UNKNOWN_POOL, Seen.ALLOCATED)[0]:
        return _compare_together(tally, counters, only)
    differences: List[Difference] = []
    for number, pool in POOLS.items():
        counted = counters.of(pool)
        if only in (None, pool) and not tally.settle(number, counted):
            differences.append(_difference(tally, f"{pool.value} pool", (number,), counted))
    return not differences, tuple(differences)


def _compare_together(
    tally: BlockTally, counters: TagUsage, only: Optional[Pool]
) -> Tuple[bool, Tuple[Difference, ...]]:
    """The sums of both pools: rows of XP and Server 2003 do not tell theirs."""
    numbers = (*POOLS, UNKNOWN_POOL)
    if only is not None:
        return False, (("blocks that do not tell their pool are among these", GapKind.OTHER),)
    if _sum(tally, numbers, Seen.ALLOCATED) == (counters.outstanding, counters.bytes):
        return True, ()
    together = PoolCounters(counters.outstanding, 0, counters.bytes)
    return False, (_difference(tally, "both pools", numbers, together),)


def _sum(tally: BlockTally, numbers: Sequence[int], seen: Seen) -> Tuple[int, int]:
    totals = [tally.total(number, seen) for number in numbers]
    return sum(count for count, _ in totals), sum(size for _, size in totals)


def _difference(
    tally: BlockTally, where: str, numbers: Sequence[int], counted: PoolCounters
) -> Difference:
    blocks, size = _sum(tally, numbers, Seen.ALLOCATED)
    looking, _ = _sum(tally, numbers, Seen.LOOKS_IN_USE)
    words = (
        f"{where}: the tag tables count {amount(counted.outstanding, 'block')} "
        f"({amount(counted.bytes, 'byte')}); seen in use: {blocks:,} ({amount(size, 'byte')})"
    )
    if looking:
        words += f", and {looking:,} more may be, by their headers alone"
    kind = GapKind.DOUBT
    if blocks + looking < counted.outstanding:
        kind = GapKind.SHORTFALL
        words += (
            "; the others were not seen, which does not mean that they are not there: their "
            "pages may be paged out or not in the dump"
        )
    elif blocks > counted.outstanding:
        kind = GapKind.SURPLUS
        words += (
            "; that is more than there can be: freed blocks or copies of pool pages are among them"
        )
    return words, kind
