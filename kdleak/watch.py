"""The watch: while the tag is armed, tell hits from other stops and book them.

One hit costs the target at most the registers, the stack and the resume; nothing else is asked
of it on that path.
"""

from __future__ import annotations

from typing import Callable, List, Optional, Protocol

from kdleak.allocator_frames import Classification, StopClass, classify
from kdleak.arm import ArmedTag
from kdleak.blaming.frameworks import Frameworks
from kdleak.booking.hit_log import HitLog
from kdleak.callsites import Ledger
from kdleak.engine.base import Engine
from kdleak.errors import KdleakError, LinkError, TargetRestarted
from kdleak.hunt_options import HuntOptions
from kdleak.model import Block, Hit, HitKind, Registers, Stack, StackEnd, Stop, StopKind
from kdleak.pacing import Usage, burst_is_over, rest_needed
from kdleak.result import NO_STACK, DisarmStatus, HuntPhase, StopReason
from kdleak.tags import PoolTag

_LATE_HITS = 256
"""Hits taken after a disarm: one per processor can be on its way, more cannot be ours."""

_BROKEN = frozenset({StackEnd.UNREADABLE, StackEnd.NO_UNWIND_DATA, StackEnd.IMPLAUSIBLE})


class BlockFinderLike(Protocol):
    """What finds the block of a hit; ``kdleak.nt.block.BlockFinder`` is one."""

    def find(
        self,
        registers: Registers,
        stack_address: int,
        stack_bytes: bytes,
        program_counter: int,
        kind: HitKind,
    ) -> Block:
        """The block the allocator is working on at this hit."""


class Watch:
    """Books the hits of one hunt and knows why it ended.

    Attributes:
        ledger: hits by call site.
        hits: the hits one by one; of very many the first and the last.
        started: clock reading of the first arming.
        ended: seconds from then to the end of the watch, before the last disarming; None while it
            goes on.
        late_hits: hits that came after a disarm.
        broken_stacks: hits whose stack ends early.
        bursts: times the tag was armed.
        reason: why the watch ended, None while it goes on.
        stop: the stop that ended it.
        stop_stack: the stack at that stop.
        why_foreign: why that stop was not taken for a hit.
        error: the error that ended it.
        gaps: what could not be done, in words.
        unquiet: breaks were still coming when the settling was given up.
    """

    def __init__(
        self,
        engine: Engine,
        tag: PoolTag,
        options: HuntOptions,
        *,
        finder: Optional[BlockFinderLike],
        clock: Callable[[], float],
        report: Callable[[HuntPhase], None],
        frameworks: Optional[Frameworks] = None,
    ) -> None:
        self._engine = engine
        self._tag = tag
        self._options = options
        self._finder = finder
        self._clock = clock
        self._report = report
        self._armed: Optional[ArmedTag] = None
        self._burst_hits = 0
        self._burst_began = 0.0  # on the scale of the target's running time
        self._burst_stopped_before = 0.0
        self._break_in_pending = False
        self._stopped_before = engine.seconds_stopped
        self.ledger = Ledger(engine.target.pointer_size, options.min_age, frameworks)
        self.hits = HitLog()
        self.started: Optional[float] = None
        self.ended: Optional[float] = None
        self.late_hits = 0
        self.broken_stacks = 0
        self.bursts = 0
        self.reason: Optional[StopReason] = None
        self.stop: Optional[Stop] = None
        self.stop_stack: Stack = NO_STACK
        self.why_foreign = ""
        self.error: Optional[KdleakError] = None
        self.gaps: List[str] = []
        self.unquiet = False

    @property
    def seconds(self) -> float:
        """Since the first arming."""
        return 0.0 if self.started is None else self._clock() - self.started

    @property
    def seconds_stopped(self) -> float:
        """How long the target stood still since the first arming."""
        return self._engine.seconds_stopped - self._stopped_before

    @property
    def left_to_user(self) -> bool:
        """The stop that ended the watch belongs to the user: do not resume."""
        return self.reason in (StopReason.FOREIGN_STOP, StopReason.BREAK_IN)

    def run(self, armed: ArmedTag) -> None:
        """Watch until a budget is used up or something ends it; never raises for the target."""
        self._armed = armed
        self.started = self._clock()
        self._stopped_before = self._engine.seconds_stopped
        self.bursts = 1
        try:
            while self.reason is None:
                self._step(armed)
        except (KeyboardInterrupt, SystemExit):
            self._end(StopReason.INTERRUPTED)
        except TargetRestarted as error:
            self._end(StopReason.RESTARTED, error)
        except LinkError as error:
            self._end(StopReason.LINK_LOST, error)
        except KdleakError as error:
            self._end(StopReason.ENGINE_ERROR, error)
        finally:
            self.ended = self.seconds
            self.ledger.finish(self.ended, self._usage().burst_running)

    def settle(self) -> None:
        """After a disarm: let hits that were on their way arrive, then stop the target again.

        Processors that are past the comparison wait at their break instruction, one behind the
        other; each would freeze the target with nobody there once we have left. So this ends
        only after a whole quiet period without any break, and when there is none, the target
        must not be let go (``unquiet``).
        """
        if self._options.settle_seconds <= 0:
            return
        for _ in range(_LATE_HITS):
            try:
                stop = self._engine.resume(self._options.settle_seconds)
                if stop.kind is StopKind.STILL_RUNNING:
                    stop = self._engine.interrupt(self._options.interrupt_timeout)
                    if stop.kind is StopKind.BREAK_IN:
                        return
                    self._break_in_pending = True
                self._take_late(stop)
            except LinkError as error:
                self.gaps.append(f"after the disarm: {error}")
                return
            except KdleakError as error:
                self.gaps.append(f"looking at a hit after the disarm: {error}")
            if self.left_to_user:
                return
        self.unquiet = True
        self.gaps.append(
            f"breaks kept coming after the disarm ({_LATE_HITS} of them): the target is left "
            "stopped, since each break with no debugger there would freeze it"
        )

    def _take_late(self, stop: Stop) -> None:
        before = len(self.hits)
        self._take(stop)
        self.late_hits += len(self.hits) - before

    def _end(self, reason: StopReason, error: Optional[KdleakError] = None) -> None:
        if self.reason is None:
            self.reason = reason
            self.error = error

    def _step(self, armed: ArmedTag) -> None:
        left = self._options.max_seconds - self.seconds
        if len(self.hits) >= self._options.max_hits:
            self._end(StopReason.HITS)
            return
        if left <= 0:
            self._end(StopReason.SECONDS)
            return
        self._take(armed.resume(left))
        if self.reason is None and len(self.hits) < self._options.max_hits:
            usage = self._usage()
            rest = rest_needed(self._options, usage)
            if rest is not None:
                self._rest(armed, rest)
            elif burst_is_over(self._options, usage):
                self._start_burst()  # cool enough: the next check after as many hits again
        self._report(HuntPhase.WATCHING)

    def _usage(self) -> Usage:
        running = self.seconds - self.seconds_stopped
        return Usage(
            hits=len(self.hits),
            seconds=self.seconds,
            seconds_stopped=self.seconds_stopped,
            burst_hits=self._burst_hits,
            burst_running=running - self._burst_began,
            burst_stopped=self.seconds_stopped - self._burst_stopped_before,
        )

    def _start_burst(self) -> None:
        self._burst_hits = 0
        self._burst_began = self.seconds - self.seconds_stopped
        self._burst_stopped_before = self.seconds_stopped

    def _rest(self, armed: ArmedTag, seconds: float) -> None:
        """Let the target run disarmed, then arm again."""
        state = armed.disarm(for_now=True)
        if state.status is not DisarmStatus.CONFIRMED:
            restarted = state.status is DisarmStatus.NOT_NEEDED
            self._end(StopReason.RESTARTED if restarted else StopReason.LINK_LOST)
            return
        self.ledger.pause(self.seconds, self._usage().burst_running)
        self._report(HuntPhase.RESTING)
        left = self._options.max_seconds - self.seconds
        self._take_late_hits(self._clock() + min(seconds, max(0.0, left)), armed.resume)
        if self.reason is None and seconds >= left:
            self._end(StopReason.SECONDS)
        if self.reason is None:
            armed.arm()
            self.ledger.resume(self.seconds)
            self.bursts += 1
            self._start_burst()

    def _take_late_hits(self, deadline: float, resume: Callable[[float], Stop]) -> None:
        """Let the target run until ``deadline`` with the tag disarmed."""
        for _ in range(_LATE_HITS):
            left = deadline - self._clock()
            if left <= 0:
                return
            stop = resume(left)
            if stop.kind is StopKind.STILL_RUNNING:
                return
            self._take_late(stop)
            if self.left_to_user:
                return

    def on_stop(self, stop: Stop) -> None:
        """Judge a stop that came while a break-in was asked for."""
        if stop.kind is StopKind.BREAK_IN:
            return
        # Our break-in may still be on its way and stop the target once more.
        self._break_in_pending = True
        before = len(self.hits)
        try:
            self._take(stop)
            if self._armed is None or self._armed.armed_since is None:
                self.late_hits += len(self.hits) - before
        except KdleakError as error:
            self.gaps.append(f"looking at a stop ({stop.kind.value}): {error}")

    def _take(self, stop: Stop) -> None:
        if stop.kind is StopKind.STILL_RUNNING:
            return
        registers: Optional[Registers] = None
        stack = NO_STACK
        if stop.kind is StopKind.BREAK_INSTRUCTION:
            registers = self._engine.registers()
            stack = self._engine.stack(self._options.stack_depth)
        judged = classify(stop, stack, registers, self._tag)
        if judged.what is StopClass.HIT and judged.kind is not None and registers is not None:
            self._book(stop, judged.kind, registers, stack)
        elif judged.what is StopClass.BREAK_IN and self._break_in_pending:
            self._break_in_pending = False
        else:
            self._hand_over(stop, stack, judged)

    def _book(self, stop: Stop, kind: HitKind, registers: Registers, stack: Stack) -> None:
        block = Block()
        if self._finder is not None:
            address, raw = self._engine.stack_memory()
            try:
                block = self._finder.find(registers, address, raw, stop.program_counter, kind)
            except KdleakError:
                block = Block()  # counted as a hit of unknown address
        hit = Hit(
            number=len(self.hits) + 1,
            kind=kind,
            stack=stack,
            at=self.seconds,
            processor=stop.processor,
            thread=stop.thread,
            block=block,
        )
        self.hits.append(hit)
        self.ledger.add(hit)
        self._burst_hits += 1
        self.broken_stacks += stack.end in _BROKEN

    def _hand_over(self, stop: Stop, stack: Stack, judged: Classification) -> None:
        if not stack:
            try:
                stack = self._engine.stack(self._options.stack_depth)
            except KdleakError:
                stack = NO_STACK
        foreign = judged.what is StopClass.FOREIGN
        self.reason = StopReason.FOREIGN_STOP if foreign else StopReason.BREAK_IN
        self.stop, self.stop_stack, self.why_foreign = stop, stack, judged.why
