"""Series of a tag's counters as leaks and innocent code make them, over six hours."""

from __future__ import annotations

import math
import random
from typing import List, Sequence

from kdleak.model import PoolCounters

HOURS = 6.0


def times(points: int) -> List[float]:
    return [HOURS * 3600 * index / (points - 1) for index in range(points)]


def counters(levels: Sequence[float], size: int, traffic_per_step: int = 0) -> List[PoolCounters]:
    """Counters that stand at these levels (blocks); at least so many allocs and frees between."""
    found: List[PoolCounters] = []
    allocs, before = 100_000, None
    for level in (max(0, round(level)) for level in levels):
        change = 0 if before is None else level - before
        traffic = max(traffic_per_step, abs(change))
        allocs += (traffic + change + 1) // 2
        found.append(PoolCounters(allocs, allocs - level, level * size))
        before = level
    return found


def leak(
    rng: random.Random,
    points: int,
    *,
    bytes_per_hour: float = 64 * 1024,
    size: int = 1024,
    noise: float = 0.0,
    traffic_per_hour: int = 0,
) -> List[PoolCounters]:
    """Blocks lost at random moments at a rate; ``noise`` blocks come and go beside them."""
    per_step = bytes_per_hour * HOURS / (points - 1) / size
    level, levels = 200.0, []
    for index in range(points):
        if index:
            level += _poisson(rng, per_step)
        levels.append(level + (rng.gauss(0, noise) if noise else 0))
    return counters(levels, size, round(traffic_per_hour * HOURS / (points - 1)))


def cache(
    rng: random.Random, points: int, *, memory_hours: float = 0.0, share: float = 0.05
) -> List[PoolCounters]:
    """50 MB that fluctuate, with a memory of so many hours (0: none)."""
    level = 50 * (1 << 20) / 4096
    step = HOURS / (points - 1)
    keep = math.exp(-step / memory_hours) if memory_hours else 0.0
    off, levels = rng.gauss(0, 1), []
    for _ in range(points):
        levels.append(level * (1 + share * off))
        off = keep * off + math.sqrt(1 - keep * keep) * rng.gauss(0, 1)
    return counters(levels, 4096, round(200_000 * step))


def walk(rng: random.Random, points: int, *, batch: int = 1) -> List[PoolCounters]:
    """A tag that allocates and frees at random, ``batch`` blocks at a time."""
    traffic = 200_000 * HOURS / (points - 1)
    level, levels = 20_000.0, []
    for _ in range(points):
        levels.append(level)
        level += batch * rng.gauss(0, math.sqrt(traffic / batch))
    return counters(levels, 512, round(traffic))


def sawtooth(rng: random.Random, points: int, *, periods: float) -> List[PoolCounters]:
    """Fills, is cleaned up, fills again."""
    phase = rng.random()
    levels = [
        1000 + 5000 * ((phase + periods * index / (points - 1)) % 1) + rng.gauss(0, 150)
        for index in range(points)
    ]
    return counters(levels, 512, 20_000)


def warm_up(rng: random.Random, points: int, *, share: float) -> List[PoolCounters]:
    """Fills up; after ``share`` of the time 63 % of the way is gone."""
    levels = [
        1000 + 5000 * (1 - math.exp(-index / (points - 1) / share)) + rng.gauss(0, 100)
        for index in range(points)
    ]
    return counters(levels, 512, 3000)


def burst(rng: random.Random, points: int) -> List[PoolCounters]:
    """One jump at some moment; level before and after."""
    at = rng.randrange(1, points)
    return counters([1000 + (5000 if index >= at else 0) for index in range(points)], 512, 200)


def _poisson(rng: random.Random, mean: float) -> int:
    if mean > 50:
        return max(0, round(rng.gauss(mean, math.sqrt(mean))))
    count, chance, floor = 0, rng.random(), math.exp(-mean)
    while chance > floor:
        count, chance = count + 1, chance * rng.random()
    return count
