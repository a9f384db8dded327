"""Classes of growth: by hand, and over many seeds with the error rates the code stands for."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Callable, List, Sequence

import pytest
import trend_series as series

from kdleak.model import Pool, PoolCounters, PoolSnapshot, TagUsage
from kdleak.rank import pick_suspect, rank_rows
from kdleak.result import RankBy, Trend
from kdleak.tags import PoolTag
from kdleak.trends.trend import fit_of_all, movement

INNOCENT = {Trend.SAWTOOTH, Trend.UP_AND_DOWN, Trend.SHRANK, Trend.FLAT, Trend.UNCERTAIN}


def trend_of(counters: Sequence[PoolCounters], *, traffic_known: bool = True) -> Trend:
    """The class alone, of evenly spaced snapshots."""
    return movement(counters, traffic_known=traffic_known).trend


def counters(*points: Sequence[int]) -> List[PoolCounters]:
    return [PoolCounters(allocs, frees, size) for allocs, frees, size in points]


def levels(*blocks: int) -> List[PoolCounters]:
    return series.counters(blocks, 100)


@pytest.mark.parametrize(
    ("points", "trend"),
    [
        ([(10, 0, 100)], Trend.NOT_MEASURED),
        ([(10, 0, 100), (20, 0, 200), (30, 0, 300), (40, 0, 400)], Trend.STEADY),
        ([(10, 0, 100), (20, 10, 100), (30, 20, 100)], Trend.FLAT),
        ([(10, 0, 100), (10, 1, 90), (10, 5, 50)], Trend.SHRANK),
        # Ends higher, but gives back on the way.
        ([(0, 0, 0), (100, 0, 1000), (150, 100, 500), (260, 100, 1600)], Trend.UP_AND_DOWN),
        # One jump only: could be a cache that filled.
        ([(0, 0, 0), (50, 0, 500), (50, 0, 500), (50, 0, 500)], Trend.BURST),
        # One jump of no more than its traffic makes by chance.
        ([(0, 0, 0), (50, 45, 50), (100, 95, 50), (150, 145, 50)], Trend.UNCERTAIN),
        # Rises three times, but by no more than its traffic would by chance.
        ([(0, 0, 0), (500, 490, 100), (1000, 985, 150), (1500, 1480, 200)], Trend.UNCERTAIN),
        # Bytes grow while blocks do not.
        ([(0, 0, 0), (10, 10, 100), (20, 20, 200), (30, 30, 300)], Trend.UNCERTAIN),
        # Three rise by chance in one of six cases, two in every second.
        ([(0, 0, 0), (50, 0, 500), (100, 0, 1000)], Trend.UNCERTAIN),
        ([(0, 0, 0), (50, 0, 500)], Trend.UNCERTAIN),
        # A step back of four is one of six cases; of six it is one of 120.
        ([(0, 0, 0), (100, 0, 1000), (110, 15, 950), (300, 15, 2000)], Trend.UNCERTAIN),
    ],
)
def test_few_snapshots(points: Sequence[Sequence[int]], trend: Trend) -> None:
    assert trend_of(counters(*points)) is trend


@pytest.mark.parametrize(
    ("found", "trend"),
    [
        (levels(0, 100, 95, 200, 300, 400), Trend.STEADY),
        (levels(0, 900, 1300, 1400, 1420, 1421), Trend.LEVELLING),
        (levels(0, 0, 0, 1000, 1000, 1000), Trend.BURST),
        (levels(0, 0, 500, 500, 1000, 1000), Trend.BURST),
        (levels(0, 500, 1000, 0, 500, 1000, 0, 500), Trend.SAWTOOTH),
        (levels(1000, 0, 1000, 0, 1000, 0), Trend.SAWTOOTH),
        # All gained, all given back at the end.
        (levels(0, 100, 200, 300, 400, 500, 600, 700, 1), Trend.UP_AND_DOWN),
        (levels(9, 100, 200, 300, 400, 500, 600, 700, 1), Trend.SHRANK),
        (levels(5, 5, 5, 5, 5, 5), Trend.FLAT),
        (levels(5, 6, 5, 5, 5, 5), Trend.FLAT),
        # A leak below a cleanup that never gets all of it: every tooth starts higher.
        (levels(0, 200, 400, 250, 450, 650, 500, 700, 900, 750, 950, 1150), Trend.STEADY),
    ],
)
def test_shapes(found: Sequence[PoolCounters], trend: Trend) -> None:
    assert trend_of(found) is trend


def test_outstanding_blocks_alone_take_many_snapshots() -> None:
    line = levels(*range(100, 900, 100))
    assert trend_of(line) is Trend.STEADY
    assert trend_of(line, traffic_known=False) is Trend.STEADY
    assert trend_of(line[:7], traffic_known=False) is Trend.UNCERTAIN
    rng = random.Random(5)
    wild = [0]
    while len(wild) < 12:
        wild.append(wild[-1] + rng.choice((1, 1, 1, 300)))
    assert trend_of(levels(*wild), traffic_known=False) is not Trend.STEADY


def test_slope_per_hour_with_its_interval() -> None:
    line = [PoolCounters(n, 0, 1000 * n) for n in range(6)]
    fit = movement(line, [60.0 * n for n in range(6)]).fit
    assert fit is not None
    assert (fit.bytes_per_hour, fit.low, fit.high) == pytest.approx((60000, 60000, 60000))
    assert fit.p_rise == pytest.approx(1 / 720)
    few = movement(line[:4], [60.0 * n for n in range(4)]).fit
    assert few is not None
    assert (few.low, few.high) == (None, None)
    assert movement(line).fit is None
    with pytest.raises(ValueError, match="increase"):
        movement(line, [0.0, 1, 1, 2, 3, 4])


def share(
    make: Callable[[random.Random], List[PoolCounters]], points: int, seeds: int
) -> Counter[Trend]:
    found: Counter[Trend] = Counter()
    for seed in range(seeds):
        rng = random.Random(seed)
        found[movement(make(rng), series.times(points)).trend] += 1
    return found


@pytest.mark.parametrize("points", [6, 13, 25, 721])
def test_a_leak_of_64_kb_an_hour_is_always_found(points: int) -> None:
    seeds = 100 if points < 100 else 30
    assert share(lambda rng: series.leak(rng, points), points, seeds)[Trend.STEADY] == seeds


@pytest.mark.parametrize("points", [13, 25, 721])
def test_a_leak_beside_traffic_of_the_same_tag_is_found(points: int) -> None:
    """384 blocks lost, 10 of standard deviation beside them, 300,000 allocations and frees."""
    seeds = 100 if points < 100 else 30
    found = share(
        lambda rng: series.leak(rng, points, noise=10, traffic_per_hour=50_000), points, seeds
    )
    assert found[Trend.STEADY] >= 0.97 * seeds


@pytest.mark.parametrize("points", [6, 13, 25, 721])
@pytest.mark.parametrize("memory", [0.0, 0.2, 1.0, 4.0])
def test_a_noisy_cache_is_not_accused(points: int, memory: float) -> None:
    seeds = 200 if points < 100 else 40
    found = share(lambda rng: series.cache(rng, points, memory_hours=memory), points, seeds)
    assert found[Trend.STEADY] <= 0.02 * seeds
    assert sum(found[trend] for trend in INNOCENT) >= 0.97 * seeds


@pytest.mark.parametrize(("batch", "most"), [(1, 0.05), (500, 0.09)])
@pytest.mark.parametrize("points", [6, 13, 61])
def test_a_random_walk_is_seldom_called_steady(points: int, batch: int, most: float) -> None:
    found = share(lambda rng: series.walk(rng, points, batch=batch), points, 200)
    assert found[Trend.STEADY] <= most * 200


@pytest.mark.parametrize("periods", [1.2, 2.0, 5.0])
@pytest.mark.parametrize("points", [6, 13, 25, 121, 721])
def test_a_sawtooth_is_not_called_steady(points: int, periods: float) -> None:
    seeds = 100 if points < 100 else 30
    found = share(lambda rng: series.sawtooth(rng, points, periods=periods), points, seeds)
    assert found[Trend.STEADY] == 0
    if periods >= 2 and points >= 13:
        assert found[Trend.SAWTOOTH] >= 0.95 * seeds


@pytest.mark.parametrize("shares", [0.1, 0.2, 0.3])
@pytest.mark.parametrize("points", [6, 8, 13, 25, 721])
def test_a_warm_up_levels_off(points: int, shares: float) -> None:
    seeds = 100 if points < 100 else 30
    found = share(lambda rng: series.warm_up(rng, points, share=shares), points, seeds)
    assert found[Trend.STEADY] <= 0.02 * seeds
    assert found[Trend.LEVELLING] + found[Trend.BURST] >= 0.95 * seeds
    if points >= 13:
        assert found[Trend.LEVELLING] >= 0.95 * seeds


@pytest.mark.parametrize("points", [4, 6, 13, 25])
def test_one_jump_is_a_burst(points: int) -> None:
    found = share(lambda rng: series.burst(rng, points), points, 100)
    assert found[Trend.BURST] == 100


@pytest.mark.parametrize("memory", [0.0, 0.5, 4.0])
@pytest.mark.parametrize("points", [6, 13, 721])
def test_the_small_leak_is_picked_from_under_the_big_cache(points: int, memory: float) -> None:
    at = series.times(points)
    for seed in range(40 if points < 100 else 10):
        rng = random.Random(seed)
        tags = {
            "Leak": series.leak(rng, points),
            "Cach": series.cache(rng, points, memory_hours=memory),
            "Tidy": series.sawtooth(rng, points, periods=4),
            "Warm": series.warm_up(rng, points, share=0.15),
            "Idle": series.cache(rng, points, memory_hours=memory, share=0.002),
        }
        taken = [
            PoolSnapshot(
                moment,
                tuple(
                    TagUsage(PoolTag.parse(tag), nonpaged=found[index])
                    for tag, found in tags.items()
                ),
                "test",
            )
            for index, moment in enumerate(at)
        ]
        rows = rank_rows(taken, RankBy.GROWTH, pool=Pool.NONPAGED, times=at)
        suspect, reason = pick_suspect(rows, RankBy.GROWTH, points, at[-1])
        assert suspect is not None
        assert suspect.tag.text == "Leak", seed
        assert "steadily" in reason
        fit = suspect.fit
        assert fit is not None
        assert fit.bytes_per_hour == pytest.approx(64 * 1024, rel=0.25)
        assert fit.low is not None
        assert fit.low > 0
        assert max(rows, key=lambda row: row.last.bytes).tag.text in ("Cach", "Idle")


@pytest.mark.parametrize(("points", "least"), [(6, 0.88), (13, 0.88), (25, 0.84), (721, 0.84)])
@pytest.mark.parametrize("noise", [0, 10, 100])
def test_the_interval_holds_the_true_rate(points: int, least: float, noise: float) -> None:
    """Of a leak that counts up at random Theil-Sen's own interval holds it in 2 of 10 cases."""
    seeds, held = 200 if points < 100 else 50, 0
    for seed in range(seeds):
        found = series.leak(random.Random(seed), points, noise=noise, traffic_per_hour=50_000)
        fit = movement(found, series.times(points)).fit
        assert fit is not None
        assert fit.low is not None
        assert fit.high is not None
        held += fit.low <= 64 * 1024 <= fit.high
    assert held >= least * seeds


def test_the_slope_over_all_of_many_points_is_by_scipy() -> None:
    pytest.importorskip("scipy")
    found = series.leak(random.Random(3), 300)
    at = series.times(300)
    condensed = movement(found, at).fit
    whole = fit_of_all(at, [one.bytes for one in found])
    assert condensed is not None
    assert whole is not None
    assert (condensed.points, whole.points) == (60, 300)
    assert whole.bytes_per_hour == pytest.approx(condensed.bytes_per_hour, rel=0.05)
    assert fit_of_all(at[:64], [one.bytes for one in found[:64]]) is None
    taken = [
        PoolSnapshot(moment, (TagUsage(PoolTag.parse("Leak"), nonpaged=one),), "test")
        for moment, one in zip(at, found)
    ]
    (row,) = rank_rows(taken, RankBy.GROWTH, times=at)
    assert row.fit == whole
    assert row.bytes_per_hour == whole.bytes_per_hour


def test_ten_thousand_snapshots_are_quick() -> None:
    rng = random.Random(1)
    long = series.leak(rng, 10_000)
    began = time.process_time()
    found = movement(long, series.times(10_000))
    assert time.process_time() - began < 0.5
    assert found.trend is Trend.STEADY
    assert found.fit is not None
    assert found.fit.points == 60
    assert found.fit.bytes_per_hour == pytest.approx(64 * 1024, rel=0.2)
