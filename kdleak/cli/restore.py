"""``kdleak restore``: put back nt!PoolHitTag after a hunt that could not do it itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import click

from kdleak.cli import console
from kdleak.cli.session import attached
from kdleak.cli.target_options import TargetOptions, choose_target, refuse_dump, target_options
from kdleak.errors import ExitCode
from kdleak.report.json_report import restore_json
from kdleak.report.text import render_restore
from kdleak.restore import restore
from kdleak.windbg.recording import Memory, as_replayed


def _value(ctx: click.Context, param: click.Parameter, value: Optional[str]) -> Optional[int]:
    """A 32-bit value as a person writes it."""
    if value is None:
        return None
    try:
        number = int(value, 0)
    except ValueError:
        number = -1
    if not 0 <= number <= 0xFFFFFFFF:
        raise click.BadParameter("not a 32-bit value such as 0xffffff0f", ctx, param)
    return number


@click.command("restore")
@target_options
@click.option(
    "--value",
    callback=_value,
    metavar="VALUE",
    help="Write this value when no journal entry knows the original one (0xffffff0f on a stock "
    "system).",
)
@click.option("--json", "as_json", is_flag=True, help="The whole result as JSON on stdout.")
@click.option("--force", is_flag=True, help="Overwrite the file of --record.")
def command(
    target: TargetOptions,
    value: Optional[int],
    as_json: bool,
    force: bool,
) -> int:
    """Put back nt!PoolHitTag after a hunt that was killed or lost its link.

    Attaches, compares the value in the target with the journal that every hunt keeps on this
    machine, writes the original value, reads it back and lets the target run.

    \b
    Example:
      kdleak restore -k net:port=50000,key=1.2.3.4
    """
    refuse_dump(target, "restoring nt!PoolHitTag")
    console.refuse_overwrite(target.record, force=force)
    choice = choose_target(target)
    choice = replace(choice, request=replace(choice.request, overwrite=force))
    memory = Memory("restore", value=value, use_kb=target.kb)
    view = console.ProgressView()
    with view.shown(), attached(choice, memory, view.narrate) as session:
        result = restore(
            session.engine,
            session.journal,
            force_value=session.memory.value,
            narrate=view.narrate,
        )
        session.leave_stopped = result.leave_stopped
        if session.replayed:
            result = replace(result, state=as_replayed(result.state))
    console.print_result(
        restore_json(result)
        if as_json
        else render_restore(result, width=console.width(), style=console.palette())
    )
    if not result.state.safe:
        return ExitCode.DISARM_NOT_CONFIRMED
    return ExitCode.INTERRUPTED if result.interrupted else ExitCode.DONE
