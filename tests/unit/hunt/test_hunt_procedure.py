"""The hunt as a whole, one rule of the procedure per test."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import List

import pytest
from hunt_fakes import (
    ADDRESS,
    IDLE,
    LEAK,
    OTHER,
    Event,
    FakeEngine,
    Finder,
    alloc,
    foreign,
    free,
    leaking,
    stack,
)

from kdleak.booking.hit_log import HitLog
from kdleak.errors import (
    BadTag,
    ForeignStop,
    JournalError,
    LinkLost,
    MemoryUnreadable,
    NotLive,
    TagAlreadyArmed,
    TargetBusy,
    UsageError,
)
from kdleak.hunt import HuntOptions, RankOptions, explain, hunt
from kdleak.journal import Journal
from kdleak.model import Block, HitKind, Stop, StopKind
from kdleak.report.text import render_hunt
from kdleak.result import (
    CheckStatus,
    DisarmStatus,
    HuntPhase,
    HuntProgress,
    HuntResult,
    Judgement,
    RankBy,
    StopReason,
)
from kdleak.tags import PoolTag


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "state", now=lambda: 5.0, sleep=lambda _: None)


def run(engine: FakeEngine, journal: Journal, **options) -> HuntResult:
    extra = {name: options.pop(name) for name in ("narrate", "progress") if name in options}
    finder = options.pop("finder", Finder)
    options.setdefault("tag", LEAK)
    result = hunt(
        engine,
        HuntOptions(**options),
        journal=journal,
        block_finder_factory=finder,
        clock=engine.clock,
        wall_clock=lambda: 1700000000.0,
        sleep=engine.clock.sleep,
        **extra,
    )
    assert engine.violations == []
    return result


def test_rank_arm_watch_disarm_say(journal: Journal) -> None:
    engine = FakeEngine(leaking())
    said: List[str] = []
    result = run(engine, journal, tag=None, max_hits=60, narrate=said.append)
    assert result.tag == LEAK
    assert result.rank is not None
    assert result.tag_reason == result.rank.reason
    assert result.stop_reason is StopReason.HITS
    assert result.accused is not None
    assert str(result.accused.frame.symbol) == "leakdrv!Receive+0x31"
    assert result.accused.outstanding == 20
    assert [hit.number for hit in result.hits] == list(range(1, 61))
    assert result.disarm.status is DisarmStatus.CONFIRMED
    assert engine.hit_tag == IDLE
    assert result.growth is not None
    assert result.growth.bytes > 0
    assert result.change is not None
    assert result.change.times_armed == 1
    assert result.completeness.share_watched == 1.0
    assert not result.leave_stopped
    assert engine.stop.kind is StopKind.BREAK_IN
    assert journal.scan().files == ()
    assert any("Armed nt!PoolHitTag" in line and "0xffffff0f" in line for line in said)
    assert result.started_at == 1700000000.0


def test_a_hit_costs_registers_stack_and_resume(journal: Journal) -> None:
    engine = FakeEngine(leaking())
    run(engine, journal, max_hits=40)
    first = engine.calls.index("resume")
    last = len(engine.calls) - engine.calls[::-1].index("stack")
    assert engine.calls[first:last] == ["resume", "registers", "stack"] * 40


def test_the_time_budget(journal: Journal) -> None:
    engine = FakeEngine(leaking(period=1.0))
    result = run(engine, journal, max_seconds=10.0)
    assert result.stop_reason is StopReason.SECONDS
    assert 8 <= len(result.hits) <= 10
    assert result.completeness.seconds == pytest.approx(10.0, abs=0.2)
    assert engine.hit_tag == IDLE


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"tag": PoolTag(0)}, BadTag),
        ({"tag": PoolTag(0x80000041)}, BadTag),
        ({"max_hits": 0}, UsageError),
        ({"max_seconds": float("nan")}, UsageError),
        ({"max_stopped_share": 1.5}, UsageError),
        ({"hits_per_second": 0.0}, UsageError),
        ({"grace_seconds": -1.0}, UsageError),
        ({"min_age": -1.0}, UsageError),
        ({"min_age": float("inf")}, UsageError),
        ({"rank": RankOptions(snapshots=1)}, UsageError),
    ],
)
def test_senseless_options_are_refused_untouched(journal: Journal, options, error) -> None:
    engine = FakeEngine()
    with pytest.raises(error):
        run(engine, journal, **options)
    assert engine.calls == []


def test_dumps_and_local_kernels_are_refused_untouched(journal: Journal) -> None:
    dump, local = FakeEngine(live=False), FakeEngine()
    local.local_kernel = True  # type: ignore[attr-defined]
    for engine in (dump, local):
        with pytest.raises(NotLive):
            run(engine, journal)
        assert engine.calls == []


def test_a_target_in_a_bug_check_is_refused(journal: Journal) -> None:
    engine = FakeEngine()
    engine.stop = Stop(StopKind.BUG_CHECK)
    with pytest.raises(ForeignStop, match="bug check"):
        run(engine, journal)
    assert engine.calls == []


def test_a_running_target_is_stopped_first(journal: Journal) -> None:
    engine = FakeEngine(leaking(), running=True)
    assert run(engine, journal, max_hits=5).stop_reason is StopReason.HITS


def test_nothing_grew_is_an_answer_and_arms_nothing(journal: Journal) -> None:
    engine = FakeEngine()
    engine.counters = {OTHER: [9, 1, 4096]}
    result = run(engine, journal, tag=None)
    assert result.stop_reason is StopReason.NOTHING_GREW
    assert result.tag is None
    assert result.verdict[0] == "No tag grew while the target ran for 30 s."
    assert result.disarm.status is DisarmStatus.NOT_NEEDED
    assert engine.writes == []
    assert result.change is None


def test_the_biggest_user_can_be_hunted_without_measuring(journal: Journal) -> None:
    engine = FakeEngine(leaking())
    engine.counters = {LEAK: [9, 1, 4096]}
    result = run(engine, journal, tag=None, rank=RankOptions(by=RankBy.USED), max_hits=3)
    assert result.tag == LEAK
    assert "holds most" in result.tag_reason


FOREIGN = [
    foreign("otherdrv!Assert+1", "otherdrv!F+1"),
    foreign("nt!KeBugCheckEx+0", "drv!F+1", stop=StopKind.BUG_CHECK),
    foreign("drv!F+1", stop=StopKind.EXCEPTION),
    Event(0.01, stack()),
]


@pytest.mark.parametrize("event", FOREIGN, ids=["int3", "bug check", "exception", "no stack"])
def test_a_foreign_stop_is_handed_over_disarmed_and_stopped(journal: Journal, event: Event) -> None:
    again = Event(event.dt, event.stack, stop=event.stop)
    engine = FakeEngine(itertools.chain(itertools.islice(leaking(), 9), [again], leaking()))
    result = run(engine, journal)
    assert result.stop_reason is StopReason.FOREIGN_STOP
    assert result.leave_stopped
    assert result.stop is not None
    assert result.stop.kind is event.stop
    assert result.stop_stack == event.stack
    assert len(result.hits) == 9
    assert result.disarm.status is DisarmStatus.CONFIRMED
    assert engine.hit_tag == IDLE
    assert engine.stop.kind is event.stop, "it must not be resumed"
    assert any("not a hit" in remark for remark in result.remarks)


def test_somebody_breaking_in_gets_the_target(journal: Journal) -> None:
    events = [alloc(1, "drv!F+1"), foreign("nt!DbgBreakPointWithStatus")]
    engine = FakeEngine(events)
    result = run(engine, journal)
    assert result.stop_reason is StopReason.BREAK_IN
    assert result.leave_stopped
    assert engine.hit_tag == IDLE


def test_a_foreign_stop_while_ranking_ends_it_before_anything_is_armed(journal: Journal) -> None:
    engine = FakeEngine([foreign("otherdrv!Assert+1")])
    result = run(engine, journal, tag=None)
    assert result.stop_reason is StopReason.FOREIGN_STOP
    assert result.leave_stopped
    assert engine.writes == []
    assert "Nothing was armed" in result.verdict[0]


def test_a_hot_tag_is_watched_in_bursts(journal: Journal) -> None:
    engine = FakeEngine(leaking(period=0.0005))
    result = run(
        engine,
        journal,
        max_hits=300,
        burst_hits=20,
        burst_seconds=0.0,
        hits_per_second=50.0,
        max_stopped_share=None,
    )
    done = result.completeness
    assert done.bursts >= 10
    assert result.change is not None
    assert result.change.times_armed == done.bursts
    assert len(result.hits) / done.seconds <= 55
    assert 0 < done.share_watched < 0.5
    assert result.accused is not None
    assert str(result.accused.frame.symbol) == "leakdrv!Receive+0x31"
    assert {site.judgement for site in result.sites if "gooddrv" in str(site.frame.symbol)} <= {
        Judgement.CLEARED,
        Judgement.TOO_FEW,
        Judgement.FREES_ONLY,
    }
    assert engine.hit_tag == IDLE
    assert engine.writes.count(b"Leak") == done.bursts


def test_the_share_of_time_stopped_is_kept(journal: Journal) -> None:
    engine = FakeEngine(leaking(period=0.001))
    free_run = run(
        FakeEngine(leaking(period=0.001)),
        journal,
        max_hits=200,
        hits_per_second=None,
        max_stopped_share=None,
    )
    assert free_run.completeness.share_stopped > 0.6
    assert free_run.completeness.bursts == 1
    result = run(
        engine,
        journal,
        max_hits=200,
        burst_hits=20,
        burst_seconds=0.0,
        hits_per_second=None,
        max_stopped_share=0.2,
    )
    assert result.completeness.share_stopped < 0.25


def test_a_fifth_of_the_time_stopped_is_the_most_by_default(journal: Journal) -> None:
    engine = FakeEngine(leaking(period=0.001))
    result = run(engine, journal, max_hits=400, hits_per_second=None)
    assert result.completeness.bursts > 3
    assert result.completeness.share_stopped <= 0.2


def test_the_minimum_age_of_the_user_decides(journal: Journal) -> None:
    young = run(FakeEngine(leaking()), journal, max_hits=60, min_age=100.0)
    assert young.min_age == 100.0
    assert young.accused is None
    assert {site.min_age for site in young.sites} == {100.0}
    assert all(site.outstanding_old == 0 for site in young.sites)
    old = run(FakeEngine(leaking()), journal, max_hits=60, min_age=0.5)
    assert old.accused is not None
    assert old.accused.outstanding_old_bytes == 0x60 * old.accused.outstanding_old > 0
    assert "older than 500 ms" in old.accused.sentence


def test_of_very_many_hits_the_first_and_the_last_are_listed(journal: Journal, monkeypatch) -> None:
    monkeypatch.setattr("kdleak.watch.HitLog", lambda: HitLog(10))
    result = run(FakeEngine(leaking()), journal, max_hits=60)
    assert [hit.number for hit in result.hits] == [*range(1, 11), *range(51, 61)]
    assert (result.completeness.hits, result.completeness.hits_left_out) == (60, 40)
    assert result.accused is not None
    assert (result.accused.allocs, result.accused.outstanding) == (20, 20)


def test_a_sampled_hunt_tells_what_it_comes_to_in_all(journal: Journal) -> None:
    result = run(
        FakeEngine(leaking(period=0.001)),
        journal,
        max_hits=300,
        burst_hits=20,
        burst_seconds=0.0,
        hits_per_second=30.0,
    )
    assert result.scaling is not None
    assert result.accused is not None
    scaled, growth = result.accused.scaled, result.growth
    assert scaled is not None
    assert growth is not None
    assert scaled.blocks_within.low <= growth.blocks <= scaled.blocks_within.high
    assert scaled.bytes_within.low <= growth.bytes <= scaled.bytes_within.high
    assert result.scaling.bursts == result.completeness.bursts == len(result.watched)
    assert "Over the whole hunt" in " ".join(result.verdict)
    blind = run(
        FakeEngine(leaking(period=0.001)),
        journal,
        max_hits=300,
        burst_hits=20,
        burst_seconds=0.0,
        hits_per_second=30.0,
        measure_growth=False,
    )
    # Without the counters nobody knows how much was not seen; the share that stays is known.
    assert blind.scaling is None
    assert blind.accused is not None
    assert blind.accused.scaled is None
    assert blind.accused.share_staying is not None
    assert blind.accused.share_staying.high > 0.9
    assert "Not scaled to the whole hunt" in render_hunt(blind)


def test_a_burst_covers_some_time_but_not_any_number_of_hits(journal: Journal) -> None:
    """Hits come 0.4 ms apart; a burst of 20 would be shorter than a clock tick."""

    def lengths(**options) -> List[int]:
        engine = FakeEngine(leaking(period=0.0004))
        run(engine, journal, max_hits=240, burst_hits=20, hits_per_second=50.0, **options)
        armed = [i for i, call in enumerate(engine.calls) if call == "write"][::2]
        return [engine.calls[a:b].count("stack") for a, b in zip(armed, armed[1:])]

    assert set(lengths(burst_seconds=0.0)) == {20}
    assert all(48 <= hits <= 52 for hits in lengths(burst_seconds=0.02))
    assert set(lengths(burst_seconds=0.5)) == {80}


def test_late_hits_after_the_disarm_are_taken_and_counted(journal: Journal) -> None:
    """A processor that was past the comparison breaks after the tag is back."""

    class Late(FakeEngine):
        def resume(self, timeout):
            if self.writes.count(IDLE) == 1 and not self.late:
                self.late = True
                self._op("resume")
                self.current = alloc(0x77, "drv!Late+1")
                self.stop = Stop(StopKind.BREAK_INSTRUCTION)
                return self.stop
            return super().resume(timeout)

        late = False

    engine = Late(leaking())
    result = run(engine, journal, max_hits=5)
    assert result.completeness.late_hits == 1
    assert len(result.hits) == 6
    assert not result.leave_stopped
    assert engine.stop.kind is StopKind.BREAK_IN


def test_a_hit_while_stopping_is_recorded_and_our_break_in_not_taken_for_somebodys(
    journal: Journal,
) -> None:
    """The break-in asked for arrives one stop late."""

    class Crossing(FakeEngine):
        pending = False

        def interrupt(self, timeout=30.0):
            stop = super().interrupt(timeout)
            self.pending = stop.kind is not StopKind.BREAK_IN
            return stop

        def resume(self, timeout):
            if self.pending:
                self.pending = False
                self._op("resume")
                self.stop = Stop(StopKind.BREAK_IN)
                return self.stop
            return super().resume(timeout)

    engine = Crossing(leaking(period=0.015))
    engine.event_on_interrupt = True
    result = run(engine, journal, max_seconds=1.0, max_stopped_share=None)
    assert result.stop_reason is StopReason.SECONDS
    assert result.hits[-1].at > 1.0
    assert result.completeness.late_hits == 0
    assert not result.leave_stopped
    assert engine.hit_tag == IDLE
    assert engine.calls.count("interrupt") == 2


def test_a_foreign_stop_while_stopping_to_disarm_is_handed_over(journal: Journal) -> None:
    engine = FakeEngine([foreign("otherdrv!Assert+1", dt=1.01)])
    engine.event_on_interrupt = True
    result = run(engine, journal, max_seconds=1.0)
    assert result.stop_reason is StopReason.FOREIGN_STOP
    assert result.leave_stopped
    assert engine.hit_tag == IDLE
    assert engine.calls.count("resume") == 1


def bursting(journal: Journal, engine: FakeEngine) -> HuntResult:
    return run(engine, journal, max_hits=50, burst_hits=5, burst_seconds=0.0, hits_per_second=5.0)


def test_a_foreign_stop_between_bursts_is_handed_over(journal: Journal) -> None:
    events = [*itertools.islice(leaking(), 5), foreign("otherdrv!Assert+1")]
    engine = FakeEngine(events)
    result = bursting(journal, engine)
    assert result.stop_reason is StopReason.FOREIGN_STOP
    assert result.leave_stopped
    assert result.completeness.bursts == 1
    assert engine.stop.kind is StopKind.BREAK_INSTRUCTION


@pytest.mark.parametrize("how", ["restart", "link"])
def test_losing_the_target_at_the_end_of_a_burst(journal: Journal, how: str) -> None:
    def fault(fake: FakeEngine, name: str, when: str) -> None:
        if name == "write" and fake.calls.count("write") == 2:
            fake.link_down = how == "link"
            if how == "restart":
                fake.reboot()

    engine = FakeEngine(leaking(), fault=fault)
    result = bursting(journal, engine)
    assert len(result.hits) == 5
    if how == "restart":
        assert result.stop_reason is StopReason.RESTARTED
        assert result.disarm.status is DisarmStatus.NOT_NEEDED
    else:
        assert result.stop_reason is StopReason.LINK_LOST
        assert result.disarm.status is DisarmStatus.NOT_CONFIRMED


def test_the_time_runs_out_between_bursts(journal: Journal) -> None:
    engine = FakeEngine(leaking(period=0.001))
    result = run(
        engine,
        journal,
        max_seconds=2.0,
        burst_hits=5,
        burst_seconds=0.0,
        hits_per_second=4.0,
    )
    assert result.stop_reason is StopReason.SECONDS
    assert result.completeness.seconds == pytest.approx(2.0, abs=0.1)


def test_no_hits_prints_the_checklist_with_what_was_verified(journal: Journal) -> None:
    result = run(FakeEngine(), journal, max_seconds=5.0)
    by_question = {check.question: check for check in result.checklist}
    assert len(by_question) == 11
    quiet = next(check for check in result.checklist if "not happening now" in check.question)
    assert quiet.status is CheckStatus.LIKELY
    assert result.checklist[0] == quiet
    order = next(check for check in result.checklist if "byte order" in check.question)
    assert order.status is CheckStatus.RULED_OUT
    assert "4c 65 61 6b" in order.evidence
    assert "'kaeL'" in order.evidence


def test_no_hits_while_the_counters_move_points_at_the_debugger(journal: Journal) -> None:
    engine = FakeEngine()
    engine.counters = {LEAK: [5, 1, 400]}

    def fault(fake: FakeEngine, name: str, when: str) -> None:
        if name == "resume":
            fake.counters = {LEAK: [50, 1, 4000]}

    engine.fault = fault
    result = run(engine, journal, max_seconds=5.0)
    likely = [check for check in result.checklist if check.status is CheckStatus.LIKELY]
    assert ["yet no break arrived" in check.evidence for check in likely] == [True]


def test_hits_need_no_checklist(journal: Journal) -> None:
    assert run(FakeEngine(leaking()), journal, max_hits=3).checklist == ()


def test_ctrl_c_disarms_and_reports(journal: Journal) -> None:
    def fault(fake: FakeEngine, name: str, when: str) -> None:
        if name == "resume" and when == "after" and fake.calls.count("resume") == 12:
            raise KeyboardInterrupt

    engine = FakeEngine(leaking(), fault=fault)
    result = run(engine, journal)
    assert result.interrupted
    assert len(result.hits) == 11
    assert result.disarm.status is DisarmStatus.CONFIRMED
    assert engine.hit_tag == IDLE
    assert result.sites


def test_a_link_lost_for_a_while_keeps_the_hits_and_disarms(journal: Journal) -> None:
    since: List[float] = []

    def fault(fake: FakeEngine, name: str, when: str) -> None:
        if fake.calls.count("resume") == 12:
            since.append(fake.clock())
            fake.clock.now += 0.5
            if fake.clock() < since[0] + 8:
                raise LinkLost(name, "no answer")

    engine = FakeEngine(leaking(), fault=fault)
    result = run(engine, journal, grace_seconds=60.0)
    assert result.stop_reason is StopReason.LINK_LOST
    assert "no answer" in result.error
    assert len(result.hits) == 11
    assert result.disarm.status is DisarmStatus.CONFIRMED


def test_a_link_lost_for_good_says_so_and_leaves_the_journal(journal: Journal) -> None:
    def fault(fake: FakeEngine, name: str, when: str) -> None:
        fake.link_down = fake.calls.count("resume") >= 12

    engine = FakeEngine(leaking(), fault=fault)
    result = run(engine, journal, grace_seconds=10.0)
    assert result.stop_reason is StopReason.LINK_LOST
    assert len(result.hits) == 11
    assert result.disarm.status is DisarmStatus.NOT_CONFIRMED
    assert result.disarm.repair[0] == "ed nt!PoolHitTag 0xffffff0f"
    assert result.growth is None
    (left,) = journal.scan().files
    assert left.entry.original == IDLE


def test_a_restart_needs_no_disarm(journal: Journal) -> None:
    def fault(fake: FakeEngine, name: str, when: str) -> None:
        if fake.calls.count("resume") == 12 and when == "before":
            fake.reboot()

    result = run(FakeEngine(leaking(), fault=fault), journal)
    assert result.stop_reason is StopReason.RESTARTED
    assert result.disarm.status is DisarmStatus.NOT_NEEDED
    assert len(result.hits) == 11
    assert journal.scan().files == ()


def test_an_engine_error_keeps_the_hits(journal: Journal) -> None:
    def fault(fake: FakeEngine, name: str, when: str) -> None:
        if name == "registers" and fake.calls.count("registers") == 8:
            raise MemoryUnreadable(0x1234, 8)

    result = run(FakeEngine(leaking(), fault=fault), journal)
    assert result.stop_reason is StopReason.ENGINE_ERROR
    assert "00001234" in result.error
    assert len(result.hits) == 7
    assert result.disarm.status is DisarmStatus.CONFIRMED


def test_counters_that_cannot_be_read_are_a_gap_not_the_end(journal: Journal) -> None:
    engine = FakeEngine(leaking())
    engine.unreadable_usage = True
    result = run(engine, journal, max_hits=6)
    assert result.growth is None
    assert "before the hunt" in result.completeness.gaps[0]
    assert len(result.hits) == 6


def test_a_finder_that_fails_leaves_the_address_unknown(journal: Journal) -> None:
    class Blind:
        def __init__(self, engine, tag) -> None:
            pass

        def find(self, registers, stack_address, stack_bytes, program_counter, kind) -> Block:
            raise MemoryUnreadable(0, 4)

    for finder in (Blind, None):
        result = run(FakeEngine(leaking()), journal, max_hits=30, finder=finder)
        assert result.completeness.unaddressed == 30
        assert result.completeness.unsized == 30
        assert all(site.outstanding == 0 for site in result.sites)
        assert result.accused is None


@pytest.mark.parametrize("where", [FakeEngine.where, "com:port=COM1"])
def test_what_an_earlier_hunt_left_is_undone_before_the_ranking(
    journal: Journal, where: str
) -> None:
    engine = FakeEngine(leaking())
    with journal.claim(where, ADDRESS) as claim:
        claim.record(journal.entry(where, engine.target, ADDRESS, IDLE, OTHER.raw))
    engine.hit_tag = OTHER.raw
    result = run(engine, journal, tag=None, max_hits=6)
    assert engine.writes == [IDLE, b"Leak", IDLE]
    assert any("put back" in remark for remark in result.remarks)
    assert result.stop_reason is StopReason.HITS


def test_refusals_after_the_start_touch_nothing(journal: Journal) -> None:
    with pytest.raises(TagAlreadyArmed):
        run(FakeEngine(idle=OTHER.raw), journal)
    with journal.claim(FakeEngine.where, ADDRESS), pytest.raises(TargetBusy):
        run(FakeEngine(), journal)
    broken = Journal(journal.directory / "file")
    broken.directory.write_text("x")
    engine = FakeEngine()
    with pytest.raises(JournalError):
        run(engine, broken)
    assert engine.writes == []


def test_a_tag_that_does_not_stay_ends_the_hunt_with_a_result(journal: Journal) -> None:
    engine = FakeEngine()
    engine.lie = lambda value: IDLE if value == b"Leak" else value
    result = run(engine, journal)
    assert result.stop_reason is StopReason.ENGINE_ERROR
    assert "reads back as" in result.error
    assert result.disarm.status is DisarmStatus.CONFIRMED


def test_progress_is_told_in_order_and_not_too_often(journal: Journal) -> None:
    engine = FakeEngine(leaking(period=0.001))
    seen: List[HuntProgress] = []
    run(
        engine,
        journal,
        tag=None,
        rank=RankOptions(seconds=1.0),
        max_hits=100,
        burst_hits=200,
        progress=seen.append,
    )
    phases = [phase for phase, _ in itertools.groupby(item.phase for item in seen)]
    assert phases == [
        HuntPhase.SYMBOLS,
        HuntPhase.RANKING,
        HuntPhase.MEASURING,
        HuntPhase.ARMING,
        HuntPhase.WATCHING,
        HuntPhase.DISARMING,
        HuntPhase.MEASURING,
        HuntPhase.DONE,
    ]
    watching = [item for item in seen if item.phase is HuntPhase.WATCHING]
    assert len(watching) <= 5
    assert seen[-1].hits == 100
    assert seen[-1].sites[0].name == "leakdrv!Receive+0x31"


def test_frees_are_told_from_allocations(journal: Journal) -> None:
    engine = FakeEngine([alloc(1, "a!A+1"), free(1, "b!B+1"), free(2, "b!B+1")])
    result = run(engine, journal, max_seconds=1.0)
    assert [hit.kind for hit in result.hits] == [HitKind.ALLOC, HitKind.FREE, HitKind.FREE]
    assert (result.pairing.paired, result.pairing.frees_of_older) == (1, 1)


@pytest.mark.parametrize(
    ("tag", "line"),
    [
        ("Leak", "ed nt!PoolHitTag 'kaeL'"),
        ("Abc", "ed nt!PoolHitTag ' cbA'"),
        ("Io", "ed nt!PoolHitTag '  oI'"),
        ("0x00414243", "ed nt!PoolHitTag 0x00414243"),
        ("a'b\\", "ed nt!PoolHitTag 0x5c622761"),
    ],
)
def test_explain_writes_the_tag_backwards_with_its_blanks(tag: str, line: str) -> None:
    text = explain(HuntOptions(tag=PoolTag.parse(tag)), original=0xFFFFFF0F)
    lines = text.splitlines()
    assert line in lines
    restore_line = "ed nt!PoolHitTag 0xffffff0f"
    assert lines.index("dd nt!PoolHitTag L1") < lines.index(line) < lines.index("g")
    assert lines.index("g") < lines.index(restore_line)
    assert ".reload" in lines
    assert any(item.startswith("!poolused 4") for item in lines)
    assert any(item.startswith("!poolused 2") for item in lines)
    assert "db nt!PoolHitTag L4" in lines
    assert text.endswith("\n")


def test_explain_without_a_tag_explains_the_choice() -> None:
    text = explain(HuntOptions())
    assert "6 times over 30 s" in text
    assert "<the value dd showed>" in text
