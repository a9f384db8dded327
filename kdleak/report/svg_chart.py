"""Line charts as inline SVG: axes with units, shaded intervals, readable without a script.

Only classes and presentation attributes are written, no ``style``: the page's content security
policy allows none. Every text is escaped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import List, Sequence, Tuple

from kdleak.report.sanitise import fit, sanitise

Point = Tuple[float, float]

_WIDTH, _HEIGHT = 560, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 14, 12, 40
_MAX_POINTS = 240
_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "bytes"))


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    Attributes:
        label: what it shows; untrusted.
        points: seconds and bytes, in order of time.
        steps: the value holds until the next point (counted), else it was sampled.
    """

    label: str
    points: Tuple[Point, ...]
    steps: bool = False


def line_chart(
    ident: str,
    title: str,
    description: str,
    lines: Sequence[Line],
    *,
    x_title: str,
    shaded: Sequence[Tuple[float, float]] = (),
) -> str:
    """A chart of bytes over seconds.

    Args:
        ident: prefix of element ids, unique on the page.
        title: of the chart; untrusted.
        description: what it shows in words, for those who cannot see it; untrusted.
        lines: at least one with a point.
        x_title: what the x axis counts.
        shaded: intervals of the x axis to mark.
    """
    points = [point for line in lines for point in line.points]
    # A chart has some width, however short the time.
    right = max([1e-6, *(x for x, _ in points), *(end for _, end in shaded)])
    top = max(1.0, *(y for _, y in points))
    low = min(0.0, *(y for _, y in points))
    unit, unit_name = next((unit for unit in _UNITS if top >= unit[0]), _UNITS[-1])
    scale = _Scale(right, low, top)
    parts = [
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-labelledby="{ident}-t {ident}-d">'
        f'<title id="{ident}-t">{_text(title)}</title>'
        f'<desc id="{ident}-d">{_text(description)}</desc>'
    ]
    for start, end in shaded:
        x0, x1 = scale.x(max(0.0, start)), scale.x(min(right, end))
        parts.append(
            f'<rect class="watched" x="{x0:.1f}" y="{_TOP}" width="{max(0.8, x1 - x0):.1f}" '
            f'height="{_HEIGHT - _TOP - _BOTTOM}"/>'
        )
    for value in _ticks(low / unit, top / unit):
        y = scale.y(value * unit)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
            f"{_tick(value)}</text>"
        )
    divisor, time_unit = _time_unit(right)
    for value in _ticks(0, right / divisor):
        x = scale.x(value * divisor)
        parts.append(
            f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{_HEIGHT - _BOTTOM}" '
            f'y2="{_HEIGHT - _BOTTOM + 4}"/><text class="tick" x="{x:.1f}" '
            f'y="{_HEIGHT - _BOTTOM + 17}" text-anchor="middle">{_tick(value)}</text>'
        )
    parts.append(
        f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{scale.y(0):.1f}" '
        f'y2="{scale.y(0):.1f}"/>'
        f'<text class="unit" x="{(_LEFT + _WIDTH - _RIGHT) / 2:.0f}" y="{_HEIGHT - 5}" '
        f'text-anchor="middle">{_text(x_title)}, {time_unit}</text>'
        f'<text class="unit" x="14" y="{(_TOP + _HEIGHT - _BOTTOM) / 2:.0f}" '
        f'text-anchor="middle" transform="rotate(-90 14 {(_TOP + _HEIGHT - _BOTTOM) / 2:.0f})">'
        f"{unit_name}</text>"
    )
    for index, line in enumerate(lines):
        parts.append(_path(line, scale, f"line line-{index % 4}"))
    parts.append("</svg>")
    return "".join(parts)


class _Scale:
    def __init__(self, right: float, low: float, top: float) -> None:
        self._right, self._low, self._range = right, low, (top - low) * 1.06

    def x(self, value: float) -> float:
        return _LEFT + value / self._right * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        height = _HEIGHT - _TOP - _BOTTOM
        return _HEIGHT - _BOTTOM - (value - self._low) / self._range * height


def _path(line: Line, scale: _Scale, name: str) -> str:
    words: List[str] = []
    for x, y in thinned(line.points):
        px, py = scale.x(x), scale.y(y)
        if not words:
            words.append(f"M{px:.1f} {py:.1f}")
        else:
            words.append(f"H{px:.1f}V{py:.1f}" if line.steps else f"L{px:.1f} {py:.1f}")
    dots = ""
    if not line.steps and len(line.points) <= 30:
        dots = "".join(
            f'<circle class="{name} dot" cx="{scale.x(x):.1f}" cy="{scale.y(y):.1f}" r="3"/>'
            for x, y in line.points
        )
    return f'<path class="{name}" d="{"".join(words)}"/>{dots}'


def thinned(points: Sequence[Point], most: int = _MAX_POINTS) -> List[Point]:
    """At most ``most`` points with the same first, last, lowest and highest values."""
    if len(points) <= most:
        return list(points)
    kept: List[Point] = [points[0]]
    buckets = most // 2 - 1
    inner = points[1:-1]
    for index in range(buckets):
        bucket = inner[index * len(inner) // buckets : (index + 1) * len(inner) // buckets]
        extremes = {bucket.index(min(bucket, key=_height)), bucket.index(max(bucket, key=_height))}
        kept.extend(bucket[position] for position in sorted(extremes))
    return [*kept, points[-1]]


def _height(point: Point) -> float:
    return point[1]


def _ticks(low: float, high: float) -> List[float]:
    span = high - low
    if span <= 0:
        return [low]
    step = 10.0 ** math.floor(math.log10(span / 4))
    step *= next(factor for factor in (1, 2, 2.5, 5, 10) if span / (step * factor) <= 5)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def _tick(value: float) -> str:
    return f"{value:,.6g}" if abs(value) < 1000 else f"{value:,.0f}"


def _time_unit(seconds: float) -> Tuple[float, str]:
    if seconds < 300:
        return 1.0, "seconds"
    return (60.0, "minutes") if seconds < 3 * 3600 else (3600.0, "hours")


def _text(text: str) -> str:
    return escape(fit(sanitise(text), 400), quote=True)
