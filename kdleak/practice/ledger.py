"""Reads the ledger the practice kernel keeps (kernel/ledger.c): the truth about call sites."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace

from kdleak.model import Pool
from kdleak.practice.boot import LEDGER_SITE_SIZE, LEDGER_SITES
from kdleak.tags import PoolTag

_SITE = struct.Struct("<QII5Q8x")


@dataclass(frozen=True)
class CallSite:
    """One place in the code that calls the allocator, for one tag and one pool.

    Attributes:
        return_address: address after the call.
        tag: the pool tag.
        pool: which pool.
        allocs: blocks allocated here since boot.
        frees: blocks allocated here and freed since, wherever they were freed.
        bytes_allocated: as charged to the tag: header and rounding included.
        bytes_freed: of the blocks freed.
        free_calls: calls that free a block of this tag, made here.
        module: module of the return address, "" where unknown.
        function: function of the return address.
        offset: of the return address from the function's start, bytes.
    """

    return_address: int
    tag: PoolTag
    pool: Pool
    allocs: int
    frees: int
    bytes_allocated: int
    bytes_freed: int
    free_calls: int
    module: str = ""
    function: str = ""
    offset: int = 0

    @property
    def outstanding(self) -> int:
        """Blocks allocated here that nobody has freed."""
        return self.allocs - self.frees

    @property
    def bytes(self) -> int:
        """Bytes allocated here that nobody has freed."""
        return self.bytes_allocated - self.bytes_freed


def read_ledger(raw: mmap.mmap) -> tuple[CallSite, ...]:
    """The call sites in the ledger's memory, ordered by tag, pool and address."""
    found: list[CallSite] = []
    for index in range(LEDGER_SITES):
        site = _SITE.unpack_from(raw, index * LEDGER_SITE_SIZE)
        if site[0]:
            pool = Pool.PAGED if site[2] else Pool.NONPAGED
            found.append(CallSite(site[0], PoolTag(site[1]), pool, *site[3:]))
    overflows = struct.unpack_from("<Q", raw, LEDGER_SITES * LEDGER_SITE_SIZE + 16)[0]
    if overflows:
        raise RuntimeError(f"the practice ledger is full: {overflows} calls were not counted")
    return tuple(sorted(found, key=lambda site: (site.tag, site.pool.value, site.return_address)))


def changes_between(before: Iterable[CallSite], after: Iterable[CallSite]) -> tuple[CallSite, ...]:
    """What every call site did in a stretch of time, from the ledger at both ends.

    ``frees`` may exceed ``allocs``: blocks from before were freed. Sites that did nothing are
    left out.
    """
    earlier = {(site.return_address, site.tag, site.pool): site for site in before}
    found: list[CallSite] = []
    for site in after:
        old = earlier.get((site.return_address, site.tag, site.pool))
        change = site
        if old is not None:
            change = replace(
                site,
                allocs=site.allocs - old.allocs,
                frees=site.frees - old.frees,
                bytes_allocated=site.bytes_allocated - old.bytes_allocated,
                bytes_freed=site.bytes_freed - old.bytes_freed,
                free_calls=site.free_calls - old.free_calls,
            )
        if change.allocs or change.frees or change.free_calls:
            found.append(change)
    return tuple(found)


def truth_as_json(sites: Iterable[CallSite]) -> list[dict[str, object]]:
    """Call sites as plain values, for other programs."""
    return [
        {
            "module": site.module,
            "function": site.function,
            "offset": site.offset,
            "return_address": site.return_address,
            "tag": site.tag.text,
            "pool": site.pool.value,
            "allocs": site.allocs,
            "frees": site.frees,
            "outstanding": site.outstanding,
            "bytes": site.bytes,
            "free_calls": site.free_calls,
        }
        for site in sites
    ]
