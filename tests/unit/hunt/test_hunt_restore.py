"""kdleak restore: undo what a killed hunt left, and touch nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hunt_fakes import (
    ADDRESS,
    IDLE,
    KERNEL_BASE,
    LEAK,
    OTHER,
    FakeEngine,
    alloc,
    foreign,
)

from kdleak.errors import LinkLost, NotLive, TargetBusy, UsageError
from kdleak.journal import Journal
from kdleak.model import StopKind
from kdleak.restore import restore
from kdleak.result import DisarmStatus


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "state", now=lambda: 5.0, sleep=lambda _: None)


def record(journal: Journal, engine: FakeEngine, **changes: object) -> None:
    where = str(changes.pop("where", engine.where))
    target = replace(engine.target, **changes)  # type: ignore[arg-type]
    shift = target.kernel_base - KERNEL_BASE
    with journal.claim(where, ADDRESS + shift) as claim:
        claim.record(journal.entry(where, target, ADDRESS + shift, IDLE, LEAK.raw))


def left_armed(journal: Journal, *events) -> FakeEngine:
    engine = FakeEngine(events)
    record(journal, engine)
    engine.hit_tag = LEAK.raw
    return engine


def test_an_armed_tag_is_put_back(journal: Journal) -> None:
    engine = left_armed(journal)
    result = restore(engine, journal)
    assert result.state.status is DisarmStatus.CONFIRMED
    assert engine.hit_tag == IDLE
    assert [(item.tag, item.closed, item.remark) for item in result.items] == [
        (LEAK, True, "put back")
    ]
    assert journal.scan().files == ()
    assert engine.violations == []


def test_already_original_closes_the_entry_without_a_write(journal: Journal) -> None:
    engine = FakeEngine()
    record(journal, engine)
    result = restore(engine, journal)
    assert result.state.status is DisarmStatus.CONFIRMED
    assert engine.writes == []
    assert journal.scan().files == ()


def test_something_else_is_not_touched(journal: Journal) -> None:
    engine = FakeEngine()
    record(journal, engine)
    engine.hit_tag = OTHER.raw
    result = restore(engine, journal)
    assert result.state.status is DisarmStatus.NOT_CONFIRMED
    assert "('Busy')" in result.state.why
    assert engine.writes == []
    assert len(journal.scan().files) == 1


def test_a_machine_that_looked_restarted_is_still_repaired_when_it_turns_up(
    journal: Journal,
) -> None:
    # Two machines of one build take turns on the same port: the second looks like a restart.
    armed = left_armed(journal)
    other = FakeEngine()
    other.target = replace(other.target, kernel_base=KERNEL_BASE + 0x200000)
    first = restore(other, journal)
    assert first.state.status is DisarmStatus.NOT_NEEDED
    assert "set aside" in first.items[0].remark
    assert journal.scan().files == ()
    assert len(journal.scan().past) == 1

    result = restore(armed, journal)
    assert result.state.status is DisarmStatus.CONFIRMED
    assert armed.hit_tag == IDLE
    assert journal.scan().past == ()


def test_a_restarted_target_closes_the_entry_with_a_remark(journal: Journal) -> None:
    engine = FakeEngine()
    record(journal, engine, kernel_base=KERNEL_BASE + 0x200000)
    result = restore(engine, journal)
    assert result.items[0].closed
    assert "restarted" in result.items[0].remark
    assert result.state.status is DisarmStatus.NOT_NEEDED
    assert engine.writes == []
    assert journal.scan().files == ()


@pytest.mark.parametrize(
    "changes",
    [{"where": "com:port=COM1", "build": 19045}, {"build": 19045}],
    ids=["other connection", "other build"],
)
def test_entries_of_other_targets_are_kept(journal: Journal, changes) -> None:
    engine = FakeEngine()
    record(journal, engine, **changes)
    result = restore(engine, journal)
    assert result.items == ()
    assert "another target" in result.remarks[0]
    assert len(journal.scan().files) == 1


def test_the_same_target_over_another_connection(journal: Journal) -> None:
    engine = FakeEngine()
    record(journal, engine, where="com:port=COM1")
    engine.hit_tag = LEAK.raw
    assert restore(engine, journal).state.status is DisarmStatus.CONFIRMED
    assert engine.hit_tag == IDLE
    assert journal.scan().files == ()


def test_a_lookalike_over_another_connection_keeps_the_entry(journal: Journal) -> None:
    engine = FakeEngine()
    record(journal, engine, where="com:port=COM1")
    result = restore(engine, journal)
    assert result.state.status is DisarmStatus.NOT_NEEDED
    assert "another machine" in result.remarks[0]
    assert len(journal.scan().files) == 1


def test_nothing_in_the_journal_and_nothing_armed(journal: Journal) -> None:
    engine = FakeEngine()
    result = restore(engine, journal)
    assert result.state.status is DisarmStatus.NOT_NEEDED
    assert engine.writes == []


def test_somebody_elses_tag_is_named_and_only_overwritten_when_asked(journal: Journal) -> None:
    engine = FakeEngine(idle=OTHER.raw)
    result = restore(engine, journal)
    assert result.state.status is DisarmStatus.NOT_CONFIRMED
    assert "'Busy'" in result.state.why
    assert engine.writes == []
    result = restore(engine, journal, force_value=0xFFFFFF0F)
    assert result.state.status is DisarmStatus.CONFIRMED
    assert engine.hit_tag == IDLE


def test_a_forced_value_that_does_not_stay_is_said(journal: Journal) -> None:
    engine = FakeEngine(idle=OTHER.raw)
    engine.lie = lambda _: OTHER.raw
    assert restore(engine, journal, force_value=0).state.status is DisarmStatus.NOT_CONFIRMED


def test_a_value_too_big_is_refused(journal: Journal) -> None:
    with pytest.raises(UsageError):
        restore(FakeEngine(), journal, force_value=1 << 32)


def test_a_dump_is_refused(journal: Journal) -> None:
    with pytest.raises(NotLive):
        restore(FakeEngine(live=False), journal)


def test_a_target_stopped_at_a_left_over_hit(journal: Journal) -> None:
    """Two processors had passed the comparison when the hunt died."""
    engine = left_armed(journal, alloc(1, "drv!F+1"), alloc(2, "drv!F+1"))
    assert engine.resume(1.0).kind is StopKind.BREAK_INSTRUCTION
    late = engine._next_stop(engine.clock() + 1)
    assert late is not None
    pending = [late]
    real = engine.resume

    def resume(timeout):
        if pending:
            engine.calls.append("resume")
            engine.stop = pending.pop()
            return engine.stop
        return real(timeout)

    engine.resume = resume  # type: ignore[method-assign]
    result = restore(engine, journal)
    assert result.state.status is DisarmStatus.CONFIRMED
    assert result.passed_hits == 2
    assert not result.leave_stopped
    assert engine.stop.kind is StopKind.STILL_RUNNING


def test_a_foreign_stop_afterwards_is_left_to_the_user(journal: Journal) -> None:
    engine = left_armed(journal, foreign("otherdrv!Assert+1", "otherdrv!F+1"))
    result = restore(engine, journal)
    assert result.state.status is DisarmStatus.CONFIRMED
    assert result.leave_stopped
    assert engine.calls[-1] == "stack"


def test_a_write_that_does_not_stay_keeps_the_entry(journal: Journal) -> None:
    engine = left_armed(journal)
    engine.lie = lambda _: LEAK.raw
    result = restore(engine, journal)
    assert result.state.status is DisarmStatus.NOT_CONFIRMED
    assert len(journal.scan().files) == 1


def test_a_lost_link_keeps_the_entry(journal: Journal) -> None:
    engine = left_armed(journal)
    engine.link_down = True
    with pytest.raises(LinkLost):
        restore(engine, journal)
    assert len(journal.scan().files) == 1


def test_a_running_target_is_stopped_first(journal: Journal) -> None:
    engine = left_armed(journal)
    engine.resume(0.1)
    assert restore(engine, journal).state.status is DisarmStatus.CONFIRMED
    assert engine.violations == []


def test_a_living_hunt_is_not_disturbed(journal: Journal) -> None:
    engine = left_armed(journal)
    with journal.claim(engine.where, ADDRESS), pytest.raises(TargetBusy):
        restore(engine, journal)
    assert engine.hit_tag == LEAK.raw


def test_damaged_files_are_named_and_kept(journal: Journal) -> None:
    journal.directory.mkdir(parents=True)
    (journal.directory / "bad.json").write_text("{")
    result = restore(FakeEngine(), journal)
    assert "bad.json" in result.remarks[0]
    assert (journal.directory / "bad.json").exists()


KILLED = """
import os, pathlib, signal, sys
sys.path.insert(0, sys.argv[2])
from hunt_fakes import FakeEngine, LEAK, leaking
from kdleak.hunt import HuntOptions, hunt
from kdleak.journal import Journal

def fault(engine, name, when):
    if len(engine.calls) == 12 and when == "after":
        print(engine.hit_tag.decode(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

engine = FakeEngine(leaking(), fault=fault)
hunt(engine, HuntOptions(tag=LEAK), journal=Journal(pathlib.Path(sys.argv[1])), clock=engine.clock)
"""


@pytest.mark.skipif(os.name == "nt", reason="kills with SIGKILL")
def test_kill_9(journal: Journal) -> None:
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(journal.directory), str(here)],
        cwd=here.parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert done.stdout.strip() == "Leak"
    engine = FakeEngine()
    engine.hit_tag = b"Leak"  # what the dead process left in the target
    result = restore(engine, journal)
    assert result.state.status is DisarmStatus.CONFIRMED
    assert engine.hit_tag == IDLE
    assert journal.scan().files == ()
