"""A child process that talks in lines: started, drained, and killed with all it started."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import IO, Any, Callable, Deque, Dict, Mapping, Optional, Sequence

from kdleak.engine.channels.child_main import Message, decode, encode
from kdleak.engine.channels.running_text import RunningText
from kdleak.errors import MissingDependency

MODULE = "kdleak.engine.channels.child_main"
_LONGEST_LINE = 1 << 28
_LAST_WORDS_SECONDS = 1.0
"""For the output of a process that ended. Another one that it started may hold its streams."""
_SLICE = 0.2
"""Seconds between looks: on Windows Ctrl+C does not interrupt a wait on a lock."""


class ChildEnded(Exception):
    """The process is gone, or its streams are. Never leaves the channel."""


class ChildProcess:
    """One child, from its start to its end.

    Args:
        python: the interpreter's command.
        text: takes what the child says while nobody asked.
        clock: seconds, monotonic.

    Raises:
        MissingDependency: the interpreter cannot be started.
    """

    def __init__(
        self,
        python: Sequence[str],
        text: RunningText,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._text = text
        self._clock = clock
        self._answers: queue.Queue[Optional[Message]] = queue.Queue()
        self._words: Deque[str] = deque(maxlen=20)
        self._ended_at: Optional[float] = None
        try:
            self._process = subprocess.Popen(
                [*python, "-m", MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=_environment(os.environ),
                **_own_group(),
            )
        except OSError as error:
            raise MissingDependency(
                f"starting {python[0]}", str(error), "name a Python that has the binding"
            ) from None
        self._threads = [
            threading.Thread(target=self._read_answers, daemon=True),
            threading.Thread(target=self._read_words, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def last_words(self) -> str:
        """The end of what it printed that was no message, on one line."""
        return " | ".join(self._words)[-600:]

    def send(self, message: Message) -> None:
        """Send a request.

        Raises:
            ChildEnded: it reads no more.
        """
        pipe = self._process.stdin
        try:
            if pipe is None:
                raise ChildEnded
            pipe.write(encode(message))
            pipe.flush()
        except (OSError, ValueError):
            raise ChildEnded from None

    def next_message(self, timeout: Optional[float]) -> Optional[Message]:
        """The next message that is no text; None when the time is over.

        Raises:
            ChildEnded: there will be none.
        """
        until = None if timeout is None else self._clock() + timeout
        while True:
            left = _SLICE if until is None else min(_SLICE, until - self._clock())
            try:
                message = self._answers.get(timeout=max(0.0, left))
            except queue.Empty:
                if self._is_over():
                    raise ChildEnded from None
                if until is not None and self._clock() >= until:
                    return None
                continue
            if message is None:
                self._answers.put(None)
                raise ChildEnded
            return message

    def _is_over(self) -> bool:
        """Whether it ended so long ago that nothing of it can come any more."""
        if self._process.poll() is None:
            return False
        if self._ended_at is None:
            self._ended_at = self._clock()
        return self._clock() - self._ended_at >= _LAST_WORDS_SECONDS

    def wait(self, seconds: float) -> bool:
        """Whether it ended by itself within that time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
            return True
        return False

    def kill(self) -> None:
        """End it and everything it started, and close the pipes."""
        process = self._process
        if sys.platform == "win32":
            if process.poll() is None:
                with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                    subprocess.run(
                        ["taskkill", "/T", "/F", "/PID", str(process.pid)],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,  # pipes could keep its own end waiting
                        stderr=subprocess.DEVNULL,
                        check=False,
                        timeout=10,
                    )
        else:
            # The group outlives its first process while others are in it.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            process.kill()
        self.wait(5.0)
        # The readers close what they read: some other process may hold the far end, and closing
        # a pipe that a thread still reads would wait for that thread for ever.
        for thread in self._threads:
            thread.join(2.0)
        if process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                process.stdin.close()

    def _read_answers(self) -> None:
        pipe = self._process.stdout
        try:
            while pipe is not None:
                line = pipe.readline(_LONGEST_LINE)
                if not line or (len(line) == _LONGEST_LINE and not line.endswith(b"\n")):
                    break
                message, rest = decode(line)
                if rest.strip():
                    self._words.append(_printable(rest))
                if message is None:
                    continue
                if "text" in message and "id" not in message:
                    self._text.write(str(message["text"]))
                else:
                    self._answers.put(message)
        except (OSError, ValueError):
            pass
        finally:
            self._answers.put(None)
            _close(pipe)

    def _read_words(self) -> None:
        pipe: Optional[IO[bytes]] = self._process.stderr
        with contextlib.suppress(OSError, ValueError):
            while pipe is not None:
                line = pipe.readline(4096)
                if not line:
                    break
                if line.strip():
                    self._words.append(_printable(line))
        _close(pipe)


def _close(pipe: Optional[IO[bytes]]) -> None:
    if pipe is not None:
        with contextlib.suppress(OSError, ValueError):
            pipe.close()


def _printable(line: bytes) -> str:
    text = line[-300:].decode("utf-8", "replace").strip()
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def _environment(ours: Mapping[str, str]) -> Dict[str, str]:
    """The child imports this very kdleak, wherever it lies and whichever Python it is."""
    root = str(Path(__file__).resolve().parents[3])
    paths = [root, *(one for one in ours.get("PYTHONPATH", "").split(os.pathsep) if one)]
    return {**ours, "PYTHONPATH": os.pathsep.join(paths)}


def _own_group() -> Dict[str, Any]:
    """Ctrl+C in our console must not reach the child."""
    if sys.platform == "win32":
        flags = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
        return {"creationflags": flags}
    return {"start_new_session": True}
