"""The most a pool can come to, from the kernel's own variables, and when a leak gets there.

Kernels that size their pools at boot keep the sizes in ``nt!MmMaximumNonPagedPoolInBytes`` and
``nt!MmSizeOfPagedPoolInBytes``; the debugger data block (KDDEBUGGER_DATA64, wdbgexts.h) gives
their addresses where symbols do not. Newer kernels bound the nonpaged pool by the memory there is
(``nt!MmNumberOfPhysicalPages``) and the paged pool by what can be committed
(``nt!MmTotalCommitLimit``). What none of them tells stays unknown.

Source of the limits: Microsoft, "Memory Limits for Windows and Windows Server Releases".
"""

from __future__ import annotations

import struct
from typing import Collection, Dict, Optional

from kdleak.engine.base import Engine
from kdleak.errors import KdleakError, LinkError
from kdleak.model import Pool
from kdleak.nt.kdbg import FIELDS, DebuggerData, find_debugger_data
from kdleak.result import PoolLimit, RankRow, Trend

PAGE = 0x1000
"""Bytes of a page on every machine kdleak knows."""

_VARIABLES = {
    Pool.NONPAGED: (("MmMaximumNonPagedPoolInBytes", 1), ("MmNumberOfPhysicalPages", PAGE)),
    Pool.PAGED: (("MmSizeOfPagedPoolInBytes", 1), ("MmTotalCommitLimit", PAGE)),
}
"""Variables that bound each pool, best first, and the bytes of their unit."""

_LEAST = 1 << 20
"""Bytes below which no pool ever was: what is less is no size."""

_MOST = 1 << 47
"""Bytes of the kernel's whole address space with four levels of page tables."""


def pool_limits(engine: Engine, *, pools: Collection[Pool] = tuple(Pool)) -> Dict[Pool, PoolLimit]:
    """The limits of the pools, as far as the kernel tells them.

    A stopped target is read once or twice per pool, and once or twice for the debugger data
    block where a variable has no symbol.

    Args:
        engine: a dump, or a live target that is stopped.
        pools: to ask for.

    Returns:
        None of a pool whose limit is not known: that is no error.
    """
    places = _Places(engine)
    limits: Dict[Pool, PoolLimit] = {}
    for pool in Pool:
        if pool not in pools:
            continue
        for name, unit in _VARIABLES[pool]:
            value = places.value(name)
            if value is not None and _LEAST <= value * unit <= _MOST:
                limits[pool] = PoolLimit(value * unit, f"nt!{name}")
                break
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


class _Places:
    """Where variables of the kernel lie: by symbol, else by the debugger data block."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lost = False
        self._searched = False
        self._block: Optional[DebuggerData] = None

    def value(self, name: str) -> Optional[int]:
        """A variable of the size of a pointer; None where it cannot be had."""
        size = self._engine.target.pointer_size
        for find in (self._by_symbol, self._by_block):
            if self._lost:
                return None
            try:
                address = find(name)
                raw = self._engine.read(address, size) if address else b""
            except LinkError:  # every further question would wait for an answer
                self._lost = True
                continue
            except KdleakError:
                continue
            if raw:
                value: int = struct.unpack("<Q" if size == 8 else "<I", raw)[0]
                return value
        return None

    def _by_symbol(self, name: str) -> int:
        return self._engine.symbol(f"nt!{name}")

    def _by_block(self, name: str) -> int:
        if not self._searched:
            self._searched = True
            self._block = find_debugger_data(
                self._engine, self._engine.symbol("nt!KdDebuggerDataBlock")
            )
        return self._block.field(name) if self._block is not None and name in FIELDS else 0
