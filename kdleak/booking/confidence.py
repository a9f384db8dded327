"""How sure a count makes us: the few formulas a verdict needs, without a library.

Sources: E. B. Wilson, "Probable inference, the law of succession, and statistical inference"
(1927), for shares; the expansion of Student's t in powers of 1/degrees (Abramowitz and Stegun
26.7.5) for few samples.
"""

from __future__ import annotations

import math
from typing import Optional

from kdleak.result import Interval

Z95 = 1.959964
"""Standard normal quantile of a two-sided 95 % interval."""

_T95 = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764, 5: 2.5706}


def wilson(count: int, of: int) -> Optional[Interval]:
    """95 % interval of the share ``count`` of ``of`` is a sample of; None of nothing.

    Good for small samples and for 0 and all of them, where the usual formula gives no width.
    """
    if of <= 0:
        return None
    share = count / of
    squared = Z95 * Z95
    middle = share + squared / (2 * of)
    half = Z95 * math.sqrt(share * (1 - share) / of + squared / (4 * of * of))
    scale = 1 + squared / of
    return Interval(
        0.0 if count == 0 else max(0.0, (middle - half) / scale),
        1.0 if count == of else min(1.0, (middle + half) / scale),
    )


def student_t95(degrees: int) -> float:
    """Two-sided 95 % quantile of Student's t.

    Args:
        degrees: of freedom, at least 1.
    """
    if degrees in _T95:
        return _T95[degrees]
    z, n = Z95, float(degrees)
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


def binomial_at_most(count: int, trials: int, share: float) -> float:
    """Probability of at most ``count`` successes in ``trials`` of probability ``share`` each."""
    if count < 0:
        return 0.0
    if count >= trials or share <= 0:
        return 1.0
    if share >= 1:
        return 0.0
    logarithm = trials * math.log1p(-share)
    total = math.exp(logarithm)
    odds = math.log(share) - math.log1p(-share)
    for number in range(1, count + 1):
        logarithm += math.log((trials - number + 1) / number) + odds
        total += math.exp(logarithm)
    return min(1.0, total)
