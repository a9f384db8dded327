"""Results of the procedure as plain values: what a hunt, a ranking and a disarm came to.

Everything a report needs is in here; a report never asks the target again. Sizes are bytes,
times are seconds, addresses are target virtual addresses.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Optional, Tuple

from kdleak.blamed import KnownOwner, LayerUse, ModuleDetails
from kdleak.model import (
    Frame,
    Hit,
    Pool,
    PoolCounters,
    Stack,
    Stop,
    TagUsage,
    TargetInfo,
)
from kdleak.tags import PoolTag

NO_STACK = Stack(())

# --- what was changed in the target ------------------------------------------------------------


REPLAYED = "replayed, no target was touched; in the recording: "
"""What the safety line of a replay begins with."""


class DisarmStatus(enum.Enum):
    """Whether nt!PoolHitTag is known to hold its original value again."""

    CONFIRMED = "confirmed"
    """The original value was written (or still there) and read back."""
    NOT_CONFIRMED = "not confirmed"
    """The tag may still be armed; ``repair`` says how to put it right."""
    NOT_NEEDED = "not needed"
    """Nothing of ours is in the target: never written, or the target restarted."""


@dataclass(frozen=True)
class DisarmState:
    """How the undoing of our one change to the target ended.

    Attributes:
        status: see DisarmStatus.
        address: of nt!PoolHitTag, 0 when it was never looked up.
        value: the 32-bit value read back (CONFIRMED), or the original one that belongs there
            (NOT_CONFIRMED); None when it is not known.
        why: what stands in the way, or why nothing was needed; "" when CONFIRMED.
        repair: exact WinDbg and kdleak commands that put it right, in order.
        remarks: anything else worth a line (a journal file that could not be removed, ...).
        replayed: it is about a recorded session, as it ended then.
    """

    status: DisarmStatus
    address: int = 0
    value: Optional[int] = None
    why: str = ""
    repair: Tuple[str, ...] = ()
    remarks: Tuple[str, ...] = ()
    replayed: bool = False

    @property
    def safe(self) -> bool:
        """Nothing of ours can be left in the target."""
        return self.status is not DisarmStatus.NOT_CONFIRMED

    def sentence(self) -> str:
        """The safety line: always the last line of a live hunt's report."""
        return f"{REPLAYED if self.replayed else ''}{self._outcome()}"

    def _outcome(self) -> str:
        if self.status is DisarmStatus.CONFIRMED:
            return f"disarmed: nt!PoolHitTag is back at 0x{self.value or 0:08x} (read back)."
        if self.status is DisarmStatus.NOT_NEEDED:
            return f"disarmed: nothing to undo ({self.why or 'nt!PoolHitTag was not written'})."
        return f"DISARM NOT CONFIRMED: nt!PoolHitTag may still be armed ({self.why})."


@dataclass(frozen=True)
class TargetChange:
    """What was written to the target, and how often.

    Attributes:
        address: of nt!PoolHitTag.
        original: its 32-bit value before we came.
        armed: the value written to arm.
        times_armed: completed arm operations (one, or one per burst).
    """

    address: int
    original: int
    armed: int
    times_armed: int


@dataclass(frozen=True)
class RestoreItem:
    """What came of one journal entry.

    Attributes:
        file_name: name of the journal file, without its folder.
        where: the connection it was made over.
        tag: the tag that was armed.
        state: outcome; NOT_CONFIRMED also stands for "something else is there, not touched".
        remark: one sentence about what was found and done.
        closed: the entry is gone from the journal.
    """

    file_name: str
    where: str
    tag: Optional[PoolTag]
    state: DisarmState
    remark: str
    closed: bool


@dataclass(frozen=True)
class RestoreResult:
    """Outcome of ``restore``.

    Attributes:
        state: the outcome for the target at hand as a whole.
        items: one per journal entry that belongs to this target.
        remarks: damaged journal files, entries of other targets, a left-over hit.
        passed_hits: breaks of a tag left armed that the target was let go from.
        leave_stopped: the target stopped for a reason of its own and waits for its user.
        interrupted: Ctrl+C was pressed meanwhile.
    """

    state: DisarmState
    items: Tuple[RestoreItem, ...] = ()
    remarks: Tuple[str, ...] = ()
    passed_hits: int = 0
    leave_stopped: bool = False
    interrupted: bool = False


# --- ranking -----------------------------------------------------------------------------------


class RankBy(enum.Enum):
    """What a ranking is ordered by."""

    GROWTH = "growth"
    USED = "used"


class Trend(enum.Enum):
    """How a tag's outstanding bytes moved over the snapshots (see kdleak.trend)."""

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
    """The slope of a tag's outstanding bytes, per hour of running target (see kdleak.slope).

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

    @property
    def new_allocs(self) -> int:
        """Allocations between the first and the last snapshot."""
        return self.last.allocs - self.first.allocs

    @property
    def new_frees(self) -> int:
        """Frees between the first and the last snapshot."""
        return self.last.frees - self.first.frees


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


# --- call sites --------------------------------------------------------------------------------


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
        scaled: what this comes to over the whole hunt; None when nothing was sampled or there
            were too few bursts.
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


# --- the hunt ----------------------------------------------------------------------------------


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
