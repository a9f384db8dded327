"""Ranking of pool tags by growth over a measured interval, or by bytes outstanding.

The biggest user is often not the leak, so a live target is measured: snapshots with the target
running in between. The pick prefers growth that is sustained over the snapshots to growth that
may be chance.
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass, field
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from kdleak.allocator_frames import StopClass, classify
from kdleak.engine.base import Engine
from kdleak.errors import KdleakError, NotLive
from kdleak.hunt_options import RankOptions
from kdleak.model import Pool, PoolCounters, PoolSnapshot, Stack, Stop, StopKind
from kdleak.result import (
    NO_STACK,
    HuntPhase,
    HuntProgress,
    RankBy,
    RankResult,
    RankRow,
    Trend,
)
from kdleak.tags import PoolTag

_FALL_BACK = 0.1
"""Part of the total growth that a steady tag may lose again on the way."""

_BY_CHANCE = 2.0
"""Blocks a tag may drift by chance, in square roots of its allocations and frees."""

_UNCERTAIN_WEIGHT = 0.1
"""An uncertain tag must grow ten times as fast as a steady one to be picked before it."""


def rank(
    engine: Engine,
    options: RankOptions,
    *,
    reload: bool = True,
    clock: Callable[[], float] = time.perf_counter,
    narrate: Callable[[str], None] = lambda _: None,
    progress: Optional[Callable[[HuntProgress], None]] = None,
) -> RankResult:
    """Rank all tags.

    A live target runs between the snapshots and is left stopped after the last one. A stop that
    is not ours, or Ctrl+C, ends the ranking with the snapshots taken so far.

    Args:
        engine: a dump, or a live target, stopped or running.
        options: how to rank.
        reload: load symbols first (WinDbg's ``.reload``); not needed right after another one.
        clock: seconds, monotonic.
        narrate: takes sentences for the user.
        progress: told of every snapshot.

    Raises:
        UsageError: options that make no sense.
        NotLive: growth was asked of a dump.
        TargetError: the target, the link, or symbols.
    """
    options.check()
    if options.by is RankBy.GROWTH and not engine.target.live:
        raise NotLive(
            f"ranking the tags of {engine.where} by growth",
            "it is a dump, one moment of a machine",
            "rank it by bytes outstanding (--by used), or compare two dumps: kdleak diff A B",
        )
    measurement = _Measurement(engine, options, clock, progress)
    if engine.target.live:
        measurement.stop_target()
    if measurement.stop is None:
        for remark in engine.reload() if reload else ():
            narrate(remark)
        measurement.run(narrate)
    return measurement.result()


@dataclass
class _Measurement:
    engine: Engine
    options: RankOptions
    clock: Callable[[], float]
    progress: Optional[Callable[[HuntProgress], None]]
    snapshots: List[PoolSnapshot] = field(default_factory=list)
    running: float = 0.0
    stop: Optional[Stop] = None
    stop_stack: Stack = NO_STACK
    interrupted: bool = False

    def __post_init__(self) -> None:
        self.stopped_before = self.engine.seconds_stopped

    def run(self, narrate: Callable[[str], None]) -> None:
        wanted = 1 if self.options.by is RankBy.USED else self.options.snapshots
        pause = self.options.seconds / max(1, wanted - 1)
        try:
            for number in range(1, wanted + 1):
                if number > 1 and not self._let_run(pause):
                    return
                self._report(number, wanted)
                began, asked = self.clock(), self.engine.requests
                self.snapshots.append(self.engine.pool_usage())
                if number == 1 and wanted > 1:
                    cost = f"the target stood still for {self.clock() - began:.1f} s"
                    if self.engine.requests > asked:
                        cost += f" and {self.engine.requests - asked:,} requests"
                    narrate(
                        f"Snapshot 1 of {wanted} taken ({self.snapshots[0].source}; {cost}, and "
                        f"so it will for each); measuring growth over "
                        f"{self.options.seconds:.3g} s. Ctrl+C stops; nothing has been written."
                    )
        except (KeyboardInterrupt, SystemExit):
            self.interrupted = True

    def stop_target(self) -> bool:
        """Stop the target if it runs; False when something else stopped it first."""
        if self.engine.stop.kind is not StopKind.STILL_RUNNING:
            return True
        return self._ours(self.engine.interrupt(self.options.interrupt_timeout))

    def _let_run(self, seconds: float) -> bool:
        started = self.clock()
        stop = self.engine.resume(seconds)
        if stop.kind is not StopKind.STILL_RUNNING:
            self.running += self.clock() - started
            self._hand_over(stop)
            return False
        ours = self.stop_target()
        self.running += self.clock() - started
        return ours

    def _ours(self, stop: Stop) -> bool:
        if stop.kind is StopKind.BREAK_IN:
            return True
        self._hand_over(stop)
        if classify(stop, self.stop_stack, None, None).what is StopClass.BREAK_IN:
            self.stop, self.stop_stack = None, NO_STACK
            return True
        return False

    def _hand_over(self, stop: Stop) -> None:
        self.stop = stop
        try:
            self.stop_stack = self.engine.stack()
        except KdleakError:
            self.stop_stack = NO_STACK

    def _report(self, number: int, wanted: int) -> None:
        if self.progress is not None:
            self.progress(
                HuntProgress(
                    HuntPhase.RANKING,
                    seconds=self.running,
                    max_seconds=self.options.seconds,
                    seconds_stopped=self.engine.seconds_stopped - self.stopped_before,
                    snapshot=number,
                    snapshots=wanted,
                )
            )

    def result(self) -> RankResult:
        rows = rank_rows(
            self.snapshots, self.options.by, pool=self.options.pool, running=self.running
        )
        suspect, reason = pick_suspect(rows, self.options.by, len(self.snapshots), self.running)
        taken = self.snapshots
        return RankResult(
            target=self.engine.target,
            engine=self.engine.name,
            where=self.engine.where,
            by=self.options.by,
            rows=rows,
            suspect=suspect,
            reason=reason,
            snapshots=len(taken),
            seconds=taken[-1].taken_at - taken[0].taken_at if taken else 0.0,
            seconds_running=self.running if len(taken) > 1 else 0.0,
            seconds_stopped=self.engine.seconds_stopped - self.stopped_before,
            source=taken[-1].source if taken else "",
            gaps=tuple(dict.fromkeys(gap for snapshot in taken for gap in snapshot.gaps)),
            stop=self.stop,
            stop_stack=self.stop_stack,
            interrupted=self.interrupted,
            outstanding_only=any(snapshot.outstanding_only for snapshot in taken),
        )


def rank_rows(
    snapshots: Sequence[PoolSnapshot],
    by: RankBy,
    *,
    pool: Optional[Pool] = None,
    running: float = 0.0,
) -> Tuple[RankRow, ...]:
    """Rows of all tags in order of suspicion. Pure: no target needed.

    Args:
        snapshots: in order of time; none gives no rows.
        by: order of the rows.
        pool: only this pool.
        running: seconds the target ran between the first and the last snapshot.
    """
    if not snapshots:
        return ()
    pools = tuple(Pool) if pool is None else (pool,)
    table: List[Dict[PoolTag, Tuple[PoolCounters, ...]]] = [
        {row.tag: tuple(row.of(which) for which in pools) for row in snapshot.rows}
        for snapshot in snapshots
    ]
    tags = sorted(set().union(*table))
    nothing = (PoolCounters(),) * len(pools)
    traffic_known = not any(snapshot.outstanding_only for snapshot in snapshots)
    rows = []
    for tag in tags:
        history = [moment.get(tag, nothing) for moment in table]
        for index, which in enumerate(pools):
            counters = [moment[index] for moment in history]
            if any(item != PoolCounters() for item in (counters[0], counters[-1])):
                rows.append(_row(tag, which, counters, running, traffic_known))
    key = _used_key if by is RankBy.USED else _growth_key
    return tuple(sorted(rows, key=key))


def _row(
    tag: PoolTag,
    pool: Pool,
    counters: Sequence[PoolCounters],
    running: float,
    traffic_known: bool,
) -> RankRow:
    growth = counters[-1].bytes - counters[0].bytes
    return RankRow(
        tag=tag,
        pool=pool,
        first=counters[0],
        last=counters[-1],
        bytes_series=tuple(item.bytes for item in counters),
        trend=trend_of(counters, traffic_known=traffic_known),
        bytes_per_hour=growth * 3600 / running if len(counters) > 1 and running > 0 else None,
    )


def trend_of(counters: Sequence[PoolCounters], *, traffic_known: bool = True) -> Trend:
    """How one tag in one pool moved over the snapshots.

    Steady means: it ended higher; on the way it never gave back more than a tenth of that; it
    rose in at least two steps; and it kept more blocks than a tag that allocates and frees at
    random would keep by chance, twice the square root of all its allocations and frees.

    Args:
        counters: in order of time.
        traffic_known: False where only outstanding blocks were counted: then nothing tells
            growth from chance, and no trend is called steady.
    """
    if len(counters) < 2:
        return Trend.NOT_MEASURED
    growth = counters[-1].bytes - counters[0].bytes
    if growth <= 0:
        return Trend.FLAT if growth == 0 else Trend.SHRANK
    steps = [after.bytes - before.bytes for before, after in zip(counters, counters[1:])]
    if -sum(step for step in steps if step < 0) > growth * _FALL_BACK:
        return Trend.UP_AND_DOWN
    blocks = counters[-1].outstanding - counters[0].outstanding
    if not traffic_known:
        return Trend.UNCERTAIN
    traffic = counters[-1].allocs - counters[0].allocs + counters[-1].frees - counters[0].frees
    by_chance = _BY_CHANCE * math.sqrt(max(0, traffic))
    if sum(step > 0 for step in steps) < 2 or blocks < max(1.0, by_chance):
        return Trend.UNCERTAIN
    return Trend.STEADY


def _used_key(row: RankRow) -> Tuple[int, int, str]:
    return (-row.last.bytes, row.tag.value, row.pool.value)


def _growth_key(row: RankRow) -> Tuple[int, float, int, str]:
    if row.trend is Trend.STEADY:
        group, weight = 0, 1.0
    elif row.trend is Trend.UNCERTAIN:
        group, weight = 0, _UNCERTAIN_WEIGHT
    elif row.trend is Trend.UP_AND_DOWN:
        group, weight = 1, 1.0
    else:
        group, weight = 2, 1.0
    return (group, -row.growth_bytes * weight, row.tag.value, row.pool.value)


def pick_suspect(
    rows: Sequence[RankRow], by: RankBy, snapshots: int, running: float
) -> Tuple[Optional[RankRow], str]:
    """The row to hunt and why, or None and why not. The order of the rows does not matter."""
    if by is RankBy.USED:
        if not rows:
            return None, "No tag holds anything."
        most = min(rows, key=_used_key)
        return most, (
            f"'{most.tag}' ({most.pool.value}) holds most, {most.last.bytes:,} bytes; whether it "
            "grows was not measured."
        )
    if snapshots < 2:
        return None, "Growth was not measured: that takes two snapshots of a running target."
    growing = sorted(
        (row for row in rows if row.growth_bytes > 0 and row.growth_blocks > 0), key=_growth_key
    )
    if not growing:
        return None, f"No tag grew while the target ran for {running:.3g} s."
    row = growing[0]
    if row.trend is Trend.UP_AND_DOWN:
        return None, (
            f"No tag grew steadily while the target ran for {running:.3g} s; '{row.tag}' "
            f"({row.pool.value}) ended {row.growth_bytes:,} bytes higher after going up and down. "
            "Measure longer (--interval), or name a tag (--tag)."
        )
    how = {
        Trend.STEADY: "steadily over all snapshots",
        Trend.UNCERTAIN: "but not surely by more than chance; measure longer to be sure",
    }[row.trend]
    return row, (
        f"'{row.tag}' ({row.pool.value}) grew by {row.growth_bytes:,} bytes "
        f"({row.growth_blocks:+,} blocks) while the target ran for {running:.3g} s, {how}."
    )


if __name__ == "__main__":  # `!py -m kdleak.rank` in WinDbg: the one door up to a higher floor
    from kdleak.windbg import main

    sys.exit(main(sys.argv[1:], "rank"))
