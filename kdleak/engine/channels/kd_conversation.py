"""One debugger process and what was said to it: a question, its answer, a target let run.

Every command is followed by an ``.echo`` of a mark, so the end of its output is certain whatever
the target prints. A resume is ``g`` followed by a mark: kd reads on at its next prompt only, so
the mark says that the target stopped. What a resume with a timeout leaves behind is a target that
runs, and a mark that is still to come.
"""

from __future__ import annotations

import time
from typing import Callable, Optional, Tuple

from kdleak.engine.channels.kd_process import KdProcess, Output
from kdleak.engine.channels.kd_text import new_mark, says_break_in, says_connected
from kdleak.engine.channels.secrecy import without

_STRETCH = 10  # a command that keeps printing may take this many times its time
_ABORT_SECONDS = 5.0  # for a command that took too long to give way to a break
_SETTLE_SECONDS = 60.0  # for one that Ctrl+C cut us off from
_LOST_SECONDS = 10.0  # for a link that the debugger calls lost to come back
_ASK_AGAIN = 10.0  # between two requests to break in
_SURPLUS_SECONDS = 2.0  # of running, in which a break-in left over would be noticed


class ConversationOver(Exception):
    """Why nothing more can be said to the debugger. Never leaves the channel."""


class Conversation:
    """What goes between a channel and one debugger process.

    Args:
        process: just started; it says nothing until it has attached.
        secrets: what is blanked wherever the debugger prints it.
        clock: seconds, monotonic.
        marks: gives marks that no target can foresee.

    Attributes:
        process: the debugger.
        attaching: it has not come to its first prompt.
        running: the target runs as far as this side knows.
        break_owed: a break-in may come that nobody waits for.
        processor: in the last prompt, None if it shows none.
    """

    def __init__(
        self,
        process: KdProcess,
        *,
        secrets: Tuple[str, ...] = (),
        clock: Callable[[], float] = time.monotonic,
        marks: Callable[[], str] = new_mark,
    ) -> None:
        self.process = process
        self.attaching = self.running = True
        self.break_owed = False
        self.processor: Optional[int] = None
        self._secrets = secrets
        self._clock = clock
        self._marks = marks
        self._awaited = ""  # the command whose mark is still to come, "" for none
        self._went_at = clock()
        self.ask("")

    def ask(self, command: str) -> None:
        """Send a command and the echo of a mark."""
        mark = self._marks()
        self.process.expect(mark)
        self._awaited = command or "the start"
        self.process.send(*([command] if command else []), f".echo {mark}")

    def go(self) -> None:
        """Let the target run."""
        self.running = True
        self._went_at = self._clock()
        self.ask("g")

    def answer(self) -> Output:
        """The output of the command whose mark came; the target is stopped."""
        output = self.process.take_output(self._awaited)
        self._awaited, self.attaching, self.running = "", False, False
        if output.prompt:
            self.processor = output.processor
        return Output(without(self._secrets, output.text), self.processor, output.prompt)

    def said_so_far(self) -> str:
        """What came while no mark is there."""
        return without(self._secrets, self.process.take_partial())

    def answers_within(self, seconds: float, *, stretch: bool) -> bool:
        """Wait for the mark.

        Args:
            seconds: to wait.
            stretch: wait longer as long as output keeps coming.
        """
        began = self._clock()
        deadline, latest = began + seconds, began + seconds * (_STRETCH if stretch else 1)
        while not self.process.wait_until(min(deadline, self._clock() + 1.0)):
            now = self._clock()
            if not self.process.alive() or self._stays_lost(now):
                return False
            deadline = min(latest, max(deadline, self.process.last_output + seconds / 2))
            if now >= deadline:
                return False
        return True

    def stops_before(self, deadline: Optional[float]) -> bool:
        """Wait for a running target to stop; False when the time is over.

        Raises:
            ConversationOver: the debugger ended, or the link is lost and stays so.
        """
        while True:
            soon = self._clock() + 1.0
            if self.process.wait_until(soon if deadline is None else min(soon, deadline)):
                return True
            now = self._clock()
            if not self.process.alive():
                raise ConversationOver("the debugger ended")
            if self._stays_lost(now):
                raise ConversationOver("the debugger says that the link is lost")
            if deadline is not None and now >= deadline:
                return False

    def _stays_lost(self, now: float) -> bool:
        lost_at = self.process.lost_at
        return lost_at is not None and now - lost_at > _LOST_SECONDS

    def settle(self) -> None:
        """Wait for the end of a command that an exception (Ctrl+C) left behind.

        Raises:
            ConversationOver: it does not end.
        """
        if self._awaited:
            if not self.gives_way(after=_ABORT_SECONDS, within=_SETTLE_SECONDS):
                raise ConversationOver("an earlier command does not end")
            self.answer()

    def gives_way(self, *, after: float = 0.0, within: float = 0.0) -> bool:
        """Whether a command ends, broken off if need be.

        Args:
            after: seconds it has to end by itself.
            within: seconds it has to end when it was broken off, 0 for a few.
        """
        if self.process.wait_until(self._clock() + after):
            return True
        self.process.break_in()
        return self.answers_within(within or _ABORT_SECONDS, stretch=False)

    def break_in(self, deadline: float) -> Optional[Output]:
        """Ask for a stop, again from time to time; None when none came."""
        asked = 0
        while not self.process.wait_until(self._clock()):
            now = self._clock()
            if not self.process.alive() or (asked and now >= deadline):
                return None
            self.process.break_in()
            asked += 1
            if self.process.wait_until(min(max(deadline, now + 0.1), now + _ASK_AGAIN)):
                break
        output = self.answer()
        if says_break_in(output.text):
            self.break_owed = self.break_owed or asked > 1
        elif asked:
            # Something else was first: our request is still on its way, at the target or in kd,
            # where it would break off the next command instead.
            self.break_owed = True
            self.ask(".sleep 0n250")
            if self.answers_within(_ABORT_SECONDS, stretch=False):
                self.answer()
        return output

    def counts(self, output: Output) -> bool:
        """Whether a stop counts: not a break-in that was asked for before the target stopped."""
        soon = self._clock() - self._went_at <= _SURPLUS_SECONDS
        surplus = self.break_owed and soon and says_break_in(output.text)
        if says_connected(output.text):  # it restarted: that must be seen above
            return True
        self.break_owed = False
        return not surplus

    def run_into_what_is_owed(self) -> None:
        """Let the target run for a moment, in which a break-in left over comes."""
        self.go()
        self.process.wait_until(self._clock() + _SURPLUS_SECONDS / 2)
