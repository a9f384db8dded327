"""What the target is left in: quiet, or stopped; and how long it may stand still."""

from __future__ import annotations

from pathlib import Path

import pytest
from hunt_fakes import IDLE, LEAK, FakeEngine, Finder, alloc, leaking

from kdleak.errors import TargetRestarted
from kdleak.hunt import HuntOptions, hunt
from kdleak.journal import Journal
from kdleak.model import Stop, StopKind
from kdleak.pacing import Usage, burst_is_over
from kdleak.result import DisarmStatus, HuntResult


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "state", now=lambda: 5.0, sleep=lambda _: None)


def run(engine: FakeEngine, journal: Journal, **options: object) -> HuntResult:
    return hunt(
        engine,
        HuntOptions(tag=LEAK, max_hits=5, **options),  # type: ignore[arg-type]
        journal=journal,
        block_finder_factory=Finder,
        clock=engine.clock,
        sleep=engine.clock.sleep,
    )


class Queued(FakeEngine):
    """After the disarm, so many processors still wait at the break instruction."""

    def __init__(self, waiting: int, seconds_per_hit: float) -> None:
        super().__init__(leaking())
        self.queued = waiting
        self.seconds_per_hit = seconds_per_hit

    def resume(self, timeout):
        if self.writes.count(IDLE) >= 1 and self.queued:
            self.queued -= 1
            self._op("resume")
            self.current = alloc(0x1000 * (self.queued + 1), "drv!Late+1")
            self.stop = Stop(StopKind.BREAK_INSTRUCTION)
            return self.stop
        return super().resume(timeout)

    def stack(self, depth=32):
        self.clock.now += self.seconds_per_hit
        return super().stack(depth)


@pytest.mark.parametrize("seconds_per_hit", [0.0, 0.05, 0.35])
def test_every_queued_processor_is_let_past_its_break(journal, seconds_per_hit) -> None:
    engine = Queued(8, seconds_per_hit)
    result = run(engine, journal)
    assert engine.queued == 0
    assert result.completeness.late_hits == 8
    assert result.disarm.status is DisarmStatus.CONFIRMED
    assert not result.leave_stopped
    # The last thing before the stop was a quiet period.
    assert engine.stop.kind is StopKind.BREAK_IN


def test_a_target_that_never_gets_quiet_is_left_stopped(journal) -> None:
    engine = Queued(10_000, 0.0)
    result = run(engine, journal)
    assert result.leave_stopped
    assert any("left stopped" in gap for gap in result.completeness.gaps)
    assert engine.hit_tag == IDLE


@pytest.mark.parametrize("settle", [0.0, 0.25])
def test_the_counters_are_read_of_a_target_that_ran_disarmed_at_the_end(journal, settle) -> None:
    engine = FakeEngine(leaking())
    result = hunt(
        engine,
        HuntOptions(
            tag=LEAK,
            max_hits=1000,
            max_seconds=20.0,
            hits_per_second=1.0,
            burst_hits=5,
            burst_seconds=0.0,
            settle_seconds=settle,
        ),
        journal=journal,
        block_finder_factory=Finder,
        clock=engine.clock,
        sleep=engine.clock.sleep,
    )
    assert result.completeness.bursts == 4
    assert result.watched[-1][1] < 19.0  # it ended in a rest
    assert result.growth is not None
    assert result.growth.allocs > 200
    assert result.scaling is not None
    assert "allocations that the kernel counted" in result.scaling.method
    assert engine.stop.kind is StopKind.BREAK_IN


def test_an_entry_of_a_restarted_target_is_kept_aside(journal) -> None:
    """A machine that comes back from hibernation brings the armed tag with it."""

    def fault(fake: FakeEngine, name: str, when: str) -> None:
        if name == "resume" and fake.calls.count("resume") == 3:
            fake.reboot()

    engine = FakeEngine(leaking(), fault=fault)
    result = run(engine, journal)
    assert result.disarm.status is DisarmStatus.NOT_NEEDED
    assert "hibernation" in result.disarm.sentence()
    assert [found.entry.armed for found in journal.scan().past] == [LEAK.raw]
    assert journal.scan().files == ()


def test_nothing_is_written_to_a_target_that_restarted(journal) -> None:
    """An engine may tell it once only, and then answer for the new boot: the address is stale."""
    told: list[str] = []

    def fault(fake: FakeEngine, name: str, when: str) -> None:
        if name == "resume" and LEAK.raw in fake.writes and not told:
            told.append(name)
            raise TargetRestarted("waiting", "another boot")

    engine = FakeEngine(leaking(), fault=fault)
    result = run(engine, journal)
    assert told == ["resume"]
    assert result.disarm.status is DisarmStatus.NOT_NEEDED
    assert IDLE not in engine.writes
    assert len(journal.scan().past) == 1
    assert journal.scan().files == ()


def test_a_burst_ends_when_the_target_stood_still_long_enough() -> None:
    """115200 baud: a hit costs 0.4 s, so a burst of 50 hits would freeze the target for 20 s."""
    options = HuntOptions(tag=LEAK)
    usage = Usage(
        hits=6, seconds=2.5, seconds_stopped=2.4, burst_hits=6, burst_running=0.1, burst_stopped=2.4
    )
    assert burst_is_over(options, usage)
    unlimited = HuntOptions(tag=LEAK, max_stopped_share=None)
    assert not burst_is_over(unlimited, usage)


def test_a_machine_whose_stacks_cannot_be_walked_is_not_armed(journal) -> None:
    from kdleak.errors import UnsupportedTarget

    engine = FakeEngine(leaking())
    engine.walks_stacks = False
    with pytest.raises(UnsupportedTarget):
        run(engine, journal)
    assert engine.calls == []


def test_nothing_is_stopped_for_a_ranking_when_the_tag_cannot_be_armed(journal) -> None:
    from kdleak.errors import SymbolNotFound

    class NoSymbols(FakeEngine):
        def symbol(self, name):
            self._op("symbol")
            raise SymbolNotFound(f"looking up {name}", "no PDB")

    engine = NoSymbols(leaking())
    with pytest.raises(SymbolNotFound):
        hunt(engine, HuntOptions(), journal=journal, clock=engine.clock, sleep=engine.clock.sleep)
    assert "pool_usage" not in engine.calls
    assert engine.writes == []
