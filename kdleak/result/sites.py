"""What a hunt says of each call site. Sizes are bytes, times are seconds."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Optional, Tuple

from kdleak.blamed import LayerUse
from kdleak.model import Frame, Stack


class Judgement(enum.Enum):
    """What a hunt says about a call site."""

    ACCUSED = "accused"
    """Blocks allocated here stay; enough of them were seen to say so."""
    SUSPECTED = "suspected"
    """Looks like it, but the sample or the way of watching does not carry an accusation."""
    LEVELLED_OFF = "levelled off"
    """What is allocated here stays, but its number stopped growing: a cache that filled up."""
    CLEARED = "cleared"
    """What is allocated here comes back."""
    TOO_FEW = "too few"
    """Not enough allocations seen to say anything."""
    FREES_ONLY = "frees only"
    """No allocation was seen here."""


class SiteGrowth(enum.Enum):
    """How the number of outstanding blocks of a call site moved while watched."""

    GREW = "grew"
    """It rose to the end of the watch."""
    LEVELLED_OFF = "levelled off"
    """It rose at first and then stayed, for longer than chance explains."""
    UP_AND_DOWN = "up and down"
    """It fell back by half or more on the way."""
    FLAT = "flat"
    """Of many blocks hardly any was outstanding at any moment."""
    TOO_FEW = "too few"
    """Too few moments or blocks to say."""


@dataclass(frozen=True)
class SeriesPoint:
    """What was outstanding at one moment of the watch.

    Attributes:
        at: seconds since the first arming.
        outstanding: blocks seen allocated and not seen freed by then.
        outstanding_bytes: their bytes, as far as sizes are known.
        allocs: allocations seen by then.
    """

    at: float
    outstanding: int
    outstanding_bytes: int
    allocs: int = 0


@dataclass(frozen=True)
class Interval:
    """A 95 % confidence interval.

    Attributes:
        low: lower end.
        high: upper end.
    """

    low: float
    high: float


@dataclass(frozen=True)
class Scaled:
    """What a sampled call site comes to over the whole hunt, the unwatched part included.

    The figures are changes: allocated there minus freed (by whomever), from the start of the hunt
    to its end. They can be below 0 where blocks from before the hunt were freed.

    Attributes:
        blocks: most likely change of the outstanding blocks.
        blocks_within: its 95 % interval.
        bytes: most likely change of the outstanding bytes, as far as sizes are known.
        bytes_within: its 95 % interval.
    """

    blocks: float
    blocks_within: Interval
    bytes: float
    bytes_within: Interval


@dataclass(frozen=True)
class Scaling:
    """How the figures of a sampled hunt were scaled to the whole of it.

    Attributes:
        method: in words.
        factor: whole divided by what was seen, 1 or more.
        bursts: bursts the error bars rest on.
        unattributed_frees: frees seen of blocks that could not be put down to a call site; each
            could have been of any.
        total: all call sites together.
    """

    method: str
    factor: float
    bursts: int
    unattributed_frees: int
    total: Scaled


@dataclass(frozen=True)
class StackUse:
    """One distinct kernel stack that reached the allocator.

    Attributes:
        stack: innermost frame first, allocator frames included.
        site: address of its call site frame.
        allocs: allocations seen over this stack.
        frees: frees seen over this stack.
        outstanding: blocks allocated over this stack, address known, free not seen.
        outstanding_bytes: their bytes, as far as sizes are known.
        blame: address of the frame blamed; with ``site`` it names the call site. 0 where unknown.
    """

    stack: Stack
    site: int
    allocs: int
    frees: int
    outstanding: int
    outstanding_bytes: int
    blame: int = 0


@dataclass(frozen=True)
class CallSite:
    """One place outside the allocator that allocates or frees blocks of the tag.

    A block counts for the site that *allocated* it, whoever frees it. A place in a framework is
    one call site for each frame it is blamed on.

    Attributes:
        frame: first frame outside the allocator; its address is the return address there.
        blame: first frame outside the allocator and outside framework layers.
        stack: the commonest full stack through this site, allocator frames included.
        distinct_stacks: number of different kernel stacks.
        allocs: allocations seen here.
        frees: frees seen here.
        bytes_allocated: of the allocations whose size is known.
        bytes_freed: of the frees whose size is known.
        unsized: hits here whose size is not known.
        unaddressed: allocations here whose block address is not known; they cannot be paired.
        unwatched: blocks allocated here that were in use when a burst ended; their free would
            not have been seen, so they count for nothing.
        returned: blocks allocated here whose free was seen.
        replaced: blocks allocated here whose address was handed out again before a free was
            seen; they must have been freed unseen and do not count as outstanding.
        outstanding: blocks allocated here, address known, neither returned, replaced nor
            unwatched.
        outstanding_bytes: their bytes, as far as sizes are known.
        outstanding_unsized: of the outstanding blocks, those of unknown size.
        outstanding_old: of the outstanding blocks, those older than ``min_age``.
        longest_life: longest time in seconds from allocation to free seen here; None when
            nothing allocated here was seen freed.
        judgement: see Judgement.
        sentence: why, in plain words.
        outstanding_old_bytes: bytes of the blocks counted by ``outstanding_old``; what leaking
            call sites are ranked by.
        min_age: seconds beyond which a block allocated here counts as old: what the user gave, or
            a multiple of the longest life seen here.
        oldest_age: seconds since the oldest outstanding block was allocated, at the end of the
            watch; None without one.
        median_age: their median age in seconds; None without one.
        share_staying: 95 % interval of the share of blocks allocated here that were not freed
            while watched (Wilson; of a sampled hunt that of ``scaled``); None when the fate of
            none is known.
        growth: how ``outstanding`` moved while watched.
        series: ``outstanding`` at moments evenly spaced over the time watched, first 0, last the
            end; at most 66 of them.
        scaled: what this comes to over the whole hunt; None when nothing was sampled, there
            were too few bursts, or the tag's counters are not known.
        through: framework layers between ``frame`` and ``blame``, innermost first.
        blame_found: False when there was nothing but framework layers on the stack; ``blame`` is
            the outermost of them then.
    """

    frame: Frame
    blame: Frame
    stack: Stack
    distinct_stacks: int
    allocs: int
    frees: int
    bytes_allocated: int
    bytes_freed: int
    unsized: int
    unaddressed: int
    unwatched: int
    returned: int
    replaced: int
    outstanding: int
    outstanding_bytes: int
    outstanding_unsized: int
    outstanding_old: int
    longest_life: Optional[float]
    judgement: Judgement
    sentence: str
    outstanding_old_bytes: int = 0
    min_age: float = 0.0
    oldest_age: Optional[float] = None
    median_age: Optional[float] = None
    share_staying: Optional[Interval] = None
    growth: SiteGrowth = SiteGrowth.TOO_FEW
    series: Tuple[SeriesPoint, ...] = ()
    scaled: Optional[Scaled] = None
    through: Tuple[LayerUse, ...] = ()
    blame_found: bool = True


@dataclass(frozen=True)
class Pairing:
    """How well frees could be matched to allocations over the whole hunt.

    Attributes:
        paired: frees matched to an allocation we saw.
        frees_of_older: frees of blocks allocated before (or while not) watched.
        frees_after_pause: of those, the frees seen after the first pause: these blocks may have
            been allocated while the tag was disarmed, the others are from before the watch.
        frees_unaddressed: frees whose block address is not known.
        allocs_unaddressed: allocations whose block address is not known.
        replaced: allocations whose block must have been freed unseen.
        unwatched: allocations whose block went out of sight when a burst ended.
        outstanding: blocks seen allocated and not seen freed.
        outstanding_bytes: their bytes, as far as known.
    """

    paired: int = 0
    frees_of_older: int = 0
    frees_unaddressed: int = 0
    allocs_unaddressed: int = 0
    replaced: int = 0
    unwatched: int = 0
    outstanding: int = 0
    outstanding_bytes: int = 0
    frees_after_pause: int = 0
