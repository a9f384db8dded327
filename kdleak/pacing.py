"""Budgets of a hunt: when it is over, and how long a hot tag must rest between bursts.

Every hit stops the whole target. A tag that is hit thousands of times a second would stall it,
so hits come in bursts with the tag disarmed in between, long enough to keep both the average
rate and the share of time the target stands still within their limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from kdleak.hunt_options import HuntOptions

_LONGEST_BURST = 4
"""Hits of a burst, in multiples of what was asked for, whatever time they cover."""

_LONGEST_FREEZE = 2.0
"""Seconds of standing still after which a burst ends, however few hits it has."""

_SHORTEST_REST = 0.05
"""Seconds below which a rest costs more (two writes, a break-in) than it brings."""


@dataclass(frozen=True)
class Usage:
    """What a hunt has used so far.

    Attributes:
        hits: hits since the first arming.
        seconds: since the first arming.
        seconds_stopped: of those, how long the target stood still.
        burst_hits: hits of the present burst.
        burst_running: seconds the target ran in the present burst.
        burst_stopped: seconds it stood still in the present burst.
    """

    hits: int
    seconds: float
    seconds_stopped: float
    burst_hits: int
    burst_running: float
    burst_stopped: float = 0.0


def burst_is_over(options: HuntOptions, usage: Usage) -> bool:
    """Whether the present burst has enough hits, over enough time, to be worth something.

    On a slow link a handful of hits already freezes the target for seconds: that ends it, too.
    """
    if options.max_stopped_share is not None and usage.burst_stopped >= _LONGEST_FREEZE:
        return True
    if usage.burst_hits < options.burst_hits:
        return False
    covered = usage.burst_running >= options.burst_seconds
    return covered or usage.burst_hits >= options.burst_hits * _LONGEST_BURST


def rest_needed(options: HuntOptions, usage: Usage) -> Optional[float]:
    """Seconds to let the target run disarmed now; None to go on watching."""
    if not burst_is_over(options, usage):
        return None
    rest = 0.0
    if options.hits_per_second is not None:
        rest = max(rest, usage.hits / options.hits_per_second - usage.seconds)
    if options.max_stopped_share is not None:
        # The next burst will cost about as much as this one, and may be the last.
        stopped = usage.seconds_stopped + usage.burst_stopped
        rest = max(rest, stopped / options.max_stopped_share - usage.seconds - usage.burst_stopped)
    return rest if rest >= _SHORTEST_REST else None
