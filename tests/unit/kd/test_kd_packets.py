"""Layouts of KD payloads, byte by byte where the bytes are known."""

from __future__ import annotations

import struct

import pytest

from kdleak.errors import ProtocolError
from kdleak.kd.packets import (
    Api,
    Continue2,
    ControlReport,
    ExceptionRecord,
    LoadSymbols,
    Machine,
    NewState,
    PacketType,
    StateChange,
    build_control_report,
    build_exception_change,
    build_load_symbols_change,
    build_manipulate,
    build_state_change,
    context_ex_union,
    continue2_union,
    memory_union,
    parse_context_ex_union,
    parse_continue2,
    parse_control_report,
    parse_manipulate,
    parse_memory_union,
    parse_state_change,
    u32_union,
)
from kdleak.kd.structures import (
    GET_VERSION64,
    POKE,
    RESPONSE,
    Version,
    build_version,
    parse_structure,
    parse_version,
)


def test_read_virtual_request() -> None:
    payload = build_manipulate(
        Api.READ_VIRTUAL, 3, memory_union(0xFFFFF80312345678, 0x40), level=0x21
    )
    assert len(payload) == 56
    assert struct.unpack_from("<IHHI", payload) == (0x3130, 0x21, 3, 0)
    assert struct.unpack_from("<QII", payload, 0x10) == (0xFFFFF80312345678, 0x40, 0)
    assert payload[0x20:] == bytes(24)


def test_unions() -> None:
    assert parse_memory_union(memory_union(1, 2, 3).ljust(40, b"\0")) == (1, 2, 3)
    assert parse_context_ex_union(context_ex_union(4, 5, 6)) == (4, 5, 6)
    assert u32_union(7, 8) == b"\7\0\0\0\x08\0\0\0"
    # A sign-extended 32-bit address may come as a negative number.
    assert memory_union(-0x80000000, 1)[:8] == b"\x00\x00\x00\x80\xff\xff\xff\xff"


def test_a_union_that_is_too_long() -> None:
    with pytest.raises(ValueError, match="40"):
        build_manipulate(Api.READ_VIRTUAL, union=bytes(41))


def test_manipulate_reply() -> None:
    payload = build_manipulate(Api.GET_CONTEXT, 1, b"", b"context", 0xC0000001)
    reply = parse_manipulate(payload)
    assert (reply.api, reply.processor, reply.status) == (Api.GET_CONTEXT, 1, 0xC0000001)
    assert reply.data == b"context"
    assert not reply.succeeded
    with pytest.raises(ProtocolError):
        parse_manipulate(payload[:55])


@pytest.mark.parametrize(
    ("machine", "layout"),
    [
        (Machine.AMD64, "0200010000000000000400000000000001000000000000000000000000000000"),
        (Machine.I386, "0200010000000000000400000100000000000000"),
        (Machine.ARM64, "020001000000000001000000000000000000000000000000"),
    ],
)
def test_continue2_of_each_machine(machine: Machine, layout: str) -> None:
    union = continue2_union(Continue2(), machine)
    assert union.hex() == layout
    parsed = parse_continue2(union.ljust(40, b"\0"), machine)
    assert (parsed.status, parsed.trace, parsed.symbol_start) == (0x10002, False, 1)
    assert parsed.dr7 == (0 if machine is Machine.ARM64 else 0x400)


def test_exception_state_change_offsets() -> None:
    payload = build_exception_change(
        ExceptionRecord(0x80000003, 1, 2, 0xFFFFF80000001000, first_chance=True, parameters=(7, 8)),
        program_counter=0xFFFFF80000001000,
        processor=2,
        processors=4,
        thread=0xFFFF800011112222,
        control_report=ControlReport(
            0xFFFF0FF0, 0x400, 0x246, b"\xcc\xc3" + bytes(14), 3, (0x10, 0x2B, 0x2B, 0x53)
        ),
    )
    assert len(payload) == 0xF0
    assert struct.unpack_from("<IHHI", payload) == (0x3030, 0, 2, 4)
    assert struct.unpack_from("<QQ", payload, 0x10) == (0xFFFF800011112222, 0xFFFFF80000001000)
    assert struct.unpack_from("<IIQQI", payload, 0x20) == (0x80000003, 1, 2, 0xFFFFF80000001000, 2)
    assert struct.unpack_from("<QQ", payload, 0x40) == (7, 8)
    assert struct.unpack_from("<I", payload, 0xB8) == (1,)
    assert struct.unpack_from("<QQIHH", payload, 0xC0) == (0xFFFF0FF0, 0x400, 0x246, 16, 3)
    assert payload[0xD8:0xDA] == b"\xcc\xc3"
    assert struct.unpack_from("<HHHH", payload, 0xE8) == (0x10, 0x2B, 0x2B, 0x53)


def test_load_symbols_offsets() -> None:
    payload = build_load_symbols_change(
        LoadSymbols("\\driver.sys", 0xFFFFF80055500000, 0xFFFFFFFFFFFFFFFF, 5, 0x6000)
    )
    assert struct.unpack_from("<I4xQQIIB", payload, 0x20) == (
        12,
        0xFFFFF80055500000,
        0xFFFFFFFFFFFFFFFF,
        5,
        0x6000,
        0,
    )
    assert payload[0xF0:] == b"\\driver.sys\0"
    symbols = parse_state_change(payload).load_symbols
    assert symbols is not None
    assert not symbols.unload_all


def test_unload_everything() -> None:
    payload = build_load_symbols_change(LoadSymbols("", 0xFFFFF80100000000, unload=True))
    assert len(payload) == 0xF0
    symbols = parse_state_change(payload).load_symbols
    assert symbols is not None
    assert symbols.unload_all


def test_command_string() -> None:
    change = StateChange(NewState.COMMAND_STRING, 0, 0, 1, 0, 0, command=("name", "g"))
    assert parse_state_change(build_state_change(change)).command == ("name", "g")
    alone = build_state_change(change)[:0xF0] + b"only"
    assert parse_state_change(alone).command == ("only", "")


def test_the_alternate_flag_is_removed() -> None:
    payload = bytearray(build_exception_change(ExceptionRecord(3), program_counter=1))
    payload[2] = 1
    assert parse_state_change(bytes(payload)).new_state == NewState.EXCEPTION


def test_state_changes_that_cannot_be() -> None:
    payload = build_exception_change(ExceptionRecord(3), program_counter=1)
    with pytest.raises(ProtocolError):
        parse_state_change(payload[:0xBF])
    with pytest.raises(ProtocolError):
        parse_state_change(b"\x35" + payload[1:])


def test_more_parameters_claimed_than_there_are() -> None:
    payload = bytearray(build_exception_change(ExceptionRecord(3), program_counter=1))
    payload[0x38:0x3C] = b"\xff\xff\xff\xff"
    exception = parse_state_change(bytes(payload)).exception
    assert exception is not None
    assert len(exception.parameters) == 15


@pytest.mark.parametrize("machine", [Machine.AMD64, Machine.I386])
def test_control_reports(machine: Machine) -> None:
    report = ControlReport(1, 2, 3, b"\xcc" * 16, 1, (8, 9, 10, 11))
    raw = build_control_report(report, machine)
    assert len(raw) == 0x30
    assert parse_control_report(raw, machine) == report


def test_control_report_of_arm64() -> None:
    report = ControlReport(1, 2, 0, b"\x00\x00\x3e\xd4" * 4)
    raw = build_control_report(report, Machine.ARM64)
    assert parse_control_report(raw, Machine.ARM64) == report
    assert raw[0x14:0x18] == b"\x00\x00\x3e\xd4"


def test_versions_seen_on_real_kernels() -> None:
    # Windows 8.1: the first bytes as observed; the addresses are made up.
    head = bytes.fromhex("0F00802506020700648 60C033100 0000".replace(" ", ""))
    version = parse_version(head + struct.pack("<QQQ", 1, 2, 3))
    assert version.build == 9600
    assert version.debuggee_kind == 0
    assert version.machine == Machine.AMD64
    assert version.max_manipulate == 0x31
    assert (version.kernel_base, version.loaded_module_list, version.debugger_data_list) == (
        1,
        2,
        3,
    )
    assert build_version(version) == head + struct.pack("<QQQ", 1, 2, 3)
    assert parse_version((head + bytes(24)) + b"union has 40 bytes, more is ignored").build == 9600


def test_sizes_of_cold_structures() -> None:
    assert GET_VERSION64.sizeof() == 40
    assert POKE.sizeof() == 344
    assert RESPONSE.sizeof() == 322
    assert len(Version.__dataclass_fields__) == 13


def test_cold_structures_that_do_not_fit() -> None:
    with pytest.raises(ProtocolError):
        parse_version(bytes(39))
    with pytest.raises(ProtocolError):
        parse_structure(POKE, "a poke", b"\x01\x03" + bytes(342))


def test_control_packets_are_no_data_packets() -> None:
    from kdleak.kd.packets import CONTROL_TYPES, DATA_TYPES

    assert {4, 5, 6} == CONTROL_TYPES
    assert PacketType.UNUSED not in DATA_TYPES
    assert not CONTROL_TYPES & DATA_TYPES
