"""Pool memory built field by field, by the numbers of the format and not by kdleak's tables."""

from __future__ import annotations

import struct
from typing import Dict, Iterator, List, Sequence, Tuple

import numpy as np

from kdleak.errors import MemoryUnreadable

PAGE = 0x1000
NONPAGED = 0xFFFF9A80_00000000
TAG = 0x6B61654C  # Leak


class Batch:
    def __init__(self, addresses: np.ndarray, data: np.ndarray) -> None:
        self.addresses = addresses
        self.data = data


class Scan:
    def __init__(self, batches: List[Batch], absent: int = 0, absent_tables: int = 0) -> None:
        self._batches = batches
        self.absent = absent
        self.absent_tables = absent_tables

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches)


class PagedMemory:
    """Whole pages by address; what was never put there is absent."""

    def __init__(self, pointer_size: int = 8) -> None:
        self.pages: Dict[int, bytearray] = {}
        self.kernel_half = (
            (0xFFFF8000_00000000, 1 << 64) if pointer_size == 8 else (0xFFFFFFFF_80000000, 1 << 64)
        )
        self.absent = 0
        self.absent_tables = 0
        self.reads = 0

    def put(self, address: int, data: bytes) -> None:
        """Write, making pages of zeros where there are none."""
        done = 0
        while done < len(data):
            at = address + done
            page = self.pages.setdefault(at - at % PAGE, bytearray(PAGE))
            length = min(PAGE - at % PAGE, len(data) - done)
            page[at % PAGE : at % PAGE + length] = data[done : done + length]
            done += length

    def remove(self, address: int) -> None:
        del self.pages[address]

    def read(self, address: int, size: int) -> bytes:
        self.reads += 1
        parts = []
        while size > 0:
            page = self.pages.get(address - address % PAGE)
            if page is None:
                raise MemoryUnreadable(address, size)
            part = bytes(page[address % PAGE : address % PAGE + size])
            parts.append(part)
            address, size = address + len(part), size - len(part)
        return b"".join(parts)

    def batches(
        self,
        start: int,
        end: int,
        pages: int = 512,
        *,
        skip: Sequence[Tuple[int, int]] = (),
        writable_only: bool = False,
    ) -> Scan:
        assert writable_only
        assert list(skip) == sorted(skip)
        chosen = [
            address
            for address in sorted(self.pages)
            if start <= address < end and not any(low <= address < high for low, high in skip)
        ]
        batches = []
        for first in range(0, len(chosen), pages):
            part = chosen[first : first + pages]
            data = np.frombuffer(b"".join(self.pages[one] for one in part), dtype=np.uint8)
            batches.append(Batch(np.array(part, dtype=np.uint64), data.reshape(-1, PAGE)))
        return Scan(batches, self.absent, self.absent_tables)


def header(
    size: int,
    kind: int,
    tag: int = TAG,
    *,
    previous: int = 0,
    index: int = 0,
    pointer_size: int = 8,
) -> bytes:
    """A POOL_HEADER; sizes in bytes."""
    unit = 2 * pointer_size
    if pointer_size == 8:
        raw = struct.pack("<4BI", previous // unit, index, size // unit, kind, tag)
        return raw + bytes(8)
    return struct.pack("<HHI", previous // unit | index << 9, size // unit | kind << 9, tag)


def chain_page(
    blocks: Sequence[Tuple[int, int, int]], *, pointer_size: int = 8, fill: int = 0
) -> bytes:
    """A page of blocks (size, PoolType, tag), each header linked to the one before."""
    parts = []
    previous = 0
    for size, kind, tag in blocks:
        head = header(size, kind, tag, previous=previous, pointer_size=pointer_size)
        parts.append(head + bytes([fill]) * (size - len(head)))
        previous = size
    page = b"".join(parts)
    assert len(page) == PAGE
    return page


class SegmentHeapMachine:
    """nt!ExPoolState with one node, one heap and one segment; subsegments are added to it.

    The numbers are those of the format, by build and pointer size.
    """

    def __init__(
        self, memory: PagedMemory, build: int, *, heap_key: int, lfh_key: int, pointer_size: int = 8
    ) -> None:
        self.memory = memory
        self.width = pointer_size
        wide = pointer_size == 8
        self.key, self.lfh_key = heap_key, lfh_key
        if not wide:
            pools, nodes, contexts = 0x1C70, 0x1C80, 0x100
        elif build < 20000:
            pools, nodes, contexts = 0x38D0, 0x3900, 0x100
        elif build < 26100:
            pools, nodes, contexts = 0x38E0, 0x3900, 0x140
        elif build < 28000:
            pools, nodes, contexts = 0x3910, 0x3940, 0x140
        else:
            pools, nodes, contexts = 0x3974, 0x3980, 0x140
        self.constant = 0 if wide and build >= 26100 else 0xA2E64EADA2E64EAD
        self.bitmap = (0x40 if build >= 26100 else 0x30) if wide else 0x20
        top = 0xFFFFF800_00000000 if wide else 0xFFFFFFFF_81000000
        self.state, self.globals, self.heap = top + 0x100000, top + 0x300000, top + 0x400000
        self.segment = (NONPAGED if wide else 0xFFFFFFFF_90000000) + 0x100000
        self.context = self.heap + contexts
        memory.put(self.state, bytes(0x90000))
        self.pointer(self.state, self.globals)
        memory.put(self.state + pools, struct.pack("<I", 1))
        for index in range(4):
            self.pointer(self.state + nodes + index * self.width, self.heap)
        self.pointer(self.globals, heap_key)
        self.pointer(self.globals + self.width, lfh_key)
        memory.put(self.heap, bytes(0x1000))
        memory.put(self.heap + (0x10 if wide else 0x08), struct.pack("<I", 0xDDEEDDEE))
        memory.put(self.context + (0x8 if wide else 0x4), bytes([12]))
        memory.put(self.context + (0xA if wide else 0x6), bytes([2]))
        self.list_head = self.context + (0x48 if wide else 0x44)
        second = self.list_head + (0xC0 if wide else 0x80)
        self.pointer(second, second)
        self.link([self.segment])
        self.put_segment(self.segment)

    def pointer(self, address: int, value: int) -> None:
        mask = (1 << 8 * self.width) - 1
        self.memory.put(address, (value & mask).to_bytes(self.width, "little"))

    def link(self, segments: Sequence[int]) -> None:
        """Make the context's list of segments."""
        ring = [self.list_head, *segments]
        for index, at in enumerate(ring):
            self.pointer(at, ring[(index + 1) % len(ring)])
            self.pointer(at + self.width, ring[index - 1])

    def put_segment(self, address: int, *, signature: int = 0) -> None:
        value = signature or self.key ^ address ^ self.constant ^ self.context
        self.pointer(address + 2 * self.width, value)
        self.memory.put(address + 0x1FFF, b"\0")  # 256 descriptors fill two pages on x64

    def add_range(self, index: int, flags: int, units: int) -> int:
        """Describe a range of the segment; returns where it begins."""
        stride, at, size = (0x20, 0x18, 0x1F) if self.width == 8 else (0x10, 0xC, 0xF)
        row = self.segment + index * stride
        self.memory.put(row + at, bytes([flags]))
        self.memory.put(row + size, bytes([units]))
        return self.segment + index * PAGE

    def add_vs(self, index: int, units: int, chunks: Sequence[Tuple[int, bool]]) -> List[int]:
        """A VS subsegment; chunks are (size in bytes, in use). Returns their addresses."""
        wide = self.width == 8
        start = self.add_range(index, 0xF, units)
        self.memory.put(start, bytes(units * PAGE))
        size = units * PAGE // 16
        self.memory.put(start + (0x20 if wide else 0x14), struct.pack("<HH", size, size ^ 0x2BED))
        at, previous = start + (0x30 if wide else 0x18), 0
        found = []
        for bytes_, allocated in chunks:
            self.put_chunk(at, bytes_, previous, allocated=allocated)
            found.append(at)
            at, previous = at + bytes_, bytes_
        return found

    def put_chunk(self, at: int, size: int, previous: int, *, allocated: bool) -> None:
        if self.width == 8:
            value = 7 | size // 16 << 16 | previous // 16 << 32 | allocated << 48
        else:
            value = 1 | size // 8 << 1 | previous // 8 << 16 | allocated << 31
        self.pointer(at, value ^ at ^ self.key)

    def add_lfh(self, index: int, units: int, size: int, first: int, states: Sequence[int]) -> int:
        """An LFH subsegment with two bits for each block. Returns its address."""
        start = self.add_range(index, 0xB, units)
        self.memory.put(start, bytes(units * PAGE))
        encoded = (first << 16 | size) ^ (self.lfh_key & 0xFFFFFFFF) ^ (start >> 12 & 0xFFFFFFFF)
        self.memory.put(start + (0x28 if self.width == 8 else 0x18), struct.pack("<I", encoded))
        bits = sum(state << 2 * number for number, state in enumerate(states))
        self.memory.put(start + self.bitmap, bits.to_bytes(len(states) // 4 + 1, "little"))
        return start
