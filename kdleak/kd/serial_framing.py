"""KD packets on a byte stream: finding them, checking them, and writing them.

A packet is a leader (``0000`` data, ``iiii`` control), type, length, id, sum of the payload bytes,
the payload, and 0xAA after data. The byte 0x62 outside a packet is a break-in request. No I/O.
"""

from __future__ import annotations

import enum
import re
import struct

from kdleak.kd.packets import CONTROL_TYPES, DATA_TYPES, MAX_PAYLOAD, PacketType
from kdleak.kd.reliable import Frame

DATA_LEADER = b"0000"
CONTROL_LEADER = b"iiii"
TRAILER = 0xAA
HEADER = struct.Struct("<4sHHII")

IDLE_SECONDS = 0.4
"""A packet whose next byte does not come within this time is given up."""

_LEADER = re.compile(rb"0000|iiii")
_BREAK_IN = 0x62


class Signal(enum.Enum):
    """What may come out of the deframer besides frames."""

    BREAK_IN = "break-in"
    DAMAGED = "damaged packet"


def encode_frame(frame: Frame) -> bytes:
    """Bytes of one packet on a byte stream."""
    if frame.type in CONTROL_TYPES:
        return HEADER.pack(CONTROL_LEADER, frame.type, 0, frame.id, 0)
    payload = frame.payload
    checksum = sum(payload) & 0xFFFFFFFF
    head = HEADER.pack(DATA_LEADER, frame.type, len(payload), frame.id, checksum)
    return b"".join((head, payload, bytes((TRAILER,))))


class Deframer:
    """Takes bytes as they come and gives frames and signals; memory is bounded.

    Args:
        break_ins: whether 0x62 outside packets means anything (target role).

    Attributes:
        noise: bytes that belonged to no packet.
    """

    def __init__(self, *, break_ins: bool) -> None:
        self.noise = 0
        self._break_ins = break_ins
        self._buffer = bytearray()
        self._tainted = 0
        self._last_byte_at = 0.0

    def feed(self, data: bytes, now: float) -> list[Frame | Signal]:
        """Take in bytes; what is complete comes out in order."""
        self._buffer += data
        if data:
            self._last_byte_at = now
        events: list[Frame | Signal] = []
        while self._step(events):
            pass
        return events

    def next_deadline(self) -> float | None:
        """When ``tick`` should be called, None while no packet is incomplete."""
        if len(self._buffer) < len(DATA_LEADER):
            return None
        return self._last_byte_at + IDLE_SECONDS

    def tick(self, now: float) -> list[Frame | Signal]:
        """Give up a packet that has stopped in the middle and look for others behind its start."""
        events: list[Frame | Signal] = []
        deadline = self.next_deadline()
        if deadline is not None and now >= deadline:
            self._give_up(events, len(self._buffer))
            while self._step(events):
                pass
        return events

    def _step(self, events: list[Frame | Signal]) -> bool:
        """Take one frame, or one stretch of noise, off the buffer; False when bytes are missing."""
        buffer = self._buffer
        match = _LEADER.search(buffer)
        if match is None:
            self._drop_noise(len(buffer) - self._possible_leader(), events)
            return False
        self._drop_noise(match.start(), events)
        if len(buffer) < HEADER.size:
            return False
        leader, kind, length, packet_id, checksum = HEADER.unpack_from(buffer)
        if not self._plausible(leader, kind, length):
            self._drop_noise(1, events)
            return True
        if leader == CONTROL_LEADER:
            self._consume(HEADER.size)
            events.append(Frame(kind, packet_id))
            return True
        end = HEADER.size + length
        if len(buffer) > end:
            self._take_data(
                Frame(kind, packet_id, bytes(buffer[HEADER.size : end])), checksum, events
            )
            return True
        return False

    def _take_data(self, frame: Frame, checksum: int, events: list[Frame | Signal]) -> None:
        """A whole data packet is at the start of the buffer: take it, or what it hides."""
        end = HEADER.size + len(frame.payload)
        if self._buffer[end] != TRAILER or sum(frame.payload) & 0xFFFFFFFF != checksum:
            self._give_up(events, end + 1)
        else:
            self._consume(end + 1)
            events.append(frame)

    @staticmethod
    def _plausible(leader: bytes, kind: int, length: int) -> bool:
        if leader == CONTROL_LEADER:
            return kind in CONTROL_TYPES and length == 0
        if kind not in DATA_TYPES or length > MAX_PAYLOAD:
            return False
        return length > 0 or kind == PacketType.POLL_BREAKIN

    def _give_up(self, events: list[Frame | Signal], span: int) -> None:
        """The packet at the start is damaged; real packets may hide in the bytes it claimed."""
        events.append(Signal.DAMAGED)
        # 0x62 in the remains of a packet is data, not a request to break in.
        self._tainted = max(self._tainted, span)
        self._drop_noise(1, events)

    def _possible_leader(self) -> int:
        """How many bytes at the end may be the start of a leader."""
        tail = bytes(self._buffer[-3:])
        for size in range(len(tail), 0, -1):
            end = tail[-size:]
            if DATA_LEADER.startswith(end) or CONTROL_LEADER.startswith(end):
                return size
        return 0

    def _drop_noise(self, count: int, events: list[Frame | Signal]) -> None:
        if count <= 0:
            return
        if self._break_ins:
            loose = bytes(self._buffer[min(self._tainted, count) : count])
            events.extend([Signal.BREAK_IN] * loose.count(_BREAK_IN))
        self.noise += count
        self._consume(count)

    def _consume(self, count: int) -> None:
        del self._buffer[:count]
        self._tainted = max(0, self._tainted - count)
