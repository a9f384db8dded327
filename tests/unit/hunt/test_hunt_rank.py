"""Ranking: growth over a measured interval, steadiness before size, and "nothing grew"."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Dict, List, Sequence

import pytest
from hunt_fakes import LEAK, OTHER, Clock, FakeEngine, alloc, foreign, leaking

from kdleak.errors import ExitCode, NotLive, UsageError
from kdleak.hunt_options import RankOptions
from kdleak.model import Pool, PoolCounters, PoolSnapshot, Stop, StopKind, TagUsage
from kdleak.rank import exit_code, pick_suspect, rank, rank_rows, used_if_crashed
from kdleak.report.rank_text import hours, render_rank
from kdleak.result import HuntProgress, RankBy, Trend
from kdleak.tags import PoolTag


def counters(*points: Sequence[int]) -> List[PoolCounters]:
    return [PoolCounters(allocs, frees, size) for allocs, frees, size in points]


def snapshots(table: Dict[str, Sequence[Sequence[int]]]) -> List[PoolSnapshot]:
    count = len(next(iter(table.values())))
    taken = []
    for index in range(count):
        rows = tuple(
            TagUsage(PoolTag.parse(tag), nonpaged=PoolCounters(*points[index]))
            for tag, points in table.items()
        )
        taken.append(PoolSnapshot(10.0 * index, rows, "test"))
    return taken


def picked(table: Dict[str, Sequence[Sequence[int]]]):
    taken = snapshots(table)
    rows = rank_rows(taken, RankBy.GROWTH, running=30.0)
    suspect, reason = pick_suspect(rows, RankBy.GROWTH, len(taken), 30.0)
    return suspect, reason, rows


LINE = [(10, 0, 1000), (20, 0, 2000), (30, 0, 3000), (40, 0, 4000)]
WILD = [(100, 0, 9000), (300, 150, 90000), (500, 450, 3000), (900, 600, 99000)]
BIG = [(9999, 0, 10**9)] * 4


def test_a_steady_small_leak_beats_a_wild_big_tag_and_a_huge_still_one() -> None:
    suspect, reason, rows = picked({"Leak": LINE, "Wild": WILD, "Big ": BIG})
    assert suspect is not None
    assert suspect.tag.text == "Leak"
    assert [row.tag.text for row in rows] == ["Leak", "Wild", "Big "]
    assert "3,000 bytes (+30 blocks)" in reason
    assert suspect.bytes_per_hour == pytest.approx(360000)
    assert suspect.bytes_series == (1000, 2000, 3000, 4000)


def test_the_bigger_of_two_steady_tags_is_picked() -> None:
    more = [(a, f, 3 * b) for a, f, b in LINE]
    suspect, _, _ = picked({"Slow": LINE, "Fast": more})
    assert suspect is not None
    assert suspect.tag.text == "Fast"


def test_a_jump_ten_times_as_big_is_picked_before_a_trickle() -> None:
    jump = [(0, 0, 0), (0, 0, 0), (900, 0, 90000), (900, 0, 90000)]
    suspect, reason, _ = picked({"Slow": LINE, "Jump": jump})
    assert suspect is not None
    assert suspect.tag.text == "Jump"
    assert "measure longer" in reason


def test_a_wild_tag_alone_is_not_picked_but_named() -> None:
    suspect, reason, _ = picked({"Wild": WILD, "Big ": BIG})
    assert suspect is None
    assert "'Wild'" in reason
    assert "going up and down" in reason
    assert "--tag" in reason


def test_bytes_without_blocks_are_no_leak() -> None:
    resized = [(10, 0, 500), (11, 1, 600), (12, 2, 700), (13, 3, 800)]
    suspect, reason, _ = picked({"Irp ": resized})
    assert suspect is None
    assert "No tag grew" in reason


def test_nothing_grew_is_an_answer() -> None:
    down = [(10, 0, 500), (10, 1, 400), (10, 2, 300), (10, 3, 200)]
    suspect, reason, rows = picked({"Big ": BIG, "Down": down})
    assert suspect is None
    assert reason == "No tag grew while the target ran for 30 s."
    assert len(rows) == 2


def test_innocent_noise_does_not_hide_a_leak() -> None:
    for seed in range(40):
        rng = random.Random(seed)
        table: Dict[str, List[List[int]]] = {}
        for index in range(40):
            level, allocs, points = rng.randrange(50, 500), 1000, []
            for _ in range(4):
                traffic = rng.randrange(200)
                level = max(0, level + rng.randrange(-30, 31))
                allocs += traffic
                points.append([allocs, allocs - level, level * 0x200])
            table[f"n{index:03}"] = points
        table["Leak"] = [[100 + 40 * i, 0, 0x200 * (100 + 40 * i)] for i in range(4)]
        suspect, _, _ = picked(table)
        assert suspect is not None
        assert suspect.tag.text == "Leak", seed


def test_tags_that_come_and_go_between_snapshots() -> None:
    first = PoolSnapshot(0, (TagUsage(OTHER, paged=PoolCounters(5, 0, 50)),), "t")
    last = PoolSnapshot(9, (TagUsage(LEAK, paged=PoolCounters(9, 0, 90)),), "t")
    rows = rank_rows([first, last], RankBy.GROWTH, running=9)
    assert [(row.tag, row.pool, row.growth_bytes) for row in rows] == [
        (LEAK, Pool.PAGED, 90),
        (OTHER, Pool.PAGED, -50),
    ]
    assert rank_rows([first, last], RankBy.GROWTH, pool=Pool.NONPAGED) == ()
    assert rank_rows([], RankBy.GROWTH) == ()


def test_ranking_a_live_target() -> None:
    engine = FakeEngine(leaking())
    seen: List[HuntProgress] = []
    result = rank(
        engine, RankOptions(seconds=9.0, snapshots=4), clock=engine.clock, progress=seen.append
    )
    assert result.suspect is not None
    assert result.suspect.tag == LEAK
    assert result.suspect.trend is Trend.STEADY
    assert result.snapshots == 4
    assert result.seconds_running == pytest.approx(9.0, abs=0.1)
    assert result.seconds_stopped < 0.1
    assert [(item.snapshot, item.snapshots) for item in seen] == [(i, 4) for i in (1, 2, 3, 4)]
    assert engine.stop.kind is StopKind.BREAK_IN
    assert engine.writes == []
    assert engine.violations == []
    assert result.source == "fake tables"


def test_a_running_target_is_stopped_first() -> None:
    engine = FakeEngine(running=True)
    result = rank(engine, RankOptions(by=RankBy.USED), clock=engine.clock)
    assert engine.violations == []
    assert result.snapshots == 1


def test_a_stop_of_the_targets_own_ends_the_ranking_and_is_handed_over() -> None:
    events = [alloc(1, "drv!F+1"), foreign("otherdrv!Assert+1", "otherdrv!F+2", dt=4.0)]
    engine = FakeEngine(events)
    result = rank(engine, RankOptions(seconds=9.0, snapshots=4), clock=engine.clock)
    assert result.leave_stopped
    assert result.stop is not None
    assert str(result.stop_stack.frames[0].symbol) == "otherdrv!Assert+0x1"
    assert result.snapshots == 2
    assert engine.calls[-1] == "stack"


def test_used_takes_one_snapshot_and_does_not_run_the_target() -> None:
    engine = FakeEngine(leaking())
    engine.counters = {LEAK: [5, 0, 500], OTHER: [9, 2, 7000]}
    result = rank(engine, RankOptions(by=RankBy.USED), clock=engine.clock)
    assert [row.tag for row in result.rows] == [OTHER, LEAK]
    assert result.suspect == result.rows[0]
    assert result.rows[0].trend is Trend.NOT_MEASURED
    assert "resume" not in engine.calls


def test_a_dump_is_ranked_by_bytes_only() -> None:
    engine = FakeEngine(live=False)
    engine.counters = {LEAK: [5, 0, 500]}
    assert rank(engine, RankOptions(by=RankBy.USED), clock=engine.clock).rows[0].tag == LEAK
    with pytest.raises(NotLive, match="by bytes outstanding"):
        rank(engine, RankOptions(), clock=engine.clock)


def test_ctrl_c_keeps_the_snapshots_taken() -> None:
    def fault(engine: FakeEngine, name: str, when: str) -> None:
        if name == "resume" and when == "after" and engine.calls.count("resume") == 3:
            raise KeyboardInterrupt

    engine = FakeEngine(leaking(), fault=fault)
    result = rank(engine, RankOptions(seconds=9.0), clock=engine.clock)
    assert result.interrupted
    assert result.snapshots == 3
    assert result.suspect is not None


@pytest.mark.parametrize(
    "options",
    [
        RankOptions(snapshots=1),
        RankOptions(seconds=0),
        RankOptions(seconds=float("nan")),
        RankOptions(seconds=float("inf")),
        RankOptions(by=RankBy.USED, snapshots=0),
    ],
)
def test_senseless_options_are_refused_untouched(options: RankOptions) -> None:
    engine = FakeEngine(clock=Clock())
    with pytest.raises(UsageError):
        rank(engine, options, clock=engine.clock)
    assert engine.calls == []


def test_growth_of_outstanding_blocks_alone_over_few_snapshots_is_never_called_steady() -> None:
    taken = [replace(snapshot, outstanding_only=True) for snapshot in snapshots({"Leak": LINE})]
    rows = rank_rows(taken, RankBy.GROWTH, running=30.0)
    assert [row.trend for row in rows] == [Trend.UNCERTAIN]


class Bounded(FakeEngine):
    """A kernel that tells how large its nonpaged pool may become."""

    LIMIT = 64 << 20

    def symbol(self, name: str) -> int:
        if name == "nt!MmMaximumNonPagedPoolInBytes":
            self.calls.append(name)
            return 0x1000
        return super().symbol(name)

    def read(self, address: int, size: int) -> bytes:
        if address == 0x1000:
            self.calls.append("limit")
            return self.LIMIT.to_bytes(size, "little")
        return super().read(address, size)


def test_the_time_until_the_pool_is_full() -> None:
    engine = Bounded(leaking())
    result = rank(engine, RankOptions(seconds=9.0), clock=engine.clock)
    row = result.suspect
    assert row is not None
    assert row.bytes_per_hour is not None
    assert dict(result.limits)[Pool.NONPAGED].bytes == Bounded.LIMIT
    assert row.hours_left == pytest.approx((Bounded.LIMIT - row.last.bytes) / row.bytes_per_hour)
    assert len(result.times) == result.snapshots == len(row.bytes_series) == 6
    assert result.times[0] == 0
    assert result.times[-1] == result.seconds_running
    text = render_rank(result)
    assert "'Leak' gains +" in text
    assert "Until the nonpaged pool is exhausted: " in text
    assert "(limit 67,108,864 bytes, nt!MmMaximumNonPagedPoolInBytes)" in " ".join(text.split())


def test_limits_are_not_looked_for_in_vain() -> None:
    engine = Bounded()
    result = rank(engine, RankOptions(seconds=9.0), clock=engine.clock)
    assert result.suspect is None
    assert result.limits == ()
    assert "limit" not in engine.calls


def test_ctrl_c_while_the_limits_are_read_keeps_the_ranking() -> None:
    class Pressed(Bounded):
        def read(self, address: int, size: int) -> bytes:
            if address == 0x1000:
                raise KeyboardInterrupt
            return super().read(address, size)

    engine = Pressed(leaking())
    result = rank(engine, RankOptions(seconds=9.0), clock=engine.clock)
    assert result.interrupted
    assert result.suspect is not None
    assert result.limits == ()
    assert "exhausted: ? (its limit is not known)" in render_rank(result)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.01, "0.6 minutes"),
        (1, "1 h"),
        (47.9, "47.9 h"),
        (72, "3 days"),
        (1e9, "over 1,000 years"),
    ],
)
def test_hours_in_words(value: float, words: str) -> None:
    assert hours(value) == words


def test_a_target_in_a_bug_check_is_ranked_by_what_its_tags_hold() -> None:
    engine = FakeEngine()
    said: List[str] = []
    engine.stop = Stop(StopKind.BUG_CHECK)
    asked = RankOptions(by=RankBy.GROWTH)
    options = used_if_crashed(asked, engine, said.append)
    assert (options.by, options.snapshots) == (RankBy.USED, 1)
    assert len(said) == 1
    assert "must not run" in said[0]
    assert exit_code(rank(engine, options, clock=engine.clock), asked.by) is ExitCode.INCOMPLETE
    assert used_if_crashed(options, engine, said.append) is options
    engine.stop = Stop(StopKind.BREAK_IN)
    assert used_if_crashed(asked, engine, said.append) is asked
    assert len(said) == 1
    result = rank(engine, options, clock=engine.clock)
    assert exit_code(result, RankBy.USED) is ExitCode.DONE
    assert exit_code(replace(result, gaps=("a gap",)), RankBy.USED) is ExitCode.INCOMPLETE
    assert exit_code(replace(result, interrupted=True), RankBy.USED) is ExitCode.INTERRUPTED
