"""Sockets as media: what a blocking link reads from and writes to.

A medium waits in ``read`` only, can be woken and closed from any thread, and raises errors of
kdleak's tree. Bytes that a stuck peer does not take are dropped after a second, as a serial line
would: KD sends again what was not acknowledged.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import selectors
import socket
import threading
from pathlib import Path
from typing import NoReturn, Protocol

from kdleak.errors import LinkLost, NoTarget, PortInUse, UnsupportedTarget
from kdleak.kd.machine import Address, Parcel

READ_SIZE = 0x10000
MAX_UDP = 0x10000
DATAGRAMS_PER_READ = 64
WRITE_SECONDS = 1.0
CONNECT_SECONDS = 5.0


class Medium(Protocol):
    """A byte stream or a datagram socket."""

    def read(self, timeout: float | None) -> list[Parcel]:
        """What has arrived; waits up to ``timeout`` seconds (None: for ever) when nothing has.

        Empty at timeout and after ``wake``.

        Raises:
            LinkLost: the medium is closed, by us or by the peer.
        """

    def write(self, data: bytes, destination: Address | None) -> None:
        """Send; never waits longer than about a second."""

    def wake(self) -> None:
        """End a ``read`` that waits, from any thread."""

    def close(self) -> None:
        """Release everything, from any thread, any number of times."""


class SelectingMedium:
    """Base for media that ``selectors`` can wait for."""

    def __init__(self, where: str) -> None:
        self.where = where
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._selector.register(self._wake_in, selectors.EVENT_READ)
        self._lock = threading.Lock()
        self._closed = False

    def read(self, timeout: float | None) -> list[Parcel]:
        """See Medium."""
        with self._lock:
            if self._closed:
                self._raise_closed()
            parcels = self._read_now()
            if parcels or timeout == 0:
                return parcels
            self._selector.select(timeout)
            with contextlib.suppress(OSError):
                while self._wake_in.recv(64):
                    pass
            if self._closed:
                self._raise_closed()
            return self._read_now()

    def write(self, data: bytes, destination: Address | None) -> None:
        """See Medium."""
        if self._closed:
            self._raise_closed()
        self._write_now(data, destination)

    def wake(self) -> None:
        """See Medium."""
        with contextlib.suppress(OSError):
            self._wake_out.send(b"\0")

    def close(self) -> None:
        """See Medium."""
        if self._closed:
            return
        self._closed = True
        self.wake()
        # A reader holds the lock while it waits; the wake makes it let go.
        with self._lock:
            self._selector.close()
            self._wake_in.close()
            self._wake_out.close()
            self._release()

    def _raise_closed(self) -> NoReturn:
        raise LinkLost(f"using {self.where}", "it has been closed")

    def _read_now(self) -> list[Parcel]:
        raise NotImplementedError

    def _write_now(self, data: bytes, destination: Address | None) -> None:
        raise NotImplementedError

    def _release(self) -> None:
        raise NotImplementedError


class UdpMedium(SelectingMedium):
    """A UDP socket, for KDNET.

    Raises:
        PortInUse: another program has the port.
    """

    def __init__(self, where: str, port: int, *, ipv6: bool = False, bind: str = "") -> None:
        family = socket.AF_INET6 if ipv6 else socket.AF_INET
        udp = socket.socket(family, socket.SOCK_DGRAM)
        try:
            claim_address(udp)
            udp.bind((bind or ("::" if ipv6 else "0.0.0.0"), port))  # noqa: S104
        except OSError as error:
            udp.close()
            raise_bind_error(error, f"UDP port {port}")
        udp.setblocking(False)
        super().__init__(where)
        self._udp = udp
        self._selector.register(udp, selectors.EVENT_READ)

    @property
    def port(self) -> int:
        """The local port, also when any was asked for."""
        return int(self._udp.getsockname()[1])

    def _read_now(self) -> list[Parcel]:
        parcels: list[Parcel] = []
        for _ in range(DATAGRAMS_PER_READ):
            try:
                data, source = self._udp.recvfrom(MAX_UDP)
            except ConnectionResetError:
                # Windows tells here that an earlier datagram of ours met a closed port.
                continue
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                raise LinkLost(f"receiving on {self.where}", str(error)) from error
            parcels.append((data, (source[0], source[1])))
        return parcels

    def _write_now(self, data: bytes, destination: Address | None) -> None:
        if destination is None:
            return
        # A full buffer or an unreachable network loses the datagram, as networks do; it is
        # sent again, and silence is reported by the link.
        with contextlib.suppress(OSError):
            self._udp.sendto(data, destination)

    def _release(self) -> None:
        self._udp.close()


def claim_address(unbound: socket.socket) -> None:
    """On Windows, refuse to share the address we are about to bind with a careless program."""
    exclusive = getattr(socket, "SO_EXCLUSIVEADDRUSE", None)
    if exclusive is not None:
        unbound.setsockopt(socket.SOL_SOCKET, exclusive, 1)


def raise_bind_error(error: OSError, what: str) -> NoReturn:
    """Turn a failed bind into an error of kdleak's tree."""
    taken = {errno.EADDRINUSE, errno.EACCES, 10013, 10048}
    if error.errno in taken:
        raise PortInUse(
            f"listening on {what}",
            "another program has it" if error.errno != errno.EACCES else "it is not allowed",
            "close the other debugger, or use another port on both sides",
        ) from error
    raise NoTarget(f"listening on {what}", str(error)) from error


class StreamMedium(SelectingMedium):
    """A connected stream socket (TCP or Unix)."""

    def __init__(self, where: str, stream: socket.socket) -> None:
        super().__init__(where)
        stream.setblocking(False)
        self._stream = stream
        self._selector.register(stream, selectors.EVENT_READ)

    def _read_now(self) -> list[Parcel]:
        data = read_stream(self._stream)
        if data is None:
            raise LinkLost(
                f"reading from {self.where}",
                "the other side closed the connection",
                "start the target (or its virtual machine) again and attach anew",
            )
        return [(data, None)] if data else []

    def _write_now(self, data: bytes, destination: Address | None) -> None:
        del destination
        write_stream(self._stream, data)

    def _release(self) -> None:
        self._stream.close()


class ListeningMedium(SelectingMedium):
    """A listening stream socket that serves one peer at a time; the newest wins.

    While nobody is connected, what is written is lost.
    """

    def __init__(self, where: str, listener: socket.socket, path: Path | None = None) -> None:
        super().__init__(where)
        listener.setblocking(False)
        self._listener = listener
        self._path = path
        self._peer: socket.socket | None = None
        self._selector.register(listener, selectors.EVENT_READ)

    @property
    def port(self) -> int:
        """The TCP port we listen on."""
        return int(self._listener.getsockname()[1])

    def _read_now(self) -> list[Parcel]:
        self._accept()
        if self._peer is None:
            return []
        data = read_stream(self._peer)
        if data is None:
            self._drop_peer()
            return []
        return [(data, None)] if data else []

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            raise LinkLost(f"listening on {self.where}", str(error)) from error
        self._drop_peer()
        peer.setblocking(False)
        no_delay(peer)
        self._peer = peer
        self._selector.register(peer, selectors.EVENT_READ)

    def _drop_peer(self) -> None:
        if self._peer is not None:
            self._selector.unregister(self._peer)
            self._peer.close()
            self._peer = None

    def _write_now(self, data: bytes, destination: Address | None) -> None:
        del destination
        if self._peer is not None:
            write_stream(self._peer, data)

    def _release(self) -> None:
        if self._peer is not None:
            self._peer.close()
        self._listener.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def read_stream(stream: socket.socket) -> bytes | None:
    """What is there without waiting; None when the peer has gone."""
    try:
        return stream.recv(READ_SIZE) or None
    except (BlockingIOError, InterruptedError):
        return b""
    except OSError:
        return None


def write_stream(stream: socket.socket, data: bytes) -> None:
    """Write all, or drop the rest when the peer takes nothing for a second or has gone.

    That the peer has gone is told by the next read.
    """
    view = memoryview(data)
    while view:
        try:
            view = view[stream.send(view) :]
        except (BlockingIOError, InterruptedError):  # noqa: PERF203
            if not select.select([], [stream], [], WRITE_SECONDS)[1]:
                return
        except (OSError, ValueError):
            # ValueError: closed by another thread between the two calls.
            return


def no_delay(stream: socket.socket) -> None:
    """Send small packets at once; each waits for the one before it anyway."""
    if stream.family != getattr(socket, "AF_UNIX", None):
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def connect_tcp(where: str, host: str, port: int) -> StreamMedium:
    """Connect as a TCP client.

    Raises:
        NoTarget: nobody listens there, or there is no such host.
    """
    try:
        stream = socket.create_connection((host, port), timeout=CONNECT_SECONDS)
    except OSError as error:
        raise NoTarget(
            f"connecting to {host} port {port}",
            str(error),
            "start the target first and check host and port",
        ) from error
    no_delay(stream)
    return StreamMedium(where, stream)


def listen_tcp(where: str, port: int, host: str = "") -> ListeningMedium:
    """Listen for a TCP peer; ``host`` empty means every address of this machine.

    Raises:
        PortInUse: another program has the port.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        claim_address(listener)
        if os.name != "nt":
            # Only against the wait after a close; on Windows it would let two programs share.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host or "0.0.0.0", port))  # noqa: S104
        listener.listen(4)
    except OSError as error:
        listener.close()
        raise_bind_error(error, f"TCP port {port}")
    return ListeningMedium(where, listener)


def connect_unix(where: str, path: str) -> StreamMedium:
    """Connect to a Unix socket.

    Raises:
        NoTarget: nobody listens there.
        UnsupportedTarget: this system has no Unix sockets.
    """
    if os.name == "nt":
        _no_unix_sockets(where)
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        stream.settimeout(CONNECT_SECONDS)
        stream.connect(path)
    except OSError as error:
        stream.close()
        raise NoTarget(
            f"connecting to the socket {path}",
            str(error),
            "start the target first and check the path",
        ) from error
    return StreamMedium(where, stream)


def listen_unix(where: str, path: str) -> ListeningMedium:
    """Listen on a Unix socket; a socket file that nobody serves any more is replaced.

    Raises:
        PortInUse: another program serves it, or it is no socket.
        UnsupportedTarget: this system has no Unix sockets.
    """
    if os.name == "nt":
        _no_unix_sockets(where)
    file = Path(path)
    if file.is_socket():
        probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with probe:
            probe.settimeout(CONNECT_SECONDS)
            if probe.connect_ex(path) == errno.ECONNREFUSED:
                file.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        listener.listen(4)
    except OSError as error:
        listener.close()
        raise_bind_error(error, f"the socket {path}")
    return ListeningMedium(where, listener, file)


def _no_unix_sockets(where: str) -> NoReturn:
    raise UnsupportedTarget(
        f"opening {where}",
        "Unix sockets do not work on this system",
        r"use a named pipe, com:pipe,port=\\.\pipe\name, or TCP, com:ipport=PORT,port=HOST",
    )
