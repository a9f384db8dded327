"""The kd channel: drives Microsoft's kd.exe (or cdb.exe, for dumps) over its pipes.

The connection string, with the key of KDNET in it, is on kd's command line, as it is when WinDbg
or kd.exe is started by hand: programs of the same user (and administrators) can read it there.
kdleak itself never shows or logs it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Callable, List, Optional, Tuple

from kdleak.engine.channels.base import DUMP, LIVE_KERNEL, LOCAL_KERNEL
from kdleak.engine.channels.kd_channel import KdChannel
from kdleak.engine.channels.kd_find import find_kd
from kdleak.engine.channels.kd_process import KdProcess
from kdleak.engine.channels.kd_text import secrets_of, shown
from kdleak.errors import BadConnection, UsageError


def open_kd(
    connection: str,
    *,
    kd: Optional[str] = None,
    symbol_path: str = "",
    timeout: float = 30.0,
    dump: Optional[str] = None,
    start: Optional[Callable[[List[str]], KdProcess]] = None,
    clock: Callable[[], float] = time.monotonic,
) -> KdChannel:
    """Start kd.exe and attach it to a live target (which is stopped then), or open a dump.

    Args:
        connection: WinDbg's ``-k`` string; "local" for the machine we run on. Not used with a dump.
        kd: path of kd.exe, of its folder, or of a program that starts it; found by itself if None.
        symbol_path: WinDbg's ``-y``; "" leaves it to the debugger.
        timeout: seconds for the target to connect and stop; a target that answered gets more.
        dump: path of a crash dump to open instead.
        start: starts the process, for tests and other ways to break in.
        clock: seconds, monotonic.

    Raises:
        BadConnection, UsageError: before anything is started.
        MissingDependency: there is no kd.exe here.
        NoTarget, PortInUse, TargetError: what came of it, with the debugger's last words.
    """
    arguments, where, session = _arguments(connection, dump)
    program = find_kd(kd, dump=dump is not None)
    if symbol_path:
        arguments += ["-y", symbol_path]
    channel = KdChannel(
        [str(program), *arguments],
        where=where,
        session=session,
        secrets=() if dump is not None else secrets_of(connection),
        start=start,
        clock=clock,
    )
    channel.attach(timeout)
    return channel


def _arguments(connection: str, dump: Optional[str]) -> Tuple[List[str], str, str]:
    """Arguments of kd.exe, the target as it may be shown, and the kind of session."""
    if dump is not None:
        if not Path(dump).is_file():
            raise UsageError(f"opening the dump {dump}", "there is no such file")
        return ["-z", dump], dump, DUMP
    plain = connection.strip().strip("\"'")
    if plain.lower() == "local":
        return ["-kl"], "local", LOCAL_KERNEL
    return ["-k", plain, "-b"], _checked(plain), LIVE_KERNEL


def _checked(connection: str) -> str:
    """The connection as it may be shown. DbgEng waits for ever on some strings that are wrong.

    Raises:
        BadConnection: without quoting a key.
    """
    lowered = connection.lower()
    if lowered.startswith("tcp:") or lowered.replace(" ", "").startswith("com:listen"):
        raise BadConnection(
            "reading the connection string",
            "kd.exe cannot wait for a target on a TCP port",
            "use com:ipport=PORT,port=HOST, or the native engine",
        )
    if lowered.startswith(("net:", "com:")) and sys.version_info >= (3, 11):
        try:
            from kdleak.kd.connection import (  # noqa: PLC0415 - needs packages of [native]
                parse_connection,
            )
        except ImportError:
            return shown(connection)
        return parse_connection(connection).where
    if lowered.startswith("net:") and "key=" not in lowered.replace(" ", ""):
        raise BadConnection(
            "reading the connection string",
            "key= is missing",
            "add the key that the target was set up with",
        )
    return shown(connection)
