"""The ranking as text: PoolMon's columns, and growth."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence

from kdleak.model import PoolCounters
from kdleak.report.page import Page, number, signed
from kdleak.report.palette import PLAIN, Palette
from kdleak.result import RankResult, RankRow, Trend

_DROP_FIRST = ("Bytes/h", "Frees", "Allocs", "Blocks", "Each", "Diff")
"""Columns by how little they tell beside the others."""

_ROLES = {Trend.STEADY: "bad", Trend.UNCERTAIN: "warn", Trend.UP_AND_DOWN: "warn"}


def render_rank(
    result: RankResult, *, width: int = 100, style: Palette = PLAIN, top: int = 20
) -> str:
    """A ranking as text.

    Args:
        result: whole or partial.
        width: characters per line.
        style: colours; ``PLAIN`` writes no escape sequence.
        top: rows to show.

    Returns:
        The text; ends with a newline.
    """
    page = Page(width, style)
    target = result.target
    page.line(
        f"Pool tags of {result.where} (build {target.build} {target.architecture.value}, "
        f"{result.engine}) by {result.by.value}"
    )
    page.paragraph(result.reason, indent=0, role="bad" if result.suspect else "")
    if result.stop is not None:
        page.paragraph(
            f"The target stopped for a reason of its own ({result.stop.kind.value}) and is left "
            "stopped.",
            indent=0,
            role="warn",
        )
        for frame in result.stop_stack.frames:
            page.line(f"  {frame.symbol}")
    if result.interrupted:
        page.paragraph("Interrupted: fewer snapshots than asked for.", indent=0, role="warn")
    page.line("")
    rank_table(page, result, top=top)
    page.line("")
    words = f"{result.snapshots} snapshot{'' if result.snapshots == 1 else 's'}"
    if result.snapshots > 1:
        words += f" over {result.seconds:.1f} s, target running for {result.seconds_running:.1f} s"
    words += f", stopped for {result.seconds_stopped:.1f} s. "
    page.paragraph(f"{words if target.live else ''}Read from: {result.source}.", indent=0)
    for gap in result.gaps:
        page.paragraph(f"missing: {gap}", indent=0, role="warn")
    return page.text()


def rank_table(page: Page, result: RankResult, *, top: int) -> None:
    """The first rows of a ranking as a table."""
    rows_table(
        page,
        result.rows,
        top=top,
        measured=result.snapshots > 1,
        outstanding_only=result.outstanding_only,
    )


def rows_table(
    page: Page,
    ranked: Sequence[RankRow],
    *,
    top: int,
    measured: bool,
    outstanding_only: bool,
) -> None:
    """Rows of a ranking as a table.

    Args:
        page: to write to.
        ranked: all rows.
        top: rows to show; the rest is counted.
        measured: the rows compare two snapshots or more.
        outstanding_only: allocs and frees are not known apart.
    """
    shown = ranked[:top]
    columns: Dict[str, List[str]] = {
        "Tag": [row.tag.text for row in shown],
        "Pool": [row.pool.value for row in shown],
        "Allocs": ["?" if outstanding_only else number(row.last.allocs) for row in shown],
        "Frees": ["?" if outstanding_only else number(row.last.frees) for row in shown],
        "Diff": [number(row.last.outstanding) for row in shown],
        "Bytes": [number(row.last.bytes) for row in shown],
        "Each": [average(row.last) for row in shown],
    }
    if measured:
        columns["Growth"] = [signed(row.growth_bytes) for row in shown]
        columns["Blocks"] = [signed(row.growth_blocks) for row in shown]
        columns["Bytes/h"] = [_per_hour(row.bytes_per_hour) for row in shown]
    trends = [row.trend.value if measured else "" for row in shown]
    widths = {title: max(map(len, [title, *cells])) for title, cells in columns.items()}
    room = page.width - 2 - (max([len("Trend"), *map(len, trends)]) if measured else 0)
    keep = _columns_that_fit(widths, room)
    kept = [widths[title] for title in keep]
    page.row(keep, kept, "Trend" if measured else "")
    for index, (row, trend) in enumerate(zip(shown, trends)):
        role = _ROLES.get(row.trend, "")
        page.row([columns[title][index] for title in keep], kept, trend, role)
    if len(ranked) > len(shown):
        page.line(f"  ... {len(ranked) - len(shown):,} more", plain=False)


def average(counters: PoolCounters) -> str:
    """Bytes of an average block that is outstanding; "?" where there is none."""
    if counters.outstanding <= 0:
        return "?" if counters.bytes else "0"
    return number(round(counters.bytes / counters.outstanding))


def _columns_that_fit(widths: Dict[str, int], room: int) -> List[str]:
    """The columns a narrow page keeps; the least telling ones go first."""
    keep = list(widths)
    for title in _DROP_FIRST:
        if sum(widths[one] + 2 for one in keep) <= room:
            break
        if title in keep:
            keep.remove(title)
    return keep


def _per_hour(value: Optional[float]) -> str:
    return "?" if value is None else signed(round(value))
