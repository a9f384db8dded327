"""KD packets that travel at every stop: constants and ``struct`` codecs for both roles.

A KD packet is a type and a payload; how it is framed, numbered and acknowledged is the business
of the link. This module knows the two payloads of the hot path, STATE_CHANGE64
(DBGKD_ANY_WAIT_STATE_CHANGE) and STATE_MANIPULATE (DBGKD_MANIPULATE_STATE64); the cold ones are
in ``structures``. All numbers on the wire are little-endian.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import NoReturn

from kdleak.errors import ProtocolError


class PacketType(enum.IntEnum):
    """Packet types of the KD protocol; 4, 5 and 6 are control packets without payload."""

    UNUSED = 0
    STATE_CHANGE32 = 1
    STATE_MANIPULATE = 2
    DEBUG_IO = 3
    ACKNOWLEDGE = 4
    RESEND = 5
    RESET = 6
    STATE_CHANGE64 = 7
    POLL_BREAKIN = 8
    TRACE_IO = 9
    CONTROL_REQUEST = 10
    FILE_IO = 11


CONTROL_TYPES = frozenset((PacketType.ACKNOWLEDGE, PacketType.RESEND, PacketType.RESET))
DATA_TYPES = frozenset(PacketType) - CONTROL_TYPES - {PacketType.UNUSED}


class Api(enum.IntEnum):
    """ApiNumber of DBGKD_MANIPULATE_STATE64."""

    READ_VIRTUAL = 0x3130
    WRITE_VIRTUAL = 0x3131
    GET_CONTEXT = 0x3132
    SET_CONTEXT = 0x3133
    WRITE_BREAKPOINT = 0x3134
    RESTORE_BREAKPOINT = 0x3135
    CONTINUE = 0x3136
    READ_CONTROL_SPACE = 0x3137
    WRITE_CONTROL_SPACE = 0x3138
    READ_IO_SPACE = 0x3139
    WRITE_IO_SPACE = 0x313A
    REBOOT = 0x313B
    CONTINUE2 = 0x313C
    READ_PHYSICAL = 0x313D
    WRITE_PHYSICAL = 0x313E
    QUERY_SPECIAL_CALLS = 0x313F
    SET_SPECIAL_CALL = 0x3140
    CLEAR_SPECIAL_CALLS = 0x3141
    SET_INTERNAL_BREAKPOINT = 0x3142
    GET_INTERNAL_BREAKPOINT = 0x3143
    READ_IO_SPACE_EXTENDED = 0x3144
    WRITE_IO_SPACE_EXTENDED = 0x3145
    GET_VERSION = 0x3146
    WRITE_BREAKPOINT_EX = 0x3147
    RESTORE_BREAKPOINT_EX = 0x3148
    CAUSE_BUG_CHECK = 0x3149
    SWITCH_PROCESSOR = 0x3150
    PAGE_IN = 0x3151
    READ_MSR = 0x3152
    WRITE_MSR = 0x3153
    SEARCH_MEMORY = 0x3156
    GET_BUS_DATA = 0x3157
    SET_BUS_DATA = 0x3158
    CHECK_LOW_MEMORY = 0x3159
    CLEAR_ALL_INTERNAL_BREAKPOINTS = 0x315A
    FILL_MEMORY = 0x315B
    QUERY_MEMORY = 0x315C
    SWITCH_PARTITION = 0x315D
    GET_CONTEXT_EX = 0x315F
    SET_CONTEXT_EX = 0x3160


CONTINUE_APIS = frozenset((Api.CONTINUE, Api.CONTINUE2))


class Machine(enum.IntEnum):
    """IMAGE_FILE_MACHINE_* of the targets we know."""

    I386 = 0x014C
    ARM = 0x01C4
    AMD64 = 0x8664
    ARM64 = 0xAA64


class Status(enum.IntEnum):
    """NTSTATUS values used on the wire."""

    SUCCESS = 0
    BREAKPOINT = 0x80000003
    SINGLE_STEP = 0x80000004
    UNSUCCESSFUL = 0xC0000001
    NO_SUCH_FILE = 0xC000000F
    ASSERTION_FAILURE = 0xC0000420
    DBG_CONTINUE = 0x00010002
    DBG_EXCEPTION_NOT_HANDLED = 0x80010001


class NewState(enum.IntEnum):
    """NewState of DBGKD_ANY_WAIT_STATE_CHANGE, without the alternate flag 0x10000."""

    EXCEPTION = 0x3030
    LOAD_SYMBOLS = 0x3031
    COMMAND_STRING = 0x3032


BREAK_IN_BYTE = b"b"
"""0x62 outside a packet asks the target to break in."""

MAX_PACKET_SERIAL = 4000
MAX_PACKET_KDNET = 1152
MAX_PAYLOAD = 0x2000
"""Bytes of payload we accept; the nominal limits are exceeded by replies with a context."""

MANIPULATE_SIZE = 56
STATE_CHANGE_SIZE = 0xF0
CONTEXT_SIZES: dict[int, int] = {Machine.AMD64: 0x4D0, Machine.I386: 0x2CC, Machine.ARM64: 0x390}
CONTEXT_PROGRAM_COUNTER: dict[int, int] = {
    Machine.AMD64: 0xF8,
    Machine.I386: 0xB8,
    Machine.ARM64: 0x108,
}
"""Byte offset of Rip, Eip or Pc in CONTEXT."""

_MANIPULATE = struct.Struct("<IHHI4x40s")
_MEMORY = struct.Struct("<QII")
_CONTEXT_EX = struct.Struct("<III")
_STATE_HEAD = struct.Struct("<IHHI4xQQ")
_EXCEPTION = struct.Struct("<IIQQI4x15QI")
_LOAD_SYMBOLS = struct.Struct("<I4xQQIIB")
_REPORT_AMD64 = struct.Struct("<QQIHH16s4H")
_REPORT_I386 = struct.Struct("<IIHH16s4HI")
_REPORT_ARM64 = struct.Struct("<QQI16s")
_CONTINUE2_AMD64 = struct.Struct("<IIQQQ")
_CONTINUE2_I386 = struct.Struct("<IIIII")
_CONTINUE2_ARM64 = struct.Struct("<IIQQ")

UNION_OFFSET = 0x20
REPORT_OFFSET = 0xC0


def _malformed(what: str, came_back: str) -> NoReturn:
    raise ProtocolError(f"decoding {what}", came_back, "the packet was dropped; try again")


@dataclass(frozen=True)
class Packet:
    """One KD data packet, freed from framing: ``type`` is a PacketType value."""

    type: int
    payload: bytes


# --- STATE_MANIPULATE -----------------------------------------------------------------------


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
        _malformed("a STATE_MANIPULATE packet", f"{len(payload)} bytes instead of 56 or more")
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


# --- STATE_CHANGE64 -------------------------------------------------------------------------


@dataclass(frozen=True)
class ExceptionRecord:
    """EXCEPTION_RECORD64 and the first-chance mark of an exception state change.

    Attributes:
        code: NTSTATUS of the exception.
        address: of the instruction, 64 bits wide (sign-extended on 32-bit targets).
        parameters: ExceptionInformation, at most 15 values.
    """

    code: int
    flags: int = 0
    record: int = 0
    address: int = 0
    first_chance: bool = True
    parameters: tuple[int, ...] = ()


@dataclass(frozen=True)
class LoadSymbols:
    """An image was loaded or unloaded in the target.

    Attributes:
        path: as the target names it, "" in the unload-everything form.
        base: load address.
        process_id: all ones for kernel images.
        size: SizeOfImage in bytes, 0 where unknown.
        unload: the image goes away.
    """

    path: str
    base: int
    process_id: int = 0xFFFFFFFFFFFFFFFF
    checksum: int = 0
    size: int = 0
    unload: bool = False

    @property
    def unload_all(self) -> bool:
        """Everything goes away: a boot stage ends or the target reboots."""
        return self.unload and not self.path


@dataclass(frozen=True)
class ControlReport:
    """What the target says about the stopped processor besides the exception.

    Attributes:
        dr6: debug status, dr7: debug control, eflags: flags (0 where the machine has none).
        instruction_stream: bytes at the program counter, at most 16.
        report_flags: 1 segment registers included, 2 standard CS.
        segments: cs, ds, es, fs; empty where the machine has none.
    """

    dr6: int = 0
    dr7: int = 0
    eflags: int = 0
    instruction_stream: bytes = b""
    report_flags: int = 0
    segments: tuple[int, ...] = ()


@dataclass(frozen=True)
class StateChange:
    """DBGKD_ANY_WAIT_STATE_CHANGE: why the target has stopped.

    Exactly one of ``exception``, ``load_symbols`` and ``command`` is set for the states known.

    Attributes:
        new_state: NewState without the alternate flag.
        processor: number of the stopped processor; ``processors`` how many there are.
        thread: address of the KTHREAD.
        program_counter: 64 bits; *usually* the int3 itself after a break instruction.
        command: (name, command) strings of the command-string form.
        raw: the payload as it came.
    """

    new_state: int
    level: int
    processor: int
    processors: int
    thread: int
    program_counter: int
    exception: ExceptionRecord | None = None
    load_symbols: LoadSymbols | None = None
    command: tuple[str, str] | None = None
    control_report: ControlReport = ControlReport()
    raw: bytes = b""


def parse_control_report(report: bytes, machine: int = Machine.AMD64) -> ControlReport:
    """Decode the 0x30-byte control report field as the machine lays it out."""
    report = report.ljust(0x30, b"\0")
    if machine == Machine.I386:
        dr6, dr7, count, flags, stream, cs, ds, es, fs, eflags = _REPORT_I386.unpack_from(report)
        return ControlReport(dr6, dr7, eflags, stream[:count], flags, (cs, ds, es, fs))
    if machine == Machine.ARM64:
        bvr, wvr, count, stream = _REPORT_ARM64.unpack_from(report)
        return ControlReport(bvr, wvr, 0, stream[:count])
    dr6, dr7, eflags, count, flags, stream, cs, ds, es, fs = _REPORT_AMD64.unpack_from(report)
    return ControlReport(dr6, dr7, eflags, stream[:count], flags, (cs, ds, es, fs))


def build_control_report(report: ControlReport, machine: int = Machine.AMD64) -> bytes:
    """Encode a control report for AMD64 or x86, padded to 0x30 bytes (target role)."""
    stream = report.instruction_stream[:16]
    segments = (*report.segments, 0, 0, 0, 0)[:4]
    if machine == Machine.I386:
        raw = _REPORT_I386.pack(
            report.dr6,
            report.dr7,
            len(stream),
            report.report_flags,
            stream,
            *segments,
            report.eflags,
        )
    elif machine == Machine.ARM64:
        raw = _REPORT_ARM64.pack(report.dr6, report.dr7, len(stream), stream)
    else:
        raw = _REPORT_AMD64.pack(
            report.dr6,
            report.dr7,
            report.eflags,
            len(stream),
            report.report_flags,
            stream,
            *segments,
        )
    return raw.ljust(0x30, b"\0")


def _parse_exception(payload: bytes) -> ExceptionRecord:
    code, flags, record, address, count, *rest = _EXCEPTION.unpack_from(payload, UNION_OFFSET)
    return ExceptionRecord(
        code, flags, record, address, rest[15] != 0, tuple(rest[: min(count, 15)])
    )


def _parse_load_symbols(payload: bytes) -> LoadSymbols:
    length, base, process_id, checksum, size, unload = _LOAD_SYMBOLS.unpack_from(
        payload, UNION_OFFSET
    )
    path = payload[STATE_CHANGE_SIZE : STATE_CHANGE_SIZE + length].split(b"\0", 1)[0]
    return LoadSymbols(path.decode("latin-1"), base, process_id, checksum, size, unload=unload != 0)


def _parse_command(payload: bytes) -> tuple[str, str]:
    texts = [text.decode("latin-1") for text in payload[STATE_CHANGE_SIZE:].split(b"\0")]
    return (texts[0], texts[1] if len(texts) > 1 else "")


def parse_state_change(payload: bytes, machine: int = Machine.AMD64) -> StateChange:
    """Decode a STATE_CHANGE64 payload; ``machine`` decides how the control report is read.

    Raises:
        ProtocolError: too short, or a NewState that the protocol does not have.
    """
    if len(payload) < REPORT_OFFSET:
        _malformed("a STATE_CHANGE64 packet", f"{len(payload)} bytes instead of 240 or more")
    state, level, processor, processors, thread, counter = _STATE_HEAD.unpack_from(payload)
    state &= ~0x10000
    exception = symbols = command = None
    if state == NewState.EXCEPTION:
        exception = _parse_exception(payload)
    elif state == NewState.LOAD_SYMBOLS:
        symbols = _parse_load_symbols(payload)
    elif state == NewState.COMMAND_STRING:
        command = _parse_command(payload)
    else:
        _malformed("a STATE_CHANGE64 packet", f"unknown NewState 0x{state:x}")
    return StateChange(
        state,
        level,
        processor,
        processors,
        thread,
        counter,
        exception,
        symbols,
        command,
        parse_control_report(payload[REPORT_OFFSET:STATE_CHANGE_SIZE], machine),
        payload,
    )


def build_state_change(change: StateChange, machine: int = Machine.AMD64) -> bytes:
    """Encode a state change (target role); ``raw`` of the argument is ignored."""
    union = b""
    tail = b""
    if change.exception is not None:
        record = change.exception
        words = (record.parameters + (0,) * 15)[:15]
        union = _EXCEPTION.pack(
            record.code,
            record.flags,
            record.record,
            record.address,
            len(record.parameters),
            *words,
            record.first_chance,
        )
    elif change.load_symbols is not None:
        symbols = change.load_symbols
        tail = symbols.path.encode("latin-1") + b"\0" if symbols.path else b""
        union = _LOAD_SYMBOLS.pack(
            len(tail),
            symbols.base,
            symbols.process_id,
            symbols.checksum,
            symbols.size,
            symbols.unload,
        )
    elif change.command is not None:
        tail = b"".join(text.encode("latin-1") + b"\0" for text in change.command)
    head = _STATE_HEAD.pack(
        change.new_state,
        change.level,
        change.processor,
        change.processors,
        change.thread,
        change.program_counter,
    )
    report = build_control_report(change.control_report, machine)
    return head + union.ljust(0xA0, b"\0") + report + tail


def build_exception_change(
    exception: ExceptionRecord,
    *,
    program_counter: int,
    processor: int = 0,
    processors: int = 1,
    thread: int = 0,
    level: int = 0,
    control_report: ControlReport | None = None,
    machine: int = Machine.AMD64,
) -> bytes:
    """Payload of an exception state change (target role)."""
    change = StateChange(
        NewState.EXCEPTION,
        level,
        processor,
        processors,
        thread,
        program_counter,
        exception=exception,
        control_report=control_report or ControlReport(),
    )
    return build_state_change(change, machine)


def build_load_symbols_change(
    symbols: LoadSymbols,
    *,
    program_counter: int = 0,
    processor: int = 0,
    processors: int = 1,
    thread: int = 0,
    level: int = 0,
    control_report: ControlReport | None = None,
    machine: int = Machine.AMD64,
) -> bytes:
    """Payload of a load-symbols state change (target role)."""
    change = StateChange(
        NewState.LOAD_SYMBOLS,
        level,
        processor,
        processors,
        thread,
        program_counter,
        load_symbols=symbols,
        control_report=control_report or ControlReport(),
    )
    return build_state_change(change, machine)
