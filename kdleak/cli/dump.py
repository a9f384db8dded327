"""``kdleak dump``: a crash dump at a glance."""

from __future__ import annotations

from pathlib import Path
from typing import Optional, Tuple

import click

from kdleak.cli import console
from kdleak.cli.dump_file import opened_dump, symbol_path_option
from kdleak.cli.pooltag_option import owner_finder, pooltag_option
from kdleak.cli.shared_options import output_options, top_option
from kdleak.cli.tag_argument import parse_tag
from kdleak.cli.target_options import FiniteRange
from kdleak.dumped.overview import DETAILS, overview
from kdleak.errors import ExitCode, UsageError
from kdleak.report.dump_json import dump_json
from kdleak.report.dump_text import render_dump

_SECONDS = 0.5


@click.command("dump")
@click.argument(
    "file",
    type=click.Path(readable=False, path_type=Path),
    metavar="MEMORY.DMP",
    required=False,
)
@click.option(
    "-z",
    "named",
    type=click.Path(readable=False, path_type=Path),
    metavar="FILE",
    help="The dump, as for the other commands; the same as naming it alone.",
)
@symbol_path_option
@click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="TAG",
    help=f"Look at this tag closely; may be given again. Default: the {DETAILS} that hold most.",
)
@top_option(10)
@click.option(
    "--seconds",
    type=FiniteRange(min=0),
    default=_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="For looking at the blocks; 0 looks at all of them, however long it takes.",
)
@click.option(
    "--symbols",
    "fetch_symbols",
    is_flag=True,
    help="Fetch symbols that are missing from the symbol servers of the path.",
)
@pooltag_option
@output_options
def command(
    file: Optional[Path],
    named: Optional[Path],
    symbol_path: Optional[str],
    tags: Tuple[str, ...],
    top: int,
    seconds: float,
    fetch_symbols: bool,
    pooltag: Optional[Path],
    as_json: bool,
    output: Optional[Path],
    force: bool,
) -> int:
    """Say which pool tags hold the memory of a crash dump, in what blocks, and who asks for them.

    Works on any dump of a Windows kernel that holds pool, on any machine, without symbols and
    without a network. A small memory dump (minidump) holds no pool; that is said.

    The first sentences answer: which tag holds most of each pool, in what blocks, and which driver
    asks for it. Allocs, Frees, Diff and Bytes are PoolMon's; Each is Bytes by Diff.

    Exit code 4: the tag tables could not be read, or not all of them.

    \b
    Examples:
      kdleak dump MEMORY.DMP
      kdleak dump MEMORY.DMP --tag Leak --seconds 0
    """
    file = _one_file(file, named)
    wanted = [parse_tag(tag) for tag in tags]
    console.refuse_overwrite(output, force=force)
    with opened_dump(
        file, console.narrate, symbol_path=symbol_path, fetch_symbols=fetch_symbols
    ) as engine:
        found = overview(
            engine,
            tags=wanted,
            owner=owner_finder(pooltag, console.narrate),
            seconds=seconds or None,
        )
    text = (
        dump_json(found)
        if as_json
        else render_dump(
            found,
            width=console.width(),
            style=console.palette(output),
            top=top,
            file=str(file),
        )
    )
    console.write_result(text, output, force=force)
    return ExitCode.INCOMPLETE if found.gaps else ExitCode.DONE


def _one_file(alone: Optional[Path], named: Optional[Path]) -> Path:
    """The dump, however it was named.

    Raises:
        UsageError: none or two.
    """
    file = alone or named
    if file is None or (alone and named):
        raise UsageError(
            "opening a crash dump",
            "two were named" if file else "none was named",
            "name one: kdleak dump MEMORY.DMP",
        )
    return file
