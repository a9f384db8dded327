"""Options that ``rank`` and ``hunt`` share: how to rank, and where the result goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, List, TypeVar

import click

from kdleak.cli.log_input import DEFAULT_MEGABYTES
from kdleak.cli.target_options import FiniteRange
from kdleak.result import RankBy

_Function = TypeVar("_Function", bound=Callable[..., Any])


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


def result_options(function: _Function) -> _Function:
    """Add ``--json``, ``-o``, ``--force`` and ``--explain`` to a command."""
    return _add(
        [
            click.option(
                "--json", "as_json", is_flag=True, help="The whole result as JSON on stdout."
            ),
            click.option(
                "-o",
                "output",
                type=click.Path(path_type=Path),
                help="Write the result to a file.",
            ),
            click.option("--force", is_flag=True, help="Overwrite the files of -o and --record."),
            click.option(
                "--explain",
                "explain_only",
                is_flag=True,
                help="Print the WinDbg commands, do nothing.",
            ),
        ],
        function,
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
