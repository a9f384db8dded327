"""Where output goes: results to stdout or a file, narration and progress to stderr."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Iterator, Optional, TextIO

import click

from kdleak.errors import UsageError
from kdleak.report.palette import ANSI, PLAIN, Palette
from kdleak.report.sanitise import sanitise
from kdleak.result import HuntPhase, HuntProgress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

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
    """One sentence about what is going on, to stderr."""
    click.echo(sanitise(text), err=True)


def write_result(text: str, output: Optional[Path], *, force: bool) -> None:
    """Print a result, or put it into a file in one step.

    Raises:
        UsageError: the file exists and ``--force`` was not given, or cannot be written.
    """
    if output is None:
        click.echo(text, nl=False)
        return
    refuse_overwrite(output, force=force)
    try:
        with tempfile.NamedTemporaryFile(
            "w",
            encoding="utf-8",
            newline="\n",
            dir=output.parent,
            prefix=output.name + ".",
            delete=False,
        ) as file:
            file.write(text)
        Path(file.name).replace(output)
    except OSError as error:
        # The result of a long hunt must not be lost with the file: print it instead.
        click.echo(text, nl=False)
        raise UsageError(
            f"writing {output}",
            error.strerror or str(error),
            "the result is on stdout instead",
        ) from error


def refuse_overwrite(output: Optional[Path], *, force: bool) -> None:
    """Refuse a file that exists, before the work and not after it.

    Raises:
        UsageError: the file exists and ``force`` is not set, or its folder does not.
    """
    if output is None:
        return
    if output.exists() and not force:
        raise UsageError(f"writing {output}", "the file exists", "add --force or name another file")
    if not output.parent.is_dir():
        raise UsageError(f"writing {output}", "its folder does not exist", "create the folder")


class ProgressView:
    """Progress on stderr: one line that redraws on a terminal, else a line now and then."""

    def __init__(
        self, stream: Optional[TextIO] = None, clock: Callable[[], float] = time.monotonic
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
                self._status.stop()
                self._status = None

    def narrate(self, text: str) -> None:
        """A sentence above the progress line."""
        if self._console is not None:
            self._console.print(sanitise(text), soft_wrap=True)
        else:
            print(sanitise(text), file=self._stream, flush=True)

    def __call__(self, progress: HuntProgress) -> None:
        """Show one state."""
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


def describe(progress: HuntProgress) -> str:
    """One line for one state of a hunt."""
    phase = progress.phase.value
    if progress.phase is HuntPhase.RANKING and progress.snapshots:
        return f"{phase}: snapshot {progress.snapshot} of {progress.snapshots}"
    if progress.phase in (HuntPhase.WATCHING, HuntPhase.RESTING):
        line = (
            f"{phase} '{progress.tag}': {progress.hits} of {progress.max_hits} hits "
            f"({progress.allocs} allocs, {progress.frees} frees), "
            f"{progress.seconds:.1f} of {progress.max_seconds:g} s, "
            f"target stopped {progress.seconds_stopped:.2f} s"
        )
        if progress.sites:
            site = progress.sites[0]
            line += f"; most: {site.name}, {site.outstanding_bytes:,} bytes outstanding"
        return line
    return phase
