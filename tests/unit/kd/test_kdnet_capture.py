"""A real KDNET capture: the boot debugger of Windows 10 10586 and WinDbg, 955 datagrams.

The capture is not part of the project; where it lies beside it, every datagram must decrypt,
authenticate and parse.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import List, NamedTuple

import pytest
from kd_pcapng import read_datagrams

from kdleak.kd.kdnet_crypto import CHANNEL_CONTROL, Datagram, KdnetKey, open_datagram
from kdleak.kd.kdnet_machine import decode_packet, encode_packet
from kdleak.kd.kdnet_session import is_greeting
from kdleak.kd.packets import (
    Api,
    Machine,
    PacketType,
    StateChange,
    build_manipulate,
    build_state_change,
    parse_continue2,
    parse_manipulate,
    parse_memory_union,
    parse_state_change,
)
from kdleak.kd.reliable import Frame
from kdleak.kd.structures import DEBUG_IO, FILE_IO, POKE, RESPONSE, parse_version

CAPTURE = (
    Path(__file__).parents[3].parent / "shared" / "kdnet" / "boot-debugger-key-8.8.8.8.pcapng.gz"
)
KEY = KdnetKey.parse("8.8.8.8")

pytestmark = pytest.mark.skipif(
    not CAPTURE.exists(), reason="the real capture is not beside the project"
)


class Seen(NamedTuple):
    from_host: bool
    datagram: Datagram
    frame: Frame


@pytest.fixture(scope="module")
def seen() -> List[Seen]:
    """Every datagram, opened; ``frame`` is None for what is no KD packet."""
    result = []
    data_key = b""
    for number, captured in enumerate(read_datagrams(CAPTURE), 1):
        channel = captured.payload[5]
        key = KEY.control if channel == CHANNEL_CONTROL else data_key
        datagram = open_datagram(KEY, key, captured.payload)
        assert datagram is not None, f"datagram {number} is not authentic"
        assert datagram.from_host == (captured.source[0] == "192.168.2.1")
        if channel == CHANNEL_CONTROL and datagram.from_host:
            data_key = KEY.data_key(datagram.payload)
        frame = decode_packet(datagram.payload) if channel != CHANNEL_CONTROL else None
        result.append(Seen(datagram.from_host, datagram, frame))
    return result


def test_every_datagram_is_authentic_and_understood(seen) -> None:
    assert len(seen) == 955
    kinds: Counter = Counter()
    for _, datagram, frame in seen:
        assert datagram.version == 4
        if datagram.channel == CHANNEL_CONTROL:
            if datagram.from_host:
                RESPONSE.parse(datagram.payload)
                kinds["response"] += 1
            else:
                POKE.parse(datagram.payload)
                kinds["poke"] += 1
        elif frame is None:
            assert is_greeting(datagram.payload)
            kinds["greeting"] += 1
        else:
            assert encode_packet(frame) == datagram.payload
            kinds[PacketType(frame.type).name] += 1
    assert kinds == {
        "poke": 427,
        "response": 1,
        "greeting": 1,
        "FILE_IO": 66,
        "STATE_MANIPULATE": 187,
        "DEBUG_IO": 7,
        "ACKNOWLEDGE": 259,
        "RESEND": 2,
        "RESET": 2,
        "STATE_CHANGE64": 3,
    }


def test_the_start_of_the_session(seen) -> None:
    expected = [
        (False, 1, 3, None),
        (True, 1, 3, None),
        (False, 0, 1, None),
        (False, 0, 2, (PacketType.DEBUG_IO, 0)),
        (True, 0, 1, (PacketType.RESEND, 0)),
        (False, 0, 3, (PacketType.DEBUG_IO, 0)),
        (True, 0, 2, (PacketType.ACKNOWLEDGE, 0)),
        (False, 0, 4, (PacketType.STATE_CHANGE64, 2)),
        (True, 0, 3, (PacketType.ACKNOWLEDGE, 2)),
        (True, 0, 4, (PacketType.STATE_MANIPULATE, 0x80000000)),
        (False, 0, 5, (PacketType.ACKNOWLEDGE, 0x80000000)),
        (False, 0, 6, (PacketType.STATE_MANIPULATE, 4)),
        (True, 0, 5, (PacketType.ACKNOWLEDGE, 4)),
    ]
    start = [
        (
            entry.from_host,
            entry.datagram.channel,
            entry.datagram.sequence,
            (entry.frame.type, entry.frame.id) if entry.frame else None,
        )
        for entry in seen[:13]
    ]
    assert start == expected
    assert seen[2].datagram.payload.hex() == "00000000000000000102a8c0"


def test_pokes_count_as_we_count(seen) -> None:
    pokes = [
        entry.datagram
        for entry in seen
        if entry.datagram.channel == CHANNEL_CONTROL and not entry.from_host
    ]
    nonces = [int.from_bytes(POKE.parse(poke.payload).nonce, "little") for poke in pokes]
    assert [poke.sequence for poke in pokes] == list(range(3, 3 * len(pokes) + 1, 3))
    assert nonces == list(range(nonces[0], nonces[0] + len(pokes)))
    assert POKE.parse(pokes[0].payload).debugger_port == 0
    assert POKE.parse(pokes[1].payload).debugger_port == 51111


def test_state_changes(seen) -> None:
    changes: List[StateChange] = []
    for entry in seen:
        if entry.frame and entry.frame.type == PacketType.STATE_CHANGE64:
            change = parse_state_change(entry.frame.payload)
            changes.append(change)
            again = parse_state_change(build_state_change(change))
            assert again.control_report == change.control_report
            assert again.exception == change.exception
    load, stop, unload = changes
    assert load.load_symbols is not None
    assert load.load_symbols.path
    assert not load.load_symbols.unload
    assert stop.exception is not None
    assert stop.exception.code == 0x80000003
    assert stop.exception.first_chance
    # The boot debugger is the one that reports the place behind the int3.
    assert stop.program_counter == stop.exception.address + 1
    assert unload.load_symbols is not None
    assert unload.load_symbols.unload_all


def test_manipulate_packets(seen) -> None:
    apis: Counter = Counter()
    outstanding = None
    for entry in seen:
        if entry.frame is None or entry.frame.type != PacketType.STATE_MANIPULATE:
            continue
        packet = parse_manipulate(entry.frame.payload)
        rebuilt = build_manipulate(
            packet.api, packet.processor, packet.union, packet.data, packet.status, packet.level
        )
        assert rebuilt[:12] + rebuilt[16:] == entry.frame.payload[:12] + entry.frame.payload[16:]
        if entry.from_host:
            outstanding = packet
            apis[Api(packet.api)] += 1
            if packet.api == Api.CONTINUE2 and packet.union[:4] == b"\x02\x00\x01\x00":
                go = parse_continue2(packet.union)
                assert (go.trace, go.dr7, go.symbol_start, go.symbol_end) == (False, 0x400, 1, 0)
        else:
            assert outstanding is not None
            assert packet.api == outstanding.api
            if packet.api in (Api.READ_VIRTUAL, Api.WRITE_VIRTUAL):
                # The union comes back in place: what KdHost relies on to match replies.
                assert packet.union[:8] == outstanding.union[:8]
                _, count, actual = parse_memory_union(packet.union)
                assert actual == len(packet.data) if packet.succeeded else actual == 0
                assert actual <= count
            if packet.api == Api.GET_VERSION:
                version = parse_version(packet.union)
                assert version.build == 10586
                assert version.machine == Machine.AMD64
                assert version.debuggee_kind == 4
            if packet.api == Api.GET_CONTEXT:
                assert len(packet.data) == 0x4D0
            if packet.api == Api.GET_CONTEXT_EX:
                assert packet.status == 0xC0000001
    assert apis[Api.READ_VIRTUAL] > 30
    assert apis[Api.RESTORE_BREAKPOINT] >= 32


def test_debug_io_and_file_io(seen) -> None:
    texts = b""
    for entry in seen:
        if entry.frame and entry.frame.type == PacketType.DEBUG_IO:
            io = DEBUG_IO.parse(entry.frame.payload)
            assert io.length == len(io.text)
            texts += io.text
        if entry.frame and entry.frame.type == PacketType.FILE_IO:
            FILE_IO.parse(entry.frame.payload)
    assert texts
