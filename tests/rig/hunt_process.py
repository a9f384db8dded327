"""Whole hunts as processes, the way a user starts them: one door per channel to the engine.

- kd: ``kdleak hunt --engine kd`` on this machine, with the rig's kd.
- pykd: ``python -m kdleak.hunt`` in Windows CPython, what ``!py -m`` runs; its debugger lives in
  a second Windows Python.
- pybag: ``kdleak hunt --engine pybag`` on this machine, the binding in a Windows Python.

Ctrl+C is SIGINT here. Wine hands no console event to a Windows Python, so that a hook there
raises the signal on a thread of its own, as the C runtime does when Ctrl+C or Ctrl+Break comes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from tests.rig.channel_session import python_command
from tests.rig.conftest import KEY, Practice
from tests.rig.places import ROOT, windows_path
from tests.rig.rig import MARK, Rig

BREAK_FILE = "KDLEAK_RIG_BREAK"
"""Environment variable: a Windows Python gets Ctrl+Break when this file is there."""

_HOOKS = f"""
import ctypes, os, signal, threading, time
ctypes.CDLL('kdfix.dll')  # Wine's sockets refuse one option that the engine insists on

def wait_for_break(path):
    while not os.path.exists(path):
        time.sleep(0.05)
    signal.raise_signal(signal.SIGBREAK)

path = os.environ.pop({BREAK_FILE!r}, '')  # not for the processes that this one starts
if path:
    threading.Thread(target=wait_for_break, args=(path,), daemon=True).start()
"""


class Lines:
    """What comes out of a pipe, as it comes.

    The thread that reads closes the pipe: some other process may hold its far end for longer
    than the one that was started.
    """

    def __init__(self, pipe: IO[str]) -> None:
        self.text = ""
        self._pipe = pipe
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._pipe:
            for line in self._pipe:
                self.text += line

    def finish(self) -> None:
        """Wait for its end; a pipe that somebody else holds open is left to its thread."""
        self._thread.join(10)


class HuntProcess:
    """A running kdleak.

    Args:
        process: with pipes for its output, in a session of its own.
        break_file: see ``BREAK_FILE``; None where SIGINT is Ctrl+C.
    """

    def __init__(self, process: subprocess.Popen[str], break_file: Path | None) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self.process = process
        self._break_file = break_file
        self._out, self._err = Lines(process.stdout), Lines(process.stderr)

    @property
    def out(self) -> str:
        """Its result so far."""
        return self._out.text

    @property
    def err(self) -> str:
        """Its narration so far."""
        return self._err.text

    @property
    def said(self) -> str:
        """All of it, for messages."""
        return f"{self.err}\n--\n{self.out}"

    @property
    def complaint(self) -> str:
        """The sentence that says what went wrong."""
        lines = [line for line in self.err.splitlines() if line.startswith("kdleak: ")]
        assert len(lines) == 1, self.said
        return lines[0]

    def says(self, text: str, timeout: float = 90) -> HuntProcess:
        """Wait until it narrated something."""
        deadline = time.monotonic() + timeout
        while text not in self.err:
            assert self.process.poll() is None, f"ended without saying {text!r}: {self.said}"
            assert time.monotonic() < deadline, f"never said {text!r}: {self.said}"
            time.sleep(0.02)
        return self

    def interrupt(self) -> HuntProcess:
        """Ctrl+C, or Ctrl+Break in Windows Python."""
        if self._break_file is not None:
            self._break_file.touch()
        else:
            self.process.send_signal(signal.SIGINT)
        return self

    def ends(self, *codes: int, timeout: float = 90) -> HuntProcess:
        """Wait for its end, with one of these exit codes, and look at what it printed."""
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still runs after {timeout} s: {self.said}") from None
        self._out.finish()
        self._err.finish()
        assert self.process.returncode in codes, self.said
        for text in (self.out, self.err):
            assert KEY not in text
            assert "Traceback" not in text, self.said
        return self

    def kill(self) -> None:
        """End it however it is."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(20)
        self._out.finish()
        self._err.finish()


class Doors:
    """Starts kdleak on one channel or another.

    Args:
        rig: the rig.
        folder: of the test.
    """

    def __init__(self, rig: Rig, folder: Path) -> None:
        self._rig = rig
        self._folder = folder
        self._started: list[HuntProcess] = []
        self.state = folder / "state"

    @property
    def journal(self) -> list[str]:
        """Names of the journal entries that are open."""
        return sorted(file.name for file in self.state.glob("*.json"))

    def start(
        self, name: str, practice: Practice, *options: str, command: str = "hunt"
    ) -> HuntProcess:
        """Start kdleak through "kd", "pykd" (Windows Python) or "pybag"."""
        if name == "pykd":
            started = self._from_windows(practice, command, options)
        else:
            started = self._from_here(name, practice, command, options)
        self._started.append(started)
        return started

    def close(self) -> None:
        """End what still runs: of a test that failed, the debuggers first."""
        if any(one.process.poll() is None for one in self._started):
            self._rig.kill_processes()
        for one in self._started:
            one.kill()

    def _from_here(
        self, name: str, practice: Practice, command: str, options: Sequence[str]
    ) -> HuntProcess:
        engine = ["--engine", "kd", "--kd", str(self._rig.kd)]
        if name == "pybag":
            python = python_command(self._rig, practice, self._folder)
            engine = ["--engine", "pybag", "--python", python]
        words = [command, "-k", practice.connection, "-y", practice.symbols, *engine, *options]
        environment = {
            **os.environ,
            MARK: self._rig.session,
            "PYTHONPATH": str(ROOT),
            "KDLEAK_STATE_DIR": str(self.state),
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "kdleak", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=self._folder,
            start_new_session=True,
        )
        return HuntProcess(process, None)

    def _from_windows(
        self, practice: Practice, command: str, options: Sequence[str]
    ) -> HuntProcess:
        hooks = self._folder / "windows-hooks"
        hooks.mkdir(exist_ok=True)
        (hooks / "sitecustomize.py").write_text(_HOOKS)
        break_file = self._folder / f"break{len(self._started)}"
        environment = self._rig.environment(symbols=practice.symbols)
        environment["PYTHONPATH"] += ";" + windows_path(hooks)
        environment["KDLEAK_STATE_DIR"] = windows_path(self.state)
        environment[BREAK_FILE] = windows_path(break_file)
        process = self._rig.start_python(
            "-m",
            f"kdleak.{command}",
            "-k",
            practice.connection,
            "--engine",
            "pykd",
            *options,
            environment=environment,
        )
        assert process.stdin is not None
        process.stdin.close()
        return HuntProcess(process, break_file)
