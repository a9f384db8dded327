"""Options that name the target and the engine, shared by every command that attaches to one."""

from __future__ import annotations

import functools
import math
import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, List, Optional, TypeVar

import click
from click.core import ParameterSource

from kdleak.cli.symbol_fetching import attach_with_symbols, open_fetcher, with_stores
from kdleak.errors import MissingDependency, UsageError
from kdleak.windbg.recording import ignored_by_replay
from kdleak.windbg.session import (
    CHANNELS,
    KEY_VARIABLE,
    LiveEngine,
    SessionRequest,
    check_request,
    debugger_found,
    open_engine,
    with_key,
)

if TYPE_CHECKING:
    from kdleak.engine.native import NativeEngine
    from kdleak.nt.fetching.server import SymbolFetcher

NATIVE = "native"
"""Name of our own engine among those of ``--engine``."""

DUMP = "dump"
"""Name of our own reader of crash dumps among those of ``--engine``."""

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
class TargetOptions:
    """The options of ``target_options`` as they were given.

    Attributes:
        connection: WinDbg's ``-k`` string, with the key; never print it.
        dump: crash dump to open instead of a live target.
        symbol_path: None where no ``-y`` was given.
        fetch_symbols: fetch PDBs from the servers of the symbol path.
        timeout: seconds to wait for the target to answer.
        verbose: how often ``-v`` was given.
        engine: None for the one there is.
        kd: path of kd.exe.
        python: interpreter for the child process of pykd and pybag.
        kb: take stacks by ``kb``.
        record: file that takes the whole session.
        replay: recorded session to use instead of a target.
    """

    connection: Optional[str] = field(default=None, repr=False)
    dump: Optional[Path] = None
    symbol_path: Optional[str] = None
    fetch_symbols: bool = False
    timeout: float = 30.0
    verbose: int = 0
    engine: Optional[str] = None
    kd: Optional[str] = None
    python: Optional[str] = None
    kb: bool = False
    record: Optional[Path] = None
    replay: Optional[Path] = None

    @property
    def names_a_target(self) -> bool:
        """Whether anything was given that only a target or its debugger has."""
        return any((self.connection, self.dump, self.engine, self.kd, self.python, self.record))


@dataclass(frozen=True)
class TargetChoice:
    """Where the target is, where its symbols are, and what debugs it.

    Attributes:
        request: the session to open; for our own engine only what it has in common.
        engine: ``NATIVE``, ``DUMP`` or one of ``CHANNELS``; of a replay "".
        where: the connection without the key, fit for output.
        verbose: how often ``-v`` was given.
        fetch_symbols: fetch PDBs from the servers of the symbol path.
    """

    request: SessionRequest
    engine: str = NATIVE
    where: str = ""
    verbose: int = 0
    fetch_symbols: bool = False


def target_options(function: _Function) -> Callable[..., Any]:
    """Add the options that name target and engine; the command gets them as ``target``."""
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
            "-z",
            "dump",
            # Whether it can be read is for its reader to say, who knows what to do about it.
            type=click.Path(readable=False, path_type=Path),
            metavar="FILE",
            help="A crash dump of a Windows kernel instead of a live target, as for WinDbg's -z.",
        ),
        click.option(
            "-y",
            "symbol_path",
            metavar="SYMPATH",
            default=None,
            help="Symbol path, as for WinDbg's -y. Default: $_NT_SYMBOL_PATH. Our own engines "
            "search local folders and stores only, unless --symbols is given.",
        ),
        click.option(
            "--symbols",
            "fetch_symbols",
            is_flag=True,
            help="Fetch missing PDBs from the servers of the symbol path (none: Microsoft's) into "
            "its stores. Of a live target nt's only, while it runs. Needs kdleak[dump].",
        ),
        click.option(
            "--engine",
            type=click.Choice([NATIVE, *CHANNELS, DUMP]),
            help="What debugs the target: our own engine, or Microsoft's through kd.exe, pykd or "
            "pybag. Default: kd on Windows where there is one, else native. For crash dumps: our "
            "own reader (dump, the default), or Microsoft's.",
        ),
        click.option(
            "--kd",
            metavar="PATH",
            help="kd.exe to use. Default: $KDLEAK_KD, else the one that is found.",
        ),
        click.option(
            "--python",
            metavar="PATH",
            help="Python that has pykd or pybag, for a process of its own. Default: this one.",
        ),
        click.option(
            "--kb", is_flag=True, help="Take stacks by kb at every hit (slower; not native)."
        ),
        click.option(
            "--record",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Record the whole session with the debugger (not native).",
        ),
        click.option(
            "--replay",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Use a recorded session instead of a target.",
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
    names = list(TargetOptions.__dataclass_fields__)

    @functools.wraps(function)
    def packed(**given: Any) -> Any:  # noqa: ANN401 - whatever the command's other options are
        target = TargetOptions(**{name: given.pop(name) for name in names})
        return function(target=target, **given)

    wrapped: Callable[..., Any] = packed
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped


_HEEDED = {
    "replay", "verbose", "top", "as_json", "output", "force", "explain_only",
    "frameworks", "through", "pooltag",
}  # fmt: skip
"""Options that make a difference to a replay."""


def tell_ignored(narrate: Callable[[str], None]) -> None:
    """Name the options of the command line that make no difference to a replay."""
    context = click.get_current_context(silent=True)
    if context is not None:
        given = (
            parameter.opts[0]
            for parameter in context.command.params
            if parameter.name is not None
            and parameter.name not in _HEEDED
            and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
        )
        for sentence in ignored_by_replay(given):
            narrate(sentence)


def choose_target(given: TargetOptions) -> TargetChoice:
    """Fill in what the environment knows: the key, the symbol path, the engine.

    Raises:
        UsageError: no target given or no such dump, options that do not go together, or
            (BadConnection) a connection that makes no sense.
    """
    if given.replay is None and given.dump is None and not given.connection:
        raise UsageError(
            "choosing the target",
            "no -k was given",
            "name it as you would for WinDbg: -k net:port=50000,key=W.X.Y.Z, or -z MEMORY.DMP for "
            "a crash dump, or run `kdleak demo` to see the whole job on the bundled practice "
            "kernel",
        )
    engine = _choose_engine(given)
    request = SessionRequest(
        connection=with_key(given.connection or ""),
        engine=engine,
        dump=given.dump,
        symbol_path=_symbol_path(
            given.symbol_path, native=engine in (NATIVE, DUMP), fetch=given.fetch_symbols
        ),
        timeout=given.timeout,
        kd=given.kd,
        python=given.python,
        use_kb=given.kb,
        record=given.record,
        replay=given.replay,
    )
    if engine == NATIVE:
        from kdleak.kd.connection import parse_connection  # noqa: PLC0415 - heavy, needs extras

        where = parse_connection(request.connection).where
    else:
        check_request(request)
        where = str(given.replay) if given.replay is not None else request.where
    return TargetChoice(request, engine, where, given.verbose, given.fetch_symbols)


def _choose_engine(given: TargetOptions) -> str:
    """The engine, "" for a replay; refuses options that are not its own."""
    _check_kind(given)
    if given.replay is not None:
        engine = ""
        if given.engine is not None:
            raise UsageError(
                "choosing the engine", "a replay has none", "leave --engine out with --replay"
            )
    elif given.engine is not None:
        engine = given.engine
    elif given.dump is not None and given.kd is None:
        engine = DUMP
    elif given.kd is not None or debugger_found():
        engine = "kd"
    else:
        engine = NATIVE
    for option, used, engines in (
        ("--kd", given.kd is not None, ("kd",)),
        ("--python", given.python is not None, ("pykd", "pybag")),
        ("--kb", given.kb, (*CHANNELS, "")),
        ("--record", given.record is not None, (*CHANNELS, "")),
    ):
        if used and engine not in engines:
            raise UsageError(
                f"using {option} with the engine {engine or 'of a replay'}",
                "it has no such thing",
                f"leave {option} out, or choose --engine "
                + " or ".join(name for name in engines if name),
            )
    if given.fetch_symbols and engine not in (NATIVE, DUMP):
        raise UsageError(
            f"using --symbols with the engine {engine or 'of a replay'}",
            "Microsoft's debuggers fetch symbols themselves" if engine else "it needs no symbols",
            "leave --symbols out"
            + (
                f", name a server with -y, or choose --engine {DUMP if given.dump else NATIVE}"
                if engine
                else ""
            ),
        )
    return engine


def _check_kind(given: TargetOptions) -> None:
    """Refuse an engine for live targets on a dump, and the reverse."""
    if given.dump is not None and given.engine == NATIVE:
        raise UsageError(
            "choosing the engine",
            "native is the one for live targets",
            f"leave --engine out with -z, or choose one of {', '.join((DUMP, *CHANNELS))}",
        )
    if given.dump is None and given.engine == DUMP:
        raise UsageError(
            "choosing the engine", "dump is the one for crash dumps", "name one with -z FILE"
        )


def refuse_dump(given: TargetOptions, doing: str) -> None:
    """Refuse ``-z`` to a command that only a live target can serve.

    Args:
        given: the options.
        doing: one clause: "hunting".

    Raises:
        UsageError: a dump was named.
    """
    if given.dump is not None:
        raise UsageError(
            f"{doing} in {given.dump}",
            "a crash dump is one moment of a machine, nothing runs in it and nothing can be "
            "written to it",
            "kdleak rank -z FILE shows which tags hold the pool, kdleak sites TAG -z FILE whose "
            "code asks for one; for a live target use -k",
        )


_SYMBOL_VARIABLES = ("_NT_ALT_SYMBOL_PATH", "_NT_SYMBOL_PATH")

NO_PRACTICE_VARIABLE = "KDLEAK_NO_PRACTICE_SYMBOLS"
"""Environment variable that keeps the practice kernel's own PDBs off the symbol path."""


def _symbol_path(given: Optional[str], *, native: bool, fetch: bool) -> str:
    """The path to search, the practice kernel's PDBs last: one is used only when it matches.

    For our own engines what was fetched before is found again, whatever the path.
    """
    if given is None:
        given = ";".join(filter(None, [os.environ.get(name) for name in _SYMBOL_VARIABLES]))
    if not given and not native:
        return ""  # Microsoft's debuggers have a default of their own
    if native:
        given = with_stores(given, fetch=fetch)
    return ";".join(filter(None, [given, *practice_symbols()]))


def practice_symbols() -> List[str]:
    """Folders with the PDBs of the practice kernel; none when it is not installed or wanted."""
    if os.environ.get(NO_PRACTICE_VARIABLE):
        return []
    folder = Path(__file__).resolve().parent.parent / "practice" / "images"
    # Each build's kernel lies in a folder of its own, the drivers and the default one above.
    return sorted({str(file.parent) for file in folder.glob("**/*.pdb")})


def attach(choice: TargetChoice, narrate: Callable[[str], None]) -> LiveEngine:
    """Attach the engine of a choice; a live target is stopped when this returns.

    Raises:
        MissingDependency: this Python is too old for our own engine, or kd.exe, pykd or pybag
            is not there, or a package that reading dumps needs.
        TargetError: the dump cannot be read.
        LinkError, UnsupportedTarget, BadConnection: from the engine.
    """
    if choice.engine not in (NATIVE, DUMP):
        return open_engine(replace(choice.request, engine=choice.engine), narrate)
    doing = "attaching to" if choice.engine == NATIVE else "opening"
    if sys.version_info < ENGINE_PYTHON:
        raise MissingDependency(
            f"{doing} {choice.where}",
            "kdleak's own engine needs Python "
            f"{'.'.join(map(str, ENGINE_PYTHON))} or newer, and this is "
            f"{'.'.join(map(str, sys.version_info[:2]))}",
            "install kdleak under a newer Python, or on Windows choose --engine kd",
        )
    request = choice.request
    fetcher = open_fetcher(request.symbol_path, narrate) if choice.fetch_symbols else None
    if choice.engine == DUMP:
        return _open_dump(choice, fetcher)
    from kdleak.engine.native import attach_native  # noqa: PLC0415 - heavy, and needs extras

    def attach_once() -> NativeEngine:
        narrate(
            f"waiting for the target at {choice.where} with the native engine "
            f"(up to {request.timeout:g} s) ..."
        )
        return attach_native(request.connection, request.symbol_path, timeout=request.timeout)

    if fetcher is not None:
        return attach_with_symbols(attach_once, fetcher, narrate)
    return attach_once()


def _open_dump(choice: TargetChoice, fetcher: Optional[SymbolFetcher]) -> LiveEngine:
    """Open a crash dump with our own reader."""
    request = choice.request
    if request.dump is None:
        raise UsageError("opening a crash dump", "none was named", "name one with -z FILE")
    try:
        from kdleak.engine.dump import open_dump_engine  # noqa: PLC0415 - heavy, needs extras
    except ImportError as error:
        if str(error.name).startswith("kdleak"):
            raise
        raise MissingDependency(
            f"opening {choice.where}",
            f"reading crash dumps needs the package {error.name}",
            'pip install "kdleak[dump]"',
        ) from error
    if fetcher is None:
        return open_dump_engine(request.dump, request.symbol_path)
    return open_dump_engine(request.dump, request.symbol_path, fetch=fetcher)
