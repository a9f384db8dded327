"""Contents of a small memory dump (triage): blocks of virtual memory and a list of drivers.

Such a dump has no physical pages and no page tables: memory is read by address in the blocks that
Windows chose, which are the stack of the crashing thread and what the registers pointed at. Source:
TRIAGE_DUMP32 and TRIAGE_DUMP64 of the public crash dump definitions; every ``Offset`` in them is a
32-bit offset from the start of the file.
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from construct import Container, Int32ul, Int64ul, Pointer, Struct

from kdleak.dump.header import FILL32, DumpHeader
from kdleak.errors import MemoryUnreadable, TargetError

NO_POOL_TABLES = (
    "A small memory dump holds no pool tables: which tags hold the pool cannot be told from it."
)

# Windows writes some hundred of either; a damaged count must not cost more than this.
MOST_DRIVERS = 4096
MOST_BLOCKS = 1 << 16
_MOST_NAME = 512

# Real ones have some hundred kilobytes.
_COPIED = 16 << 20

_VALID = b"TRGD"
_OVERFLOWED = 0x100

_COMMON = (
    "service_pack_build" / Pointer(0x00, Int32ul),
    "size_of_dump" / Pointer(0x04, Int32ul),
    "valid" / Pointer(0x08, Int32ul),
    "context" / Pointer(0x0C, Int32ul),
    "exception" / Pointer(0x10, Int32ul),
    "mm" / Pointer(0x14, Int32ul),
    "unloaded_drivers" / Pointer(0x18, Int32ul),
    "prcb" / Pointer(0x1C, Int32ul),
    "process" / Pointer(0x20, Int32ul),
    "thread" / Pointer(0x24, Int32ul),
    "stack" / Pointer(0x28, Int32ul),
    "stack_size" / Pointer(0x2C, Int32ul),
    "drivers" / Pointer(0x30, Int32ul),
    "driver_count" / Pointer(0x34, Int32ul),
    "strings" / Pointer(0x38, Int32ul),
    "strings_size" / Pointer(0x3C, Int32ul),
    "broken_driver" / Pointer(0x40, Int32ul),
    "options" / Pointer(0x44, Int32ul),
)

TRIAGE32 = Struct(
    *_COMMON,
    "top_of_stack" / Pointer(0x48, Int32ul),
    "data_page_address" / Pointer(0x4C, Int32ul),
    "data_page" / Pointer(0x50, Int32ul),
    "data_page_size" / Pointer(0x54, Int32ul),
    "debugger_data" / Pointer(0x58, Int32ul),
    "debugger_data_size" / Pointer(0x5C, Int32ul),
    "blocks" / Pointer(0x60, Int32ul),
    "block_count" / Pointer(0x64, Int32ul),
)

TRIAGE64 = Struct(
    *_COMMON,
    "top_of_stack" / Pointer(0x48, Int64ul),
    "data_page_address" / Pointer(0x60, Int64ul),
    "data_page" / Pointer(0x68, Int32ul),
    "data_page_size" / Pointer(0x6C, Int32ul),
    "debugger_data" / Pointer(0x70, Int32ul),
    "debugger_data_size" / Pointer(0x74, Int32ul),
    "blocks" / Pointer(0x78, Int32ul),
    "block_count" / Pointer(0x7C, Int32ul),
)
_SUB_HEADER_SIZE = 0x80

_DATA_BLOCK = struct.Struct("<QII")


@dataclass(frozen=True)
class _DriverLayout:
    """Where a driver entry has its fields: name offset, then KLDR_DATA_TABLE_ENTRY.

    Attributes:
        strides: sizes of an entry, newest Windows first.
        pointer: format of a pointer.
        base: offset of DllBase in the entry.
        entry_point: offset of EntryPoint.
        size: offset of SizeOfImage.
        timestamp: offset of TimeDateStamp, in entries of the newest size only.
    """

    strides: tuple[int, ...]
    pointer: str
    base: int
    entry_point: int
    size: int
    timestamp: int


_DRIVERS = {
    4: _DriverLayout((0x60, 0x5C, 0x58, 0x54), "<I", 0x1C, 0x20, 0x24, 0x5C),
    8: _DriverLayout((0xA8, 0xA0, 0x98), "<Q", 0x38, 0x40, 0x48, 0xA4),
}


@dataclass(frozen=True)
class TriageDriver:
    """A driver that was loaded.

    Attributes:
        name: file name as the dump has it; untrusted text.
        base: load address, sign-extended.
        size: bytes of address space.
        entry_point: address, 0 where there is none.
        timestamp: TimeDateStamp of its PE header, 0 where the dump does not say.
    """

    name: str
    base: int
    size: int
    entry_point: int = 0
    timestamp: int = 0


@dataclass(frozen=True)
class TriageBlock:
    """A piece of the target's memory in the dump.

    Attributes:
        address: of its first byte, sign-extended.
        size: bytes.
        offset: in the file.
    """

    address: int
    size: int
    offset: int


class TriageContents:
    """What a small memory dump holds; also a reader of virtual memory over its blocks.

    Attributes:
        drivers: loaded drivers, in load order.
        broken_driver: name of the driver Windows blamed, "" where it blamed none; untrusted.
        stack_address: address of the innermost byte of the stack; 0 where it is not there.
        stack: its bytes.
        prcb: copy of the processor's KPRCB, up to the next part of the dump; may be empty.
        process: copy of the EPROCESS, likewise.
        thread: copy of the ETHREAD, likewise.
        debugger_data: copy of KDDEBUGGER_DATA64; may be empty.
        blocks: memory that can be read, ascending, without overlaps.
    """

    def __init__(
        self, data: memoryview, header: DumpHeader, fields: Container, remarks: list[str]
    ) -> None:
        self._data = data
        self._pointer_size = header.pointer_size
        self.drivers = tuple(_drivers(data, header, fields, remarks))
        self.broken_driver = _name(data, fields.broken_driver)
        self.stack_address = _sign_extend(fields.top_of_stack, header.pointer_size)
        self.stack = _part(data, fields.stack, fields.stack_size)
        if not self.stack:
            self.stack_address = 0
        starts = sorted({value for value in fields.values() if isinstance(value, int)})
        self.prcb = _copy(data, fields.prcb, starts)
        self.process = _copy(data, fields.process, starts)
        self.thread = _copy(data, fields.thread, starts)
        self.debugger_data = _part(data, fields.debugger_data, fields.debugger_data_size)
        self.blocks = _without_overlaps(_blocks(data, header, fields, remarks))
        self._starts = [block.address for block in self.blocks]

    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes of the target's virtual memory.

        Raises:
            MemoryUnreadable: the dump does not have all of it; ``address`` is the first such byte.
        """
        at = _sign_extend(address, self._pointer_size)
        parts: list[memoryview] = []
        left = size
        while left > 0:
            index = bisect.bisect_right(self._starts, at) - 1
            block = self.blocks[index] if index >= 0 else None
            if block is None or at >= block.address + block.size:
                raise MemoryUnreadable(at, size, "this small memory dump does not hold it")
            inside = at - block.address
            count = min(left, block.size - inside)
            start = block.offset + inside
            parts.append(self._data[start : start + count])
            at += count
            left -= count
        return b"".join(parts)


def read_triage(data: memoryview, header: DumpHeader, remarks: list[str]) -> TriageContents:
    """The contents of a small memory dump.

    Args:
        data: the whole file.
        header: its header.
        remarks: gets a sentence for each thing that is odd or missing.

    Raises:
        TargetError: the file ends inside the list of contents.
    """
    raw = bytes(data[header.size : header.size + _SUB_HEADER_SIZE])
    if len(raw) < _SUB_HEADER_SIZE:
        raise TargetError(
            "reading the contents of the small memory dump",
            f"the file ends behind its header ({len(data)} bytes)",
            "copy the dump again and compare the size with the original",
        )
    if len(data) <= _COPIED:
        data = memoryview(bytes(data))  # its parts may outlive the open file
    fields = (TRIAGE64 if header.pointer_size == 8 else TRIAGE32).parse(raw)
    for name, value in fields.items():
        if value == FILL32:
            fields[name] = 0
    remarks.append(NO_POOL_TABLES)
    if fields.size_of_dump > len(data):
        remarks.append(f"The file is cut off: it has {len(data)} of {fields.size_of_dump} bytes.")
    elif bytes(data[fields.valid : fields.valid + 4]) != _VALID:
        remarks.append("The mark at the end of the small memory dump is missing or damaged.")
    if fields.options & _OVERFLOWED:
        remarks.append("Windows had no room for all it wanted to put into the small memory dump.")
    return TriageContents(data, header, fields, remarks)


def _sign_extend(value: int, pointer_size: int) -> int:
    if pointer_size == 8:
        return value
    value &= 0xFFFFFFFF
    return value | 0xFFFFFFFF00000000 if value & 0x80000000 else value


def _part(data: memoryview, offset: int, size: int) -> memoryview:
    return data[offset : offset + size] if offset else data[:0]


def _copy(data: memoryview, offset: int, starts: list[int]) -> memoryview:
    """A part whose size the dump does not say: it ends where the next one begins, at the latest."""
    if not offset:
        return data[:0]
    following = bisect.bisect_right(starts, offset)
    end = starts[following] if following < len(starts) else len(data)
    return data[offset : min(end, offset + 0x10000)]


def _name(data: memoryview, offset: int) -> str:
    """A DUMP_STRING: a 32-bit length, then UTF-16 with a NUL.

    Readers disagree whether the length counts bytes or characters: the NUL ends it in both.
    """
    if not offset or offset + 4 > len(data):
        return ""
    length = int.from_bytes(data[offset : offset + 4], "little")
    raw = bytes(data[offset + 4 : offset + 4 + 2 * min(length, _MOST_NAME)])
    return raw.decode("utf-16-le", "replace").split("\0", 1)[0]


def _drivers(
    data: memoryview, header: DumpHeader, fields: Container, remarks: list[str]
) -> Iterator[TriageDriver]:
    claimed = fields.driver_count
    if not claimed or not fields.drivers:
        return
    layout = _DRIVERS[header.pointer_size]
    count = min(claimed, MOST_DRIVERS)
    stride = _stride(data, fields, layout, count)
    at = fields.drivers
    found = 0
    while found < count and at + stride <= len(data):
        entry = data[at : at + stride]
        timestamp = 0
        if stride == layout.strides[0]:
            timestamp = struct.unpack_from("<I", entry, layout.timestamp)[0]
        base, entry_point = (
            _sign_extend(struct.unpack_from(layout.pointer, entry, place)[0], header.pointer_size)
            for place in (layout.base, layout.entry_point)
        )
        size = struct.unpack_from("<I", entry, layout.size)[0]
        name = _name(data, struct.unpack_from("<I", entry)[0])
        yield TriageDriver(name, base, size, entry_point, timestamp)
        found += 1
        at += stride
    if found < claimed:
        remarks.append(f"The dump claims {claimed} drivers; {found} are in it.")


def _stride(data: memoryview, fields: Container, layout: _DriverLayout, count: int) -> int:
    """Bytes of a driver entry: it grew with Windows, and the dump does not say.

    The right size is the one at which every entry's name offset leads into the string pool.
    """
    start, end = fields.strings, fields.strings + fields.strings_size

    def fits(stride: int) -> int:
        last = (len(data) - 4 - fields.drivers) // stride
        offsets = (
            struct.unpack_from("<I", data, fields.drivers + index * stride)[0]
            for index in range(min(count, last + 1, 64))
        )
        return sum(start <= offset < end for offset in offsets)

    return max(layout.strides, key=fits)


def _blocks(
    data: memoryview, header: DumpHeader, fields: Container, remarks: list[str]
) -> Iterator[TriageBlock]:
    short = 0

    def block(address: int, offset: int, size: int) -> Iterator[TriageBlock]:
        nonlocal short
        here = min(size, max(len(data) - offset, 0))
        short += here < size
        address = _sign_extend(address, header.pointer_size)
        here = min(here, (1 << 64) - address)
        if here and offset:
            yield TriageBlock(address, here, offset)

    if header.debugger_data:
        yield from block(header.debugger_data, fields.debugger_data, fields.debugger_data_size)
    yield from block(fields.top_of_stack, fields.stack, fields.stack_size)
    yield from block(fields.data_page_address, fields.data_page, fields.data_page_size)
    claimed = fields.block_count if fields.blocks else 0
    room = max(len(data) - fields.blocks, 0) // _DATA_BLOCK.size
    count = min(claimed, room, MOST_BLOCKS)
    end = fields.blocks + count * _DATA_BLOCK.size
    for address, offset, size in _DATA_BLOCK.iter_unpack(data[fields.blocks : end]):
        yield from block(address, offset, size)
    if count < claimed:
        remarks.append(f"The dump claims {claimed} blocks of memory; {count} of them are listed.")
    if short:
        remarks.append(f"{short} blocks of memory in the dump are cut off by the end of the file.")


def _without_overlaps(blocks: Iterator[TriageBlock]) -> tuple[TriageBlock, ...]:
    """Ascending; where two blocks have the same byte, the one that begins first keeps it."""
    found: list[TriageBlock] = []
    end = 0
    for block in sorted(blocks, key=lambda block: block.address):
        skip = min(max(end - block.address, 0), block.size)
        if block.size > skip:
            kept = TriageBlock(block.address + skip, block.size - skip, block.offset + skip)
            found.append(kept)
            end = block.address + block.size
    return tuple(found)
