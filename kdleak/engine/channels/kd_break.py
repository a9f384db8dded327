"""The ways to tell a console debugger to break in, and to end it with all that it started.

On Windows the debugger runs in a process group of its own: Ctrl+C in our console does not reach
it (it must live on until the target is disarmed), and Ctrl+Break can be sent to it alone.
Elsewhere the debugger is a program that starts Wine, where no console event can be sent: the byte
0x03 on its standard input stands for the key, which a host of our own making reads at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import Any, Dict, Protocol


class BreakWay(Protocol):
    """How one debugger process is told to break in."""

    def spawn_options(self) -> Dict[str, Any]:
        """What ``subprocess.Popen`` needs for it."""

    def break_in(self, process: subprocess.Popen[bytes]) -> None:
        """Ask for a break; nothing waits for it.

        Raises:
            OSError: it could not be asked.
        """


class ConsoleBreak:
    """Ctrl+Break to the debugger's own process group (Windows)."""

    def spawn_options(self) -> Dict[str, Any]:
        """A group of its own, in the console that we have in common with it."""
        options: Dict[str, Any] = {}
        if sys.platform == "win32":
            _have_console()
            options["creationflags"] = subprocess.CREATE_NEW_PROCESS_GROUP
        return options

    def break_in(self, process: subprocess.Popen[bytes]) -> None:
        """Send the event.

        Not by ``os.kill``: where that fails, CPython up to 3.12 goes on and ends the process.
        """
        if sys.platform == "win32":
            import ctypes  # noqa: PLC0415 - Windows only

            if not ctypes.windll.kernel32.GenerateConsoleCtrlEvent(
                signal.CTRL_BREAK_EVENT, process.pid
            ):
                # No console, or Wine. The line end keeps the byte out of the next command of a
                # debugger that takes it for text.
                _write(process, b"\x03\n")


class ByteBreak:
    """The byte of Ctrl+C on standard input."""

    def spawn_options(self) -> Dict[str, Any]:
        """A session of its own, so that it can be ended as a whole."""
        return {"start_new_session": True}

    def break_in(self, process: subprocess.Popen[bytes]) -> None:
        """Write the byte."""
        _write(process, b"\x03")


class SignalBreak(ByteBreak):
    """SIGINT to the process, which Wine hands to the program it runs."""

    def break_in(self, process: subprocess.Popen[bytes]) -> None:
        """Send the signal."""
        process.send_signal(signal.SIGINT)


def default_way() -> BreakWay:
    """The way of this system."""
    return ConsoleBreak() if sys.platform == "win32" else ByteBreak()


def end_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill the debugger and what it started. Does not wait for more than a moment."""
    if process.poll() is None:  # afterwards its number may be another's
        if sys.platform == "win32":
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(
                    ["taskkill", "/F", "/T", "/PID", str(process.pid)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    check=False,
                    timeout=5.0,
                )
        else:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(OSError):
        process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5.0)


def _write(process: subprocess.Popen[bytes], data: bytes) -> None:
    if process.stdin is not None:
        process.stdin.write(data)
        process.stdin.flush()


def _have_console() -> None:
    """Console events need a console; a program without one (a service) gets a hidden one."""
    if sys.platform == "win32":
        import ctypes  # noqa: PLC0415 - Windows only

        kernel, user = ctypes.windll.kernel32, ctypes.windll.user32
        if not kernel.GetConsoleCP() and kernel.AllocConsole():
            user.ShowWindow(kernel.GetConsoleWindow(), 0)
