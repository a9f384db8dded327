"""What a hunt learned on its way, and the result made of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import List, Optional, Tuple

from kdleak.arm import ArmedTag
from kdleak.booking.scaling import Whole
from kdleak.diagnosis import checklist
from kdleak.engine.base import Engine
from kdleak.errors import ExitCode
from kdleak.model import SymbolKind
from kdleak.result import (
    NO_STACK,
    Check,
    Completeness,
    DisarmState,
    DisarmStatus,
    HuntResult,
    Judgement,
    Pairing,
    RankResult,
    StopReason,
    TagGrowth,
)
from kdleak.tags import PoolTag
from kdleak.verdict import choose_accused, verdict_sentences
from kdleak.watch import Watch


@dataclass
class HuntFacts:
    """Notes of a hunt in progress; every step adds what it learned.

    Attributes:
        engine: the engine at work.
        tag: the tag, None until it is picked.
        tag_reason: how it was chosen.
        requests_before: round trips the engine had made when the hunt began.
        started_at: host wall clock, seconds since 1970 (UTC).
        rank: the ranking, if one was made.
        watch: the watch, once there is one.
        armed: what arms and disarms, once there is one.
        growth: how the tag's counters moved.
        symbol_kind: what the address of nt!PoolHitTag rests on.
        seconds: from the first arming to the last disarming.
        seconds_watched: of those, how long the tag was armed.
        seconds_stopped: of those, how long the target stood still.
        remarks: sentences worth keeping.
        gaps: what could not be done or read.
        reason: why the hunt ended.
        min_age: seconds beyond which a block is old; None for automatic.
    """

    engine: Engine
    tag: Optional[PoolTag]
    tag_reason: str
    requests_before: int
    started_at: float
    rank: Optional[RankResult] = None
    watch: Optional[Watch] = None
    armed: Optional[ArmedTag] = None
    growth: Optional[TagGrowth] = None
    symbol_kind: SymbolKind = SymbolKind.NONE
    seconds: float = 0.0
    seconds_watched: float = 0.0
    seconds_stopped: float = 0.0
    remarks: List[str] = field(default_factory=list)
    gaps: List[str] = field(default_factory=list)
    reason: Optional[StopReason] = None
    min_age: Optional[float] = None


def assemble(facts: HuntFacts) -> HuntResult:
    """The result of a hunt, whole or partial. Does not touch the target."""
    watch, armed, ranking = facts.watch, facts.armed, facts.rank
    reason = facts.reason or StopReason.ENGINE_ERROR
    completeness = _completeness(facts)
    disarm = armed.state if armed else DisarmState(DisarmStatus.NOT_NEEDED)
    stop = watch.stop if watch else None
    stack = watch.stop_stack if watch else None
    if stop is None and ranking is not None and ranking.stop is not None:
        stop, stack = ranking.stop, ranking.stop_stack
    base = HuntResult(
        target=facts.engine.target,
        engine=facts.engine.name,
        where=facts.engine.where,
        tag=facts.tag,
        tag_reason=facts.tag_reason,
        started_at=facts.started_at,
        verdict=(),
        accused=None,
        sites=(),
        stacks=(),
        hits=(),
        pairing=watch.ledger.pairing() if watch else Pairing(),
        growth=facts.growth,
        completeness=completeness,
        change=armed.change if armed else None,
        disarm=disarm,
        stop_reason=reason,
        stop=stop,
        stop_stack=stack if stack is not None else NO_STACK,
        error=str(watch.error) if watch and watch.error else "",
        leave_stopped=reason in (StopReason.FOREIGN_STOP, StopReason.BREAK_IN)
        or (watch is not None and watch.unquiet),
        rank=ranking,
        remarks=tuple(facts.remarks),
        min_age=facts.min_age,
    )
    if watch is None or facts.tag is None:
        return replace(base, verdict=_verdict_without_watch(base))
    # A link that failed explains the lack of hits; the kernel must not get the blame.
    watched_through = reason not in (
        StopReason.LINK_LOST,
        StopReason.RESTARTED,
        StopReason.ENGINE_ERROR,
    )
    # The target stands still while it is disarmed: no block grows older by that.
    now = watch.ended if watch.ended is not None else facts.seconds or watch.seconds
    growth = facts.growth
    whole = Whole(
        max(0.0, facts.seconds - facts.seconds_stopped),
        growth.allocs if growth is not None else None,
        growth.frees if growth is not None else None,
    )
    sites = watch.ledger.sites(now, completeness.share_watched, whole)
    return replace(
        base,
        series=watch.ledger.series(now),
        watched=watch.ledger.watched,
        scaling=watch.ledger.scaling(whole),
        verdict=verdict_sentences(str(facts.tag), sites, facts.growth, len(watch.hits)),
        accused=choose_accused(sites),
        sites=sites,
        stacks=watch.ledger.stacks(),
        hits=tuple(watch.hits),
        checklist=_checklist(facts, facts.tag) if not watch.hits and watched_through else (),
    )


def _checklist(facts: HuntFacts, tag: PoolTag) -> Tuple[Check, ...]:
    armed = facts.armed
    return checklist(
        tag,
        symbol_kind=facts.symbol_kind,
        growth=facts.growth,
        read_back=armed is not None and armed.times_armed > 0,
        engine=facts.engine.name,
        rank=facts.rank,
    )


def _completeness(facts: HuntFacts) -> Completeness:
    watch = facts.watch
    requests = max(0, facts.engine.requests - facts.requests_before)
    if watch is None:
        return Completeness(requests=requests, gaps=tuple(facts.gaps))
    hits = watch.hits
    return Completeness(
        hits=len(hits),
        seconds=facts.seconds,
        seconds_watched=min(facts.seconds, facts.seconds_watched),
        seconds_stopped=facts.seconds_stopped,
        bursts=watch.bursts,
        late_hits=watch.late_hits,
        broken_stacks=watch.broken_stacks,
        unaddressed=hits.unaddressed,
        unsized=hits.unsized,
        requests=requests,
        gaps=tuple(dict.fromkeys(facts.gaps)),
        hits_left_out=hits.left_out,
    )


def _verdict_without_watch(result: HuntResult) -> Tuple[str, ...]:
    """The answer when nothing was armed."""
    if result.stop_reason is StopReason.NOTHING_GREW and result.rank is not None:
        return (result.rank.reason, "Nothing was armed.")
    return (f"Nothing was armed: {result.stop_reason.value}.",)


_TROUBLE = {
    StopReason.FOREIGN_STOP,
    StopReason.BREAK_IN,
    StopReason.LINK_LOST,
    StopReason.RESTARTED,
    StopReason.ENGINE_ERROR,
}


def exit_code(result: HuntResult) -> ExitCode:
    """What a hunt's outcome is to a calling program; an unconfirmed disarm outranks all else."""
    if not result.disarm.safe:
        return ExitCode.DISARM_NOT_CONFIRMED
    if result.interrupted:
        return ExitCode.INTERRUPTED
    if result.stop_reason in _TROUBLE:
        return ExitCode.INCOMPLETE if result.hits else ExitCode.TARGET
    open_question = result.accused is None and any(
        site.judgement in (Judgement.SUSPECTED, Judgement.TOO_FEW) for site in result.sites
    )
    if not result.hits or result.completeness.gaps or open_question:
        return ExitCode.INCOMPLETE
    return ExitCode.DONE
