"""KD over KDNET as a state machine: session and delivery put together. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Union

from kdleak.kd.kdnet_crypto import KdnetKey
from kdleak.kd.kdnet_session import (
    CURRENT_VERSION,
    HostSession,
    TargetSession,
    build_greeting,
    is_greeting,
)
from kdleak.kd.link import Statistics
from kdleak.kd.machine import Address, Parcel, earliest
from kdleak.kd.numbering import KdnetReliable
from kdleak.kd.packets import BREAK_IN_BYTE, CONTROL_TYPES, DATA_TYPES, PacketType
from kdleak.kd.reliable import Frame, Role
from kdleak.kd.serial_framing import CONTROL_LEADER, DATA_LEADER, HEADER, encode_frame

BREAK_IN_LIMIT = 1
"""A break-in is one datagram and repeated by the host: more than one waiting means nothing."""

_DOUBT_AFTER_BREAK_INS = 4


def encode_packet(frame: Frame) -> bytes:
    """A KD packet as the payload of a datagram: as on a byte stream, without the 0xAA."""
    raw = encode_frame(frame)
    return raw if frame.type in CONTROL_TYPES else raw[:-1]


def decode_packet(payload: bytes) -> Frame | None:
    """The KD packet that a datagram carries, None when it is none."""
    if len(payload) < HEADER.size:
        return None
    leader, kind, length, packet_id, checksum = HEADER.unpack_from(payload)
    body = payload[HEADER.size :]
    if length != len(body):
        return None
    if leader == CONTROL_LEADER and kind in CONTROL_TYPES and not body:
        return Frame(kind, packet_id)
    if leader == DATA_LEADER and kind in DATA_TYPES and sum(body) & 0xFFFFFFFF == checksum:
        return Frame(kind, packet_id, body)
    return None


class _KdnetMachine:
    """What both roles share."""

    _session: Union[HostSession, TargetSession]

    def __init__(self, role: Role, retry: float, tries: int) -> None:
        self.reliable = KdnetReliable(role, retry=retry, tries=tries)
        self.reliable.suspended = True
        self.statistics = Statistics()
        self.break_ins = 0
        self.reboots = 0
        self._out: list[Parcel] = []
        self._generation = 0

    def start(self, now: float) -> None:
        """Begin poking (target) or calling (host, when it was told whom)."""
        self._session.start(now)

    @property
    def alive_at(self) -> float | None:
        """Time of the last authentic datagram."""
        return self._session.alive_at

    @property
    def connected(self) -> bool:
        """Whether both sides use one data key."""
        return self._session.ready

    def receive(self, data: bytes, source: Address | None, now: float) -> None:
        """Take in one datagram."""
        self.statistics.bytes_received += len(data)
        self.statistics.datagrams_received += 1
        if source is None:
            return
        payload = self._session.open(data, source, now)
        if self._session.generation != self._generation:
            self._generation = self._session.generation
            self._on_new_channel(source, now)
        if payload is not None:
            self._on_payload(payload, now)
        self.statistics.rejected = self._session.rejected

    def _on_new_channel(self, source: Address, now: float) -> None:
        raise NotImplementedError

    def _on_payload(self, payload: bytes, now: float) -> None:
        frame = decode_packet(payload)
        if frame is not None:
            self.reliable.on_frame(frame, now)
        else:
            self._on_other(payload)

    def _on_other(self, payload: bytes) -> None:
        raise NotImplementedError

    def tick(self, now: float) -> None:
        """Poke or call, send again what was not acknowledged."""
        self._session.tick(now)
        self.reliable.tick(now)

    def next_deadline(self) -> float | None:
        """When ``tick`` is due next."""
        return earliest(self._session.next_deadline(), self.reliable.next_deadline())

    def take_output(self) -> list[Parcel]:
        """Datagrams to send."""
        for frame in self.reliable.take_frames():
            self._put(encode_packet(frame))
        out = self._session.outgoing + self._out
        self._session.outgoing = []
        self._out = []
        self.statistics.resends = self.reliable.resends
        self.statistics.datagrams_sent += len(out)
        self.statistics.bytes_sent += sum(len(data) for data, _ in out)
        return out

    def _put(self, payload: bytes) -> None:
        parcel = self._session.seal(payload)
        if parcel is not None:
            self._out.append(parcel)

    def send_break_in(self) -> None:
        """Send one datagram that holds 0x62; nothing while there is no channel."""
        self._put(BREAK_IN_BYTE)


class KdnetHostMachine(_KdnetMachine):
    """The debugger's end. See ``machine.Machine``."""

    def __init__(
        self,
        key: KdnetKey,
        *,
        random_bytes: Callable[[int], bytes],
        call: Address | None = None,
        retry: float = 0.5,
        tries: int = 10,
    ) -> None:
        super().__init__(Role.HOST, retry, tries)
        self._session: HostSession = HostSession(key, random_bytes=random_bytes, call=call)
        self._break_ins_unanswered = 0

    def _on_new_channel(self, source: Address, now: float) -> None:
        del source
        self.reliable.suspended = False
        if self._session.reboots != self.reboots:
            self.reboots = self._session.reboots
            # What the machine said before it booted again is history.
            self.reliable.inbox.clear()
        self.reliable.resynchronise(now)

    def _on_other(self, payload: bytes) -> None:
        if is_greeting(payload):
            self._put(encode_packet(Frame(PacketType.RESEND, 0)))
        else:
            self._session.rejected += 1

    def tick(self, now: float) -> None:
        """As described, and doubt the channel when the target no longer reacts."""
        super().tick(now)
        if self.reliable.in_trouble:
            self._session.doubtful = True

    def send_break_in(self) -> None:
        """As described; several in a row without any answer cast doubt on the channel."""
        super().send_break_in()
        self._break_ins_unanswered += 1
        if self._break_ins_unanswered >= _DOUBT_AFTER_BREAK_INS:
            self._session.doubtful = True

    def _on_payload(self, payload: bytes, now: float) -> None:
        self._break_ins_unanswered = 0
        super()._on_payload(payload, now)

    def find_refusal(self) -> str:
        """How many datagrams had the form of KDNET and another key."""
        foreign = self._session.foreign
        if foreign >= 2 and self._session.alive_at is None:
            return f"{foreign} KDNET datagrams arrived, none of them was made with the key given"
        return ""

    def forget(self, now: float) -> None:
        """Drop the channel and wait for a poke."""
        self.reliable.cancel()
        self.reliable.suspended = True
        self._session.forget(now)


class KdnetTargetMachine(_KdnetMachine):
    """The debuggee's end. See ``machine.Machine``."""

    def __init__(
        self,
        key: KdnetKey,
        *,
        host: Address,
        own: Address = ("0.0.0.0", 0),  # noqa: S104
        version: int = CURRENT_VERSION,
        random_bytes: Callable[[int], bytes],
        retry: float = 0.5,
    ) -> None:
        super().__init__(Role.TARGET, retry, tries=10)
        self._session: TargetSession = TargetSession(
            key, host=host, own=own, version=version, random_bytes=random_bytes
        )

    def _on_new_channel(self, source: Address, now: float) -> None:
        self.reliable.suspended = False
        self.break_ins = 0
        self._put(build_greeting(source[0]))
        self.reliable.resynchronise(now)

    def _on_other(self, payload: bytes) -> None:
        if payload == BREAK_IN_BYTE:
            if not self.reliable.stopped:
                self.break_ins = min(self.break_ins + 1, BREAK_IN_LIMIT)
        else:
            self._session.rejected += 1

    def find_refusal(self) -> str:
        """A target does not ask."""
        return ""

    def forget(self, now: float) -> None:
        """A target does not forget its debugger."""
        del now
