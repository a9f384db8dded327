"""Target memory made of pieces, and pool tables put into it the way the kernel does."""

from __future__ import annotations

import struct
from typing import Dict, List, Optional, Tuple

from kdleak.errors import MemoryUnreadable, SymbolNotFound
from kdleak.nt.layouts import BIG_PAGE_LAYOUTS, BigPageLayout, TrackerLayout
from kdleak.nt.tag_table import multiply_hash, tag_slot


class FakeMemory:
    """Pieces of memory; reading anything else fails at its first byte.

    Attributes:
        reads: (address, size) of every read, in order.
        holes: pages that cannot be read although a piece covers them.
    """

    def __init__(self) -> None:
        self.pieces: List[Tuple[int, bytearray]] = []
        self.reads: List[Tuple[int, int]] = []
        self.holes: set = set()

    def put(self, address: int, data: bytes) -> None:
        for start, piece in self.pieces:
            if start <= address and address + len(data) <= start + len(piece):
                piece[address - start : address - start + len(data)] = data
                return
        self.pieces.append((address, bytearray(data)))

    def read(self, address: int, size: int) -> bytes:
        self.reads.append((address, size))
        return self.peek(address, size)

    def peek(self, address: int, size: int) -> bytes:
        for page in range(address // 0x1000, (address + max(size, 1) - 1) // 0x1000 + 1):
            if page in self.holes:
                raise MemoryUnreadable(max(address, page * 0x1000), size)
        for start, piece in self.pieces:
            if start <= address and address + size <= start + len(piece):
                return bytes(piece[address - start : address - start + size])
        raise MemoryUnreadable(address, size)


class FakeSymbols:
    """Symbols by name; calling it raises SymbolNotFound for others."""

    def __init__(self, **addresses: int) -> None:
        self.addresses: Dict[str, int] = {f"nt!{name}": at for name, at in addresses.items()}

    def __call__(self, name: str) -> int:
        if name not in self.addresses:
            raise SymbolNotFound(f"looking up {name}", "it is not there")
        return self.addresses[name]

    def forget(self, name: str) -> None:
        del self.addresses[f"nt!{name}"]


Row = Tuple[int, int, int, int, int, int]
"""Nonpaged allocs, frees, bytes, paged allocs, frees, bytes; may be negative."""

VARIABLES = 0xFFFFF80000100000
TABLES = 0xFFFFA00000000000


class FakePool:
    """The tag tables of a target with one layout.

    Args:
        layout: row layout.
        processors: tables to make.
        mask: of the hash table.
    """

    def __init__(self, layout: TrackerLayout, processors: int = 2, mask: int = 0x7FF) -> None:
        self.layout = layout
        self.memory = FakeMemory()
        self.mask = mask
        self.rows = mask + 2
        self.keys = [0] * self.rows
        width = layout.pointer_size
        base = VARIABLES if width == 8 else 0xFFFFFFFF80100000
        tables = TABLES if width == 8 else 0xFFFFFFFF90000000
        step = 0x10000000 if width == 8 else 0x400000
        self.tables = [tables + step * number for number in range(processors)]
        self.symbols = FakeSymbols(
            PoolTrackTable=base,
            PoolTrackTableSize=base + 0x10,
            PoolTrackTableMask=base + 0x20,
            PoolTrackTableExpansion=base + 0x30,
            PoolTrackTableExpansionSize=base + 0x40,
            ExPoolTagTables=base + 0x1000,
        )
        self.memory.put(base, bytes(0x100))
        self.memory.put(base + 0x1000, bytes(width * 0x100))
        self.set("PoolTrackTable", self.tables[0])
        self.set("PoolTrackTableSize", self.rows)
        self.set("PoolTrackTableMask", mask)
        for number, table in enumerate(self.tables):
            self.memory.put(table, bytes(self.rows * layout.row_size))
            self.set("ExPoolTagTables", table, width * number)

    def set(self, name: str, value: int, offset: int = 0) -> None:
        width = self.layout.pointer_size
        raw = (value & ((1 << 8 * width) - 1)).to_bytes(width, "little")
        self.memory.put(self.symbols(f"nt!{name}") + offset, raw)

    def slot(self, tag: int) -> int:
        slot = tag_slot(tag, self.mask)
        for _ in range(self.mask + 1):
            if self.keys[slot] in (0, tag):
                return slot
            slot = (slot + 1) & self.mask
        raise AssertionError("the fake table is full")

    def write(self, processor: int, tag: int, row: Row, slot: Optional[int] = None) -> None:
        if slot is None:
            slot = self.slot(tag)
            self.keys[slot] = tag
        self.put_row(self.tables[processor] + slot * self.layout.row_size, tag, row)
        if processor:
            # The kernel claims the row in the global table first.
            self.memory.put(self.tables[0] + slot * self.layout.row_size, struct.pack("<I", tag))

    def put_row(self, address: int, tag: int, row: Row) -> None:
        layout = self.layout
        raw = bytearray(layout.row_size)
        struct.pack_into("<I", raw, 0, tag)
        offsets = layout.nonpaged + layout.paged
        for offset, width, value in zip(offsets, layout.widths, row):
            raw[offset : offset + width] = (value & ((1 << 8 * width) - 1)).to_bytes(
                width, "little"
            )
        self.memory.put(address, bytes(raw))

    def expand(self, rows: List[Tuple[int, Row]]) -> None:
        address = self.tables[-1] + 0x800000
        self.memory.put(address, bytes(len(rows) * self.layout.row_size))
        for index, (tag, row) in enumerate(rows):
            self.put_row(address + index * self.layout.row_size, tag, row)
        self.set("PoolTrackTableExpansion", address)
        self.set("PoolTrackTableExpansionSize", len(rows))


class FakeBigPages:
    """nt!PoolBigPageTable with one layout and hash."""

    def __init__(self, layout: BigPageLayout, rows: int = 0x1000, *, full_hash: bool = False):
        self.layout = layout
        self.rows = rows
        self.full_hash = full_hash
        self.memory = FakeMemory()
        self.table = TABLES
        self.symbols = FakeSymbols(
            PoolBigPageTable=VARIABLES, PoolBigPageTableSize=VARIABLES + 0x40
        )
        self.memory.put(VARIABLES, bytes(0x100))
        self.memory.put(VARIABLES, self.table.to_bytes(8, "little"))
        self.memory.put(VARIABLES + 0x40, rows.to_bytes(8, "little"))
        self.memory.put(self.table, (1).to_bytes(8, "little").ljust(layout.row_size, b"\0") * rows)
        self.used: set = set()

    def add(self, address: int, tag: int, size: int, packed: int) -> int:
        page = address >> 12
        slot = multiply_hash(page if self.full_hash else page & 0xFFFFFFFF) & (self.rows - 1)
        while slot in self.used:
            slot = (slot + 1) % self.rows
        self.used.add(slot)
        raw = bytearray(self.layout.row_size)
        struct.pack_into("<Q", raw, 0, address)
        struct.pack_into("<I", raw, self.layout.key, tag)
        assert self.layout.packed is not None
        struct.pack_into("<I", raw, self.layout.packed, packed)
        struct.pack_into("<Q", raw, self.layout.size, size)
        self.memory.put(self.table + slot * self.layout.row_size, bytes(raw))
        return slot

    def mark_freed(self, slot: int) -> None:
        at = self.table + slot * self.layout.row_size
        first = self.memory.peek(at, 1)[0]
        self.memory.put(at, bytes([first | 1]))


BIG_X64 = BIG_PAGE_LAYOUTS[-1]


def tag_value(text: str) -> int:
    return int.from_bytes(text.ljust(4).encode(), "little")
