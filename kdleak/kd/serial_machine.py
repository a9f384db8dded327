"""KD over a byte stream as a state machine: deframer and delivery put together. No I/O."""

from __future__ import annotations

from kdleak.kd.link import Statistics
from kdleak.kd.machine import Address, Parcel, earliest
from kdleak.kd.numbering import SerialReliable
from kdleak.kd.packets import BREAK_IN_BYTE, PacketType
from kdleak.kd.reliable import Frame, Role
from kdleak.kd.serial_framing import Deframer, Signal, encode_frame


class SerialMachine:
    """One end of a serial KD link. See ``machine.Machine``."""

    def __init__(self, role: Role, *, retry: float = 1.0, tries: int = 10) -> None:
        self.reliable = SerialReliable(role, retry=retry, tries=tries)
        self.statistics = Statistics()
        self.break_ins = 0
        self.alive_at: float | None = None
        self.reboots = 0
        self._role = role
        self._deframer = Deframer(break_ins=role is Role.TARGET)
        self._raw_out = bytearray()

    def start(self, now: float) -> None:
        """Nothing to do: a byte stream is ready when it is open."""

    def receive(self, data: bytes, source: Address | None, now: float) -> None:
        """Take in bytes of the stream."""
        del source
        self.statistics.bytes_received += len(data)
        self._take(self._deframer.feed(data, now), now)

    def tick(self, now: float) -> None:
        """Give up torn packets, send again what was not acknowledged."""
        self._take(self._deframer.tick(now), now)
        self.reliable.tick(now)

    def _take(self, events: list[Frame | Signal], now: float) -> None:
        damaged = False
        for event in events:
            if isinstance(event, Frame):
                self.statistics.datagrams_received += 1
                self.alive_at = now
                self.reliable.on_frame(event, now)
            elif event is Signal.DAMAGED:
                self.statistics.rejected += 1
                damaged = True
            else:
                # One flag, as the kernel keeps it: DbgEng sends several of these at an attach,
                # and each counted would stop the machine once more after it has left.
                self.break_ins = 1
        if damaged:
            # One for the lot: each RESEND makes the peer repeat a whole packet.
            self._raw_out += encode_frame(Frame(PacketType.RESEND, 0))

    def take_output(self) -> list[Parcel]:
        """Bytes to write."""
        out = self._raw_out
        for frame in self.reliable.take_frames():
            out += encode_frame(frame)
            self.statistics.datagrams_sent += 1
        self.statistics.resends = self.reliable.resends
        if not out:
            return []
        self.statistics.bytes_sent += len(out)
        self._raw_out = bytearray()
        return [(bytes(out), None)]

    def next_deadline(self) -> float | None:
        """When ``tick`` is due next."""
        return earliest(self._deframer.next_deadline(), self.reliable.next_deadline())

    def send_break_in(self) -> None:
        """Put one 0x62 on the line."""
        self._raw_out += BREAK_IN_BYTE

    @property
    def connected(self) -> bool:
        """A byte stream tells nothing until something has come over it."""
        return self.alive_at is not None

    def find_refusal(self) -> str:
        """What speaks for a wrong baud rate or for something else on the line."""
        if self.statistics.bytes_received and self.alive_at is None:
            return f"{self.statistics.bytes_received} bytes arrived, none of them a KD packet"
        return ""

    def forget(self, now: float) -> None:
        """Resynchronise at the next chance."""
        del now
        self.reliable.cancel()
