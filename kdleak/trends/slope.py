"""Slope and significance of a short series: Theil-Sen's median slope and the Mann-Kendall test.

Neither minds outliers, and neither assumes a distribution. Up to ``FEW`` points the plain Python
here does it, inside WinDbg always; above that scipy does where it is installed. Loading scipy
takes seconds, so a ranking of a few snapshots never does. Tests hold both against each other.

Sources: P. K. Sen, "Estimates of the Regression Coefficient Based on Kendall's Tau" (1968), for
the slope and its interval; M. G. Kendall, "Rank Correlation Methods", for the test and its
variance with ties. The exact distribution counts the inversions of all arrangements of the
values; their generating function is the q-multinomial coefficient (MacMahon).
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Dict, List, Sequence, Tuple

FEW = 64
"""Points up to which the plain Python is quick (about a millisecond)."""

CONFIDENCE = 0.95
"""Of the interval: it holds the true slope in so many of 1 series with independent noise."""

INTERVAL_FROM = 5
"""Points from which an interval has that confidence: of four, even the widest holds the true
slope in 11 of 12 cases only."""

_EXACT = 33
"""Points up to which the test is exact; beyond, the normal approximation is as good."""

Z = 1.959963984540054
"""Standard errors to either side of it: the 97.5 % quantile of the normal distribution."""


@dataclass(frozen=True)
class Slope:
    """How a series moves.

    Attributes:
        slope: median slope over all pairs of points, units of the values per unit of time.
        low: lower end of its confidence interval (``CONFIDENCE``).
        high: upper end.
        p_rise: chance that the same values in random order rise as consistently as here, 0 to 1;
            near 1 for a series that falls.
        points: number of points.
    """

    slope: float
    low: float
    high: float
    p_rise: float
    points: int


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two in the middle, of one value or more.

    The library's ``statistics`` loads ``_decimal``, which is not made to be loaded anew in every
    subinterpreter, as WinDbg's scripts would.
    """
    ordered = sorted(values)
    middle = len(ordered) // 2
    return (ordered[middle] + ordered[-middle - 1]) / 2


def estimate(times: Sequence[float], values: Sequence[float]) -> Slope:
    """Slope and significance, by scipy for many points where it is to be had.

    Args:
        times: strictly increasing.
        values: as many.

    Raises:
        ValueError: fewer than two points, times that do not increase, or not as many values.
    """
    if len(times) > FEW and library_usable():
        return estimate_by_scipy(times, values)
    return estimate_in_python(times, values)


@lru_cache(maxsize=1)
def library_usable() -> bool:
    """Whether scipy may be used: it is installed, and this is not WinDbg.

    In WinDbg scripts run in subinterpreters, where numpy cannot be loaded a second time.
    """
    return "pykd" not in sys.modules and importlib.util.find_spec("scipy") is not None


def estimate_by_scipy(times: Sequence[float], values: Sequence[float]) -> Slope:
    """The same by scipy; its test is exact only for values without ties.

    Raises:
        ValueError: as ``estimate``.
        ImportError: scipy is not installed.
    """
    _check(times, values)
    stats = importlib.import_module("scipy.stats")
    if min(values) == max(values):  # scipy knows no test for these
        return Slope(0.0, 0.0, 0.0, 1.0, len(times))
    line = stats.theilslopes(values, times, alpha=CONFIDENCE)
    test = stats.kendalltau(times, values, alternative="greater")
    return Slope(
        float(line.slope),
        float(line.low_slope),
        float(line.high_slope),
        float(test.pvalue),
        len(times),
    )


def estimate_in_python(times: Sequence[float], values: Sequence[float]) -> Slope:
    """The same with the standard library; time and memory grow with the square of the points.

    Raises:
        ValueError: as ``estimate``.
    """
    _check(times, values)
    count = len(times)
    if min(values) == max(values):  # most tags, most of the time
        return Slope(0.0, 0.0, 0.0, 1.0, count)
    slopes: List[float] = []
    concordant = discordant = 0
    for index in range(1, count):
        time, value = times[index], values[index]
        for earlier_time, earlier in zip(times[:index], values[:index]):
            rise = value - earlier
            slopes.append(rise / (time - earlier_time))
            if rise > 0:
                concordant += 1
            elif rise < 0:
                discordant += 1
    slopes.sort()
    ties = _ties(values)
    spread = Z * math.sqrt(_variance(count, ties))
    pairs = len(slopes)
    low = max(round((pairs - spread) / 2) - 1, 0)
    high = min(round((pairs + spread) / 2), pairs - 1)
    return Slope(
        median(slopes),
        slopes[low],
        slopes[high],
        _p_rise(count, ties, concordant, discordant),
        count,
    )


def _check(times: Sequence[float], values: Sequence[float]) -> None:
    if len(times) != len(values) or len(times) < 2:
        raise ValueError("a slope takes two points or more, each with its time")
    if not all(before < after for before, after in zip(times, times[1:])):
        raise ValueError("the times of a series must increase")


def _ties(values: Sequence[float]) -> Tuple[int, ...]:
    """Sizes of the groups of equal values, ascending."""
    counts: Dict[float, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return tuple(sorted(counts.values()))


def _variance(count: int, ties: Sequence[int]) -> float:
    """Of concordant minus discordant pairs, for values in random order."""
    full = count * (count - 1) * (2 * count + 5)
    return (full - sum(one * (one - 1) * (2 * one + 5) for one in ties)) / 18


def _p_rise(count: int, ties: Tuple[int, ...], concordant: int, discordant: int) -> float:
    if count <= _EXACT:
        return _at_most(ties)[discordant]
    z = (concordant - discordant) / math.sqrt(_variance(count, ties))
    return math.erfc(z / math.sqrt(2)) / 2


@lru_cache(maxsize=4096)
def _at_most(ties: Tuple[int, ...]) -> Tuple[float, ...]:
    """Chance of at most 0, 1, 2... discordant pairs, over all arrangements of tied values."""
    counts = [1]
    for width in range(2, sum(ties) + 1):
        counts = _times(counts, width)
    for size in ties:
        for width in range(2, size + 1):
            counts = _over(counts, width)
    total, so_far, chances = sum(counts), 0, []
    for one in counts:
        so_far += one
        chances.append(so_far / total)
    return tuple(chances)


def _times(counts: Sequence[int], width: int) -> List[int]:
    """A polynomial times 1 + q + ... + q^(width - 1)."""
    product: List[int] = []
    window = 0
    for power in range(len(counts) + width - 1):
        window += counts[power] if power < len(counts) else 0
        window -= counts[power - width] if power >= width else 0
        product.append(window)
    return product


def _over(counts: Sequence[int], width: int) -> List[int]:
    """The polynomial that ``_times`` makes these of."""
    quotient: List[int] = []
    window = 0
    for power in range(len(counts) - width + 1):
        quotient.append(counts[power] - window)
        window += quotient[power]
        window -= quotient[power - width + 1] if power >= width - 1 else 0
    return quotient
