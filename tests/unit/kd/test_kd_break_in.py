"""Break instructions and break-in stops of every machine."""

from __future__ import annotations

import pytest

from kdleak.kd.break_in import BreakInAccount, points_at_break, status_of_break_in
from kdleak.kd.packets import (
    ControlReport,
    ExceptionRecord,
    LoadSymbols,
    Machine,
    NewState,
    StateChange,
)


def stop(stream: bytes = b"\xcc", code: int = 0x80000003, counter: int = 0x1000) -> StateChange:
    return StateChange(
        NewState.EXCEPTION,
        0,
        0,
        1,
        0,
        counter,
        exception=ExceptionRecord(code, address=counter),
        control_report=ControlReport(instruction_stream=stream),
    )


@pytest.mark.parametrize(
    ("machine", "stream", "length"),
    [
        (Machine.AMD64, b"\xcc\xc3", 1),
        (Machine.I386, b"\xcc\xc3", 1),
        (Machine.AMD64, b"\xcd\x2c\x90", 2),
        (Machine.AMD64, b"\xcd\x80", 0),
        (Machine.AMD64, b"\x90\xcc", 0),
        (Machine.AMD64, b"", 0),
        (Machine.ARM64, b"\x00\x00\x3e\xd4", 4),
        (Machine.ARM64, b"\x00\x80\x3f\xd4", 4),
        (Machine.ARM64, b"\xcc\x00\x00\x91", 0),
        (Machine.ARM64, b"\xcc", 0),
    ],
)
def test_break_instructions(machine: Machine, stream: bytes, length: int) -> None:
    assert points_at_break(stop(stream), machine) == length


def test_only_break_exceptions_count() -> None:
    assert points_at_break(stop(code=0x80000004), Machine.AMD64) == 0
    assert points_at_break(stop(code=0xC0000420), Machine.AMD64) == 1
    load = StateChange(NewState.LOAD_SYMBOLS, 0, 0, 1, 0, 0, load_symbols=LoadSymbols("x", 1))
    assert points_at_break(load, Machine.AMD64) == 0


def test_the_status_argument_of_each_machine() -> None:
    def never(address: int, size: int) -> bytes:
        raise AssertionError

    amd64 = bytearray(0x4D0)
    assert not status_of_break_in(Machine.AMD64, bytes(amd64), never)
    # Only the low half of rcx holds the status.
    amd64[0x80:0x88] = b"\x01\0\0\0\xff\xff\xff\xff"
    assert status_of_break_in(Machine.AMD64, bytes(amd64), never)
    arm64 = bytearray(0x390)
    arm64[0x08:0x0C] = b"\x01\0\0\0"
    assert status_of_break_in(Machine.ARM64, bytes(arm64), never)
    asked = []

    def read(address: int, size: int) -> bytes:
        asked.append((address, size))
        return b"\x01\0\0\0"

    i386 = bytearray(0x2CC)
    i386[0xC4:0xC8] = (0x80001000).to_bytes(4, "little")
    assert status_of_break_in(Machine.I386, bytes(i386), read)
    assert asked == [(0xFFFFFFFF80001004, 4)]
    assert not status_of_break_in(Machine.I386, bytes(i386), lambda address, size: b"")
    assert not status_of_break_in(0x1234, bytes(i386), never)


def test_the_account() -> None:
    account = BreakInAccount()
    account.stopped(stop())
    assert not account.is_surplus(0.0)
    account.sent()
    account.sent()
    account.sent()
    account.stopped(stop())
    account.resumed(10.0)
    # One of the two left may still come, one only.
    account.stopped(stop(counter=0x2000))
    assert not account.is_surplus(10.1)
    account.stopped(stop(code=0x80000004))
    assert not account.is_surplus(10.1)
    account.stopped(stop())
    assert account.is_surplus(10.1)
    assert not account.is_surplus(13.0)
    account.stopped(stop())
    assert not account.is_surplus(10.1)
