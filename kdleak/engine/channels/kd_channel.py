"""The conversation with kd.exe: commands and their marks, running, breaking in, leaving.

Every command is followed by an ``.echo`` of a mark, so the end of its output is certain whatever
the target prints. A resume is ``g`` followed by a mark: kd reads on at its next prompt only, so
the mark says that the target stopped. What a resume with a timeout leaves behind is a target that
runs, and a mark that is still to come.

How a session ends matters more than anything else here, because the target of a debugger that
vanishes at the wrong moment stays frozen. ``close`` therefore breaks into a running target first
(some milliseconds) and then lets kd leave with ``qd``: killing kd while the target runs would do
no harm most of the time, but a target that reports a module load or a break at that very moment
waits for its answer for ever. Only a debugger that no longer obeys is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import time
from typing import Callable, List, Optional, Tuple

from kdleak.engine.channels.base import DUMP, LIVE_KERNEL, QuickAccess, Resumed
from kdleak.engine.channels.kd_failure import link_lost, no_answer, why_it_ended
from kdleak.engine.channels.kd_process import KdProcess, Output
from kdleak.engine.channels.kd_text import (
    new_mark,
    says_break_in,
    says_connected,
    says_lost,
)
from kdleak.engine.channels.secrecy import without
from kdleak.errors import KdleakError, PortInUse, TargetError, UsageError

_COMMAND_SECONDS = 60.0
_SLOW_COMMAND_SECONDS = 300.0  # .reload, and extensions that walk the pool
_STRETCH = 10  # a command that keeps printing may take this many times its time
_ABORT_SECONDS = 5.0  # for a command that took too long to give way to a break
_LOST_SECONDS = 10.0  # for a link that the debugger calls lost to come back
_ATTACH_MORE = 60.0  # more time for a target that answered, to stop
_ASK_AGAIN = 10.0  # between two requests to break in
_SURPLUS_SECONDS = 2.0  # of running, in which a break-in left over would be noticed
_LEAVE_SECONDS = 10.0  # for the target to stop, and for kd to end, when leaving
_LONGEST_COMMAND = 2000  # characters: a pipe of Windows holds 4096 bytes


class KdChannel:
    """A kd.exe behind pipes; see ``open_kd``.

    Args:
        command: program and arguments; never shown.
        where: the target as it may be shown.
        session: ``LIVE_KERNEL``, ``LOCAL_KERNEL`` or ``DUMP``.
        secrets: what is blanked wherever the debugger prints it.
        start: starts the process.
        clock: seconds, monotonic.
        marks: gives marks that no target can foresee.

    Attributes:
        sessions: debugger processes attached so far. When ``interrupt`` had to start a new one,
            what was set in the old one (``.inline``, loaded symbols) must be set again.
    """

    def __init__(
        self,
        command: List[str],
        *,
        where: str,
        session: str = LIVE_KERNEL,
        secrets: Tuple[str, ...] = (),
        start: Optional[Callable[[List[str]], KdProcess]] = None,
        clock: Callable[[], float] = time.monotonic,
        marks: Callable[[], str] = new_mark,
    ) -> None:
        self._command = command
        self._where = where
        self._session = session
        self._secrets = secrets
        self._start = start or (lambda words: KdProcess(words, clock=clock))
        self._clock = clock
        self._marks = marks
        self._process: Optional[KdProcess] = None
        self._awaited = ""  # the command whose mark is still to come, "" for none
        self._attaching = False
        self._running = False
        self._closed = False
        self._deaf = 0  # break requests in a row that nothing came of
        self._break_owed = False  # a break-in may come that nobody waits for
        self._went_at = clock()
        self._processor: Optional[int] = None
        self.sessions = 0

    @property
    def name(self) -> str:
        """Kind of binding."""
        return "kd"

    @property
    def where(self) -> str:
        """The target as the user named it, without secrets."""
        return self._where

    @property
    def session(self) -> str:
        """What is at the other end."""
        return self._session

    @property
    def quick(self) -> Optional[QuickAccess]:
        """None: pipes carry text only."""
        return None

    @property
    def running(self) -> bool:
        """Whether the target runs as far as this side knows; also after the link was lost."""
        return self._running

    @property
    def processor(self) -> Optional[int]:
        """Processor in the last prompt, None if it shows none."""
        return self._processor

    def attach(self, timeout: float) -> Resumed:
        """Start the debugger and wait until the target is stopped.

        Returns:
            What the debugger said meanwhile.

        Raises:
            NoTarget, PortInUse, BadConnection, TargetError: and the process is gone.
        """
        try:
            self._spawn()
            return self._await_attach(self._clock() + timeout, timeout)
        except BaseException:
            self._abandon()
            raise

    def execute(self, command: str, timeout: Optional[float] = None) -> str:
        """Run one command line on the stopped target and return its text.

        Args:
            command: without line ends, at most 2,000 characters.
            timeout: seconds; None for 60 (300 for ``.reload`` and extension commands), and more
                as long as output keeps coming.

        Raises:
            LinkLost: no answer in time, or the debugger ended. A command that took too long is
                broken off; a debugger that does not even react to that is killed.
            UsageError: the command cannot be sent as one line.
        """
        _check_command(command)
        tried = f"running {command.split(';', 1)[0][:40]} on {self._where}"
        process = self._session_process(tried)
        if self._running:
            raise TargetError(tried, "the target runs", "stop it first")
        self._settle(process, tried)
        self._ask(process, command)
        seconds = _default_seconds(command) if timeout is None else timeout
        if not self._await_answer(process, seconds, stretch=timeout is None):
            raise self._too_late(process, tried, seconds)
        text = self._answer(process).text
        if says_lost(text):
            raise self._lost(tried, "the debugger says that the link is lost", process)
        return text

    def resume(self, timeout: Optional[float]) -> Resumed:
        """``g``, then wait until the target stops or the time is over.

        Raises:
            LinkLost: the debugger ended, or says that the link is lost and it stays so.
            NotLive: never from here; the engine above refuses dumps.
        """
        tried = f"waiting for {self._where} to stop"
        process = self._session_process(tried)
        deadline = None if timeout is None else self._clock() + timeout
        if not self._running:
            self._settle(process, tried)
            self._go(process)
        while self._await_stop(process, deadline, tried):
            output = self._answer(process)
            if self._no_surplus(output):
                return Resumed(output.text, processor=output.processor)
            # Asked for before the target had stopped by itself: nobody waits for it any more.
            self._go(process)
        return Resumed(without(self._secrets, process.take_partial()), running=True)

    def interrupt(self, timeout: float) -> Resumed:
        """Stop a running target; attach again if the debugger is gone.

        Raises:
            LinkLost, NoTarget: it did not stop in time. May be called again: a debugger that
                was deaf twice is replaced by a new one, and one that waits for the target to
                connect goes on waiting.
        """
        deadline = self._clock() + timeout
        tried = f"stopping {self._where}"
        if self._closed:
            raise link_lost(tried, "the session is closed", "")
        while True:
            process = self._process
            if process is None or not process.alive():
                return self._attach_again(deadline, timeout)
            if self._attaching:
                return self._await_attach(deadline, timeout)
            if not self._running:
                self._settle(process, tried)
                return Resumed(processor=self._processor)
            stop = self._break_in(process, deadline)
            if stop is not None:
                self._deaf = 0
                return stop
            if process.alive():
                self._deaf += 1
                if self._deaf < 2:
                    raise self._kept(process, tried, timeout)
                raise self._lost(tried, f"it did not stop within {timeout:.0f} s", process)
            if self._clock() >= deadline:
                raise self._lost(tried, "the debugger ended", process)

    def close(self, leave_stopped: bool = False) -> None:
        """End the debugger; a live target runs on unless ``leave_stopped``.

        A running target is broken into first, see above. Never raises for a lost link.
        """
        self._closed = True
        atexit.unregister(self.close)
        process, self._process = self._process, None
        if process is None:
            return
        farewell = "q" if leave_stopped or self._session != LIVE_KERNEL else "qd"
        try:
            with contextlib.suppress(KdleakError):
                self._leave(process, farewell)
        except BaseException:  # Ctrl+C: not a second long wait, but the target must be let go
            process.send(farewell)
            process.wait_for_end(1.0)
            raise
        finally:
            process.end()
            self._awaited, self._attaching, self._running = "", False, not leave_stopped

    # -- attaching

    def _spawn(self) -> KdProcess:
        self._attaching, self._running, self._deaf = True, True, 0
        self._process = process = self._start(self._command)
        self._ask(process, "")
        atexit.register(self.close)
        return process

    def _await_attach(self, deadline: float, seconds: float) -> Resumed:
        """Wait for the first prompt; the process stays when the time is over."""
        process = self._session_process(f"attaching to {self._where}")
        latest = deadline + _ATTACH_MORE
        while not process.wait_until(deadline):
            if not process.alive():
                raise why_it_ended(
                    process.tail,
                    where=self._where,
                    live=self._session != DUMP,
                    exit_code=process.exit_code,
                    secrets=self._secrets,
                )
            # A target that answered may be frozen already: leaving it now is the worst choice.
            answered = self._session != LIVE_KERNEL or says_connected(process.tail)
            if not answered or deadline >= latest:
                raise no_answer(
                    process.tail,
                    where=self._where,
                    live=self._session == LIVE_KERNEL,
                    seconds=seconds,
                    secrets=self._secrets,
                )
            deadline = min(latest, deadline + 5.0)
        output = self._answer(process)
        return Resumed(output.text, processor=output.processor)

    def _attach_again(self, deadline: float, seconds: float) -> Resumed:
        """A new debugger in place of the one that is gone."""
        while True:
            self._discard()
            self._spawn()
            try:
                return self._await_attach(deadline, seconds)
            except PortInUse:  # the system has not taken it back from the old one yet
                self._discard()
                if self._clock() + 1.0 >= deadline:
                    raise
                time.sleep(0.5)

    # -- one question, one answer

    def _ask(self, process: KdProcess, command: str) -> None:
        """Send a command and the echo of a mark."""
        mark = self._marks()
        process.expect(mark)
        self._awaited = command or "the start"
        process.send(*([command] if command else []), f".echo {mark}")

    def _go(self, process: KdProcess) -> None:
        self._running = True
        self._went_at = self._clock()
        self._ask(process, "g")

    def _answer(self, process: KdProcess) -> Output:
        """The output of the command whose mark came."""
        output = process.take_output(self._awaited)
        self._awaited, self._running = "", False
        if self._attaching:
            self._attaching = False
            self.sessions += 1
            # kd asked for a break; a target that was stopped already has it still to come.
            self._break_owed = self._session == LIVE_KERNEL
        if output.prompt:
            self._processor = output.processor
        return Output(without(self._secrets, output.text), self._processor, output.prompt)

    def _await_answer(self, process: KdProcess, seconds: float, *, stretch: bool) -> bool:
        began = self._clock()
        deadline, latest = began + seconds, began + seconds * (_STRETCH if stretch else 1)
        while not process.wait_until(min(deadline, self._clock() + 1.0)):
            now = self._clock()
            if not process.alive():
                return False
            if process.lost_at is not None and now - process.lost_at > _LOST_SECONDS:
                return False
            deadline = min(latest, max(deadline, process.last_output + seconds / 2))
            if now >= deadline:
                return False
        return True

    def _await_stop(self, process: KdProcess, deadline: Optional[float], tried: str) -> bool:
        """True when the target stopped, False when the time is over."""
        while True:
            soon = self._clock() + 1.0
            if process.wait_until(soon if deadline is None else min(soon, deadline)):
                return True
            now = self._clock()
            if not process.alive():
                raise self._lost(tried, "the debugger ended", process)
            if process.lost_at is not None and now - process.lost_at > _LOST_SECONDS:
                raise self._lost(tried, "the debugger says that the link is lost", process)
            if deadline is not None and now >= deadline:
                return False

    def _no_surplus(self, output: Output) -> bool:
        """Whether a stop counts: not a break-in that was asked for before the target stopped."""
        soon = self._clock() - self._went_at <= _SURPLUS_SECONDS
        surplus = self._break_owed and soon and says_break_in(output.text)
        if says_connected(output.text):  # it restarted: that must be seen above
            return True
        self._break_owed = False
        return not surplus

    def _settle(self, process: KdProcess, tried: str) -> None:
        """Wait for the end of a command that an exception (Ctrl+C) left behind."""
        if self._awaited:
            if not process.wait_until(self._clock() + _ABORT_SECONDS):
                process.break_in()
                if not self._await_answer(process, _COMMAND_SECONDS, stretch=False):
                    raise self._lost(tried, "an earlier command does not end", process)
            self._answer(process)

    def _break_in(self, process: KdProcess, deadline: float) -> Optional[Resumed]:
        """Ask for a stop, again from time to time; None when none came."""
        asked = 0
        while not process.wait_until(self._clock()):
            now = self._clock()
            if not process.alive() or (asked and now >= deadline):
                return None
            process.break_in()
            asked += 1
            if process.wait_until(min(max(deadline, now + 0.1), now + _ASK_AGAIN)):
                break
        output = self._answer(process)
        if says_break_in(output.text):
            self._break_owed = self._break_owed or asked > 1
        elif asked:
            # Something else was first: our request is still on its way, at the target or in kd,
            # where it would break off the next command instead.
            self._break_owed = True
            self._absorb(process)
        return Resumed(output.text, processor=output.processor)

    def _absorb(self, process: KdProcess) -> None:
        self._ask(process, ".sleep 0n250")
        if self._await_answer(process, _ABORT_SECONDS, stretch=False):
            self._answer(process)

    # -- endings

    def _session_process(self, tried: str) -> KdProcess:
        if self._process is None:
            raise link_lost(tried, "the debugger has ended", "")
        return self._process

    def _too_late(self, process: KdProcess, tried: str, seconds: float) -> KdleakError:
        """A command that gave no answer: broken off if it can be, else the debugger goes."""
        if not process.alive():
            return self._lost(tried, "the debugger ended", process)
        why = f"no answer within {seconds:.0f} s"
        if process.lost_at is None:
            process.break_in()
            if process.wait_until(self._clock() + _ABORT_SECONDS):
                self._answer(process)
                return self._kept(process, tried, seconds)
        return self._lost(tried, why, process)

    def _kept(self, process: KdProcess, tried: str, seconds: float) -> KdleakError:
        """The error for something that took too long; the debugger stays."""
        why = f"no answer within {seconds:.0f} s"
        return link_lost(tried, why, process.tail, secrets=self._secrets)

    def _lost(self, tried: str, why: str, process: KdProcess) -> KdleakError:
        """The error for a session that is over; the debugger is ended."""
        code = process.exit_code
        if not process.alive() and code is not None:
            why = f"the debugger ended (exit code {code})"
        error = link_lost(tried, why, process.tail, secrets=self._secrets)
        self._discard()
        return error

    def _discard(self) -> None:
        """End the debugger at once."""
        process, self._process = self._process, None
        self._awaited, self._attaching, self._running = "", False, True
        if process is not None:
            process.end()

    def _abandon(self) -> None:
        """Give up attaching: a target that answered is let go before the debugger ends."""
        process = self._process
        if process is not None and process.alive() and says_connected(process.tail):
            process.send("qd")
            process.wait_for_end(3.0)
        self._discard()
        atexit.unregister(self.close)

    def _leave(self, process: KdProcess, farewell: str) -> None:
        """Let the debugger leave the target in the state wanted."""
        if not process.alive():
            return
        if self._session == LIVE_KERNEL:
            if self._attaching:
                if not says_connected(process.tail):
                    return
            elif not self._stop_to_leave(process, may_run=farewell == "qd"):
                return
        process.send(farewell)
        if not process.wait_for_end(_LEAVE_SECONDS) and farewell == "qd":
            process.send("g")  # it did not understand: at least the target runs
            process.wait_for_end(1.0)

    def _stop_to_leave(self, process: KdProcess, *, may_run: bool) -> bool:
        """Stop the target, with no break-in left over that would freeze it afterwards.

        Returns:
            False when it does not stop.
        """
        if not self._running:
            self._settle(process, f"leaving {self._where}")
            if self._break_owed and may_run:
                self._go(process)
                process.wait_until(self._clock() + _SURPLUS_SECONDS / 2)
        if not self._running:
            return True
        self._break_owed = False
        return self._break_in(process, self._clock() + _LEAVE_SECONDS) is not None


def _check_command(command: str) -> None:
    if len(command) > _LONGEST_COMMAND or not command.isprintable() or not command.strip():
        raise UsageError(
            "running a debugger command",
            f"it is no single line of 1 to {_LONGEST_COMMAND} printable characters",
        )


def _default_seconds(command: str) -> float:
    slow = ".reload" in command or "!" in command.split(None, 1)[0] or ";!" in command
    return _SLOW_COMMAND_SECONDS if slow else _COMMAND_SECONDS
