"""KDNET below the KD packets: handshake, data keys, sequence numbers, replay protection.

No I/O: datagrams go in with their source, payloads and datagrams come out. A host keeps a data
key it has offered as a *candidate* until the target has used it: so a replayed or delayed poke
cannot break a session, and whichever of two responses the target took, the host understands it.
"""

from __future__ import annotations

import ipaddress
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from kdleak.errors import ProtocolError
from kdleak.kd.kdnet_crypto import (
    CHANNEL_CONTROL,
    CHANNEL_DATA,
    MAGIC,
    Datagram,
    KdnetKey,
    looks_like_kdnet,
    open_datagram,
    seal,
)
from kdleak.kd.machine import Address, Parcel
from kdleak.kd.structures import POKE, RESPONSE, parse_structure

POKE_SECONDS = 3.0
POKE_SEQUENCE_STEP = 3
CALL_SECONDS = 0.5
CURRENT_VERSION = 5
GREETING_SIZE = 12
SILENT_SECONDS = 10.0
"""A target pokes every 3 seconds whatever it does; silent for longer, it is gone."""

_NONCE_SIZE = 32
_NONCE_MASK = (1 << 256) - 1
_SAME_BOOT_POKES = 1 << 24
_CANDIDATES = 4
_RECENT_POKES = 8
_MAPPED = bytes(10) + b"\xff\xff"


@dataclass
class Channel:
    """The data channel under one data key."""

    cbc_key: bytes
    address: Address
    version: int
    nonce: int
    response: bytes = b""
    sent: int = 0
    received: int = 0

    def __repr__(self) -> str:
        return f"Channel(address={self.address}, sent={self.sent}, received={self.received})"


def pack_address(address: str) -> bytes:
    """16 bytes: IPv6, or IPv4 mapped into it. What is no IP address becomes mapped 0.0.0.0."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return _MAPPED + bytes(4)
    return parsed.packed if parsed.version == 6 else _MAPPED + parsed.packed


def is_greeting(payload: bytes) -> bool:
    """Whether this is the 12-byte datagram that is no KD packet (8 zeros, host IPv4)."""
    return len(payload) == GREETING_SIZE and payload.startswith(bytes(8))


def build_greeting(host: str) -> bytes:
    """First data payload of a target: 8 zero bytes, the host's IPv4 address little-endian."""
    return bytes(8) + pack_address(host)[:11:-1]


class _Session:
    """What both roles do with a datagram; each knows its own control and data."""

    rejected: int

    def open(self, raw: bytes, source: Address, now: float) -> bytes | None:
        """Take in a datagram; returns the payload of a new, authentic data datagram."""
        payload = None
        taken = False
        if looks_like_kdnet(raw):
            if raw[5] == CHANNEL_CONTROL:
                taken = self._take_control(raw, source, now)
            else:
                payload = self._take_data(raw, source, now)
                taken = payload is not None
        if not taken:
            self.rejected += 1
        return payload

    def _take_control(self, raw: bytes, source: Address, now: float) -> bool:
        raise NotImplementedError

    def _take_data(self, raw: bytes, source: Address, now: float) -> bytes | None:
        raise NotImplementedError


class HostSession(_Session):
    """The debugger's half of the handshake and the channel.

    Args:
        key: control key.
        random_bytes: source of host nonces.
        call: address to send host-initiated calls to until a target answers, or None.

    Attributes:
        outgoing: datagrams of the control channel to be sent.
        generation: grows when the target starts to use a new data key.
        reboots: grows when that happens after the target has booted again.
        rejected: datagrams dropped, for whatever reason.
        foreign: control datagrams that have the right form and the wrong key.
        alive_at: time of the last authentic datagram.
        doubtful: set by the owner when the target no longer reacts: then a poke that names a
            debugger is answered too, in case both sides disagree about the data key.
    """

    def __init__(
        self,
        key: KdnetKey,
        *,
        random_bytes: Callable[[int], bytes],
        call: Address | None = None,
    ) -> None:
        self.outgoing: list[Parcel] = []
        self.generation = 0
        self.reboots = 0
        self.rejected = 0
        self.foreign = 0
        self.alive_at: float | None = None
        self.doubtful = False
        self._channel_alive_at = 0.0
        self._key = key
        self._random = random_bytes
        self._call = call
        self._next_call: float | None = None
        self._calls = 0
        self._channel: Channel | None = None
        self._candidates: deque[Channel] = deque(maxlen=_CANDIDATES)
        self._last_nonce: int | None = None

    @property
    def ready(self) -> bool:
        """Whether the target uses a data key of ours."""
        return self._channel is not None

    def start(self, now: float) -> None:
        """Begin calling the target, when this session is to call."""
        if self._call is not None:
            self._next_call = now

    def next_deadline(self) -> float | None:
        """When the next call is due."""
        return None if self.ready else self._next_call

    def tick(self, now: float) -> None:
        """Call the target when it is time and nobody has answered yet."""
        deadline = self.next_deadline()
        if deadline is None or now < deadline or self._call is None:
            return
        self._next_call = now + CALL_SECONDS
        self._calls += 1
        call = Datagram(CURRENT_VERSION, CHANNEL_CONTROL, self._calls, True, b"")
        self.outgoing.append((seal(self._key, self._key.control, call), self._call))

    def forget(self, now: float) -> None:
        """Give the channel up: the next authentic poke of whatever target is answered."""
        self._channel = None
        self._candidates.clear()
        self.start(now)

    def seal(self, payload: bytes) -> Parcel | None:
        """A data datagram with a fresh sequence number; None while there is no channel."""
        channel = self._channel
        if channel is None:
            return None
        channel.sent += 1
        datagram = Datagram(channel.version, CHANNEL_DATA, channel.sent, True, payload)
        return seal(self._key, channel.cbc_key, datagram), channel.address

    def _take_data(self, raw: bytes, source: Address, now: float) -> bytes | None:
        for channel in (self._channel, *self._candidates):
            if channel is None or channel.address != source:
                continue
            datagram = open_datagram(self._key, channel.cbc_key, raw)
            if datagram is None:
                continue
            if datagram.from_host or datagram.sequence <= channel.received:
                return None
            channel.received = datagram.sequence
            if channel is not self._channel:
                self._adopt(channel)
            self.doubtful = False
            self._heard(source, now)
            return datagram.payload
        return None

    def _adopt(self, channel: Channel) -> None:
        """The target has used this key: it counts, and what was offered later still may."""
        before = self._last_nonce
        if before is not None:
            pokes_since = (channel.nonce - before) & _NONCE_MASK
            if pokes_since >= _SAME_BOOT_POKES:
                self.reboots += 1
        self._last_nonce = channel.nonce
        self._channel = channel
        self.doubtful = False
        newer = [
            other
            for other in self._candidates
            if 0 < (other.nonce - channel.nonce) & _NONCE_MASK < _SAME_BOOT_POKES
        ]
        self._candidates = deque(newer, maxlen=_CANDIDATES)
        self.generation += 1

    def _take_control(self, raw: bytes, source: Address, now: float) -> bool:
        datagram = open_datagram(self._key, self._key.control, raw)
        if datagram is None:
            self.foreign += 1
            return False
        if datagram.from_host:
            return False
        try:
            poke = parse_structure(POKE, "a KDNET poke", datagram.payload)
        except ProtocolError:
            return False
        if self._is_another_machine(source, now):
            return False
        if self._is_keepalive(source, poke.debugger_port):
            self._heard(source, now)
            return True
        self.alive_at = now
        self._answer(datagram, poke.nonce, source)
        return True

    def _heard(self, source: Address, now: float) -> None:
        self.alive_at = now
        if self._channel is not None and source == self._channel.address:
            self._channel_alive_at = now

    def _is_another_machine(self, source: Address, now: float) -> bool:
        """Whether a poke comes from elsewhere while our target is well: one port, one target."""
        return (
            self._channel is not None
            and source[0] != self._channel.address[0]
            and now - self._channel_alive_at < SILENT_SECONDS
        )

    def _is_keepalive(self, source: Address, debugger_port: int) -> bool:
        """Whether a poke only says that the target is still there and still ours."""
        if self._channel is None or debugger_port == 0:
            return False
        if source[0] != self._channel.address[0]:
            # Another machine with the same key that has a debugger: not our affair.
            return True
        return not (self._candidates or self.doubtful)

    def _answer(self, poke: Datagram, nonce: bytes, source: Address) -> None:
        number = int.from_bytes(nonce, "little")
        if self._channel is not None and self._channel.nonce == number:
            return
        known = [channel for channel in self._candidates if channel.nonce == number]
        if known:
            # The same poke again: the same answer, so that both sides agree on one key.
            response = known[0].response
        else:
            response = bytes(
                RESPONSE.build({"client_nonce": nonce, "host_nonce": self._random(_NONCE_SIZE)})
            )
            self._candidates.append(
                Channel(self._key.data_key(response), source, poke.version, number, response)
            )
        answer = Datagram(poke.version, CHANNEL_CONTROL, poke.sequence, True, response)
        self.outgoing.append((seal(self._key, self._key.control, answer), source))


class TargetSession(_Session):
    """The debuggee's half of the handshake and the channel.

    Args:
        key: control key.
        host: configured address of the host.
        own: own address as told in pokes.
        version: protocol version byte.
        random_bytes: source of the first nonce.

    Attributes:
        outgoing, rejected, alive_at: as in HostSession.
        generation: grows when a debugger's response is accepted.
    """

    def __init__(
        self,
        key: KdnetKey,
        *,
        host: Address,
        own: Address = ("0.0.0.0", 0),  # noqa: S104
        version: int = CURRENT_VERSION,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self.outgoing: list[Parcel] = []
        self.generation = 0
        self.rejected = 0
        self.alive_at: float | None = None
        self._key = key
        self._host = host
        self._own = own
        self._version = version
        self._nonce = int.from_bytes(random_bytes(_NONCE_SIZE), "little")
        self._sequence = 0
        self._recent: deque[bytes] = deque(maxlen=_RECENT_POKES)
        self._next_poke: float | None = None
        self._last_call_at: float | None = None
        self._channel: Channel | None = None

    @property
    def ready(self) -> bool:
        """Whether a debugger has been accepted."""
        return self._channel is not None

    def start(self, now: float) -> None:
        """Begin poking."""
        self._next_poke = now

    def next_deadline(self) -> float | None:
        """When the next poke is due."""
        return self._next_poke

    def tick(self, now: float) -> None:
        """Poke when it is time."""
        if self._next_poke is not None and now >= self._next_poke:
            self._next_poke = now + POKE_SECONDS
            self._poke(self._host)

    def _poke(self, to: Address) -> None:
        self._sequence += POKE_SEQUENCE_STEP
        nonce = self._nonce.to_bytes(_NONCE_SIZE, "little")
        self._nonce = (self._nonce + 1) & _NONCE_MASK
        self._recent.append(nonce)
        debugger = self._channel.address if self._channel is not None else ("", 0)
        payload = POKE.build(
            {
                "nonce": nonce,
                "target_address": pack_address(self._own[0]),
                "target_port": self._own[1],
                "host_address": pack_address(self._host[0]),
                "host_port": self._host[1],
                "debugger_address": pack_address(debugger[0]),
                "debugger_port": debugger[1],
            }
        )
        poke = Datagram(self._version, CHANNEL_CONTROL, self._sequence, False, bytes(payload))
        self.outgoing.append((seal(self._key, self._key.control, poke), to))

    def seal(self, payload: bytes) -> Parcel | None:
        """As HostSession.seal."""
        channel = self._channel
        if channel is None:
            return None
        channel.sent += 1
        datagram = Datagram(self._version, CHANNEL_DATA, channel.sent, False, payload)
        return seal(self._key, channel.cbc_key, datagram), channel.address

    def _take_data(self, raw: bytes, source: Address, now: float) -> bytes | None:
        channel = self._channel
        if channel is None or channel.address != source:
            return None
        datagram = open_datagram(self._key, channel.cbc_key, raw)
        if datagram is None or not datagram.from_host or datagram.sequence <= channel.received:
            return None
        channel.received = datagram.sequence
        self.alive_at = now
        return datagram.payload

    def _take_control(self, raw: bytes, source: Address, now: float) -> bool:
        datagram = open_datagram(self._key, self._key.control, raw)
        if datagram is None or not datagram.from_host:
            return False
        if not datagram.payload:
            if self._last_call_at is None or now - self._last_call_at >= CALL_SECONDS / 5:
                self._last_call_at = now
                self._poke(source)
            return True
        try:
            response = parse_structure(RESPONSE, "a KDNET response", datagram.payload)
        except ProtocolError:
            return False
        nonce = response.client_nonce
        if nonce not in self._recent:
            return False
        # This poke and those before it are used up: a repeated response changes nothing.
        while self._recent.popleft() != nonce:
            pass
        self._channel = Channel(
            self._key.data_key(datagram.payload),
            source,
            self._version,
            int.from_bytes(nonce, "little"),
        )
        self.generation += 1
        self.alive_at = now
        return True


__all__ = [
    "CALL_SECONDS",
    "CURRENT_VERSION",
    "MAGIC",
    "POKE_SECONDS",
    "SILENT_SECONDS",
    "HostSession",
    "TargetSession",
    "build_greeting",
    "is_greeting",
    "pack_address",
]
