"""The kd channel: drives Microsoft's kd.exe (or cdb.exe, for dumps) over its pipes.

The connection string, with the key of KDNET in it, is on kd's command line, as it is when WinDbg
or kd.exe is started by hand: programs of the same user (and administrators) can read it there.
kdleak itself never shows or logs it.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Callable, List, Optional, Tuple

from kdleak.engine.channels.base import DUMP, LIVE_KERNEL, LOCAL_KERNEL
from kdleak.engine.channels.kd_channel import KdChannel
from kdleak.engine.channels.kd_find import find_kd
from kdleak.engine.channels.kd_process import KdProcess
from kdleak.engine.channels.secrecy import parts_of, secrets_of, where_of
from kdleak.errors import BadConnection, UsageError

_KEY = re.compile(r"[0-9a-z]{1,13}(?:\.[0-9a-z]{1,13}){3}\Z", re.IGNORECASE)


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
        return ["-z", dump], Path(dump).name, DUMP
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
    reason = _what_is_wrong(connection)
    if reason:
        raise BadConnection(
            "reading the connection string",
            reason,
            "use net:port=50000,key=a.b.c.d or com:port=COM1,baud=115200",
        )
    return where_of(connection)


def _what_is_wrong(connection: str) -> str:
    """What a string lacks that would make the debugger wait for ever; "" for nothing.

    (Not ``kdleak.kd.connection``, which needs more than the standard library.)
    """
    kind, options = parts_of(connection)
    if kind == "net":
        if not _KEY.match(options.get("key", "")):
            return "key= is missing, or is not four groups of letters and digits"
        port = options.get("port", "50000")
        if not (port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 0x10000):
            return "port= is not a number from 1 to 65535"
    if kind == "com" and not options.get("port") and not options.get("ipport"):
        return "port= is missing"
    return ""
