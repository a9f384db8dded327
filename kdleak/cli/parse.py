"""``kdleak parse``: what is in a log that somebody sent."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Optional, Sequence, Tuple

import click

from kdleak.cli import console
from kdleak.cli.log_input import DEFAULT_MEGABYTES, STDIN, names_of_logs, read_log
from kdleak.cli.shared_options import max_size_option, output_options, top_option
from kdleak.errors import ExitCode, TargetError, UsageError
from kdleak.logged import LogContents, contents_of_log
from kdleak.report.parse_json import parse_json
from kdleak.report.parse_text import render_contents
from kdleak.report.result_file import refuse_overwrite


@click.command("parse")
@click.argument("files", nargs=-1, metavar="[FILE]...")
@top_option(20)
@click.option("--unparsed", is_flag=True, help="Show every line that was not understood.")
@max_size_option
@output_options
def command(
    files: Tuple[str, ...],
    top: int,
    unparsed: bool,
    max_size: int,
    as_json: bool,
    output: Optional[Path],
    force: bool,
) -> int:
    """Read logs of WinDbg, kd or PoolMon and say what is in them.

    Finds pool tags, stacks, hits of nt!PoolHitTag and the outputs of !poolfind, !pool, !vm and
    !verifier, in text from a log file, a mail or a web page. Lines that are not understood are
    counted and shown. Without FILE (or with -) it reads stdin.

    Exit code 4: some lines were not understood, or one of the logs holds nothing; 3: nothing was
    found at all.

    \b
    Examples:
      kdleak parse windbg.log
      kdleak parse --unparsed mail.txt
      kdleak parse before.txt after.txt --json -o logs.json
    """
    return show_logs(
        files or _stdin_alone(),
        top=top,
        unparsed=unparsed,
        max_size=max_size,
        as_json=as_json,
        output=output,
        force=force,
    )


def show_logs(
    files: Sequence[str],
    *,
    as_json: bool,
    output: Optional[Path],
    force: bool,
    top: int = 20,
    unparsed: bool = False,
    max_size: int = DEFAULT_MEGABYTES,
) -> ExitCode:
    """Read logs and write what is in them.

    Raises:
        UsageError: a log cannot be read, or the output not written.
        TargetError: nothing was found in any of them.
    """
    refuse_overwrite(output, force=force)
    logs = [
        contents_of_log(read_log(file, max_size), name)
        for file, name in zip(files, names_of_logs(files))
    ]
    if as_json:
        text = parse_json(logs)
    else:
        style, width = console.palette(output), console.width()
        text = "\n".join(
            render_contents(one, width=width, style=style, top=top, all_unparsed=unparsed)
            for one in logs
        )
    console.write_result(text, output, force=force)
    return exit_code_of(logs)


def exit_code_of(logs: Sequence[LogContents]) -> ExitCode:
    """What the process returns for logs that were read.

    Raises:
        TargetError: nothing was found in any of them.
    """
    if not any(line.text.strip() for one in logs for line in one.log.lines):
        raise TargetError(
            f"reading {', '.join(one.name for one in logs)}",
            "there is no text in it",
            "ask for the log again; .logopen writes one, and .logclose completes it",
        )
    if all(one.empty for one in logs):
        raise TargetError(
            f"reading {', '.join(one.name for one in logs)}",
            "nothing in it is known here",
            "check that it is a log of a kernel debugger or of PoolMon; "
            "kdleak parse --unparsed shows every line",
        )
    if all(one.complete and not one.empty for one in logs):
        return ExitCode.DONE
    return ExitCode.INCOMPLETE


def _stdin_alone() -> Tuple[str, ...]:
    if sys.stdin.isatty():
        raise UsageError(
            "reading a log", "no file was named", "kdleak parse FILE, or pipe a log into it"
        )
    return (STDIN,)
