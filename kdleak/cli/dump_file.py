"""Opening crash dumps that a command names as arguments, with our own reader."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterator, Optional, TypeVar, cast

import click

from kdleak.cli.target_options import DUMP, TargetOptions, attach, choose_target

if TYPE_CHECKING:
    from kdleak.engine.dump import DumpEngine


_Function = TypeVar("_Function", bound=Callable[..., Any])


def symbol_path_option(function: _Function) -> _Function:
    """Add ``-y`` to a command that names dumps as arguments; it gets ``symbol_path``."""
    return click.option(
        "-y",
        "symbol_path",
        metavar="SYMPATH",
        default=None,
        help="Symbol path, as for WinDbg's -y. Default: $_NT_SYMBOL_PATH. Symbols are not needed.",
    )(function)


@contextlib.contextmanager
def opened_dump(
    file: Path,
    narrate: Callable[[str], None],
    *,
    symbol_path: Optional[str] = None,
    fetch_symbols: bool = False,
) -> Iterator[DumpEngine]:
    """A dump, open for the body.

    Args:
        file: the dump.
        narrate: takes sentences for the user.
        symbol_path: ``-y``; None for the environment's.
        fetch_symbols: ``--symbols``.

    Raises:
        UsageError: there is no such file.
        MissingDependency: a package that reading dumps needs is not installed.
        TargetError: it cannot be read.
    """
    given = TargetOptions(
        dump=file, symbol_path=symbol_path, engine=DUMP, fetch_symbols=fetch_symbols
    )
    engine = cast("DumpEngine", attach(choose_target(given), narrate))
    try:
        yield engine
    finally:
        engine.close()
