"""Where output goes: results to stdout or a file, narration and progress to stderr."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Iterator, Optional, TextIO

import click

from kdleak.errors import IncompleteResult, UsageError
from kdleak.report.palette import ANSI, PLAIN, Palette
from kdleak.report.result_file import refuse_overwrite, write_file
from kdleak.report.sanitise import sanitise

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from kdleak.result import HuntPhase, HuntProgress

__all__ = [
    "ProgressView",
    "colour_allowed",
    "narrate",
    "palette",
    "print_result",
    "refuse_overwrite",
    "width",
    "write_result",
]

_PLAIN_INTERVAL = 5.0
# Seconds between two progress lines where there is no terminal to redraw.


def colour_allowed(stream: TextIO) -> bool:
    """Whether a stream may carry escape sequences: a terminal, and NO_COLOR is not set."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()


def palette(output: Optional[Path] = None) -> Palette:
    """The colours of a result on stdout; none for one that goes to a file."""
    return ANSI if output is None and colour_allowed(sys.stdout) else PLAIN


def width() -> int:
    """Columns a report may use: the terminal's, 100 where there is none."""
    return shutil.get_terminal_size((100, 24)).columns


def narrate(text: str) -> None:
    """One sentence about what is going on, to stderr. Never fails: the terminal may be gone."""
    with contextlib.suppress(OSError, ValueError):
        print(sanitise(text), file=sys.stderr, flush=True)  # noqa: T201


def print_result(text: str) -> None:
    """Print to stdout; a reader that went away (``| head -1``) has all it wanted.

    Raises:
        IncompleteResult: the rest could not be written (a full disk).
    """
    try:
        click.echo(text, nl=False)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_stdout()
    except OSError as error:
        _drop_stdout()
        raise IncompleteResult(
            "writing the result to stdout",
            error.strerror or str(error),
            "make room, or name a file with -o",
        ) from error


def _drop_stdout() -> None:
    # What is still buffered would fail once more when the process ends.
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write_result(text: str, output: Optional[Path], *, force: bool) -> None:
    """Print a result, or put it into a file in one step.

    Raises:
        UsageError: the file exists and ``--force`` was not given, or cannot be written.
        IncompleteResult: stdout cannot be written.
    """
    if output is None:
        print_result(text)
        return
    refuse_overwrite(output, force=force)
    try:
        write_file(text, output)
    except OSError as error:
        # The result of a long hunt must not be lost with the file: print it instead.
        print_result(text)
        raise UsageError(
            f"writing {output}",
            error.strerror or str(error),
            "the result is on stdout instead",
        ) from error


class ProgressView:
    """Progress on stderr: one line that redraws on a terminal, else a line now and then."""

    def __init__(
        self, stream: Optional[TextIO] = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._clock = clock
        self._console: Optional[Console] = None
        self._status: Optional[Status] = None
        self._last_line = float("-inf")
        self._last_phase: Optional[HuntPhase] = None

    @contextlib.contextmanager
    def shown(self) -> Iterator[ProgressView]:
        """Show progress while the body runs."""
        try:
            if self._stream.isatty() and os.environ.get("TERM") != "dumb":
                from rich.console import Console  # noqa: PLC0415 - slow to import, rarely needed

                self._console = Console(file=self._stream, highlight=False, markup=False)
                self._status = self._console.status("starting")
                self._status.start()
            yield self
        finally:
            if self._status is not None:
                with contextlib.suppress(OSError, ValueError):
                    self._status.stop()
                self._status = None

    def narrate(self, text: str) -> None:
        """A sentence above the progress line."""
        # A terminal that went away must not end a hunt that has a target to disarm.
        with contextlib.suppress(OSError, ValueError):
            if self._console is not None:
                self._console.print(sanitise(text))
            else:
                print(sanitise(text), file=self._stream, flush=True)

    def __call__(self, progress: HuntProgress) -> None:
        """Show one state."""
        with contextlib.suppress(OSError, ValueError):
            self._show(progress)

    def _show(self, progress: HuntProgress) -> None:
        # Whoever reports progress has these loaded; crash dumps are read without.
        from kdleak.report.progress_text import describe  # noqa: PLC0415
        from kdleak.result import HuntPhase  # noqa: PLC0415

        line = sanitise(describe(progress))
        if self._status is not None:
            from rich.text import Text  # noqa: PLC0415 - slow to import, rarely needed

            self._status.update(Text(line))
            return
        now = self._clock()
        if progress.phase is not self._last_phase or now - self._last_line >= _PLAIN_INTERVAL:
            resting = {HuntPhase.WATCHING, HuntPhase.RESTING}
            calm = progress.phase in resting and self._last_phase in resting
            if not calm or now - self._last_line >= _PLAIN_INTERVAL:
                print(line, file=self._stream, flush=True)
                self._last_line = now
            self._last_phase = progress.phase
