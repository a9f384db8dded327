"""Starts practice targets as programs of their own, and finds free ports."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

KEY = "1.2.3.4"
PROJECT = Path(__file__).parents[3]


def free_port(kind: int) -> int:
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Running:
    """A practice target in a process."""

    def __init__(self, connection: str, *options: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kdleak.practice.run", connection, "--json", *options],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert "ready" in self.process.stdout.readline()

    def finish(self) -> dict:
        """End it; what it reports about its run."""
        self.process.send_signal(signal.SIGTERM)
        out, _ = self.process.communicate(timeout=20)
        assert self.process.returncode == 0
        return json.loads(out)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=20)


@pytest.fixture
def start_target():
    running: list[Running] = []

    def start(connection: str, *options: str) -> Running:
        running.append(Running(connection, *options))
        return running[-1]

    yield start
    for one in running:
        one.kill()


@pytest.fixture(params=["kdnet", "tcp"])
def connections(request):
    """Connection strings of host and target role for one medium."""
    if request.param == "kdnet":
        port = free_port(socket.SOCK_DGRAM)
        return (
            f"net:port={port},key={KEY}",
            f"net:host=127.0.0.1,port={port},key={KEY}",
        )
    port = free_port(socket.SOCK_STREAM)
    return f"com:ipport={port},port=127.0.0.1", f"tcp:{port}"


@pytest.fixture
def udp_port():
    return free_port(socket.SOCK_DGRAM)
