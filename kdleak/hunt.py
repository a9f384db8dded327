"""The hunt: rank, arm, take a stack at every break, disarm, and say who holds the memory.

Runs on any engine, in any host; standard library only. The parts: ``rank`` picks the tag,
``arm`` changes the target and changes it back, ``watch`` tells hits from other stops,
``callsites`` and ``verdict`` say what the hits mean, ``diagnosis`` what their absence means;
``hunt_outcome`` puts the result together.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import Callable, Optional, Tuple

from kdleak.arm import ArmedTag, require_live
from kdleak.blamed import KnownOwner
from kdleak.blaming.blamed_modules import with_details
from kdleak.blaming.frameworks import Frameworks
from kdleak.engine.base import Engine
from kdleak.errors import (
    DisarmNotConfirmed,
    ForeignStop,
    KdleakError,
    TagAlreadyArmed,
    format_address,
)
from kdleak.explain import explain
from kdleak.hunt_options import HuntOptions, RankOptions
from kdleak.hunt_outcome import HuntFacts, assemble
from kdleak.journal import Journal
from kdleak.model import Pool, StopKind, TagUsage
from kdleak.pool_hit_tag import SYMBOL
from kdleak.rank import rank
from kdleak.restore import restore
from kdleak.result import (
    Budgets,
    DisarmStatus,
    HuntPhase,
    HuntProgress,
    HuntResult,
    StopReason,
    TagGrowth,
)
from kdleak.tags import PoolTag
from kdleak.watch import BlockFinderLike, Watch

__all__ = [
    "BlockFinderFactory",
    "BlockFinderLike",
    "HuntOptions",
    "RankOptions",
    "explain",
    "hunt",
]

BlockFinderFactory = Callable[[Engine, PoolTag], BlockFinderLike]
"""Makes what finds the block of a hit, for one engine and one tag."""

_LIVE_SITES = 10


def hunt(
    engine: Engine,
    options: HuntOptions,
    *,
    journal: Journal,
    block_finder_factory: Optional[BlockFinderFactory] = None,
    clock: Callable[[], float] = time.perf_counter,
    wall_clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
    narrate: Callable[[str], None] = lambda _: None,
    progress: Optional[Callable[[HuntProgress], None]] = None,
    frameworks: Optional[Frameworks] = None,
    owner_of: Optional[Callable[[PoolTag], Optional[KnownOwner]]] = None,
) -> HuntResult:
    """Hunt one pool tag in a live target.

    Whatever ends the hunt, the tag is disarmed with its original value and that is read back;
    ``result.disarm`` says whether it could be confirmed. Afterwards the target is stopped, except
    after an interruption before arming; ``result.leave_stopped`` says that it must stay so.

    Args:
        engine: a live engine, stopped or running.
        options: what to hunt and how long.
        journal: where the change is written down before it is made.
        block_finder_factory: makes what finds block addresses and sizes; None leaves them unknown.
        clock: seconds, monotonic.
        wall_clock: seconds since 1970.
        sleep: waits for a lost link.
        narrate: takes sentences for the user.
        progress: takes the state of the hunt, at most every ``options.progress_interval``.
        frameworks: layers that allocate for others; None for the built-in list.
        owner_of: what a list of tags says of one.

    Returns:
        The result, whole or partial. Ctrl+C, a lost link, a foreign stop and errors of the
        engine while the tag is armed end the hunt with a result, not with an exception.

    Raises:
        UsageError: options that make no sense (BadTag among them); nothing was touched.
        NotLive: a dump or a local kernel session; nothing was touched.
        ForeignStop: the target is in a bug check; nothing was touched.
        TagAlreadyArmed, TargetBusy, JournalError: nothing was written.
        TargetError: the target, the link or symbols failed before anything was written.
    """
    options.check()
    require_live(engine)
    hunter = _Hunter(
        engine,
        options,
        journal,
        block_finder_factory=block_finder_factory,
        clock=clock,
        sleep=sleep,
        narrate=narrate,
        progress=progress,
        started_at=wall_clock(),
        frameworks=frameworks,
    )
    result = replace(hunter.hunt(), budgets=_budgets(options))
    if owner_of is not None and result.tag is not None:
        result = replace(result, tag_owner=owner_of(result.tag))
    return result


def _budgets(options: HuntOptions) -> Budgets:
    return Budgets(
        options.max_hits,
        options.max_seconds,
        options.max_stopped_share,
        options.hits_per_second,
    )


class _Hunter:
    """One hunt from start to result."""

    def __init__(
        self,
        engine: Engine,
        options: HuntOptions,
        journal: Journal,
        *,
        block_finder_factory: Optional[BlockFinderFactory],
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        narrate: Callable[[str], None],
        progress: Optional[Callable[[HuntProgress], None]],
        started_at: float,
        frameworks: Optional[Frameworks],
    ) -> None:
        self._engine = engine
        self._options = options
        self._journal = journal
        self._block_finder_factory = block_finder_factory
        self._frameworks = frameworks
        self._clock = clock
        self._sleep = sleep
        self._narrate = narrate
        self._progress = progress
        self._reported_at: Optional[float] = None
        self._reported_phase: Optional[HuntPhase] = None
        self._before: Optional[Tuple[TagUsage, float]] = None
        self._facts = HuntFacts(
            engine,
            tag=options.tag,
            tag_reason="given by the user" if options.tag is not None else "",
            requests_before=engine.requests,
            started_at=started_at,
            min_age=options.min_age,
        )

    def hunt(self) -> HuntResult:
        """Everything up to the result; see ``hunt``."""
        try:
            self._prepare()
            if self._facts.tag is None:
                self._choose_tag()
            if self._facts.tag is not None and self._facts.reason is None:
                self._measure_before(self._facts.tag)
                self._arm_and_watch(self._facts.tag)
                self._measure_after(self._facts.tag)
        except (KeyboardInterrupt, SystemExit):
            # Only where nothing is armed (any more): ArmedTag has done its work by now.
            self._facts.reason = self._facts.reason or StopReason.INTERRUPTED
        result = assemble(self._facts)
        if self._options.read_versions:
            result = with_details(result, self._engine)
        self._report(HuntPhase.DONE)
        return result

    # --- before arming

    def _prepare(self) -> None:
        engine = self._engine
        self._report(HuntPhase.SYMBOLS)
        if engine.stop.kind is StopKind.STILL_RUNNING:
            engine.interrupt(self._options.interrupt_timeout)
        if engine.stop.kind is StopKind.BUG_CHECK:
            raise ForeignStop(
                f"hunting in {engine.where}",
                "the target is in a bug check",
                "look at it with !analyze -v; hunt after it restarted",
            )
        scan = self._journal.scan()
        for damaged in scan.damaged:
            self._remark(
                f"Journal file {damaged.path.name} cannot be used ({damaged.why}); it is kept."
            )
        target = engine.target
        boot = (target.kernel_base, target.build)
        entries = [found.entry for found in scan.files]
        past = [found.entry for found in scan.past]
        if any(entry.where == engine.where for entry in entries) or any(
            (entry.kernel_base, entry.build) == boot for entry in entries + past
        ):
            self._restore_first()
        for remark in engine.reload():
            self._remark(remark)
        # What cannot be armed should not first be stopped again and again to be ranked.
        engine.symbol(SYMBOL)

    def _restore_first(self) -> None:
        result = restore(self._engine, self._journal, narrate=self._narrate)
        for item in result.items:
            self._remark(f"An earlier hunt's journal entry ({item.file_name}): {item.remark}.")
        if not result.state.safe:
            raise TagAlreadyArmed(
                f"undoing what an earlier hunt left in {self._engine.where}",
                result.state.why,
                "; ".join(result.state.repair),
            )
        if result.leave_stopped:
            raise ForeignStop(
                f"hunting in {self._engine.where}",
                "the target stopped for a reason of its own",
                "look at it in a debugger and let it run first",
            )
        if self._engine.stop.kind is StopKind.STILL_RUNNING:
            self._engine.interrupt(self._options.interrupt_timeout)

    def _choose_tag(self) -> None:
        self._report(HuntPhase.RANKING)
        ranking = rank(
            self._engine,
            self._options.rank,
            reload=False,
            clock=self._clock,
            narrate=self._narrate,
            progress=self._progress,
        )
        self._facts.rank = ranking
        self._facts.gaps.extend(ranking.gaps)
        if ranking.stop is not None:
            broke_in = ranking.stop.kind is StopKind.BREAK_IN
            self._facts.reason = StopReason.BREAK_IN if broke_in else StopReason.FOREIGN_STOP
        elif ranking.interrupted:
            self._facts.reason = StopReason.INTERRUPTED
        elif ranking.suspect is None:
            self._facts.reason = StopReason.NOTHING_GREW
        else:
            self._facts.tag = ranking.suspect.tag
        self._facts.tag_reason = ranking.reason
        self._narrate(ranking.reason)

    def _measure_before(self, tag: PoolTag) -> None:
        self._facts.symbol_kind = self._engine.nearest(self._engine.symbol(SYMBOL)).kind
        usage = self._usage(tag, "before")
        if usage is not None:
            self._before = (usage, self._clock())
            if not any(usage.of(pool).allocs for pool in Pool):
                self._say_unknown(tag)

    def _say_unknown(self, tag: PoolTag) -> None:
        """Nothing was ever allocated with the tag: say so, and which tags look like it."""
        try:
            rows = self._engine.pool_usage().rows
        except KdleakError:
            rows = ()  # the sentence stands without them
        wanted = tag.text.casefold().strip()
        alike = [f"'{row.tag}'" for row in rows if row.tag.text.casefold().strip() == wanted]
        self._remark(
            f"Nothing was ever allocated with tag '{tag}' on this target"
            + (f"; did you mean {' or '.join(alike)}?" if alike else ".")
        )

    def _usage(self, tag: PoolTag, when: str) -> Optional[TagUsage]:
        if not self._options.measure_growth:
            return None
        self._report(HuntPhase.MEASURING)
        try:
            snapshot = self._engine.pool_usage(tag)
        except KdleakError as error:
            self._facts.gaps.append(f"the tag's counters {when} the hunt: {error}")
            return None
        self._facts.gaps.extend(gap for gap in snapshot.gaps if gap not in self._facts.gaps)
        return snapshot.find(tag) or TagUsage(tag)

    # --- armed

    def _arm_and_watch(self, tag: PoolTag) -> None:
        engine, options = self._engine, self._options
        make_finder = self._block_finder_factory
        watch = self._facts.watch = Watch(
            engine,
            tag,
            options,
            finder=make_finder(engine, tag) if make_finder is not None else None,
            clock=self._clock,
            report=self._report,
            frameworks=self._frameworks,
        )
        armed = self._facts.armed = ArmedTag(
            engine,
            tag,
            self._journal,
            interrupt_timeout=options.interrupt_timeout,
            grace_seconds=options.grace_seconds,
            clock=self._clock,
            sleep=self._sleep,
            narrate=self._narrate,
            on_stop=watch.on_stop,
        )
        self._report(HuntPhase.ARMING)
        try:
            with armed:
                self._say_armed(armed, tag)
                watch.run(armed)
                self._report(HuntPhase.DISARMING)
                armed.disarm()
                self._account(watch, armed)
                if armed.state.status is DisarmStatus.CONFIRMED and not watch.left_to_user:
                    watch.settle()
        except DisarmNotConfirmed as error:
            self._account(watch, armed)  # said by the state, which the result carries
            if watch.reason is None:
                watch.reason, watch.error = StopReason.ENGINE_ERROR, error
        except (KeyboardInterrupt, SystemExit):
            self._facts.reason = watch.reason or StopReason.INTERRUPTED
            self._account(watch, armed)
        except KdleakError as error:
            if armed.state.status is DisarmStatus.NOT_NEEDED:
                raise  # nothing was written: an ordinary refusal
            watch.reason, watch.error = StopReason.ENGINE_ERROR, error
        finally:
            armed.make_sure()
        self._facts.reason = watch.reason or self._facts.reason or StopReason.ENGINE_ERROR
        self._facts.gaps.extend(watch.gaps)
        if watch.why_foreign:
            self._remark(f"The stop that ended the hunt is not a hit: {watch.why_foreign}.")

    def _say_armed(self, armed: ArmedTag, tag: PoolTag) -> None:
        change = armed.change
        if change is not None:
            self._narrate(
                f"Armed {SYMBOL} at {format_address(change.address)} with '{tag}' "
                f"(was 0x{change.original:08x}); watching for up to {self._options.max_hits} hits "
                f"or {self._options.max_seconds:g} s. Ctrl+C disarms and reports."
            )

    def _account(self, watch: Watch, armed: ArmedTag) -> None:
        """Note the times of the watch, once it is over."""
        if watch.started is not None and not self._facts.seconds:
            self._facts.seconds = watch.seconds
            self._facts.seconds_stopped = watch.seconds_stopped
            since = armed.armed_since
            still = self._clock() - since if since is not None else 0.0
            self._facts.seconds_watched = armed.seconds_armed + still

    # --- after disarming

    def _measure_after(self, tag: PoolTag) -> None:
        armed = self._facts.armed
        if (
            self._before is None
            or armed is None
            or armed.state.status is not DisarmStatus.CONFIRMED
            or not self._stands_still()
        ):
            return
        after = self._usage(tag, "after")
        if after is not None:
            before, at = self._before
            self._facts.growth = TagGrowth(before, after, self._clock() - at)

    def _stands_still(self) -> bool:
        """Whether the counters can be read; a hunt may end while the target runs disarmed."""
        engine, watch = self._engine, self._facts.watch
        if engine.stop.kind is StopKind.STILL_RUNNING and watch is not None:
            try:
                stop = engine.interrupt(self._options.interrupt_timeout)
            except KdleakError as error:
                self._facts.gaps.append(f"the tag's counters after the hunt: {error}")
                return False
            watch.on_stop(stop)
            if watch.left_to_user:
                self._facts.reason = watch.reason
        return engine.stop.kind not in (StopKind.STILL_RUNNING, StopKind.BUG_CHECK)

    # --- telling

    def _remark(self, sentence: str) -> None:
        self._facts.remarks.append(sentence)
        self._narrate(sentence)

    def _report(self, phase: HuntPhase) -> None:
        if self._progress is None:
            return
        now = self._clock()
        due = (
            self._reported_at is None
            or phase is not self._reported_phase
            or now - self._reported_at >= self._options.progress_interval
        )
        if not due:
            return
        self._reported_at, self._reported_phase = now, phase
        watch = self._facts.watch
        self._progress(
            HuntProgress(
                phase,
                tag=self._facts.tag,
                hits=watch.ledger.hits if watch else 0,
                allocs=watch.ledger.allocs if watch else 0,
                frees=watch.ledger.frees if watch else 0,
                seconds=watch.seconds if watch else 0.0,
                max_hits=self._options.max_hits,
                max_seconds=self._options.max_seconds,
                seconds_stopped=watch.seconds_stopped if watch else 0.0,
                bursts=watch.bursts if watch else 0,
                sites=watch.ledger.busiest(_LIVE_SITES) if watch else (),
            )
        )


if __name__ == "__main__":  # `!py -m kdleak.hunt` in WinDbg: the one door up to a higher floor
    from kdleak.windbg import main

    sys.exit(main(sys.argv[1:]))
