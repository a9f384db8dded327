"""What a hunt is doing, for whoever watches it. Sizes are bytes, times are seconds."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Optional, Tuple

from kdleak.tags import PoolTag


class HuntPhase(enum.Enum):
    """What a hunt is doing."""

    SYMBOLS = "loading symbols"
    RANKING = "ranking tags"
    ARMING = "arming"
    WATCHING = "watching"
    RESTING = "resting"
    """Disarmed between two bursts, so that a hot tag does not stall the target."""
    DISARMING = "disarming"
    MEASURING = "reading the counters"
    DONE = "done"


@dataclass(frozen=True)
class SiteProgress:
    """A call site in a live view.

    Attributes:
        name: ``module!function+0x..`` as the target names it: untrusted text.
        allocs: allocations so far.
        outstanding: blocks not seen freed so far.
        outstanding_bytes: their bytes as far as known.
    """

    name: str
    allocs: int
    outstanding: int
    outstanding_bytes: int


@dataclass(frozen=True)
class HuntProgress:
    """One state of a running hunt, for a live view. Built at most every tenth of a second.

    Attributes:
        phase: what is being done.
        tag: the tag, None before it is picked.
        hits: hits so far.
        allocs: allocation hits so far.
        frees: free hits so far.
        seconds: since the first arming (since the start while nothing is armed).
        max_hits: hit budget.
        max_seconds: time budget.
        seconds_stopped: how long the target stood still since ``seconds`` began to count.
        bursts: times the tag was armed.
        sites: busiest call sites, most outstanding bytes first, at most ten.
        snapshot: number of the ranking snapshot being waited for, 0 outside the ranking.
        snapshots: ranking snapshots to take.
    """

    phase: HuntPhase
    tag: Optional[PoolTag] = None
    hits: int = 0
    allocs: int = 0
    frees: int = 0
    seconds: float = 0.0
    max_hits: int = 0
    max_seconds: float = 0.0
    seconds_stopped: float = 0.0
    bursts: int = 0
    sites: Tuple[SiteProgress, ...] = ()
    snapshot: int = 0
    snapshots: int = 0
