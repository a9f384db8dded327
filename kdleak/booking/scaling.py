"""From bursts to the whole hunt: a sampled tag's figures with their error bars.

While the tag is armed every hit is seen, so the bursts are a cluster sample of the hunt. For each
call site two things are estimated from them:

- how many blocks it allocated in all: its part of the allocations seen, times those of the whole
  hunt, which the kernel's own counters tell; without them nothing is scaled, running time only
  stands in where shares are estimated;
- which part of them stays. A burst often ends before a block in use is freed, so the lives seen
  are cut off; the life-table (Kaplan-Meier) estimator takes account of that. The age of a block is
  counted in hits.

Blocks that live longer than a burst would look as if they stayed. Their frees come in later
bursts, as frees of blocks not seen allocated: more of these than blocks in use at the ends of
bursts explain are taken off, and widen the error. Such a free is put down to call sites as the
frees at the same place of blocks of the same size were that could be paired; what cannot be put
down to any widens the error bars of all. The intervals come from the differences between bursts
(W. G. Cochran, "Sampling Techniques", ratio estimation), and are never narrower than as many
independent events have (binomial).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Dict, Iterable, List, Optional, Tuple

from kdleak.booking.confidence import student_t95
from kdleak.result import Interval, Scaled, Scaling

FEWEST_BURSTS = 3
"""Bursts with allocations below which no error can be told."""

_MOST_KEYS = 4096

FreeKey = Tuple[int, Optional[int]]
"""Call site of a free and size of the block: what tells frees of one kind from another."""

InUse = Tuple[int, int, Optional[int]]
"""A block of the burst that ends, not freed yet: call site, age in hits, size."""


@dataclass(frozen=True)
class Whole:
    """The size of the whole hunt.

    Attributes:
        seconds_running: how long the target ran, first arming to last disarming.
        allocs: allocations by the kernel's own counters; None where they are not known.
        frees: frees by the same counters.
    """

    seconds_running: float
    allocs: Optional[int] = None
    frees: Optional[int] = None


def class_of(hits: int) -> int:
    """Ages in hits fall into classes: one each for the shortest, then eight to a doubling."""
    return hits if hits < 8 else int(8 * math.log2(hits)) - 16


class LifeTable:
    """How long blocks live, in hits, where many lives are cut off by the end of a burst."""

    def __init__(self) -> None:
        self._ended: Dict[int, int] = {}
        self._cut: Dict[int, int] = {}

    def ended(self, hits: int) -> None:
        """A block was freed at that age."""
        place = class_of(hits)
        self._ended[place] = self._ended.get(place, 0) + 1

    def cut(self, hits: int) -> None:
        """A block was still there at that age when the burst ended."""
        place = class_of(hits)
        self._cut[place] = self._cut.get(place, 0) + 1

    def curve(self) -> Survival:
        """The part of blocks that outlives each age."""
        left = float(sum(self._ended.values()) + sum(self._cut.values()))
        share, spread, outlived = 1.0, 0.0, left
        places: List[int] = []
        shares: List[float] = []
        for place in sorted({*self._ended, *self._cut}):
            ended, cut = self._ended.get(place, 0), self._cut.get(place, 0)
            at_risk = left - cut / 2
            if ended and at_risk > 0:
                share *= max(0.0, 1 - ended / at_risk)
                if at_risk > ended:
                    spread += ended / (at_risk * (at_risk - ended))
            left -= ended + cut
            if ended:
                outlived = left
            places.append(place)
            shares.append(share)
        greenwood = share * share * spread
        # Where a curve ends on a few blocks, Greenwood's formula makes too little of it.
        peto = share * share * (1 - share) / max(1.0, outlived)
        return Survival(tuple(places), tuple(shares), max(greenwood, peto))


@dataclass(frozen=True)
class Survival:
    """A survival curve.

    Attributes:
        places: classes of age, ascending.
        shares: part of blocks that outlives each.
        variance: of the last of them (the larger one of Greenwood's and Peto's).
    """

    places: Tuple[int, ...]
    shares: Tuple[float, ...]
    variance: float

    @property
    def stays(self) -> float:
        """Part of blocks that outlives all ages seen."""
        return self.shares[-1] if self.shares else 1.0

    def stays_given(self, hits: int) -> float:
        """The same among blocks that have reached an age."""
        place = class_of(hits)
        outlived = 1.0
        for other, share in zip(self.places, self.shares):
            if other > place:
                break
            outlived = share
        return self.stays / outlived if outlived > 0 else 0.0


@dataclass
class _Measure:
    """Sums over bursts of one measure x of their size."""

    x: float = 0.0
    xx: float = 0.0

    def add(self, x: float) -> None:
        self.x += x
        self.xx += x * x


@dataclass
class _Sums:
    """Sums over bursts of a figure y and of its products with the sizes."""

    y: float = 0.0
    yy: float = 0.0
    y_allocs: float = 0.0
    y_seconds: float = 0.0

    def add(self, y: float, allocs: float, seconds: float) -> None:
        self.y += y
        self.yy += y * y
        self.y_allocs += y * allocs
        self.y_seconds += y * seconds


@dataclass
class _Site:
    lives: LifeTable = field(default_factory=LifeTable)
    blocks: _Sums = field(default_factory=_Sums)
    bytes: _Sums = field(default_factory=_Sums)
    allocs: int = 0
    squares: int = 0  # of the sizes in bytes
    strange: float = 0.0  # frees of blocks not seen allocated in the same burst
    expected: float = 0.0  # of those, frees of blocks in use when a burst ended
    in_burst: int = 0  # allocations of the present burst


class BurstBooks:
    """Books call sites burst by burst; memory grows with call sites only."""

    def __init__(self) -> None:
        self._sites: Dict[int, _Site] = {}
        self._paired: Dict[FreeKey, Dict[int, int]] = {}
        self._strange: Dict[FreeKey, int] = {}
        self._nowhere = 0
        self._allocs = 0
        self._frees = 0  # of all bursts
        self._bursts = 0
        self._size_allocs, self._size_seconds = _Measure(), _Measure()

    def alloc(self, site: int, size: Optional[int]) -> None:
        """An allocation, at a call site, of a block whose address is known."""
        self._allocs += 1
        known = self._sites.get(site)
        if known is None:
            known = self._sites[site] = _Site()
        known.in_burst += 1
        known.allocs += 1
        known.squares += (size or 0) ** 2

    def free(self, site: int, key: FreeKey, age: Optional[int]) -> None:
        """A free of a block that was seen allocated.

        Args:
            site: where it was allocated.
            key: what kind of free it is.
            age: in hits; None when it was allocated in an earlier burst.
        """
        self._frees += 1
        owners = self._paired.get(key)
        if owners is None:
            if len(self._paired) >= _MOST_KEYS:
                self._paired.pop(next(iter(self._paired)))
            owners = self._paired[key] = {}
        owners[site] = owners.get(site, 0) + 1
        if age is None:
            self._sites[site].strange += 1
        else:
            self._sites[site].lives.ended(age)

    def strange_free(self, key: FreeKey) -> None:
        """A free of a block that was not seen allocated."""
        self._frees += 1
        if key in self._strange or len(self._strange) < _MOST_KEYS:
            self._strange[key] = self._strange.get(key, 0) + 1
        else:
            self._nowhere += 1

    def end_burst(self, seconds_running: float, in_use: Iterable[InUse]) -> None:
        """Close a burst.

        Args:
            seconds_running: how long the target ran in it.
            in_use: its blocks that have not been freed.
        """
        self._size_seconds.add(seconds_running)
        if not self._allocs:
            return
        still: Dict[int, List[InUse]] = {}
        for block in in_use:
            still.setdefault(block[0], []).append(block)
            self._sites[block[0]].lives.cut(block[1])
        for address, site in self._sites.items():
            if not site.in_burst:
                continue
            curve = site.lives.curve()
            blocks = size = 0.0
            for _, age, charged in still.get(address, ()):
                stays = curve.stays_given(age)
                blocks += stays
                size += stays * (charged or 0)
                site.expected += 1 - stays
            site.blocks.add(blocks, self._allocs, seconds_running)
            site.bytes.add(size, self._allocs, seconds_running)
            site.in_burst = 0
        self._size_allocs.add(self._allocs)
        self._bursts += 1
        self._allocs = 0

    def scaler(self, whole: Whole) -> Optional[Scaler]:
        """What scales call sites; None when it would say nothing: too few bursts."""
        if self._bursts < FEWEST_BURSTS:
            return None
        by_allocs = whole.allocs is not None and whole.allocs >= self._size_allocs.x
        size = self._size_allocs if by_allocs else self._size_seconds
        in_all = float(whole.allocs or 0) if by_allocs else whole.seconds_running
        if size.x <= 0 or in_all < size.x:
            return None
        factor = in_all / size.x
        # Bursts begin at clock ticks, as much work does: they may see too many or too few frees.
        frees = factor
        if by_allocs and whole.frees is not None and whole.frees >= self._frees > 0:
            frees = whole.frees / self._frees
        strange = {address: site.strange for address, site in self._sites.items()}
        lost = self._nowhere
        for key, count in self._strange.items():
            owners = self._paired.get(key)
            if owners is None:
                lost += count
                continue
            pairs = sum(owners.values())
            for address, share in owners.items():
                strange[address] += count * share / pairs
        weight = frees / factor
        strange = {address: count * weight for address, count in strange.items()}
        return Scaler(self._sites, strange, size, in_all, self._bursts, by_allocs, lost)


@dataclass(frozen=True)
class Scaler:
    """Scales the figures of call sites; made by ``BurstBooks.scaler``."""

    _sites: Dict[int, _Site]
    _strange: Dict[int, float]
    _size: _Measure
    _in_all: float
    _bursts: int
    _by_allocs: bool
    _lost: int

    @property
    def factor(self) -> float:
        """The whole, in multiples of what was seen."""
        return self._in_all / self._size.x

    @property
    def counted(self) -> bool:
        """Whether the kernel's counters tell the whole.

        By running time it is a guess no error bar covers: bursts end with a hit, so they lie where
        hits are dense, and work that waited while the target stood still is done in them.
        """
        return self._by_allocs

    def scaling(self) -> Scaling:
        """The method, and all call sites together."""
        seen, whole = self._size.x, self._in_all
        what = f"{seen:,.0f} of {whole:,.0f} allocations that the kernel counted for the tag"
        if not self._by_allocs:
            what = f"{seen:,.1f} of {whole:,.1f} s that the target ran"
        method = (
            f"the part of blocks that stays (life table), scaled from {what}; 95 % intervals from "
            f"the differences between {self._bursts} bursts"
        )
        parts = [part for part in map(self.of, self._sites) if part is not None]
        return Scaling(method, self.factor, self._bursts, self._lost, _sum(parts))

    def of(self, address: int) -> Optional[Scaled]:
        """One call site; nothing where no block of it was followed."""
        site = self._sites.get(address)
        if site is None:
            return None
        curve = site.lives.curve()
        excess = max(0.0, self._strange[address] - site.expected)
        # Root of the mean square: some large blocks count for more than their number.
        charged = math.sqrt(site.squares / site.allocs) if site.allocs else 0.0
        mean = site.bytes.y / site.blocks.y if site.blocks.y else charged
        blocks, blocks_within = self._estimate(site, site.blocks, curve, excess, (1.0, 1.0))
        size, size_within = self._estimate(site, site.bytes, curve, excess, (mean, charged))
        return Scaled(blocks, blocks_within, size, size_within)

    def share_of(self, address: int) -> Optional[Interval]:
        """95 % interval of the part of a call site's blocks that stays, 0 to 1."""
        scaled = self.of(address)
        if scaled is None:
            return None
        allocs = self._sites[address].allocs * self.factor
        low, high = (
            min(1.0, max(0.0, end / allocs))
            for end in (scaled.blocks_within.low, scaled.blocks_within.high)
        )
        return Interval(low, high)

    def _estimate(
        self,
        site: _Site,
        sums: _Sums,
        curve: Survival,
        excess: float,
        sizes: Tuple[float, float],
    ) -> Tuple[float, Interval]:
        """The figure and its interval; ``sizes`` are what one block counts, mean and largely."""
        size, factor, bursts = self._size, self.factor, self._bursts
        mean, charged = sizes
        ratio = sums.y / size.x
        product = sums.y_allocs if self._by_allocs else sums.y_seconds
        spread = max(0.0, sums.yy - 2 * ratio * product + ratio * ratio * size.xx)
        # The curve is not known better than the lives seen allow.
        curved = curve.variance * (site.allocs * charged) ** 2
        # As many independent choices to stay have at least this variance (binomial); where none
        # was seen to, there may still be one.
        least = max(site.blocks.y * (1 - curve.stays) + excess, 1.0) * charged**2
        variance = max(spread * bursts / (bursts - 1), curved, least)
        half = student_t95(bursts - 1) * factor * math.sqrt(variance * (1 - 1 / factor))
        middle = (sums.y - excess * mean) * factor
        return middle, Interval(middle - half - self._lost * mean * factor, middle + half)


def _sum(parts: List[Scaled]) -> Scaled:
    """Together; errors of different call sites are taken for independent."""

    def together(middles: List[float], within: List[Interval]) -> Tuple[float, Interval]:
        middle = sum(middles)
        below = math.sqrt(sum((m - w.low) ** 2 for m, w in zip(middles, within)))
        above = math.sqrt(sum((w.high - m) ** 2 for m, w in zip(middles, within)))
        return middle, Interval(middle - below, middle + above)

    blocks = together([part.blocks for part in parts], [part.blocks_within for part in parts])
    size = together([part.bytes for part in parts], [part.bytes_within for part in parts])
    return Scaled(blocks[0], blocks[1], size[0], size[1])
