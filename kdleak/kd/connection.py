"""WinDbg's ``-k`` connection strings, and opening a link for either role from one.

Host role: ``net:port=50000,key=a.b.c.d[,target=IP]``, ``com:port=COM1[,baud=115200]``,
``com:pipe,port=PIPE``, ``com:ipport=PORT,port=HOST`` (TCP client); ours:
``com:listen=PORT[,host=ADDRESS]`` (TCP server).

Target role: ``net:host=IP,port=50000,key=a.b.c.d[,source=PORT]``, ``com:listen=PORT`` or short
``tcp:PORT``, ``com:pipe,port=PATH`` (Unix socket server), ``com:port=DEVICE``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, Union

from kdleak.errors import BadConnection
from kdleak.kd.devices import open_device, open_windows_pipe
from kdleak.kd.kdnet_crypto import KdnetKey
from kdleak.kd.kdnet_link import KdnetHost, KdnetTarget
from kdleak.kd.link import HostLink, TargetLink
from kdleak.kd.media import Medium, connect_tcp, connect_unix, listen_tcp, listen_unix
from kdleak.kd.serial_link import SerialHost, SerialTarget

_EXAMPLES = (
    "use net:port=50000,key=a.b.c.d, com:port=COM1,baud=115200, com:pipe,port=PIPE "
    "or com:ipport=PORT,port=HOST"
)
DEFAULT_NET_PORT = 50000
DEFAULT_BAUD = 115200


@dataclass(frozen=True)
class NetConnection:
    """KDNET. The key never shows itself.

    Attributes:
        port: UDP port the host listens on.
        target: host role: address to call when the target cannot reach us first, "" for none.
        host: target role: address of the host.
        source: target role: own UDP port, 0 for any.
    """

    port: int
    key: KdnetKey
    target: str = ""
    host: str = ""
    source: int = 0

    @property
    def where(self) -> str:
        """The connection without its secret."""
        tail = f",target={self.target}" if self.target else ""
        return f"net:port={self.port}{tail}"


@dataclass(frozen=True)
class DeviceConnection:
    """A serial device: COM port, character device or pseudo terminal."""

    device: str
    baud: int = DEFAULT_BAUD

    @property
    def where(self) -> str:
        """The connection as a connection string."""
        return f"com:port={self.device}"


@dataclass(frozen=True)
class PipeConnection:
    """A named pipe (Windows) or a Unix socket (elsewhere)."""

    path: str

    @property
    def where(self) -> str:
        """The connection as a connection string."""
        return f"com:pipe,port={self.path}"


@dataclass(frozen=True)
class TcpConnection:
    """A byte stream over TCP; ``host`` empty means we listen.

    Attributes:
        bind: own address to listen on. A byte stream has no key: whoever reaches it is the peer,
            so it is this machine only unless asked otherwise.
    """

    port: int
    host: str = ""
    bind: str = "127.0.0.1"

    @property
    def where(self) -> str:
        """The connection as a connection string."""
        if self.host:
            return f"com:ipport={self.port},port={self.host}"
        return f"com:listen={self.port}"


StreamConnection = Union[DeviceConnection, PipeConnection, TcpConnection]
Connection = Union[NetConnection, StreamConnection]


def _refuse(came_back: str, next_step: str = _EXAMPLES) -> NoReturn:
    raise BadConnection("reading the connection string", came_back, next_step)


def _number(options: dict[str, str], name: str, default: int | None = None) -> int:
    text = options.get(name)
    if text is None:
        if default is None:
            _refuse(f"{name}= is missing")
        return default
    limit = 0xFFFF if name != "baud" else 10_000_000
    if not (text.isascii() and text.isdigit() and len(text) < 20 and 0 < int(text) <= limit):
        _refuse(f"{name}= is not a number from 1 to {limit}")
    return int(text)


def _options(text: str, allowed: frozenset[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for piece in text.split(","):
        name, equals, value = piece.partition("=")
        name = name.strip().lower()
        if name not in allowed:
            # The piece is not quoted: a mistyped "key" must not end up on a screen.
            _refuse(f"an option is not one of {', '.join(sorted(allowed))}")
        if name in options:
            _refuse(f"{name}= is given twice")
        if equals and not value.strip():
            _refuse(f"{name}= is empty")
        options[name] = value.strip()
    return options


def _parse_net(text: str) -> NetConnection:
    options = _options(text, frozenset(("port", "key", "target", "host", "source")))
    if "key" not in options:
        _refuse("key= is missing", "add the key that the target was set up with")
    return NetConnection(
        port=_number(options, "port", DEFAULT_NET_PORT),
        key=KdnetKey.parse(options["key"]),
        target=options.get("target", ""),
        host=options.get("host", ""),
        source=_number(options, "source") if "source" in options else 0,
    )


def _parse_com(text: str) -> Connection:
    known = ("port", "baud", "pipe", "ipport", "listen", "resets", "reconnect", "host")
    options = _options(text, frozenset(known))
    if "pipe" in options:
        if "port" not in options:
            _refuse("port= with the name of the pipe is missing")
        return PipeConnection(options["port"])
    if "listen" in options:
        bind = options.get("host") or "127.0.0.1"
        return TcpConnection(_number(options, "listen"), bind=bind)
    if "ipport" in options:
        return TcpConnection(_number(options, "ipport"), options.get("port") or "127.0.0.1")
    if "port" not in options:
        _refuse("port= with the serial device is missing")
    return DeviceConnection(options["port"], _number(options, "baud", DEFAULT_BAUD))


def parse_connection(text: str) -> Connection:
    """Understand one of WinDbg's ``-k`` strings (or one of our additions to them).

    Raises:
        BadConnection: what is wrong, without ever quoting a key.
    """
    scheme, colon, rest = text.strip().strip("\"'").partition(":")
    kind = scheme.strip().lower()
    if kind == "net" and colon:
        return _parse_net(rest)
    if kind == "com" and colon:
        return _parse_com(rest)
    if kind == "tcp" and colon:
        return TcpConnection(_number({"port": rest.strip()}, "port"))
    return _refuse("it starts with neither net: nor com:")


def open_host(
    connection: Connection | str, clock: Callable[[], float] = time.perf_counter
) -> HostLink:
    """Open the debugger's end of a connection. Nothing is sent to the target yet.

    Raises:
        BadConnection: a string that cannot be understood.
        PortInUse: the UDP or TCP port to listen on is taken.
        NoTarget: nobody listens at the other end of a stream, or there is no such device.
        UnsupportedTarget: this kind of stream does not work on this system.
        MissingDependency: the stream needs a package that is not installed.
    """
    if isinstance(connection, str):
        connection = parse_connection(connection)
    if isinstance(connection, NetConnection):
        return KdnetHost(connection.port, connection.key, target=connection.target, clock=clock)
    return SerialHost(_host_stream(connection), clock=clock)


def open_target(
    connection: Connection | str, clock: Callable[[], float] = time.perf_counter
) -> TargetLink:
    """Open the debuggee's end of a connection.

    Raises:
        As ``open_host``.
    """
    if isinstance(connection, str):
        connection = parse_connection(connection)
    if isinstance(connection, NetConnection):
        return KdnetTarget(
            connection.host or "127.0.0.1",
            connection.port,
            connection.key,
            source_port=connection.source,
            clock=clock,
        )
    return SerialTarget(_target_stream(connection), clock=clock)


def _host_stream(connection: StreamConnection) -> Medium:
    where = connection.where
    if isinstance(connection, DeviceConnection):
        return open_device(where, connection.device, connection.baud)
    if isinstance(connection, PipeConnection):
        if os.name == "nt":
            return open_windows_pipe(where, connection.path)
        return connect_unix(where, connection.path)
    if connection.host:
        return connect_tcp(where, connection.host, connection.port)
    return listen_tcp(where, connection.port, connection.bind)


def _target_stream(connection: StreamConnection) -> Medium:
    where = connection.where
    if isinstance(connection, DeviceConnection):
        return open_device(where, connection.device, connection.baud)
    if isinstance(connection, PipeConnection):
        return listen_unix(where, connection.path)
    if connection.host:
        return connect_tcp(where, connection.host, connection.port)
    return listen_tcp(where, connection.port, connection.bind)
