"""KDDEBUGGER_DATA64 ("KDBG"): the block in which the kernel tells a debugger where things are."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from kdleak.errors import MemoryUnreadable
from kdleak.nt.memory import MemoryReader

OWNER_TAG = 0x4742444B
"""``KDBG`` as it lies at offset 0x10 of the block."""

_TAG_BYTES = b"KDBG"
_SMALLEST, _LARGEST = 0x208, 0x1000
_LONGEST_LIST = 64

# Offsets of the fields used here; all are u64, sign-extended on 32-bit targets. Most are the
# address of the kernel's variable of that name; KernBase and PteBase are values.
FIELDS = {
    "KernBase": 0x018,
    "BreakpointWithStatus": 0x020,
    "PsLoadedModuleList": 0x048,
    "PsActiveProcessHead": 0x050,
    "ExpPagedPoolDescriptor": 0x068,
    "ExpNumberOfPagedPools": 0x070,
    "KiBugcheckData": 0x088,
    "MmSystemPtesStart": 0x0C8,
    "MmSystemPtesEnd": 0x0D0,
    "MmPfnDatabase": 0x0C0,
    "MmLowestPhysicalPage": 0x0E8,
    "MmHighestPhysicalPage": 0x0F0,
    "MmNumberOfPhysicalPages": 0x0F8,
    "MmMaximumNonPagedPoolInBytes": 0x100,
    "MmNonPagedSystemStart": 0x108,
    "MmNonPagedPoolStart": 0x110,
    "MmNonPagedPoolEnd": 0x118,
    "MmPagedPoolStart": 0x120,
    "MmPagedPoolEnd": 0x128,
    "MmPagedPoolInformation": 0x130,
    "MmSizeOfPagedPoolInBytes": 0x140,
    "MmTotalCommitLimit": 0x148,
    "MmTotalCommittedPages": 0x150,
    "MmAvailablePages": 0x1A8,
    "MmResidentAvailablePages": 0x1B0,
    "PoolTrackTable": 0x1B8,
    "NonPagedPoolDescriptor": 0x1C0,
    "MmHighestUserAddress": 0x1C8,
    "MmSystemRangeStart": 0x1D0,
    "NtBuildLab": 0x208,
    "KiProcessorBlock": 0x218,
    "MmUnloadedDrivers": 0x220,
    "MmLastUnloadedDriver": 0x228,
    "MmSpecialPoolTag": 0x238,
    "MmAllocatedNonPagedPool": 0x250,
    "MmPhysicalMemoryBlock": 0x270,
    "MmSessionBase": 0x278,
    "MmSessionSize": 0x280,
    "KeLoaderBlock": 0x2D8,
    "PteBase": 0x360,
}

_FLAGS = 0x036  # u16: bit 0 PaeEnabled, bits 2-5 PagingLevels


@dataclass(frozen=True)
class EncodingKeys:
    """What the block of a system booted without debugging is encoded with (x64, Windows 8 on).

    Attributes:
        wait_never: value of nt!KiWaitNever, a u64.
        wait_always: value of nt!KiWaitAlways, a u64.
        encoded_flag: address of nt!KdpDataBlockEncoded.
    """

    wait_never: int
    wait_always: int
    encoded_flag: int

    def decode(self, word: int) -> int:
        """One u64 of the block as it was before it was encoded."""
        word = _rotate_left(word ^ self.wait_never, self.wait_never & 0x3F) ^ self.encoded_flag
        return _byteswap(word) ^ self.wait_always

    def encode(self, word: int) -> int:
        """One u64 of the block as it lies in memory."""
        word = _byteswap(word ^ self.wait_always) ^ self.encoded_flag
        return _rotate_left(word, -self.wait_never & 0x3F) ^ self.wait_never

    def decode_bytes(self, raw: bytes) -> bytes:
        """Whole words of the block."""
        words = struct.unpack(f"<{len(raw) // 8}Q", raw)
        return struct.pack(f"<{len(words)}Q", *map(self.decode, words))


def _rotate_left(word: int, count: int) -> int:
    return (word << count | word >> (64 - count)) & 0xFFFF_FFFF_FFFF_FFFF


def _byteswap(word: int) -> int:
    return int.from_bytes(word.to_bytes(8, "little"), "big")


class RangeReader(MemoryReader, Protocol):
    """Memory of which the present parts of a range can be had (``VirtualMemory``)."""

    def available(self, address: int, size: int) -> Iterator[tuple[int, memoryview]]:
        """(address, bytes) of each part that is there, ascending."""


@dataclass(frozen=True)
class DebuggerData:
    """The block as read.

    Attributes:
        address: where it lies.
        raw: its bytes, as many as its own size field says.
    """

    address: int
    raw: bytes

    def field(self, name: str) -> int:
        """A field of ``FIELDS``; 0 when this kernel's block is too short to have it."""
        offset = FIELDS[name]
        if offset + 8 > len(self.raw):
            return 0
        value: int = struct.unpack_from("<Q", self.raw, offset)[0]
        return value

    @property
    def pae_enabled(self) -> bool:
        """Whether a 32-bit target runs with PAE."""
        return bool(self._flags & 1)

    @property
    def paging_levels(self) -> int:
        """Levels of the page tables, 4 or 5; 0 on kernels that do not say."""
        return self._flags >> 2 & 0xF

    @property
    def _flags(self) -> int:
        return int.from_bytes(self.raw[_FLAGS : _FLAGS + 2], "little")


def find_debugger_data(memory: MemoryReader, address: int) -> DebuggerData | None:
    """Find the block from what the target names as DebuggerDataList.

    The address is that of a list head whose links lead to the block; some targets give the
    block itself.

    Returns:
        None when neither leads to a block with the right tag and a sane size (its contents are
        encoded on a system that was booted without debugging).
    """
    if not address:
        return None
    at = address
    for _ in range(_LONGEST_LIST):
        try:
            header = memory.read(at, 0x18)
        except MemoryUnreadable:
            header = b""
        if _sane(header):
            return _read_block(memory, at, _size(header))
        try:
            at = struct.unpack("<Q", memory.read(at, 8))[0]
        except MemoryUnreadable:
            return None
        if at in (0, address):
            return None
    return None


def decode_debugger_data(
    memory: MemoryReader, address: int, keys: EncodingKeys
) -> DebuggerData | None:
    """The block at ``address``, plain or encoded with these keys.

    Returns:
        None when it is neither, or not there.
    """
    try:
        header = memory.read(address, 0x18)
        if _sane(header):
            return _read_block(memory, address, _size(header))
        header = keys.decode_bytes(header)
        if not _sane(header):
            return None
        # The kernel encodes whole words; the last one of an odd size would be incomplete.
        raw = memory.read(address, _size(header) & ~7)
    except MemoryUnreadable:
        return None
    return DebuggerData(address, keys.decode_bytes(raw))


def scan_debugger_data(
    memory: RangeReader,
    ranges: Iterable[tuple[int, int]],
    pointer_size: int,
    keys: EncodingKeys | None = None,
) -> DebuggerData | None:
    """Look for the block in ranges of memory: writable sections of nt, pool, the kernel's half.

    A block counts when it has the tag, a sane size, and links that lead into the kernel.

    Args:
        memory: reads the target.
        ranges: (start, end) of each.
        pointer_size: bytes, 4 or 8; the kernel's half begins at half the address space.
        keys: finds an encoded block as well; it is then returned decoded.
    """
    lowest = 1 << 63 if pointer_size == 8 else 0xFFFF_FFFF_8000_0000
    patterns = [re.compile(_TAG_BYTES)]
    if keys is not None:
        words = (keys.encode(OWNER_TAG | size << 32) for size in range(_SMALLEST, _LARGEST + 1, 8))
        packed = [re.escape(struct.pack("<Q", word)) for word in words]
        patterns.append(re.compile(b"|".join(packed)))
    for start, end in ranges:
        for at, part in memory.available(start, end - start):
            for pattern in patterns:
                for hit in pattern.finditer(part):
                    found = _block_at(memory, at + hit.start() - 0x10, lowest, keys)
                    if found is not None:
                        return found
    return None


def _block_at(
    memory: MemoryReader, address: int, lowest: int, keys: EncodingKeys | None
) -> DebuggerData | None:
    if address % 4:
        return None
    if keys is not None:
        found = decode_debugger_data(memory, address, keys)
    else:
        try:
            header = memory.read(address, 0x18)
        except MemoryUnreadable:
            return None
        found = _read_block(memory, address, _size(header)) if _sane(header) else None
    if found is None:
        return None
    links = struct.unpack_from("<QQ", found.raw)
    return found if min(links) >= lowest else None


def _size(header: bytes) -> int:
    return int.from_bytes(header[0x14:0x18], "little")


def _sane(header: bytes) -> bool:
    return header[0x10:0x14] == _TAG_BYTES and _SMALLEST <= _size(header) <= _LARGEST


def _read_block(memory: MemoryReader, address: int, size: int) -> DebuggerData | None:
    try:
        return DebuggerData(address, memory.read(address, size))
    except MemoryUnreadable:
        return None
