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
        process: the target.
    """

    connection: str
    symbols: str
    process: subprocess.Popen[str]
    _report: dict[str, object] = field(default_factory=dict)

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

    def kill(self) -> None:
        """End the target at once, as a machine that loses power."""
        if self.process.poll() is None:
            self.process.kill()
        with contextlib.suppress(ValueError):  # its pipes may be closed already
            self.process.communicate(timeout=20)


def free_udp_port() -> int:
    """A port nobody uses on any address: the engine binds them all."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


def start_practice(*options: str, key: str = KEY) -> Practice:
    """A running practice target; ``options`` are those of ``kdleak.practice.run``."""
    port = free_udp_port()
    command = [sys.executable, "-m", "kdleak.practice.run"]
    process = subprocess.Popen(
        [*command, f"net:host=127.0.0.1,port={port},key={key}", "--json", *options],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert "ready" in process.stdout.readline()
    symbols = str(IMAGES)
    if "--build" in options:
        build = options[options.index("--build") + 1]
        if (IMAGES / build).is_dir():
            symbols = f"{IMAGES / build};{IMAGES}"
    return Practice(f"net:port={port},key={key}", symbols, process)


@pytest.fixture
def practice_over_kdnet() -> Iterator[Callable[..., Practice]]:
    """Starts practice targets; call it with options of ``kdleak.practice.run``."""
    running: list[Practice] = []

    def start(*options: str, key: str = KEY) -> Practice:
        running.append(start_practice(*options, key=key))
        return running[-1]

    yield start
    for one in running:
        one.kill()
