"""Processes for the tests of the command line: kdleak, and the practice kernel it attaches to.

Whatever a kdleak process prints is searched for the KDNET key and for a traceback when it ends,
whether a test looks at it or not.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

PROJECT = Path(__file__).parents[3]
KEY = "k3yp4rt1.zz9sec0nd.th1rdp1ece.l4stb1t"
IDLE = 0xFFFFFF0F
SECONDS = 60.0
"""Longest a process may take."""

_FOREIGN_VARIABLES = ("NO_COLOR", "COLUMNS", "TERM", "_NT_SYMBOL_PATH", "_NT_ALT_SYMBOL_PATH")


def free_port(kind: int = socket.SOCK_STREAM) -> int:
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(state: Path, **more: str) -> dict[str, str]:
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("KDLEAK_") and name not in _FOREIGN_VARIABLES
    }
    return {
        **clean,
        "PYTHONPATH": str(PROJECT),
        "PYTHONUNBUFFERED": "1",
        "KDLEAK_STATE_DIR": str(state),
        **more,
    }


def secrets_of(key: str = KEY) -> list[str]:
    """The key as it could be printed: its parts, as numbers, and as bytes."""
    found = []
    for part in key.split("."):
        number = int(part, 36)
        found += [part, str(number), f"{number:x}", number.to_bytes(8, "little").hex()]
    return found


def assert_clean(text: str, key: str = KEY) -> None:
    lowered = text.lower()
    for secret in secrets_of(key):
        assert secret not in lowered, f"{secret} is part of the key:\n{text}"
    assert "Traceback" not in text, text


class Kdleak:
    """A running kdleak process; its output goes to files, so it never waits for us."""

    def __init__(self, folder: Path, state: Path, arguments, *, stdout=None, env=None, trace=False):
        folder.mkdir(parents=True)
        self.arguments = [str(argument) for argument in arguments]
        self._out, self._err = folder / "stdout.txt", folder / "stderr.txt"
        self._trace = trace
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kdleak", *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=out if stdout is None else stdout,
                stderr=err,
                env=environment(state, **(env or {})),
                cwd=folder,
                start_new_session=True,
            )

    @property
    def out(self) -> str:
        return self._out.read_text(encoding="utf-8", errors="replace")

    @property
    def err(self) -> str:
        return self._err.read_text(encoding="utf-8", errors="replace")

    def says(self, text: str, timeout: float = SECONDS) -> Kdleak:
        """Wait until it has printed something to stderr."""
        deadline = time.monotonic() + timeout
        while text not in self.err:
            assert self.process.poll() is None, f"ended without saying {text!r}: {self.err}"
            assert time.monotonic() < deadline, f"never said {text!r}: {self.err}"
            time.sleep(0.01)
        return self

    def send(self, number: int) -> Kdleak:
        self.process.send_signal(number)
        return self

    def ends(self, code: int, timeout: float = SECONDS) -> Kdleak:
        """Wait for its end; it returned this exit code and betrayed nothing."""
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"still runs after {timeout} s:\n{self.err}\n{self.out}") from None
        self.check()
        assert self.process.returncode == code, f"{self.err}\n{self.out}"
        return self

    def hunted(self, timeout: float = SECONDS) -> Kdleak:
        """Wait for the end of a hunt of few hits: done, or done with its question open."""
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return self.ends(0, 0)
        return self.ends(4 if self.process.returncode == 4 else 0)

    def check(self) -> None:
        text = self.out + self.err
        assert_clean(text.replace("Traceback", "") if self._trace else text)

    @property
    def complaint(self) -> str:
        """The sentence that says what went wrong: one line, what was tried, and what next."""
        lines = [line for line in self.err.splitlines() if line.startswith("kdleak: ")]
        assert len(lines) == 1, self.err
        return lines[0]

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(SECONDS)


class Practice:
    """A practice kernel in a process of its own."""

    def __init__(self, folder: Path, state: Path, link="kdnet", *, key=KEY, port=None, **options):
        folder.mkdir(parents=True)
        udp = link == "kdnet"
        self.port = port or free_port(socket.SOCK_DGRAM if udp else socket.SOCK_STREAM)
        self.key = key
        if udp:
            self.connection = f"net:port={self.port},key={key}"
            role = f"net:host=127.0.0.1,port={self.port},key={key}"
        else:
            self.connection = f"com:ipport={self.port},port=127.0.0.1"
            role = f"tcp:{self.port}"
        command = [sys.executable, "-m", "kdleak.practice.run", role, "--json"]
        for name, value in options.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        self._err = folder / "stderr.txt"
        with self._err.open("wb") as err:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=err, text=True, env=environment(state)
            )
        assert "ready" in self.process.stdout.readline(), self._err.read_text()
        self.result = None

    def runs(self, tries: int = 3) -> bool:
        """Whether the machine runs: a stopped one uses next to no processor time."""
        for _ in range(tries):
            before = self._processor_time()
            time.sleep(0.5)
            if self._processor_time() - before >= 3:  # hundredths of a second; 5 are usual
                return True
        return False

    def _processor_time(self) -> int:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    def finish(self) -> dict:
        """End it; what it reports about its run."""
        if self.result is None:
            self.process.send_signal(signal.SIGTERM)
            out, _ = self.process.communicate(timeout=SECONDS)
            assert self.process.returncode == 0, self._err.read_text()
            self.result = json.loads(out)
        return self.result

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.communicate(timeout=SECONDS)

    # --- what is true of a target that was treated well

    def assert_unharmed(self, said: str = "") -> dict:
        """It runs, nt!PoolHitTag is the original; ends it and returns its counters."""
        assert self.runs(tries=10), f"the target was left standing: {said}"
        statistics = self.finish()["statistics"]
        assert statistics["pool_hit_tag"] == IDLE, hex(statistics["pool_hit_tag"])
        return statistics

    def assert_waiting(self) -> dict:
        """It stands still, nt!PoolHitTag is the original; ends it and returns its counters."""
        assert not self.runs(), "the target runs, its user would not find it stopped"
        statistics = self.finish()["statistics"]
        assert statistics["pool_hit_tag"] == IDLE, hex(statistics["pool_hit_tag"])
        return statistics
