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
        import click  # noqa: PLC0415 - optional: inside WinDbg there is none
    except ImportError:
        _complain(
            "starting the command line: the package click is not installed. "
            'Next: pip install "kdleak[native]".'
        )
        return int(ExitCode.USAGE)
    from kdleak.cli.main import cli  # noqa: PLC0415 - needs click

    try:
        outcome = cli.main(args=arguments, prog_name="kdleak", standalone_mode=False)
    except click.ClickException as error:
        error.show(sys.stderr)
        return int(ExitCode.USAGE)
    except KdleakError as error:
        _complain(str(error))
        _trace_if_asked(arguments)
        return int(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        _complain("interrupted.")
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output went away (`kdleak rank ... | head`): nothing left to say.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
        return int(ExitCode.DONE)
    except Exception as error:  # noqa: BLE001 - the last line of defence: no traceback reaches a user
        _complain(
            f"internal error: {type(error).__name__} in kdleak itself. "
            "Next: run the same command with -vv and report what it prints."
        )
        _trace_if_asked(arguments)
        return int(ExitCode.INTERNAL)
    return int(outcome) if isinstance(outcome, int) else int(ExitCode.DONE)


def _complain(text: str) -> None:
    from kdleak.report.sanitise import sanitise  # noqa: PLC0415 - only needed on errors

    print("kdleak: " + sanitise(text), file=sys.stderr)  # noqa: T201


def _trace_if_asked(arguments: List[str]) -> None:
    # -vv anywhere, or -v twice. The trace shows source lines, never values, so no key is in it.
    verbose = sum(
        len(word) - 1 for word in arguments if word.startswith("-v") and set(word[1:]) == {"v"}
    )
    if verbose >= 2:
        frames = traceback.TracebackException(*sys.exc_info())  # type: ignore[arg-type]
        sys.stderr.write("".join(frames.stack.format()))
