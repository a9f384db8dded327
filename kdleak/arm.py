"""Arming and disarming nt!PoolHitTag: the only code that writes to a target.

``ArmedTag`` saves the original 4 bytes, journals them, writes, reads back, and puts them back on
every way out: the end of the block, an exception, Ctrl+C, a lost link as soon as it is back.
When it cannot confirm that, it says so and the journal entry stays for ``kdleak restore``.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Callable, Iterator, Optional, Tuple, Type

from kdleak.engine.base import Engine
from kdleak.errors import (
    DisarmNotConfirmed,
    JournalError,
    LinkError,
    MemoryNotWritten,
    NotLive,
    TagAlreadyArmed,
    TargetRestarted,
    UnsupportedTarget,
    format_address,
)
from kdleak.hunt_options import check_tag
from kdleak.interrupt_guard import InterruptGuard
from kdleak.journal import Claim, Journal, JournalEntry
from kdleak.model import Stop, StopKind
from kdleak.pool_hit_tag import (
    SIZE,
    SYMBOL,
    as_number,
    describe,
    looks_armed,
    repair_commands,
)
from kdleak.result import DisarmState, DisarmStatus, TargetChange
from kdleak.tags import PoolTag

_TRIES = 3
"""Refused writes and wrong read-backs before a disarm is given up as not confirmed."""

_INTERRUPTIONS = 20
"""Interruptions of one disarm (where they cannot be held off) before it is given up."""

_RESTARTED = (
    "the target restarted, which clears what was written; if it comes back from hibernation or a "
    "fast startup its old memory does too: then run kdleak restore"
)

_RETRY_SECONDS = 10.0
"""Longest wait for a lost link before asking again."""


@dataclass
class _Patience:
    """How far one disarm has got: what went wrong so far and how long to go on."""

    pressed_before: int
    deadline: Optional[float] = None
    failures: int = 0
    why: str = ""


def write_and_read_back(engine: Engine, address: int, value: bytes) -> bytes:
    """Write 4 bytes to a stopped target and return what is there afterwards.

    Raises:
        MemoryNotWritten, MemoryUnreadable, LinkError: from the engine.
    """
    engine.write(address, value)
    return engine.read(address, SIZE)


def require_live(engine: Engine) -> None:
    """Refuse what cannot be armed, before anything is touched.

    Raises:
        NotLive: a dump, or a local kernel session, which has nobody to break into.
        UnsupportedTarget: a machine whose stacks the engine cannot walk.
    """
    if not engine.target.live:
        raise NotLive(
            f"arming {SYMBOL} in {engine.where}",
            "it is a dump: nothing runs that could allocate",
            "rank the tags of a dump with kdleak rank",
        )
    if not getattr(engine, "walks_stacks", True):
        raise UnsupportedTarget(
            f"arming {SYMBOL} in {engine.where}",
            f"the {engine.name} engine cannot walk stacks on {engine.target.architecture.value}, "
            "so no hit could be told from another stop",
            "rank the tags with kdleak rank, or hunt with WinDbg",
        )
    if getattr(engine, "local_kernel", False):
        raise NotLive(
            f"arming {SYMBOL} in {engine.where}",
            "a local kernel session cannot stop the machine it runs on: the first hit would be "
            "a break instruction with no debugger to take it",
            "debug the machine from a second one, over KDNET or serial",
        )


class ArmedTag:
    """Context manager: nt!PoolHitTag holds our tag inside, and its original value after.

    Inside the block the tag may be disarmed and armed again any number of times (bursts).

    Args:
        engine: a live engine.
        tag: what to arm.
        journal: where to write down what is changed before it is.
        interrupt_timeout: seconds to wait for the target to stop.
        grace_seconds: how long to wait for a lost link when disarming.
        clock: seconds, monotonic.
        sleep: waits between two attempts over a lost link.
        narrate: takes sentences for the user.
        on_stop: told of every stop that came instead of the break-in asked for (a hit, usually).

    Attributes:
        state: how the last disarm ended.
        times_armed: completed arm operations.
        armed_since: clock reading of the last completed arm, None while disarmed.
        seconds_armed: sum of all completed times between an arm and its disarm.
        guard: holds Ctrl+C off; ``guard.pressed`` tells that it was pressed.
    """

    def __init__(
        self,
        engine: Engine,
        tag: PoolTag,
        journal: Journal,
        *,
        interrupt_timeout: float = 30.0,
        grace_seconds: float = 120.0,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
        narrate: Callable[[str], None] = lambda _: None,
        on_stop: Optional[Callable[[Stop], None]] = None,
    ) -> None:
        self._engine = engine
        self._tag = tag
        self._journal = journal
        self._interrupt_timeout = interrupt_timeout
        self._grace_seconds = grace_seconds
        self._clock = clock
        self._sleep = sleep
        self._narrate = narrate
        self._on_stop = on_stop
        self._address = 0
        self._original: Optional[bytes] = None
        self._claim: Optional[Claim] = None
        self._may_be_armed = False
        self._gave_up = False
        self._restarted = False
        self._recorded = False
        self._for_now = False
        self.guard = InterruptGuard()
        self.state = DisarmState(DisarmStatus.NOT_NEEDED, why=f"{SYMBOL} was not written")
        self.times_armed = 0
        self.armed_since: Optional[float] = None
        self.seconds_armed = 0.0

    @property
    def change(self) -> Optional[TargetChange]:
        """What was written to the target so far, None when nothing was."""
        if self._original is None or not self.times_armed:
            return None
        return TargetChange(
            self._address, as_number(self._original), self._tag.value, self.times_armed
        )

    def __enter__(self) -> ArmedTag:  # noqa: PYI034 - no Self on 3.9
        """Check, save, journal and arm.

        Raises:
            BadTag, NotLive, SymbolNotFound: nothing was touched.
            TagAlreadyArmed: somebody else's tag is there; nothing was touched.
            TargetBusy, JournalError: nothing was touched.
            MemoryNotWritten: the target did not take the tag; it was disarmed again.
            DisarmNotConfirmed: it went wrong half-way and could not be undone.
        """
        check_tag(self._tag)
        require_live(self._engine)
        self.guard.install()
        try:
            self._save()
            self.arm()
        except BaseException as error:
            self._leave(error)
            raise
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        """Disarm.

        Raises:
            DisarmNotConfirmed: also when the block raised something else.
            KeyboardInterrupt: Ctrl+C was pressed while it was held off.
        """
        self._leave(error)
        if error is None and self.guard.pressed:
            raise KeyboardInterrupt

    def make_sure(self) -> None:
        """Disarm where an interruption kept the block's own end from doing it.

        Inside a debugger Ctrl+Break comes as an exception at any bytecode: also between the end
        of ``__enter__`` and the begin of the block. Raises nothing; ``state`` says how it ended.
        """
        for _ in range(_INTERRUPTIONS):
            try:
                if self._may_be_armed and not self._gave_up:
                    self._leave(None)
            except DisarmNotConfirmed:  # noqa: PERF203 - said by the state
                return
            except (KeyboardInterrupt, SystemExit):
                self.guard.note()
            else:
                return

    def _leave(self, error: Optional[BaseException]) -> None:
        try:
            state = self.state if self._gave_up else self.disarm()
            if state.safe and self._recorded:
                state = self.state = replace(
                    state, remarks=state.remarks + self._close_entry(state.status)
                )
        finally:
            if self._claim is not None:
                self._claim.release()
            self.guard.remove()
        if not state.safe:
            raise DisarmNotConfirmed(
                f"putting {SYMBOL} back to {describe(self._original or b'')}",
                state.why,
                "break in and run: " + "; ".join(state.repair),
            ) from error

    def _save(self) -> None:
        """Learn the original value, after repairing what an earlier run left."""
        engine = self._engine
        self._stop_target(force=False, timeout=self._interrupt_timeout)
        self._address = engine.symbol(SYMBOL)
        self._claim = self._journal.claim(engine.where, self._address)
        current = engine.read(self._address, SIZE)
        stale = self._claim.stale
        if stale is not None and stale.same_boot(engine.target, self._address):
            if current == stale.armed != stale.original:
                self._narrate(
                    f"An earlier hunt left {SYMBOL} armed with '{stale.tag.text}'; "
                    f"putting back {describe(stale.original)} first."
                )
                current = self._repair(stale)
            elif current != stale.original:
                raise self._already_armed(current)
            self._claim.close()
        elif looks_armed(current) or current == self._tag.raw:
            raise self._already_armed(current)
        self._original = current

    def _repair(self, stale: JournalEntry) -> bytes:
        """Take over what an earlier run left armed, and disarm it like our own."""
        self._original = stale.original
        self._may_be_armed = True
        state = self.disarm()
        if state.status is not DisarmStatus.CONFIRMED:
            raise TargetRestarted(
                f"putting {SYMBOL} back to {describe(stale.original)} after an earlier hunt",
                state.why,
                "attach again",
            )
        return stale.original

    def _already_armed(self, current: bytes) -> TagAlreadyArmed:
        return TagAlreadyArmed(
            f"arming {SYMBOL} with '{self._tag.text}'",
            f"it already holds {describe(current)}, which kdleak did not put there",
            "if nobody else is hunting in this target, put the idle value back with "
            f"kdleak restore --value 0x... (or ed {SYMBOL} 0 in WinDbg) and try again",
        )

    def arm(self) -> None:
        """Journal, write our tag and verify it. Stops the target first if it runs.

        Raises:
            JournalError: nothing was written.
            MemoryNotWritten: it does not read back.
            LinkError: the link failed; leaving the block disarms.
        """
        if self._original is None or self._claim is None:
            raise JournalError(f"arming {SYMBOL}", "its original value is not saved")
        if not self._recorded:
            # Before the target is stopped: synchronising a disk takes its time.
            self._claim.record(
                self._journal.entry(
                    self._engine.where,
                    self._engine.target,
                    self._address,
                    self._original,
                    self._tag.raw,
                )
            )
            self._recorded = True
        with self._minding_restarts():
            self._stop_target(force=False, timeout=self._interrupt_timeout)
        self._may_be_armed = True
        back = write_and_read_back(self._engine, self._address, self._tag.raw)
        if back != self._tag.raw:
            raise MemoryNotWritten(
                f"arming {SYMBOL} at {format_address(self._address)} with '{self._tag.text}'",
                f"it reads back as {describe(back)}",
                "check the symbols of nt: the address may be wrong",
            )
        self.times_armed += 1
        self.armed_since = self._clock()

    def resume(self, timeout: float) -> Stop:
        """Let the target run; the only place where Ctrl+C gets through.

        Raises:
            KeyboardInterrupt: the target may still run; leaving the block disarms.
            LinkLost, TargetRestarted: from the engine.
        """
        with self._minding_restarts(), self.guard.admit():
            return self._engine.resume(timeout)

    @contextlib.contextmanager
    def _minding_restarts(self) -> Iterator[None]:
        """Remember a restart: what is at our address now is no longer ours to write to."""
        try:
            yield
        except TargetRestarted:
            self._restarted = True
            raise

    def disarm(self, *, for_now: bool = False) -> DisarmState:
        """Write the original value, read it back, close the journal entry.

        Never raises for what the target, the link or the engine does. Ctrl+C is held off;
        pressing it twice gives up waiting for a lost link.

        Args:
            for_now: it will be armed again soon: the journal entry stays meanwhile, which saves
                the stopped target the time of two changes to the disk.
        """
        self._for_now = for_now
        if self._may_be_armed:
            self.guard.install()
            self.state = self._disarm(_Patience(self.guard.pressed))
            if self.state.safe:
                self._may_be_armed = False
                if self.armed_since is not None:
                    self.seconds_armed += self._clock() - self.armed_since
                self.armed_since = None
            else:
                self._gave_up = True
        return self.state

    def _disarm(self, patience: _Patience) -> DisarmState:
        for _ in range(_INTERRUPTIONS):
            try:
                while True:
                    state = self._try_to_disarm(patience)
                    if state is not None:
                        return state
            except (KeyboardInterrupt, SystemExit):  # noqa: PERF203 - only where not held off
                self.guard.note()
        return self._not_confirmed(patience.why or "interrupted again and again")

    def _try_to_disarm(self, patience: _Patience) -> Optional[DisarmState]:
        """One attempt; None when another one is worth it."""
        if self._restarted:
            return self._closed(DisarmStatus.NOT_NEEDED, _RESTARTED)
        original = self._original or b""
        try:
            self._stop_target(
                force=patience.deadline is not None,
                timeout=self._time_to_wait(patience.deadline),
            )
            back = write_and_read_back(self._engine, self._address, original)
        except TargetRestarted:
            return self._closed(DisarmStatus.NOT_NEEDED, _RESTARTED)
        except LinkError as error:
            patience.why = str(error)
            return self._wait_for_link(patience)
        except Exception as error:  # noqa: BLE001 - whatever it is, the tag may be armed
            patience.why = str(error) or type(error).__name__
        else:
            if back == original:
                return self._closed(DisarmStatus.CONFIRMED, "")
            patience.why = f"wrote {describe(original)}, but it reads {describe(back)}"
        patience.failures += 1
        return self._not_confirmed(patience.why) if patience.failures >= _TRIES else None

    def _wait_for_link(self, patience: _Patience) -> Optional[DisarmState]:
        now = self._clock()
        if patience.deadline is None:
            patience.deadline = now + self._grace_seconds
            with contextlib.suppress(OSError, ValueError):  # a closed pipe must not stop us
                self._narrate(
                    f"The link is lost with {SYMBOL} armed. Trying for up to "
                    f"{self._grace_seconds:.0f} s to get back and disarm; press Ctrl+C twice "
                    "to give up."
                )
        if now >= patience.deadline or self.guard.pressed - patience.pressed_before >= 2:
            return self._not_confirmed(patience.why)
        self._sleep(min(1.0, patience.deadline - now))
        return None

    def _time_to_wait(self, deadline: Optional[float]) -> float:
        if deadline is None:
            return self._interrupt_timeout
        left = deadline - self._clock()
        return max(0.5, min(_RETRY_SECONDS, self._interrupt_timeout, left))

    def _stop_target(self, *, force: bool, timeout: float) -> None:
        before = self._engine.stop
        if force or before.kind is StopKind.STILL_RUNNING:
            stop = self._engine.interrupt(timeout)
            # A target that stood still all along reports the stop that is booked already.
            news = replace(stop, at=before.at) != before
            if self._on_stop is not None and news and stop.kind is not StopKind.BREAK_IN:
                self._on_stop(stop)

    def _closed(self, status: DisarmStatus, why: str) -> DisarmState:
        keep = self._for_now and status is DisarmStatus.CONFIRMED
        return DisarmState(
            status,
            self._address,
            as_number(self._original or b""),
            why,
            remarks=() if keep else self._close_entry(status),
        )

    def _close_entry(self, status: DisarmStatus) -> Tuple[str, ...]:
        """Remove the journal entry, or set it aside; a remark when that fails."""
        self._recorded = False
        if self._claim is not None:
            try:
                if status is DisarmStatus.CONFIRMED:
                    self._claim.close()
                else:
                    self._claim.set_aside()  # a machine back from hibernation finds it again
            except JournalError as error:
                return (f"{error} The entry in it is done with.",)
        return ()

    def _not_confirmed(self, why: str) -> DisarmState:
        original = self._original or b""
        remarks: Tuple[str, ...] = ()
        if self._claim is not None:
            remarks = (f"The original value is kept in the journal: {self._claim.file_name}.",)
        return DisarmState(
            DisarmStatus.NOT_CONFIRMED,
            self._address,
            as_number(original),
            why.rstrip("."),
            repair_commands(original),
            remarks,
        )
