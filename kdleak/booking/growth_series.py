"""How outstanding blocks moved while watched: a short series per call site, and its shape.

Points are evenly spaced over the time the tag was armed. When there are too many, every other one
goes and the spacing doubles, so a series of a second and one of a day cost the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from kdleak.booking.confidence import binomial_at_most
from kdleak.result import SeriesPoint, SiteGrowth

MOST_POINTS = 64
"""Points kept of one series, its beginning and its end apart."""

FIRST_SPACING = 0.001
"""Seconds between two points of a watch that has just begun."""

FEWEST_POINTS = 8
"""Points below which a series has no shape."""

FEWEST_BLOCKS = 5
"""Most blocks outstanding below which there is no shape."""

_MANY_ALLOCS = 20  # allocations of which hardly any was ever outstanding: that is flat
_FULL = 0.9  # a cache counts as filled when it holds that part of the most it ever held
_LATEST_FILLED = 0.8  # part of the watch after which no flat stretch is long enough to be seen
_CHANCE = 1e-4  # chance of a flat stretch if growth had gone on as before
_SOME_ALLOCS = 10  # allocations in the flat stretch that a leak would have shown among, too
_QUIET = 3.0  # the flat stretch, in multiples of the longest pause of the growth before it
_FELL = 0.5  # part of the most ever held that must go for "up and down"

Figures = Tuple[int, int, int]
"""Outstanding blocks, their bytes, and allocations so far."""


class SeriesBook:
    """Series of everything that is counted, all at the same moments."""

    def __init__(self) -> None:
        self._times: List[float] = []
        self._series: Dict[int, List[Figures]] = {}
        self._spacing = FIRST_SPACING
        self._next = FIRST_SPACING

    def is_due(self, watched: float) -> bool:
        """Whether a point lies behind; cheap enough for every hit.

        Args:
            watched: seconds the tag was armed so far.
        """
        return watched >= self._next

    def mark(self, at: float, watched: float, figures: Callable[[], Dict[int, Figures]]) -> None:
        """Note the figures, which have not changed since the last hit, at all points behind.

        Args:
            at: now, on the scale of ``Hit.at``.
            watched: seconds the tag was armed so far; not smaller than before.
            figures: gives the present figures by key; a key that is missing has none.
        """
        if not math.isfinite(watched):
            return
        now = figures()
        while self._next <= watched:
            self._times.append(at - (watched - self._next))
            for key, pair in now.items():
                series = self._series.setdefault(key, [])
                series.extend([(0, 0, 0)] * (len(self._times) - 1 - len(series)))
                series.append(pair)
            if len(self._times) >= MOST_POINTS:
                self._halve()
            self._next = self._spacing * (len(self._times) + 1)

    def _halve(self) -> None:
        # Points lie at 1, 2, 3, ... times the spacing: every second one stays.
        self._times = self._times[1::2]
        for key, series in self._series.items():
            self._series[key] = series[1::2]
        self._spacing *= 2

    def series(self, key: int, now: float, figures: Figures) -> Tuple[SeriesPoint, ...]:
        """One series, from nothing at 0 to the figures now."""
        points = [SeriesPoint(0.0, 0, 0)]
        kept = self._series.get(key, [])
        for index, at in enumerate(self._times):
            figures_then = kept[index] if index < len(kept) else (0, 0, 0)
            points.append(SeriesPoint(round(at, 6), *figures_then))
        points.append(SeriesPoint(round(max(now, points[-1].at), 6), *figures))
        return tuple(points)


@dataclass(frozen=True)
class Shape:
    """What a series looks like.

    Attributes:
        growth: see SiteGrowth.
        filled_at: seconds since the first arming at which it had levelled off; None unless it did.
        flat_seconds: from then to the end.
        late: growth in blocks since then.
    """

    growth: SiteGrowth
    filled_at: Optional[float] = None
    flat_seconds: float = 0.0
    late: int = 0


NO_SHAPE = Shape(SiteGrowth.TOO_FEW)


def shape_of(points: Sequence[SeriesPoint]) -> Shape:
    """Tell growth to the end from growth that levelled off, fell back, or never was.

    It levelled off when 90 % of the most was reached early, when so few came after it that it
    would happen by chance once in 10,000 times had growth gone on at its pace (blocks that stay
    fall on either stretch in proportion to its length, and to the allocations in it if there were
    some), and when the flat stretch is three times as long as the longest pause in the growth
    before: a leak that comes in bursts pauses, too.
    """
    values = [point.outstanding for point in points]
    if len(values) < FEWEST_POINTS:
        return NO_SHAPE
    if max(values) < FEWEST_BLOCKS:
        return NO_SHAPE if points[-1].allocs < _MANY_ALLOCS else Shape(SiteGrowth.FLAT)
    most, end = max(values), values[-1]
    if _deepest_fall(values) >= most * _FELL:
        return Shape(SiteGrowth.UP_AND_DOWN)
    filled = next(index for index, value in enumerate(values) if value >= most * _FULL)
    last = len(values) - 1
    late = end - values[filled]
    if filled <= last * _LATEST_FILLED:
        stays = values[filled] + max(0, late)
        chance = binomial_at_most(max(0, late), stays, 1 - filled / last)
        allocs, in_all = points[filled].allocs, points[-1].allocs
        if in_all - allocs >= _SOME_ALLOCS:
            share = 1 - allocs / in_all
            chance = max(chance, binomial_at_most(max(0, late), stays, share))
        pause = _longest_pause(values[: filled + 1])
        if chance < _CHANCE and last - filled >= _QUIET * pause:
            at = points[filled].at
            return Shape(SiteGrowth.LEVELLED_OFF, at, points[-1].at - at, late)
    return Shape(SiteGrowth.GREW)


def _deepest_fall(values: Sequence[int]) -> int:
    most = fall = 0
    for value in values:
        most = max(most, value)
        fall = max(fall, most - value)
    return fall


def _longest_pause(values: Sequence[int]) -> int:
    """Steps between two rises to a new height, at most."""
    most, since, longest = 0, 0, 0
    for index, value in enumerate(values):
        if value > most:
            most = value
            longest = max(longest, index - since)
            since = index
    return longest
