"""STATE_MANIPULATE (DBGKD_MANIPULATE_STATE64): requests of the host and replies of the target.

On the path of every hit, so ``struct`` only. All numbers are little-endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from kdleak.errors import ProtocolError
from kdleak.kd.constants import MANIPULATE_SIZE, Machine, Status

_MANIPULATE = struct.Struct("<IHHI4x40s")
_MEMORY = struct.Struct("<QII")
_CONTEXT_EX = struct.Struct("<III")
_CONTINUE2_AMD64 = struct.Struct("<IIQQQ")
_CONTINUE2_I386 = struct.Struct("<IIIII")
_CONTINUE2_ARM64 = struct.Struct("<IIQQ")


@dataclass(frozen=True)
class Manipulate:
    """DBGKD_MANIPULATE_STATE64: a request of the host or the target's reply.

    Attributes:
        api: ApiNumber; an ``Api`` value, or an unknown number as it stands.
        level: ProcessorLevel.
        processor: whose registers are meant.
        status: NTSTATUS (replies only).
        union: the 40 bytes that depend on ``api``.
        data: what follows the 56-byte structure.
    """

    api: int
    level: int
    processor: int
    status: int
    union: bytes
    data: bytes

    @property
    def succeeded(self) -> bool:
        """NT_SUCCESS of ``status``."""
        return self.status < 0x80000000


def parse_manipulate(payload: bytes) -> Manipulate:
    """Decode a STATE_MANIPULATE payload.

    Raises:
        ProtocolError: shorter than 56 bytes.
    """
    if len(payload) < MANIPULATE_SIZE:
        raise ProtocolError(
            "decoding a STATE_MANIPULATE packet",
            f"{len(payload)} bytes instead of 56 or more",
            "the packet was dropped; try again",
        )
    api, level, processor, status, union = _MANIPULATE.unpack_from(payload)
    return Manipulate(api, level, processor, status, union, payload[MANIPULATE_SIZE:])


def build_manipulate(  # noqa: PLR0917 - the order of the structure
    api: int,
    processor: int = 0,
    union: bytes = b"",
    data: bytes = b"",
    status: int = 0,
    level: int = 0,
) -> bytes:
    """Encode a STATE_MANIPULATE payload; a union shorter than 40 bytes is padded with zeros."""
    if len(union) > 40:
        msg = f"a union of {len(union)} bytes does not fit into 40"
        raise ValueError(msg)
    return _MANIPULATE.pack(api, level, processor, status, union) + data


def memory_union(address: int, count: int, actual: int = 0) -> bytes:
    """Union of the memory and control space requests: address, TransferCount, actual count."""
    return _MEMORY.pack(address & 0xFFFFFFFFFFFFFFFF, count, actual)


def parse_memory_union(union: bytes) -> tuple[int, int, int]:
    """(address, TransferCount, ActualBytes) of a memory or control space request or reply."""
    address, count, actual = _MEMORY.unpack_from(union)
    return address, count, actual


def context_ex_union(offset: int, count: int, copied: int = 0) -> bytes:
    """Union of GetContextEx and SetContextEx: Offset, ByteCount, BytesCopied."""
    return _CONTEXT_EX.pack(offset, count, copied)


def parse_context_ex_union(union: bytes) -> tuple[int, int, int]:
    """(Offset, ByteCount, BytesCopied) of GetContextEx and SetContextEx."""
    offset, count, copied = _CONTEXT_EX.unpack_from(union)
    return offset, count, copied


def u32_union(*values: int) -> bytes:
    """A union that starts with the given 32-bit values (handles, flags, statuses)."""
    return struct.pack(f"<{len(values)}I", *values)


@dataclass(frozen=True)
class Continue2:
    """Union of Continue2. ``symbol_start``/``symbol_end`` (1, 0) mean no local step range."""

    status: int = Status.DBG_CONTINUE
    trace: bool = False
    dr7: int = 0x400
    symbol_start: int = 1
    symbol_end: int = 0


def continue2_union(what: Continue2, machine: int = Machine.AMD64) -> bytes:
    """Encode the union of Continue2 as the target's machine lays it out."""
    if machine == Machine.I386:
        return _CONTINUE2_I386.pack(
            what.status, what.trace, what.dr7 & 0xFFFFFFFF, what.symbol_start, what.symbol_end
        )
    if machine == Machine.ARM64:
        return _CONTINUE2_ARM64.pack(what.status, what.trace, what.symbol_start, what.symbol_end)
    return _CONTINUE2_AMD64.pack(
        what.status, what.trace, what.dr7, what.symbol_start, what.symbol_end
    )


def parse_continue2(union: bytes, machine: int = Machine.AMD64) -> Continue2:
    """Decode the union of Continue2 (target role)."""
    if machine == Machine.I386:
        status, trace, dr7, start, end = _CONTINUE2_I386.unpack_from(union)
    elif machine == Machine.ARM64:
        status, trace, start, end = _CONTINUE2_ARM64.unpack_from(union)
        dr7 = 0
    else:
        status, trace, dr7, start, end = _CONTINUE2_AMD64.unpack_from(union)
    return Continue2(status, bool(trace), dr7, start, end)
