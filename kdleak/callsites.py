"""Who holds the memory: hits aggregated by call site and by stack, frees paired by address.

A block belongs to the site that allocated it; whoever frees it, the free cancels that block.
A call site is the first frame outside the allocator together with the frame to blame: what a
framework allocates for one driver is kept apart from what it allocates for another.
What cannot be paired is counted apart and never turned into an accusation. The rules of the
verdict are in ``kdleak.verdict``, what scales a sampled tag to the whole hunt in
``kdleak.booking.scaling``. Memory grows with call sites, distinct stacks and live blocks, not with
hits.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

from kdleak.allocator_frames import call_site_index, kernel_addresses
from kdleak.blaming.blame import blame
from kdleak.blaming.frameworks import Frameworks
from kdleak.booking.growth_series import Figures, SeriesBook
from kdleak.booking.scaling import BurstBooks, Scaler, Whole
from kdleak.booking.tallies import OLD_FACTOR, Aged, SiteTally, StackKey, StackTally, finished_site
from kdleak.model import Hit, HitKind
from kdleak.result import (
    CallSite,
    Judgement,
    Pairing,
    Scaling,
    SeriesPoint,
    SiteProgress,
    StackUse,
)
from kdleak.verdict import Evidence

_RANK = {
    Judgement.ACCUSED: 0,
    Judgement.SUSPECTED: 1,
    Judgement.TOO_FEW: 2,
    Judgement.LEVELLED_OFF: 2,
    Judgement.CLEARED: 2,
    Judgement.FREES_ONLY: 3,
}
# A block in use may be larger than all that leaked: what is accused still comes first.

_MOST_OUT_OF_SIGHT = 100_000
"""Blocks remembered that went out of sight; most of them are never heard of again."""

_MOST_STRETCHES = 512

_Live = Tuple[int, StackKey, Optional[int], float, int]
"""A block seen allocated and not seen freed: key of its call site, stack, size, time and number of
the hit."""

_ALL = -1
"""Stands for all call sites together; no key."""


class Ledger:
    """Books hits as they come; every hit costs the same small time, however many there were.

    Args:
        pointer_size: bytes, 4 or 8; tells kernel frames from user frames.
        min_age: seconds beyond which a block still there counts as old. None takes, for each call
            site, ``OLD_FACTOR`` times the longest life seen there (of many, the second longest):
            a multiple of what is normal at that place, whatever is normal there. Where no block
            was seen freed there is no such measure, and ``LEAST_AGE`` is taken.
        frameworks: layers that allocate for others; None for the built-in list.
        by_blame: keep allocations of one place apart that are made on behalf of different
            callers; else each place is one call site.
    """

    def __init__(
        self,
        pointer_size: int,
        min_age: Optional[float] = None,
        frameworks: Optional[Frameworks] = None,
        *,
        by_blame: bool = True,
    ) -> None:
        self._pointer_size = pointer_size
        self._frameworks = frameworks
        self._by_blame = by_blame
        self._min_age = min_age
        self._series = SeriesBook()
        self._bursts = BurstBooks()
        self._rested = 0.0  # seconds disarmed so far
        self._resting_since: Optional[float] = None
        self._armed_since = 0.0
        self._stretches: List[Tuple[float, float]] = []
        self._pauses = 0
        self._burst_began = 0  # hits booked before the present burst
        self._frees_after_pause = 0
        self._sites: Dict[int, SiteTally] = {}
        self._stacks: Dict[StackKey, StackTally] = {}
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
        watched = hit.at - self._rested
        if self._series.is_due(watched):
            self._series.mark(hit.at, watched, self._figures)
        key = kernel_addresses(hit.stack, self._pointer_size) or (0,)
        tally = self._stacks.get(key)
        if tally is None or key == (0,):
            site = self._site_of(hit)
            if tally is None:
                tally = self._stacks[key] = StackTally(hit.stack, site.key)
        else:
            site = self._sites[tally.site]
        site.stacks[key] = site.stacks.get(key, 0) + 1
        if hit.block.size is None:
            site.unsized += 1
        if hit.kind is HitKind.ALLOC:
            self._add_alloc(hit, site, tally, key)
        else:
            self._add_free(hit, site, tally)

    def _site_of(self, hit: Hit) -> SiteTally:
        frames = hit.stack.frames
        frame = frames[call_site_index(hit.stack)]
        key = frame.address
        if self._by_blame and hit.kind is HitKind.ALLOC:
            blamed = frames[blame(hit.stack, self._frameworks).index].address
            # One number for both, as addresses are in everything that is kept per call site.
            key |= blamed << 64 if blamed != frame.address else 0
        site = self._sites.get(key)
        if site is None:
            site = self._sites[key] = SiteTally(key, frame)
        return site

    def _figures(self) -> Dict[int, Figures]:
        return {
            **{
                address: (site.outstanding, site.outstanding_bytes, site.allocs)
                for address, site in self._sites.items()
                if site.allocs
            },
            _ALL: self._outstanding(),
        }

    def _outstanding(self) -> Figures:
        sites = self._sites.values()
        return (
            sum(site.outstanding for site in sites),
            sum(site.outstanding_bytes for site in sites),
            self.allocs,
        )

    def _add_alloc(self, hit: Hit, site: SiteTally, tally: StackTally, key: StackKey) -> None:
        self.allocs += 1
        site.allocs += 1
        tally.allocs += 1
        size = hit.block.size
        site.bytes_allocated += size or 0
        address = hit.block.address
        if not address:
            site.unaddressed += 1  # and scaled as those are that could be followed
            return
        self._bursts.alloc(site.key, size)
        self._out_of_sight.pop(address, None)
        before = self._live.pop(address, None)
        if before is not None:
            # Handed out again, so it was freed where we did not see it.
            self._forget(before).replaced += 1
        self._live[address] = (site.key, key, size, hit.at, self.hits)
        site.outstanding += 1
        tally.outstanding += 1
        site.outstanding_bytes += size or 0
        tally.outstanding_bytes += size or 0

    def _add_free(self, hit: Hit, site: SiteTally, tally: StackTally) -> None:
        self.frees += 1
        site.frees += 1
        tally.frees += 1
        address, size = hit.block.address, hit.block.size
        live = self._live.pop(address, None) if address else None
        if live is not None and size is None:
            size = live[2]
        site.bytes_freed += size or 0
        kind = site.key, size
        if live is not None:
            self._paired += 1
            owner = self._forget(live)
            owner.returned += 1
            owner.lived(max(0.0, hit.at - live[3]))
            age = self.hits - live[4] if live[4] > self._burst_began else None
            self._bursts.free(live[0], kind, age)
        elif address in self._out_of_sight:
            origin = self._out_of_sight.pop(address)
            owner = self._sites[origin]
            owner.unwatched -= 1
            owner.returned += 1
            self._bursts.free(origin, kind, None)
        else:
            self._bursts.strange_free(kind)
            if address:
                self._older += 1
                self._frees_after_pause += self._pauses > 0
            else:
                self._frees_unaddressed += 1

    def _forget(self, live: _Live) -> SiteTally:
        owner = self._sites[live[0]]
        stack = self._stacks[live[1]]
        size = live[2] or 0
        owner.outstanding -= 1
        owner.outstanding_bytes -= size
        stack.outstanding -= 1
        stack.outstanding_bytes -= size
        return owner

    def pause(self, now: float, running: float = 0.0) -> None:
        """Note that the tag is disarmed for a while: frees will go unseen.

        Blocks no older than what is allocated at their site usually lives are in use and will
        be freed unseen: they go out of sight and count for nothing from here on.

        Args:
            now: on the scale of ``Hit.at``.
            running: seconds the target ran in the burst that ends.
        """
        self._end_stretch(now, running)
        self._pauses += 1
        for address, live in list(self._live.items()):
            usual = self._sites[live[0]].usual_life
            if usual is not None and now - live[3] <= OLD_FACTOR * usual:
                del self._live[address]
                self._forget(live).unwatched += 1
                self._out_of_sight[address] = live[0]
        while len(self._out_of_sight) > _MOST_OUT_OF_SIGHT:
            del self._out_of_sight[next(iter(self._out_of_sight))]

    def resume(self, now: float) -> None:
        """Note that the tag is armed again; ``now`` is on the scale of ``Hit.at``."""
        if self._resting_since is not None:
            self._rested += max(0.0, now - self._resting_since)
            self._resting_since = None
            self._armed_since = now

    def finish(self, now: float, running: float = 0.0) -> None:
        """Note that the watch is over; hits may still follow that were on their way.

        Args:
            now: on the scale of ``Hit.at``.
            running: seconds the target ran in the burst that ends.
        """
        self._end_stretch(now, running)

    def _end_stretch(self, now: float, running: float) -> None:
        if self._resting_since is not None:
            return
        self._catch_up(now)
        began, hits = self._burst_began, self.hits
        self._bursts.end_burst(
            running,
            (
                (site, hits - number, size)
                for site, _, size, _, number in self._live.values()
                if number > began
            ),
        )
        self._burst_began = hits
        self._resting_since = now
        if len(self._stretches) < _MOST_STRETCHES:
            self._stretches.append((self._armed_since, now))

    def _catch_up(self, now: float) -> None:
        """Nothing has changed since the last hit: that is part of the series, too."""
        watched = now - self._rested
        if self._resting_since is None and self._series.is_due(watched):
            self._series.mark(now, watched, self._figures)

    @property
    def watched(self) -> Tuple[Tuple[float, float], ...]:
        """From when to when the tag was armed, on the scale of ``Hit.at``."""
        return tuple(self._stretches)

    def series(self, now: float) -> Tuple[SeriesPoint, ...]:
        """Outstanding blocks of all call sites over the time watched."""
        self._catch_up(now)
        return self._series.series(_ALL, now, self._outstanding())

    def scaling(self, whole: Whole) -> Optional[Scaling]:
        """All call sites together, scaled to the whole hunt; see ``sites``."""
        scaler = self._scaler(whole)
        return scaler.scaling() if scaler is not None and scaler.counted else None

    def _scaler(self, whole: Optional[Whole]) -> Optional[Scaler]:
        """Nothing is scaled where the tag was never disarmed: all was seen."""
        return self._bursts.scaler(whole) if whole is not None and self._pauses else None

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
            frees_after_pause=self._frees_after_pause,
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
                self._sites[tally.site].frame.address,
                tally.allocs,
                tally.frees,
                tally.outstanding,
                tally.outstanding_bytes,
                tally.stack.frames[blame(tally.stack, self._frameworks).index].address,
            )
            for _, tally in ordered
        )

    def sites(
        self, now: float, share_watched: float = 1.0, whole: Optional[Whole] = None
    ) -> Tuple[CallSite, ...]:
        """All call sites with their judgement: accused first, then those that hold most.

        Args:
            now: end of the watch, on the scale of ``Hit.at``.
            share_watched: part of the hunt during which the tag was armed, 0 to 1.
            whole: size of the whole hunt, to scale what was sampled; None scales nothing.
        """
        self._catch_up(now)
        aged: Dict[int, Aged] = {}
        for site, _, size, at, _ in self._live.values():
            found = aged.get(site)
            if found is None:
                found = aged[site] = Aged()
            age = max(0.0, now - at)
            found.ages.append(age)
            if age > self._sites[site].old_beyond(self._min_age):
                found.old += 1
                found.old_bytes += size or 0
            if size is None:
                found.unsized += 1
        evidence = Evidence(self.pairing(), share_watched)
        scaler = self._scaler(whole)
        finished = [
            self._finished(site, aged.get(site.key, Aged()), evidence, now, scaler)
            for site in self._ordered()
            if site.stacks  # none where an interruption cut the booking of its first hit off
        ]
        return tuple(
            sorted(
                finished,
                key=lambda site: (
                    _RANK[site.judgement],
                    -site.outstanding_old_bytes if _RANK[site.judgement] < 2 else 0,
                ),
            )
        )

    def _finished(
        self,
        site: SiteTally,
        aged: Aged,
        evidence: Evidence,
        now: float,
        scaler: Optional[Scaler],
    ) -> CallSite:
        series: Tuple[SeriesPoint, ...] = ()
        if site.allocs:
            figures = site.outstanding, site.outstanding_bytes, site.allocs
            series = self._series.series(site.key, now, figures)
        stack = self._stacks[site.commonest_stack()].stack
        if not site.allocs:
            scaler = None
        return finished_site(
            site,
            stack,
            blame(stack, self._frameworks),
            aged,
            evidence,
            min_age=self._min_age,
            series=series,
            scaled=scaler.of(site.key) if scaler is not None and scaler.counted else None,
            share=scaler.share_of(site.key) if scaler is not None else None,
        )

    def _ordered(self) -> List[SiteTally]:
        return sorted(
            self._sites.values(),
            key=lambda site: (
                site.allocs == 0,
                -site.outstanding_bytes,
                -site.outstanding,
                -(site.allocs + site.frees),
                site.key,
            ),
        )
