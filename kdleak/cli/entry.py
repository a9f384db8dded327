"""The ``kdleak`` program: runs the command line and turns every outcome into an exit code.

Nothing but this file decides what a process returns, and no traceback leaves it unless the
user asked for one with ``-vv``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import List, NoReturn, Optional

from kdleak.errors import ExitCode, KdleakError
from kdleak.interrupt_guard import take_signals

_INSTALL = (
    'pip install "kdleak[native]", or use python -m kdleak.hunt (and kdleak.rank, kdleak.restore), '
    "which need no package"
)


def main(arguments: Optional[List[str]] = None) -> NoReturn:
    """Run the command line and end the process."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, Path(os.devnull).open("r" if name == "stdin" else "w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # A name no code page knows must not cost the result of a hunt.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    code = run(sys.argv[1:] if arguments is None else arguments)
    _flush()
    with contextlib.suppress(ValueError):
        # Ctrl+C from here on has nothing left to end, and would change the exit code.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    # CPython remembers a KeyboardInterrupt that came through the exec() of a text (dataclasses
    # are made so, during imports), even when it was handled, and would end the process by SIGINT
    # instead of with our exit code. The next exec() makes it forget.
    exec("")  # noqa: S102
    sys.exit(code)


def run(arguments: List[str]) -> int:
    """Run the command line and return its exit code."""
    try:
        take_signals()
        return _run(arguments)
    except KeyboardInterrupt as error:  # before or after click had the word
        return int(_explain(error))


def _run(arguments: List[str]) -> int:
    try:
        from kdleak.cli.main import cli  # noqa: PLC0415 - click is optional: WinDbg has none
    except ImportError as error:
        if error.name != "click":
            raise
        _complain(
            f"starting the command line: the package click is not installed. Next: {_INSTALL}."
        )
        return int(ExitCode.USAGE)
    try:
        outcome = cli.main(args=arguments, prog_name="kdleak", standalone_mode=False)
    except SystemExit:
        # click's only one here: the reader of our output went away (`kdleak --help | head -1`).
        _flush()
        return int(ExitCode.DONE)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - no traceback reaches a user
        code = _explain(error)
        if code in (ExitCode.INTERNAL, ExitCode.TARGET):
            _trace_if_asked(arguments, error)
        return int(code)
    return int(outcome) if isinstance(outcome, int) else int(ExitCode.DONE)


def _flush() -> None:
    """Write out what is buffered; a reader that went away is nobody's loss."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # noqa: PERF203 - two streams
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _explain(error: BaseException) -> ExitCode:
    """Say what went wrong, in one sentence, and give the exit code for it."""
    if isinstance(error, KdleakError):
        _complain(str(error))
        return error.exit_code
    if isinstance(error, ImportError) and not str(error.name).startswith("kdleak"):
        _complain(
            f"loading a part of kdleak: the package {error.name} is not installed. "
            f"Next: {_INSTALL}."
        )
        return ExitCode.USAGE
    if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Abort":
        _complain("interrupted.")
        return ExitCode.INTERRUPTED
    if _explain_usage(error):
        return ExitCode.USAGE
    _complain(
        f"internal error: {type(error).__name__} in kdleak itself. "
        "Next: run the same command with -vv and report what it prints."
    )
    return ExitCode.INTERNAL


def _explain_usage(error: BaseException) -> bool:
    """Say what click did not like; False when the error is none of click's."""
    import click  # noqa: PLC0415 - optional, see run()

    from kdleak.report.secrets import without_keys  # noqa: PLC0415 - only needed on errors

    if not isinstance(error, click.ClickException):
        return False
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show(sys.stderr)  # `kdleak` alone: its help
        return True
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "kdleak"
    # What was typed is quoted here; a key may stand in it without saying so.
    message = without_keys(error.format_message()).rstrip(".?")
    _complain(f"{message}. Next: {command} --help shows what there is.")
    return True


def _complain(text: str) -> None:
    from kdleak.report.sanitise import sanitise  # noqa: PLC0415 - only needed on errors
    from kdleak.report.secrets import without_secrets  # noqa: PLC0415 - only needed on errors

    with contextlib.suppress(OSError, ValueError):  # the terminal may be gone
        print("kdleak: " + sanitise(without_secrets(text)), file=sys.stderr)  # noqa: T201


def _trace_if_asked(arguments: List[str], error: BaseException) -> None:
    # -vv anywhere, or -v twice. The trace shows source lines, never values, so no key is in it.
    verbose = sum(
        len(word) - 1 for word in arguments if word.startswith("-v") and set(word[1:]) == {"v"}
    )
    if verbose >= 2:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write("".join(traceback.format_tb(error.__traceback__)))
