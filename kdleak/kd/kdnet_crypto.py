"""KDNET keys, and sealing and opening of its datagrams (AES-256-CBC, HMAC-SHA256).

A datagram is ``MDBG``, version, channel, ciphertext, tag; the tag is also the IV. The tag covers
the 6 header bytes and the plaintext and is made with the inverted control key on both channels.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import NoReturn

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from kdleak.errors import BadConnection

MAGIC = b"MDBG"
CHANNEL_DATA = 0
CHANNEL_CONTROL = 1
HEADER_SIZE = 6
TAG_SIZE = 16
MAX_DATAGRAM = 0x4000

_BLOCK = 16
_PREFIX = 8
_FROM_HOST = 0x80
_SEQUENCE_LIMIT = 1 << 56
_DIGITS = frozenset("0123456789abcdefghijklmnopqrstuvwxyz")


class KdnetKey:
    """The 256-bit control key of a KDNET connection. It never shows itself.

    Make one with ``KdnetKey.parse``. ``bytes`` are reachable only for the code that seals and
    opens datagrams; printing, pickling and copying do not reveal or spread them.
    """

    __slots__ = ("_control", "_mac")

    def __init__(self, control: bytes) -> None:
        if len(control) != 32:
            msg = "a KDNET control key has 32 bytes"
            raise ValueError(msg)
        self._control = control
        self._mac = bytes(byte ^ 0xFF for byte in control)

    @classmethod
    def parse(cls, text: str) -> KdnetKey:
        """Read the four base-36 numbers ``a.b.c.d``; letters in either case.

        Raises:
            BadConnection: not four numbers, a character outside 0-9a-z, or a number above
                2^64-1. The text itself is never quoted.
        """
        parts = text.strip().lower().split(".")
        if len(parts) != 4:
            cls._refuse(f"{len(parts)} parts separated by dots instead of 4")
        control = b""
        for number, part in enumerate(parts, 1):
            if not part or not _DIGITS.issuperset(part):
                cls._refuse(f"part {number} is not made of the characters 0-9 and a-z")
            if len(part) > 13 or int(part, 36) >= 1 << 64:
                cls._refuse(f"part {number} is larger than 64 bits")
            control += int(part, 36).to_bytes(8, "little")
        return cls(control)

    @staticmethod
    def _refuse(why: str) -> NoReturn:
        raise BadConnection(
            "reading the KDNET key",
            why,
            "copy the key as the target printed it (bcdedit /dbgsettings shows it)",
        )

    @property
    def control(self) -> bytes:
        """The CBC key of the control channel."""
        return self._control

    def data_key(self, response: bytes) -> bytes:
        """The CBC key of the data channel that the 322-byte handshake response agrees on."""
        return hashlib.sha256(self._control + response).digest()

    def tag(self, message: bytes) -> bytes:
        """First 16 bytes of the HMAC-SHA256 of header and plaintext."""
        return hmac.digest(self._mac, message, "sha256")[:TAG_SIZE]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KdnetKey):
            return NotImplemented
        return hmac.compare_digest(self._control, other._control)

    def __hash__(self) -> int:
        return hash((KdnetKey, self._control))

    def __repr__(self) -> str:
        return "KdnetKey(hidden)"

    def __reduce__(self) -> NoReturn:
        msg = "a KDNET key is not pickled or copied"
        raise TypeError(msg)


@dataclass(frozen=True)
class Datagram:
    """An authentic datagram, opened.

    Attributes:
        version: protocol version byte; to be echoed.
        channel: CHANNEL_DATA or CHANNEL_CONTROL.
        sequence: 56-bit sequence number.
        from_host: direction bit.
        payload: what it carries, padding removed.
    """

    version: int
    channel: int
    sequence: int
    from_host: bool
    payload: bytes


def looks_like_kdnet(raw: bytes) -> bool:
    """Whether the outside of a datagram has the form of KDNET; says nothing of its key."""
    return (
        HEADER_SIZE + _BLOCK + TAG_SIZE <= len(raw) <= MAX_DATAGRAM
        and raw.startswith(MAGIC)
        and raw[5] in (CHANNEL_DATA, CHANNEL_CONTROL)
        and (len(raw) - HEADER_SIZE - TAG_SIZE) % _BLOCK == 0
    )


def seal(key: KdnetKey, cbc_key: bytes, datagram: Datagram) -> bytes:
    """Encrypt and authenticate a datagram; ``cbc_key`` is the control or the data key."""
    if not 0 <= datagram.sequence < _SEQUENCE_LIMIT:
        msg = "a KDNET sequence number has 56 bits"
        raise ValueError(msg)
    pad = -(_PREFIX + len(datagram.payload)) % _BLOCK
    header = MAGIC + bytes((datagram.version, datagram.channel))
    plain = b"".join(
        (
            datagram.sequence.to_bytes(7, "big"),
            bytes(((_FROM_HOST if datagram.from_host else 0) | pad,)),
            datagram.payload,
            bytes(pad),
        )
    )
    tag = key.tag(header + plain)
    encryptor = Cipher(algorithms.AES(cbc_key), modes.CBC(tag)).encryptor()
    return header + encryptor.update(plain) + encryptor.finalize() + tag


def open_datagram(key: KdnetKey, cbc_key: bytes, raw: bytes) -> Datagram | None:
    """Decrypt and authenticate; None for anything that is not authentic and well formed."""
    if not looks_like_kdnet(raw):
        return None
    tag = raw[-TAG_SIZE:]
    decryptor = Cipher(algorithms.AES(cbc_key), modes.CBC(tag)).decryptor()
    plain = decryptor.update(raw[HEADER_SIZE:-TAG_SIZE]) + decryptor.finalize()
    if not hmac.compare_digest(key.tag(raw[:HEADER_SIZE] + plain), tag):
        return None
    meta = plain[7]
    end = len(plain) - (meta & 15)
    if meta & 0x70 or end < _PREFIX:
        return None
    return Datagram(
        raw[4], raw[5], int.from_bytes(plain[:7], "big"), bool(meta & _FROM_HOST), plain[8:end]
    )
