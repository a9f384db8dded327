"""STATE_CHANGE64 (DBGKD_ANY_WAIT_STATE_CHANGE): why the target has stopped.

On the path of every hit, so ``struct`` only. All numbers are little-endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NoReturn

from kdleak.errors import ProtocolError
from kdleak.kd.constants import STATE_CHANGE_SIZE, Machine, NewState

UNION_OFFSET = 0x20
REPORT_OFFSET = 0xC0

_STATE_HEAD = struct.Struct("<IHHI4xQQ")
_EXCEPTION = struct.Struct("<IIQQI4x15QI")
_LOAD_SYMBOLS = struct.Struct("<I4xQQIIB")
_REPORT_AMD64 = struct.Struct("<QQIHH16s4H")
_REPORT_I386 = struct.Struct("<IIHH16s4HI")
_REPORT_ARM64 = struct.Struct("<QQI16s")


def _malformed(came_back: str) -> NoReturn:
    raise ProtocolError(
        "decoding a STATE_CHANGE64 packet", came_back, "the packet was dropped; try again"
    )


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
        _malformed(f"{len(payload)} bytes instead of 240 or more")
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
        _malformed(f"unknown NewState 0x{state:x}")
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
