"""The hunt that a log shows: its hits by call site, and what can be said about them.

A log gives no time of a hit and hardly ever the address of its block, so frees cannot be matched
to allocations: nothing is accused here. Hits whose kind or call site the log does not show are
counted apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Dict, List, Optional, Sequence, Set, Tuple

from kdleak.callsites import Ledger
from kdleak.dialect.log import DebuggerLog
from kdleak.logged.hits import LoggedHit, addresses_of, hits_of
from kdleak.logged.tag_value import LoggedTagValue, tag_value_of
from kdleak.model import Block, Frame, Hit, HitKind, Stack
from kdleak.quantities import amount
from kdleak.result import CallSite, Judgement, Pairing
from kdleak.tags import PoolTag
from kdleak.verdict import MIN_SAMPLE, Evidence, SiteFacts, judge


@dataclass(frozen=True)
class LoggedSite:
    """A call site in a log.

    Attributes:
        frame: first frame outside the allocator; address 0 where only its name was printed
            (``kc``): several places in one function may be in it then.
        blame: first frame outside the allocator and outside framework layers.
        stack: the commonest stack through it.
        distinct_stacks: number of different ones, as printed.
        allocs: allocations seen here.
        frees: frees seen here.
        judgement: SUSPECTED, TOO_FEW or FREES_ONLY; a log accuses and clears nobody.
        sentence: why, in plain words.
    """

    frame: Frame
    blame: Frame
    stack: Stack
    distinct_stacks: int
    allocs: int
    frees: int
    judgement: Judgement
    sentence: str


@dataclass(frozen=True)
class LoggedHunt:
    """All hits of one tag in a log.

    Attributes:
        tag: what was armed, or compared by a breakpoint; None where the log does not tell.
        hits: in their order.
        sites: those that allocate most first, those that only free last.
        allocs: hits that are allocations.
        frees: hits that are frees.
        unknown_kind: hits of which the log shows neither.
        without_site: allocations and frees whose call site is not shown.
        tag_value: what nt!PoolHitTag held through the whole log.
        by_breakpoint: the hits are those of a breakpoint that compares the tag.
        verdict: the answer in words, one sentence per item.
    """

    tag: Optional[PoolTag]
    hits: Tuple[LoggedHit, ...]
    sites: Tuple[LoggedSite, ...]
    allocs: int
    frees: int
    unknown_kind: int
    without_site: int
    tag_value: LoggedTagValue
    by_breakpoint: bool
    verdict: Tuple[str, ...]


def hunt_of_log(log: DebuggerLog, tag: Optional[PoolTag] = None) -> Optional[LoggedHunt]:
    """The hunt of one tag in a log, of the tag with most hits if None; None without a hunt."""
    hunts = hunts_of_log(log)
    if tag is not None:
        return next((hunt for hunt in hunts if hunt.tag == tag), None)
    return max(hunts, key=lambda hunt: len(hunt.hits), default=None)


def hunts_of_log(log: DebuggerLog) -> Tuple[LoggedHunt, ...]:
    """The hunts of a log, one for each tag armed, in the order of the log."""
    addresses = addresses_of(log)
    value = tag_value_of(log.pool_hit_tag)
    hits_of_tag: Dict[Optional[PoolTag], List[LoggedHit]] = {tag: [] for tag in value.armed}
    for breakpoint_ in log.session.breakpoints:
        hits_of_tag.setdefault(breakpoint_.tag, [])
    for hit in hits_of(log, addresses):
        hits_of_tag.setdefault(hit.tag, []).append(hit)
    return tuple(
        _hunt(tag, hits, value, addresses.pointer_size) for tag, hits in hits_of_tag.items()
    )


def _hunt(
    tag: Optional[PoolTag], hits: Sequence[LoggedHit], value: LoggedTagValue, pointer_size: int
) -> LoggedHunt:
    books = _Books(pointer_size)
    for hit in hits:
        books.add(hit)
    sites = books.sites()
    allocs = sum(hit.kind is HitKind.ALLOC for hit in hits)
    frees = sum(hit.kind is HitKind.FREE for hit in hits)
    hunt = LoggedHunt(
        tag,
        tuple(hits),
        sites,
        allocs,
        frees,
        len(hits) - allocs - frees,
        allocs + frees - sum(site.allocs + site.frees for site in sites),
        value,
        tag is not None and tag not in value.armed,
        (),
    )
    return replace(hunt, verdict=_verdict(hunt))


class _Books:
    """Hits by call site: by address, and apart from those by name where no address was printed."""

    def __init__(self, pointer_size: int) -> None:
        self._pointer_size = pointer_size
        self._ledger = Ledger(pointer_size, by_blame=False)
        self._named: Dict[str, Ledger] = {}
        self._unpaired_frees = 0
        self._stacks: Dict[str, Set[str]] = {}

    def add(self, hit: LoggedHit) -> None:
        if hit.kind is not HitKind.ALLOC:
            # A hit of unknown kind may have been a free, and one without a stack is one.
            self._unpaired_frees += 1
        if hit.kind is None or hit.site is None:
            return
        ledger = self._ledger
        if not hit.site.address:
            name = str(hit.site.symbol)
            ledger = self._named.setdefault(name, Ledger(self._pointer_size, by_blame=False))
            self._stacks.setdefault(name, set()).add(str(hit.stack))
        block = Block(hit.block or 0)
        ledger.add(Hit(hit.number, hit.kind, hit.stack, 0.0, hit.processor or 0, 0, block))

    def sites(self) -> Tuple[LoggedSite, ...]:
        found = [self._judged(site, site.distinct_stacks) for site in self._ledger.sites(0.0)]
        for name, ledger in self._named.items():
            found += [self._judged(site, len(self._stacks[name])) for site in ledger.sites(0.0)]
        return tuple(sorted(found, key=_order))

    def _judged(self, site: CallSite, distinct_stacks: int) -> LoggedSite:
        judgement, sentence = self._judge(site)
        return LoggedSite(
            site.frame,
            site.blame,
            site.stack,
            distinct_stacks,
            site.allocs,
            site.frees,
            judgement,
            sentence,
        )

    def _judge(self, site: CallSite) -> Tuple[Judgement, str]:
        if 0 < site.allocs < MIN_SAMPLE:
            seen = amount(site.allocs, "allocation")
            return (
                Judgement.TOO_FEW,
                f"{seen} in this log: too few to say anything (at least {MIN_SAMPLE} are needed).",
            )
        facts = SiteFacts(
            allocs=site.allocs,
            frees=site.frees,
            unaddressed=site.allocs,
            unwatched=0,
            returned=0,
            replaced=0,
            outstanding=0,
            outstanding_old=0,
            longest_life=None,
        )
        return judge(facts, Evidence(Pairing(frees_unaddressed=self._unpaired_frees)))


def _order(site: LoggedSite) -> Tuple[bool, bool, int, int, str]:
    return (
        site.judgement is not Judgement.SUSPECTED,
        site.allocs == 0,
        -site.allocs,
        -site.frees,
        f"{site.frame.address:016x} {site.frame.symbol}",
    )


def _verdict(hunt: LoggedHunt) -> Tuple[str, ...]:
    tag = f"tag '{hunt.tag}'" if hunt.tag is not None else "an unknown tag"
    if not hunt.hits:
        return (f"No hit of {tag} is in this log.",)
    parts = [f"{amount(hunt.allocs, 'allocation')}", f"{amount(hunt.frees, 'free')}"]
    if hunt.unknown_kind:
        parts.append(f"{hunt.unknown_kind:,} of which the log does not tell")
    said = [f"{amount(len(hunt.hits), 'hit')} of {tag}: {', '.join(parts)}."]
    suspected = [site for site in hunt.sites if site.judgement is Judgement.SUSPECTED]
    if suspected:
        said.append(f"Most suspicious: {suspected[0].frame.symbol}: {suspected[0].sentence}")
    elif hunt.allocs:
        said.append(
            "No call site can be accused: this log does not show which block each hit is about, "
            "so frees cannot be matched to allocations."
        )
    else:
        said.append("No allocation was seen, so nothing can be said about who allocates.")
    if hunt.without_site:
        said.append(
            f"At {amount(hunt.without_site, 'hit')} of known kind no stack shows who called the "
            "allocator."
        )
    return tuple(said)
