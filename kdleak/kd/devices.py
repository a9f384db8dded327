"""Serial devices as media: terminals and pseudo terminals, Windows COM ports and named pipes."""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import selectors
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from kdleak.errors import LinkLost, MissingDependency, NoTarget, UnsupportedTarget
from kdleak.kd.machine import Address, Parcel
from kdleak.kd.media import READ_SIZE, WRITE_SECONDS, Medium, SelectingMedium

_POLL_SECONDS = 0.0005


class TerminalMedium(SelectingMedium):
    """A character device opened as a raw terminal (POSIX)."""

    def __init__(self, where: str, descriptor: int) -> None:
        super().__init__(where)
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._selector.register(descriptor, selectors.EVENT_READ)

    def _read_now(self) -> list[Parcel]:
        try:
            data = os.read(self._descriptor, READ_SIZE)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError as error:
            raise LinkLost(
                f"reading from {self.where}", str(error), "check the cable or the virtual machine"
            ) from error
        if not data:
            raise LinkLost(f"reading from {self.where}", "the line was hung up")
        return [(data, None)]

    def _write_now(self, data: bytes, destination: Address | None) -> None:
        del destination
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._descriptor, view) :]
            except (BlockingIOError, InterruptedError):  # noqa: PERF203
                if not select.select([], [self._descriptor], [], WRITE_SECONDS)[1]:
                    return
            except OSError:
                return

    def _release(self) -> None:
        os.close(self._descriptor)


class PollingMedium:
    """A stream that cannot be waited for: looked at every half millisecond.

    Args:
        take: returns what has arrived, without waiting; raises OSError when the stream is gone.
        put: writes all of its argument.
        release: closes.
    """

    def __init__(
        self,
        where: str,
        take: Callable[[], bytes],
        put: Callable[[bytes], object],
        release: Callable[[], object],
    ) -> None:
        self.where = where
        self._take = take
        self._put = put
        self._release = release
        self._woken = threading.Event()
        self._lock = threading.Lock()
        self._closed = False

    def read(self, timeout: float | None) -> list[Parcel]:
        """See Medium."""
        deadline = None if timeout is None else time.perf_counter() + timeout
        while True:
            with self._lock:
                if self._closed:
                    raise LinkLost(f"reading from {self.where}", "it has been closed")
                try:
                    data = self._take()
                except OSError as error:
                    raise LinkLost(f"reading from {self.where}", str(error)) from error
            if data:
                return [(data, None)]
            if deadline is not None and time.perf_counter() >= deadline:
                return []
            if self._woken.is_set():
                self._woken.clear()
                return []
            # Not Event.wait: on Windows it sleeps whole clock ticks of 15 ms, and the target
            # stands still meanwhile.
            time.sleep(_POLL_SECONDS)

    def write(self, data: bytes, destination: Address | None) -> None:
        """See Medium."""
        del destination
        with self._lock:
            if self._closed:
                raise LinkLost(f"writing to {self.where}", "it has been closed")
            with contextlib.suppress(OSError):
                self._put(data)

    def wake(self) -> None:
        """See Medium."""
        self._woken.set()

    def close(self) -> None:
        """See Medium."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._release()


def open_device(where: str, device: str, baud: int) -> Medium:
    """Open a serial device: a COM port on Windows, a terminal device elsewhere.

    Raises:
        NoTarget: no such device, or no right to use it.
        UnsupportedTarget: not a terminal, or a baud rate the system does not know.
        MissingDependency: a COM port without the package pyserial.
    """
    if os.name == "nt":
        return _open_com_port(where, device, baud)
    return _open_terminal(where, device, baud)


def _open_terminal(where: str, device: str, baud: int) -> Medium:
    termios = importlib.import_module("termios")
    tty = importlib.import_module("tty")
    speed = getattr(termios, f"B{baud}", None)
    if speed is None:
        raise UnsupportedTarget(
            f"opening {where}", f"this system knows no rate of {baud} baud", "use baud=115200"
        )
    try:
        descriptor = os.open(device, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError as error:
        _no_device(device, error)
    try:
        tty.setraw(descriptor)
        attributes = termios.tcgetattr(descriptor)
        attributes[2] = (attributes[2] | termios.CLOCAL | termios.CREAD) & ~termios.CRTSCTS
        attributes[4] = attributes[5] = speed
        termios.tcsetattr(descriptor, termios.TCSANOW, attributes)
    except termios.error as error:
        os.close(descriptor)
        raise UnsupportedTarget(
            f"opening {where}",
            f"{device} is not a terminal device ({error})",
            "give a serial device, or com:pipe,port=PATH for a socket",
        ) from error
    return TerminalMedium(where, descriptor)


def _no_device(device: str, error: OSError) -> NoReturn:
    raise NoTarget(
        f"opening {device}",
        error.strerror or str(error),
        "check the name of the device and that you may read and write it",
    ) from error


def _open_com_port(where: str, device: str, baud: int) -> Medium:
    try:
        serial = importlib.import_module("serial")
    except ImportError as error:
        raise MissingDependency(
            f"opening {where}", "COM ports need the package pyserial", "pip install pyserial"
        ) from error
    try:
        port: Any = serial.Serial(device, baud, timeout=0, write_timeout=WRITE_SECONDS)
    except OSError as error:
        _no_device(device, error)
    return PollingMedium(where, lambda: bytes(port.read(READ_SIZE)), port.write, port.close)


def open_windows_pipe(where: str, path: str) -> Medium:
    """Open a named pipe as a client.

    The handle is not overlapped, so a read that waits would hold up writes: PeekNamedPipe tells
    how much can be read without waiting.

    Raises:
        NoTarget: no such pipe, or it is taken.
        UnsupportedTarget: this is not Windows.
    """
    if os.name != "nt":
        raise UnsupportedTarget(f"opening {where}", "named pipes exist on Windows only")
    return _open_windows_pipe(where, path)


def _open_windows_pipe(where: str, path: str) -> Medium:
    ctypes: Any = importlib.import_module("ctypes")
    msvcrt: Any = importlib.import_module("msvcrt")
    try:
        descriptor = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
    except OSError as error:
        _no_device(path, error)
    peek = ctypes.WinDLL("kernel32", use_last_error=True).PeekNamedPipe
    peek.argtypes = [ctypes.c_void_p, *[ctypes.c_void_p] * 1, ctypes.c_ulong] + [
        ctypes.POINTER(ctypes.c_ulong)
    ] * 3
    handle = msvcrt.get_osfhandle(descriptor)

    def take() -> bytes:
        available = ctypes.c_ulong(0)
        if not peek(handle, None, 0, None, ctypes.byref(available), None):
            raise ctypes.WinError(ctypes.get_last_error())
        if not available.value:
            return b""
        return os.read(descriptor, min(available.value, READ_SIZE))

    return PollingMedium(
        where, take, lambda data: os.write(descriptor, data), lambda: os.close(descriptor)
    )
