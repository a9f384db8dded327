"""The native engine against the practice target over KDNET and over a TCP stream."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

import pytest
from practice_wire import KEY, practice_target, symbol_path

from kdleak.engine.blocks import block_finder
from kdleak.engine.native import NativeEngine, attach_native
from kdleak.errors import KdleakError, LinkError, WrongKey
from kdleak.model import HitKind, StackEnd, StopKind
from kdleak.practice.workload import Workload
from kdleak.tags import PoolTag

pytestmark = pytest.mark.e2e
MEDIA = pytest.mark.parametrize("medium", ["net", "tcp"])
LEAK = PoolTag.parse("Leak")


def attach(connection, **more):
    return attach_native(connection, symbol_path(), 20, **more)


@contextlib.contextmanager
def attached(medium, on_print=None, **more):
    with practice_target(medium, **more) as target:
        engine = attach(target[1], on_print=on_print)
        try:
            yield engine
        finally:
            engine.close()


def next_hit(engine):
    stop = engine.resume(10)
    assert stop.kind is StopKind.BREAK_INSTRUCTION, stop
    return stop


@MEDIA
def test_hunt_by_hand(medium):
    with practice_target(medium, seed=11) as (target, connection):
        with attach(connection) as engine:
            assert engine.stop.kind is StopKind.BREAK_IN
            assert KEY not in engine.where
            assert engine.target.processors == 2
            assert engine.pool_usage().gaps == ()
            address = engine.symbol("nt!PoolHitTag")
            original = engine.read(address, 4)
            engine.write(address, LEAK.raw)
            finder = block_finder(engine, LEAK)
            costs, sites = [], set()
            for _ in range(120):
                before = engine.requests
                stop = next_hit(engine)
                registers, stack = engine.registers(), engine.stack()
                costs.append(engine.requests - before)
                assert stack.end is StackEnd.COMPLETE
                assert len(stack.frames) >= 6
                sites.add(next(f.symbol.name for f in stack.frames if f.symbol.module != "nt"))
                kind = HitKind.FREE if "Free" in stack.frames[0].symbol.name else HitKind.ALLOC
                finder.find(registers, *engine.stack_memory(), stop.program_counter, kind)
            assert set(costs[10:]) == {4}
            assert sites >= {"TrackRequest", "BuildContext", "CloneHeader", "ReleaseContext"}
            assert finder.statistics.contradictions == 0
            assert finder.statistics.learned > 60
            engine.write(address, original)
            assert engine.read(address, 4) == original
            assert engine.resume(0.3).kind is StopKind.STILL_RUNNING
            assert engine.interrupt().kind is StopKind.BREAK_IN
            assert 0 < engine.seconds_stopped < 30
        ticks_on(target)


@MEDIA
def test_killed_session_is_taken_over_at_its_hit(medium):
    with practice_target(medium, seed=12) as (_, connection):
        engine = attach(connection)
        address = engine.symbol("nt!PoolHitTag")
        original = engine.read(address, 4)
        engine.write(address, LEAK.raw)
        left = next_hit(engine)
        engine.host.close()  # the process is gone without a word
        with attach(connection) as engine:
            assert engine.stop.kind is StopKind.BREAK_INSTRUCTION
            assert engine.stop.program_counter == left.program_counter
            assert engine.stack().frames[0].symbol.name in ("ExAllocateHeapPool", "ExFreeHeapPool")
            assert engine.read(address, 4) == LEAK.raw
            engine.write(address, original)
            assert engine.resume(0.3).kind is StopKind.STILL_RUNNING


def stop_of(engine, kind):
    """The stop the workload makes; an attach that took long finds the target in it already."""
    try:
        stop = engine.stop if engine.stop.kind is kind else engine.resume(20)
        assert stop.kind is kind
    except BaseException:
        engine.close()
        raise
    return stop


@MEDIA
def test_left_stopped_for_the_next_debugger(medium):
    with practice_target(medium, seed=13, workload=Workload(break_at_tick=120)) as (_, connection):
        engine = attach(connection)
        stop = stop_of(engine, StopKind.BREAK_INSTRUCTION)
        engine.detach(leave_stopped=True)
        with attach(connection) as again:
            assert again.stop.program_counter == stop.program_counter
            names = [str(frame.symbol) for frame in again.stack().frames]
            assert names[0].startswith("nt!DbgBreakPoint")


@MEDIA
def test_bug_check(medium):
    load = Workload(bug_check_at_tick=120)
    with attached(medium, seed=14, workload=load) as engine:
        stop = stop_of(engine, StopKind.BUG_CHECK)
        assert "bug check 0x" in stop.detail


def test_prints_are_passed_on():
    texts = []
    load = Workload(print_every_ticks=5)
    with attached("net", texts.append, seed=15, workload=load) as engine:
        engine.resume(1.0)
        engine.interrupt()
    assert any("leakydrv" in text for text in texts)


@MEDIA
def test_break_ins_that_meet_hits(medium):
    """Interrupting a hot target: whatever came first is told, and nothing is left behind."""
    with attached(medium, seed=16, rate=400) as engine:
        address = engine.symbol("nt!PoolHitTag")
        original = engine.read(address, 4)
        engine.write(address, PoolTag.parse("Busy").raw)
        kinds = set()
        for _ in range(40):
            if engine.resume(0.0).kind is StopKind.STILL_RUNNING:
                kinds.add(engine.interrupt().kind)
            assert engine.stop.kind in (StopKind.BREAK_INSTRUCTION, StopKind.BREAK_IN)
            if engine.stop.kind is StopKind.BREAK_INSTRUCTION:
                assert engine.stack().frames[0].symbol.name.endswith("HeapPool")
        assert kinds
        engine.write(address, original)
        stop = engine.resume(0.5)
        assert stop.kind is StopKind.STILL_RUNNING, stop


def test_ctrl_c_in_a_wait_and_in_requests():
    with attached("net", seed=17) as engine:
        address = engine.symbol("nt!PoolHitTag")
        original = engine.read(address, 4)
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            engine.resume(None)
        timer.join()
        assert engine.stop.kind is StopKind.STILL_RUNNING
        assert engine.interrupt().kind is StopKind.BREAK_IN
        interrupted = hammered(engine, address)
        assert interrupted >= 3
        assert engine.read(address, 4) == original
        assert engine.registers()["rip"] == engine.stop.program_counter


@MEDIA
@pytest.mark.parametrize("delay", [0.05, 0.25, 0.5])
def test_ctrl_c_while_attaching_leaves_the_target_running(medium, delay):
    with practice_target(medium, seed=20) as (target, connection):
        timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with contextlib.suppress(KeyboardInterrupt), attach(connection) as engine:
            timer.join()
            engine.symbol("nt!PoolHitTag")
        timer.join()
        ticks_on(target)


def ticks_on(target):
    """The machine runs: time passes in it."""
    ticks = target.machine.ticks
    deadline = time.monotonic() + 5
    while target.machine.ticks < ticks + 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert target.machine.ticks >= ticks + 5


def hammered(engine: NativeEngine, address: int) -> int:
    """Read while signals come in from all sides; how many of them came through."""
    done = threading.Event()

    def press():
        while not done.wait(0.01):
            os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    count = 0
    end = time.monotonic() + 0.6

    def read_until_interrupted():
        while time.monotonic() < end:
            engine.read(address, 0x600)

    presser.start()
    while time.monotonic() < end:
        with contextlib.suppress(KeyboardInterrupt):
            read_until_interrupted()
            break
        count += 1
    try:
        done.set()
        presser.join()
        time.sleep(0.05)
    except KeyboardInterrupt:
        presser.join()
    return count


def test_wrong_key_and_nobody_there():
    with practice_target("net", seed=18) as (_, connection), pytest.raises(WrongKey):
        attach_native(connection.replace(KEY, "1.1.1.1"), symbol_path(), 6)
    with pytest.raises(LinkError) as caught:
        attach_native(connection, symbol_path(), 0.5)
    assert isinstance(caught.value, KdleakError)


def test_two_sessions_after_each_other():
    with practice_target("tcp", seed=19) as (_, connection):
        for _ in range(3):
            with attach(connection) as engine:
                assert engine.pool_usage(LEAK).find(LEAK) is not None
