"""From bursts to the whole hunt: a sampled tag's figures with their error bars.

While the tag is armed every hit is seen, so the bursts are a cluster sample of the hunt. The net
flow of a call site in a burst (its allocations minus the frees of its blocks, whenever they were
allocated) divided by the size of the burst is a ratio; that ratio times the size of the whole
hunt is the estimate, and the differences between bursts give its error (W. G. Cochran, "Sampling
Techniques", ratio estimation). Size means hits where the kernel's own counters tell how many there
were in all, and running time of the target elsewhere. The net flow needs no assumption about how
long blocks live: those in use at the start and at the end of a burst cancel out on average.

A free of a block that was not seen allocated is put down to call sites as the frees at the same
place of blocks of the same size were that could be paired; what cannot be put down widens the
error bars downwards. No interval is narrower than that of as many independent events (Poisson).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Dict, Optional, Tuple

from kdleak.confidence import student_t95
from kdleak.result import Interval, Scaled, Scaling

FEWEST_BURSTS = 3
"""Bursts with hits below which no error can be told."""

TOTAL = -1
"""Stands for all call sites together; no address."""

_MOST_KEYS = 4096

FreeKey = Tuple[int, Optional[int]]
"""Call site of a free and size of the block: what tells frees of one kind from another."""


@dataclass(frozen=True)
class Whole:
    """The size of the whole hunt.

    Attributes:
        seconds_running: how long the target ran, first arming to last disarming.
        hits: allocations and frees by the kernel's own counters; None where they are not known.
    """

    seconds_running: float
    hits: Optional[int] = None


@dataclass
class _Flow:
    """What one call site did in one burst."""

    blocks: float = 0.0
    bytes: float = 0.0


@dataclass
class _Size:
    """Sums over bursts of one measure x of their size."""

    x: float = 0.0
    xx: float = 0.0

    def add(self, x: float) -> None:
        self.x += x
        self.xx += x * x


@dataclass
class _Sums:
    """Sums over bursts of a flow y and of its products with the sizes."""

    y: float = 0.0
    yy: float = 0.0
    y_hits: float = 0.0
    y_seconds: float = 0.0

    def add(self, y: float, hits: float, seconds: float) -> None:
        self.y += y
        self.yy += y * y
        self.y_hits += y * hits
        self.y_seconds += y * seconds


@dataclass
class _SiteSums:
    blocks: _Sums = field(default_factory=_Sums)
    bytes: _Sums = field(default_factory=_Sums)
    allocs: int = 0
    alloc_bytes: int = 0

    @property
    def usual_size(self) -> float:
        return self.alloc_bytes / self.allocs if self.allocs else 0.0


class BurstBooks:
    """Books the flow of every call site burst by burst; memory grows with call sites only."""

    def __init__(self) -> None:
        self._flows: Dict[int, _Flow] = {}
        self._sums: Dict[int, _SiteSums] = {TOTAL: _SiteSums()}
        self._paired: Dict[FreeKey, Dict[int, int]] = {}
        self._strange: Dict[FreeKey, int] = {}
        self._pending: Dict[FreeKey, int] = {}
        self._nowhere = 0
        self._hits = 0
        self._bursts = 0
        self._size_hits, self._size_seconds = _Size(), _Size()

    def alloc(self, site: int, size: Optional[int]) -> None:
        """An allocation at a call site."""
        self._hits += 1
        self._move(site, 1.0, size)
        for key in (site, TOTAL):
            sums = self._sums.setdefault(key, _SiteSums())
            sums.allocs += 1
            sums.alloc_bytes += size or 0

    def free(self, site: int, key: FreeKey, size: Optional[int]) -> None:
        """A free of a block that was seen allocated at ``site``."""
        self._hits += 1
        owners = self._paired.get(key)
        if owners is None:
            if len(self._paired) >= _MOST_KEYS:
                self._paired.pop(next(iter(self._paired)))
            owners = self._paired[key] = {}
        owners[site] = owners.get(site, 0) + 1
        self._move(site, -1.0, size)

    def strange_free(self, key: FreeKey) -> None:
        """A free of a block that was not seen allocated."""
        self._hits += 1
        self._strange[key] = self._strange.get(key, 0) + 1

    def _move(self, site: int, blocks: float, size: Optional[int]) -> None:
        flow = self._flows.get(site)
        if flow is None:
            flow = self._flows[site] = _Flow()
        flow.blocks += blocks
        flow.bytes += blocks * (size or 0)

    def end_burst(self, seconds_running: float) -> None:
        """Close a burst.

        Args:
            seconds_running: how long the target ran in it.
        """
        self._size_seconds.add(seconds_running)
        if not self._hits:
            return
        total = _Flow()
        for key, count in self._strange.items():
            if not self._attribute(key, count):
                self._postpone(key, count)
                total.blocks -= count
                total.bytes -= count * (key[1] or 0)
        for flow in self._flows.values():
            total.blocks += flow.blocks
            total.bytes += flow.bytes
        for site, flow in (*self._flows.items(), (TOTAL, total)):
            sums = self._sums.setdefault(site, _SiteSums())
            sums.blocks.add(flow.blocks, self._hits, seconds_running)
            sums.bytes.add(flow.bytes, self._hits, seconds_running)
        self._size_hits.add(self._hits)
        self._bursts += 1
        self._flows, self._strange, self._hits = {}, {}, 0

    def _attribute(self, key: FreeKey, count: int) -> bool:
        owners = self._paired.get(key)
        if owners is None:
            return False
        frees = sum(owners.values())
        for site, share in owners.items():
            self._move(site, -count * share / frees, key[1])
        return True

    def _postpone(self, key: FreeKey, count: int) -> None:
        """Nothing of its kind was paired so far: look again at the end."""
        if key in self._pending or len(self._pending) < _MOST_KEYS:
            self._pending[key] = self._pending.get(key, 0) + count
        else:
            self._nowhere += count

    def scaler(self, whole: Whole) -> Optional[Scaler]:
        """What scales call sites; None when it would say nothing: too few bursts."""
        if self._bursts < FEWEST_BURSTS:
            return None
        by_hits = whole.hits is not None and whole.hits >= self._size_hits.x
        size = self._size_hits if by_hits else self._size_seconds
        in_all = float(whole.hits or 0) if by_hits else whole.seconds_running
        if size.x <= 0 or in_all < size.x:
            return None
        late: Dict[int, _Flow] = {}
        lost = self._nowhere
        for key, count in self._pending.items():
            owners = self._paired.get(key)
            if owners is None:
                lost += count
                continue
            frees = sum(owners.values())
            for site, share in owners.items():
                flow = late.setdefault(site, _Flow())
                flow.blocks -= count * share / frees
                flow.bytes -= count * share / frees * (key[1] or 0)
        return Scaler(self._sums, size, in_all, self._bursts, by_hits, late, lost)


@dataclass(frozen=True)
class Scaler:
    """Scales the figures of call sites; made by ``BurstBooks.scaler``."""

    _sums: Dict[int, _SiteSums]
    _size: _Size
    _in_all: float
    _bursts: int
    _by_hits: bool
    _late: Dict[int, _Flow]
    _lost: int

    @property
    def factor(self) -> float:
        """The whole, in multiples of what was seen."""
        return self._in_all / self._size.x

    def scaling(self) -> Scaling:
        """The method and the sum over all call sites."""
        seen, whole = self._size.x, self._in_all
        of = f"of {whole:,.0f} hits that the kernel counted for the tag"
        if not self._by_hits:
            of = f"of {whole:,.1f} s that the target ran"
        method = (
            f"allocations minus frees per burst, scaled from {seen:,.{0 if self._by_hits else 1}f} "
            f"{of}; 95 % intervals from the differences between {self._bursts} bursts"
        )
        return Scaling(method, self.factor, self._bursts, self._lost, self.of(TOTAL))

    def of(self, site: int) -> Scaled:
        """One call site; ``TOTAL`` is all together."""
        sums = self._sums.get(site) or _SiteSums()
        late = self._late.get(site) or _Flow()
        # What is lost may have been of any call site; the total has it already.
        lost = 0 if site == TOTAL else self._lost
        blocks, blocks_within = self._total(sums.blocks, late.blocks, 1.0, lost)
        size, size_within = self._total(
            sums.bytes, late.bytes, sums.usual_size, lost * sums.usual_size
        )
        return Scaled(blocks, blocks_within, size, size_within)

    def _total(self, sums: _Sums, late: float, usual: float, lost: float) -> Tuple[float, Interval]:
        size, factor, bursts = self._size, self.factor, self._bursts
        ratio = sums.y / size.x
        product = sums.y_hits if self._by_hits else sums.y_seconds
        spread = max(0.0, sums.yy - 2 * ratio * product + ratio * ratio * size.xx)
        unseen = 1 - 1 / factor
        # As many independent events have at least this variance; none seen may still be one.
        least = max(abs(sums.y) * usual, usual * usual)
        variance = max(spread * bursts / (bursts - 1), least)
        half = student_t95(bursts - 1) * factor * math.sqrt(variance * unseen)
        middle = (sums.y + late) * factor
        return middle, Interval(middle - half - lost * factor, middle + half)
