"""What is counted for a call site and a stack while they are booked, and the site made of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Optional, Tuple

from kdleak.blaming.blame import Blame
from kdleak.booking.growth_series import shape_of
from kdleak.model import Frame, Stack
from kdleak.result import CallSite, Interval, Scaled, SeriesPoint
from kdleak.trends.slope import median
from kdleak.verdict import Evidence, SiteFacts, judge

OLD_FACTOR = 4.0
"""A block older than this many times the usual life at its site is not merely in use."""

MANY_LIVES = 20
"""Lives seen at a call site from which on its longest one is left out."""

LEAST_AGE = 1.0
"""Seconds a block must have stayed where nothing allocated beside it was ever seen freed."""

StackKey = Tuple[int, ...]
"""Return addresses of the kernel part of a stack."""


@dataclass
class SiteTally:
    """Counts of one call site; see ``CallSite`` for their meaning."""

    key: int
    frame: Frame
    allocs: int = 0
    frees: int = 0
    bytes_allocated: int = 0
    bytes_freed: int = 0
    unsized: int = 0
    unaddressed: int = 0
    unwatched: int = 0
    returned: int = 0
    replaced: int = 0
    outstanding: int = 0
    outstanding_bytes: int = 0
    lives: int = 0
    longest_life: Optional[float] = None
    second_life: float = 0.0
    stacks: Dict[StackKey, int] = field(default_factory=dict)

    def lived(self, seconds: float) -> None:
        """Note the life of a block that was seen allocated and freed."""
        self.lives += 1
        if self.longest_life is None or seconds > self.longest_life:
            self.second_life = self.longest_life or 0.0
            self.longest_life = seconds
        elif seconds > self.second_life:
            self.second_life = seconds

    @property
    def usual_life(self) -> Optional[float]:
        """How long a block allocated here may live; None when none was seen freed.

        Of many lives the longest one is left out: a debugger or a machine that stalls once
        stretches the life of whatever is in use just then.
        """
        return self.second_life if self.lives >= MANY_LIVES else self.longest_life

    def old_beyond(self, min_age: Optional[float]) -> float:
        """Seconds beyond which a block allocated here counts as old.

        Args:
            min_age: what the user gave; None for automatic.
        """
        if min_age is not None:
            return min_age
        life = self.usual_life
        return LEAST_AGE if life is None else OLD_FACTOR * life

    def commonest_stack(self) -> StackKey:
        """The stack most hits came over."""
        return min(self.stacks, key=lambda key: (-self.stacks[key], key))


@dataclass
class StackTally:
    """Counts of one distinct kernel stack; see ``StackUse``."""

    stack: Stack
    site: int
    allocs: int = 0
    frees: int = 0
    outstanding: int = 0
    outstanding_bytes: int = 0


@dataclass
class Aged:
    """The live blocks of one call site at the end."""

    ages: List[float] = field(default_factory=list)
    old: int = 0
    old_bytes: int = 0
    unsized: int = 0


def finished_site(
    tally: SiteTally,
    stack: Stack,
    whom: Blame,
    aged: Aged,
    evidence: Evidence,
    *,
    min_age: Optional[float],
    series: Tuple[SeriesPoint, ...],
    scaled: Optional[Scaled],
    share: Optional[Interval],
) -> CallSite:
    """A call site with its judgement.

    Args:
        tally: its counts.
        stack: its commonest stack.
        whom: the frame of that stack to blame.
        aged: its outstanding blocks.
        evidence: what is known of the hunt as a whole.
        min_age: seconds the user gave; None for automatic.
        series: how its outstanding blocks moved.
        scaled: its figures for the whole of a sampled hunt.
        share: the part of its blocks that stays, in a sampled hunt.
    """
    shape = shape_of(series)
    facts = SiteFacts(
        allocs=tally.allocs,
        frees=tally.frees,
        unaddressed=tally.unaddressed,
        unwatched=tally.unwatched,
        returned=tally.returned,
        replaced=tally.replaced,
        outstanding=tally.outstanding,
        outstanding_old=aged.old,
        longest_life=tally.usual_life,
        outstanding_old_bytes=aged.old_bytes,
        min_age=min_age,
        least_age=tally.old_beyond(min_age),
        shape=shape,
        share=share,
    )
    judgement, sentence = judge(facts, evidence)
    return CallSite(
        frame=tally.frame,
        blame=stack.frames[whom.index],
        stack=stack,
        distinct_stacks=len(tally.stacks),
        allocs=tally.allocs,
        frees=tally.frees,
        bytes_allocated=tally.bytes_allocated,
        bytes_freed=tally.bytes_freed,
        unsized=tally.unsized,
        unaddressed=tally.unaddressed,
        unwatched=tally.unwatched,
        returned=tally.returned,
        replaced=tally.replaced,
        outstanding=tally.outstanding,
        outstanding_bytes=tally.outstanding_bytes,
        outstanding_unsized=aged.unsized,
        outstanding_old=aged.old,
        longest_life=tally.longest_life,
        judgement=judgement,
        sentence=sentence,
        outstanding_old_bytes=aged.old_bytes,
        min_age=tally.old_beyond(min_age),
        oldest_age=max(aged.ages, default=None),
        median_age=median(aged.ages) if aged.ages else None,
        share_staying=facts.share_staying,
        growth=shape.growth,
        series=series,
        scaled=scaled,
        through=whom.through,
        blame_found=whom.found,
    )
