"""Slope and significance: the plain Python against scipy, and the exact test against counting."""

from __future__ import annotations

import itertools
import statistics
import sys
from typing import List, Tuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdleak.trends import slope
from kdleak.trends.slope import FEW, Slope, estimate, estimate_by_scipy, estimate_in_python

VALUES = st.one_of(
    st.integers(0, 3),  # many ties
    st.integers(0, 2**40),
    st.just(7),
)


@st.composite
def a_series(draw: st.DrawFn, most: int = 90) -> Tuple[List[float], List[float]]:
    gaps = draw(st.lists(st.floats(0.001, 5000), min_size=1, max_size=most))
    times = list(itertools.accumulate(gaps, initial=0.0))
    kind = draw(st.sampled_from([st.integers(0, 3), st.integers(0, 2**40), VALUES]))
    values = draw(st.lists(kind, min_size=len(times), max_size=len(times)))
    return times, [float(value) for value in values]


def same_line(ours: Slope, theirs: Slope) -> None:
    assert (ours.slope, ours.low, ours.high) == pytest.approx(
        (theirs.slope, theirs.low, theirs.high), rel=1e-9, abs=1e-9
    )
    assert ours.points == theirs.points


@settings(deadline=None, max_examples=300)
@given(a_series())
def test_the_slope_and_its_interval_are_those_of_scipy(found) -> None:
    pytest.importorskip("scipy")
    same_line(estimate_in_python(*found), estimate_by_scipy(*found))


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_the_test_is_that_of_scipy(data: st.DataObject) -> None:
    """Exact without ties in both up to 33 points; the same approximation above."""
    stats = pytest.importorskip("scipy.stats")
    count = data.draw(st.integers(2, 60))
    if data.draw(st.booleans()):
        values = data.draw(st.permutations(range(count)))
        how = "exact" if count <= 33 else "asymptotic"
    else:
        count += 33
        values = data.draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
        how = "asymptotic"
    if len(set(values)) < 2:
        return
    ours = estimate_in_python(range(count), values)
    theirs = stats.kendalltau(range(count), values, alternative="greater", method=how)
    assert ours.p_rise == pytest.approx(float(theirs.pvalue), rel=1e-6, abs=1e-12)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=7))
def test_the_exact_test_counts_arrangements_ties_and_all(values: List[int]) -> None:
    def score(order: Tuple[int, ...]) -> int:
        return sum((b > a) - (b < a) for a, b in itertools.combinations(order, 2))

    seen = score(tuple(values))
    as_high = [score(order) >= seen for order in itertools.permutations(values)]
    ours = estimate_in_python(range(len(values)), values)
    assert ours.p_rise == pytest.approx(sum(as_high) / len(as_high))


@settings(deadline=None, max_examples=100)
@given(a_series(most=40), st.floats(0.01, 1000), st.integers(-(10**6), 10**6))
def test_units_and_level_do_not_matter(found, factor: float, offset: int) -> None:
    times, values = found
    plain = estimate_in_python(times, values)
    moved = estimate_in_python(
        [time * factor for time in times], [value + offset for value in values]
    )
    assert moved.p_rise == plain.p_rise
    assert moved.slope * factor == pytest.approx(plain.slope, rel=1e-6, abs=1e-6)
    assert plain.low <= plain.slope <= plain.high


def test_known_values() -> None:
    line = estimate_in_python([0, 1, 2, 3], [1, 3, 5, 7])
    assert (line.slope, line.low, line.high, line.p_rise) == (2, 2, 2, pytest.approx(1 / 24))
    falling = estimate_in_python([0, 1, 2, 3], [7, 5, 3, 1])
    assert (falling.slope, falling.p_rise) == (-2, pytest.approx(1))
    level = estimate_in_python([0, 1, 2], [4, 4, 4])
    assert (level.slope, level.p_rise) == (0, 1)
    # One outlier does not move the slope.
    assert estimate_in_python(range(7), [0, 1, 2, 900, 4, 5, 6]).slope == 1


@pytest.mark.parametrize(
    ("times", "values"),
    [([0], [1]), ([], []), ([0, 1], [1]), ([0, 0], [1, 2]), ([1, 0], [1, 2])],
)
def test_what_is_no_series_is_refused(times, values) -> None:
    for way in (estimate, estimate_in_python, estimate_by_scipy):
        with pytest.raises(ValueError, match=r"series|slope"):
            way(times, values)


def test_scipy_is_for_many_points_outside_windbg_only(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scipy")
    asked: List[int] = []

    def by_scipy(times, values):
        asked.append(len(times))
        return estimate_in_python(times, values)

    monkeypatch.setattr(slope, "estimate_by_scipy", by_scipy)
    slope.library_usable.cache_clear()
    estimate(range(FEW), range(FEW))
    assert asked == []
    estimate(range(FEW + 1), range(FEW + 1))
    assert asked == [FEW + 1]
    monkeypatch.setitem(sys.modules, "pykd", object())
    slope.library_usable.cache_clear()
    estimate(range(FEW + 1), range(FEW + 1))
    assert asked == [FEW + 1]
    slope.library_usable.cache_clear()


@given(st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=9))
def test_the_median_is_the_librarys(values: List[int]) -> None:
    assert slope.median(values) == statistics.median(values)


def test_the_quantile_is_that_of_the_confidence() -> None:
    quantile = statistics.NormalDist().inv_cdf((1 + slope.CONFIDENCE) / 2)
    assert pytest.approx(quantile, rel=1e-12) == slope.Z
