"""Blocking links: a state machine, a medium and a clock, for one thread at a time."""

from __future__ import annotations

from collections.abc import Callable

from kdleak.errors import LinkLost, NoTarget, TargetRestarted, WrongKey
from kdleak.kd.kdnet_session import SILENT_SECONDS
from kdleak.kd.link import Statistics
from kdleak.kd.machine import Machine, earliest
from kdleak.kd.media import Medium
from kdleak.kd.packets import Packet, PacketType

_STOP_CHECK_SECONDS = 0.2
_LONGEST_WAIT_SECONDS = 1.0
"""On Windows a Ctrl+C is seen only between two waits."""


class BlockingLink:
    """What both roles share: pumping the machine until something has happened."""

    def __init__(
        self,
        machine: Machine,
        medium: Medium,
        *,
        where: str,
        max_read: int,
        clock: Callable[[], float],
    ) -> None:
        self.where = where
        self.max_read = max_read
        self.medium = medium
        self._machine = machine
        self._clock = clock
        self._closed = False
        self._woken = False
        machine.start(clock())

    @property
    def statistics(self) -> Statistics:
        """Counters since the link was opened."""
        return self._machine.statistics

    @property
    def datagrams_sent(self) -> int:
        """See Statistics."""
        return self._machine.statistics.datagrams_sent

    @property
    def datagrams_received(self) -> int:
        """See Statistics."""
        return self._machine.statistics.datagrams_received

    @property
    def resends(self) -> int:
        """See Statistics."""
        return self._machine.statistics.resends

    @property
    def rejected(self) -> int:
        """See Statistics."""
        return self._machine.statistics.rejected

    @property
    def bytes_sent(self) -> int:
        """See Statistics."""
        return self._machine.statistics.bytes_sent

    @property
    def bytes_received(self) -> int:
        """See Statistics."""
        return self._machine.statistics.bytes_received

    @property
    def alive_at(self) -> float | None:
        """Time (this link's clock) of the last authentic sign of life of the peer."""
        return self._machine.alive_at

    @property
    def generation(self) -> int:
        """Grows whenever both sides start anew."""
        return self._machine.reliable.generation

    def close(self) -> None:
        """Release the medium; a call that waits in another thread ends with LinkLost."""
        self._closed = True
        self.medium.close()

    def wake(self) -> None:
        """End a call that waits in another thread, as if its time were over."""
        self._woken = True
        self.medium.wake()

    def _pump(
        self,
        done: Callable[[], bool],
        deadline: float | None,
        should_stop: Callable[[], bool] | None = None,
    ) -> bool:
        """Run the machine until ``done``; False when the deadline, a wake or a stop came first."""
        looked = False
        while True:
            now = self._clock()
            self._machine.tick(now)
            self._flush()
            if done():
                return True
            if self._woken:
                self._woken = False
                return False
            if looked and deadline is not None and now >= deadline:
                return False
            if should_stop is not None and should_stop():
                return False
            looked = True
            due = earliest(self._machine.next_deadline(), deadline)
            limit = _LONGEST_WAIT_SECONDS if should_stop is None else _STOP_CHECK_SECONDS
            wait = limit if due is None else min(limit, max(0.0, due - now))
            for data, source in self.medium.read(wait):
                self._machine.receive(data, source, self._clock())

    def _flush(self) -> None:
        for data, destination in self._machine.take_output():
            self.medium.write(data, destination)

    def _take_packet(self) -> Packet | None:
        inbox = self._machine.reliable.inbox
        return inbox.popleft() if inbox else None

    def _deadline(self, timeout: float | None) -> float | None:
        return None if timeout is None else self._clock() + timeout

    def _silence(self) -> str:
        alive = self.alive_at
        if alive is None:
            return "the target has never been heard"
        return f"the last sign of life is {self._clock() - alive:.1f} s old"


class BlockingHost(BlockingLink):
    """The debugger's end. See ``link.HostLink``."""

    def __init__(
        self,
        machine: Machine,
        medium: Medium,
        *,
        where: str,
        max_read: int,
        clock: Callable[[], float],
        handshakes: bool,
        break_in_interval: float,
    ) -> None:
        super().__init__(machine, medium, where=where, max_read=max_read, clock=clock)
        self.handshakes = handshakes
        self.break_in_interval = break_in_interval
        self._reboots_told = 0

    @property
    def reboots(self) -> int:
        """Times the target is known to have booted again."""
        return self._machine.reboots

    def connect(self, timeout: float) -> None:
        """See HostLink."""
        if not self.handshakes:
            self._pump(lambda: True, None)
            return
        now = self._clock()
        alive = self.alive_at
        if not self._machine.connected or alive is None or now - alive > SILENT_SECONDS:
            self._machine.forget(now)
            if not self._pump(lambda: self._machine.connected, now + timeout):
                self._refuse_connection(timeout)
        self._reboots_told = self._machine.reboots

    def _refuse_connection(self, timeout: float) -> None:
        tried = f"waiting {timeout:g} s for a target on {self.where}"
        refusal = self._machine.find_refusal()
        if refusal:
            raise WrongKey(
                tried, refusal, "compare the key with the target's (bcdedit /dbgsettings)"
            )
        arrived = self._machine.statistics.datagrams_received
        if self.alive_at is not None:
            came_back = "the handshake was not completed"
        elif arrived:
            came_back = f"{arrived} datagrams arrived, none from a target with the key given"
        else:
            came_back = "nothing arrived"
        raise NoTarget(
            tried,
            came_back,
            "check that the target is on and set up for this host and port, and that no "
            "firewall stops UDP",
        )

    def send(self, packet_type: int, payload: bytes, timeout: float) -> None:
        """See HostLink."""
        reliable = self._machine.reliable
        deadline = self._clock() + timeout
        self._tell_restart()
        if not reliable.idle:
            reliable.cancel()
        ticket = reliable.submit(packet_type, payload, self._clock())
        try:
            acknowledged = self._pump(
                lambda: (
                    not reliable.under_way(ticket) or self._machine.reboots != self._reboots_told
                ),
                deadline,
            )
        except BaseException:
            # Interrupted: the next packet has to find back into step by itself.
            if reliable.under_way(ticket):
                reliable.cancel()
            raise
        if reliable.under_way(ticket):
            reliable.cancel()
        self._tell_restart()
        if not acknowledged or reliable.gave_up:
            raise LinkLost(
                f"sending a {_type_name(packet_type)} packet over {self.where}",
                f"the target does not acknowledge it, {self._silence()}",
                "check that the target still runs and that the connection stands, then try again",
            )

    def receive(self, timeout: float | None) -> Packet | None:
        """See Link."""
        inbox = self._machine.reliable.inbox
        self._tell_restart()
        self._pump(
            lambda: bool(inbox) or self._machine.reboots != self._reboots_told,
            self._deadline(timeout),
        )
        self._tell_restart()
        return self._take_packet()

    def break_in(self) -> None:
        """See HostLink."""
        self._machine.send_break_in()
        self._flush()

    def reset(self) -> None:
        """See HostLink."""
        self._machine.reliable.reset(self._clock())
        self._flush()

    def _tell_restart(self) -> None:
        if self._machine.reboots != self._reboots_told:
            self._reboots_told = self._machine.reboots
            raise TargetRestarted(
                f"talking to the target on {self.where}",
                "it has started again",
                "attach anew; what was changed in its memory is gone",
            )


class BlockingTarget(BlockingLink):
    """The debuggee's end. See ``link.TargetLink``."""

    _served_generation = 0

    @property
    def connected(self) -> bool:
        """Whether a debugger is there, as far as the target can know."""
        return self._machine.connected

    def send(
        self,
        packet_type: int,
        payload: bytes,
        timeout: float | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> bool:
        """See TargetLink."""
        reliable = self._machine.reliable
        deadline = self._deadline(timeout)
        # A state change that is being repeated for a new debugger goes first.
        if not self._wait_for(lambda: reliable.idle, deadline, should_stop):
            return self._not_sent(packet_type, deadline)
        if (
            packet_type == PacketType.STATE_MANIPULATE
            and self._served_generation != reliable.generation
        ):
            # The debugger that asked has gone; the present one would not know the answer.
            return True
        ticket = reliable.submit(packet_type, payload, self._clock())
        if self._wait_for(lambda: not reliable.under_way(ticket), deadline, should_stop):
            return True
        if reliable.under_way(ticket):
            reliable.cancel()
        return self._not_sent(packet_type, deadline)

    def _wait_for(
        self,
        done: Callable[[], bool],
        deadline: float | None,
        should_stop: Callable[[], bool] | None,
    ) -> bool:
        """As ``_pump``, but a wake only makes it look again."""
        while not self._pump(done, deadline, should_stop):
            if deadline is not None and self._clock() >= deadline:
                return False
            if should_stop is not None and should_stop():
                return False
        return True

    def _not_sent(self, packet_type: int, deadline: float | None) -> bool:
        if deadline is not None and self._clock() >= deadline:
            raise LinkLost(
                f"sending a {_type_name(packet_type)} packet over {self.where}",
                "no debugger acknowledged it",
            )
        return False

    def receive(self, timeout: float | None) -> Packet | None:
        """See Link."""
        reliable = self._machine.reliable
        self._pump(lambda: bool(reliable.inbox), self._deadline(timeout))
        self._served_generation = reliable.generation
        return self._take_packet()

    def poll_break_in(self) -> bool:
        """See TargetLink."""
        self._pump(lambda: False, self._clock())
        if not self._machine.break_ins:
            return False
        self._machine.break_ins -= 1
        return True


def _type_name(packet_type: int) -> str:
    try:
        return PacketType(packet_type).name
    except ValueError:
        return f"type {packet_type}"
