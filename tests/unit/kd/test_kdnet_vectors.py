"""Known-answer vectors of KDNET, both ways: what we make, and what we understand."""

from __future__ import annotations

import hashlib
import json
import pickle
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from kdleak.errors import BadConnection
from kdleak.kd.kdnet_crypto import (
    CHANNEL_CONTROL,
    CHANNEL_DATA,
    Datagram,
    KdnetKey,
    looks_like_kdnet,
    open_datagram,
    seal,
)
from kdleak.kd.kdnet_machine import decode_packet, encode_packet
from kdleak.kd.kdnet_session import HostSession, TargetSession, build_greeting, is_greeting
from kdleak.kd.packets import PacketType
from kdleak.kd.reliable import Frame
from kdleak.kd.structures import POKE, RESPONSE

VECTORS = json.loads((Path(__file__).parent / "kdnet_vectors.json").read_text())
KEY = KdnetKey.parse(VECTORS["key_text"])
DATA_KEY = bytes.fromhex(VECTORS["data_key"])
CLIENT_NONCE = bytes(range(0x10, 0x30))
HOST_NONCE = bytes(range(0x80, 0xA0))
HOST = ("10.0.0.1", 50000)
TARGET = ("10.0.0.2", 50000)


def raw(name: str) -> bytes:
    return bytes.fromhex(VECTORS[name])


def test_key_text() -> None:
    assert KEY.control == raw("control_key")
    assert KdnetKey.parse(VECTORS["key_text"].upper()) == KEY
    assert KEY._mac == raw("hmac_key")


def test_poke_is_made_and_understood() -> None:
    session = TargetSession(KEY, host=HOST, own=TARGET, random_bytes=lambda size: CLIENT_NONCE)
    session.start(0.0)
    session.tick(0.0)
    assert session.outgoing == [(raw("poke"), HOST)]
    assert len(raw("poke")) == 374
    digest = hashlib.sha256(raw("poke")).hexdigest()
    assert digest == "02785c8e6d07938324ca3fe1a9de419c1e011be67058e4f3286461b582bdaa98"
    opened = open_datagram(KEY, KEY.control, raw("poke"))
    assert opened is not None
    assert (opened.version, opened.channel, opened.sequence, opened.from_host) == (5, 1, 3, False)
    assert len(opened.payload) == VECTORS["poke_payload_len"]
    poke = POKE.parse(opened.payload)
    assert poke.nonce == CLIENT_NONCE
    assert (poke.target_port, poke.host_port, poke.debugger_port) == (50000, 50000, 0)
    assert poke.target_address[-4:] == bytes((10, 0, 0, 2))


def test_response_is_made_and_understood() -> None:
    host = HostSession(KEY, random_bytes=lambda size: HOST_NONCE)
    assert host.open(raw("poke"), TARGET, 0.0) is None
    assert host.outgoing == [(raw("response"), TARGET)]
    opened = open_datagram(KEY, KEY.control, raw("response"))
    assert opened is not None
    assert opened.from_host
    assert len(opened.payload) == VECTORS["resp_payload_len"]
    response = RESPONSE.parse(opened.payload)
    assert (response.client_nonce, response.host_nonce) == (CLIENT_NONCE, HOST_NONCE)
    assert KEY.data_key(opened.payload) == DATA_KEY


def test_the_data_channel_as_both_roles_make_it() -> None:
    host = HostSession(KEY, random_bytes=lambda size: HOST_NONCE)
    target = TargetSession(KEY, host=HOST, own=TARGET, random_bytes=lambda size: CLIENT_NONCE)
    target.start(0.0)
    target.tick(0.0)
    host.open(target.outgoing[0][0], TARGET, 0.0)
    target.open(host.outgoing[0][0], HOST, 0.0)
    greeting = build_greeting(HOST[0])
    assert greeting.hex() == VECTORS["connect_data_payload"]
    assert is_greeting(greeting)
    assert target.seal(greeting) == (raw("connect_data"), HOST)
    assert host.open(raw("connect_data"), TARGET, 0.0) == greeting
    assert host.seal(encode_packet(Frame(PacketType.RESEND, 0))) == (raw("host_resend"), TARGET)
    assert host.seal(b"b") == (raw("host_break"), TARGET)
    payload = target.open(raw("host_resend"), HOST, 0.0)
    assert payload is not None
    assert decode_packet(payload) == Frame(PacketType.RESEND, 0)
    assert target.open(raw("host_break"), HOST, 0.0) == b"b"


@pytest.mark.parametrize("name", ["poke", "response", "connect_data", "host_resend", "host_break"])
def test_a_single_changed_bit_anywhere_is_noticed(name: str) -> None:
    original = raw(name)
    key = KEY.control if original[5] == CHANNEL_CONTROL else DATA_KEY
    assert open_datagram(KEY, key, original) is not None
    for place in range(len(original)):
        damaged = bytearray(original)
        damaged[place] ^= 1
        assert open_datagram(KEY, key, bytes(damaged)) is None


@pytest.mark.parametrize("size", [0, 1, 4, 5, 6, 21, 22, 37])
def test_short_datagrams_are_refused(size: int) -> None:
    assert not looks_like_kdnet(raw("host_break")[:size])
    assert open_datagram(KEY, DATA_KEY, raw("host_break")[:size]) is None


def seal_plain(plain: bytes) -> bytes:
    """A datagram with this plaintext, authentic whatever it holds."""
    header = b"MDBG\x05\x00"
    tag = KEY.tag(header + plain)
    encryptor = Cipher(algorithms.AES(DATA_KEY), modes.CBC(tag)).encryptor()
    return header + encryptor.update(plain) + encryptor.finalize() + tag


@pytest.mark.parametrize("meta", [0x18, 0x28, 0x48, 0x09, 0x0F, 0x89])
def test_meta_bits_that_must_be_zero_and_too_much_padding_are_refused(meta: int) -> None:
    good = seal_plain(bytes(6) + b"\x01\x88" + bytes(8))
    assert open_datagram(KEY, DATA_KEY, good) == Datagram(5, CHANNEL_DATA, 1, True, b"")
    bad = seal_plain(bytes(6) + b"\x01" + bytes((meta,)) + bytes(8))
    assert open_datagram(KEY, DATA_KEY, bad) is None


def test_an_empty_payload() -> None:
    empty = Datagram(5, CHANNEL_DATA, 1, True, b"")
    sealed = seal(KEY, DATA_KEY, empty)
    assert sealed == seal_plain(bytes(6) + b"\x01\x88" + bytes(8))
    assert len(sealed) == 38


def test_sequence_numbers_have_56_bits() -> None:
    top = Datagram(5, CHANNEL_DATA, (1 << 56) - 1, False, b"abc")
    assert open_datagram(KEY, DATA_KEY, seal(KEY, DATA_KEY, top)) == top
    with pytest.raises(ValueError, match="56 bits"):
        seal(KEY, DATA_KEY, Datagram(5, CHANNEL_DATA, 1 << 56, False, b""))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1.2.3",
        "1.2.3.4.5",
        "1..3.4",
        "secretpart!.2.3.4",
        "zzzzzzzzzzzzz.1.1.1",
        "3w5e11264sgsg.1.1.1",
        "00000000000001.1.1.1",
        "ü.1.1.1",
        "1.2.3.-4",
    ],
)
def test_bad_keys_are_refused_without_quoting_them(text: str) -> None:
    with pytest.raises(BadConnection) as caught:
        KdnetKey.parse(text)
    for part in text.split("."):
        if len(part) > 3:
            assert part not in str(caught.value)
            assert part not in repr(caught.value)


def test_the_largest_key_part_is_accepted() -> None:
    assert KdnetKey.parse("3w5e11264sgsf.0.0.0").control[:8] == b"\xff" * 8


def test_a_key_does_not_show_itself() -> None:
    for shown in (repr(KEY), str(KEY), f"{KEY}", f"{[KEY]}"):
        assert "steg4" not in shown
        assert VECTORS["control_key"][:8] not in shown
    with pytest.raises(TypeError):
        pickle.dumps(KEY)
    assert not hasattr(KEY, "__dict__")


def test_keys_compare_by_value() -> None:
    assert KdnetKey(raw("control_key")) == KEY
    assert hash(KEY) == hash(KdnetKey(raw("control_key")))
    assert KdnetKey.parse("1.2.3.4") != KEY
    assert VECTORS["key_text"] != KEY
    with pytest.raises(ValueError, match="32 bytes"):
        KdnetKey(b"short")
