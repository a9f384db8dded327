"""Stop-and-wait delivery of KD packets: ids, acknowledging, retransmission, resynchronisation.

No I/O and no clock of its own: frames go in with the time, frames come out. What the two media
number differently is in the two subclasses in ``numbering``.

Rules common to both, and to both roles: one data packet of ours is under way at a time; a packet
is acknowledged whenever it arrives and delivered once; RESEND repeats the packet under way; RESET
restarts the numbering and makes a stopped target send its state change again.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass

from kdleak.kd.packets import CONTINUE_APIS, Api, Packet, PacketType

INBOX_LIMIT = 64
"""Data packets kept for a reader that does not come; more are not acknowledged."""

RESET_ANSWER_SECONDS = 10.0
"""How long a RESET of the peer counts as the answer to ours."""
RESET_ECHO_SECONDS = 1.0
"""The same after we answered one: the kernel answers every RESET, our answer included."""

_STOP_ENDING_APIS = CONTINUE_APIS | {Api.REBOOT}
_TARGET_ANSWERS = frozenset((PacketType.DEBUG_IO, PacketType.FILE_IO))


class Role(enum.Enum):
    """Which end of the link this is."""

    HOST = "host"
    TARGET = "target"


class Verdict(enum.Enum):
    """What the id of a received data packet says."""

    NEW = "deliver and acknowledge"
    REPEATED = "acknowledge only"
    IGNORE = "do neither"


@dataclass(frozen=True)
class Frame:
    """One KD packet with its number: control when ``type`` is ACKNOWLEDGE, RESEND or RESET."""

    type: int
    id: int
    payload: bytes = b""


@dataclass
class Pending:
    """The data packet under way."""

    ticket: int
    type: int
    payload: bytes
    id: int
    sent_at: float
    timeouts: int = 0
    was_reset: bool = False


def _api(payload: bytes) -> int:
    return int.from_bytes(payload[:4], "little")


class Reliable:
    """The common part. Subclasses say how ids advance and which received ids are new.

    Args:
        role: host or target.
        retry: seconds after which an unacknowledged packet is sent again.
        tries: host: sendings before a RESET is tried, and again as many before giving up.

    Attributes:
        inbox: data packets delivered, oldest first.
        gave_up: host: the packet under way was not acknowledged after all tries.
        resends: packets sent again.
        generation: grows whenever both sides start anew.
        stopped: target: a state change was sent and the debugger has not continued it.
    """

    def __init__(self, role: Role, *, retry: float, tries: int = 10) -> None:
        self.role = role
        self.inbox: deque[Packet] = deque()
        self.gave_up = False
        self.resends = 0
        self.generation = 0
        self.stopped = False
        self.suspended = False
        self._retry = retry
        self._tries = tries
        self._out: deque[Frame] = deque()
        self._pending: Pending | None = None
        self._tickets = 0
        self._state_change: bytes | None = None
        self._reset_answered_until: float | None = None
        self._out_of_step = False
        self._next_id = 0

    # --- what the medium asks ---------------------------------------------------------------

    def take_frames(self) -> list[Frame]:
        """Frames to put on the medium now, in order."""
        frames = list(self._out)
        self._out.clear()
        return frames

    def next_deadline(self) -> float | None:
        """When ``tick`` has something to do, None for never."""
        if self._pending is None or self.suspended:
            return None
        return self._pending.sent_at + self._retry

    def tick(self, now: float) -> None:
        """Send the packet under way again when its time has come."""
        pending = self._pending
        if pending is None or self.suspended or now < pending.sent_at + self._retry:
            return
        pending.timeouts += 1
        if self.role is Role.HOST:
            if pending.timeouts >= 2 * self._tries:
                self.gave_up = True
                self.cancel()
                return
            if pending.timeouts == self._tries:
                self.reset(now)
        self._transmit_again(pending, now)

    def on_frame(self, frame: Frame, now: float) -> None:
        """Take in one frame from the medium."""
        if frame.type == PacketType.ACKNOWLEDGE:
            if self._pending is not None and frame.id == self._acknowledgement(self._pending.id):
                self._accepted()
        elif frame.type == PacketType.RESEND:
            if self._pending is not None:
                self._transmit_again(self._pending, now)
        elif frame.type == PacketType.RESET:
            self._on_reset(frame.id, now)
        else:
            self._on_data(frame, now)

    # --- what the owner asks ----------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether no packet of ours is under way."""
        return self._pending is None

    @property
    def in_trouble(self) -> bool:
        """Whether the packet under way was sent so often that something must be wrong."""
        return self._pending is not None and self._pending.timeouts >= self._tries

    def under_way(self, ticket: int) -> bool:
        """Whether the packet that ``submit`` gave this ticket is still unacknowledged."""
        return self._pending is not None and self._pending.ticket == ticket

    def submit(self, packet_type: int, payload: bytes, now: float) -> int:
        """Start sending a data packet; only when ``idle``. Returns its ticket."""
        if self._pending is not None:
            msg = "a packet is already under way"
            raise RuntimeError(msg)
        self.gave_up = False
        if self._out_of_step:
            self.reset(now)
        if packet_type == PacketType.STATE_CHANGE64 and self.role is Role.TARGET:
            self.stopped = True
            self._state_change = payload
        self._tickets += 1
        self._pending = Pending(self._tickets, packet_type, payload, self._next_id, now)
        if not self.suspended:
            self._out.append(Frame(packet_type, self._pending.id, payload))
        return self._tickets

    def cancel(self) -> None:
        """Give up the packet under way; nobody knows whether the peer has taken it."""
        if self._pending is not None:
            self._pending = None
            self._next_id = self._advance(self._next_id)
            self._after_cancel()

    def reset(self, now: float) -> None:
        """Ask the peer to resynchronise."""
        self._reset_answered_until = now + RESET_ANSWER_SECONDS
        self._out_of_step = False
        self._before_reset()
        if self._pending is not None:
            self._pending.id = self._next_id
            self._pending.was_reset = True
        if not self.suspended:
            self._out.append(Frame(PacketType.RESET, self._reset_id()))

    def resynchronise(self, now: float) -> None:
        """Both sides start anew on a fresh channel (KDNET handshake): repeat what is due."""
        self.generation += 1
        self._out.clear()
        self._reset_answered_until = None
        self._out_of_step = False
        self._restart_numbering()
        pending = self._pending
        if self.role is Role.TARGET:
            self.inbox.clear()
            if pending is not None and pending.type == PacketType.STATE_MANIPULATE:
                # The answer was for the debugger that is gone; the new one never asked.
                self._accepted()
                pending = None
        if pending is not None:
            pending.id = self._next_id
            pending.timeouts = 0
            pending.was_reset = True
            self._transmit_again(pending, now)
        else:
            self._repeat_state_change(now)

    # --- inside -----------------------------------------------------------------------------

    def _on_data(self, frame: Frame, now: float) -> None:
        verdict = self._classify(frame, now)
        if verdict is Verdict.IGNORE:
            return
        if verdict is Verdict.NEW:
            if self._ignored_while_running(frame) or len(self.inbox) >= INBOX_LIMIT:
                return
            self._note_accepted(frame)
        self._acknowledge(frame)
        if verdict is not Verdict.NEW or self._is_stale_stop(frame):
            return
        if self._pending is not None and self._proves_acceptance(self._pending, frame):
            self._accepted()
        if self.role is Role.HOST and frame.type == PacketType.STATE_CHANGE64:
            self._state_change = frame.payload
        if (
            self.role is Role.TARGET
            and frame.type == PacketType.STATE_MANIPULATE
            and _api(frame.payload) in _STOP_ENDING_APIS
        ):
            self.stopped = False
            self._state_change = None
        self.inbox.append(Packet(frame.type, frame.payload))

    def _ignored_while_running(self, frame: Frame) -> bool:
        # A running kernel does not listen for packets, except for answers it waits for.
        return self.role is Role.TARGET and not self.stopped and frame.type not in _TARGET_ANSWERS

    def _is_stale_stop(self, frame: Frame) -> bool:
        """Whether this is the stop that the continue under way ends, told again after a RESET."""
        pending = self._pending
        return (
            self.role is Role.HOST
            and pending is not None
            and pending.was_reset
            and pending.type == PacketType.STATE_MANIPULATE
            and _api(pending.payload) in CONTINUE_APIS
            and frame.type == PacketType.STATE_CHANGE64
            and frame.payload == self._state_change
        )

    def _proves_acceptance(self, pending: Pending, frame: Frame) -> bool:
        """Whether this new packet shows that ours arrived though its ACK was lost."""
        if self.role is Role.TARGET:
            # The debugger asks or answers only after it has taken what we sent before.
            return True
        if pending.type != PacketType.STATE_MANIPULATE:
            return False
        api = _api(pending.payload)
        if api in CONTINUE_APIS:
            # Only a target that runs again has anything new to say.
            return frame.type != PacketType.STATE_MANIPULATE
        return frame.type == PacketType.STATE_MANIPULATE and _api(frame.payload) == api

    def _on_reset(self, their_id: int, now: float) -> None:
        if self.role is Role.TARGET and not self.stopped and self._pending is None:
            return
        until = self._reset_answered_until
        self._reset_answered_until = None
        self._out_of_step = False
        self._after_reset(their_id)
        if self._pending is not None:
            self._pending.id = self._next_id
            self._pending.was_reset = True
        if until is None or now > until:
            self._out.append(Frame(PacketType.RESET, self._reset_id()))
            if self.role is Role.HOST:
                self._reset_answered_until = now + RESET_ECHO_SECONDS
        if self._pending is not None:
            self._transmit_again(self._pending, now)
        else:
            self._repeat_state_change(now)

    def _repeat_state_change(self, now: float) -> None:
        if self.role is Role.TARGET and self.stopped and self._state_change is not None:
            self.resends += 1
            self.submit(PacketType.STATE_CHANGE64, self._state_change, now)

    def _transmit_again(self, pending: Pending, now: float) -> None:
        pending.sent_at = now
        if not self.suspended:
            self.resends += 1
            self._out.append(Frame(pending.type, pending.id, pending.payload))

    def _accepted(self) -> None:
        self._pending = None
        self._next_id = self._advance(self._next_id)

    def _acknowledge(self, frame: Frame) -> None:
        self._out.append(Frame(PacketType.ACKNOWLEDGE, self._acknowledgement(frame.id)))

    # --- what the media do differently ------------------------------------------------------

    def _advance(self, packet_id: int) -> int:
        """The id after this one."""
        raise NotImplementedError

    def _acknowledgement(self, packet_id: int) -> int:
        """The id an ACK of this packet carries."""
        raise NotImplementedError

    def _classify(self, frame: Frame, now: float) -> Verdict:
        """What to do with a data packet, by its id."""
        raise NotImplementedError

    def _note_accepted(self, frame: Frame) -> None:
        """Remember the id of a packet that is now delivered."""
        raise NotImplementedError

    def _reset_id(self) -> int:
        """The id our RESET carries."""
        raise NotImplementedError

    def _after_cancel(self) -> None:
        """A packet was given up: say how the next one gets back into step."""
        raise NotImplementedError

    def _before_reset(self) -> None:
        """Prepare the numbering for the peer's answer to our RESET."""

    def _after_reset(self, their_id: int) -> None:
        """Set the numbering after a RESET of the peer."""
        raise NotImplementedError

    def _restart_numbering(self) -> None:
        """Set the numbering for a fresh channel."""
        raise NotImplementedError
