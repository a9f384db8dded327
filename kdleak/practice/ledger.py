"""Reads the ledger the practice kernel keeps (kernel/ledger.c): the truth about call sites."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass

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
