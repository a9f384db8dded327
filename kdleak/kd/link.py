"""What the two roles may ask of a link, and the counters every link keeps.

A link carries KD data packets reliably and in order over one medium (a byte stream or KDNET).
Numbering, acknowledging, retransmission and resynchronisation are its own affair.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Protocol

from kdleak.kd.packets import Packet


@dataclass
class Statistics:
    """Counters of one link since it was opened.

    Attributes:
        datagrams_sent: datagrams (KDNET) or frames (serial) put on the medium.
        datagrams_received: the same for what came in and was understood.
        resends: packets of ours that were sent more than once.
        rejected: datagrams or frames dropped (bad tag, replay, bad checksum, garbage).
        bytes_sent: bytes on the medium, framing included; ``bytes_received`` likewise.
    """

    datagrams_sent: int = 0
    datagrams_received: int = 0
    resends: int = 0
    rejected: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0


class Link(Protocol):
    """What both roles have in common. One thread uses a link; any thread may close it.

    Attributes:
        where: the medium as the user named it, never with a key: ``net:port=50000``.
        max_read: bytes of memory that one read request may ask for on this link.
    """

    where: str
    max_read: int

    @property
    def statistics(self) -> Statistics:
        """Counters since the link was opened."""

    def receive(self, timeout: float | None) -> Packet | None:
        """The next data packet in order; None when ``timeout`` seconds are over.

        Raises:
            LinkLost: the medium is gone (connection closed, link closed by another thread).
        """

    def close(self) -> None:
        """Give the medium back. May be called from any thread and more than once."""

    @property
    def datagrams_sent(self) -> int:
        """See Statistics."""

    @property
    def datagrams_received(self) -> int:
        """See Statistics."""

    @property
    def resends(self) -> int:
        """See Statistics."""

    @property
    def rejected(self) -> int:
        """See Statistics."""

    @property
    def bytes_sent(self) -> int:
        """See Statistics."""

    @property
    def bytes_received(self) -> int:
        """See Statistics."""


class HostLink(Link, Protocol):
    """The debugger's end.

    Attributes:
        break_in_interval: seconds after which an unanswered break-in is sent again.
        handshakes: True where ``connect`` proves by itself that the target is there (KDNET).
    """

    break_in_interval: float
    handshakes: bool

    def connect(self, timeout: float) -> None:
        """Find the target; on a byte stream only the stream itself is made ready.

        Raises:
            NoTarget: nothing arrived within ``timeout`` seconds.
            WrongKey: KDNET datagrams arrived, none of them was made with our key.
            LinkLost: the medium is gone.
        """

    def send(self, packet_type: int, payload: bytes, timeout: float) -> None:
        """Send one data packet; returns when the target has acknowledged it.

        Raises:
            LinkLost: not acknowledged within ``timeout`` seconds or the allowed tries.
        """

    def break_in(self) -> None:
        """Put one break-in request on the medium; nothing acknowledges it."""

    def reset(self) -> None:
        """Ask the target to resynchronise: a stopped one sends its state change again."""

    @property
    def alive_at(self) -> float | None:
        """Time (link's clock) of the last authentic sign of life, None when there was none."""

    @property
    def generation(self) -> int:
        """Grows at each (re)synchronisation that made both sides start anew."""

    @property
    def reboots(self) -> int:
        """Grows when the target is known to have booted again since ``connect``."""


class TargetLink(Link, Protocol):
    """The debuggee's end."""

    @property
    def connected(self) -> bool:
        """Whether a debugger is there, as far as the target can know."""

    def send(
        self,
        packet_type: int,
        payload: bytes,
        timeout: float | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> bool:
        """Send one data packet and send it again until a debugger acknowledges it.

        A debugger that takes over meanwhile gets it too. A STATE_CHANGE64 marks the target as
        stopped: until the debugger continues it, whoever resets the link or takes over gets
        that state change again, without the caller's doing.

        Args:
            packet_type: PacketType value.
            payload: of the packet.
            timeout: seconds, None for ever.
            should_stop: looked at a few times a second; True ends the wait.

        Returns:
            True when acknowledged, False when ``should_stop`` ended it.

        Raises:
            LinkLost: not acknowledged in time, or the link was closed.
        """

    def poll_break_in(self) -> bool:
        """Look at the medium without waiting: True once per break-in request received."""

    def wake(self) -> None:
        """Make a blocked ``send`` (or ``receive``) look at its ``should_stop`` at once.

        May be called from any thread; ``receive`` returns None early.
        """
