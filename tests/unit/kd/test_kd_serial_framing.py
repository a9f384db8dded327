"""KD packets on a byte stream: found, checked, and found again after damage."""

from __future__ import annotations

import pytest

from kdleak.kd.packets import MAX_PAYLOAD, PacketType
from kdleak.kd.reliable import Frame, Role
from kdleak.kd.serial_framing import IDLE_SECONDS, Deframer, Signal, encode_frame
from kdleak.kd.serial_machine import SerialMachine

DATA = Frame(PacketType.STATE_MANIPULATE, 0x80800000, bytes(range(56)))
ACK = Frame(PacketType.ACKNOWLEDGE, 0x80800001)


def test_bytes_of_a_data_packet() -> None:
    raw = encode_frame(Frame(PacketType.DEBUG_IO, 0x80800800, b"\x01\x02\xff"))
    assert raw.hex() == "303030300300030000088080020100000102ffaa"


def test_bytes_of_a_control_packet() -> None:
    assert encode_frame(ACK).hex() == "69696969040000000100808000000000"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_frames_come_out_however_the_bytes_are_cut(size: int) -> None:
    stream = encode_frame(DATA) + encode_frame(ACK) + encode_frame(DATA)
    deframer = Deframer(break_ins=True)
    events = []
    for start in range(0, len(stream), size):
        events += deframer.feed(stream[start : start + size], 0.0)
    assert events == [DATA, ACK, DATA]
    assert deframer.noise == 0
    assert deframer.next_deadline() is None


def test_break_in_bytes_outside_packets_only() -> None:
    body = Frame(PacketType.DEBUG_IO, 0x80800000, b"bbbb0000iiii" * 3)
    stream = b"b" + encode_frame(body) + b"bb" + encode_frame(ACK) + b"b"
    events = Deframer(break_ins=True).feed(stream, 0.0)
    assert events == [Signal.BREAK_IN, body, Signal.BREAK_IN, Signal.BREAK_IN, ACK, Signal.BREAK_IN]
    assert Deframer(break_ins=False).feed(stream, 0.0) == [body, ACK]


@pytest.mark.parametrize("place", [16, 40, 71, 72])
def test_a_damaged_packet_is_told_and_the_next_one_found(place: int) -> None:
    stream = bytearray(encode_frame(DATA))
    stream[place] ^= 0x40
    events = Deframer(break_ins=True).feed(bytes(stream) + encode_frame(ACK), 0.0)
    assert events == [Signal.DAMAGED, ACK]


def test_0x62_in_the_remains_of_a_packet_is_no_break_in() -> None:
    stream = bytearray(encode_frame(Frame(PacketType.DEBUG_IO, 0x80800000, b"b" * 50)))
    stream[-1] = 0
    deframer = Deframer(break_ins=True)
    assert deframer.feed(bytes(stream), 0.0) == [Signal.DAMAGED]
    assert deframer.feed(b"b", 0.0) == [Signal.BREAK_IN]


def test_a_packet_hidden_in_a_damaged_length_is_found() -> None:
    stream = bytearray(encode_frame(DATA))
    stream[6] = 200
    deframer = Deframer(break_ins=False)
    assert deframer.feed(bytes(stream) + encode_frame(DATA), 1.0) == []
    assert deframer.next_deadline() == 1.0 + IDLE_SECONDS
    assert deframer.tick(1.0) == []
    events = deframer.tick(1.0 + IDLE_SECONDS)
    assert events == [Signal.DAMAGED, DATA]


def test_extra_leader_bytes_before_a_packet() -> None:
    assert Deframer(break_ins=False).feed(b"000" + encode_frame(DATA), 0.0) == [DATA]
    assert Deframer(break_ins=False).feed(b"ii" + encode_frame(ACK), 0.0) == [ACK]


def test_memory_is_bounded() -> None:
    deframer = Deframer(break_ins=True)
    huge = b"0000" + b"\x03\x00" + b"\x00\x20" + bytes(8)
    for _ in range(50):
        deframer.feed(huge * 100, 0.0)
        assert len(deframer._buffer) <= MAX_PAYLOAD + 17
    deframer = Deframer(break_ins=True)
    deframer.feed(b"x" * 100_000 + b"0" * 100_000, 0.0)
    assert len(deframer._buffer) < 20


@pytest.mark.parametrize(
    "header",
    [
        b"0000\x04\x00\x00\x00" + bytes(8),
        b"0000\x00\x00\x01\x00" + bytes(8),
        b"0000\x0c\x00\x01\x00" + bytes(8),
        b"0000\x03\x00\x00\x00" + bytes(8),
        b"0000\x03\x00\x01\x20" + bytes(8),
        b"iiii\x03\x00\x00\x00" + bytes(8),
        b"iiii\x04\x00\x01\x00" + bytes(8),
    ],
)
def test_headers_that_cannot_be(header: bytes) -> None:
    assert Deframer(break_ins=False).feed(header + encode_frame(DATA), 0.0) == [DATA]


def test_one_resend_request_for_a_burst_of_damage() -> None:
    machine = SerialMachine(Role.HOST)
    bad = bytearray(encode_frame(DATA))
    bad[-1] = 0
    machine.receive(bytes(bad) * 20, None, 0.0)
    assert machine.take_output() == [(encode_frame(Frame(PacketType.RESEND, 0)), None)]
    assert machine.statistics.rejected == 20


def test_break_ins_are_remembered_up_to_a_limit() -> None:
    machine = SerialMachine(Role.TARGET)
    machine.receive(b"b" * 100, None, 0.0)
    assert machine.break_ins == 1


def test_other_traffic_on_the_line_is_described() -> None:
    machine = SerialMachine(Role.HOST)
    assert machine.find_refusal() == ""
    machine.receive(b"login: ", None, 0.0)
    assert "7 bytes" in machine.find_refusal()
    assert not machine.connected
    machine.receive(encode_frame(ACK), None, 0.0)
    assert machine.find_refusal() == ""
    assert machine.connected
