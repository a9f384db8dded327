"""Fixtures of the rig's tests: the rig itself, and a practice target on KDNET."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import kdleak.practice.images as practice_images
from tests.rig.places import ROOT
from tests.rig.rig import NOT_BUILT, Rig, find_rig

KEY = "1.2.3.4"
IMAGES = Path(practice_images.__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs the rig."""
    here = str(Path(__file__).parent) + os.sep
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.rig)


@pytest.fixture(scope="session")
def whole_rig() -> Iterator[Rig]:
    """The rig, warm for the whole session; nothing of it is left running behind."""
    found = find_rig()
    if found is None:
        if os.environ.get("KDLEAK_RIG_REQUIRED"):
            pytest.fail(NOT_BUILT)
        pytest.skip(NOT_BUILT)
    assert found.healthy(), "Windows programs do not start in the rig"
    with found.warm():
        yield found
    found.kill_processes()


@pytest.fixture
def rig(whole_rig: Rig) -> Iterator[Rig]:
    """The rig, for one test: what the test left running is ended and told."""
    one = Rig(whole_rig.places, whole_rig.wine)
    yield one
    left = one.kill_processes()
    assert not left, f"Windows programs left running: {left}"


@dataclass
class Practice:
    """A practice target in a process of its own, on KDNET.

    Attributes:
        connection: the debugger's connection string.
        symbols: symbol path for the debugger, as folders of this machine.
    """

    connection: str
    symbols: str
    _command: list[str]
    _process: subprocess.Popen[str] | None = None
    _report: dict[str, object] = field(default_factory=dict)

    @property
    def port(self) -> int:
        """Where its debugger listens."""
        return int(self.connection.split("=")[1].split(",")[0])

    def reborn(self) -> Practice:
        """The same machine after a restart, not started yet."""
        return Practice(self.connection, self.symbols, [*self._command, "--seed", "8"])

    def plug_into(self, port: int) -> None:
        """Have it send to another port of this machine than the debugger's; before it starts."""
        assert self._process is None
        role = self._command[3].split(",")
        self._command[3] = ",".join([role[0], f"port={port}", *role[2:]])

    def start(self) -> None:
        """Boot it, unless that is done."""
        if self._process is None:
            self._process = subprocess.Popen(
                self._command,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                cwd=ROOT,
                start_new_session=True,
            )
            assert self._process.stdout is not None
            assert "ready" in self._process.stdout.readline()

    @property
    def process(self) -> subprocess.Popen[str]:
        """The target."""
        assert self._process is not None
        return self._process

    def books(self) -> list[dict[str, Any]]:
        """The truth about every call site as it is now; the target must stand still."""
        assert self.process.stdout is not None
        self.process.send_signal(signal.SIGUSR1)
        found = json.loads(self.process.stdout.readline())
        assert isinstance(found, list)
        return found

    def finish(self) -> dict[str, object]:
        """End the target.

        Returns:
            ``statistics`` of the run and the ``ground_truth`` about every call site.
        """
        if not self._report:
            self.process.send_signal(signal.SIGTERM)
            out, _ = self.process.communicate(timeout=30)
            assert self.process.returncode == 0
            self._report = json.loads(out)
        return self._report

    @property
    def statistics(self) -> dict[str, Any]:
        """What the run cost; ends the target."""
        found = self.finish()["statistics"]
        assert isinstance(found, dict)
        return found

    def kill(self) -> None:
        """End the target at once, as a machine that loses power."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.kill()
        with contextlib.suppress(ValueError):  # its pipes may be closed already
            self._process.communicate(timeout=20)


def free_udp_port() -> int:
    """A port nobody uses on any address: the engine binds them all."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


def plan_practice(*options: str, key: str = KEY, port: int = 0) -> Practice:
    """A practice target that is not started yet; ``options`` of ``kdleak.practice.run``."""
    port = port or free_udp_port()
    symbols = str(IMAGES)
    if "--build" in options:
        special = IMAGES / options[options.index("--build") + 1]
        if special.is_dir():
            symbols = f"{special};{IMAGES}"
    target = f"net:host=127.0.0.1,port={port},key={key}"
    command = [sys.executable, "-m", "kdleak.practice.run", target, "--json", *options]
    return Practice(f"net:port={port},key={key}", symbols, command)


@pytest.fixture
def practice_over_kdnet() -> Iterator[Callable[..., Practice]]:
    """Makes practice targets, started unless ``late``; the rest as ``plan_practice``.

    A target offers itself when it boots and every three seconds after that: a debugger that was
    there first is served at once.
    """
    made: list[Practice] = []

    def make(*options: str, key: str = KEY, late: bool = False) -> Practice:
        one = plan_practice(*options, key=key)
        made.append(one)
        if not late:
            one.start()
        return one

    yield make
    for one in made:
        one.kill()
