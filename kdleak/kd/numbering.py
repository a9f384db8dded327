"""The two ways KD packets are numbered: on a byte stream, and on KDNET.

Byte stream: ids alternate between 0x80800000 and 0x80800001; the bit 0x800 (SYNC) in a target's
id says that it has started its numbering anew, in both directions. KDNET: ids grow by two, the
host's from 0x80000000, the target's from 0; an ACK echoes the id exactly.
"""

from __future__ import annotations

from kdleak.kd.packets import PacketType
from kdleak.kd.reliable import Frame, Reliable, Role, Verdict

INITIAL_ID = 0x80800000
SYNC = 0x00000800
KDNET_HOST_ID = 0x80000000

_AUTOMATIC_RESETS = 3
_IDS = frozenset((INITIAL_ID, INITIAL_ID ^ 1))


class SerialReliable(Reliable):
    """Stop-and-wait with the alternating ids of a byte stream."""

    def __init__(self, role: Role, *, retry: float = 1.0, tries: int = 10) -> None:
        super().__init__(role, retry=retry, tries=tries)
        self._next_id = INITIAL_ID | SYNC if role is Role.TARGET else INITIAL_ID
        self._expected: int | None = INITIAL_ID if role is Role.TARGET else None
        self._synchronised = role is Role.TARGET
        self._automatic_resets = 0
        self._last_sync: bytes | None = None

    def _advance(self, packet_id: int) -> int:
        return (packet_id & ~SYNC) ^ 1

    def _acknowledgement(self, packet_id: int) -> int:
        return packet_id & ~SYNC

    def _classify(self, frame: Frame, now: float) -> Verdict:
        plain = frame.id & ~SYNC
        if plain not in _IDS:
            # The header has no checksum of its own: a damaged id, and it comes again.
            return Verdict.IGNORE
        if self.role is Role.HOST:
            if frame.id & SYNC:
                return Verdict.REPEATED if frame.payload == self._last_sync else Verdict.NEW
            if not self._synchronised and frame.type == PacketType.STATE_CHANGE64:
                return self._start_in_step(frame, now)
        if self._expected is None or plain == self._expected:
            return Verdict.NEW
        return Verdict.REPEATED

    def _start_in_step(self, frame: Frame, now: float) -> Verdict:
        """The target is in the middle of its numbering and we do not know ours: resynchronise.

        It will send this state change again after the RESET; one that never answers RESET is
        taken as it is.
        """
        self._automatic_resets += 1
        if self._automatic_resets > _AUTOMATIC_RESETS:
            self._synchronised = True
            return Verdict.NEW
        self._acknowledge(frame)
        self.reset(now)
        return Verdict.IGNORE

    def _note_accepted(self, frame: Frame) -> None:
        if self.role is Role.HOST and frame.id & SYNC:
            self._last_sync = frame.payload
            self._synchronised = True
            self._automatic_resets = 0
            self._out_of_step = False
            self._next_id = INITIAL_ID
            self.generation += 1
            if self._pending is not None:
                if self._proves_acceptance(self._pending, frame):
                    # Accepted before the restart, so it does not count in the new numbering.
                    self._pending = None
                else:
                    self._pending.id = INITIAL_ID
                    self._pending.was_reset = True
        else:
            self._last_sync = None
        self._expected = (frame.id & ~SYNC) ^ 1

    def _accepted(self) -> None:
        super()._accepted()
        # From here on a state change with SYNC is not the one we have already seen.
        self._last_sync = None

    def _after_cancel(self) -> None:
        if self.role is Role.TARGET:
            # As the kernel does when the debugger has gone away: start anew and say so.
            self._next_id = INITIAL_ID | SYNC
            self._expected = INITIAL_ID
        else:
            self._out_of_step = True

    def _reset_id(self) -> int:
        return 0

    def _before_reset(self) -> None:
        self._next_id = INITIAL_ID
        self._expected = None
        self._last_sync = None
        if self.role is Role.HOST:
            self._synchronised = False

    def _after_reset(self, their_id: int) -> None:
        del their_id  # always 0 on a byte stream
        self._next_id = INITIAL_ID
        self._expected = INITIAL_ID
        self._synchronised = True
        self._automatic_resets = 0
        if self.role is Role.TARGET:
            self.inbox.clear()

    def _restart_numbering(self) -> None:
        self._next_id = INITIAL_ID | SYNC if self.role is Role.TARGET else INITIAL_ID
        self._expected = INITIAL_ID if self.role is Role.TARGET else None
        self._synchronised = self.role is Role.TARGET
        self._last_sync = None


class KdnetReliable(Reliable):
    """Stop-and-wait with the counting ids of KDNET.

    The datagram layer drops what is replayed or late, so a data packet is either the one last
    taken, sent again, or a new one: ids need not be compared further.
    """

    def __init__(self, role: Role, *, retry: float = 0.5, tries: int = 10) -> None:
        super().__init__(role, retry=retry, tries=tries)
        self._next_id = KDNET_HOST_ID if role is Role.HOST else 0
        self._last: int | None = None

    def _advance(self, packet_id: int) -> int:
        return (packet_id + 2) & 0xFFFFFFFF

    def _acknowledgement(self, packet_id: int) -> int:
        return packet_id

    def _classify(self, frame: Frame, now: float) -> Verdict:
        del now
        return Verdict.REPEATED if frame.id == self._last else Verdict.NEW

    def _note_accepted(self, frame: Frame) -> None:
        self._last = frame.id

    def _after_cancel(self) -> None:
        self._out_of_step = self.role is Role.HOST

    def _reset_id(self) -> int:
        return self._next_id

    def _after_reset(self, their_id: int) -> None:
        # The peer's packet under way keeps its id, so what we know of the last one still holds.
        del their_id

    def _restart_numbering(self) -> None:
        self._last = None
        if self.role is Role.HOST:
            self._next_id = KDNET_HOST_ID
