"""What a user can ask of a ranking and of a hunt: plain values with their defaults and limits."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Optional

from kdleak.errors import BadTag, UsageError
from kdleak.model import Pool
from kdleak.result import RankBy
from kdleak.tags import PROTECTED_POOL, PoolTag


@dataclass(frozen=True)
class RankOptions:
    """How to rank.

    Attributes:
        by: growth over the interval, or bytes outstanding now (one snapshot is enough).
        seconds: how long the target runs between the first and the last snapshot.
        snapshots: how many are taken within it; at least 2 for growth. Four are the least with
            which growth can be significant; with six a step back may be among them, and a
            warm-up that levels off be told. Each stops the target for a moment.
        pool: only this pool; both when None.
        interrupt_timeout: seconds to wait for the target to stop when asked.
    """

    by: RankBy = RankBy.GROWTH
    seconds: float = 30.0
    snapshots: int = 6
    pool: Optional[Pool] = None
    interrupt_timeout: float = 30.0

    def check(self) -> None:
        """Refuse values that make no sense.

        Raises:
            UsageError: with the value.
        """
        _positive("the ranking interval in seconds", self.seconds)
        _positive("the time to wait for a stop in seconds", self.interrupt_timeout)
        least = 1 if self.by is RankBy.USED else 2
        if self.snapshots < least:
            raise UsageError(
                f"ranking by {self.by.value} with {self.snapshots} snapshots",
                f"at least {least} needed",
                "ask for more snapshots",
            )


@dataclass(frozen=True)
class HuntOptions:
    """How to hunt.

    Attributes:
        tag: the tag to hunt; None picks the one that grows most steadily.
        rank: how to pick it.
        max_hits: hits after which the hunt ends.
        max_seconds: seconds (first arming to last disarming) after which it ends.
        hits_per_second: average rate of hits above which a hot tag is sampled in bursts; None
            for no limit.
        max_stopped_share: part of the time (0 to 1) the target may stand still on average before
            the tag is sampled in bursts; None for no limit.
        min_age: seconds beyond which a block still there counts as old, and old blocks are what
            call sites are accused for; None takes a multiple of the longest life seen at each
            call site (see ``kdleak.callsites.Ledger``).
        burst_hits: hits of one burst, at least.
        burst_seconds: running time of the target a burst covers at least, unless four times
            ``burst_hits`` come before. A break-in lands at a clock tick, and much work starts
            there: bursts shorter than a few ticks would see the same kind of work every time.
        stack_depth: frames to ask for at a hit.
        measure_growth: read the tag's counters before and after.
        settle_seconds: how long the target runs after a disarm so that processors which were
            already past the test can deliver their break while we are still there.
        grace_seconds: how long to wait for a lost link to come back, to disarm.
        interrupt_timeout: seconds to wait for the target to stop when asked.
        progress_interval: seconds between two progress reports, at least.
        read_versions: ask the drivers blamed for their version and company, at the end.
    """

    tag: Optional[PoolTag] = None
    rank: RankOptions = field(default_factory=RankOptions)
    max_hits: int = 500
    max_seconds: float = 60.0
    hits_per_second: Optional[float] = 100.0
    max_stopped_share: Optional[float] = 0.2
    min_age: Optional[float] = None
    burst_hits: int = 50
    burst_seconds: float = 0.05
    stack_depth: int = 32
    measure_growth: bool = True
    settle_seconds: float = 0.25
    grace_seconds: float = 120.0
    interrupt_timeout: float = 30.0
    progress_interval: float = 0.1
    read_versions: bool = True

    def check(self) -> None:
        """Refuse values that make no sense, before anything is touched.

        Raises:
            BadTag: the tag can never match (0, bit 31 set, more than 32 bits).
            UsageError: with the value.
        """
        if self.tag is not None:
            check_tag(self.tag)
        self.rank.check()
        _positive("the hit budget", self.max_hits)
        _positive("the time budget in seconds", self.max_seconds)
        _positive("the hits of one burst", self.burst_hits)
        _positive("the stack depth in frames", self.stack_depth)
        _positive("the time to wait for a stop in seconds", self.interrupt_timeout)
        if self.min_age is not None and not (math.isfinite(self.min_age) and self.min_age >= 0):
            raise UsageError(
                f"taking blocks for old at {self.min_age} seconds",
                "not a time",
                "give 0 or more, or leave it out for a multiple of the longest life seen",
            )
        if self.hits_per_second is not None:
            _positive("the hits per second", self.hits_per_second)
        if self.max_stopped_share is not None and not 0 < self.max_stopped_share <= 1:
            raise UsageError(
                f"limiting the time stopped to a share of {self.max_stopped_share}",
                "a share lies above 0 and at most at 1",
                "0.2 lets the target stand still a fifth of the time",
            )
        for name, value in (
            ("burst", self.burst_seconds),
            ("settle", self.settle_seconds),
            ("grace", self.grace_seconds),
            ("progress", self.progress_interval),
        ):
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(f"setting the {name} time to {value} seconds", "not a time")


def check_tag(tag: PoolTag) -> None:
    """Refuse a tag that nt!PoolHitTag can never match.

    Raises:
        BadTag: the value is 0, has bit 31 set (the kernel strips it before it compares), or does
            not fit 32 bits.
    """
    if tag.value & PROTECTED_POOL or not 0 < tag.value <= 0xFFFFFFFF:
        raise BadTag(
            f"arming the pool tag 0x{tag.value:x}",
            "no block can carry it: a tag is 32 bits, not 0, and compared without bit 31",
            "give the tag as !poolused shows it",
        )


def _positive(what: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"setting {what} to {value}", "it must be above 0", "give another value")
