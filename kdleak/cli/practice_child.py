"""The practice kernel as a process of its own, for the demo and the benchmark."""

from __future__ import annotations

import json
import os
import random
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kdleak.errors import KdleakError
from kdleak.windbg.session import KEY_VARIABLE

_BOOT_SECONDS = 30.0
_END_SECONDS = 20.0
_BY_HAND = "run `kdleak practice --kdnet 127.0.0.1:50000 --key 1.2.3.4` by itself"


class PracticeFailed(KdleakError):
    """The practice kernel's process did not do what it is for."""


@dataclass
class PracticeChild:
    """A running practice kernel.

    Attributes:
        port: UDP port a debugger listens on to meet it.
        key: KDNET key, made for this run; never print it.
        process: the process.
        result: what it printed at its end, as parsed JSON; empty before.
    """

    port: int
    key: str = field(repr=False)
    process: subprocess.Popen[bytes]
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def connection(self) -> str:
        """What ``-k`` takes; holds the key."""
        return f"net:port={self.port},key={self.key}"


@contextmanager
def practice_child(*, seed: int, rate: float, build: int = 22621) -> Iterator[PracticeChild]:
    """Run a practice kernel on loopback KDNET for the body.

    Raises:
        PracticeFailed: it ended by itself, or would not end.
    """
    port = free_udp_port()
    key = ".".join(_base36(secrets.randbits(63)) for _ in range(4))
    command = [sys.executable, "-m", "kdleak", "practice", "--until-eof", "--json"]
    command += ["--kdnet", f"127.0.0.1:{port}", "--seed", str(seed)]
    command += ["--rate", f"{rate:g}", "--build", str(build)]
    with (
        tempfile.TemporaryDirectory(prefix="kdleak-") as folder,
        (Path(folder) / "stderr.txt").open("wb") as stderr,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            # The key goes by the environment: command lines can be read by every user.
            env={**os.environ, KEY_VARIABLE: key},
            # Ctrl+C is for the hunt, which has to disarm while its target still runs.
            start_new_session=os.name != "nt",
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        ) as process,
    ):
        complaints = Path(stderr.name)
        child = PracticeChild(port, key, process)
        try:
            _await_ready(process, complaints)
            yield child
            try:
                output, _ = process.communicate(b"", timeout=_END_SECONDS)
            except subprocess.TimeoutExpired as error:
                raise PracticeFailed(
                    "ending the practice kernel", f"it did not end in {_END_SECONDS:g} s"
                ) from error
            if process.returncode != 0:
                raise _failed(process, complaints)
            child.result = json.loads(output)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def _await_ready(process: subprocess.Popen[bytes], complaints: Path) -> None:
    """Wait until the practice kernel has booted.

    Raises:
        PracticeFailed: it ended, or is not there after a while.
    """
    deadline = time.monotonic() + _BOOT_SECONDS
    while b"practice target ready" not in complaints.read_bytes():
        if process.poll() is not None:
            raise _failed(process, complaints)
        if time.monotonic() >= deadline:
            raise PracticeFailed(
                "starting the practice kernel", f"it did not boot in {_BOOT_SECONDS:g} s", _BY_HAND
            )
        time.sleep(0.02)


def _failed(process: subprocess.Popen[bytes], complaints: Path) -> PracticeFailed:
    said = complaints.read_bytes().decode("utf-8", "replace").strip()[-500:]
    return PracticeFailed(
        "running the practice kernel", said or f"it ended with code {process.returncode}", _BY_HAND
    )


def free_udp_port() -> int:
    """A UDP port nobody listens on, from the range KDNET uses first."""
    for port in random.sample(range(50000, 50040), 40):  # two demos at once must not meet
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind(("0.0.0.0", port))  # noqa: S104 - what the debugger will bind
            except OSError:
                continue
            return port
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("0.0.0.0", 0))  # noqa: S104
        return int(probe.getsockname()[1])


def _base36(number: int) -> str:
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    text = ""
    while number:
        number, digit = divmod(number, 36)
        text = digits[digit] + text
    return text or "0"
