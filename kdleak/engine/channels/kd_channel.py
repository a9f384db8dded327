"""A session with kd.exe: attaching, commands, running, breaking in, leaving.

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
from kdleak.engine.channels.kd_conversation import Conversation, ConversationOver
from kdleak.engine.channels.kd_failure import link_lost, no_answer, why_it_ended
from kdleak.engine.channels.kd_process import KdProcess
from kdleak.engine.channels.kd_text import new_mark, says_connected, says_lost
from kdleak.engine.channels.patience import seconds_for
from kdleak.errors import KdleakError, PortInUse, TargetError, UsageError

_ATTACH_MORE = 60.0  # more time for a target that answered, to stop
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
        self._talk: Optional[Conversation] = None
        self._left_running = False  # where nobody is talked to
        self._closed = False
        self._deaf = 0  # break requests in a row that nothing came of
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
        return self._left_running if self._talk is None else self._talk.running

    @property
    def processor(self) -> Optional[int]:
        """Processor in the last prompt, None if it shows none."""
        return None if self._talk is None else self._talk.processor

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
            timeout: seconds; None for what such a command may take (see ``patience``), and more
                as long as output keeps coming.

        Raises:
            LinkLost: no answer in time, or the debugger ended. A command that took too long is
                broken off; a debugger that does not even react to that is killed.
            UsageError: the command cannot be sent as one line.
        """
        _check_command(command)
        tried = f"running {command.split(';', 1)[0][:40]} on {self._where}"
        talk = self._conversation(tried)
        if talk.running:
            raise TargetError(tried, "the target runs", "stop it first")
        self._settle(talk, tried)
        talk.ask(command)
        seconds = seconds_for(command) if timeout is None else timeout
        if not talk.answers_within(seconds, stretch=timeout is None):
            raise self._too_late(talk, tried, seconds)
        text = talk.answer().text
        if says_lost(text):
            raise self._lost(tried, "the debugger says that the link is lost", talk)
        return text

    def resume(self, timeout: Optional[float]) -> Resumed:
        """``g``, then wait until the target stops or the time is over.

        Raises:
            LinkLost: the debugger ended, or says that the link is lost and it stays so.
            NotLive: never from here; the engine above refuses dumps.
        """
        tried = f"waiting for {self._where} to stop"
        talk = self._conversation(tried)
        deadline = None if timeout is None else self._clock() + timeout
        if not talk.running:
            self._settle(talk, tried)
            talk.go()
        try:
            while talk.stops_before(deadline):
                output = talk.answer()
                if talk.counts(output):
                    return Resumed(output.text, processor=output.processor)
                # Asked for before the target had stopped by itself: nobody waits for it any more.
                talk.go()
        except ConversationOver as over:
            raise self._lost(tried, str(over), talk) from None
        return Resumed(talk.said_so_far(), running=True)

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
            talk = self._talk
            if talk is None or not talk.process.alive():
                return self._attach_again(deadline, timeout)
            if talk.attaching:
                return self._await_attach(deadline, timeout)
            if not talk.running:
                self._settle(talk, tried)
                return Resumed(processor=talk.processor)
            stop = talk.break_in(deadline)
            if stop is not None:
                self._deaf = 0
                return Resumed(stop.text, processor=stop.processor)
            if talk.process.alive():
                self._deaf += 1
                if self._deaf < 2:
                    raise self._kept(talk, tried, timeout)
                raise self._lost(tried, f"it did not stop within {timeout:.0f} s", talk)
            if self._clock() >= deadline:
                raise self._lost(tried, "the debugger ended", talk)

    def close(self, leave_stopped: bool = False) -> None:
        """End the debugger; a live target runs on unless ``leave_stopped``.

        A running target is broken into first, see above. Never raises for a lost link.
        """
        self._closed = True
        atexit.unregister(self.close)
        talk, self._talk = self._talk, None
        if talk is None:
            return
        self._left_running = not leave_stopped
        farewell = "q" if leave_stopped or self._session != LIVE_KERNEL else "qd"
        try:
            with contextlib.suppress(KdleakError):
                self._leave(talk, farewell)
        except BaseException:  # Ctrl+C: not a second long wait, but the target must be let go
            talk.process.send(farewell)
            talk.process.wait_for_end(1.0)
            raise
        finally:
            talk.process.end()

    # -- attaching

    def _spawn(self) -> None:
        self._deaf = 0
        process = self._start(self._command)
        try:
            self._talk = Conversation(
                process, secrets=self._secrets, clock=self._clock, marks=self._marks
            )
        except BaseException:
            process.end()
            raise
        atexit.register(self.close)

    def _await_attach(self, deadline: float, seconds: float) -> Resumed:
        """Wait for the first prompt; the process stays when the time is over."""
        talk = self._conversation(f"attaching to {self._where}")
        process = talk.process
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
        output = talk.answer()
        self.sessions += 1
        # kd asked for a break; a target that was stopped already has it still to come.
        talk.break_owed = self._session == LIVE_KERNEL
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

    # -- endings

    def _conversation(self, tried: str) -> Conversation:
        if self._talk is None:
            raise link_lost(tried, "the debugger has ended", "")
        return self._talk

    def _settle(self, talk: Conversation, tried: str) -> None:
        try:
            talk.settle()
        except ConversationOver as over:
            raise self._lost(tried, str(over), talk) from None

    def _too_late(self, talk: Conversation, tried: str, seconds: float) -> KdleakError:
        """A command that gave no answer: broken off if it can be, else the debugger goes."""
        process = talk.process
        if not process.alive():
            return self._lost(tried, "the debugger ended", talk)
        if process.lost_at is None and talk.gives_way():
            talk.answer()
            return self._kept(talk, tried, seconds)
        return self._lost(tried, f"no answer within {seconds:.0f} s", talk)

    def _kept(self, talk: Conversation, tried: str, seconds: float) -> KdleakError:
        """The error for something that took too long; the debugger stays."""
        why = f"no answer within {seconds:.0f} s"
        return link_lost(tried, why, talk.process.tail, secrets=self._secrets)

    def _lost(self, tried: str, why: str, talk: Conversation) -> KdleakError:
        """The error for a session that is over; the debugger is ended."""
        process = talk.process
        code = process.exit_code
        if not process.alive() and code is not None:
            why = f"the debugger ended (exit code {code})"
        error = link_lost(tried, why, process.tail, secrets=self._secrets)
        self._discard()
        return error

    def _discard(self) -> None:
        """End the debugger at once."""
        talk, self._talk = self._talk, None
        self._left_running = True
        if talk is not None:
            talk.process.end()

    def _abandon(self) -> None:
        """Give up attaching: a target that answered is let go before the debugger ends."""
        process = self._talk.process if self._talk is not None else None
        if process is not None and process.alive() and says_connected(process.tail):
            process.send("qd")
            process.wait_for_end(3.0)
        self._discard()
        atexit.unregister(self.close)

    def _leave(self, talk: Conversation, farewell: str) -> None:
        """Let the debugger leave the target in the state wanted."""
        process = talk.process
        if not process.alive():
            return
        if self._session == LIVE_KERNEL:
            if talk.attaching:
                if not says_connected(process.tail):
                    return
            elif not self._stop_to_leave(talk, may_run=farewell == "qd"):
                return
        process.send(farewell)
        if not process.wait_for_end(_LEAVE_SECONDS) and farewell == "qd":
            process.send("g")  # it did not understand: at least the target runs
            process.wait_for_end(1.0)

    def _stop_to_leave(self, talk: Conversation, *, may_run: bool) -> bool:
        """Stop the target, with no break-in left over that would freeze it afterwards.

        Returns:
            False when it does not stop.
        """
        if not talk.running:
            self._settle(talk, f"leaving {self._where}")
            if talk.break_owed and may_run:
                talk.run_into_what_is_owed()
        if not talk.running:
            return True
        talk.break_owed = False
        return talk.break_in(self._clock() + _LEAVE_SECONDS) is not None


def _check_command(command: str) -> None:
    if len(command) > _LONGEST_COMMAND or not command.isprintable() or not command.strip():
        raise UsageError(
            "running a debugger command",
            f"it is no single line of 1 to {_LONGEST_COMMAND} printable characters",
        )
