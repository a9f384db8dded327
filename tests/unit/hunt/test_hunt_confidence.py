"""The formulas behind the error bars, against published values and plain counting."""

from __future__ import annotations

import math

import pytest

from kdleak.booking.confidence import binomial_at_most, student_t95, wilson


@pytest.mark.parametrize(
    ("count", "of", "low", "high"),
    [
        (0, 10, 0.0, 0.2775),  # Newcombe (1998) and Brown, Cai and DasGupta (2001)
        (1, 10, 0.0179, 0.4042),
        (10, 10, 0.7225, 1.0),
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_as_published(count: int, of: int, low: float, high: float) -> None:
    interval = wilson(count, of)
    assert interval is not None
    assert interval.low == pytest.approx(low, abs=5e-5)
    assert interval.high == pytest.approx(high, abs=5e-5)


def test_nothing_has_no_share() -> None:
    assert wilson(0, 0) is None


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [
        (1, 12.706),
        (2, 4.303),
        (3, 3.182),
        (4, 2.776),
        (5, 2.571),
        (7, 2.365),
        (10, 2.228),
        (30, 2.042),
        (100, 1.984),
    ],
)
def test_students_t_as_in_the_tables(degrees: int, quantile: float) -> None:
    assert student_t95(degrees) == pytest.approx(quantile, abs=2e-3)


@pytest.mark.parametrize("trials", [1, 5, 20])
@pytest.mark.parametrize("share", [0.0, 0.03, 0.5, 0.9, 1.0])
def test_binomial_by_counting(trials: int, share: float) -> None:
    total = 0.0
    for count in range(trials + 1):
        total += math.comb(trials, count) * share**count * (1 - share) ** (trials - count)
        assert binomial_at_most(count, trials, share) == pytest.approx(total)
    assert binomial_at_most(-1, trials, share) == 0.0


def test_binomial_of_very_many_does_not_overflow() -> None:
    assert binomial_at_most(10, 1_000_000, 0.01) < 1e-300
    assert binomial_at_most(20_000, 1_000_000, 0.01) == pytest.approx(1.0)
