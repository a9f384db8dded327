"""Where output goes when the host may be a debugger: its stdio can write, flush and little else.

pykd's stdout and stderr are ASCII, have no ``fileno`` and no ``errors``; stdout takes DML (text
with links to click) through ``writedml``. Everything is written a line at a time: debuggers cut
long texts.
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any, Callable, List, Sequence

from kdleak.errors import IncompleteResult
from kdleak.report.progress_text import describe
from kdleak.report.sanitise import sanitise
from kdleak.report.secrets import without_secrets
from kdleak.result import HuntPhase, HuntProgress
from kdleak.windbg.dml import Link, linked

_PROGRESS_INTERVAL = 5.0
"""Seconds between two progress lines of the same phase."""


class Output:
    """The two streams of a run.

    Args:
        stdout: takes the result; links are used when it has ``writedml``.
        stderr: takes the narration.
    """

    def __init__(self, stdout: Any, stderr: Any) -> None:  # noqa: ANN401 - any stand-in for a stream
        self._stdout = stdout
        self._stderr = stderr

    @classmethod
    def standard(cls) -> Output:
        """The streams of this interpreter."""
        return cls(sys.stdout, sys.stderr)

    @property
    def clickable(self) -> bool:
        """Whether links can be shown."""
        return hasattr(self._stdout, "writedml")

    def narrate(self, sentence: str) -> None:
        """One sentence about what is going on. Never fails: the reader may be gone."""
        with contextlib.suppress(OSError, ValueError):
            _write_line(self._stderr, sanitise(without_secrets(sentence)))

    def complain(self, sentence: str) -> None:
        """One sentence about what went wrong. Never fails."""
        self.narrate(f"kdleak: {sentence}")

    def result(self, text: str, links: Sequence[Link] = ()) -> None:
        """A result, clickable where that is possible; a reader that went away has all it wanted.

        Args:
            text: sanitised lines.
            links: what can be clicked in them.

        Raises:
            IncompleteResult: the rest could not be written (a full disk).
        """
        try:
            for line in text.splitlines():
                if links and self.clickable:
                    self._stdout.writedml(fitting(self._stdout, linked(line, links)) + "\n")
                else:
                    _write_line(self._stdout, line)
            _flush(self._stdout)
        except BrokenPipeError:
            return
        except OSError as error:
            raise IncompleteResult(
                "writing the result to stdout",
                error.strerror or str(error),
                "make room, or name a file with --json",
            ) from error


class Progress:
    """Takes the states of a hunt and narrates one now and then."""

    def __init__(
        self, narrate: Callable[[str], None], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._narrate = narrate
        self._clock = clock
        self._said_at = float("-inf")
        self._said: List[HuntPhase] = []

    def __call__(self, progress: HuntProgress) -> None:
        """Show one state, if it is time."""
        now = self._clock()
        resting = (HuntPhase.WATCHING, HuntPhase.RESTING)
        phase = HuntPhase.WATCHING if progress.phase in resting else progress.phase
        if self._said == [phase] and now - self._said_at < _PROGRESS_INTERVAL:
            return
        self._said, self._said_at = [phase], now
        self._narrate(describe(progress))


def fitting(stream: Any, text: str) -> str:  # noqa: ANN401 - any stand-in for a stream
    """The text with what the stream cannot encode as visible escapes."""
    encoding = getattr(stream, "encoding", None) or "ascii"
    try:
        return text.encode(encoding, "backslashreplace").decode(encoding)
    except LookupError:  # an encoding that Python does not know
        return text.encode("ascii", "backslashreplace").decode("ascii")


def _write_line(stream: Any, text: str) -> None:  # noqa: ANN401 - any stand-in for a stream
    if stream is not None:  # closed by whoever started us
        stream.write(fitting(stream, text) + "\n")
        _flush(stream)


def _flush(stream: Any) -> None:  # noqa: ANN401 - any stand-in for a stream
    flush = getattr(stream, "flush", None)
    if flush is not None:
        flush()
