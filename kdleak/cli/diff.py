"""``kdleak diff``: what grew between crash dumps of one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Optional, Tuple

import click

from kdleak.cli import console
from kdleak.cli.dump_file import opened_dump
from kdleak.dumped import DumpMoment, compare_dumps, moment_of
from kdleak.errors import ExitCode, UsageError
from kdleak.model import Pool
from kdleak.report.diff_json import diff_json
from kdleak.report.diff_text import render_diff
from kdleak.result import RankBy

_POOLS = {"both": None, "nonpaged": Pool.NONPAGED, "paged": Pool.PAGED}


@click.command("diff")
@click.argument("dumps", nargs=-1, required=True, metavar="A.dmp B.dmp [...]")
@click.option(
    "-y",
    "symbol_path",
    metavar="SYMPATH",
    default=None,
    help="Symbol path, as for WinDbg's -y. Default: $_NT_SYMBOL_PATH. Symbols are not needed.",
)
@click.option("--pool", type=click.Choice(list(_POOLS)), default="both", show_default=True)
@click.option("--top", type=click.IntRange(min=1), default=20, show_default=True, help="Rows.")
@click.option("--json", "as_json", is_flag=True, help="The whole result as JSON on stdout.")
@click.option("-o", "output", type=click.Path(path_type=Path), help="Write the result to a file.")
@click.option("--force", is_flag=True, help="Overwrite the file of -o.")
def command(
    dumps: Tuple[str, ...],
    symbol_path: Optional[str],
    pool: str,
    top: int,
    as_json: bool,
    output: Optional[Path],
    force: bool,
) -> int:
    """Say which pool tags grew between two crash dumps of one boot, or more than two.

    The dumps are put in order of time. Dumps of different boots cannot show growth; that is
    said, and the tags are ranked by what they hold in the last dump.

    Exit code 4: growth could not be measured, or there is something to know about it (the notes).

    \b
    Examples:
      kdleak diff morning.dmp evening.dmp
      kdleak diff monday.dmp tuesday.dmp wednesday.dmp --pool nonpaged
    """
    if len(dumps) < 2:
        raise UsageError(
            "comparing crash dumps",
            "one file was given",
            "name two dumps of the same boot, or use kdleak rank -z FILE for one",
        )
    console.refuse_overwrite(output, force=force)
    names = _names(dumps)
    moments = [_moment(file, name, symbol_path) for file, name in zip(dumps, names)]
    comparison = compare_dumps(moments, pool=_POOLS[pool])
    text = (
        diff_json(comparison)
        if as_json
        else render_diff(
            comparison,
            width=console.width(),
            style=console.palette(output),
            top=top,
            files=dict(zip(names, dumps)),
        )
    )
    console.write_result(text, output, force=force)
    complete = not comparison.rank.gaps and comparison.rank.by is RankBy.GROWTH
    return ExitCode.DONE if complete else ExitCode.INCOMPLETE


def _names(files: Tuple[str, ...]) -> Tuple[str, ...]:
    """File names alone, unless two are the same."""
    short = tuple(Path(file).name for file in files)
    return short if len(set(short)) == len(short) else files


def _moment(file: str, name: str, symbol_path: Optional[str]) -> DumpMoment:
    with opened_dump(Path(file), console.narrate, symbol_path=symbol_path) as engine:
        return DumpMoment(
            name=name,
            target=engine.target,
            snapshot=engine.pool_usage(),
            moment=moment_of(engine.target, engine.dump.header),
            remarks=tuple(engine.remarks),
        )
