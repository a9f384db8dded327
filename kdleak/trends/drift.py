"""How far a series drifts by chance, if it is a random walk.

Outstanding memory is a sum of allocations and frees, so what happens by chance adds up: such a
series wanders, rises consistently for a while, and is smooth. Methods that take the points for
independent, as Theil-Sen's interval and the Mann-Kendall test do, are far too sure of it. Here
the error comes from the steps between the points, as their long-run variance: the steps of a
series that wanders add up, those of noise about a level take each other back.

Source: W. K. Newey and K. D. West, "A Simple, Positive Semi-Definite, Heteroskedasticity and
Autocorrelation Consistent Covariance Matrix" (1987), for the weights.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Sequence

from kdleak.trends.slope import Slope, Z


def drift(steps: Sequence[float]) -> float:
    """The sum of the steps in standard errors; infinite where all steps are alike.

    Args:
        steps: two or more differences between neighbours.
    """
    total, error = sum(steps), _error(steps)
    if error <= 0:
        return math.copysign(math.inf, total) if total else 0.0
    return total / error


def widened(line: Slope, times: Sequence[float], values: Sequence[float]) -> Slope:
    """The slope with the wider of two intervals: its own, and that of a random walk.

    Args:
        line: of the series.
        times: strictly increasing.
        values: as many, three or more.
    """
    steps = [after - before for before, after in zip(values, values[1:])]
    reach = _student(len(steps) - 1) * _error(steps) / (times[-1] - times[0])
    return replace(
        line, low=min(line.low, line.slope - reach), high=max(line.high, line.slope + reach)
    )


def _error(steps: Sequence[float]) -> float:
    """Standard error of the sum of the steps."""
    count = len(steps)
    mean = sum(steps) / count
    rest = [step - mean for step in steps]
    lags = max(1, count // 4)
    variance = sum(one * one for one in rest)
    for lag in range(1, lags + 1):
        together = sum(one * other for one, other in zip(rest, rest[lag:]))
        variance += 2 * (1 - lag / (lags + 1)) * together
    # The mean is that of the steps themselves, which makes them look less alike than they are.
    return math.sqrt(max(0.0, variance) * count / max(1, count - lags - 1))


def _student(freedom: int) -> float:
    """Quantile of Student's t for the confidence of ``Z``, by its expansion in 1/freedom."""
    return (
        Z
        + (Z**3 + Z) / (4 * freedom)
        + (5 * Z**5 + 16 * Z**3 + 3 * Z) / (96 * freedom**2)
        + (3 * Z**7 + 19 * Z**5 + 17 * Z**3 - 15 * Z) / (384 * freedom**3)
    )
