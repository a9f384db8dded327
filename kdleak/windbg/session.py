"""Opening a debugger of Microsoft's: the one we run in, one behind a child process, a recording."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, List, Mapping, Optional, Protocol, Tuple

from kdleak.engine.base import Engine
from kdleak.engine.channels.base import Channel
from kdleak.errors import BadConnection, MissingDependency, UsageError
from kdleak.journal import Journal
from kdleak.report.secrets import without_secrets
from kdleak.windbg.recording import Memory

CHANNELS = ("kd", "pykd", "pybag")
"""The debuggers that can be opened from outside, best first."""

KEY_VARIABLE = "KDLEAK_KEY"
"""Environment variable that holds the KDNET key, so that it need not stand on a command line."""


class LiveEngine(Engine, Protocol):
    """An engine as a session holds it: what every one of ours offers beyond the contract."""

    remarks: List[str]

    def detach(self, leave_stopped: bool = False) -> None:
        """Leave the target, which runs on unless ``leave_stopped``. Never raises for the link."""


@dataclass(frozen=True)
class SessionRequest:
    """Which debugger, on which target.

    Attributes:
        connection: WinDbg's ``-k`` string, with the key; "" for the debugger we run in.
        dump: crash dump to open instead of a live target.
        engine: one of ``CHANNELS``; "" for the one there is.
        symbol_path: ``_NT_SYMBOL_PATH`` grammar; "" leaves the debugger its own.
        timeout: seconds to wait for the target to answer.
        kd: path of kd.exe or cdb.exe, None to look for it.
        python: interpreter for the child process of pykd and pybag, None for this one.
        use_kb: stacks by ``kb`` at every hit instead of by reading stack memory once.
        record: file that takes the whole session.
        replay: recorded session to use instead of a target.
        overwrite: let ``record`` write over a file.
        memory: what a recording keeps of the command, or what it must have kept.
        journal: whose entries of the target a recording keeps.
    """

    connection: str = field(default="", repr=False)
    engine: str = ""
    symbol_path: str = ""
    timeout: float = 30.0
    kd: Optional[str] = None
    python: Optional[str] = None
    use_kb: bool = False
    record: Optional[Path] = None
    replay: Optional[Path] = None
    overwrite: bool = False
    memory: Optional[Memory] = None
    journal: Optional[Journal] = None
    dump: Optional[Path] = None

    @property
    def inside(self) -> bool:
        """Whether the target is that of the debugger we run in."""
        return not self.connection and self.replay is None and self.dump is None

    @property
    def where(self) -> str:
        """The connection without its key, or the dump's name; fit for output."""
        return str(self.dump) if self.dump is not None else without_secrets(self.connection)


def check_request(request: SessionRequest) -> None:
    """Refuse what cannot work, before anything is opened.

    Raises:
        UsageError: options that contradict each other, or a file that is not there.
        BadConnection: a KDNET connection without a key, or one with a line end in it.
    """
    if request.dump is not None:
        _check_dump(request, request.dump)
    if request.replay is not None:
        if request.connection:
            raise UsageError(
                "choosing the target", "both -k and --replay were given", "name one of them"
            )
        if request.record is not None:
            raise UsageError(
                "recording a replay", "the recording is there already", "leave --record out"
            )
        if not os.path.isfile(request.replay):  # noqa: PTH113 - one that is out of reach, too
            raise UsageError(f"replaying {request.replay}", "there is no such file", "check it")
    lowered = request.connection.lower().replace(" ", "")
    if lowered.startswith("net:") and "key=" not in lowered:
        raise BadConnection(
            f"understanding the connection {request.where}",
            "KDNET needs a key",
            f"add ,key=W.X.Y.Z or put the key into {KEY_VARIABLE}",
        )
    if not request.connection.isprintable():
        raise BadConnection(
            "understanding the connection", "it holds characters that do not print", "type it again"
        )


def _check_dump(request: SessionRequest, dump: Path) -> None:
    for other, given in (
        ("-k", bool(request.connection)),
        ("--replay", request.replay is not None),
    ):
        if given:
            raise UsageError(
                "choosing the target", f"both {other} and -z were given", "name one of them"
            )
    # os.path: a folder that may not be looked into is no answer here; who opens it says more.
    if os.path.isdir(dump):  # noqa: PTH112
        raise UsageError(f"opening the dump {dump}", "it is a folder", "name the file in it")
    try:
        dump.lstat()
    except FileNotFoundError as error:
        raise UsageError(
            f"opening the dump {dump}", "there is no such file", "check its name"
        ) from error
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UsageError(
            f"opening the dump {dump}", why, "check its name and who may read it"
        ) from (error)
    if not str(dump).isprintable():
        raise UsageError(
            "opening the dump", "its name holds characters that do not print", "rename it"
        )


def with_key(connection: str) -> str:
    """The connection with the key from the environment, where it names none."""
    key = os.environ.get(KEY_VARIABLE, "")
    lowered = connection.lower()
    if lowered.startswith("net:") and "key=" not in lowered and key:
        return f"{connection},key={key}"
    return connection


def open_engine(
    request: SessionRequest,
    narrate: Callable[[str], None],
) -> LiveEngine:
    """Open the debugger and attach; the target is stopped when this returns.

    Raises:
        MissingDependency: kd.exe, pykd or pybag is not there.
        UsageError: see ``check_request``.
        TargetError: from the debugger.
    """
    check_request(request)
    from kdleak.engine.dbgeng import open_dbgeng  # noqa: PLC0415 - after --help and --explain

    channel = _open_channel(request, narrate)
    use_kb = request.use_kb
    try:
        if request.record is not None:
            channel = _recording(channel, request, request.record)
            narrate(f"recording the session into {request.record}")
        recorded = recorded_options(channel)
        if recorded:
            use_kb = recorded.get("use_kb") is True
    except BaseException:
        channel.close()
        raise
    clock = getattr(channel, "clock", time.perf_counter)
    return open_dbgeng(channel, clock=clock, use_kb=use_kb)


def recorded_options(channel: object) -> Mapping[str, object]:
    """What a replayed session kept of its command; empty for any other channel."""
    options = getattr(channel, "options", None)
    return options if isinstance(options, Mapping) else {}


def channel_remarks(engine: Engine) -> Tuple[str, ...]:
    """What the channel below an engine has to say at the end; nothing where there is none."""
    remarks = getattr(getattr(engine, "channel", None), "remarks", ())
    return tuple(str(remark) for remark in remarks)


def _recording(channel: Channel, request: SessionRequest, path: Path) -> Channel:
    from kdleak.engine.channels.record import RecordingChannel  # noqa: PLC0415 - rare

    options: Mapping[str, object] = {}
    if request.memory is not None and request.journal is not None:
        options = request.memory.document(request.journal, channel.where)
    return RecordingChannel(channel, path, options=options, force=request.overwrite)


def _open_channel(request: SessionRequest, narrate: Callable[[str], None]) -> Channel:
    if request.replay is not None:
        from kdleak.engine.channels.replay import open_replay  # noqa: PLC0415 - one of several

        narrate(f"replaying {request.replay}: no target is touched")
        return open_replay(request.replay)
    if request.inside:
        return _open_inside()
    name = request.engine or choose_channel(request.kd)
    if request.dump is not None:
        return _open_dump(name, request, request.dump, narrate)
    narrate(
        f"waiting for the target at {request.where} through {name} (up to {request.timeout:g} s) "
        "..."
    )
    if name == "kd":
        from kdleak.engine.channels.kd import open_kd  # noqa: PLC0415 - one of several

        return open_kd(
            request.connection,
            kd=request.kd,
            symbol_path=request.symbol_path,
            timeout=request.timeout,
        )
    from kdleak.engine.channels.child import open_child  # noqa: PLC0415 - one of several

    return open_child(
        name,
        request.connection,
        symbol_path=request.symbol_path,
        timeout=request.timeout,
        python=request.python,
    )


def _open_dump(
    name: str, request: SessionRequest, dump: Path, narrate: Callable[[str], None]
) -> Channel:
    """A crash dump in Microsoft's engine."""
    narrate(f"opening {dump} through {name} ...")
    path = str(dump.absolute())  # the debugger has a folder of its own
    if name == "kd":
        from kdleak.engine.channels.kd import open_kd  # noqa: PLC0415 - one of several

        return open_kd(
            "",
            kd=request.kd,
            symbol_path=request.symbol_path,
            timeout=request.timeout,
            dump=path,
        )
    from kdleak.engine.channels.child import open_child  # noqa: PLC0415 - one of several

    return open_child(
        name,
        path,
        symbol_path=request.symbol_path,
        timeout=request.timeout,
        python=request.python,
        dump=True,
    )


def _open_inside() -> Channel:
    if not has_package("pykd"):
        raise MissingDependency(
            "using the session of the debugger this runs in",
            f"the package pykd is not installed in Python {_version()}",
            "inside WinDbg: !pip -3.9 install pykd, then !py -3.9 -m kdleak.hunt; outside of it "
            "name the target with -k net:port=50000,key=W.X.Y.Z",
        )
    from kdleak.engine.channels.pykd import pykd_inside  # noqa: PLC0415 - one of several

    return pykd_inside()


def choose_channel(kd: Optional[str] = None) -> str:
    """The debugger to use where none was named.

    Raises:
        MissingDependency: there is none.
    """
    if kd is not None or debugger_found():
        return "kd"
    for name in ("pykd", "pybag"):
        if has_package(name):
            return name
    raise MissingDependency(
        "choosing a debugger",
        "neither kd.exe nor the packages pykd and pybag were found",
        "install the Debugging Tools for Windows, name kd.exe with --kd PATH, or use our own "
        "engine: kdleak hunt -k ...",
    )


def debugger_found() -> bool:
    """Whether this is Windows and a kd.exe is where the Debugging Tools put it."""
    if os.name != "nt":
        return False
    from kdleak.engine.channels.kd_find import find_kd  # noqa: PLC0415 - only on Windows

    try:
        find_kd()
    except MissingDependency:
        return False
    return True


def has_package(name: str) -> bool:
    """Whether a package can be imported here; it is not, since some have side effects."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _version() -> str:
    return ".".join(map(str, sys.version_info[:2]))
