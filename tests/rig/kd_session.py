"""Drives the rig's kd by hand: a line in, what it printed until the next prompt out."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import time

from tests.rig.rig import Rig

PROMPT = re.compile(rb"\d+: kd> $")


class KdSession:
    """A kd process attached to a target.

    Args:
        rig: where kd lies.
        connection: string for ``-k``.
        symbols: folders of this machine for ``-y``.
        options: more of kd's options.
        kdexts: whether the engine finds an extension with ``!poolused``.
    """

    def __init__(
        self, rig: Rig, connection: str, symbols: str, *options: str, kdexts: bool = True
    ) -> None:
        self.greeting = ""
        self.process = subprocess.Popen(
            [str(rig.kd), "-k", connection, "-y", symbols, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=rig.environment(kdexts=kdexts),
            start_new_session=True,
        )

    def until_prompt(self, timeout: float = 30) -> str:
        """What kd prints until it waits for a command.

        Raises:
            AssertionError: it did not come to that in ``timeout`` seconds.
        """
        return self._read(timeout, PROMPT)

    def until_end(self, timeout: float = 30) -> str:
        """What kd prints until it ends."""
        text = self._read(timeout, None)
        self.process.wait(timeout)
        return text

    def until(self, words: str, timeout: float = 30) -> str:
        """What kd prints until these words came."""
        return self._read(timeout, re.compile(re.escape(words.encode("latin-1"))))

    def _read(self, timeout: float, mark: re.Pattern[bytes] | None) -> str:
        stream = self.process.stdout
        assert stream is not None
        seen = b""
        end = time.monotonic() + timeout
        while mark is None or not mark.search(seen):
            left = end - time.monotonic()
            ready = left > 0 and select.select([stream], [], [], left)[0]
            assert ready, f"nothing more after:\n{seen.decode('latin-1')}"
            block = os.read(stream.fileno(), 1 << 16)
            if not block:
                assert mark is None, f"kd ended:\n{seen.decode('latin-1')}"
                break
            seen += block
        return seen.decode("latin-1").replace("\r\n", "\n")

    def send(self, line: str) -> None:
        """Type a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode("latin-1") + b"\n")
        self.process.stdin.flush()

    def command(self, line: str, timeout: float = 30) -> str:
        """Type a line; what it printed, without the prompt behind it."""
        self.send(line)
        return PROMPT.sub(b"", self.until_prompt(timeout).encode("latin-1")).decode("latin-1")

    def interrupt(self) -> None:
        """Ctrl+C."""
        os.kill(self.process.pid, signal.SIGINT)

    def close(self) -> None:
        """End it, however it is."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
