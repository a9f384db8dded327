"""A kernel's memory built field by field: an image, its variables, tag tables, big pages.

Written from the published layouts of the structures, not from kdleak's own tables of them.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass

from kdleak.errors import MemoryUnreadable
from kdleak.nt.pe import Image, read_image

PAGE = 0x1000


@dataclass(frozen=True)
class Windows:
    """How one Windows version lays its pool tables out.

    ``row`` names the offset of every counter: nonpaged allocs, frees, bytes, paged allocs, frees,
    bytes, each with its struct format. ``big`` are the offsets in a big page row.
    """

    build: int
    width: int
    row_size: int
    row: tuple[tuple[int, str], ...]
    big_size: int
    big_key: int
    big_bytes: tuple[int, str]
    machine: int = 0x8664
    in_pages: bool = False
    wide_hash: bool = False


_OLD64 = ((0x04, "I"), (0x08, "I"), (0x10, "Q"), (0x18, "I"), (0x1C, "I"), (0x20, "Q"))
_NEW64 = ((0x10, "Q"), (0x18, "Q"), (0x08, "Q"), (0x28, "Q"), (0x30, "Q"), (0x20, "Q"))
_OLD32 = ((0x04, "I"), (0x08, "I"), (0x0C, "I"), (0x10, "I"), (0x14, "I"), (0x18, "I"))
_NEW32 = ((0x08, "Q"), (0x10, "Q"), (0x04, "I"), (0x20, "Q"), (0x28, "Q"), (0x18, "I"))

VERSIONS = {
    "xp-x86": Windows(2600, 4, 0x1C, _OLD32, 0x0C, 4, (8, "I"), 0x14C, in_pages=True),
    "win7-x86": Windows(7601, 4, 0x1C, _OLD32, 0x10, 4, (0xC, "I"), 0x14C),
    "win10-x86": Windows(19045, 4, 0x30, _NEW32, 0x10, 4, (0xC, "I"), 0x14C),
    "2003-x64": Windows(3790, 8, 0x28, _OLD64, 0x18, 8, (0xC, "I"), in_pages=True),
    "win7-x64": Windows(7601, 8, 0x28, _OLD64, 0x18, 8, (0x10, "Q")),
    "win10-1703-x64": Windows(15063, 8, 0x28, _OLD64, 0x18, 8, (0x10, "Q")),
    "win10-x64": Windows(19045, 8, 0x38, _NEW64, 0x18, 8, (0x10, "Q")),
    "win10-arm64": Windows(19041, 8, 0x38, _NEW64, 0x18, 8, (0x10, "Q"), 0xAA64),
    "win11-x64": Windows(22631, 8, 0x50, _NEW64, 0x20, 8, (0x10, "Q")),
    "win11-24h2-arm64": Windows(26100, 8, 0x50, _NEW64, 0x20, 8, (0x10, "Q"), 0xAA64, False, True),
}


def mix(value: int) -> int:
    product = value * 40543 & 0xFFFF_FFFF_FFFF_FFFF
    return (product & 0xFFFF_FFFF) ^ (product >> 32)


class Pages:
    """Memory page by page; what is not there cannot be read."""

    def __init__(self, width: int) -> None:
        self.pages: dict[int, bytearray] = {}
        self.reads = 0
        self._mask = (1 << 8 * width) - 1

    def put(self, address: int, data: bytes) -> None:
        address &= self._mask
        for index in range(0, len(data), PAGE):
            self._put(address + index, data[index : index + PAGE])

    def _put(self, address: int, data: bytes) -> None:
        offset = address % PAGE
        first = min(PAGE - offset, len(data))
        page = self.pages.setdefault(address // PAGE, bytearray(PAGE))
        page[offset : offset + first] = data[:first]
        if first < len(data):
            self._put(address + first, data[first:])

    def drop(self, address: int) -> None:
        self.pages.pop((address & self._mask) // PAGE, None)

    def read(self, address: int, size: int) -> bytes:
        self.reads += 1
        at, found = address & self._mask, bytearray()
        while len(found) < size:
            page = self.pages.get(at // PAGE)
            if page is None:
                raise MemoryUnreadable(address + len(found), size)
            part = page[at % PAGE : at % PAGE + size - len(found)]
            found += part
            at += len(part)
        return bytes(found)


class BuiltKernel:
    """nt with filled pool tables.

    Attributes:
        memory: all of it.
        sums: tag text to the six counters over all processors.
        at: variable name, without ``nt!``, to address.
        tables: the tag tables.
    """

    DATA = 0x2000  # of the image: where .data begins
    DATA_SIZE = 0x8000

    def __init__(
        self,
        windows: Windows,
        processors: int = 3,
        mask: int = 0x7FF,
        tags: int = 300,
        big_rows: int = 0x800,
        seed: int = 1,
    ) -> None:
        self.windows = windows
        self.processors = processors
        self.mask = mask
        self.rng = random.Random(seed)
        self.memory = Pages(windows.width)
        high = 0xFFFF_FFFF_0000_0000 if windows.width == 4 else 0
        self.base = high | 0x8040_0000 if high else 0xFFFF_F806_1240_0000
        self._next = high | 0x8800_0000 if high else 0xFFFF_C80A_4000_0000
        self._image()
        variables = self.base + self.DATA
        self.at = {
            "PoolTrackTableSize": variables + 0x340,
            "PoolTrackTableMask": variables + 0x350,
            "PoolBigPageTableSize": variables + 0x368,
            "PoolTrackTable": variables + 0x1A60,
            "PoolBigPageTable": variables + 0x1A88,
            "ExPoolTagTables": variables + 0x3000,
        }
        self._noise()
        self.sums: dict[str, list[int]] = {}
        self._keys: dict[int, int] = {}
        # XP has one table for all processors.
        count = 1 if windows.build == 2600 else processors
        self.tables = [self._table() for _ in range(count)]
        self._fill(tags)
        if windows.build == 2600:
            del self.at["ExPoolTagTables"]
        else:
            for slot, table in enumerate(self.tables):
                self.set("ExPoolTagTables", table, slot)
        self.set("PoolTrackTable", self.tables[0])
        self.set("PoolTrackTableSize", mask + 2)
        self.set("PoolTrackTableMask", mask)
        self.big_rows = big_rows
        self.big_table = self._big_pages()
        self.set("PoolBigPageTable", self.big_table)
        self.set("PoolBigPageTableSize", big_rows)

    # -- the image

    def _image(self) -> None:
        wide = self.windows.width == 8
        size = self.DATA + self.DATA_SIZE
        head = bytearray(0x400)
        struct.pack_into("<2s58xI", head, 0, b"MZ", 0x80)
        optional_size = 0xF0 if wide else 0xE0
        struct.pack_into(
            "<4sHHIIIHH", head, 0x80, b"PE\0\0", self.windows.machine, 2, 0x5000_0000, 0, 0,
            optional_size, 0x22,
        )  # fmt: skip
        struct.pack_into("<H", head, 0x98, 0x20B if wide else 0x10B)
        struct.pack_into("<I", head, 0x98 + 0x38, size)
        struct.pack_into("<I", head, 0x98 + (0x6C if wide else 0x5C), 0)
        for index, (name, rva, length, flags) in enumerate(
            ((b".text", 0x1000, 0x1000, 0x6000_0020), (b".data", self.DATA, self.DATA_SIZE,
             0xC000_0040))
        ):  # fmt: skip
            at = 0x98 + optional_size + 40 * index
            struct.pack_into("<8sIIII12xI", head, at, name, length, rva, length, 0x400, flags)
        self.memory.put(self.base, bytes(head))
        self.memory.put(self.base + 0x1000, bytes([0xCC]) * 0x1000)
        self.memory.put(self.base + self.DATA, bytes(self.DATA_SIZE))

    @property
    def image(self) -> Image:
        found = read_image(self.memory, self.base)
        assert found is not None
        return found

    def _noise(self) -> None:
        """Other variables: numbers, pointers to nowhere, to zeros and to something else."""
        for index in range(0x60):
            at = self.base + self.DATA + 0x4000 + index * self.windows.width
            value = self.rng.choice(
                (0x800, 0x1000, 5, 0, self._next + 0x100_0000 * index, self.base)
            )
            self.word(at, value)
        zeros = self.allocate(bytes(4 * PAGE))
        other = self.allocate(self.rng.randbytes(8 * PAGE))
        for index, value in enumerate((zeros, other)):
            self.word(self.base + self.DATA + 0x7000 + 0x40 * index, value)

    # -- memory

    def allocate(self, data: bytes) -> int:
        address = self._next
        self._next += -(-len(data) // PAGE) * PAGE + PAGE
        self.memory.put(address, data)
        return address

    def word(self, address: int, value: int) -> None:
        width = self.windows.width
        self.memory.put(address, (value & ((1 << 8 * width) - 1)).to_bytes(width, "little"))

    def set(self, name: str, value: int, slot: int = 0) -> None:
        self.word(self.at[name] + slot * self.windows.width, value)

    # -- the tag tables

    def _table(self) -> int:
        return self.allocate(bytes((self.mask + 2) * self.windows.row_size))

    def _fill(self, tags: int) -> None:
        letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
        for number in range(tags):
            text = "".join(self.rng.choices(letters, k=4))
            if text in self.sums:
                continue
            key = int.from_bytes(text.encode(), "little")
            row = mix(key) & self.mask
            while row in self._keys:
                row = (row + 1) & self.mask
            self._keys[row] = key
            self.sums[text] = [0] * 6
            for processor, table in enumerate(self.tables):
                if processor and number % 3 == 0:
                    continue  # this tag was never used there
                self._row(table + row * self.windows.row_size, key, text, processor)

    def _row(self, at: int, key: int, text: str, processor: int) -> None:
        self.memory.put(at, struct.pack("<I", key))
        allocs = self.rng.randrange(100, 1000)
        values = [
            allocs,
            allocs // 3 + processor,
            64 * allocs,
            allocs + 7,
            allocs // 2,
            96 * allocs,
        ]
        for index, ((offset, form), value) in enumerate(zip(self.windows.row, values, strict=True)):
            self.memory.put(at + offset, struct.pack("<" + form, value))
            self.sums[text][index] += value

    # -- the big pages

    def _big_pages(self) -> int:
        windows = self.windows
        rows = bytearray(windows.big_size * self.big_rows)
        never = 0 if windows.build < 6000 else 1
        pointer = "<I" if windows.width == 4 else "<Q"
        for index in range(self.big_rows):
            struct.pack_into(pointer, rows, index * windows.big_size, never)
        used: set[int] = set()
        area = 0x9000_0000 if windows.width == 4 else 0xFFFF_9A0C_1000_0000
        for number in range(self.big_rows // 3):
            address = area + PAGE * self.rng.randrange(0x1000 * (number + 1))
            if windows.width == 4:
                address = area + PAGE * (number * 7 % 0x10000)
            slot = self.big_slot(address)
            while slot in used:
                slot = (slot + 1) & (self.big_rows - 1)
            used.add(slot)
            at = slot * windows.big_size
            freed = number % 10 == 0
            struct.pack_into(pointer, rows, at, address | freed)
            rows[at + windows.big_key : at + windows.big_key + 4] = b"Big" + bytes(
                [48 + number % 10]
            )
            offset, form = windows.big_bytes
            pages = 1 + number % 5
            struct.pack_into(
                "<" + form, rows, at + offset, pages if windows.in_pages else pages * PAGE
            )
        return self.allocate(bytes(rows))

    def big_slot(self, address: int) -> int:
        page = address // PAGE
        if self.windows.build < 10240:
            page &= 0xFFFF_FFFF
            found = page >> 24 ^ page >> 16 ^ page >> 8 ^ page
        else:
            found = mix(page if self.windows.wide_hash else page & 0xFFFF_FFFF)
        return found & (self.big_rows - 1)
