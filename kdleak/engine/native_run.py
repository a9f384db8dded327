"""Stopping and running a KD target: one object knows which of the two it does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from kdleak.engine.native_machine import X64, MachineContext
from kdleak.engine.native_signals import HoldSignals
from kdleak.engine.native_stop import (
    break_status,
    bug_check_detail,
    classify,
    continue_status,
    is_break,
    is_bug_check,
    may_be_asked_for,
    steps_over,
)
from kdleak.engine.surplus import SurplusBreakIns
from kdleak.errors import LinkError, LinkLost, MemoryUnreadable, TargetError
from kdleak.kd.host import KdHost
from kdleak.kd.packets import StateChange
from kdleak.model import Registers, Stop, StopKind
from kdleak.nt.memory import MemoryReader

_WAIT_SLICE = 0.25  # seconds between chances for Ctrl+C
_BREAK_IN_SLICE = 3.0
_SURPLUS_LIMIT = 64  # a serial line keeps every one of them


@dataclass(frozen=True)
class Landmarks:
    """What tells one stop from another; known only after the attach.

    Attributes:
        machine: the target's CONTEXT.
        break_with_status: address of the int3 in nt!DbgBreakPointWithStatus, 0 unknown.
        bug_check_data: address of nt!KiBugcheckData, 0 unknown.
        pointer_size: 4 or 8.
        symbol_name: names an address; asked where ``break_with_status`` is unknown.
        memory: reads the target.
    """

    machine: MachineContext = X64
    break_with_status: int = 0
    bug_check_data: int = 0
    pointer_size: int = 8
    symbol_name: Callable[[int], str] = lambda _: ""
    memory: MemoryReader | None = None


class TargetRun:
    """The target's running and stopping.

    Args:
        host: the debugger's role.
        hold: keeps Ctrl+C out of requests.
        clock: seconds, monotonic.

    Attributes:
        stopped: whether the target is stopped.
        number: grows by one with every stop.
        surplus: break-ins of ours that came too late.
    """

    def __init__(self, host: KdHost, hold: HoldSignals, clock: Callable[[], float]) -> None:
        self.stopped = False
        self.number = 0
        self._host = host
        self._hold = hold
        self._clock = clock
        self._landmarks = Landmarks()
        self._change: StateChange | None = None
        self._stop = Stop(StopKind.STILL_RUNNING)
        self._context: bytes | None = None
        self._break_status: int | None = None
        self._stopped_since = 0.0
        self._seconds_stopped = 0.0
        self._running_since = 0.0
        self.surplus = SurplusBreakIns(_SURPLUS_LIMIT)

    # -- what is known

    @property
    def stop(self) -> Stop:
        """The current stop; ``STILL_RUNNING`` while the target runs."""
        return self._stop

    @property
    def change(self) -> StateChange:
        """The state change of the current stop.

        Raises:
            TargetError: the target is running.
        """
        if self._change is None or not self.stopped:
            raise TargetError("looking at the stopped target", "it is running", "interrupt it")
        return self._change

    @property
    def seconds_stopped(self) -> float:
        """Seconds stopped so far, this stop included."""
        now = self._clock() - self._stopped_since if self.stopped else 0.0
        return self._seconds_stopped + now

    def registers(self) -> Registers:
        """Registers of the processor that stopped."""
        return self._landmarks.machine.parse(self._read_context())

    def code(self, memory: MemoryReader) -> MemoryReader:
        """Reads instructions; those at the stop come from the state change itself."""
        change = self.change
        stream = change.control_report.instruction_stream
        return _Code(change.program_counter, stream, memory)

    def _read_context(self) -> bytes:
        if self._context is None:
            with self._hold:
                self._context = self._host.get_context(self.change.processor)
        return self._context

    # -- stopping

    def attach(self, timeout: float) -> None:
        """Connect and stop the target."""
        self._note_stop(self._host.attach(timeout))
        self.surplus.expect()

    def interrupt(self, timeout: float) -> Stop:
        """Break in, unless it is stopped already."""
        if self.stopped and not self._host.stopped:
            self._left()  # it started again under our hands
        deadline = self._clock() + timeout
        while not self.stopped:
            began = self._clock()
            try:
                with self._hold:
                    left = deadline - began
                    change = self._host.break_in(max(min(_BREAK_IN_SLICE, left), 0.1))
                    self._note_stop(change)
                    self.surplus.expect()
            except LinkLost:
                now = self._clock()
                # At once: the link is gone for good. Otherwise only this slice is over.
                if now >= deadline or now - began < 0.5 * min(_BREAK_IN_SLICE, left):
                    raise
        return self._stop

    def set_landmarks(self, landmarks: Landmarks) -> None:
        """Take what was learned at attach, and look at the current stop again."""
        self._landmarks = landmarks
        if self.stopped:
            self._stop = self._classify(self.change, self._stop.at)

    def _note_stop(self, change: StateChange) -> None:
        now = self._clock()
        if not self.stopped:
            self.surplus.ran(now - self._running_since)
            self._stopped_since = now
        self.stopped = True
        self.number += 1
        self._change = change
        self._context = None
        self._break_status = None
        self._stop = self._classify(change, now)

    def _classify(self, change: StateChange, at: float) -> Stop:
        marks = self._landmarks
        name = "" if marks.break_with_status else marks.symbol_name(change.program_counter)
        stop = classify(change, at, marks.break_with_status, name)
        if stop.kind is not StopKind.BREAK_IN or marks.memory is None:
            return stop
        # A bug check stops at the same instruction as a break-in; its argument tells.
        try:
            self._break_status = break_status(self.registers(), marks.machine)
        except LinkError:
            raise
        except TargetError:
            return stop  # its registers cannot be had, so nothing tells
        if not is_bug_check(self._break_status):
            return stop
        return dataclasses.replace(
            stop, kind=StopKind.BUG_CHECK, detail=self._bug_check(marks.memory)
        )

    def _bug_check(self, memory: MemoryReader) -> str:
        marks = self._landmarks
        if not marks.bug_check_data:
            return "bug check"
        try:
            raw = memory.read(marks.bug_check_data, 5 * marks.pointer_size)
        except MemoryUnreadable:
            return "bug check"
        return bug_check_detail(raw, marks.pointer_size) or "bug check"

    # -- running

    def resume(self, timeout: float | None) -> Stop:
        """Let the target run, or go on waiting for it, until it stops or time is over.

        A break-in request that met a stopped target breaks in again after its next resume:
        such a stop is nobody's wish and is resumed unseen.
        """
        deadline = None if timeout is None else self._clock() + timeout
        if self.stopped:
            if self._catch_up():
                return self._stop  # it has stopped anew, and nobody has seen that stop yet
            self.go()
        while True:
            self._wait(deadline)
            if not self._is_surplus():
                return self._stop
            self.surplus.absorb()
            self.go()

    def _catch_up(self) -> bool:
        """Notice that the target has stopped anew behind our back; True when it has.

        A continue whose acknowledgement was lost may have been obeyed all the same. To step
        over the old break then, with the old registers, would wreck the new stop's thread.
        """
        state = self._host.state
        if not self.stopped or state is None or state is self._change:
            return False
        known = self._change
        if known is not None and (state.raw, state.program_counter) == (
            known.raw,
            known.program_counter,
        ):
            # The same stop told again, or one just like it: its registers are read again.
            self._change = state
            self._context = None
            return False
        self._note_stop(state)
        return True

    def _is_surplus(self) -> bool:
        """Whether this stop answers a request that an earlier stop had overtaken."""
        return (
            self.stopped
            and self.surplus.is_one(self._stop)
            and self._break_status is not None
            and may_be_asked_for(self._break_status)
        )

    def go(self) -> None:
        """Step over a break instruction and let the target run; does not wait."""
        with self._hold:
            self._catch_up()
            self._step_over()
            self._host.resume(continue_status(self._stop))
            self._left()

    def _left(self) -> None:
        """The target runs now."""
        now = self._clock()
        self._seconds_stopped += now - self._stopped_since
        self._running_since = now
        self.stopped = False
        self._change = None
        self._context = None
        self._stop = Stop(StopKind.STILL_RUNNING, at=now)

    def _step_over(self) -> None:
        """Move the program counter past a break instruction in the target's own code.

        NT leaves that to the debugger; without it the target breaks at the same place again.
        """
        change, machine = self.change, self._landmarks.machine
        with self._hold:
            length = steps_over(change, machine)
            if length is None:
                length = self._read_length(change)
            if length:
                target = change.program_counter + length
                context = machine.with_program_counter(self._read_context(), target)
                self._host.set_context(change.processor, context)

    def _read_length(self, change: StateChange) -> int:
        """Bytes of the break instruction at the stop, read from the target; 0 for none."""
        machine = self._landmarks.machine
        size = len(machine.break_bytes)
        code = self._host.read_virtual(change.program_counter, size)
        return size if is_break(code, machine) else 0

    def _wait(self, deadline: float | None) -> None:
        """Serve the running target until it stops; gives Ctrl+C a chance now and then."""
        while not self.stopped:
            left = _WAIT_SLICE if deadline is None else max(deadline - self._clock(), 0.0)
            with self._hold:
                change = self._host.wait(min(left, _WAIT_SLICE))
                if change is not None:
                    self._note_stop(change)
            if change is None and deadline is not None and self._clock() >= deadline:
                self._stop = Stop(StopKind.STILL_RUNNING, at=self._clock())
                return


class _Code:
    """Instructions: the bytes the state change brought, the image's for all others."""

    def __init__(self, address: int, stream: bytes, memory: MemoryReader) -> None:
        self._address = address
        self._stream = stream
        self._memory = memory

    def read(self, address: int, size: int) -> bytes:
        offset = address - self._address
        if offset >= 0 and offset + size <= len(self._stream):
            return self._stream[offset : offset + size]
        return self._memory.read(address, size)
