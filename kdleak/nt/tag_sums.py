"""Arithmetic on the counters of the tag tables, as the kernel does it for its own report."""

from __future__ import annotations

from typing import Dict, List, Sequence, Tuple

from kdleak.model import PoolCounters, TagUsage
from kdleak.nt.layouts import TrackerLayout
from kdleak.tags import PoolTag

Counters = Tuple[int, ...]
"""Nonpaged allocs, frees, bytes, paged allocs, frees, bytes; unsigned, as they lie in a row."""


def add(layout: TrackerLayout, parts: Sequence[Counters]) -> Counters:
    """Add counters of several rows, each modulo its width as the kernel does."""
    masks = [(1 << 8 * width) - 1 for width in layout.widths]
    return tuple(sum(part[index] for part in parts) & masks[index] for index in range(len(masks)))


def _signed(value: int, width: int) -> int:
    sign = 1 << (8 * width - 1)
    return (value & (2 * sign - 1) ^ sign) - sign


def normalised(key: int, total: Counters, layout: TrackerLayout) -> TagUsage:
    """A tag's sums as the kernel reports them: nothing outstanding means no bytes, and back."""
    pools = []
    for allocs, frees, used in (total[:3], total[3:]):
        # 32-bit counters of busy tags wrap; the difference does not care.
        outstanding = _signed(allocs - frees, layout.count_width)
        size = _signed(used, layout.bytes_width)
        if outstanding <= 0:
            pools.append(PoolCounters(max(allocs, frees), max(allocs, frees), 0))
        elif size <= 0:
            pools.append(PoolCounters(frees + outstanding, frees + outstanding, 0))
        else:
            pools.append(PoolCounters(frees + outstanding, frees, size))
    return TagUsage(PoolTag(key), pools[0], pools[1])


def as_read(key: int, total: Counters, layout: TrackerLayout) -> TagUsage:
    """One row as it stands."""
    nonpaged = PoolCounters(total[0], total[1], _signed(total[2], layout.bytes_width))
    paged = PoolCounters(total[3], total[4], _signed(total[5], layout.bytes_width))
    return TagUsage(PoolTag(key), nonpaged, paged)


def merge(rows: List[TagUsage]) -> Tuple[TagUsage, ...]:
    """One row per tag, ordered by tag value."""
    merged: Dict[PoolTag, TagUsage] = {}
    for row in rows:
        known = merged.get(row.tag)
        merged[row.tag] = (
            row
            if known is None
            else TagUsage(
                row.tag, _plus(known.nonpaged, row.nonpaged), _plus(known.paged, row.paged)
            )
        )
    return tuple(merged[tag] for tag in sorted(merged))


def _plus(one: PoolCounters, other: PoolCounters) -> PoolCounters:
    return PoolCounters(one.allocs + other.allocs, one.frees + other.frees, one.bytes + other.bytes)
