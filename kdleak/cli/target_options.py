"""Options that name the target, shared by every command that attaches to one."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, List, Optional, TypeVar

import click

from kdleak.errors import MissingDependency, UsageError

if TYPE_CHECKING:
    from kdleak.engine.native import NativeEngine

KEY_VARIABLE = "KDLEAK_KEY"
"""Environment variable that holds the KDNET key, so that it need not stand on a command line."""

ENGINE_PYTHON = (3, 11)
"""What our own engine needs; the rest of kdleak runs on 3.9."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


class FiniteRange(click.FloatRange):
    """A range of numbers that can be reckoned with: neither infinity nor NaN is one."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as click declares it
        param: Optional[click.Parameter],
        ctx: Optional[click.Context],
    ) -> float:
        """See click.ParamType."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number to reckon with", param, ctx)
        return number


@dataclass(frozen=True)
class TargetChoice:
    """Where the target is and where its symbols are.

    Attributes:
        connection: WinDbg's ``-k`` string, with the key; never print it.
        symbol_path: ``_NT_SYMBOL_PATH`` grammar, "" for none.
        timeout: seconds to wait for the target to answer.
        where: the connection without the key, fit for output.
        verbose: how often ``-v`` was given.
    """

    connection: str = field(repr=False)
    symbol_path: str
    timeout: float
    where: str = ""
    verbose: int = 0


def target_options(function: _Function) -> _Function:
    """Add ``-k``, ``-y``, ``--timeout`` and ``-v`` to a command."""
    options = [
        click.option(
            "-k",
            "connection",
            metavar="CONNECTION",
            help="The target, as for WinDbg's -k: net:port=50000,key=W.X.Y.Z (or the key in "
            f"${KEY_VARIABLE}); com:port=COM1,baud=115200; com:pipe,port=PATH; "
            "com:ipport=4555,port=HOST.",
        ),
        click.option(
            "-y",
            "symbol_path",
            metavar="SYMPATH",
            default=None,
            help="Symbol path, as for WinDbg's -y. Default: $_NT_SYMBOL_PATH. Local folders and "
            "stores only.",
        ),
        click.option(
            "--timeout",
            type=FiniteRange(min=0.1),
            default=30.0,
            show_default=True,
            metavar="SECONDS",
            help="How long to wait for the target to answer.",
        ),
        click.option(
            "-v",
            "verbose",
            count=True,
            help="Say more about target and link; -vv adds a trace to errors.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def choose_target(
    connection: Optional[str],
    symbol_path: Optional[str],
    timeout: float,
    verbose: int = 0,
) -> TargetChoice:
    """Fill in what the environment knows: the key and the symbol path.

    Raises:
        UsageError: no connection given, or (BadConnection) one that makes no sense.
    """
    from kdleak.kd.connection import parse_connection  # noqa: PLC0415 - heavy, and needs extras

    if not connection:
        raise UsageError(
            "choosing the target",
            "no -k was given",
            "name it as you would for WinDbg: -k net:port=50000,key=W.X.Y.Z, or run "
            "`kdleak demo` to see the whole job on the bundled practice kernel",
        )
    lowered = connection.lower()
    key = os.environ.get(KEY_VARIABLE, "")
    if lowered.startswith("net:") and "key=" not in lowered and key:
        connection = f"{connection},key={key}"
    if symbol_path is None:
        symbol_path = ";".join(filter(None, [os.environ.get(name) for name in _SYMBOL_VARIABLES]))
    # Last, so it never hides anything; a PDB is used only when its GUID and age match.
    symbol_path = ";".join(filter(None, [symbol_path, *practice_symbols()]))
    where = parse_connection(connection).where
    return TargetChoice(connection, symbol_path, timeout, where, verbose)


_SYMBOL_VARIABLES = ("_NT_ALT_SYMBOL_PATH", "_NT_SYMBOL_PATH")

NO_PRACTICE_VARIABLE = "KDLEAK_NO_PRACTICE_SYMBOLS"
"""Environment variable that keeps the practice kernel's own PDBs off the symbol path."""


def practice_symbols() -> List[str]:
    """Folders with the PDBs of the practice kernel; none when it is not installed or wanted."""
    if os.environ.get(NO_PRACTICE_VARIABLE):
        return []
    folder = Path(__file__).resolve().parent.parent / "practice" / "images"
    # Each build's kernel lies in a folder of its own, the drivers and the default one above.
    return sorted({str(file.parent) for file in folder.glob("**/*.pdb")})


def attach(choice: TargetChoice, narrate: Callable[[str], None]) -> NativeEngine:
    """Attach our own engine; the target is stopped when this returns.

    Raises:
        MissingDependency: this Python is too old for it.
        LinkError, UnsupportedTarget, BadConnection: see ``attach_native``.
    """
    if sys.version_info < ENGINE_PYTHON:
        raise MissingDependency(
            f"attaching to {choice.where}",
            "kdleak's own engine needs Python "
            f"{'.'.join(map(str, ENGINE_PYTHON))} or newer, and this is "
            f"{'.'.join(map(str, sys.version_info[:2]))}",
            "install kdleak under a newer Python",
        )
    from kdleak.engine.native import attach_native  # noqa: PLC0415 - heavy, and needs extras

    narrate(f"waiting for the target at {choice.where} (up to {choice.timeout:g} s) ...")
    return attach_native(choice.connection, choice.symbol_path, timeout=choice.timeout)
