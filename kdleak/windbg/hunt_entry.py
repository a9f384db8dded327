"""``!py -m kdleak.hunt``: the hunt inside WinDbg, or from a plain Python with ``-k``."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Callable, Optional, Sequence, Tuple

from kdleak.engine.base import Engine
from kdleak.engine.blocks import block_finder
from kdleak.errors import DisarmNotConfirmed, ExitCode, JournalError, KdleakError
from kdleak.hunt import BlockFinderFactory, explain, hunt
from kdleak.hunt_options import HuntOptions
from kdleak.hunt_outcome import exit_code
from kdleak.journal import Journal
from kdleak.report.hunt_text import render_hunt
from kdleak.report.json_report import hunt_json
from kdleak.result import DisarmState, DisarmStatus, HuntResult
from kdleak.windbg.dml import Link, hunt_links
from kdleak.windbg.job import Job, Opener
from kdleak.windbg.options import Request, parse_hunt
from kdleak.windbg.output import Output, Progress
from kdleak.windbg.recording import as_replayed, clock_of
from kdleak.windbg.session import LiveEngine

WIDTH = 100
"""Characters per line of a report: debuggers do not tell the width of their window."""

Hunt = Callable[..., HuntResult]

_NOT_CONFIRMED = partial(DisarmState, DisarmStatus.NOT_CONFIRMED)


class HuntJob(Job[HuntResult]):
    """A hunt; see ``Job``.

    Args:
        output: where everything is said.
        opener: opens the debugger.
        journal: None for the one of this user.
        finder: makes what finds block addresses and sizes.
        hunter: does the hunt.
    """

    title = "the hunt"

    def __init__(
        self,
        output: Output,
        opener: Optional[Opener] = None,
        journal: Optional[Journal] = None,
        finder: BlockFinderFactory = block_finder,
        hunter: Hunt = hunt,
    ) -> None:
        super().__init__(output, opener, journal)
        self._finder = finder
        self._hunter = hunter

    def parse(self, arguments: Sequence[str]) -> Request:
        """See ``Job``."""
        return parse_hunt(arguments)

    def explain(self, request: Request) -> str:
        """See ``Job``."""
        return explain(request.hunt or HuntOptions())

    def operate(self, engine: Engine, request: Request, journal: Journal) -> HuntResult:
        """See ``Job``."""
        result = self._hunter(
            engine,
            request.hunt or HuntOptions(),
            journal=journal,
            block_finder_factory=self._finder,
            clock=clock_of(engine),
            wall_clock=self.wall_clock,
            sleep=self.sleep,
            narrate=self.output.narrate,
            progress=Progress(self.output.narrate),
            frameworks=request.frameworks,
            owner_of=request.tag_lists.known_owner,
        )
        return replace(result, disarm=as_replayed(result.disarm)) if self.replaying else result

    def text(self, result: HuntResult, request: Request) -> Tuple[str, Tuple[Link, ...]]:
        """See ``Job``."""
        return render_hunt(result, width=WIDTH, top=request.top), hunt_links(result, request.top)

    def document(self, result: HuntResult) -> str:
        """See ``Job``."""
        return hunt_json(result)

    def safety(self, result: Optional[HuntResult]) -> str:
        """See ``Job``: without a result the journal knows whether anything was left."""
        if result is not None:
            return result.disarm.sentence()
        failure = self._failure
        if isinstance(failure, DisarmNotConfirmed):
            return self._told(_NOT_CONFIRMED(why=failure.came_back.rstrip(".")))
        if self.engine is not None and not isinstance(failure, KdleakError) and self._left_over():
            return self._told(_NOT_CONFIRMED(why="the journal still has an entry for it"))
        return self._told(DisarmState(DisarmStatus.NOT_NEEDED))

    def _told(self, state: DisarmState) -> str:
        return (as_replayed(state) if self.replaying else state).sentence()

    def _left_over(self) -> bool:
        """Whether the journal has an open entry for this target."""
        try:
            files = self.journal.scan().files if self.journal is not None else ()
        except JournalError:
            return True
        where = self.engine.where if self.engine is not None else ""
        return any(found.entry.where == where for found in files)

    def code(self, result: HuntResult) -> ExitCode:
        """See ``Job``."""
        return exit_code(result)

    def leave_stopped(self, result: HuntResult) -> bool:
        """See ``Job``: a link that could not be got back to disarm is not worth another wait."""
        return result.leave_stopped or not result.disarm.safe


def main(arguments: Sequence[str], job: Optional[HuntJob] = None) -> int:
    """Hunt as the arguments say.

    Args:
        arguments: without the program's name.
        job: what carries it out; None for an ordinary one.

    Returns:
        The exit code. Raises nothing: everything is said on stdout and stderr.
    """
    return (job if job is not None else HuntJob(Output.standard())).run(arguments)


__all__ = ["HuntJob", "LiveEngine", "main"]
