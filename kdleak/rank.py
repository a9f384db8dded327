"""Ranking of pool tags by growth over a measured interval, or by bytes outstanding.

The biggest user is often not the leak, so a live target is measured: snapshots with the target
running in between. The pick prefers steady growth (see kdleak.trends.trend) to growth that may be
chance, and never takes a tag that goes up and down or a cache that has filled.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field, replace
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from kdleak.allocator_frames import StopClass, classify
from kdleak.engine.base import Engine
from kdleak.errors import ExitCode, KdleakError, NotLive
from kdleak.hunt_options import RankOptions
from kdleak.model import Pool, PoolCounters, PoolSnapshot, Stack, Stop, StopKind
from kdleak.result import (
    NO_STACK,
    HuntPhase,
    HuntProgress,
    PoolLimit,
    RankBy,
    RankResult,
    RankRow,
    Trend,
)
from kdleak.tags import PoolTag
from kdleak.trends.pool_limits import hours_left, pool_limits
from kdleak.trends.trend import fit_of_all, movement

_UNCERTAIN_WEIGHT, _NOT_SEEN_WEIGHT = 0.1, 0.01
"""A tag whose growth is uncertain, or one burst, must grow ten times as fast as a steady one to be
picked before it; a hundred times after so many snapshots that a leak would have shown."""

_SHOWN = 6
"""Snapshots from which that holds: even with a step back among them growth is significant."""

_FINELY = 10
"""Rows whose slope is taken over all of many snapshots; a slow thing to do."""

NOT_PICKED = {
    Trend.LEVELLING: "and levelled off",
    Trend.UP_AND_DOWN: "after going up and down",
    Trend.SAWTOOTH: "in a sawtooth, rising and falling back again and again",
}
"""How tags move that end higher and are not suspects for it, in words after "ended higher"."""


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


def used_if_crashed(
    options: RankOptions, engine: Engine, narrate: Callable[[str], None]
) -> RankOptions:
    """The same options, but for a target that must not run again: by what its tags hold.

    Args:
        options: as asked for.
        engine: stopped.
        narrate: told why it is something else.
    """
    crashed = engine.target.live and engine.stop.kind is StopKind.BUG_CHECK
    if not crashed or options.by is RankBy.USED:
        return options
    narrate(
        "The target is in a bug check and must not run: growth cannot be measured, so this is "
        "what the tags hold."
    )
    return replace(options, by=RankBy.USED, snapshots=1)


def exit_code(result: RankResult, asked: RankBy) -> ExitCode:
    """What a ranking's outcome is to a calling program.

    Args:
        result: of the ranking.
        asked: how the tags were to be ranked.
    """
    if result.interrupted:
        return ExitCode.INTERRUPTED
    if result.gaps or result.stop is not None or result.by is not asked:
        return ExitCode.INCOMPLETE
    return ExitCode.DONE


@dataclass
class _Measurement:
    engine: Engine
    options: RankOptions
    clock: Callable[[], float]
    progress: Optional[Callable[[HuntProgress], None]]
    snapshots: List[PoolSnapshot] = field(default_factory=list)
    times: List[float] = field(default_factory=list)
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
                self.times.append(self.running)
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
            self.snapshots,
            self.options.by,
            pool=self.options.pool,
            running=self.running,
            times=self.times,
        )
        limits = self._limits(rows)
        rows = with_hours_left(rows, limits, self.snapshots)
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
            times=tuple(self.times) if len(taken) > 1 else (),
            limits=tuple(limits.items()),
        )

    def _limits(self, rows: Sequence[RankRow]) -> Dict[Pool, PoolLimit]:
        """Limits of the pools in which a tag grows steadily: no request more than is of use."""
        growing = {row.pool for row in rows if row.trend is Trend.STEADY}
        if not growing or self.interrupted or self.engine.stop.kind is StopKind.STILL_RUNNING:
            return {}
        try:
            return pool_limits(self.engine, pools=growing)
        except (KeyboardInterrupt, SystemExit):
            self.interrupted = True
            return {}


def rank_rows(
    snapshots: Sequence[PoolSnapshot],
    by: RankBy,
    *,
    pool: Optional[Pool] = None,
    running: float = 0.0,
    times: Optional[Sequence[float]] = None,
) -> Tuple[RankRow, ...]:
    """Rows of all tags in order of suspicion. Pure: no target needed.

    Args:
        snapshots: in order of time; none gives no rows.
        by: order of the rows.
        pool: only this pool.
        running: seconds the target ran between the first and the last snapshot; 0 where that is
            not known.
        times: seconds it had run at each; without them (or where they do not increase) the
            snapshots are taken as evenly spaced.
    """
    if not snapshots:
        return ()
    at = _times(len(snapshots), running, times)
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
                rows.append(_row(tag, which, counters, at, traffic_known))
    key = _used_key if by is RankBy.USED else _growth_key
    rows.sort(key=key)
    if at is not None:
        rows[:_FINELY] = [_over_all(row, at) for row in rows[:_FINELY]]
    return tuple(rows)


def _times(
    count: int, running: float, times: Optional[Sequence[float]]
) -> Optional[Sequence[float]]:
    if times is not None and len(times) == count > 1:
        steps = [after - before for before, after in zip(times, times[1:])]
        if min(steps) > 0:
            return times
    if running > 0 and count > 1:
        return [running * number / (count - 1) for number in range(count)]
    return None


def _row(
    tag: PoolTag,
    pool: Pool,
    counters: Sequence[PoolCounters],
    times: Optional[Sequence[float]],
    traffic_known: bool,
) -> RankRow:
    found = movement(counters, times, traffic_known=traffic_known)
    return RankRow(
        tag=tag,
        pool=pool,
        first=counters[0],
        last=counters[-1],
        bytes_series=tuple(item.bytes for item in counters),
        trend=found.trend,
        bytes_per_hour=found.fit.bytes_per_hour if found.fit is not None else None,
        fit=found.fit,
    )


def _over_all(row: RankRow, times: Sequence[float]) -> RankRow:
    """The row with its slope over all of many snapshots, where its growth is steady."""
    fit = fit_of_all(times, row.bytes_series) if row.trend is Trend.STEADY else None
    return row if fit is None else replace(row, fit=fit, bytes_per_hour=fit.bytes_per_hour)


def with_hours_left(
    rows: Sequence[RankRow], limits: Mapping[Pool, PoolLimit], snapshots: Sequence[PoolSnapshot]
) -> Tuple[RankRow, ...]:
    """The rows, with the time until the pool is exhausted where a tag grows steadily. Pure.

    Args:
        rows: of ``rank_rows``.
        limits: of the pools, as far as known.
        snapshots: of which the last one tells what the pools hold.
    """
    if not limits or not snapshots:
        return tuple(rows)
    held = {pool: sum(row.of(pool).bytes for row in snapshots[-1].rows) for pool in limits}
    return tuple(
        replace(row, hours_left=hours_left(row, limits[row.pool], held[row.pool]))
        if row.pool in limits
        else row
        for row in rows
    )


def _used_key(row: RankRow) -> Tuple[int, int, str]:
    return (-row.last.bytes, row.tag.value, row.pool.value)


def _growth_key(row: RankRow) -> Tuple[int, float, int, str]:
    group, weight = 0, 1.0
    if row.trend is Trend.BURST:
        weight = _UNCERTAIN_WEIGHT
    elif row.trend is Trend.UNCERTAIN:
        weight = _NOT_SEEN_WEIGHT if len(row.bytes_series) >= _SHOWN else _UNCERTAIN_WEIGHT
    elif row.trend in NOT_PICKED:
        group = 1
    elif row.trend is not Trend.STEADY:
        group = 2
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
    if row.trend in NOT_PICKED:
        return None, (
            f"No tag grew steadily while the target ran for {running:.3g} s; '{row.tag}' "
            f"({row.pool.value}) ended {row.growth_bytes:,} bytes higher "
            f"{NOT_PICKED[row.trend]}. Measure longer (--interval), or name a tag (--tag)."
        )
    how = {
        Trend.STEADY: "steadily over all snapshots",
        Trend.BURST: "nearly all of it in one or two steps; measure longer to see more of it",
    }.get(row.trend, "but not surely by more than chance; measure longer to be sure")
    return row, (
        f"'{row.tag}' ({row.pool.value}) grew by {row.growth_bytes:,} bytes "
        f"({row.growth_blocks:+,} blocks) while the target ran for {running:.3g} s, {how}."
    )


if __name__ == "__main__":  # `!py -m kdleak.rank` in WinDbg: the one door up to a higher floor
    from kdleak.windbg import main

    sys.exit(main(sys.argv[1:], "rank"))
