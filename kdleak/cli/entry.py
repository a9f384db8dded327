"""The ``kdleak`` program: runs the command line and turns every outcome into an exit code.

Nothing but this file decides what a process returns, and no traceback leaves it unless the
user asked for one with ``-vv``.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import List, NoReturn, Optional

from kdleak.errors import ExitCode, KdleakError


def main(arguments: Optional[List[str]] = None) -> NoReturn:
    """Run the command line and end the process."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: List[str]) -> int:
    """Run the command line and return its exit code."""
    try:
        from kdleak.cli.main import cli  # noqa: PLC0415 - click is optional: WinDbg has none
    except ImportError as error:
        if error.name != "click":
            raise
        _complain(
            "starting the command line: the package click is not installed. "
            'Next: pip install "kdleak[native]".'
        )
        return int(ExitCode.USAGE)
    try:
        outcome = cli.main(args=arguments, prog_name="kdleak", standalone_mode=False)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - no traceback reaches a user
        code = _explain(error)
        if code in (ExitCode.INTERNAL, ExitCode.TARGET):
            _trace_if_asked(arguments, error)
        return int(code)
    return int(outcome) if isinstance(outcome, int) else int(ExitCode.DONE)


def _explain(error: BaseException) -> ExitCode:
    """Say what went wrong, in one sentence, and give the exit code for it."""
    import click  # noqa: PLC0415 - optional, see run()

    if isinstance(error, KdleakError):
        _complain(str(error))
        return error.exit_code
    if isinstance(error, click.ClickException):
        error.show(sys.stderr)
        return ExitCode.USAGE
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        _complain("interrupted.")
        return ExitCode.INTERRUPTED
    if isinstance(error, BrokenPipeError):
        # The reader of our output went away (`kdleak rank ... | head`): nothing left to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.DONE
    _complain(
        f"internal error: {type(error).__name__} in kdleak itself. "
        "Next: run the same command with -vv and report what it prints."
    )
    return ExitCode.INTERNAL


def _complain(text: str) -> None:
    from kdleak.report.sanitise import sanitise  # noqa: PLC0415 - only needed on errors

    print("kdleak: " + sanitise(text), file=sys.stderr)  # noqa: T201


def _trace_if_asked(arguments: List[str], error: BaseException) -> None:
    # -vv anywhere, or -v twice. The trace shows source lines, never values, so no key is in it.
    verbose = sum(
        len(word) - 1 for word in arguments if word.startswith("-v") and set(word[1:]) == {"v"}
    )
    if verbose >= 2:
        sys.stderr.write("".join(traceback.format_tb(error.__traceback__)))
