"""``kdleak demo``: the whole job on the practice kernel, over encrypted KDNET on loopback."""

from __future__ import annotations

from typing import Any

import click

from kdleak.cli import console
from kdleak.cli.hunt import run_hunt
from kdleak.cli.practice_child import PracticeChild, practice_child
from kdleak.cli.target_options import NATIVE, FiniteRange, TargetOptions, choose_target
from kdleak.errors import ExitCode
from kdleak.hunt_options import HuntOptions, RankOptions
from kdleak.hunt_outcome import exit_code
from kdleak.report.page import Page
from kdleak.report.text import render_hunt
from kdleak.result import HuntResult


@click.command("demo")
@click.option("--seed", type=int, default=1, show_default=True, help="Chooses everything random.")
@click.option(
    "--interval",
    type=FiniteRange(min=0.5),
    default=6.0,
    show_default=True,
    metavar="SECONDS",
    help="How long growth is measured.",
)
@click.option("--hits", type=click.IntRange(min=1), default=600, show_default=True)
def command(seed: int, interval: float, hits: int) -> int:
    """Watch kdleak find a leak, start to end, on this machine alone.

    Starts the practice kernel as a process of its own, hunts in it as in a real machine over
    KDNET, and then compares the answer with the kernel's own books.
    """
    console.narrate(
        "Starting the practice kernel: a small simulated NT kernel with a driver that leaks, "
        "another that is only busy, and a large static user of pool."
    )
    with practice_child(seed=seed, rate=100.0) as child:
        choice = choose_target(TargetOptions(connection=child.connection, engine=NATIVE))
        options = HuntOptions(
            rank=RankOptions(seconds=interval, snapshots=5),
            max_hits=hits,
            max_seconds=60.0,
            # Nobody works on the practice machine: watch without pauses.
            hits_per_second=None,
            max_stopped_share=None,
        )
        result = run_hunt(choice, options)
    report = render_hunt(result, width=console.width(), style=console.palette())
    body, last = report.rstrip("\n").rpartition("\n")[::2]
    # The books come after the report, but the safety line stays the last one.
    console.print_result(f"{body}\n{_books(child, result)}\n{last}\n")
    code = exit_code(result)
    if code is ExitCode.DONE and not _agrees(child.result, result):
        return ExitCode.INCOMPLETE
    return code


def _books(child: PracticeChild, result: HuntResult) -> str:
    """What the practice kernel itself recorded, for comparison."""
    statistics = child.result["statistics"]
    hits = statistics["hits_alloc"] + statistics["hits_free"]
    requests = sum(statistics["requests"].values())
    page = Page(console.width(), console.palette())
    page.heading("The practice kernel's own books, since it started (kdleak cannot see them)")
    tags = {"Leak", "Busy", *([result.tag.text] if result.tag else [])}
    for site in child.result["ground_truth"]:
        if site["tag"] in tags and site["allocs"]:
            page.paragraph(
                f"'{site['tag']}' {_name(site)}: {site['allocs']:,} allocated, "
                f"{site['frees']:,} freed, {site['bytes']:,} bytes outstanding",
                hanging=2,
            )
    page.paragraph(
        f"{hits} PoolHitTag breaks, {requests} KD requests answered, stopped "
        f"{statistics['seconds_stopped']:.1f} s of "
        f"{statistics['seconds_stopped'] + statistics['seconds_running']:.1f} s (nobody works on "
        "this machine, so it was watched without the pauses a real hunt makes); "
        f"nt!PoolHitTag is 0x{statistics['pool_hit_tag']:08x}.",
        hanging=2,
    )
    if _agrees(child.result, result):
        page.paragraph("The books agree: the call site accused is the one that leaks.", role="good")
    elif result.accused is None:
        page.paragraph("No call site was accused: watch longer with --hits.", role="warn")
    else:
        page.paragraph("The books do NOT agree with the call site accused.", role="bad")
    return page.text()


def _agrees(books: dict[str, Any], result: HuntResult) -> bool:
    """Whether the accused call site is the one that leaks most of its tag by the books."""
    if result.accused is None or result.tag is None:
        return False
    of_tag = [site for site in books["ground_truth"] if site["tag"] == result.tag.text]
    worst = max(of_tag, key=lambda site: site["outstanding"], default=None)
    return worst is not None and _name(worst) == str(result.accused.frame.symbol)


def _name(site: dict[str, Any]) -> str:
    return f"{site['module']}!{site['function']}+0x{site['offset']:x}"
