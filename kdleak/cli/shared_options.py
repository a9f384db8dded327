"""Options of several commands: how to rank, what to show, and where the result goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, List, TypeVar

import click

from kdleak.cli.log_input import DEFAULT_MEGABYTES
from kdleak.cli.target_options import FiniteRange
from kdleak.model import Pool
from kdleak.result import RankBy

_Function = TypeVar("_Function", bound=Callable[..., Any])
_POOLS = {"both": None, "nonpaged": Pool.NONPAGED, "paged": Pool.PAGED}


def _add(options: List[Callable[[_Function], _Function]], function: _Function) -> _Function:
    for option in reversed(options):
        function = option(function)
    return function


def ranking_options(function: _Function) -> _Function:
    """Add ``--by``, ``--interval`` and ``--snapshots`` to a command."""
    return _add(
        [
            click.option(
                "--by",
                type=click.Choice([by.value for by in RankBy]),
                default=RankBy.GROWTH.value,
                show_default=True,
                help="Rank by growth over the interval, or by bytes outstanding now.",
            ),
            click.option(
                "--interval",
                type=FiniteRange(min=0.1),
                default=30.0,
                show_default=True,
                metavar="SECONDS",
                help="How long growth is measured; the target runs meanwhile.",
            ),
            click.option(
                "--snapshots",
                type=click.IntRange(min=2),
                default=6,
                show_default=True,
                help="Snapshots within the interval; from 4 on growth can be told from chance.",
            ),
        ],
        function,
    )


def _output_options(force: str) -> List[Callable[[Any], Any]]:
    return [
        click.option("--json", "as_json", is_flag=True, help="The whole result as JSON on stdout."),
        click.option(
            "-o",
            "--output",
            "output",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Write the result to a file.",
        ),
        click.option("--force", is_flag=True, help=force),
    ]


def output_options(function: _Function) -> _Function:
    """Add ``--json``, ``-o`` and ``--force`` to a command that works on files."""
    return _add(_output_options("Overwrite the file of -o."), function)


def result_options(function: _Function) -> _Function:
    """Add ``--json``, ``-o``, ``--force`` and ``--explain`` to one that drives a target."""
    explain = click.option(
        "--explain",
        "explain_only",
        is_flag=True,
        help="Print the WinDbg commands, do nothing.",
    )
    return _add(
        [*_output_options("Overwrite the files of -o and --record."), explain],
        function,
    )


def pool_option(function: _Function) -> _Function:
    """Add ``--pool`` to a command; it gets the pool as ``pool``, None for both."""
    return click.option(
        "--pool",
        type=click.Choice(list(_POOLS)),
        default="both",
        show_default=True,
        callback=lambda _context, _option, name: _POOLS[name],
        help="Tags of this pool only.",
    )(function)


def top_option(rows: int, what: str = "Rows.") -> Callable[[_Function], _Function]:
    """Add ``--top`` to a command: how many rows its text shows, ``rows`` unless it is given."""
    return click.option(
        "--top", type=click.IntRange(min=1), default=rows, show_default=True, help=what
    )


def max_size_option(function: _Function) -> _Function:
    """Add ``--max-size`` to a command that reads logs."""
    return _add(
        [
            click.option(
                "--max-size",
                type=click.IntRange(min=1, max=4096),
                default=DEFAULT_MEGABYTES,
                show_default=True,
                metavar="MB",
                help="Largest log to read; each MB takes a second or more and 40 MB of memory.",
            ),
        ],
        function,
    )
