"""``kdleak diff``: what grew between crash dumps, or what a fix changed between two hunts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import List, Optional, Tuple

import click

from kdleak.cli import console
from kdleak.cli.dump_file import opened_dump, symbol_path_option
from kdleak.cli.fail_on import (
    Condition,
    met_by_dumps,
    met_by_hunts,
    parse_conditions,
    refuse_for_dumps,
)
from kdleak.cli.shared_options import output_options, pool_option, top_option
from kdleak.dumped import DumpComparison, DumpMoment, compare_dumps, moment_of
from kdleak.errors import ExitCode, UsageError
from kdleak.model import Pool
from kdleak.report.diff_json import diff_json
from kdleak.report.diff_text import render_diff
from kdleak.report.hunt_diff import Outcome, compare_hunts
from kdleak.report.hunt_diff_json import hunt_diff_json
from kdleak.report.hunt_diff_text import render_hunt_diff
from kdleak.report.result_document import HUNT, is_json_result, read_result
from kdleak.result import RankBy


@click.command("diff")
@click.argument("files", nargs=-1, required=True, metavar="BEFORE AFTER [...]")
@symbol_path_option
@pool_option
@top_option(20)
@click.option(
    "--fail-on",
    multiple=True,
    metavar="CONDITION",
    help="Return 1 when it is met: leak, worse, new, unknown, growth:SIZE, growth:SIZE/h. "
    "Several with commas.",
)
@output_options
def command(
    files: Tuple[str, ...],
    symbol_path: Optional[str],
    pool: Optional[Pool],
    top: int,
    fail_on: Tuple[str, ...],
    as_json: bool,
    output: Optional[Path],
    force: bool,
) -> int:
    """Compare crash dumps of one boot, or two hunts of one tag.

    What the files are is told by their content.

    Crash dumps, two or more: which pool tags grew. They are put in order of time. Dumps of
    different boots cannot show growth; that is said, and the tags are ranked by what they hold in
    the last dump.

    Hunts (the JSON of kdleak hunt), two: whether a fix helped. Call sites are compared by the share
    of their blocks that stay, which does not depend on load or on how long was watched.

    Conditions of --fail-on: leak (a call site leaks in the later hunt, a tag grew between dumps),
    worse and new (hunts only), unknown (cannot be told), growth:SIZE (bytes a call site holds, or
    a tag grew by) and growth:SIZE/h; SIZE is like 4096, 512KB or 1.5MB.

    Exit code 1: a condition of --fail-on is met; 4: it could not be told, or there is something to
    know about it (the notes).

    \b
    Examples:
      kdleak diff morning.dmp evening.dmp
      kdleak diff monday.dmp tuesday.dmp wednesday.dmp --pool nonpaged
      kdleak diff before.json after.json --fail-on leak
      kdleak diff before.dmp after.dmp --fail-on growth:1MB
    """
    conditions = parse_conditions(fail_on)
    if len(files) < 2:
        raise UsageError(
            "comparing",
            "one file was given",
            "name two dumps of the same boot, or two results of kdleak hunt --json; "
            "kdleak rank -z FILE shows one dump",
        )
    console.refuse_overwrite(output, force=force)
    if _are_hunts(files):
        met, complete = _diff_hunts(files, conditions, as_json, output, top=top, force=force)
    else:
        refuse_for_dumps(conditions)
        comparison = _compare_dumps(files, symbol_path, pool)
        text = (
            diff_json(comparison)
            if as_json
            else render_diff(
                comparison,
                width=console.width(),
                style=console.palette(output),
                top=top,
                files=dict(zip(_names(files), files)),
            )
        )
        console.write_result(text, output, force=force)
        met = met_by_dumps(conditions, comparison)
        complete = not comparison.rank.gaps and comparison.rank.by is RankBy.GROWTH
    for condition, what in met:
        console.narrate(f"--fail-on {condition}: {what}")
    if met:
        return ExitCode.GATE_EXCEEDED
    return ExitCode.DONE if complete else ExitCode.INCOMPLETE


def _are_hunts(files: Tuple[str, ...]) -> bool:
    kinds = [_is_hunt(file) for file in files]
    if any(kinds) and not all(kinds):
        raise UsageError(
            "comparing",
            "some of the files are JSON and some are not",
            "name crash dumps only, or results of kdleak hunt --json only",
        )
    if all(kinds) and len(files) != 2:
        raise UsageError("comparing hunts", f"{len(files)} files were given", "name two")
    return all(kinds)


def _is_hunt(file: str) -> bool:
    if not os.path.isfile(file):  # noqa: PTH113 - to open a pipe would wait for its writer
        return False
    try:
        with Path(file).open("rb") as stream:
            return is_json_result(stream.read(64))
    except OSError:
        return False  # the reader of dumps says what is wrong with it


def _diff_hunts(
    files: Tuple[str, ...],
    conditions: Tuple[Condition, ...],
    as_json: bool,
    output: Optional[Path],
    *,
    top: int,
    force: bool,
) -> Tuple[List[Tuple[Condition, str]], bool]:
    before, after = (read_result(Path(file), kinds=(HUNT,)) for file in files)
    for node, name in zip((before, after), _names(files)):
        node.name = name
    comparison = compare_hunts(before, after)
    text = (
        hunt_diff_json(comparison)
        if as_json
        else render_hunt_diff(
            comparison, width=console.width(), style=console.palette(output), top=top
        )
    )
    console.write_result(text, output, force=force)
    complete = comparison.outcome is not Outcome.CANNOT_TELL
    return met_by_hunts(conditions, comparison), complete


def _compare_dumps(
    files: Tuple[str, ...], symbol_path: Optional[str], pool: Optional[Pool]
) -> DumpComparison:
    moments = [_moment(file, name, symbol_path) for file, name in zip(files, _names(files))]
    return compare_dumps(moments, pool=pool)


def _names(files: Tuple[str, ...]) -> Tuple[str, ...]:
    """File names alone, unless two are the same."""
    short = tuple(Path(file).name for file in files)
    return short if len(set(short)) == len(short) else files


def _moment(file: str, name: str, symbol_path: Optional[str]) -> DumpMoment:
    with opened_dump(Path(file), console.narrate, symbol_path=symbol_path) as engine:
        return DumpMoment(
            name=name,
            target=engine.target,
            snapshot=engine.pool_usage(),
            moment=moment_of(engine.target, engine.dump.header),
            remarks=tuple(engine.dump.remarks),
        )
