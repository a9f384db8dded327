"""``!py -m kdleak.rank``: the ranking inside WinDbg, or from a plain Python with ``-k``."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional, Sequence, Tuple

from kdleak.errors import ExitCode
from kdleak.explain import explain_rank
from kdleak.hunt_options import RankOptions
from kdleak.journal import Journal
from kdleak.rank import exit_code, rank, used_if_crashed
from kdleak.report.json_report import rank_json
from kdleak.report.rank_text import render_rank
from kdleak.result import RankBy, RankResult
from kdleak.windbg.dml import Link, rank_links
from kdleak.windbg.hunt_entry import WIDTH
from kdleak.windbg.job import Job
from kdleak.windbg.options import Request, parse_rank
from kdleak.windbg.output import Output, Progress
from kdleak.windbg.recording import clock_of
from kdleak.windbg.session import LiveEngine


class RankJob(Job[RankResult]):
    """A ranking; see ``Job``."""

    title = "the ranking"

    def parse(self, arguments: Sequence[str]) -> Request:
        """See ``Job``."""
        return parse_rank(arguments)

    def explain(self, request: Request) -> str:
        """See ``Job``."""
        return explain_rank(request.rank or RankOptions())

    def adapted(self, request: Request, engine: LiveEngine) -> Request:
        """See ``Job``: a dump is one moment, so nothing grows in it."""
        options = request.rank or RankOptions()
        chosen = request.by_given and not self.replaying
        if engine.target.live or options.by is RankBy.USED or chosen:
            return request
        return replace(request, rank=replace(options, by=RankBy.USED, snapshots=1))

    def operate(self, engine: LiveEngine, request: Request, journal: Journal) -> RankResult:
        """See ``Job``: a target in a bug check must not run, so only what is held is ranked."""
        del journal  # a ranking writes nothing
        narrate = self.output.narrate
        return rank(
            engine,
            used_if_crashed(request.rank or RankOptions(), engine, narrate),
            clock=clock_of(engine),
            narrate=narrate,
            progress=Progress(narrate),
        )

    def text(self, result: RankResult, request: Request) -> Tuple[str, Tuple[Link, ...]]:
        """See ``Job``."""
        return render_rank(result, width=WIDTH, top=request.top), rank_links(result)

    def document(self, result: RankResult) -> str:
        """See ``Job``."""
        return rank_json(result)

    def safety(self, result: Optional[RankResult]) -> str:
        """See ``Job``: a ranking writes nothing, so there is nothing to say."""
        del result
        return ""

    def code(self, result: RankResult) -> ExitCode:
        """See ``Job``."""
        asked = self.request.rank.by if self.request and self.request.rank else result.by
        return exit_code(result, asked)

    def leave_stopped(self, result: RankResult) -> bool:
        """See ``Job``."""
        return result.leave_stopped


def main(arguments: Sequence[str], job: Optional[RankJob] = None) -> int:
    """Rank as the arguments say; the exit code. Raises nothing."""
    return (job if job is not None else RankJob(Output.standard())).run(arguments)
