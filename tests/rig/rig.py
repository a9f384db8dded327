"""Starts Windows programs in the rig: kd.exe for Linux callers, and Windows CPython 3.9."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.rig.places import (
    ROOT,
    Places,
    find_wine,
    ingredients,
    rig_folder,
    windows_path,
    wine_environment,
)

NO_PYTHON = "the rig has no Windows Python: install CPython 3.9, then make rig"
NOT_BUILT = "the rig is not built, or not from these sources: make rig"
MARK = "KDLEAK_RIG_SESSION"
"""Environment variable by which a session knows its own processes again."""


@dataclass(frozen=True)
class Finished:
    """What a program left behind.

    Attributes:
        returncode: its exit code.
        out: what it printed, with LF line ends.
        err: what it printed to standard error, with LF line ends.
    """

    returncode: int
    out: str
    err: str


@dataclass(frozen=True)
class Rig:
    """A rig that is built.

    Attributes:
        places: where its parts lie.
        wine: the loader of Windows programs.
        session: marks the processes started through this object.
    """

    places: Places
    wine: Path
    session: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def kd(self) -> Path:
        """A program of this machine that behaves as kd.exe: use it as ``--kd PATH``."""
        return self.places.kd_command

    @property
    def has_python(self) -> bool:
        """Whether Windows Python is complete; it is not where there was no CPython 3.9."""
        return (self.places.python / "Lib" / "os.py").exists()

    def need_python(self) -> None:
        """Skip the test that asks, where there is no Windows Python."""
        if not self.has_python:
            pytest.skip(NO_PYTHON)

    @property
    def debuggers(self) -> str:
        """The folder with dbgeng.dll as Windows programs name it."""
        return windows_path(self.places.kd)

    def environment(self, *, kdexts: bool = True, symbols: str | None = None) -> dict[str, str]:
        """The caller's environment with what the rig's programs need.

        Args:
            kdexts: whether the engine finds an extension with ``!poolused``.
            symbols: symbol path of the engine, folders of this machine joined by ``;``.
        """
        environment = {**os.environ, **wine_environment(self.places), MARK: self.session}
        environment.pop("DISPLAY", None)
        environment["KDLEAK_RIG_KDEXTS"] = "1" if kdexts else "0"
        environment.pop("_NT_DEBUGGER_EXTENSION_PATH", None)
        if kdexts:
            extensions = windows_path(self.places.extensions)
            environment["_NT_DEBUGGER_EXTENSION_PATH"] = extensions
        # Without a path of its own the engine would ask the public server for every module.
        folders = [one for one in (symbols or "").split(";") if one]
        environment["_NT_SYMBOL_PATH"] = ";".join(map(windows_path, folders)) or "Z:\\nowhere"
        environment["WINDBG_DIR"] = self.debuggers
        environment["PYTHONPATH"] = windows_path(ROOT)
        # Byte code of this Python does not belong beside the sources.
        environment["PYTHONPYCACHEPREFIX"] = windows_path(self.places.root / "pycache")
        for name in ("PYTHONHOME", "VIRTUAL_ENV", "PYTHONSTARTUP"):
            environment.pop(name, None)
        return environment

    def start_python(
        self,
        *arguments: str,
        environment: dict[str, str] | None = None,
        cwd: Path = ROOT,
    ) -> subprocess.Popen[str]:
        """Start Windows CPython in a session of its own, its streams as text pipes."""
        self.need_python()
        program = str(self.places.python / "python.exe")
        return self._start([program, *arguments], environment or {}, cwd)

    def _start(
        self, words: list[str], environment: dict[str, str], cwd: Path
    ) -> subprocess.Popen[str]:
        """Start a Windows program."""
        return subprocess.Popen(
            [str(self.wine), *words],
            stdin=subprocess.PIPE,
            # Under Wine Python does not start with a plain file as output.
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            env=environment or self.environment(),
            cwd=cwd,
            start_new_session=True,
        )

    def python(
        self,
        *arguments: str,
        environment: dict[str, str] | None = None,
        timeout: float = 60,
        cwd: Path = ROOT,
        stdin: str = "",
    ) -> Finished:
        """Run Windows CPython to its end.

        Raises:
            subprocess.TimeoutExpired: it took longer; it and what it started is killed.
        """
        process = self.start_python(*arguments, environment=environment, cwd=cwd)
        try:
            out, err = process.communicate(stdin, timeout=timeout)
        finally:
            end(process)
        return Finished(process.returncode, out, err)

    @contextlib.contextmanager
    def warm(self) -> Iterator[None]:
        """Keep Wine running: a program then starts in 0.2 s instead of 1.4 s."""
        process = self._start(["cmd.exe", "/q", "/c", "echo here& set /p line="], {}, ROOT)
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == "here"
            self._open_desktop()
            yield
        finally:
            end(process)

    def _open_desktop(self) -> None:
        """Start what the first program with a use for it would start, and leave its pipes to."""
        subprocess.run(
            [str(self.wine), "cmd.exe", "/q", "/c", "start explorer.exe /desktop"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self.environment(),
            start_new_session=True,
            check=False,
            timeout=60,
        )

    def processes(self) -> list[int]:
        """Ids of this session's Windows programs that still run."""
        wanted = f"{MARK}={self.session}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                if wanted not in (entry / "environ").read_bytes().split(b"\0"):
                    continue
                program = (entry / "cmdline").read_bytes().split(b"\0")[0]
                # Wine's own services belong to everybody who uses the prefix.
                if program.endswith((b"kd.exe", b"python.exe", b"wine64")):
                    found.append(int(entry.name))
        return sorted(found)

    def kill_processes(self) -> list[int]:
        """End what this session left running; returns the ids."""
        found = self.processes()
        for one in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        return found

    def healthy(self, timeout: float = 60) -> bool:
        """Whether a Windows program runs at all; a server of Wine that hangs is ended first."""
        for attempt in range(2):
            try:
                process = self._start(["cmd.exe", "/q", "/c", "echo 1"], {}, ROOT)
                try:
                    if process.communicate(timeout=timeout)[0].strip() == "1":
                        return True
                finally:
                    end(process)
            except subprocess.TimeoutExpired:
                pass
            if not attempt:
                self.stop_wine()
        return False

    def stop_wine(self) -> None:
        """End Wine's server of this prefix and everything that runs in it."""
        server = self.wine.with_name("wineserver")
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                [str(server), "-k"],
                env={**os.environ, **wine_environment(self.places)},
                check=False,
                timeout=30,
                capture_output=True,
            )


def end(process: subprocess.Popen[str]) -> None:
    """Kill a program with its process group, and close its pipes."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def find_rig() -> Rig | None:
    """The rig of this machine; None where it is not built, or built from older sources."""
    places = Places(rig_folder().resolve())
    wine = find_wine()
    if wine is None or not places.done.exists():
        return None
    if places.done.read_text(encoding="ascii") != ingredients():
        return None
    return Rig(places, wine)
