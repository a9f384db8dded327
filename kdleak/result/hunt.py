"""What a hunt came to. Sizes are bytes, times are seconds."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Optional, Tuple

from kdleak.blamed import KnownOwner, ModuleDetails
from kdleak.model import NO_STACK, Hit, Pool, Stack, Stop, TagUsage, TargetInfo
from kdleak.result.disarm import DisarmState, TargetChange
from kdleak.result.ranking import RankResult
from kdleak.result.sites import CallSite, Pairing, Scaling, SeriesPoint, StackUse
from kdleak.tags import PoolTag


class StopReason(enum.Enum):
    """Why a hunt ended."""

    HITS = "hit budget used up"
    SECONDS = "time budget used up"
    NOTHING_GREW = "no tag grew"
    FOREIGN_STOP = "the target stopped for a reason of its own"
    BREAK_IN = "somebody broke in"
    INTERRUPTED = "interrupted"
    LINK_LOST = "the link was lost"
    RESTARTED = "the target restarted"
    ENGINE_ERROR = "the engine reported an error"


class CheckStatus(enum.Enum):
    """What is known of one possible reason for seeing no hits."""

    RULED_OUT = "ruled out"
    LIKELY = "likely"
    POSSIBLE = "possible"
    """Cannot be told from the debugger's side."""


@dataclass(frozen=True)
class Check:
    """One item of the "why no hits" checklist.

    Attributes:
        question: the possible reason.
        status: see CheckStatus.
        evidence: what was seen, or how to find out.
    """

    question: str
    status: CheckStatus
    evidence: str


@dataclass(frozen=True)
class TagGrowth:
    """How the hunted tag's counters moved while it was hunted.

    Attributes:
        before: the tag's row just before arming (zero counters when it had none).
        after: the tag's row after the last disarm.
        seconds: between the two.
    """

    before: TagUsage
    after: TagUsage
    seconds: float

    def bytes_in(self, pool: Pool) -> int:
        """Growth of the outstanding bytes in one pool."""
        return self.after.of(pool).bytes - self.before.of(pool).bytes

    def blocks_in(self, pool: Pool) -> int:
        """Growth of the outstanding blocks in one pool."""
        return self.after.of(pool).outstanding - self.before.of(pool).outstanding

    @property
    def bytes(self) -> int:
        """Growth of the outstanding bytes, both pools."""
        return self.after.bytes - self.before.bytes

    @property
    def blocks(self) -> int:
        """Growth of the outstanding blocks, both pools."""
        return self.after.outstanding - self.before.outstanding

    @property
    def allocs(self) -> int:
        """Allocations counted by the kernel meanwhile, both pools."""
        return sum(self.after.of(p).allocs - self.before.of(p).allocs for p in Pool)

    @property
    def frees(self) -> int:
        """Frees counted by the kernel meanwhile, both pools."""
        return sum(self.after.of(p).frees - self.before.of(p).frees for p in Pool)


@dataclass(frozen=True)
class Completeness:
    """What the hunt saw, and what it cannot have seen.

    Attributes:
        hits: hits recorded.
        hits_left_out: of those, hits that are in all figures but not listed one by one.
        seconds: from the first arming to the last disarming.
        seconds_watched: of those, how long the tag was armed.
        seconds_stopped: of those, how long the target stood still.
        bursts: times the tag was armed.
        late_hits: hits that arrived after a disarm (processors already past the test).
        broken_stacks: hits whose stack ends early (unreadable, no unwind data, implausible).
        unaddressed: hits whose block address is not known.
        unsized: hits whose block size is not known.
        requests: round trips to the target for the whole hunt, 0 where not counted.
        gaps: what could not be done or read, in words; empty when nothing is missing.
    """

    hits: int = 0
    seconds: float = 0.0
    seconds_watched: float = 0.0
    seconds_stopped: float = 0.0
    bursts: int = 0
    late_hits: int = 0
    broken_stacks: int = 0
    unaddressed: int = 0
    unsized: int = 0
    requests: int = 0
    gaps: Tuple[str, ...] = ()
    hits_left_out: int = 0

    @property
    def share_watched(self) -> float:
        """Part of the hunt during which the tag was armed, 0 to 1."""
        return min(1.0, self.seconds_watched / self.seconds) if self.seconds > 0 else 0.0

    @property
    def share_stopped(self) -> float:
        """Part of the hunt during which the target stood still, 0 to 1."""
        return min(1.0, self.seconds_stopped / self.seconds) if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Budgets:
    """What a hunt was allowed to cost.

    Attributes:
        max_hits: hits after which it ends.
        max_seconds: seconds after which it ends.
        max_stopped_share: part of the time the target may stand still; None for no limit.
        hits_per_second: rate of hits above which is sampled; None for no limit.
    """

    max_hits: int
    max_seconds: float
    max_stopped_share: Optional[float]
    hits_per_second: Optional[float]


@dataclass(frozen=True)
class HuntResult:
    """Everything a hunt came to; partial results are results.

    Attributes:
        target: what was hunted in.
        engine: name of the engine.
        where: the target as the user named it, without secrets.
        tag: the tag hunted; None when none was picked.
        tag_reason: how the tag was chosen.
        started_at: host wall clock at the start, seconds since 1970 (UTC).
        verdict: the answer in words, one sentence per item.
        accused: the call site accused, else None.
        sites: all call sites; those that hold most first, those that only free last.
        stacks: distinct kernel stacks, most outstanding bytes first.
        hits: hits in order; of very many the first and the last ones only, see
            ``completeness.hits_left_out``.
        pairing: how well frees were matched to allocations.
        growth: how the tag's counters moved; None when they could not be read.
        completeness: what was and was not seen.
        change: what was written to the target; None when nothing was.
        disarm: how the undoing ended.
        stop_reason: why the hunt ended.
        stop: the stop that ended it, for FOREIGN_STOP and BREAK_IN.
        stop_stack: the stack at that stop; empty when it could not be read.
        error: the error that ended it, as a sentence, "" when none did.
        leave_stopped: the target waits for its user and must not be resumed.
        checklist: possible reasons for seeing no hit at all; empty when there were hits.
        rank: the ranking that picked the tag; None when the user gave it.
        remarks: further sentences (symbols that were not found, a stale journal, ...).
        min_age: seconds the user gave beyond which a block is old; None for automatic.
        series: outstanding blocks of all call sites over the time watched, see
            ``CallSite.series``.
        watched: from when to when the tag was armed, seconds since the first arming; the first
            512 stretches.
        scaling: how sampled figures were scaled; None when nothing was sampled or there were too
            few bursts.
        blamed: what the drivers say about themselves that the foremost call sites are blamed on;
            empty when it was not asked.
        tag_owner: what the user's pooltag.txt says of the tag; None where it says nothing.
        budgets: what it was allowed to cost; None where that is not known (a log).
    """

    target: TargetInfo
    engine: str
    where: str
    tag: Optional[PoolTag]
    tag_reason: str
    started_at: float
    verdict: Tuple[str, ...]
    accused: Optional[CallSite]
    sites: Tuple[CallSite, ...]
    stacks: Tuple[StackUse, ...]
    hits: Tuple[Hit, ...]
    pairing: Pairing
    growth: Optional[TagGrowth]
    completeness: Completeness
    change: Optional[TargetChange]
    disarm: DisarmState
    stop_reason: StopReason
    stop: Optional[Stop] = None
    stop_stack: Stack = NO_STACK
    error: str = ""
    leave_stopped: bool = False
    checklist: Tuple[Check, ...] = ()
    rank: Optional[RankResult] = None
    remarks: Tuple[str, ...] = ()
    min_age: Optional[float] = None
    series: Tuple[SeriesPoint, ...] = ()
    watched: Tuple[Tuple[float, float], ...] = ()
    scaling: Optional[Scaling] = None
    blamed: Tuple[ModuleDetails, ...] = ()
    tag_owner: Optional[KnownOwner] = None
    budgets: Optional[Budgets] = None

    @property
    def interrupted(self) -> bool:
        """Ctrl+C (or Ctrl+Break in WinDbg) ended the hunt."""
        return self.stop_reason is StopReason.INTERRUPTED
