"""Series of outstanding blocks: few points whatever the length, and what their shapes mean."""

from __future__ import annotations

import math
import random
from typing import Callable, Dict, List

import pytest

from kdleak.booking.growth_series import MOST_POINTS, Figures, SeriesBook, shape_of
from kdleak.result import SeriesPoint, SiteGrowth


def points(values: List[int], allocs: Callable[[int], int] = lambda _: 0) -> List[SeriesPoint]:
    return [
        SeriesPoint(float(at), value, 64 * value, allocs(at)) for at, value in enumerate(values)
    ]


@pytest.mark.parametrize("seconds", [0.0005, 0.01, 0.3, 7.0, 100.0, 86400.0])
def test_a_series_is_short_and_evenly_spaced(seconds: float) -> None:
    book = SeriesBook()
    steps = 3000
    count = [0]

    def figures() -> Dict[int, Figures]:
        return {5: (count[0], 8 * count[0], count[0])}

    for step in range(1, steps + 1):
        now = seconds * step / steps
        if book.is_due(now):
            book.mark(now, now, figures)
        count[0] += 1
    series = book.series(5, seconds, figures()[5])
    assert series[0] == SeriesPoint(0.0, 0, 0)
    assert (series[-1].at, series[-1].outstanding) == (pytest.approx(seconds), steps)
    assert len(series) <= MOST_POINTS + 2
    if seconds >= 0.1:
        assert len(series) >= MOST_POINTS / 2
    gaps = {round(b.at - a.at, 5) for a, b in zip(series[:-2], series[1:-1])}
    assert len(gaps) <= 1
    for point in series[1:-1]:  # each is the figure of its own time
        assert point.outstanding == pytest.approx(point.at / seconds * steps, abs=1.01)
        assert point.outstanding_bytes == 8 * point.outstanding


def test_a_key_that_comes_late_was_nothing_before() -> None:
    book = SeriesBook()
    book.mark(0.01, 0.01, lambda: {1: (3, 30, 4)})
    book.mark(0.02, 0.02, lambda: {1: (3, 30, 4), 2: (9, 90, 9)})
    series = book.series(2, 0.02, (9, 90, 9))
    assert [point.outstanding for point in series[:11]] == [0] * 11
    assert [point.outstanding for point in series[11:]] == [9] * 11
    assert book.series(7, 0.02, (0, 0, 0))[-1].outstanding == 0


def test_time_disarmed_takes_no_points() -> None:
    book = SeriesBook()
    book.mark(0.01, 0.01, lambda: {1: (1, 1, 1)})
    book.mark(50.02, 0.02, lambda: {1: (2, 2, 2)})
    times = [point.at for point in book.series(1, 50.02, (2, 2, 2))]
    assert times[:11] == pytest.approx([0.001 * n for n in range(11)])
    assert times[11] == pytest.approx(50.011)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_clock_gone_mad_does_not_hang(bad: float) -> None:
    book = SeriesBook()
    book.mark(bad, bad, lambda: {1: (1, 1, 1)})
    book.mark(1e18, 1e18, lambda: {1: (1, 1, 1)})
    assert len(book.series(1, 1e18, (1, 1, 1))) <= MOST_POINTS + 2


def leak(n: int, per: float = 2.0, seed: int = 1) -> List[int]:
    rng, total, values = random.Random(seed), 0, [0]
    for _ in range(n):
        total += sum(rng.random() < per / 8 for _ in range(8))
        values.append(total)
    return values


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("per", [0.3, 1.0, 4.0])
def test_a_steady_leak_grew(seed: int, per: float) -> None:
    assert shape_of(points(leak(60, per, seed))).growth is SiteGrowth.GREW


@pytest.mark.parametrize("filled", [1, 5, 20, 40])
@pytest.mark.parametrize("blocks", [40, 500])
def test_a_cache_that_filled_levelled_off(filled: int, blocks: int) -> None:
    values = [min(blocks, blocks * at // filled) for at in range(61)]
    shape = shape_of(points(values))
    assert shape.growth is SiteGrowth.LEVELLED_OFF
    assert shape.filled_at is not None
    assert shape.filled_at <= filled
    assert shape.filled_at + shape.flat_seconds == 60.0
    assert shape.late <= blocks / 10


def test_a_cache_with_traffic_on_top_levelled_off() -> None:
    rng = random.Random(3)
    values = [min(100, 8 * at) + rng.randrange(6) for at in range(61)]
    assert shape_of(points(values, lambda at: 8 * at)).growth is SiteGrowth.LEVELLED_OFF


def test_a_leak_that_pauses_as_it_did_before_grew() -> None:
    """Ten blocks every fifteen moments; the last pause is no longer than the others."""
    values = [10 * (at // 15) for at in range(60)]
    assert shape_of(points(values)).growth is SiteGrowth.GREW


def test_few_stays_among_many_allocations_are_not_enough_for_level() -> None:
    """Twelve in the first half; by time that is sure, by allocations chance: they came early."""
    values = [min(12, 12 * at // 30) for at in range(61)]
    early = points(values, lambda at: min(90, 3 * at) + at // 2)
    assert shape_of(points(values)).growth is SiteGrowth.GREW  # 2^-12 is above 1 in 10,000
    many = [min(40, 40 * at // 30) for at in range(61)]
    assert shape_of(points(many)).growth is SiteGrowth.LEVELLED_OFF
    assert shape_of(early).growth is SiteGrowth.GREW
    late = points(many, lambda at: min(90, 3 * at) + (at - 30 if at > 30 else 0) // 3)
    assert shape_of(late).growth is SiteGrowth.GREW  # a tenth of the allocations came after


def test_sawtooth_drain_and_flat() -> None:
    sawtooth = [at % 20 * 5 for at in range(61)]
    drain = [min(100, 10 * at) if at < 20 else max(0, 100 - 3 * (at - 20)) for at in range(61)]
    slow_drain = [min(100, 10 * at) if at < 20 else 100 - (at - 20) // 2 for at in range(61)]
    assert shape_of(points(sawtooth)).growth is SiteGrowth.UP_AND_DOWN
    assert shape_of(points(drain)).growth is SiteGrowth.UP_AND_DOWN
    assert shape_of(points(slow_drain)).growth is SiteGrowth.LEVELLED_OFF
    few = points([at % 5 for at in range(61)], lambda at: 3 * at)
    assert shape_of(few).growth is SiteGrowth.FLAT


def test_too_few_points_or_blocks_say_nothing() -> None:
    assert shape_of([]).growth is SiteGrowth.TOO_FEW
    assert shape_of(points(list(range(7)))).growth is SiteGrowth.TOO_FEW
    assert shape_of(points([0] * 60)).growth is SiteGrowth.TOO_FEW
    assert shape_of(points([0] + [4] * 59)).growth is SiteGrowth.TOO_FEW
