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
from kdleak.nt.memory import PAGE_SIZE, MemoryReader, read_pointer, sign_extend
from kdleak.nt.tag_table import multiply_hash
from kdleak.tags import PROTECTED_POOL, PoolTag

MAXIMUM_ROWS = 1 << 24
_LONGEST_PROBE = 1024  # rows looked at behind the hash slot before giving up


@dataclass(frozen=True)
class BigBlock:
    """One row of the table.

    Attributes:
        address: first byte of the block, page aligned.
        size: bytes charged to the tag.
        tag: its tag.
        pool: which pool; None where the row does not tell.
    """

    address: int
    size: int
    tag: PoolTag
    pool: Optional[Pool]


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

    def find_big_page(self, address: int) -> Optional[BigBlock]:
        """The block that starts at ``address``; None when the table has none there.

        Costs two reads for the table's address and size (it moves when it grows) and usually
        one for the row.

        Raises:
            SymbolNotFound, MemoryUnreadable.
        """
        if address % PAGE_SIZE:
            return None
        table = read_pointer(self._memory, self._symbol("nt!PoolBigPageTable"), self._pointer_size)
        raw = self._memory.read(self._symbol("nt!PoolBigPageTableSize"), self._pointer_size)
        rows = int.from_bytes(raw, "little")
        if not table or not 0 < rows <= MAXIMUM_ROWS or rows & (rows - 1):
            return None
        for hashed in self._hashes(address):
            found = self._probe(table, rows, hashed & (rows - 1), address)
            if found is not None:
                return found
        return None

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

    def _probe(self, table: int, rows: int, row: int, address: int) -> Optional[BigBlock]:
        size = self._layout.row_size
        seen = 0
        while seen < min(rows, _LONGEST_PROBE):
            length = min(self._window, rows - row)
            raw = self._memory.read(table + row * size, length * size)
            for at in range(0, length * size, size):
                start = sign_extend(
                    int.from_bytes(raw[at : at + self._pointer_size], "little"),
                    self._pointer_size,
                )
                if start == address:
                    return self._block(raw[at : at + size], address)
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
        return BigBlock(address, size, PoolTag(key), pool)
