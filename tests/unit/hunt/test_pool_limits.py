"""Limits of the pools from a kernel's variables, and the time until they are reached."""

from __future__ import annotations

import struct
from typing import Dict, List, Optional, Union

import pytest

from kdleak.errors import LinkLost, MemoryUnreadable, SymbolNotFound
from kdleak.model import Architecture, Pool, PoolCounters, TargetInfo
from kdleak.result import PoolLimit, RankRow, Trend, TrendFit
from kdleak.tags import PoolTag
from kdleak.trends.pool_limits import hours_left, pool_limits

GB = 1 << 30
TB = 1 << 40
BASE = 0xFFFFF80000000000
SHARED = 0xFFFFF780000002E8


class Kernel:
    """Just enough of an engine: named variables, and bytes at addresses."""

    def __init__(
        self,
        variables: Dict[str, int],
        *,
        shared_pages: Optional[int] = None,
        block: Optional[Dict[int, int]] = None,
        pointer_size: int = 8,
        lost_at: int = 0,
    ) -> None:
        self.target = TargetInfo(
            Architecture.X64 if pointer_size == 8 else Architecture.X86,
            pointer_size,
            19045,
            True,
            2,
            BASE,
        )
        self.asked: List[str] = []
        self._lost_at = lost_at
        self._symbols: Dict[str, int] = {}
        self._memory: Dict[int, bytes] = {}
        for index, (name, value) in enumerate(variables.items()):
            self._symbols[f"nt!{name}"] = at = BASE + 0x1000 + 8 * index
            self._memory[at] = value.to_bytes(pointer_size, "little")
        if shared_pages is not None:
            at = SHARED if pointer_size == 8 else 0xFFDF02E8
            self._memory[at] = struct.pack("<I", shared_pages)
        if block is not None:
            self._symbols["nt!KdDebuggerDataBlock"] = BASE
            raw = bytearray(0x380)
            struct.pack_into("<QQ4sI", raw, 0, BASE, BASE, b"KDBG", len(raw))
            for index, (offset, value) in enumerate(block.items()):
                struct.pack_into("<Q", raw, offset, BASE + 0x2000 + 8 * index)
                self._memory[BASE + 0x2000 + 8 * index] = struct.pack("<Q", value)
            self._memory[BASE] = bytes(raw)

    def symbol(self, name: str) -> int:
        if name not in self._symbols:
            raise SymbolNotFound(f"looking up {name}", "not found")
        return self._symbols[name]

    def read(self, address: int, size: int) -> bytes:
        self.asked.append(hex(address))
        if len(self.asked) == self._lost_at:
            raise LinkLost("reading", "no answer")
        found = self._memory.get(address, b"")[:size]
        if len(found) < size:
            raise MemoryUnreadable(address, size)
        return found


def limits(kernel: Union[Kernel, object], **more: object) -> Dict[Pool, PoolLimit]:
    return pool_limits(kernel, **more)  # type: ignore[arg-type]


def test_sizes_set_at_boot() -> None:
    kernel = Kernel({"MmMaximumNonPagedPoolInBytes": 3 * GB, "MmSizeOfPagedPoolInBytes": 128 * GB})
    assert limits(kernel) == {
        Pool.NONPAGED: PoolLimit(3 * GB, "nt!MmMaximumNonPagedPoolInBytes"),
        Pool.PAGED: PoolLimit(128 * GB, "nt!MmSizeOfPagedPoolInBytes"),
    }
    assert limits(kernel, pools=[Pool.PAGED]).keys() == {Pool.PAGED}


def test_terabytes_of_addresses_bound_nothing_memory_does() -> None:
    kernel = Kernel(
        {
            "MmMaximumNonPagedPoolInBytes": 16 * TB,
            "MmSizeOfPagedPoolInBytes": 15 * TB,
            "MmNumberOfPhysicalPages": 16 * GB // 4096,
            "MmTotalCommitLimit": 20 * GB // 4096,
        }
    )
    assert limits(kernel) == {
        Pool.NONPAGED: PoolLimit(16 * GB, "nt!MmNumberOfPhysicalPages"),
        Pool.PAGED: PoolLimit(20 * GB, "nt!MmTotalCommitLimit"),
    }
    alone = Kernel({"MmMaximumNonPagedPoolInBytes": 16 * TB})
    assert limits(alone) == {}


def test_the_first_bound_counts() -> None:
    kernel = Kernel(
        {
            "MmSizeOfPagedPoolInBytes": 128 * GB,
            "MmTotalCommitLimit": 8 * GB // 4096,
        }
    )
    assert limits(kernel)[Pool.PAGED] == PoolLimit(8 * GB, "nt!MmTotalCommitLimit")


@pytest.mark.parametrize("pointer_size", [4, 8])
def test_memory_from_the_shared_page_without_any_symbol(pointer_size: int) -> None:
    kernel = Kernel({}, shared_pages=2 * GB // 4096, pointer_size=pointer_size)
    assert limits(kernel) == {
        Pool.NONPAGED: PoolLimit(2 * GB, "KUSER_SHARED_DATA.NumberOfPhysicalPages")
    }


def test_the_debugger_data_block_stands_in_for_symbols() -> None:
    kernel = Kernel({}, block={0x0F8: 4 * GB // 4096, 0x140: 2 * GB})
    assert limits(kernel) == {
        Pool.NONPAGED: PoolLimit(4 * GB, "nt!MmNumberOfPhysicalPages"),
        Pool.PAGED: PoolLimit(2 * GB, "nt!MmSizeOfPagedPoolInBytes"),
    }
    assert kernel.asked.count(hex(BASE)) == 2  # its header and itself, once


@pytest.mark.parametrize("value", [0, 4096, (1 << 64) - 1])
def test_what_is_no_size_is_unknown(value: int) -> None:
    names = ("MmMaximumNonPagedPoolInBytes", "MmNumberOfPhysicalPages", "MmTotalCommitLimit")
    assert (
        limits(Kernel({name: value for name in names if value != 4096 or "InBytes" in name})) == {}
    )


def test_nothing_known_is_no_error_and_a_lost_link_ends_the_asking() -> None:
    assert limits(Kernel({})) == {}
    kernel = Kernel({"MmMaximumNonPagedPoolInBytes": GB, "MmSizeOfPagedPoolInBytes": GB}, lost_at=1)
    assert limits(kernel) == {}
    assert len(kernel.asked) == 1


def row(trend: Trend, per_hour: float) -> RankRow:
    fit = TrendFit(per_hour, per_hour, per_hour, 0.001, 6)
    nothing = PoolCounters()
    tag = PoolTag.parse("Leak")
    return RankRow(tag, Pool.PAGED, nothing, nothing, (0,) * 6, trend, per_hour, fit)


def test_hours_left() -> None:
    limit = PoolLimit(10 * GB, "nt!X")
    assert hours_left(row(Trend.STEADY, GB), limit, 4 * GB) == 6
    assert hours_left(row(Trend.STEADY, GB), limit, 11 * GB) == 0
    assert hours_left(row(Trend.LEVELLING, GB), limit, 4 * GB) is None
    assert hours_left(row(Trend.STEADY, 0), limit, 4 * GB) is None
