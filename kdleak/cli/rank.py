"""``kdleak rank``: which pool tags hold or gain memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Callable, Optional

import click

from kdleak.cli import console
from kdleak.cli.session import attached
from kdleak.cli.shared_options import ranking_options, result_options
from kdleak.cli.target_options import choose_target, target_options
from kdleak.errors import ExitCode, JournalError
from kdleak.explain import explain_rank
from kdleak.hunt_options import RankOptions
from kdleak.journal import Journal
from kdleak.model import Pool, StopKind
from kdleak.rank import rank
from kdleak.report.json_report import rank_json
from kdleak.report.text import render_rank
from kdleak.result import RankBy

_POOLS = {"both": None, "nonpaged": Pool.NONPAGED, "paged": Pool.PAGED}


@click.command("rank")
@target_options
@ranking_options
@click.option("--pool", type=click.Choice(list(_POOLS)), default="both", show_default=True)
@click.option("--top", type=click.IntRange(min=1), default=20, show_default=True, help="Rows.")
@result_options
def command(
    connection: Optional[str],
    symbol_path: Optional[str],
    timeout: float,
    verbose: int,
    by: str,
    interval: float,
    snapshots: int,
    pool: str,
    top: int,
    as_json: bool,
    output: Optional[Path],
    force: bool,
    explain_only: bool,
) -> int:
    """Rank the pool tags of a live target by growth, or by what they hold.

    The target is stopped for each snapshot only as long as reading the tag tables takes, and
    runs in between. It is left running.

    \b
    Examples:
      kdleak rank -k net:port=50000,key=1.2.3.4
      kdleak rank -k net:port=50000,key=1.2.3.4 --interval 600 --snapshots 7
      kdleak rank -k com:ipport=4555,port=127.0.0.1 --by used --json > tags.json
    """
    options = RankOptions(
        by=RankBy(by),
        seconds=interval,
        snapshots=1 if by == RankBy.USED.value else snapshots,
        pool=_POOLS[pool],
        interrupt_timeout=timeout,
    )
    options.check()
    if explain_only:
        console.print_result(explain_rank(options))
        return ExitCode.DONE
    console.refuse_overwrite(output, force=force)
    choice = choose_target(connection, symbol_path, timeout, verbose)
    view = console.ProgressView()
    with view.shown(), attached(choice, view.narrate) as session:
        _tell_left_over(session.engine.where, view.narrate)
        must_stay = session.engine.stop.kind is StopKind.BUG_CHECK
        if must_stay and options.by is RankBy.GROWTH:
            view.narrate(
                "The target is in a bug check and must not run: growth cannot be measured, so "
                "this is what the tags hold."
            )
            options = replace(options, by=RankBy.USED, snapshots=1)
        result = rank(session.engine, options, narrate=view.narrate, progress=view)
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
        return ExitCode.INTERRUPTED
    if result.gaps or result.stop is not None or result.by.value != by:
        return ExitCode.INCOMPLETE
    return ExitCode.DONE


def _tell_left_over(where: str, narrate: Callable[[str], None]) -> None:
    """Say when an earlier hunt may have left this target armed; ranking does not repair it."""
    try:
        files = Journal.default().scan().files
    except JournalError:
        return  # a ranking writes nothing and needs no journal
    if any(found.entry.where == where for found in files):
        narrate(
            "An earlier hunt may have left this target armed: it would stop at every hit. "
            "Next: kdleak restore."
        )
