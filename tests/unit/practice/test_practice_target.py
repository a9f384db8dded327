"""The run loop: pacing, break-in, stops without a debugger, statistics. The link is a fake."""

from __future__ import annotations

import json
import struct
import threading
from collections import deque
from dataclasses import replace

import pytest

from kdleak.errors import BadConnection, ExitCode, LinkLost
from kdleak.kd.packets import (
    Api,
    Continue2,
    Packet,
    PacketType,
    build_manipulate,
    continue2_union,
    memory_union,
    parse_manipulate,
    parse_state_change,
    u32_union,
)
from kdleak.kd.structures import DEBUG_IO
from kdleak.practice import run as program
from kdleak.practice.run import PracticeResult, run_practice
from kdleak.practice.target import PracticeTarget


class FakeClock:
    def __init__(self):
        self.now = 100.0
        self.sleeps: list[float] = []

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        assert seconds > 0
        self.sleeps.append(seconds)
        self.now += seconds


class FakeLink:
    """A debugger that answers each thing the target sends by a script."""

    where = "com:listen=1"

    def __init__(self, clock, answer):
        self.clock = clock
        self.answer = answer
        self.sent: list[tuple[int, bytes]] = []
        self.inbox: deque[bytes] = deque()
        self.break_at: set[int] = set()
        self.polls = 0
        self.connected = True
        self.closed = False

    def poll_break_in(self):
        self.polls += 1
        return self.polls in self.break_at

    def send(self, packet_type, payload, timeout=None, should_stop=None):
        self.clock.now += 0.0001
        self.sent.append((packet_type, payload))
        answer = self.answer(self, packet_type, payload)
        if answer is None:
            assert should_stop is not None
            return not should_stop()
        self.inbox.extend(answer)
        return True

    def receive(self, timeout):
        self.clock.now += 0.0001
        return Packet(PacketType.STATE_MANIPULATE, self.inbox.popleft()) if self.inbox else None

    def wake(self):
        pass

    def close(self):
        self.closed = True


def step_over_and_go(change, delta=1):
    """Requests that move the program counter past the break and continue."""
    processor = change.processor

    def follow(context):
        record = bytearray(context)
        struct.pack_into("<Q", record, 0xF8, change.program_counter + delta)
        return [
            build_manipulate(Api.SET_CONTEXT, processor, u32_union(0), bytes(record)),
            build_manipulate(Api.CONTINUE2, processor, continue2_union(Continue2())),
        ]

    return [build_manipulate(Api.GET_CONTEXT, processor)], follow


class Debugger:
    """Steps over every stop; keeps what it was told."""

    def __init__(self):
        self.changes = []
        self.prints = []
        self.follow = None
        self.first: list[bytes] = []

    def __call__(self, link, packet_type, payload):
        if packet_type == PacketType.DEBUG_IO:
            self.prints.append(DEBUG_IO.parse(payload).text)
            return []
        if packet_type == PacketType.STATE_CHANGE64:
            change = parse_state_change(payload)
            self.changes.append(change)
            if change.load_symbols:
                return [build_manipulate(Api.CONTINUE2, 0, continue2_union(Continue2()))]
            request, self.follow = step_over_and_go(change)
            first, self.first = self.first, []
            return first + request
        reply = parse_manipulate(payload)
        if reply.api == Api.GET_CONTEXT:
            return self.follow(reply.data)
        return []


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def debugger():
    return Debugger()


@pytest.fixture
def make(clock, small):
    made = []

    def build(answer, **settings):
        settings.setdefault("workload", small)
        link = FakeLink(clock, answer)
        target = PracticeTarget(link, clock=clock, sleep=clock.sleep, **{"rate": 100.0, **settings})
        made.append(target)
        return target

    yield build
    for target in made:
        target.close()


class TestPacing:
    def test_ticks_come_at_the_rate_asked_for(self, make, debugger, clock):
        target = make(debugger, rate=50.0)
        statistics = target.run(ticks=50)
        assert statistics.ticks == 50
        assert 0.9 < clock.now - 100 < 1.1
        assert max(clock.sleeps) <= 0.005

    def test_rate_zero_does_not_sleep(self, make, debugger, clock):
        target = make(debugger, rate=0)
        assert target.run(ticks=20).ticks == 20
        assert clock.sleeps == []

    def test_time_lost_while_stopped_is_not_made_up_for(self, make, debugger, clock):
        def slow(link, packet_type, payload):
            if packet_type == PacketType.STATE_CHANGE64:
                clock.now += 30
            return debugger(link, packet_type, payload)

        target = make(slow)
        target.link.break_at = {3}
        target.run(ticks=50)
        asleep = sum(clock.sleeps)
        assert asleep > 0.35

    def test_until_ends_the_run(self, make, debugger):
        target = make(debugger)
        target.run(lambda: target.statistics.ticks >= 7)
        assert target.statistics.ticks == 7

    def test_stop_ends_the_run_from_another_thread(self, make, debugger):
        target = make(debugger, rate=0)
        timer = threading.Timer(0.05, target.stop)
        timer.start()
        target.run()
        timer.join()
        assert target.statistics.ticks > 0


class TestStops:
    def test_break_in(self, make, debugger):
        target = make(debugger)
        target.link.break_at = {4}
        statistics = target.run(ticks=20)
        assert [target.machine.nearest(c.program_counter)[1] for c in debugger.changes] == [
            "DbgBreakPointWithStatus"
        ]
        assert (statistics.stops, statistics.hits) == (1, 0)
        assert statistics.requests == {Api.GET_CONTEXT: 1, Api.SET_CONTEXT: 1, Api.CONTINUE2: 1}

    def test_hits_are_counted_and_timed(self, make, debugger):
        target = make(debugger)
        target.link.break_at = {4}
        hit_tag = target.machine.symbol("PoolHitTag")
        debugger.first = [build_manipulate(Api.WRITE_VIRTUAL, 0, memory_union(hit_tag, 4), b"Leak")]
        statistics = target.run(ticks=30)
        assert statistics.hits_alloc > 40
        assert statistics.hits_free > 30
        assert statistics.stops == statistics.hits + 1
        assert 0.0004 < statistics.seconds_per_hit < 0.01
        assert statistics.pool_hit_tag == int.from_bytes(b"Leak", "little")
        assert statistics.request_count == 3 * statistics.stops + 1
        lines = "\n".join(statistics.lines())
        assert f"{statistics.hits} PoolHitTag hits" in lines
        assert "CONTINUE2" in lines
        assert "nt!PoolHitTag is 0x6b61654c" in lines

    def test_without_a_debugger_a_break_freezes_until_one_comes(self, make, small):
        asked = []

        def nobody(link, packet_type, payload):
            asked.append(packet_type)
            return

        target = make(nobody, workload=replace(small, break_at_tick=3))
        target.run(lambda: bool(asked))
        assert asked == [PacketType.STATE_CHANGE64]
        assert target.statistics.ticks <= 3

    def test_step(self, make, debugger):
        steps = []

        def stepper(link, packet_type, payload):
            if packet_type == PacketType.STATE_CHANGE64 and len(steps) < 3:
                change = parse_state_change(payload)
                steps.append(change)
                if len(steps) == 1:
                    requests, follow = step_over_and_go(change)
                    debugger.follow = lambda context: [
                        follow(context)[0],
                        build_manipulate(Api.CONTINUE2, 0, continue2_union(Continue2(trace=True))),
                    ]
                    return requests
                trace = continue2_union(Continue2(trace=len(steps) < 3))
                return [build_manipulate(Api.CONTINUE2, 0, trace)]
            return debugger(link, packet_type, payload)

        target = make(stepper)
        target.link.break_at = {2}
        target.run(ticks=10)
        assert [change.exception.code for change in steps] == [0x80000003, *[0x80000004] * 2]
        counters = [change.program_counter for change in steps]
        assert len(set(counters)) == 3

    def test_switch_processor_reports_from_there(self, make, debugger):
        target = make(debugger)
        target.link.break_at = {2}
        debugger.first = [build_manipulate(Api.SWITCH_PROCESSOR, 1)]

        def answer(link, packet_type, payload):
            if packet_type == PacketType.STATE_CHANGE64 and len(debugger.changes) == 0:
                debugger.changes.append(parse_state_change(payload))
                return [build_manipulate(Api.SWITCH_PROCESSOR, 1)]
            if packet_type == PacketType.STATE_CHANGE64:
                debugger.changes.append(parse_state_change(payload))
                target.stop()
            return []

        target.link.answer = answer
        target.run(ticks=10)
        assert [change.processor for change in debugger.changes] == [0, 1]

    def test_image_load_is_told_when_somebody_listens(self, make, debugger, small):
        workload = replace(small, late_driver_at_tick=4)
        target = make(debugger, workload=workload)
        target.run(ticks=8)
        assert [change.load_symbols.path[-11:] for change in debugger.changes] == ["busydrv.sys"]
        alone = make(debugger, workload=workload)
        alone.link.connected = False
        alone.run(ticks=8)
        assert alone.link.sent == []

    def test_prints_go_out_and_nobody_is_waited_for(self, make, debugger, small):
        workload = replace(small, print_every_ticks=2)
        target = make(debugger, workload=workload)
        target.run(ticks=5)
        assert debugger.prints == [b"leakydrv: 2 requests seen\n", b"leakydrv: 4 requests seen\n"]

        def deaf(link, packet_type, payload):
            raise LinkLost("sending a print", "nobody answered")

        other = make(deaf, workload=workload)
        assert other.run(ticks=5).prints == 2

    def test_reboot_starts_a_new_machine_elsewhere(self, make, debugger, clock):
        target = make(debugger)
        old = target.machine.kernel.base
        target.link.break_at = {3}
        debugger.first = [build_manipulate(Api.REBOOT)]
        fresh = []

        def reopen():
            fresh.append(FakeLink(clock, debugger))
            return fresh[0]

        target._reopen = reopen
        first = target.link
        statistics = target.run(ticks=10)
        assert statistics.reboots == 1
        assert first.closed
        assert target.link is fresh[0]
        assert target.machine.kernel.base != old
        assert target.machine.ticks > 0

    def test_junk_from_the_debugger_is_passed_over(self, make, debugger):
        target = make(debugger)
        target.link.break_at = {2}
        debugger.first = [b"short", build_manipulate(Api.GET_VERSION)]
        statistics = target.run(ticks=5)
        assert statistics.requests[Api.GET_VERSION] == 1
        assert statistics.ticks == 5

    def test_lost_medium_is_an_error_unless_we_end_anyway(self, make, debugger):
        target = make(debugger)

        def gone():
            raise LinkLost("looking for a break-in", "the connection was closed")

        target.link.poll_break_in = gone
        with pytest.raises(LinkLost):
            target.run(ticks=5)


class TestProgram:
    def test_ground_truth_and_statistics_as_json(self, make, debugger):
        target = make(debugger)
        target.run(ticks=10)
        text = json.dumps(PracticeResult(target.statistics, target.ground_truth()).as_json())
        document = json.loads(text)
        assert document["statistics"]["ticks"] == 10
        names = {site["function"] for site in document["ground_truth"] if site["tag"] == "Leak"}
        assert {"TrackRequest", "BuildContext", "CloneHeader"} <= names

    def test_connection_strings_are_checked_before_anything_runs(self):
        with pytest.raises(BadConnection):
            run_practice("usb:1")

    def test_program_reports_errors_in_words(self, capsys):
        assert program.main(["usb:1"]) == ExitCode.USAGE
        assert "connection string" in capsys.readouterr().err
