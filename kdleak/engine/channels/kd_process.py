"""One debugger process behind pipes: a thread reads what it prints into bounded memory.

The process is told lines and asked for marks (see ``kd_text``); everything else, what a mark
means and what to do when it does not come, is decided above.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import subprocess
import threading
import time
from dataclasses import dataclass
from typing import Callable, Optional, Sequence

from kdleak.engine.channels.kd_break import BreakWay, default_way, end_tree
from kdleak.engine.channels.kd_text import (
    Capture,
    Found,
    before_a_stop,
    find_mark,
    output_of,
    overlap_of,
    says_lost,
    with_notice,
)
from kdleak.errors import MissingDependency

DEFAULT_LIMIT = 16 << 20
"""Characters of output kept at most; a `!poolused` of 5,000 rows has 0.5 million."""

_SLICE = 0.2  # seconds: on Windows, Ctrl+C is seen only between two waits
_PROMPT_SECONDS = 2.0  # for the prompt behind a mark, which every debugger prints at once


@dataclass(frozen=True)
class Output:
    """What came before a mark.

    Attributes:
        text: without prompts and marks.
        processor: number in the prompt behind the mark, None if it shows none.
        prompt: that prompt, "" if none came.
    """

    text: str
    processor: Optional[int]
    prompt: str


class KdProcess:
    """A running kd.exe.

    Args:
        command: program and arguments.
        break_way: how it is told to break in; this system's way by default.
        limit: characters of output to keep.
        clock: seconds, monotonic.

    Raises:
        MissingDependency: the program cannot be started. The command line is not quoted: it
            holds the key.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        break_way: Optional[BreakWay] = None,
        limit: int = DEFAULT_LIMIT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._way = break_way or default_way()
        self._clock = clock
        self._news = threading.Condition()
        self._capture = Capture(limit)
        self._mark = ""
        self._window = ""
        self._found = False
        self._found_at: Optional[float] = None
        self._ended = False
        self._tail = ""
        self._last_output = clock()
        self._lost_at: Optional[float] = None
        try:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                **self._way.spawn_options(),
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it has no usable name"
            raise MissingDependency(
                f"starting the debugger {command[0]}",
                str(reason),
                "give the path of kd.exe with --kd"
                if os.name == "nt"
                else "give --kd a program that starts kd.exe under Wine",
            ) from None
        self._reader = threading.Thread(target=self._read, name="kd output", daemon=True)
        self._reader.start()

    def alive(self) -> bool:
        """Whether the process runs, or left output that was not read yet."""
        return not self._ended

    @property
    def exit_code(self) -> Optional[int]:
        """Its exit code, None while it runs."""
        if self._ended:  # its output ends a moment before itself
            self.wait_for_end(1.0)
        return self._process.poll()

    @property
    def tail(self) -> str:
        """The last 16,384 characters it printed, for messages."""
        return self._tail

    @property
    def last_output(self) -> float:
        """Clock reading of the last output."""
        return self._last_output

    @property
    def lost_at(self) -> Optional[float]:
        """Clock reading when it said, since the mark was set, that the link is gone."""
        return self._lost_at

    def expect(self, mark: str) -> None:
        """From now on look for a mark. To be called before the command that prints it."""
        with self._news:
            self._mark, self._window = mark, ""
            self._found, self._found_at, self._lost_at = False, None, None

    def send(self, *lines: str) -> bool:
        """Write lines to its standard input; False when it no longer takes any."""
        data = "".join(line + "\n" for line in lines).encode("utf-8", "backslashreplace")
        assert self._process.stdin is not None  # noqa: S101 - a pipe was asked for
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except (OSError, ValueError):
            return False
        return True

    def wait_until(self, deadline: Optional[float]) -> bool:
        """Wait for the mark, the end of the process, or a clock reading.

        Returns:
            Whether the mark is there (with its prompt, or the prompt is overdue).
        """
        while True:
            with self._news:
                if self._complete() or self._ended:
                    return self._found_at is not None
                left = _SLICE
                if deadline is not None:
                    left = min(left, deadline - self._clock())
                    if left <= 0:
                        return False
                self._news.wait(left)

    def take_output(self, command: str) -> Output:
        """What stands before the mark that was found; what follows it stays."""
        with self._news:
            text, dropped = self._capture.take()
            found = find_mark(text, self._mark)
            if found is None:  # so much came behind it that it was dropped
                found = Found(len(text), len(text))
            self._capture.add(text[found.end :])
            self._mark = ""
        output = with_notice(output_of(text, found, command), dropped)
        return Output(output, found.processor, found.prompt)

    def take_partial(self) -> str:
        """What came so far, while no mark is there.

        A last line without its end stays, and so does the reason of a stop whose rest is still on
        its way: who takes the stop has to see it.
        """
        with self._news:
            if self._found_at is not None:
                return ""
            text, dropped = self._capture.take()
            whole = before_a_stop(text)
            self._capture.add(text[whole:])
        return with_notice(text[:whole], dropped)

    def break_in(self) -> bool:
        """Ask it to break in; False when that was impossible."""
        try:
            self._way.break_in(self._process)
        except (OSError, ValueError):
            return False
        return True

    def wait_for_end(self, timeout: float) -> bool:
        """Wait for the process to end by itself."""
        try:
            self._process.wait(max(0.0, timeout))
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self) -> None:
        """Kill it, with all that it started, and close the pipes. May be called again."""
        end_tree(self._process)
        self._reader.join(2.0)
        for pipe in (
            self._process.stdin,
            None if self._reader.is_alive() else self._process.stdout,
        ):
            if pipe is not None:
                with contextlib.suppress(OSError, ValueError):
                    pipe.close()

    def _complete(self) -> bool:
        if self._found_at is None:
            return False
        return self._found or self._clock() - self._found_at >= _PROMPT_SECONDS

    def _read(self) -> None:
        """Body of the reader thread."""
        assert self._process.stdout is not None  # noqa: S101 - a pipe was asked for
        characters = codecs.getincrementaldecoder("utf-8")("replace")
        decoder = io.IncrementalNewlineDecoder(characters, translate=True)
        descriptor = self._process.stdout.fileno()
        try:
            while True:
                data = os.read(descriptor, 1 << 16)
                text = decoder.decode(data, final=not data)
                if text:
                    self._feed(text)
                if not data:
                    break
        except (OSError, ValueError):
            pass  # as good as its end
        finally:
            with self._news:
                self._ended = True
                self._news.notify_all()

    def _feed(self, text: str) -> None:
        with self._news:
            self._capture.add(text)
            self._tail = (self._tail + text)[-16384:]
            now = self._last_output = self._clock()
            window = self._window + text
            if self._lost_at is None and says_lost(window):
                self._lost_at = now
            if self._mark and not self._found:
                found = find_mark(window, self._mark)
                if found is not None:
                    self._found_at = self._found_at or now
                    self._found = bool(found.prompt)
            self._window = window[-max(overlap_of(self._mark), 128) :]
            if self._ended or self._found_at is not None:
                self._news.notify_all()
