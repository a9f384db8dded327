"""The practice machine behind a KD link: runs it in real time and serves the debugger."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from kdleak.errors import LinkLost, ProtocolError
from kdleak.kd.link import TargetLink
from kdleak.kd.packets import (
    MAX_PACKET_KDNET,
    MAX_PACKET_SERIAL,
    Packet,
    PacketType,
    parse_manipulate,
)
from kdleak.kd.structures import build_print
from kdleak.practice.images import DEFAULT_BUILD
from kdleak.practice.ledger import CallSite
from kdleak.practice.machine import MachineStop, PracticeMachine
from kdleak.practice.processor import STATUS_BREAKPOINT
from kdleak.practice.statistics import PracticeStatistics
from kdleak.practice.stub import Action, KdStub
from kdleak.practice.workload import Workload

DEFAULT_RATE = 100.0
"""Ticks per second of wall time."""

POLL_SECONDS = 0.005
"""Longest sleep while running: a break-in is noticed within this time and one tick."""

PRINT_SECONDS = 2.0
"""How long a DbgPrint waits for a debugger before it is dropped."""


class PracticeTarget:
    """A practice machine on a link.

    Args:
        link: the debuggee's end of a KD link.
        seed: chooses addresses and all random behaviour.
        build: Windows build it claims.
        processors: 1 or 2.
        rate: ticks per second of wall time; 0 runs as fast as it can.
        workload: what the machine does.
        clock: seconds, monotonic.
        sleep: waits that many seconds.
        reopen: opens a fresh link after the debugger rebooted the machine, as a booting machine
            would; without it the old link is used on.
    """

    def __init__(
        self,
        link: TargetLink,
        *,
        seed: int = 1,
        build: int = DEFAULT_BUILD,
        processors: int = 2,
        rate: float = DEFAULT_RATE,
        workload: Workload | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        reopen: Callable[[], TargetLink] | None = None,
    ) -> None:
        self.link = link
        self.statistics = PracticeStatistics()
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._reopen = reopen
        self._seed = seed
        self._settings = (build, processors, workload)
        self._stop_asked = threading.Event()
        self._until: Callable[[], bool] | None = None
        self._debugger_listens = True
        self._max_packet = MAX_PACKET_KDNET if link.where.startswith("net") else MAX_PACKET_SERIAL
        self.machine = self._boot()
        self._stub = KdStub(self.machine, self._max_packet)

    def _boot(self) -> PracticeMachine:
        build, processors, workload = self._settings
        return PracticeMachine(
            seed=self._seed,
            build=build,
            processors=processors,
            workload=workload,
            on_print=self._print,
        )

    # ---- for the owner ----

    def run(
        self, until: Callable[[], bool] | None = None, *, ticks: int | None = None
    ) -> PracticeStatistics:
        """Run until told to end.

        Args:
            until: looked at often; True ends the run, also while the machine is stopped.
            ticks: ends the run after that many more ticks.

        Returns:
            The counters, complete.
        """
        self._until = until
        last = None if ticks is None else self.statistics.ticks + ticks
        due = self._clock()
        try:
            while not self._ended() and (last is None or self.statistics.ticks < last):
                began = self._clock()
                due = self._wait_until(due)
                if due < 0:
                    break
                stop = self.machine.tick()
                self.statistics.seconds_running += self._clock() - began
                while stop is not None:
                    stop = self._serve(stop)
                    due = self._clock()
                self.statistics.ticks += 1
        except LinkLost:
            if not self._stop_asked.is_set():
                raise
        finally:
            self.statistics.pool_hit_tag = self.machine.read_u32("PoolHitTag")
        return self.statistics

    def stop(self) -> None:
        """End :meth:`run` soon; may be called from any thread."""
        self._stop_asked.set()
        self.link.wake()

    def ground_truth(self) -> tuple[CallSite, ...]:
        """The truth about every call site since boot."""
        return self.machine.ground_truth()

    def close(self) -> None:
        """Close the link and give back the machine's memory. Not while :meth:`run` runs."""
        self.link.close()
        self.machine.close()

    # ---- running ----

    def _ended(self) -> bool:
        return self._stop_asked.is_set() or (self._until is not None and self._until())

    def _wait_until(self, due: float) -> float:
        """Wait for the next tick's time, watching for a break-in.

        Returns:
            When the tick after it is due, or -1 when the run shall end.
        """
        while True:
            if self.link.poll_break_in():
                self.machine.request_break()
                return self._clock()
            now = self._clock()
            if self._rate <= 0 or now >= due:
                # A machine that fell behind does not catch up: it was busy or frozen.
                return max(due, now - 0.1) + (1 / self._rate if self._rate > 0 else 0)
            if self._ended():
                return -1.0
            self._sleep(min(POLL_SECONDS, due - now))

    def _print(self, text: bytes) -> None:
        self.statistics.prints += 1
        if self.link.connected and self._debugger_listens:
            try:
                self.link.send(PacketType.DEBUG_IO, build_print(text), PRINT_SECONDS, self._ended)
            except LinkLost:
                if self._stop_asked.is_set():
                    raise
                # As a kernel does: no more prints until a debugger is heard of again.
                self._debugger_listens = False

    # ---- stopped ----

    def _serve(self, stop: MachineStop) -> MachineStop | None:
        """Tell the debugger about a stop and obey it until the machine runs on.

        Returns:
            The next stop when the tick is not complete yet, None when it is.
        """
        if stop.loaded is not None and not self.link.connected:
            return self._run_on()
        began = self._clock()
        self.statistics.stops += 1
        is_hit = self._count_hit(stop)
        action = self._converse(stop)
        spent = self._clock() - began
        self.statistics.seconds_stopped += spent
        if is_hit:
            self.statistics.seconds_stopped_in_hits += spent
        if action is Action.REBOOT:
            self._reboot()
            return None
        if action is Action.STAY:  # the run was ended while stopped
            return None
        if action is Action.STEP:
            return self.machine.step(self._stub.current)
        return self._run_on()

    def _run_on(self) -> MachineStop | None:
        began = self._clock()
        following = self.machine.tick()
        self.statistics.seconds_running += self._clock() - began
        return following

    def _converse(self, stop: MachineStop) -> Action:
        if stop.loaded is None:
            change = self._stub.exception_change(stop)
        else:
            change = self._stub.load_change(stop, stop.loaded)
        if not self._send(PacketType.STATE_CHANGE64, change):
            return Action.STAY
        self._debugger_listens = True
        while not self._ended():
            packet = self.link.receive(1.0)
            if packet is None:
                continue
            outcome = self._handle(packet)
            if outcome is Action.SWITCH:
                change = self._stub.exception_change(self._stub.switched_stop())
                if not self._send(PacketType.STATE_CHANGE64, change):
                    return Action.STAY
            elif outcome is not Action.STAY:
                return outcome
        return Action.STAY

    def _handle(self, packet: Packet) -> Action:
        if packet.type != PacketType.STATE_MANIPULATE:
            return Action.STAY
        try:
            request = parse_manipulate(packet.payload)
        except ProtocolError:
            return Action.STAY
        self.statistics.requests[request.api] += 1
        outcome = self._stub.handle(request)
        if outcome.reply is not None:
            self._send(PacketType.STATE_MANIPULATE, outcome.reply)
        return outcome.action

    def _send(self, packet_type: int, payload: bytes) -> bool:
        return self.link.send(packet_type, payload, None, self._ended)

    def _count_hit(self, stop: MachineStop) -> bool:
        if stop.code != STATUS_BREAKPOINT:
            return False
        function = self.machine.nearest(stop.address)[:2]
        if function == ("nt", "ExAllocateHeapPool"):
            self.statistics.hits_alloc += 1
        elif function == ("nt", "ExFreeHeapPool"):
            self.statistics.hits_free += 1
        else:
            return False
        return True

    def _reboot(self) -> None:
        self.statistics.reboots += 1
        self.machine.close()
        self._seed += 1
        self.machine = self._boot()
        self._stub = KdStub(self.machine, self._max_packet)
        if self._reopen is not None:
            self.link.close()
            self.link = self._reopen()
