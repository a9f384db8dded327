"""The table of page-aligned pool blocks, which carry no header: looking one address up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, List, Optional, Tuple

from kdleak.model import Pool
from kdleak.nt.layouts import (
    FIRST_MULTIPLY_HASH_BUILD,
    FIRST_POOL_FLAGS_BUILD,
    big_page_is_paged,
    big_page_layout,
)
from kdleak.nt.memory import PAGE_SIZE, MemoryReader, sign_extend
from kdleak.nt.tag_table import multiply_hash
from kdleak.tags import PROTECTED_POOL, PoolTag

MAXIMUM_ROWS = 1 << 24
_NEIGHBOURS = 0x200  # bytes between two variables that one request may bring together
_LONGEST_PROBE = 1024  # rows looked at behind the hash slot before giving up


@dataclass(frozen=True)
class BigBlock:
    """One row of the table.

    Attributes:
        address: first byte of the block, page aligned.
        size: bytes charged to the tag.
        tag: its tag.
        pool: which pool; None where the row does not tell.
        freed: the row is marked unused: the block is being freed, or was.
    """

    address: int
    size: int
    tag: PoolTag
    pool: Optional[Pool]
    freed: bool = False


class BigPageTable:
    """nt!PoolBigPageTable.

    Args:
        memory: reads the target; it must not serve bytes from before the target last ran.
        symbol: address of ``nt!Name``, raising ``SymbolNotFound``.
        build: Windows build number.
        pointer_size: 4 or 8.
        request_bytes: most bytes one round trip brings.
    """

    def __init__(
        self,
        memory: MemoryReader,
        symbol: Callable[[str], int],
        build: int,
        pointer_size: int,
        *,
        request_bytes: int = 0x400,
    ) -> None:
        self._memory = memory
        self._symbol = symbol
        self._build = build
        self._pointer_size = pointer_size
        self._layout = big_page_layout(build, pointer_size)
        self._window = max(min(request_bytes // self._layout.row_size, 16), 1)

    def find_big_page(self, address: int, freed: bool = False) -> Optional[BigBlock]:
        """The block that starts at ``address``; None when the table has none there.

        Costs one or two reads for the table's address and size (it moves when it grows) and
        usually one for the row.

        Args:
            address: page aligned.
            freed: take also the row of a block that is being freed: the kernel marks it unused
                (bit 0 of the address) before it tests the tag, and leaves the rest as it was.

        Raises:
            SymbolNotFound, MemoryUnreadable.
        """
        if address % PAGE_SIZE:
            return None
        table, rows = self._variables()
        if not table or not 0 < rows <= MAXIMUM_ROWS or rows & (rows - 1):
            return None
        wanted = (address, address | 1) if freed else (address,)
        for hashed in self._hashes(address):
            found = self._probe(table, rows, hashed & (rows - 1), wanted)
            if found is not None:
                return self._block(found, address)
        return None

    def _variables(self) -> Tuple[int, int]:
        """Values of nt!PoolBigPageTable and nt!PoolBigPageTableSize, in one read if possible."""
        width = self._pointer_size
        table, size = self._symbol("nt!PoolBigPageTable"), self._symbol("nt!PoolBigPageTableSize")
        first, last = min(table, size), max(table, size) + width
        if last - first <= _NEIGHBOURS:
            raw = self._memory.read(first, last - first)
            values = [
                int.from_bytes(raw[at - first : at - first + width], "little")
                for at in (table, size)
            ]
        else:
            values = [
                int.from_bytes(self._memory.read(at, width), "little") for at in (table, size)
            ]
        return sign_extend(values[0], width), values[1]

    def _hashes(self, address: int) -> Tuple[int, ...]:
        """Hashes of an address, the one the build calls for first.

        From Windows 10 the page number is multiplied; through 22H2 only its low 32 bits are,
        from 24H2 all of it. The builds between are told apart by trying both.
        """
        page = (address & (1 << 8 * self._pointer_size) - 1) // PAGE_SIZE
        if self._build < FIRST_MULTIPLY_HASH_BUILD:
            return (page >> 24 ^ page >> 16 ^ page >> 8 ^ page,)
        both: List[int] = [multiply_hash(page & 0xFFFFFFFF), multiply_hash(page)]
        if self._build >= FIRST_POOL_FLAGS_BUILD:
            both.reverse()
        return tuple(dict.fromkeys(both))

    def _probe(self, table: int, rows: int, row: int, wanted: Tuple[int, ...]) -> Optional[bytes]:
        """The row whose address is one of ``wanted``, by linear probing."""
        size = self._layout.row_size
        width = self._pointer_size
        seen = 0
        while seen < min(rows, _LONGEST_PROBE):
            length = min(self._window, rows - row)
            raw = self._memory.read(table + row * size, length * size)
            for at in range(0, length * size, size):
                start = sign_extend(int.from_bytes(raw[at : at + width], "little"), width)
                if start in wanted:
                    return raw[at : at + size]
                if start in (0, 1):  # never used: the probe of whoever inserted ended here
                    return None
            seen += length
            row = (row + length) % rows
        return None

    def _block(self, raw: bytes, address: int) -> BigBlock:
        layout = self._layout
        key = int.from_bytes(raw[layout.key : layout.key + 4], "little") & ~PROTECTED_POOL
        size = int.from_bytes(raw[layout.size : layout.size + layout.size_width], "little")
        if layout.size_in_pages:
            size *= PAGE_SIZE
        pool = None
        if layout.packed is not None:
            packed = int.from_bytes(raw[layout.packed : layout.packed + 4], "little")
            paged = big_page_is_paged(packed, self._build)
            pool = None if paged is None else Pool.PAGED if paged else Pool.NONPAGED
        return BigBlock(address, size, PoolTag(key), pool, bool(raw[0] & 1))
