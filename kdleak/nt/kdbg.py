"""KDDEBUGGER_DATA64 ("KDBG"): the block in which the kernel tells a debugger where things are."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from kdleak.errors import MemoryUnreadable
from kdleak.nt.memory import MemoryReader

OWNER_TAG = 0x4742444B
"""``KDBG`` as it lies at offset 0x10 of the block."""

_SMALLEST, _LARGEST = 0x208, 0x1000
_LONGEST_LIST = 64

# Offsets of the fields used here; all are u64, sign-extended on 32-bit targets.
FIELDS = {
    "KernBase": 0x018,
    "BreakpointWithStatus": 0x020,
    "PsLoadedModuleList": 0x048,
    "KiBugcheckData": 0x088,
    "PoolTrackTable": 0x1B8,
    "NtBuildLab": 0x208,
    "KiProcessorBlock": 0x218,
    "MmUnloadedDrivers": 0x220,
}


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
        if header:
            tag, size = struct.unpack_from("<II", header, 0x10)
            if tag == OWNER_TAG and _SMALLEST <= size <= _LARGEST:
                return _read_block(memory, at, size)
        try:
            at = struct.unpack("<Q", memory.read(at, 8))[0]
        except MemoryUnreadable:
            return None
        if at in (0, address):
            return None
    return None


def _read_block(memory: MemoryReader, address: int, size: int) -> DebuggerData | None:
    try:
        return DebuggerData(address, memory.read(address, size))
    except MemoryUnreadable:
        return None
