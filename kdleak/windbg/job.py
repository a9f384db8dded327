"""One command with a target, carried to its end whatever comes: opened, done, left, told.

Ctrl+Break reaches Python inside WinDbg as SystemExit("CTRL+BREAK") at any bytecode, and no
signal handler can hold it off there. So what must happen is kept as steps that are done once and
in order, and gone on with after an interruption.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Callable, Generic, List, Optional, Sequence, Tuple, TypeVar

from kdleak.errors import ExitCode, ForeignStop, KdleakError
from kdleak.interrupt_guard import InterruptGuard, take_signals
from kdleak.journal import Journal
from kdleak.model import StopKind
from kdleak.report.result_file import refuse_overwrite, write_file
from kdleak.windbg.dml import Link
from kdleak.windbg.options import HelpAsked, Request, wants_trace
from kdleak.windbg.output import Output
from kdleak.windbg.recording import ignored_by_replay, recall, restore_journal, without_sleep
from kdleak.windbg.session import (
    LiveEngine,
    SessionRequest,
    channel_remarks,
    open_engine,
    recorded_options,
)

Opener = Callable[[SessionRequest, Callable[[str], None]], LiveEngine]
"""Opens the debugger that a session request names."""

_INTERRUPTIONS = 20
"""Interruptions of one ending before it is given up."""

_Result = TypeVar("_Result")


class Job(Generic[_Result]):
    """A command at work; each command fills in what it does and how it tells of it.

    Args:
        output: where everything is said.
        opener: opens the debugger.
        journal: None for the one of this user.

    Attributes:
        request: what was asked for, None until that is understood.
        engine: None until it is attached.
        result: None until there is one.
        journal: where changes of the target are written down.
        interrupted: Ctrl+C or Ctrl+Break cut something off.
    """

    title = "kdleak"
    """What the command is called in the sentence about an interruption."""

    def __init__(
        self,
        output: Output,
        opener: Optional[Opener] = None,
        journal: Optional[Journal] = None,
    ) -> None:
        self.output = output
        self.request: Optional[Request] = None
        self.engine: Optional[LiveEngine] = None
        self.result: Optional[_Result] = None
        self.interrupted = False
        self._opener = opener if opener is not None else open_engine
        self.journal = journal
        self._temporary: Optional[Path] = None
        self._recorded_at: Optional[float] = None
        self._failure: Optional[BaseException] = None
        self._trace = False
        self._code = ExitCode.DONE
        self._telling = False
        self._done: List[str] = []
        self._narrated = 0

    # --- what a command fills in

    def parse(self, arguments: Sequence[str]) -> Request:
        """The request that the arguments make."""
        raise NotImplementedError

    def explain(self, request: Request) -> str:
        """The debugger's own commands for it."""
        raise NotImplementedError

    def operate(self, engine: LiveEngine, request: Request, journal: Journal) -> _Result:
        """Do it."""
        raise NotImplementedError

    def adapted(self, request: Request, engine: LiveEngine) -> Request:
        """The request as this target can serve it: where an option has no value of its own."""
        del engine
        return request

    def text(self, result: _Result, request: Request) -> Tuple[str, Tuple[Link, ...]]:
        """The report and what can be clicked in it; the safety line comes last."""
        raise NotImplementedError

    def document(self, result: _Result) -> str:
        """The result as JSON."""
        raise NotImplementedError

    def safety(self, result: Optional[_Result]) -> str:
        """The line that says whether anything of ours is left in the target; "" for none."""
        raise NotImplementedError

    def code(self, result: _Result) -> ExitCode:
        """What the outcome is to a calling program."""
        raise NotImplementedError

    def leave_stopped(self, result: _Result) -> bool:
        """Whether the target has to stay as it is, for its user."""
        raise NotImplementedError

    # --- what differs in a replay

    @property
    def replaying(self) -> bool:
        """Whether this is a recorded session."""
        return self.request is not None and self.request.session.replay is not None

    def wall_clock(self) -> float:
        """Seconds since 1970; of a replay, when it was recorded, where the recording says so."""
        return self._recorded_at if self._recorded_at is not None else time.time()

    def sleep(self, seconds: float) -> None:
        """Wait for a lost link; not in a replay."""
        (without_sleep if self.replaying else time.sleep)(seconds)

    # --- from start to end

    def run(self, arguments: Sequence[str]) -> int:
        """Carry it out; the exit code. Raises nothing."""
        try:
            self._attempt(arguments)
        except (KeyboardInterrupt, SystemExit):
            self.interrupted = True
            self._persist()
        return int(self._code)

    def _attempt(self, arguments: Sequence[str]) -> None:
        try:
            take_signals()
            self._trace = wants_trace(arguments)
            self._work(arguments)
        except Exception as error:  # noqa: BLE001 - one sentence, no traceback, reaches a user
            self._failure = error
        self._finish()

    def _persist(self) -> None:
        """Finish, and go on with it when an interruption cuts it off."""
        for _ in range(_INTERRUPTIONS):
            try:
                self._finish()
            except (KeyboardInterrupt, SystemExit):  # noqa: PERF203 - only where not held off
                self.interrupted = True
            else:
                return

    def _work(self, arguments: Sequence[str]) -> None:
        try:
            request = self.request = self.parse(arguments)
        except HelpAsked as asked:
            self.output.result(str(asked))
            return
        if request.explain:
            self.output.result(self.explain(request))
            return
        refuse_overwrite(request.json, force=request.force)
        refuse_overwrite(request.session.record, force=request.force)
        if self.journal is None:
            self.journal = Journal.default()
        session = replace(request.session, journal=self.journal)
        for sentence in ignored_by_replay(request.ignored):
            self.output.narrate(sentence)
        engine = self.engine = self._opener(session, self.output.narrate)
        if session.replay is not None:
            request = self.request = self._recall(engine, request)
        words = "recorded" if self.replaying else "attached" if engine.target.live else "opened"
        self.output.narrate(f"{words}: {engine.target.description} ({engine.name})")
        if request.verbose:
            self._narrate_remarks(engine)
        request = self.request = self.adapted(request, engine)
        self.result = self.operate(engine, request, self.journal)

    def _recall(self, engine: LiveEngine, request: Request) -> Request:
        """The request that was recorded; a replay asks the same questions again."""
        recorded = recorded_options(getattr(engine, "channel", None))
        # A recording is no target: what is "written" to it must not look like one to restore.
        self._temporary = Path(tempfile.mkdtemp(prefix="kdleak-replay-"))
        self.journal = restore_journal(recorded, self._temporary)
        wanted = request.session.memory
        memory = recall(recorded, wanted.command) if wanted is not None else None
        if memory is None:
            return request
        self._recorded_at = memory.started_at
        return replace(request, hunt=memory.hunt, rank=memory.rank, value=memory.value)

    def _narrate_remarks(self, engine: LiveEngine) -> None:
        for remark in engine.remarks[self._narrated :]:
            self.output.narrate(remark)
        self._narrated = len(engine.remarks)

    def _finish(self) -> None:
        for step in (self._leave, self._write_json, self._tell, self._say_safety, self._clean_up):
            if step.__name__ not in self._done:
                try:
                    step()
                except Exception as error:  # noqa: BLE001 - the steps after it must come
                    self._worsen(self._explain_failure(error))
                self._done.append(step.__name__)

    def _leave(self) -> None:
        """Let go of the target. Ctrl+C waits: half-way it would leave the machine standing."""
        engine = self.engine
        if engine is None:
            return
        InterruptGuard().install()  # not removed again: what is left to do is to tell the result
        crashed = engine.target.live and engine.stop.kind is StopKind.BUG_CHECK
        stays = isinstance(self._failure, ForeignStop) or (
            self.result is not None and self.leave_stopped(self.result)
        )
        if not (self.request is not None and self.request.verbose):
            self._narrated = len(engine.remarks)
        engine.detach(leave_stopped=crashed or stays)
        for remark in channel_remarks(engine):
            self.output.narrate(remark)
        if crashed:
            self.output.narrate(
                f"The target is in a bug check ({engine.stop.detail}); it is left stopped."
            )
        self._narrate_remarks(engine)

    def _clean_up(self) -> None:
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _write_json(self) -> None:
        request, result = self.request, self.result
        if request is None or request.json is None or result is None:
            return
        try:
            write_file(self.document(result), request.json)
        except OSError as error:
            self._code = ExitCode.USAGE
            self.output.complain(
                f"writing {request.json}: {error.strerror or error}. "
                "Next: make room or name another file; the report follows."
            )

    def _tell(self) -> None:
        """The report, or what went wrong."""
        if self._failure is not None:
            self._code = self._explain_failure(self._failure)
        if self.result is not None and self.request is not None:
            self._worsen(self.code(self.result))
            if self._telling:
                self.output.complain("interrupted while the report was printed.")
            else:
                self._telling = True
                self._report(self.result, self.request)
        elif self.interrupted:
            self.output.complain(f"{self.title} was interrupted.")
        if self.interrupted:
            self._worsen(ExitCode.INTERRUPTED)

    def _report(self, result: _Result, request: Request) -> None:
        text, links = self.text(result, request)
        lines = text.splitlines()
        if lines and lines[-1] == self.safety(result):
            del lines[-1]  # said as a step of its own, so that nothing can keep it from being said
        try:
            self.output.result("\n".join(lines), links)
            live = self.engine is not None and self.engine.target.live
            if live and request.session.inside and not self.leave_stopped(result):
                self.output.result(
                    "The target is left stopped, as you had it: g lets it run.", (Link("g", "g"),)
                )
        except KdleakError as error:
            self.output.complain(str(error))
            self._worsen(error.exit_code)

    def _say_safety(self) -> None:
        attached = self.engine is not None or self.interrupted
        line = self.safety(self.result) if attached else ""
        if line:
            self.output.result(line)

    def _worsen(self, code: ExitCode) -> None:
        """Take over an exit code; an unconfirmed disarm outranks all else."""
        if self._code is not ExitCode.DISARM_NOT_CONFIRMED and code is not ExitCode.DONE:
            self._code = code

    def _explain_failure(self, error: BaseException) -> ExitCode:
        if self._trace:
            for line in traceback.format_tb(error.__traceback__):
                for part in line.splitlines():
                    self.output.narrate(part)
        if isinstance(error, KdleakError):
            self.output.complain(str(error))
            return error.exit_code
        if isinstance(error, ImportError) and not str(error.name).startswith("kdleak"):
            self.output.complain(
                f"loading a part of kdleak: the package {error.name} is not installed. "
                f"Next: install it in this Python (!pip install {error.name} inside WinDbg)."
            )
            return ExitCode.USAGE
        self.output.complain(
            f"internal error: {type(error).__name__} in kdleak itself. "
            "Next: run the same command with --debug and report what it prints."
        )
        return ExitCode.INTERNAL
