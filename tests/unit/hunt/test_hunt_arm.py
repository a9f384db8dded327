"""Arming and disarming, one rule per test."""

from __future__ import annotations

from pathlib import Path
from typing import List

import pytest
from hunt_fakes import ADDRESS, IDLE, LEAK, OTHER, Clock, FakeEngine, alloc

from kdleak.arm import ArmedTag
from kdleak.errors import (
    BadTag,
    DisarmNotConfirmed,
    JournalError,
    LinkLost,
    MemoryNotWritten,
    NotLive,
    TagAlreadyArmed,
    TargetBusy,
)
from kdleak.journal import Journal
from kdleak.model import Stop, StopKind
from kdleak.result import DisarmStatus
from kdleak.tags import PoolTag


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "state", now=lambda: 5.0, sleep=lambda _: None)


def armed_tag(engine: FakeEngine, journal: Journal, tag: PoolTag = LEAK, **more) -> ArmedTag:
    more.setdefault("grace_seconds", 5.0)
    return ArmedTag(engine, tag, journal, clock=engine.clock, sleep=engine.clock.sleep, **more)


def test_inside_armed_outside_original(journal: Journal) -> None:
    engine = FakeEngine()
    with armed_tag(engine, journal) as armed:
        assert engine.hit_tag == b"Leak"
        assert len(journal.scan().files) == 1
        assert armed.change is not None
        assert (armed.change.original, armed.change.armed) == (0xFFFFFF0F, LEAK.value)
    assert engine.hit_tag == IDLE
    assert armed.state.status is DisarmStatus.CONFIRMED
    assert armed.state.sentence() == ("disarmed: nt!PoolHitTag is back at 0xffffff0f (read back).")
    assert journal.scan().files == ()
    assert list(journal.directory.iterdir()) == []
    assert engine.violations == []


def test_the_original_is_whatever_was_there(journal: Journal) -> None:
    engine = FakeEngine(idle=b"\x00\x00\x00\x00")
    with armed_tag(engine, journal):
        pass
    assert engine.writes == [b"Leak", b"\x00\x00\x00\x00"]


def test_journal_before_the_first_write(journal: Journal) -> None:
    seen: List[int] = []

    def fault(engine: FakeEngine, name: str, when: str) -> None:
        if (name, when) == ("write", "before"):
            seen.append(len(journal.scan().files))

    with armed_tag(FakeEngine(fault=fault), journal):
        pass
    assert seen == [1, 1]


def test_no_journal_no_write(journal: Journal, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    engine = FakeEngine()
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(JournalError), armed_tag(engine, journal):
        pass
    assert engine.writes == []


@pytest.mark.parametrize("value", [0, 0x80000000, LEAK.value | 0x80000000, 1 << 32])
def test_a_tag_that_cannot_match_is_refused(journal: Journal, value: int) -> None:
    engine = FakeEngine()
    with pytest.raises(BadTag), armed_tag(engine, journal, PoolTag(value)):
        pass
    assert engine.calls == []


def test_a_dump_is_refused(journal: Journal) -> None:
    engine = FakeEngine(live=False)
    with pytest.raises(NotLive, match="dump"), armed_tag(engine, journal):
        pass
    assert engine.calls == []


def test_a_local_kernel_is_refused(journal: Journal) -> None:
    engine = FakeEngine()
    engine.local_kernel = True  # type: ignore[attr-defined]
    with pytest.raises(NotLive, match="local kernel"), armed_tag(engine, journal):
        pass
    assert engine.calls == []


@pytest.mark.parametrize("there", [b"Leak", b"Busy", b"ab  "])
def test_somebody_elses_tag_is_not_touched(journal: Journal, there: bytes) -> None:
    engine = FakeEngine(idle=there)
    with pytest.raises(TagAlreadyArmed, match="kdleak did not put there"):
        armed_tag(engine, journal).__enter__()
    assert engine.writes == []
    journal.claim(engine.where, ADDRESS).release()  # the lock is free again


def leave_armed(engine: FakeEngine, journal: Journal, tag: PoolTag = LEAK) -> None:
    """What a killed hunt leaves behind."""
    with journal.claim(engine.where, ADDRESS) as claim:
        claim.record(journal.entry(engine.where, engine.target, ADDRESS, IDLE, tag.raw))
    engine.hit_tag = tag.raw


def test_our_own_left_over_is_put_back_first(journal: Journal) -> None:
    engine = FakeEngine()
    leave_armed(engine, journal, OTHER)
    said: List[str] = []
    with armed_tag(engine, journal, narrate=said.append) as armed:
        assert armed.change is not None
        assert armed.change.original == 0xFFFFFF0F
    assert engine.writes == [IDLE, b"Leak", IDLE]
    assert "An earlier hunt left" in said[0]
    assert journal.scan().files == ()


def test_a_left_over_that_was_put_back_by_hand_is_forgotten(journal: Journal) -> None:
    engine = FakeEngine()
    leave_armed(engine, journal)
    engine.hit_tag = IDLE
    with armed_tag(engine, journal):
        pass
    assert engine.writes == [b"Leak", IDLE]


def test_a_left_over_and_something_else_in_its_place_is_refused(journal: Journal) -> None:
    engine = FakeEngine()
    leave_armed(engine, journal)
    engine.hit_tag = b"\x01\x02\x03\x04"
    with pytest.raises(TagAlreadyArmed):
        armed_tag(engine, journal).__enter__()
    assert engine.writes == []
    assert len(journal.scan().files) == 1


def test_two_hunts_of_one_target(journal: Journal) -> None:
    engine = FakeEngine()
    with armed_tag(engine, journal), pytest.raises(TargetBusy):
        armed_tag(FakeEngine(), journal).__enter__()
    assert engine.hit_tag == IDLE


def test_an_arm_that_does_not_read_back_is_undone(journal: Journal) -> None:
    engine = FakeEngine()

    def lie(value: bytes) -> bytes:
        return b"\xde\xad\xbe\xef" if value == b"Leak" else value

    engine.lie = lie
    with pytest.raises(MemoryNotWritten, match="reads back as"):
        armed_tag(engine, journal).__enter__()
    assert engine.hit_tag == IDLE
    assert journal.scan().files == ()


def test_disarm_and_arm_again(journal: Journal) -> None:
    engine = FakeEngine()
    with armed_tag(engine, journal) as armed:
        engine.clock.now += 2.0
        assert armed.disarm().safe
        assert engine.hit_tag == IDLE
        assert armed.armed_since is None
        engine.clock.now += 100.0
        armed.arm()
        assert engine.hit_tag == b"Leak"
        engine.clock.now += 3.0
    assert armed.times_armed == 2
    assert armed.seconds_armed == pytest.approx(5.0, abs=0.1)
    assert engine.hit_tag == IDLE


def test_between_bursts_the_entry_stays_and_is_closed_at_the_end(journal: Journal) -> None:
    engine = FakeEngine()
    with armed_tag(engine, journal) as armed:
        assert armed.disarm(for_now=True).status is DisarmStatus.CONFIRMED
        assert engine.hit_tag == IDLE
        assert len(journal.scan().files) == 1
        armed.arm()
        armed.disarm(for_now=True)
    assert journal.scan().files == ()
    assert armed.state.remarks == ()


def test_the_disk_is_written_while_the_target_still_runs(journal: Journal) -> None:
    engine = FakeEngine()
    with armed_tag(engine, journal) as armed:
        armed.disarm()
        engine.resume(1.0)
        before = len(engine.calls)

        def fault(fake: FakeEngine, name: str, when: str) -> None:
            if name == "interrupt":
                assert len(journal.scan().files) == 1

        engine.fault = fault
        armed.arm()
        assert engine.calls[before:] == ["interrupt", "write", "read"]


def test_a_running_target_is_stopped_to_disarm_and_hits_meanwhile_are_told(
    journal: Journal,
) -> None:
    engine = FakeEngine([alloc(0x1000, "drv!F+0x1", dt=0.015)])
    engine.event_on_interrupt = True
    told: List[Stop] = []
    with armed_tag(engine, journal, on_stop=told.append) as armed:
        assert armed.resume(0.01).kind is StopKind.STILL_RUNNING
    assert [stop.kind for stop in told] == [StopKind.BREAK_INSTRUCTION]
    assert engine.hit_tag == IDLE


def test_a_refused_write_back_is_said_with_the_repair(journal: Journal) -> None:
    engine = FakeEngine()
    armed = armed_tag(engine, journal)
    with pytest.raises(DisarmNotConfirmed, match="ed nt!PoolHitTag 0xffffff0f") as caught, armed:
        engine.refuse_writes = True
    assert "0xc0000005" in str(caught.value)
    assert caught.value.exit_code == 5
    assert armed.state.status is DisarmStatus.NOT_CONFIRMED
    assert armed.state.sentence().startswith("DISARM NOT CONFIRMED")
    assert len(journal.scan().files) == 1
    assert engine.calls.count("write") == 1 + 3


def test_a_wrong_read_back_is_not_confirmed(journal: Journal) -> None:
    engine = FakeEngine()
    with pytest.raises(DisarmNotConfirmed, match="but it reads"), armed_tag(engine, journal):
        engine.lie = lambda _: b"Leak"
    assert len(journal.scan().files) == 1


def test_the_error_of_the_block_is_kept_as_the_cause(journal: Journal) -> None:
    engine = FakeEngine()

    def fail() -> None:
        engine.refuse_writes = True
        raise ZeroDivisionError

    with pytest.raises(DisarmNotConfirmed) as caught, armed_tag(engine, journal):
        fail()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_exception_disarms_and_passes(journal: Journal) -> None:
    engine = FakeEngine()
    with pytest.raises(ZeroDivisionError), armed_tag(engine, journal):
        raise ZeroDivisionError
    assert engine.hit_tag == IDLE


class ComingBack:
    """A link that is down for so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.since: float = 0.0

    def cut(self, engine: FakeEngine) -> None:
        self.since = engine.clock()
        engine.fault = self

    def __call__(self, engine: FakeEngine, name: str, when: str) -> None:
        if engine.clock() < self.since + self.seconds:
            engine.clock.now += 0.25
            raise LinkLost(name, "no answer")


def test_a_lost_link_is_waited_for(journal: Journal) -> None:
    engine = FakeEngine()
    said: List[str] = []
    with armed_tag(engine, journal, grace_seconds=30.0, narrate=said.append) as armed:
        ComingBack(20.0).cut(engine)
    assert armed.state.status is DisarmStatus.CONFIRMED
    assert engine.hit_tag == IDLE
    assert sum("The link is lost" in line for line in said) == 1


def test_a_link_that_stays_away_is_not_confirmed_after_the_grace(journal: Journal) -> None:
    engine = FakeEngine()
    started = engine.clock()
    with pytest.raises(DisarmNotConfirmed, match="no answer"):  # noqa: SIM117
        with armed_tag(engine, journal, grace_seconds=30.0) as armed:
            ComingBack(1e9).cut(engine)
    assert 30 <= engine.clock() - started <= 45
    assert armed.state.repair[0] == "ed nt!PoolHitTag 0xffffff0f"
    assert armed.state.value == 0xFFFFFF0F


def test_two_more_ctrl_c_give_up_waiting_for_the_link(journal: Journal) -> None:
    engine = FakeEngine()
    clock = engine.clock
    naps: List[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        clock.now += seconds
        if len(naps) in (2, 3):
            raise KeyboardInterrupt

    armed = ArmedTag(engine, LEAK, journal, clock=clock, sleep=nap, grace_seconds=1000.0)
    with pytest.raises(DisarmNotConfirmed), armed:
        ComingBack(1e9).cut(engine)
    assert len(naps) == 3


def test_a_restarted_target_needs_no_disarm(journal: Journal) -> None:
    engine = FakeEngine()
    with armed_tag(engine, journal) as armed:
        engine.reboot()
    assert armed.state.status is DisarmStatus.NOT_NEEDED
    assert "restarted" in armed.state.sentence()
    assert journal.scan().files == ()


def test_a_journal_file_that_cannot_be_removed_is_a_remark(journal: Journal, monkeypatch) -> None:
    def stuck(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "in use")

    engine = FakeEngine()
    with armed_tag(engine, journal) as armed, monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", stuck)
        state = armed.disarm()
    assert state.status is DisarmStatus.CONFIRMED
    assert "in use" in state.remarks[0]


def test_a_closed_pipe_does_not_stop_the_disarm(journal: Journal) -> None:
    engine = FakeEngine()

    def broken(_: str) -> None:
        raise BrokenPipeError

    with armed_tag(engine, journal, narrate=broken, grace_seconds=30.0) as armed:
        ComingBack(3.0).cut(engine)
    assert armed.state.status is DisarmStatus.CONFIRMED


def test_arming_without_entering_is_refused(journal: Journal) -> None:
    with pytest.raises(JournalError):
        armed_tag(FakeEngine(clock=Clock()), journal).arm()
