"""What a ranking of pool tags came to. Sizes are bytes, times are seconds."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Optional, Tuple

from kdleak.model import NO_STACK, Pool, PoolCounters, Stack, Stop, TargetInfo
from kdleak.tags import PoolTag


class RankBy(enum.Enum):
    """What a ranking is ordered by."""

    GROWTH = "growth"
    USED = "used"


class Trend(enum.Enum):
    """How a tag's outstanding bytes moved over the snapshots (see kdleak.trends.trend)."""

    STEADY = "steady"
    """Grew consistently, by more than its own traffic would by chance."""
    BURST = "burst"
    """Ended higher, nearly all of it in one or two steps."""
    LEVELLING = "levelling off"
    """Grew, and grows much slower now or no more: a warm-up, a cache that filled."""
    SAWTOOTH = "sawtooth"
    """Rises and falls back again and again, wherever it ended."""
    UP_AND_DOWN = "up and down"
    """Ended higher after falling back on the way."""
    UNCERTAIN = "uncertain"
    """Ended higher, but over too few snapshots, or little compared with its traffic."""
    FLAT = "flat"
    SHRANK = "shrank"
    NOT_MEASURED = "not measured"
    """One snapshot only."""


@dataclass(frozen=True)
class TrendFit:
    """The slope of a tag's outstanding bytes, per hour of running target (see kdleak.trends.slope).

    Attributes:
        bytes_per_hour: median slope (Theil-Sen).
        low: lower end of its 95 % confidence interval, bytes per hour; None of fewer than five
            points, which tell none.
        high: upper end; None as ``low``.
        p_rise: chance (0 to 1) of a rise this consistent, had the values come in random order
            (Mann-Kendall, one-sided).
        points: it rests on.
    """

    bytes_per_hour: float
    low: Optional[float]
    high: Optional[float]
    p_rise: float
    points: int


@dataclass(frozen=True)
class PoolLimit:
    """The most a pool can come to.

    Attributes:
        bytes: the limit.
        source: the variable of the kernel it was read from, "nt!MmSizeOfPagedPoolInBytes".
    """

    bytes: int
    source: str


@dataclass(frozen=True)
class RankRow:
    """One tag in one pool.

    Attributes:
        tag: pool tag.
        pool: which of the two pools.
        first: counters of the first snapshot.
        last: counters of the last snapshot (the only one when there is just one).
        bytes_series: outstanding bytes at every snapshot, in order.
        trend: see Trend.
        bytes_per_hour: growth per hour of running target: the fitted slope from three snapshots
            on; None without two, or where the time is not known.
        fit: the slope with its interval; None as ``bytes_per_hour``.
        hours_left: until the pool is exhausted at that slope, for steady growth where the
            pool's limit is known; else None.
    """

    tag: PoolTag
    pool: Pool
    first: PoolCounters
    last: PoolCounters
    bytes_series: Tuple[int, ...]
    trend: Trend
    bytes_per_hour: Optional[float] = None
    fit: Optional[TrendFit] = None
    hours_left: Optional[float] = None

    @property
    def growth_bytes(self) -> int:
        """Change of the outstanding bytes, first to last snapshot."""
        return self.last.bytes - self.first.bytes

    @property
    def growth_blocks(self) -> int:
        """Change of the outstanding blocks, first to last snapshot."""
        return self.last.outstanding - self.first.outstanding


@dataclass(frozen=True)
class RankResult:
    """Tags in order of suspicion.

    Attributes:
        target: what was measured.
        engine: name of the engine.
        where: the target as the user named it, without secrets.
        by: order of the rows.
        rows: best suspect first.
        suspect: the row picked: the most suspicious growth, or the biggest user when ranked by
            that; None when nothing grew (that is an answer).
        reason: one sentence for the pick, or for there being none.
        snapshots: how many were taken.
        seconds: from the first to the last snapshot.
        seconds_running: of those, how long the target ran.
        seconds_stopped: how long the target stood still for the whole ranking.
        source: how the figures were read.
        gaps: what could not be read.
        stop: a stop that was not ours and ended the ranking early, else None.
        stop_stack: the stack at that stop; empty when it could not be read.
        interrupted: Ctrl+C ended it early.
        outstanding_only: allocs and frees of the rows are not known apart, see ``PoolSnapshot``.
        times: seconds the target had run at each snapshot since the first one.
        limits: the limits of the pools that are known; looked for only where growth is steady.
    """

    target: TargetInfo
    engine: str
    where: str
    by: RankBy
    rows: Tuple[RankRow, ...]
    suspect: Optional[RankRow]
    reason: str
    snapshots: int
    seconds: float
    seconds_running: float
    seconds_stopped: float
    source: str
    gaps: Tuple[str, ...] = ()
    stop: Optional[Stop] = None
    stop_stack: Stack = NO_STACK
    interrupted: bool = False
    outstanding_only: bool = False
    times: Tuple[float, ...] = ()
    limits: Tuple[Tuple[Pool, PoolLimit], ...] = ()

    @property
    def leave_stopped(self) -> bool:
        """The target stopped for a reason of its own and waits for its user."""
        return self.stop is not None
