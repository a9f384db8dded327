"""``kdleak hunt``: find the code that leaks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Optional, Sequence

import click

from kdleak.cli import console
from kdleak.cli.blame_options import BlameFiles, Blaming, blame_options, read_blaming
from kdleak.cli.log_input import is_recording
from kdleak.cli.parse import show_logs
from kdleak.cli.report_files import write_hunt_html
from kdleak.cli.session import attached
from kdleak.cli.shared_options import ranking_options, result_options, top_option
from kdleak.cli.target_options import (
    FiniteRange,
    TargetChoice,
    TargetOptions,
    choose_target,
    refuse_dump,
    target_options,
    tell_ignored,
)
from kdleak.engine.blocks import block_finder
from kdleak.errors import ExitCode, KdleakError, UsageError
from kdleak.hunt import explain, hunt
from kdleak.hunt_options import HuntOptions, RankOptions
from kdleak.hunt_outcome import exit_code
from kdleak.report.json_report import hunt_json
from kdleak.report.text import render_hunt
from kdleak.result import HuntResult, RankBy
from kdleak.tags import PoolTag
from kdleak.windbg.recording import Memory, as_replayed


@click.command("hunt")
@target_options
@click.option("--tag", metavar="TAG", help="The tag to hunt. Default: the one that grows.")
@ranking_options
@click.option(
    "--hits",
    type=click.IntRange(min=1),
    default=500,
    show_default=True,
    help="End after so many hits.",
)
@click.option(
    "--seconds",
    type=FiniteRange(min=0.1),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="End after so many seconds of watching.",
)
@click.option(
    "--max-stop-share",
    type=FiniteRange(min=0, max=1, min_open=True),
    default=0.2,
    show_default=True,
    metavar="SHARE",
    help="Watch a hot tag in bursts so that the target is not stopped for more than this share "
    "of the time.",
)
@click.option(
    "--hits-per-second",
    type=FiniteRange(min=0, min_open=True),
    default=100.0,
    show_default=True,
    metavar="RATE",
    help="Watch a tag that is hit more often than this in bursts.",
)
@click.option(
    "--min-age",
    type=FiniteRange(min=0),
    default=None,
    metavar="SECONDS",
    help="A block still there counts as old, and against its call site, beyond this age. "
    "Default: 4 times the longest life seen at that call site, 1 second where none was freed.",
)
@click.option(
    "--grace",
    type=FiniteRange(min=0),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to try to get a lost link back, to disarm.",
)
@click.option("--full-speed", is_flag=True, help="No bursts: take every hit, whatever it costs.")
@click.option(
    "--depth",
    type=click.IntRange(min=1, max=128),
    default=32,
    show_default=True,
    help="Frames of a stack.",
)
@top_option(10, "Sites.")
@click.option(
    "--html",
    "html_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write an HTML report as well; kdleak report makes one later from --json.",
)
@blame_options
@result_options
def command(
    target: TargetOptions,
    tag: Optional[str],
    by: str,
    interval: float,
    snapshots: int,
    hits: int,
    seconds: float,
    max_stop_share: float,
    hits_per_second: float,
    min_age: Optional[float],
    grace: float,
    full_speed: bool,
    depth: int,
    top: int,
    html_file: Optional[Path],
    blame: BlameFiles,
    as_json: bool,
    output: Optional[Path],
    force: bool,
    explain_only: bool,
) -> int:
    """Find the code that leaks pool in a live target.

    Picks the tag that grows (or takes --tag), arms nt!PoolHitTag with it, takes the stack of
    every allocation and free, disarms, and says which call sites hold the memory. Whatever
    happens, nt!PoolHitTag gets its original value back; the last line says whether that was
    confirmed.

    \b
    Examples:
      kdleak hunt -k net:port=50000,key=1.2.3.4
      kdleak hunt -k net:port=50000,key=1.2.3.4 --tag Leak --hits 200
      kdleak hunt -k com:ipport=4555,port=127.0.0.1 --json -o hunt.json
      kdleak hunt -k net:port=50000,key=1.2.3.4 --html hunt.html
      kdleak hunt -k net:port=50000,key=1.2.3.4 --engine kd --record hunt.jsonl
      kdleak hunt --replay hunt.jsonl
      kdleak hunt --tag Leak --explain
    """
    refuse_dump(target, "hunting")
    options = HuntOptions(
        tag=PoolTag.parse(tag) if tag is not None else None,
        rank=RankOptions(
            by=RankBy(by),
            seconds=interval,
            snapshots=1 if by == RankBy.USED.value else snapshots,
            interrupt_timeout=target.timeout,
        ),
        max_hits=hits,
        max_seconds=seconds,
        stack_depth=depth,
        interrupt_timeout=target.timeout,
        grace_seconds=grace,
        min_age=min_age,
        max_stopped_share=None if full_speed else max_stop_share,
        hits_per_second=None if full_speed else hits_per_second,
    )
    options.check()
    if explain_only:
        console.print_result(explain(options))
        return ExitCode.DONE
    if target.replay is not None and not is_recording(target.replay):
        if html_file is not None:
            console.narrate("A log holds no hunt: no HTML report is written.")
        if target.names_a_target:
            choose_target(target)  # says that these do not go together
        tell_ignored(console.narrate)
        # A log of somebody's own hunt: what it shows, as far as it shows it.
        return show_logs([str(target.replay)], top=top, as_json=as_json, output=output, force=force)
    _refuse_files((output, target.record, html_file), force=force)
    blaming = read_blaming(blame, console.narrate, kd=target.kd)
    choice = choose_target(target)
    result = run_hunt(choice, options, overwrite=force, blaming=blaming)
    text = (
        hunt_json(result)
        if as_json
        else render_hunt(
            result,
            width=console.width(),
            style=console.palette(output),
            top=top,
        )
    )
    code = exit_code(result)
    try:
        if html_file is not None and not _write_html(result, html_file, force=force):
            code = ExitCode.INCOMPLETE if code is ExitCode.DONE else code
        console.write_result(text, output, force=force)
    except KdleakError as error:
        if code is not ExitCode.DISARM_NOT_CONFIRMED:
            raise
        console.narrate(str(error))  # the lesser evil: it must not hide the exit code
    finally:
        if as_json or output is not None:
            # The answer and the safety line must be seen whatever the result is written to.
            for sentence in result.verdict:
                console.narrate(sentence)
            console.narrate(result.disarm.sentence())
    return code


def _refuse_files(files: Sequence[Optional[Path]], *, force: bool) -> None:
    named = [file.resolve() for file in files if file is not None]
    if len(set(named)) < len(named):
        raise UsageError("writing files", "two of them have one name", "name each differently")
    for file in files:
        console.refuse_overwrite(file, force=force)


def _write_html(result: HuntResult, file: Path, *, force: bool) -> bool:
    # The result itself is still to be written: a report that fails must not cost it.
    try:
        write_hunt_html(result, file, force=force)
    except KdleakError as error:
        console.narrate(str(error))
        return False
    return True


def run_hunt(
    choice: TargetChoice,
    options: HuntOptions,
    *,
    overwrite: bool = False,
    blaming: Optional[Blaming] = None,
) -> HuntResult:
    """Attach, hunt, leave.

    Args:
        choice: target and engine.
        options: what to hunt; a replay hunts what was recorded.
        overwrite: let a recording write over a file.
        blaming: whom not to blame, and who owns which tag; None for the built-in list alone.
    """
    blaming = blaming if blaming is not None else Blaming()
    choice = replace(choice, request=replace(choice.request, overwrite=overwrite))
    memory = Memory("hunt", hunt=options, use_kb=choice.request.use_kb)
    view = console.ProgressView()
    with view.shown(), attached(choice, memory, view.narrate) as session:
        result = hunt(
            session.engine,
            session.memory.hunt or options,
            journal=session.journal,
            block_finder_factory=block_finder,
            clock=session.clock,
            wall_clock=session.wall_clock,
            sleep=session.sleep,
            narrate=view.narrate,
            progress=view,
            frameworks=blaming.frameworks,
            owner_of=blaming.owner_of,
        )
        if session.replayed:
            result = replace(result, disarm=as_replayed(result.disarm))
        # A link that could not be got back to disarm is not worth another wait.
        session.leave_stopped = result.leave_stopped or not result.disarm.safe
    return result
