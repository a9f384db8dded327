"""Codecs round trip, and parsers answer any bytes with a value or a ProtocolError."""

from __future__ import annotations

import math
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from kdleak.errors import BadConnection, ProtocolError
from kdleak.kd.connection import parse_connection
from kdleak.kd.kdnet_crypto import Datagram, KdnetKey, open_datagram, seal
from kdleak.kd.kdnet_machine import (
    KdnetHostMachine,
    KdnetTargetMachine,
    decode_packet,
    encode_packet,
)
from kdleak.kd.packets import (
    CONTROL_TYPES,
    DATA_TYPES,
    Continue2,
    ControlReport,
    ExceptionRecord,
    LoadSymbols,
    Machine,
    NewState,
    Packet,
    PacketType,
    StateChange,
    build_manipulate,
    build_state_change,
    continue2_union,
    parse_continue2,
    parse_control_report,
    parse_manipulate,
    parse_state_change,
)
from kdleak.kd.reliable import Frame, Role
from kdleak.kd.serial_framing import Deframer, Signal, encode_frame
from kdleak.kd.serial_machine import SerialMachine
from kdleak.kd.serving import answer_packet
from kdleak.kd.structures import (
    CONTROL_REQUEST,
    DEBUG_IO,
    FILE_IO,
    FILE_IO_CREATE,
    GET_VERSION64,
    POKE,
    RESPONSE,
    TRACE_IO,
    Version,
    build_version,
    parse_structure,
    parse_version,
)

KEY = KdnetKey.parse("1.2.3.4")
PEER = ("10.0.0.9", 50000)

u8 = st.integers(0, 0xFF)
u16 = st.integers(0, 0xFFFF)
u32 = st.integers(0, 0xFFFFFFFF)
u64 = st.integers(0, 0xFFFFFFFFFFFFFFFF)
payloads = st.binary(min_size=1, max_size=300)
paths = st.text(st.characters(min_codepoint=1, max_codepoint=255), max_size=60)

frames = st.one_of(
    st.builds(Frame, st.sampled_from(sorted(CONTROL_TYPES)), u32, st.just(b"")),
    st.builds(Frame, st.sampled_from(sorted(DATA_TYPES)), u32, payloads),
)
exceptions = st.builds(
    ExceptionRecord,
    code=u32,
    flags=u32,
    record=u64,
    address=u64,
    first_chance=st.booleans(),
    parameters=st.lists(u64, max_size=15).map(tuple),
)
symbols = st.builds(
    LoadSymbols,
    path=paths,
    base=u64,
    process_id=u64,
    checksum=u32,
    size=u32,
    unload=st.booleans(),
)


@st.composite
def state_changes(draw) -> StateChange:
    head = (draw(u16), draw(u16), draw(u32), draw(u64), draw(u64))
    kind = draw(st.sampled_from(sorted(NewState)))
    report = ControlReport(
        draw(u64),
        draw(u64),
        draw(u32),
        draw(st.binary(max_size=16)),
        draw(u16),
        draw(st.tuples(u16, u16, u16, u16)),
    )
    names = {
        NewState.EXCEPTION: ("exception", exceptions),
        NewState.LOAD_SYMBOLS: ("load_symbols", symbols),
        NewState.COMMAND_STRING: ("command", st.tuples(paths, paths)),
    }
    name, values = names[kind]
    return StateChange(kind, *head, control_report=report, **{name: draw(values)})


@given(u16, u16, u16, u32, st.binary(min_size=40, max_size=40), st.binary(max_size=300))
def test_manipulate(api, processor, level, status, union, data) -> None:
    packet = parse_manipulate(build_manipulate(api, processor, union, data, status, level))
    assert (packet.api, packet.processor, packet.level) == (api, processor, level)
    assert (packet.status, packet.union, packet.data) == (status, union, data)


@given(state_changes())
def test_state_change(change: StateChange) -> None:
    raw = build_state_change(change)
    parsed = parse_state_change(raw)
    assert parsed.raw == raw
    for name in StateChange.__dataclass_fields__:
        if name != "raw":
            assert getattr(parsed, name) == getattr(change, name)


@given(u32, st.booleans(), u32, st.sampled_from([Machine.AMD64, Machine.I386]))
def test_continue2(status, trace, dr7, machine) -> None:
    what = Continue2(status, trace, dr7)
    assert parse_continue2(continue2_union(what, machine).ljust(40, b"\0"), machine) == what


@given(st.lists(frames, max_size=8), st.integers(1, 50))
def test_frames_through_a_byte_stream(sent, size) -> None:
    stream = b"".join(encode_frame(frame) for frame in sent)
    deframer = Deframer(break_ins=True)
    events = []
    for start in range(0, len(stream), size):
        events += deframer.feed(stream[start : start + size], 0.0)
    assert events == sent


@given(st.binary(max_size=40), frames)
def test_a_frame_after_noise_is_found_in_the_end(noise, frame) -> None:
    deframer = Deframer(break_ins=False)
    raw = encode_frame(frame)
    events = deframer.feed(noise, 0.0) + deframer.feed(raw, 0.0)
    now = 0.0
    while deframer.next_deadline() is not None:
        now += 1.0
        events += deframer.tick(now)
    # Noise that is the start of a leader may cost the packet its own first bytes: sent again.
    events += deframer.feed(raw, now)
    assert frame in events


@given(frames)
def test_frames_as_datagrams(frame) -> None:
    assert decode_packet(encode_packet(frame)) == frame


@given(u8, st.integers(0, 1), st.integers(0, 2**56 - 1), st.booleans(), st.binary(max_size=200))
def test_datagrams(version, channel, sequence, from_host, payload) -> None:
    datagram = Datagram(version, channel, sequence, from_host, payload)
    raw = seal(KEY, KEY.control, datagram)
    assert len(raw) == 22 + 16 * math.ceil((8 + len(payload)) / 16)
    assert open_datagram(KEY, KEY.control, raw) == datagram
    assert open_datagram(KdnetKey.parse("1.2.3.5"), KEY.control, raw) is None


@given(st.lists(u64, min_size=4, max_size=4), st.booleans())
def test_keys(parts, upper) -> None:
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"

    def base36(number: int) -> str:
        text = ""
        while True:
            number, digit = divmod(number, 36)
            text = digits[digit] + text
            if not number:
                return text

    text = ".".join(base36(part) for part in parts)
    key = KdnetKey.parse(text.upper() if upper else text)
    assert key.control == b"".join(part.to_bytes(8, "little") for part in parts)


@given(st.builds(Version, *[u16, u16, u8, u8, u16, u16, u8, u8, u8, u8, u64, u64, u64]))
def test_version(version: Version) -> None:
    assert parse_version(build_version(version)) == version


@given(st.binary(max_size=400), st.sampled_from(sorted(Machine)))
def test_parsers_and_any_bytes(raw, machine) -> None:
    for parse in (parse_manipulate, lambda data: parse_state_change(data, machine), parse_version):
        with suppress(ProtocolError):
            parse(raw)
    parse_control_report(raw[:0x30], machine)
    for structure in (
        GET_VERSION64,
        DEBUG_IO,
        FILE_IO,
        FILE_IO_CREATE,
        CONTROL_REQUEST,
        TRACE_IO,
        POKE,
        RESPONSE,
    ):
        with suppress(ProtocolError):
            parse_structure(structure, "bytes", raw)
    decode_packet(raw)
    for kind in PacketType:
        with suppress(ProtocolError):
            answer_packet(Packet(kind, raw), lambda text: None)


@given(st.sampled_from([0x3030, 0x3031, 0x3032, 0x13030]), st.binary(min_size=0xBC, max_size=0x140))
def test_state_changes_with_a_known_state_and_any_body(state, body) -> None:
    parsed = parse_state_change(state.to_bytes(4, "little") + body)
    assert parsed.new_state == state & 0xFFFF


@given(st.lists(st.binary(max_size=120), max_size=10), st.sampled_from(list(Role)))
def test_a_serial_machine_and_any_bytes(chunks, role) -> None:
    machine = SerialMachine(role)
    now = 0.0
    for chunk in chunks:
        machine.receive(chunk, None, now)
        now += 0.1
        machine.tick(now)
        machine.take_output()
    for _ in range(3):
        now += 10
        machine.tick(now)
    assert all(event is not Signal.DAMAGED for event in machine.reliable.inbox)


@given(st.lists(frames, max_size=20), st.sampled_from(list(Role)))
def test_a_serial_machine_and_any_frames(sent, role) -> None:
    machine = SerialMachine(role)
    for number, frame in enumerate(sent):
        machine.receive(encode_frame(frame), None, float(number))
        # Never more than an answer, an ACK, and a repetition for one frame.
        assert len(machine.take_output()) <= 1
    assert len(machine.reliable.inbox) <= len(sent)


@given(st.lists(st.tuples(u8, st.integers(0, 1), u16, st.binary(max_size=400)), max_size=6))
def test_kdnet_machines_and_authentic_nonsense(sent) -> None:
    """Even someone who has the key cannot make a machine fail with what is inside."""
    host = KdnetHostMachine(KEY, random_bytes=bytes)
    target = KdnetTargetMachine(KEY, host=PEER, random_bytes=bytes)
    for machine, from_host in ((host, False), (target, True)):
        machine.start(0.0)
        machine.tick(0.0)
        for version, channel, sequence, payload in sent:
            datagram = Datagram(version, channel, sequence, from_host, payload)
            machine.receive(seal(KEY, KEY.control, datagram), PEER, 1.0)
            machine.receive(payload, PEER, 1.0)
            machine.take_output()
        assert not machine.connected


@given(
    st.text(max_size=60),
    st.sampled_from(["", "net:", "com:", "tcp:", "net:port=1,key=", "com:port="]),
)
def test_connection_strings(text, head) -> None:
    with suppress(BadConnection):
        assert parse_connection(head + text).where
