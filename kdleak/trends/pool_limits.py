"""The most a pool can come to, from the kernel's own variables, and when a leak gets there.

A pool ends at the first of its bounds. Kernels that size their pools at boot keep the sizes in
``nt!MmMaximumNonPagedPoolInBytes`` and ``nt!MmSizeOfPagedPoolInBytes``; newer ones have terabytes
of addresses there, and what bounds the nonpaged pool is the memory there is
(``nt!MmNumberOfPhysicalPages``), the paged pool what can be committed (``nt!MmTotalCommitLimit``).
Where symbols do not name a variable, the debugger data block (KDDEBUGGER_DATA64, wdbgexts.h) has
its address, and the pages of memory also stand in the page that every process shares. What
nothing tells stays unknown.

Source of the limits: Microsoft, "Memory Limits for Windows and Windows Server Releases".
"""

from __future__ import annotations

from functools import partial
from typing import Callable, Collection, Dict, Iterator, Optional, Tuple

from kdleak.engine.base import Engine
from kdleak.errors import KdleakError, LinkError
from kdleak.model import Pool
from kdleak.nt.kdbg import DebuggerData, find_debugger_data
from kdleak.result import PoolLimit, RankRow, Trend

PAGE = 0x1000
"""Bytes of a page on every machine kdleak knows."""

_ADDRESSES = 1 << 40
"""Bytes from which a size is that of a range of addresses, and no bound."""

_BOUNDS = {
    Pool.NONPAGED: (
        ("MmMaximumNonPagedPoolInBytes", 1, _ADDRESSES),
        ("MmNumberOfPhysicalPages", PAGE, 1 << 47),
    ),
    Pool.PAGED: (
        ("MmSizeOfPagedPoolInBytes", 1, _ADDRESSES),
        ("MmTotalCommitLimit", PAGE, 1 << 47),
    ),
}
"""Variables that bound each pool, bytes of their unit, and bytes that are too many to be true."""

_LEAST = 1 << 20
"""Bytes below which no pool ever was bounded: what is less is no size."""

_SHARED_PAGE = {4: 0xFFDF0000, 8: 0xFFFFF78000000000}
"""KUSER_SHARED_DATA as the kernel sees it, by size of a pointer (ntddk.h)."""

_SHARED_PAGES = 0x2E8
"""Its u32 NumberOfPhysicalPages; there since Windows 2000, in all machines' layouts."""


def pool_limits(engine: Engine, *, pools: Collection[Pool] = tuple(Pool)) -> Dict[Pool, PoolLimit]:
    """The limits of the pools, as far as the kernel tells them.

    Of a stopped target at most two variables per pool are read; and the debugger data block,
    once, where one of them has no symbol.

    Args:
        engine: a dump, or a live target that is stopped.
        pools: to ask for.

    Returns:
        None of a pool whose limit is not known: that is no error.
    """
    kernel = _Variables(engine)
    limits: Dict[Pool, PoolLimit] = {}
    for pool in Pool:
        if pool not in pools:
            continue
        known = [
            PoolLimit(value * unit, source)
            for name, unit, beyond in _BOUNDS[pool]
            for value, source in kernel.values(name)
            if _LEAST <= value * unit < beyond
        ]
        if known:
            limits[pool] = min(known, key=lambda limit: limit.bytes)
    return limits


def hours_left(row: RankRow, limit: PoolLimit, held: int) -> Optional[float]:
    """Hours of running target until a pool is full, at the slope of one tag. Pure.

    Args:
        row: of the tag.
        limit: of its pool.
        held: bytes of all tags in that pool now.

    Returns:
        None unless the tag grows steadily; 0 for a pool that is full.
    """
    if row.trend is not Trend.STEADY or row.fit is None or row.fit.bytes_per_hour <= 0:
        return None
    return max(0, limit.bytes - held) / row.fit.bytes_per_hour


class _Variables:
    """Variables of the kernel: by symbol, else by the debugger data block."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lost = False
        self._searched = False
        self._block: Optional[DebuggerData] = None

    def values(self, name: str) -> Iterator[Tuple[int, str]]:
        """The value of a variable of the size of a pointer, and its source; none if unknown."""
        size = self._engine.target.pointer_size
        for find in (self._by_symbol, self._by_block):
            value = self._read(partial(find, name), size)
            if value is not None:
                yield value, f"nt!{name}"
                return
        if name == "MmNumberOfPhysicalPages":
            value = self._read(lambda: _SHARED_PAGE[size] + _SHARED_PAGES, 4)
            if value is not None:
                yield value, "KUSER_SHARED_DATA.NumberOfPhysicalPages"

    def _read(self, find: Callable[[], int], size: int) -> Optional[int]:
        if self._lost:
            return None
        try:
            address = find()
            return int.from_bytes(self._engine.read(address, size), "little") if address else None
        except LinkError:  # every further question would wait for an answer
            self._lost = True
        except KdleakError:
            pass
        return None

    def _by_symbol(self, name: str) -> int:
        return self._engine.symbol(f"nt!{name}")

    def _by_block(self, name: str) -> int:
        if not self._searched:
            self._searched = True
            self._block = find_debugger_data(
                self._engine, self._engine.symbol("nt!KdDebuggerDataBlock")
            )
        return self._block.field(name) if self._block is not None else 0
