"""``kdleak rank``: which pool tags hold or gain memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Callable, Optional, Tuple

import click
from click.core import ParameterSource

from kdleak.cli import console
from kdleak.cli.session import attached
from kdleak.cli.shared_options import (
    max_size_option,
    pool_option,
    ranking_options,
    result_options,
    top_option,
)
from kdleak.cli.target_options import TargetOptions, choose_target, target_options
from kdleak.errors import ExitCode, JournalError, UsageError
from kdleak.explain import explain_rank
from kdleak.hunt_options import RankOptions
from kdleak.journal import Journal
from kdleak.model import Pool
from kdleak.rank import exit_code, rank, used_if_crashed
from kdleak.report.json_report import rank_json
from kdleak.report.rank_text import render_rank
from kdleak.result import RankBy
from kdleak.windbg.recording import Memory


@click.command("rank")
@target_options
@ranking_options
@pool_option
@top_option(20)
@click.option(
    "--log",
    "logs",
    multiple=True,
    metavar="FILE",
    help="Rank the lists in a log instead of a target; give it again for growth between logs.",
)
@max_size_option
@result_options
@click.pass_context
def command(
    context: click.Context,
    target: TargetOptions,
    by: str,
    interval: float,
    snapshots: int,
    pool: Optional[Pool],
    top: int,
    logs: Tuple[str, ...],
    max_size: int,
    as_json: bool,
    output: Optional[Path],
    force: bool,
    explain_only: bool,
) -> int:
    """Rank the pool tags of a live target by growth, or by what they hold.

    Of a crash dump (-z) by what they hold: it is one moment, and growth takes two (kdleak diff).

    A live target is stopped for each snapshot only as long as reading the tag tables takes, and
    runs in between. It is left running.

    \b
    Examples:
      kdleak rank -k net:port=50000,key=1.2.3.4
      kdleak rank -k net:port=50000,key=1.2.3.4 --interval 600 --snapshots 7
      kdleak rank -k com:ipport=4555,port=127.0.0.1 --by used --json > tags.json
      kdleak rank -z MEMORY.DMP
      kdleak rank --log before.txt --log after.txt
    """
    if logs:
        from kdleak.cli.rank_logs import rank_logs  # noqa: PLC0415 - slow; a target needs none

        if target.connection or target.dump or target.replay or target.record or explain_only:
            raise UsageError(
                "ranking the tags of logs",
                "-k, -z, --replay, --record and --explain are about a target",
                "give either --log or a target",
            )
        return rank_logs(
            logs,
            by=RankBy(by) if _given(context, "by") else None,
            pool=pool,
            top=top,
            max_size=max_size,
            as_json=as_json,
            output=output,
            force=force,
        )
    if target.dump is not None:
        by = _by_of_dump(target.dump, RankBy(by) if _given(context, "by") else None).value
    options = RankOptions(
        by=RankBy(by),
        seconds=interval,
        snapshots=1 if by == RankBy.USED.value else snapshots,
        pool=pool,
        interrupt_timeout=target.timeout,
    )
    options.check()
    if explain_only:
        console.print_result(explain_rank(options))
        return ExitCode.DONE
    console.refuse_overwrite(output, force=force)
    console.refuse_overwrite(target.record, force=force)
    choice = choose_target(target)
    choice = replace(choice, request=replace(choice.request, overwrite=force))
    memory = Memory("rank", rank=options, use_kb=target.kb)
    view = console.ProgressView()
    with view.shown(), attached(choice, memory, view.narrate) as session:
        options = session.memory.rank or options
        if session.live:
            _tell_left_over(session.journal, session.engine.where, view.narrate)
        elif options.by is RankBy.GROWTH:  # of a recording made inside a debugger
            options = replace(options, by=RankBy.USED, snapshots=1)
        result = rank(
            session.engine,
            used_if_crashed(options, session.engine, view.narrate),
            clock=session.clock,
            narrate=view.narrate,
            progress=view,
        )
        session.leave_stopped = result.leave_stopped
    text = (
        rank_json(result)
        if as_json
        else render_rank(
            result,
            width=console.width(),
            style=console.palette(output),
            top=top,
        )
    )
    console.write_result(text, output, force=force)
    if result.interrupted:
        console.narrate("interrupted: the ranking covers what was measured until then.")
    return exit_code(result, options.by)


def _given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _by_of_dump(dump: Path, chosen: Optional[RankBy]) -> RankBy:
    """How to rank the tags of a dump: there is one way.

    Raises:
        UsageError: growth was asked for.
    """
    if chosen is RankBy.GROWTH:
        raise UsageError(
            f"ranking the tags of {dump} by growth",
            "a crash dump is one moment of a machine",
            "rank it by what the tags hold (--by used, the default with -z), or compare two "
            "dumps: kdleak diff A B",
        )
    return RankBy.USED


def _tell_left_over(journal: Journal, where: str, narrate: Callable[[str], None]) -> None:
    """Say when an earlier hunt may have left this target armed; ranking does not repair it."""
    try:
        files = journal.scan().files
    except JournalError:
        return  # a ranking writes nothing and needs no journal
    if any(found.entry.where == where for found in files):
        narrate(
            "An earlier hunt may have left this target armed: it would stop at every hit. "
            "Next: kdleak restore."
        )
