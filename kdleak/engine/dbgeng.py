"""The DbgEng engine: Microsoft's debugger does the work, asked by its documented commands.

``.reload``, ``!poolused``, ``ed nt!PoolHitTag`` and ``db`` to read it back, ``g``, the stack at
each break, the original value at the end. The text comes over a channel (``channels``): inside
WinDbg, from kd.exe, from a binding in a child process, or from a recorded session.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from types import TracebackType
from typing import Callable, List, Mapping, Optional, Tuple, Type

from kdleak.dialect.breaks import BreakReason
from kdleak.dialect.registers import parse_registers
from kdleak.engine.channels.base import DUMP, LIVE_KERNEL, LOCAL_KERNEL, Channel, Resumed
from kdleak.engine.dbgeng_memory import DebuggerMemory
from kdleak.engine.dbgeng_pool import DebuggerPool
from kdleak.engine.dbgeng_stack import StackWalker
from kdleak.engine.dbgeng_stop import (
    BreakInPlace,
    classify,
    crash_of,
    find_break_in,
    last_break,
    last_event,
    restarted,
)
from kdleak.engine.dbgeng_symbols import DebuggerSymbols
from kdleak.engine.dbgeng_target import identify
from kdleak.engine.surplus import SurplusBreakIns
from kdleak.errors import (
    LinkError,
    NotLive,
    SymbolNotFound,
    TargetError,
    TargetRestarted,
    format_address,
)
from kdleak.model import (
    Module,
    PoolSnapshot,
    Registers,
    Stack,
    Stop,
    StopKind,
    Symbolized,
    TargetInfo,
)
from kdleak.nt.memory import CachedMemory
from kdleak.nt.pool import PoolTagTables
from kdleak.tags import PoolTag

_HIT_TAG = "nt!PoolHitTag"
_SURPLUS_LIMIT = 8
_LIST_SECONDS = 10.0
"""How old the module list may be at a hit: drivers come and go, and addresses get new owners."""
_RESTART_SECONDS = 5.0  # no system restarts in less
_REQUEST_BYTES = 0x400  # what DbgEng asks for with one KDNET request


class DbgEngEngine:
    """An engine over a debugger; implements ``kdleak.engine.base.Engine``.

    Args:
        channel: an open session; a live target is stopped.
        clock: seconds, monotonic.
        use_kb: take every stack with the debugger's ``kb``.

    Attributes:
        remarks: what is worth telling the user, one sentence each.
        channel: the session.
    """

    walks_stacks = True
    requests = 0  # the debugger does not tell

    def __init__(
        self,
        channel: Channel,
        *,
        clock: Callable[[], float] = time.perf_counter,
        use_kb: bool = False,
    ) -> None:
        self.channel = channel
        self.remarks: List[str] = []
        self._clock = clock
        self._stopped = not channel.running
        self._stop = Stop(StopKind.STILL_RUNNING)
        self._parked: Optional[Stop] = None
        self._registers: Optional[Mapping[str, int]] = None
        self._stopped_since = clock()
        self._seconds_stopped = 0.0
        self._running_since = clock()
        self._surplus = SurplusBreakIns(_SURPLUS_LIMIT)
        self._listed_at = clock()
        self._closed = False
        self._memory = DebuggerMemory(channel, lambda: self._stopped)
        self._cache = CachedMemory(self._memory)
        self._identified = identify(channel)
        pointer_size = self._memory.pointer_size = self.target.pointer_size
        self._symbols = DebuggerSymbols(channel, self._cache, pointer_size)
        self._stacks = StackWalker(
            channel,
            self._memory,
            self._symbols,
            self._cache.constant,
            self.target.architecture,
            use_kb=use_kb,
            remark=self._remark,
        )
        self._pool = DebuggerPool(channel, self._make_tables, clock, self._remark)
        self._break_in = BreakInPlace(frozenset())
        if self._stopped:
            self._find_break_in()
            self._take_stop(self._last_event())
            if channel.session == DUMP:
                self._take_crash()
            self._surplus.expect()

    # -- identity

    @property
    def target(self) -> TargetInfo:
        """What is under the debugger."""
        return self._identified.info

    @property
    def name(self) -> str:
        """Kind of engine: "dbgeng over kd"."""
        return f"dbgeng over {self.channel.name}"

    @property
    def where(self) -> str:
        """The target as the user named it, without secrets."""
        return self.channel.where

    @property
    def local_kernel(self) -> bool:
        """Whether the debugger looks at the machine it runs on."""
        return self.channel.session == LOCAL_KERNEL

    @property
    def stop(self) -> Stop:
        """Why the target is stopped; ``STILL_RUNNING`` while it runs."""
        return self._stop

    @property
    def seconds_stopped(self) -> float:
        """Seconds the target has been stopped since we attached, as seen from here."""
        now = self._clock() - self._stopped_since if self._stopped else 0.0
        return self._seconds_stopped + now

    @property
    def break_ins_absorbed(self) -> int:
        """Stops by break-in requests that came too late and were resumed unseen."""
        return self._surplus.absorbed

    @property
    def symbol_remarks(self) -> Tuple[str, ...]:
        """What is worth telling about symbols: said by ``reload``."""
        return ()

    # -- modules and symbols

    def reload(self) -> Tuple[str, ...]:
        """``.reload``: the module list and symbols again."""
        self._require_stopped("reading the module list")
        self._stacks.forget_names()
        remarks = self._symbols.reload()
        self._find_break_in()
        return remarks

    def modules(self) -> Tuple[Module, ...]:
        """Loaded kernel modules."""
        if self._stopped:
            self._symbols.list_again()
        return self._symbols.modules()

    def symbol(self, name: str) -> int:
        """Address of ``module!name``, in any case.

        Raises:
            SymbolNotFound: with what the debugger said.
        """
        if not self._stopped and not self._symbols.knows(name):
            raise SymbolNotFound(
                f"looking up {name}", "the target is running", "interrupt the target first"
            )
        return self._symbols.address(name)

    def nearest(self, address: int) -> Symbolized:
        """The nearest symbol at or below an address."""
        if not self._stopped:
            return Symbolized(address)
        return self._symbols.nearest(address)

    # -- memory

    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes.

        Raises:
            MemoryUnreadable: any of them is not there, or the target is running.
        """
        return self._memory.read(address, size)

    def write(self, address: int, data: bytes) -> None:
        """Write target memory, ``ed`` for four bytes.

        Raises:
            MemoryNotWritten: the debugger complained.
            NotLive: a dump or a local kernel session.
        """
        self._require_live(f"writing {len(data)} bytes at {format_address(address)}")
        self._require_stopped(f"writing {len(data)} bytes at {format_address(address)}")
        self._cache.forget(address, len(data))
        known = self._symbols.knows(_HIT_TAG) and self._symbols.address(_HIT_TAG) == address
        self._memory.write(_HIT_TAG if known else "", address, data)

    def pool_usage(self, tag: Optional[PoolTag] = None) -> PoolSnapshot:
        """Usage of all tags by ``!poolused``, of one from the tag tables.

        Raises:
            TargetError: it could be read in no way.
        """
        self._require_stopped("reading the pool usage")
        return self._pool.usage(tag)

    def _make_tables(self) -> PoolTagTables:
        return PoolTagTables(
            self._memory,
            self._symbols.address,
            self.target.build,
            self.target.pointer_size,
            self._clock,
            processors=self.target.processors,
            request_bytes=_REQUEST_BYTES,
        )

    # -- the stopped processor

    def registers(self) -> Registers:
        """Registers of the processor that stopped."""
        self._require_stopped("reading the registers")
        if self._registers is None:
            quick = self.channel.quick
            if quick is not None:
                self._registers = quick.registers()
            else:
                blocks = parse_registers(self.channel.execute("r")).blocks
                if not blocks:
                    raise TargetError(
                        "reading the registers", "the debugger printed none", "look at r by hand"
                    )
                self._registers = blocks[-1].values
        return Registers(dict(self._registers))

    def stack(self, depth: int = 32) -> Stack:
        """Call stack of the processor that stopped."""
        now = self._clock()
        if now - self._listed_at >= _LIST_SECONDS:
            self._listed_at = now
            self._symbols.list_again()
        return self._stacks.stack(self.registers().values, depth)

    def stack_memory(self) -> Tuple[int, bytes]:
        """What ``stack`` read at this stop; (0, b"") where the debugger walked it."""
        return self._stacks.known_memory() if self._stopped else (0, b"")

    # -- running

    def resume(self, timeout: Optional[float]) -> Stop:
        """``g`` until the target stops or ``timeout`` seconds are over.

        Raises:
            LinkLost, TargetRestarted: while waiting.
            NotLive: a dump or a local kernel session.
        """
        self._require_live("letting the target run")
        deadline = None if timeout is None else self._clock() + timeout
        self._parked = None  # our own break-in at the end of the last wait: nobody has seen it
        while True:
            self._left()
            left = None if deadline is None else max(0.0, deadline - self._clock())
            resumed = self.channel.resume(left)
            if resumed.running:
                return self._stop
            self._take_stop(resumed)
            if resumed.broke_in and self._stop.kind is StopKind.BREAK_IN:
                return self._park()
            if resumed.broke_in:
                self._surplus.expect()  # something else came first; our break-in may still come
            if not self._surplus.is_one(self._stop):
                return self._stop
            self._surplus.absorb()

    def interrupt(self, timeout: float = 30.0) -> Stop:
        """Break in; returns at once when the target is stopped already.

        Raises:
            LinkLost: it did not stop in time.
            NotLive: a dump or a local kernel session.
        """
        if self._parked is not None:
            self._stop, self._parked = self._parked, None
            return self._stop
        if not self.channel.running:
            if not self._stopped or self._stop.kind is StopKind.STILL_RUNNING:
                # It stopped, but whoever waited for it was cut off before it was taken note of.
                self._require_live("stopping the target")
                self._take_stop(self._last_event())
            return self._stop
        self._require_live("stopping the target")
        self._left()
        try:
            resumed = self.channel.interrupt(timeout)
        except TargetRestarted:  # a channel that attached anew has seen that by itself
            self._forget_boot()
            with contextlib.suppress(TargetError):
                self._identified = identify(self.channel)
            raise
        self._take_stop(resumed)
        self._surplus.expect()
        return self._stop

    def close(self) -> None:
        """Leave; a live target of a headless session runs on."""
        self.detach()

    def detach(self, leave_stopped: bool = False) -> None:
        """Leave. A lost link is no error here but a remark.

        Args:
            leave_stopped: leave a stopped target as it is.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self.channel.close(leave_stopped)
        except LinkError as error:
            self._remark(f"the target could not be let run at the end: {error}")

    def __enter__(self) -> DbgEngEngine:  # noqa: PYI034 - no Self on 3.9
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    # -- stops

    def _left(self) -> None:
        """The target runs from now on."""
        now = self._clock()
        if self._stopped:
            self._seconds_stopped += now - self._stopped_since
            self._running_since = now
        self._stopped = False
        self._stop = Stop(StopKind.STILL_RUNNING, at=now)  # also when Ctrl+C cuts the wait off
        self._registers = None
        self._stacks.forget_stop()
        self._cache.invalidate()

    def _take_stop(self, resumed: Resumed) -> None:
        now = self._clock()
        ran = 0.0
        if not self._stopped:
            ran = now - self._running_since
            self._surplus.ran(ran)
            self._stopped_since = now
        self._stopped = True
        self._registers = None
        self._stacks.forget_stop()
        # Inside WinDbg the user reads the text, not we: time enough for a restart looks like one.
        if restarted(resumed.text) or (not resumed.text and ran >= _RESTART_SECONDS):
            self._check_same_boot(now)
        announced = last_break(resumed.text)
        try:
            registers: Mapping[str, int] = self.registers().values
        except LinkError:
            raise
        except TargetError:
            registers = {}
        self._stop = classify(resumed, announced, registers, self._break_in, now)
        unsaid = announced is None or announced.reason is BreakReason.UNSAID
        if self._stop.kind is StopKind.EXCEPTION and resumed.code is None and unsaid:
            # A breakpoint of the user's, seldom: it may come without a word of why.
            again = replace(resumed, text=self._last_event().text)
            announced = last_break(again.text)
            self._stop = classify(again, announced, registers, self._break_in, now)

    def _take_crash(self) -> None:
        """The debugger shows every crash as a break instruction; say which bug check it was."""
        crash = crash_of(self.channel.execute(".bugcheck"))
        if crash:
            self._stop = replace(self._stop, kind=StopKind.BUG_CHECK, detail=crash)

    def _last_event(self) -> Resumed:
        """The current stop as the debugger remembers it."""
        return Resumed(text=last_event(self.channel.execute(".lastevent")))

    def _check_same_boot(self, now: float) -> None:
        """The debugger connected anew: to the same system, or to one that was restarted?"""
        before, self._identified = self._identified, identify(self.channel)
        if not self._identified.rebooted_since(before):
            return
        self._forget_boot()
        self._stop = Stop(StopKind.BREAK_IN, at=now, detail="the target restarted")
        raise TargetRestarted(
            f"waiting for {self.where}",
            "the target went away and came back with another boot",
            "what was changed in it is gone; run the command again",
        )

    def _forget_boot(self) -> None:
        """Nothing that was known of the target's memory holds any longer."""
        self._symbols.forget()
        self._stacks.forget_names()
        self._cache.clear()
        self._break_in = BreakInPlace(frozenset())  # learned again by reload

    def _park(self) -> Stop:
        """The wait is over and the channel had to stop the target to say so."""
        self._parked = self._stop
        self._stop = Stop(StopKind.STILL_RUNNING, at=self._clock())
        return self._stop

    def _find_break_in(self) -> None:
        """Learn where break-ins stop, once nt's symbols are there."""
        self._break_in = find_break_in(self._symbols, self.target.architecture)
        other = self._stop.kind in (StopKind.BREAK_INSTRUCTION, StopKind.EXCEPTION)
        if self._stopped and other and self._break_in.holds(self._stop.program_counter):
            self._stop = replace(self._stop, kind=StopKind.BREAK_IN, detail="")

    # -- refusals

    def _require_stopped(self, tried: str) -> None:
        if not self._stopped or self._parked is not None:
            raise TargetError(tried, "the target is running", "interrupt it first")

    def _require_live(self, tried: str) -> None:
        if self.channel.session != LIVE_KERNEL:
            raise NotLive(
                tried,
                f"this is a {self.channel.session} session",
                "attach to the machine from a second one, over KDNET or serial",
            )

    def _remark(self, sentence: str) -> None:
        if sentence not in self.remarks:
            self.remarks.append(sentence)


def open_dbgeng(
    channel: Channel,
    *,
    clock: Callable[[], float] = time.perf_counter,
    use_kb: bool = False,
) -> DbgEngEngine:
    """An engine over an open channel; the channel is closed when that fails.

    Raises:
        TargetError: the debugger does not say what its target is.
        LinkLost: it does not answer.
    """
    try:
        return DbgEngEngine(channel, clock=clock, use_kb=use_kb)
    except BaseException:
        channel.close()
        raise
