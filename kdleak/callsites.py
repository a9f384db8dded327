"""Who holds the memory: hits aggregated by call site and by stack, frees paired by address.

A block belongs to the site that allocated it; whoever frees it, the free cancels that block.
What cannot be paired is counted apart and never turned into an accusation. The rules of the
verdict are in ``kdleak.verdict``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, Iterable, List, Optional, Tuple

from kdleak.allocator_frames import blame_index, call_site_index, kernel_addresses
from kdleak.model import Frame, Hit, HitKind, Stack
from kdleak.result import CallSite, Judgement, Pairing, SiteProgress, StackUse
from kdleak.verdict import Evidence, SiteFacts, judge

OLD_FACTOR = 4.0
"""A block older than this many times the longest life seen at its site is not merely in use."""

_RANK = {
    Judgement.ACCUSED: 0,
    Judgement.SUSPECTED: 1,
    Judgement.TOO_FEW: 2,
    Judgement.CLEARED: 2,
    Judgement.FREES_ONLY: 3,
}
# A block in use may be larger than all that leaked: what is accused still comes first.

LEAST_AGE = 1.0
"""Seconds a block must have stayed where nothing allocated beside it was ever seen freed."""

_StackKey = Tuple[int, ...]


@dataclass
class _Site:
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
    longest_life: Optional[float] = None
    stacks: Dict[_StackKey, int] = field(default_factory=dict)


@dataclass
class _StackTally:
    stack: Stack
    site: int
    allocs: int = 0
    frees: int = 0
    outstanding: int = 0
    outstanding_bytes: int = 0


@dataclass(frozen=True)
class _Live:
    """A block seen allocated and not seen freed."""

    site: int
    stack: _StackKey
    size: Optional[int]
    at: float


class Ledger:
    """Books hits as they come; every hit costs the same small time, however many there were.

    Args:
        pointer_size: bytes, 4 or 8; tells kernel frames from user frames.
    """

    def __init__(self, pointer_size: int) -> None:
        self._pointer_size = pointer_size
        self._sites: Dict[int, _Site] = {}
        self._stacks: Dict[_StackKey, _StackTally] = {}
        self._live: Dict[int, _Live] = {}
        self._out_of_sight: Dict[int, int] = {}
        self._paired = 0
        self._older = 0
        self._frees_unaddressed = 0
        self.allocs = 0
        self.frees = 0

    @property
    def hits(self) -> int:
        """Hits booked."""
        return self.allocs + self.frees

    def add(self, hit: Hit) -> None:
        """Book one hit."""
        key = kernel_addresses(hit.stack, self._pointer_size) or (0,)
        frame = hit.stack.frames[call_site_index(hit.stack)]
        site = self._sites.get(frame.address)
        if site is None:
            site = self._sites[frame.address] = _Site(frame)
        tally = self._stacks.get(key)
        if tally is None:
            tally = self._stacks[key] = _StackTally(hit.stack, frame.address)
        site.stacks[key] = site.stacks.get(key, 0) + 1
        if hit.block.size is None:
            site.unsized += 1
        if hit.kind is HitKind.ALLOC:
            self._add_alloc(hit, site, tally, key)
        else:
            self._add_free(hit, site, tally)

    def _add_alloc(self, hit: Hit, site: _Site, tally: _StackTally, key: _StackKey) -> None:
        self.allocs += 1
        site.allocs += 1
        tally.allocs += 1
        site.bytes_allocated += hit.block.size or 0
        if not hit.block.address:
            site.unaddressed += 1
            return
        self._out_of_sight.pop(hit.block.address, None)
        before = self._live.pop(hit.block.address, None)
        if before is not None:
            # Handed out again, so it was freed where we did not see it.
            self._forget(before).replaced += 1
        self._live[hit.block.address] = _Live(site.frame.address, key, hit.block.size, hit.at)
        for counter in (site, tally):
            counter.outstanding += 1
            counter.outstanding_bytes += hit.block.size or 0

    def _add_free(self, hit: Hit, site: _Site, tally: _StackTally) -> None:
        self.frees += 1
        site.frees += 1
        tally.frees += 1
        live = self._live.pop(hit.block.address, None) if hit.block.address else None
        size = hit.block.size
        if live is not None and size is None:
            size = live.size
        site.bytes_freed += size or 0
        if live is not None:
            self._paired += 1
            owner = self._forget(live)
            owner.returned += 1
            life = max(0.0, hit.at - live.at)
            owner.longest_life = max(owner.longest_life or 0.0, life)
        elif hit.block.address in self._out_of_sight:
            owner = self._sites[self._out_of_sight.pop(hit.block.address)]
            owner.unwatched -= 1
            owner.returned += 1
        elif hit.block.address:
            self._older += 1
        else:
            self._frees_unaddressed += 1

    def _forget(self, live: _Live) -> _Site:
        owner = self._sites[live.site]
        for counter in (owner, self._stacks[live.stack]):
            counter.outstanding -= 1
            counter.outstanding_bytes -= live.size or 0
        return owner

    def pause(self, now: float) -> None:
        """Note that the tag is disarmed for a while: frees will go unseen.

        Blocks no older than what is allocated at their site usually lives are in use and will
        be freed unseen: they go out of sight and count for nothing from here on.

        Args:
            now: on the scale of ``Hit.at``.
        """
        for address, live in list(self._live.items()):
            longest = self._sites[live.site].longest_life
            if longest is not None and now - live.at <= OLD_FACTOR * longest:
                del self._live[address]
                self._forget(live).unwatched += 1
                self._out_of_sight[address] = live.site

    def pairing(self) -> Pairing:
        """How well frees could be matched to allocations so far."""
        sites = self._sites.values()
        return Pairing(
            paired=self._paired,
            frees_of_older=self._older,
            frees_unaddressed=self._frees_unaddressed,
            allocs_unaddressed=sum(site.unaddressed for site in sites),
            replaced=sum(site.replaced for site in sites),
            unwatched=sum(site.unwatched for site in sites),
            outstanding=sum(site.outstanding for site in sites),
            outstanding_bytes=sum(site.outstanding_bytes for site in sites),
        )

    def busiest(self, count: int) -> Tuple[SiteProgress, ...]:
        """The sites that hold most, for a live view."""
        return tuple(
            SiteProgress(
                str(site.frame.symbol), site.allocs, site.outstanding, site.outstanding_bytes
            )
            for site in self._ordered()[:count]
        )

    def stacks(self) -> Tuple[StackUse, ...]:
        """Distinct kernel stacks, most outstanding bytes first."""
        ordered = sorted(
            self._stacks.items(),
            key=lambda item: (
                -item[1].outstanding_bytes,
                -item[1].outstanding,
                -item[1].allocs,
                item[0],
            ),
        )
        return tuple(
            StackUse(
                tally.stack,
                tally.site,
                tally.allocs,
                tally.frees,
                tally.outstanding,
                tally.outstanding_bytes,
            )
            for _, tally in ordered
        )

    def sites(self, now: float, share_watched: float = 1.0) -> Tuple[CallSite, ...]:
        """All call sites with their judgement: accused first, then those that hold most.

        Args:
            now: end of the watch, on the scale of ``Hit.at``.
            share_watched: part of the hunt during which the tag was armed, 0 to 1.
        """
        old: Dict[int, int] = {}
        unsized: Dict[int, int] = {}
        for live in self._live.values():
            owner = self._sites[live.site]
            life = owner.longest_life
            if now - live.at > (LEAST_AGE if life is None else OLD_FACTOR * life):
                old[live.site] = old.get(live.site, 0) + 1
            if live.size is None:
                unsized[live.site] = unsized.get(live.site, 0) + 1
        evidence = Evidence(self.pairing(), share_watched)
        finished = [
            self._finished(
                site, old.get(site.frame.address, 0), unsized.get(site.frame.address, 0), evidence
            )
            for site in self._ordered()
            if site.stacks  # none where an interruption cut the booking of its first hit off
        ]
        return tuple(sorted(finished, key=lambda site: _RANK[site.judgement]))

    def _finished(self, site: _Site, old: int, unsized: int, evidence: Evidence) -> CallSite:
        common = min(site.stacks, key=lambda key: (-site.stacks[key], key))
        stack = self._stacks[common].stack
        judgement, sentence = judge(
            SiteFacts(
                allocs=site.allocs,
                frees=site.frees,
                unaddressed=site.unaddressed,
                unwatched=site.unwatched,
                returned=site.returned,
                replaced=site.replaced,
                outstanding=site.outstanding,
                outstanding_old=old,
                longest_life=site.longest_life,
            ),
            evidence,
        )
        return CallSite(
            frame=site.frame,
            blame=stack.frames[blame_index(stack)],
            stack=stack,
            distinct_stacks=len(site.stacks),
            allocs=site.allocs,
            frees=site.frees,
            bytes_allocated=site.bytes_allocated,
            bytes_freed=site.bytes_freed,
            unsized=site.unsized,
            unaddressed=site.unaddressed,
            unwatched=site.unwatched,
            returned=site.returned,
            replaced=site.replaced,
            outstanding=site.outstanding,
            outstanding_bytes=site.outstanding_bytes,
            outstanding_unsized=unsized,
            outstanding_old=old,
            longest_life=site.longest_life,
            judgement=judgement,
            sentence=sentence,
        )

    def _ordered(self) -> List[_Site]:
        return sorted(
            self._sites.values(),
            key=lambda site: (
                site.allocs == 0,
                -site.outstanding_bytes,
                -site.outstanding,
                -(site.allocs + site.frees),
                site.frame.address,
            ),
        )


def aggregate(
    hits: Iterable[Hit], pointer_size: int, now: float, share_watched: float = 1.0
) -> Tuple[Tuple[CallSite, ...], Tuple[StackUse, ...], Pairing]:
    """Book a whole list of hits: call sites, stacks and how well frees were paired."""
    ledger = Ledger(pointer_size)
    for hit in hits:
        ledger.add(hit)
    return ledger.sites(now, share_watched), ledger.stacks(), ledger.pairing()
