"""``!py -m kdleak.restore``: undoing what a hunt left, from inside WinDbg or with ``-k``."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional, Sequence, Tuple

from kdleak.errors import ExitCode
from kdleak.journal import Journal
from kdleak.report.json_report import restore_json
from kdleak.report.restore_text import render_restore
from kdleak.restore import restore
from kdleak.result import RestoreResult
from kdleak.windbg.dml import Link, repair_links
from kdleak.windbg.hunt_entry import WIDTH
from kdleak.windbg.job import Job
from kdleak.windbg.options import Request, parse_restore
from kdleak.windbg.output import Output
from kdleak.windbg.recording import as_replayed
from kdleak.windbg.session import LiveEngine


class RestoreJob(Job[RestoreResult]):
    """A restore; see ``Job``."""

    title = "the restore"

    def parse(self, arguments: Sequence[str]) -> Request:
        """See ``Job``."""
        return parse_restore(arguments)

    def operate(self, engine: LiveEngine, request: Request, journal: Journal) -> RestoreResult:
        """See ``Job``."""
        result = restore(engine, journal, force_value=request.value, narrate=self.output.narrate)
        return replace(result, state=as_replayed(result.state)) if self.replaying else result

    def text(self, result: RestoreResult, request: Request) -> Tuple[str, Tuple[Link, ...]]:
        """See ``Job``."""
        del request
        return render_restore(result, width=WIDTH), repair_links(result.state)

    def document(self, result: RestoreResult) -> str:
        """See ``Job``."""
        return restore_json(result)

    def safety(self, result: Optional[RestoreResult]) -> str:
        """See ``Job``: nobody knows how things stand when a restore failed."""
        if result is not None:
            return result.state.sentence()
        if self.replaying:
            return "replayed, no target was touched."
        return "nt!PoolHitTag was not looked at: run the restore again."

    def code(self, result: RestoreResult) -> ExitCode:
        """See ``Job``."""
        if not result.state.safe:
            return ExitCode.DISARM_NOT_CONFIRMED
        return ExitCode.INTERRUPTED if result.interrupted else ExitCode.DONE

    def leave_stopped(self, result: RestoreResult) -> bool:
        """See ``Job``."""
        return result.leave_stopped


def main(arguments: Sequence[str], job: Optional[RestoreJob] = None) -> int:
    """Restore as the arguments say; the exit code. Raises nothing."""
    return (job if job is not None else RestoreJob(Output.standard())).run(arguments)
