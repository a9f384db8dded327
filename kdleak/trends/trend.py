"""How a tag's outstanding memory moves: steady growth, bursts, warm-up, sawtooth, or nothing.

A leak grows steadily; what is innocent and big mostly does not: a cache fills and levels off, a
periodic cleanup makes a sawtooth, a batch of work makes one jump. Steady growth is claimed only
where two tests agree. Mann-Kendall: the values rise more consistently than in random order. And
the growth exceeds what a tag drifts to by chance when it allocates and frees at random, which
rises consistently, too: measured by its traffic, or by how alike the steps are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Optional, Sequence, Tuple

from kdleak.model import PoolCounters
from kdleak.result import Trend, TrendFit
from kdleak.trends.drift import drift, widened
from kdleak.trends.slope import FEW, INTERVAL_FROM, Slope, estimate, library_usable, median

SIGNIFICANT = 0.05
"""Chance of a rise that consistent, below which it is taken for one."""

ENOUGH = 4
"""Snapshots below which no rise is significant: three rise by chance in one of six cases."""

_FALL_BACK = 0.1
"""Part of its growth that a tag which did not rise significantly may lose again on the way."""

_GAVE_BACK = 0.5
"""Part of its range that a tag which grows steadily never gives back at once."""

_SWING = 0.4
"""Part of the range that counts as one swing of a sawtooth."""

_BURST = 0.8
"""Part of all that was gained, in one or two steps, that makes a burst."""

_BY_CHANCE = 2.0
"""Blocks a tag may drift by chance, in square roots of its allocations and frees."""

_DRIFT, _DRIFT_ALONE = 2.5, 3.5
"""Standard errors the growth must come to: beside the test of the traffic, or without it."""

_SOME_STEPS, _MANY_STEPS = 5, 7
"""Steps from which their spread is known well enough for either."""

_LEVELLED, _SLOWED = 0.25, 0.5
"""Rate of the second half by that of the first: grows no more, or much slower."""

_SHAPED = 6
"""Points from which the shape of a rise can be told."""

_BETTER = 0.4
"""Part of a line's misfit that another shape may leave to be taken instead."""

_KNOT = 0.67
"""Part of the time by which a rise must have ended to be called over."""

_CONDENSED = 60
"""Points that a series of more than ``FEW`` is condensed to: enough for every class, and quick for
thousands of tags."""

_WHOLE = 1000
"""Points up to which a slope is taken over all of them where it is asked for."""


@dataclass(frozen=True)
class Movement:
    """What became of a series.

    Attributes:
        trend: its class.
        fit: its slope in bytes per hour; None where the times are not known, or for one point.
    """

    trend: Trend
    fit: Optional[TrendFit] = None


def movement(
    counters: Sequence[PoolCounters],
    times: Optional[Sequence[float]] = None,
    *,
    traffic_known: bool = True,
) -> Movement:
    """Class and slope of one tag in one pool.

    Args:
        counters: in order of time.
        times: seconds that the target had run at each; None where that is not known: then they
            are taken as evenly spaced, and there is no slope.
        traffic_known: False where only outstanding blocks were counted.

    Raises:
        ValueError: times that do not increase, or not one for each of the counters.
    """
    if len(counters) < 2:
        return Movement(Trend.NOT_MEASURED)
    at, values = _condensed(
        list(range(len(counters))) if times is None else times, [one.bytes for one in counters]
    )
    line = estimate(at, values)
    trend = _class_of(at, values, line)
    if not _backed(trend, counters, values, traffic_known):
        trend = Trend.UNCERTAIN
    if times is None:
        return Movement(trend)
    return Movement(trend, _fit(line, at, values))


def fit_of_all(times: Sequence[float], values: Sequence[float]) -> Optional[TrendFit]:
    """The slope over all points of a long series, by scipy outside WinDbg; for single tags.

    Args:
        times: seconds that the target had run, increasing.
        values: bytes, as many.

    Returns:
        None where ``movement`` takes all of them anyway, or where they are too many.

    Raises:
        ValueError: times that do not increase.
    """
    if not FEW < len(times) <= _WHOLE or not library_usable():
        return None
    return _fit(estimate(times, values), times, values)


def _fit(line: Slope, times: Sequence[float], values: Sequence[float]) -> TrendFit:
    told = line.points >= INTERVAL_FROM
    if told:
        line = widened(line, times, values)
    return TrendFit(
        bytes_per_hour=line.slope * 3600,
        low=line.low * 3600 if told else None,
        high=line.high * 3600 if told else None,
        p_rise=line.p_rise,
        points=line.points,
    )


def _condensed(
    times: Sequence[float], values: Sequence[float]
) -> Tuple[Sequence[float], Sequence[float]]:
    """A long series as medians of equal parts, which also averages short-lived noise out."""
    count = len(times)
    if count <= FEW:
        return times, values
    edges = [count * part // _CONDENSED for part in range(_CONDENSED + 1)]
    parts = list(zip(edges, edges[1:]))
    return (
        [median(times[start:end]) for start, end in parts],
        [median(values[start:end]) for start, end in parts],
    )


def _class_of(times: Sequence[float], values: Sequence[float], line: Slope) -> Trend:
    growth, reach = values[-1] - values[0], max(values) - min(values)
    if reach and _swings(values, reach * _SWING) >= 2:
        return Trend.SAWTOOTH
    if growth <= 0:
        return Trend.FLAT if growth == 0 else Trend.SHRANK
    rises = len(values) >= ENOUGH and line.slope > 0 and line.p_rise <= SIGNIFICANT
    lost = sum(max(0, before - after) for before, after in zip(values, values[1:]))
    if _fall(values) >= reach * _GAVE_BACK or (not rises and lost > growth * _FALL_BACK):
        return Trend.UP_AND_DOWN
    if _levels_off(times, values):
        return Trend.LEVELLING
    if len(values) >= ENOUGH and _jumps(values, growth + lost):
        return Trend.BURST
    return _shape(times, values) if rises else Trend.UNCERTAIN


def _jumps(values: Sequence[float], gained: float) -> bool:
    """Whether one or two steps make nearly all of what was gained."""
    steps = sorted(after - before for before, after in zip(values, values[1:]))
    return sum(steps[-1 if len(steps) < 5 else -2 :]) >= gained * _BURST


def _shape(times: Sequence[float], values: Sequence[float]) -> Trend:
    """Of a significant rise: a line, unless one jump or a rise that ends fits much better."""
    count = len(times)
    if count < _SHAPED:
        return Trend.STEADY
    line = _misfit(times, values)
    jump = min(
        _misfit([0.0] * after + [1.0] * (count - after), values) for after in range(1, count)
    )
    knots = [time for time in times[1:-1] if time - times[0] <= _KNOT * (times[-1] - times[0])]
    ends = min(_misfit([min(time, knot) for time in times], values) for knot in knots)
    if min(jump, ends) > line * _BETTER:
        return Trend.STEADY
    return Trend.BURST if jump <= ends else Trend.LEVELLING


def _misfit(position: Sequence[float], values: Sequence[float]) -> float:
    """Sum of squares that a straight line over these positions leaves."""
    count = len(values)
    middle, level = sum(position) / count, sum(values) / count
    across = sum((one - middle) ** 2 for one in position)
    along = sum((one - middle) * (value - level) for one, value in zip(position, values))
    return sum((value - level) ** 2 for value in values) - along * along / across


def _swings(values: Sequence[float], least: float) -> int:
    """Falls of at least ``least`` that follow a rise of at least that, or open the series."""
    falls, rising = 0, True
    extreme = values[0]
    for value in values:
        if rising:
            extreme = max(extreme, value)
            if extreme - value >= least:
                falls, rising, extreme = falls + 1, False, value
        else:
            extreme = min(extreme, value)
            if value - extreme >= least:
                rising, extreme = True, value
    return falls


def _fall(values: Sequence[float]) -> float:
    """The deepest fall from any point to a later one."""
    highest, deepest = values[0], 0.0
    for value in values:
        highest = max(highest, value)
        deepest = max(deepest, highest - value)
    return deepest


def _levels_off(times: Sequence[float], values: Sequence[float]) -> bool:
    """Whether the second half grows much slower than the first, by more than noise."""
    if len(values) < 6:
        return False
    middle = len(values) // 2
    first = estimate(times[: middle + 1], values[: middle + 1])
    second = estimate(times[middle:], values[middle:])
    if first.slope <= 0 or first.low <= second.high:
        return False
    still_grows = second.points >= ENOUGH and second.p_rise <= SIGNIFICANT
    return second.slope <= first.slope * (_LEVELLED if still_grows else _SLOWED)


def _backed(
    trend: Trend, counters: Sequence[PoolCounters], values: Sequence[float], traffic_known: bool
) -> bool:
    """Whether the blocks bear out what the bytes look like."""
    if trend is Trend.STEADY:
        return _beyond_chance(counters, values, traffic_known)
    if trend in (Trend.BURST, Trend.LEVELLING):
        return _kept_blocks(counters, traffic_known)
    return True


def _beyond_chance(
    counters: Sequence[PoolCounters], values: Sequence[float], traffic_known: bool
) -> bool:
    """Whether a rise is more than the drift of a tag that allocates and frees at random."""
    if counters[-1].outstanding - counters[0].outstanding < 1:
        return False
    steps = [after - before for before, after in zip(values, values[1:])]
    if traffic_known and _kept_blocks(counters, traffic_known):
        return len(steps) < _SOME_STEPS or drift(steps) >= _DRIFT
    return len(steps) >= _MANY_STEPS and drift(steps) >= _DRIFT_ALONE


def _kept_blocks(counters: Sequence[PoolCounters], traffic_known: bool) -> bool:
    """Whether more blocks were kept than twice the square root of all allocations and frees."""
    first, last = counters[0], counters[-1]
    blocks = last.outstanding - first.outstanding
    if not traffic_known:
        return blocks >= 1
    traffic = last.allocs - first.allocs + last.frees - first.frees
    return blocks >= max(1.0, _BY_CHANCE * math.sqrt(max(0, traffic)))
