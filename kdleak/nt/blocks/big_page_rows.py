"""The whole table of page-aligned pool blocks, read in slices and sifted with numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterator, List, Optional, Tuple

import numpy as np
import numpy.typing as npt

from kdleak.errors import MemoryUnreadable
from kdleak.nt.bigpages import MAXIMUM_ROWS
from kdleak.nt.blocks.pool_pages import Addresses, Flags, Sizes
from kdleak.nt.layouts import (
    FIRST_MULTIPLY_HASH_BUILD,
    FIRST_POOL_FLAGS_BUILD,
    BigPageLayout,
    big_page_layout,
)
from kdleak.nt.memory import PAGE_SIZE, MemoryReader, sign_extend
from kdleak.tags import PROTECTED_POOL

_SLICE_PAGES = 256
_LARGEST_BLOCK = 1 << 40
_ROWS_THAT_DECIDE = 16
_POOL_FLAGS = (0x40, 0x80, 0x100)  # POOL_FLAG_NON_PAGED, _NON_PAGED_EXECUTE, _PAGED
_POOL_FLAG_MASK = 0x1C0
_POOL_FLAG_PAGED = 0x100

UNKNOWN_POOL, NONPAGED_POOL, PAGED_POOL = -1, 0, 1


@dataclass(frozen=True)
class BigRows:
    """Rows of a slice of the table that describe a block; one entry of each array per row.

    Attributes:
        addresses: first byte of the block, page aligned.
        sizes: bytes charged.
        tags: without the protected bit.
        pools: ``UNKNOWN_POOL``, ``NONPAGED_POOL`` or ``PAGED_POOL``.
        freed: the row is marked unused; the rest of it is what it was before.
    """

    addresses: Addresses
    sizes: Sizes
    tags: npt.NDArray[np.uint32]
    pools: npt.NDArray[np.int8]
    freed: Flags


class BigPageRows:
    """nt!PoolBigPageTable as a whole.

    Args:
        memory: reads the target.
        symbol: address of ``nt!Name``, raising ``SymbolNotFound``.
        build: Windows build number.
        pointer_size: 4 or 8.

    Attributes:
        address: of the table, 0 where there is none.
        rows: rows of it.
        missing: pages of the table that could not be read, so far.

    Raises:
        SymbolNotFound, MemoryUnreadable: the table cannot be found.
    """

    def __init__(
        self,
        memory: MemoryReader,
        symbol: Callable[[str], int],
        build: int,
        pointer_size: int,
    ) -> None:
        self._memory = memory
        self._build = build
        self._layout = big_page_layout(build, pointer_size)
        self._holds_flags: Optional[bool] = None
        self.missing = 0
        values: List[int] = []
        for name in ("nt!PoolBigPageTable", "nt!PoolBigPageTableSize"):
            raw = memory.read(symbol(name), pointer_size)
            values.append(int.from_bytes(raw, "little"))
        self.address, self.rows = sign_extend(values[0], pointer_size), values[1]

    @property
    def plausible(self) -> bool:
        """Whether it can be such a table: in kernel space, rows a power of two, not too many."""
        return (
            self.address >> 56 == 0xFF
            and 0 < self.rows <= MAXIMUM_ROWS
            and not self.rows & (self.rows - 1)
        )

    @property
    def size(self) -> int:
        """Bytes of the table."""
        return self.rows * self._layout.row_size

    def slices(self) -> Iterator[BigRows]:
        """All rows that describe a block, a slice of the table at a time."""
        row_size = self._layout.row_size
        step = _SLICE_PAGES * PAGE_SIZE // row_size
        for first in range(0, self.rows, step):
            count = min(step, self.rows - first)
            raw = self._read(self.address + first * row_size, count * row_size)
            yield self._sift(np.frombuffer(raw, dtype=np.uint8).reshape(count, row_size))

    def _read(self, address: int, size: int) -> bytes:
        """Bytes of the table; zeros (never used rows) where a page of it is not there."""
        try:
            return self._memory.read(address, size)
        except MemoryUnreadable:
            pass
        parts: List[bytes] = []
        end = address + size
        while address < end:
            length = min(PAGE_SIZE - address % PAGE_SIZE, end - address)
            try:
                parts.append(self._memory.read(address, length))
            except MemoryUnreadable:
                parts.append(bytes(length))
                self.missing += 1
            address += length
        return b"".join(parts)

    def _sift(self, raw: npt.NDArray[np.uint8]) -> BigRows:
        layout = self._layout
        values = _pointers(raw, layout)
        freed = (values & np.uint64(1)) != 0
        addresses = values & ~np.uint64(1)
        sizes = _numbers(raw, layout.size, layout.size_width)
        if layout.size_in_pages:
            sizes = sizes * PAGE_SIZE
        right = (addresses % np.uint64(PAGE_SIZE) == 0) & (addresses >> np.uint64(56) == 0xFF)
        right &= (sizes > 0) & (sizes < _LARGEST_BLOCK)
        tags = _numbers(raw, layout.key, 4).astype(np.uint32) & np.uint32(PROTECTED_POOL - 1)
        right &= tags != 0
        pools = np.full(len(raw), UNKNOWN_POOL, dtype=np.int8)
        if layout.packed is not None:
            pools = self._pools(_numbers(raw, layout.packed, 4), right & ~freed)
        return BigRows(addresses[right], sizes[right], tags[right], pools[right], freed[right])

    def _pools(self, packed: Sizes, in_use: Flags) -> npt.NDArray[np.int8]:
        if self._build < FIRST_MULTIPLY_HASH_BUILD:
            return (packed & 1).astype(np.int8)
        kinds = packed >> 8 & 0xFFF
        if not self._flags_regime(kinds[in_use]):
            return (kinds & 1).astype(np.int8)
        pools = np.full(len(kinds), UNKNOWN_POOL, dtype=np.int8)
        kinds &= _POOL_FLAG_MASK
        pools[np.isin(kinds, _POOL_FLAGS)] = NONPAGED_POOL
        pools[kinds == _POOL_FLAG_PAGED] = PAGED_POOL
        return pools

    def _flags_regime(self, kinds: Sizes) -> bool:
        """Whether the dword holds POOL_FLAGS: exactly one pool named in every row in use.

        The build only decides while too few rows were seen.
        """
        if self._holds_flags is None and len(kinds) >= _ROWS_THAT_DECIDE:
            self._holds_flags = bool(np.isin(kinds & _POOL_FLAG_MASK, _POOL_FLAGS).all())
        if self._holds_flags is None:
            return self._build >= FIRST_POOL_FLAGS_BUILD
        return self._holds_flags


def _pointers(raw: npt.NDArray[np.uint8], layout: BigPageLayout) -> Addresses:
    values: npt.NDArray[Any] = np.ascontiguousarray(raw[:, : layout.pointer_size])
    if layout.pointer_size == 8:
        return values.view("<u8").reshape(-1)
    # Sign extension, as everywhere else.
    return values.view("<i4").reshape(-1).astype(np.int64).view(np.uint64)


def _numbers(raw: npt.NDArray[np.uint8], offset: int, width: int) -> Sizes:
    values: npt.NDArray[Any] = np.ascontiguousarray(raw[:, offset : offset + width])
    if width == 8:
        return values.view("<i8").reshape(-1)  # a size of 2^63 and more becomes negative: refused
    return values.view("<u4").reshape(-1).astype(np.int64)


def intervals(slices: List[Tuple[Addresses, Sizes]]) -> Tuple[Addresses, Addresses]:
    """Starts and ends of blocks in use, ascending by start."""
    if not slices:
        empty = np.zeros(0, dtype=np.uint64)
        return empty, empty
    starts = np.concatenate([one for one, _ in slices])
    sizes = np.concatenate([one for _, one in slices]).astype(np.uint64)
    order = np.argsort(starts, kind="stable")
    starts = starts[order]
    return starts, starts + sizes[order]
