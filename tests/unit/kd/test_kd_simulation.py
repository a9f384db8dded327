"""Loss, duplication, reordering and corruption at once: nothing lost, nothing twice, in order."""

from __future__ import annotations

import random

import pytest
from kd_simulation import HOST, TARGET, Network, Weather

from kdleak.kd.kdnet_crypto import KdnetKey
from kdleak.kd.kdnet_machine import KdnetHostMachine, KdnetTargetMachine
from kdleak.kd.packets import (
    Api,
    Continue2,
    ExceptionRecord,
    PacketType,
    build_exception_change,
    build_manipulate,
    continue2_union,
    memory_union,
    parse_manipulate,
)
from kdleak.kd.reliable import Role
from kdleak.kd.serial_machine import SerialMachine

KEY = KdnetKey.parse("1.2.3.4")
STORM = Weather(loss=0.2, duplication=0.2, reordering=0.2, corruption=0.2)


class TargetScript:
    """A debuggee as a state machine: stops, answers reads, is continued, prints, stops again."""

    def __init__(self, machine, stops: int) -> None:
        self.machine = machine
        self.stops = stops
        self.stop_number = 0
        self.continued = 0
        self.requests = []
        self.prints_sent = 0
        self._answers = []
        self._ticket = None

    def step(self, now: float) -> None:
        reliable = self.machine.reliable
        while reliable.inbox:
            packet = reliable.inbox.popleft()
            assert packet.type == PacketType.STATE_MANIPULATE
            request = parse_manipulate(packet.payload)
            if request.api == Api.CONTINUE2:
                self.continued += 1
            else:
                self.requests.append(request.union[:8])
                self._answers.append(
                    build_manipulate(request.api, 0, request.union, b"reply" + request.union[:8])
                )
        if not reliable.idle:
            return
        if self._answers:
            reliable.submit(PacketType.STATE_MANIPULATE, self._answers.pop(0), now)
        elif not reliable.stopped and self.stop_number < self.stops:
            if self.prints_sent <= self.stop_number:
                self.prints_sent += 1
                reliable.submit(PacketType.DEBUG_IO, b"print %d" % self.prints_sent, now)
            else:
                self.stop_number += 1
                reliable.submit(PacketType.STATE_CHANGE64, stop_payload(self.stop_number), now)


def stop_payload(number: int) -> bytes:
    return build_exception_change(
        ExceptionRecord(0x80000003, address=number), program_counter=number
    )


class HostScript:
    """A debugger as a state machine: at each stop ``reads`` requests, then continue."""

    def __init__(self, machine, reads: int) -> None:
        self.machine = machine
        self.reads = reads
        self.stops = []
        self.prints = []
        self.replies = []
        self._to_ask = 0
        self._awaiting = False
        self._continue_due = False
        self.asked = 0

    def step(self, now: float) -> None:
        reliable = self.machine.reliable
        assert not reliable.gave_up
        while reliable.inbox:
            packet = reliable.inbox.popleft()
            if packet.type == PacketType.STATE_CHANGE64:
                self.stops.append(packet.payload)
                self._to_ask = self.reads
                self._continue_due = True
            elif packet.type == PacketType.DEBUG_IO:
                self.prints.append(packet.payload)
            else:
                assert self._awaiting
                self._awaiting = False
                self.replies.append(parse_manipulate(packet.payload).data)
        if not reliable.idle or self._awaiting:
            return
        if self._to_ask:
            self._to_ask -= 1
            self._awaiting = True
            self.asked += 1
            request = build_manipulate(Api.READ_VIRTUAL, 0, memory_union(self.asked, 16))
            reliable.submit(PacketType.STATE_MANIPULATE, request, now)
        elif self._continue_due:
            self._continue_due = False
            request = build_manipulate(Api.CONTINUE2, 0, continue2_union(Continue2()))
            reliable.submit(PacketType.STATE_MANIPULATE, request, now)


def kdnet_pair(seed: int):
    source = random.Random(seed + 1)
    host = KdnetHostMachine(KEY, random_bytes=source.randbytes, tries=1000)
    target = KdnetTargetMachine(KEY, host=HOST, own=TARGET, random_bytes=source.randbytes)
    return host, target


def run_session(network, host, target, stops: int, reads: int):
    network.attach(HOST, host)
    network.attach(TARGET, target)
    debuggee = TargetScript(target, stops)
    debugger = HostScript(host, reads)

    def each() -> None:
        debuggee.step(network.now)
        debugger.step(network.now)

    finished = network.run(lambda: debuggee.continued == stops, each=each, seconds=3000)
    assert finished
    return debuggee, debugger


def check_exactly_once(debuggee, debugger, stops: int, reads: int) -> None:
    assert debugger.stops == [stop_payload(number) for number in range(1, stops + 1)]
    assert debugger.prints == [b"print %d" % number for number in range(1, stops + 1)]
    numbers = [number.to_bytes(8, "little") for number in range(1, stops * reads + 1)]
    assert debuggee.requests == numbers
    assert debugger.replies == [b"reply" + number for number in numbers]
    assert debuggee.continued == stops


@pytest.mark.parametrize("seed", range(6))
def test_kdnet_in_a_storm(seed: int) -> None:
    network = Network(seed, STORM)
    host, target = kdnet_pair(seed)
    stops, reads = 60, 4
    debuggee, debugger = run_session(network, host, target, stops, reads)
    check_exactly_once(debuggee, debugger, stops, reads)
    # 60 prints, 60 stops, 240 replies one way; 240 requests, 60 continues the other.
    assert host.statistics.resends > 50
    assert host.statistics.rejected > 50
    assert target.statistics.rejected > 50


def test_kdnet_in_fair_weather_resends_only_what_the_protocol_asks_for() -> None:
    network = Network(0)
    host, target = kdnet_pair(0)
    debuggee, debugger = run_session(network, host, target, 20, 4)
    check_exactly_once(debuggee, debugger, 20, 4)
    assert host.statistics.resends == 0
    assert host.statistics.rejected == target.statistics.rejected == 0
    # The greeting is answered with RESEND, which repeats the first packet.
    assert target.statistics.resends <= 2
    assert network.now - 1000.0 < 2.0


class HeaderSafe(Network):
    """Damages anything but packet type and id, which KD on a byte stream does not protect."""

    def damage(self, data: bytes) -> bytes:
        while True:
            damaged = super().damage(data)
            if len(damaged) != len(data) or damaged[4:6] + damaged[8:12] == data[4:6] + data[8:12]:
                return damaged


@pytest.mark.parametrize("seed", range(6))
def test_serial_with_noise(seed: int) -> None:
    network = HeaderSafe(seed, Weather(loss=0.1, corruption=0.2), ordered=True)
    host = SerialMachine(Role.HOST, tries=1000)
    target = SerialMachine(Role.TARGET)
    stops, reads = 60, 4
    debuggee, debugger = run_session(network, host, target, stops, reads)
    check_exactly_once(debuggee, debugger, stops, reads)
    assert host.statistics.resends > 50
    assert host.statistics.rejected > 20


def test_serial_in_fair_weather() -> None:
    network = Network(0, ordered=True)
    host, target = SerialMachine(Role.HOST), SerialMachine(Role.TARGET)
    debuggee, debugger = run_session(network, host, target, 20, 4)
    check_exactly_once(debuggee, debugger, 20, 4)
    assert host.statistics.resends == target.statistics.resends == 0
