"""Ctrl+C: let in only around the wait, never into arming or disarming."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
from hunt_fakes import IDLE, LEAK, FakeEngine, Finder, leaking

from kdleak.hunt import HuntOptions, hunt
from kdleak.interrupt_guard import InterruptGuard
from kdleak.journal import Journal
from kdleak.result import DisarmStatus, StopReason

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals are sent with os.kill")


def press(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


def test_held_off_then_raised_at_the_next_admission() -> None:
    before = signal.getsignal(signal.SIGINT)
    guard = InterruptGuard()
    guard.install()
    try:
        press()
        press()
        assert guard.pressed == 2
        with pytest.raises(KeyboardInterrupt), guard.admit():
            pytest.fail("not reached")
    finally:
        guard.remove()
    assert signal.getsignal(signal.SIGINT) is before


def test_raised_at_once_while_admitted_and_only_once() -> None:
    guard = InterruptGuard()
    guard.install()
    try:
        with pytest.raises(KeyboardInterrupt), guard.admit():
            press()
        press()
        assert guard.pressed == 2
    finally:
        guard.remove()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_other_ways_of_ending_count_as_ctrl_c(name: str) -> None:
    guard = InterruptGuard()
    guard.install()
    try:
        with pytest.raises(KeyboardInterrupt), guard.admit():
            press(getattr(signal, name))
    finally:
        guard.remove()
    assert signal.getsignal(getattr(signal, name)) is signal.SIG_DFL


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    guard = InterruptGuard()
    try:
        guard.install()
        press(signal.SIGHUP)
        assert guard.pressed == 0
    finally:
        guard.remove()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        signal.signal(signal.SIGHUP, before)


def test_outside_the_main_thread_nothing_is_changed() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work() -> None:
        guard = InterruptGuard()
        guard.install()
        seen.append(signal.getsignal(signal.SIGINT))
        guard.remove()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("in_thread", [False, True])
def test_a_hunt_with_ctrl_c_at_every_call(tmp_path: Path, in_thread: bool) -> None:
    """Real signals in the main thread; in another thread a hunt simply works without them."""
    options = HuntOptions(
        tag=LEAK, max_hits=6, burst_hits=3, burst_seconds=0.0, hits_per_second=10.0
    )
    results = []

    def run(at: int) -> None:
        def fault(engine: FakeEngine, name: str, when: str) -> None:
            if not in_thread and len(engine.calls) in (at, at + 1) and when == "after":
                press()

        engine = FakeEngine(leaking(), fault=fault)
        result = hunt(
            engine,
            options,
            journal=Journal(tmp_path / f"{at}"),
            block_finder_factory=Finder,
            clock=engine.clock,
            sleep=engine.clock.sleep,
        )
        assert engine.hit_tag == IDLE
        assert engine.violations == []
        results.append(result)

    before = signal.getsignal(signal.SIGINT)
    for at in range(1, 40):
        if in_thread:
            thread = threading.Thread(target=run, args=(at,))
            thread.start()
            thread.join()
        else:
            run(at)
    assert signal.getsignal(signal.SIGINT) is before
    assert len(results) == 39
    assert all(result.disarm.status is not DisarmStatus.NOT_CONFIRMED for result in results)
    interrupted = sum(result.interrupted for result in results)
    assert (interrupted > 20) is not in_thread
    if in_thread:
        assert {result.stop_reason for result in results} == {StopReason.HITS}
