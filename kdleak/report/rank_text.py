"""The ranking as text: PoolMon's columns, and growth."""

from __future__ import annotations

from typing import List, Optional, Sequence

from kdleak.report.page import Page, column_widths, number, signed
from kdleak.report.palette import PLAIN, Palette
from kdleak.result import RankResult, RankRow, Trend

_DROP_FIRST = (8, 3, 2, 7, 4)
"""Columns by how little they tell beside the others: Bytes/h, Frees, Allocs, Blocks, Diff."""

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
    page.paragraph(
        f"{words}, stopped for {result.seconds_stopped:.1f} s. Read from: {result.source}.",
        indent=0,
    )
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
    titles = ("Tag", "Pool", "Allocs", "Frees", "Diff", "Bytes", "Growth", "Blocks", "Bytes/h")
    rows = [
        (
            row.tag.text,
            row.pool.value,
            "?" if outstanding_only else number(row.last.allocs),
            "?" if outstanding_only else number(row.last.frees),
            number(row.last.outstanding),
            number(row.last.bytes),
            signed(row.growth_bytes) if measured else "?",
            signed(row.growth_blocks) if measured else "?",
            _per_hour(row.bytes_per_hour),
        )
        for row in shown
    ]
    trends = [row.trend.value if measured else "" for row in shown]
    room = page.width - 2 - max([len("Trend"), *map(len, trends)])
    keep = _columns_that_fit(column_widths(titles, rows), room)
    widths = column_widths([titles[i] for i in keep], [[row[i] for i in keep] for row in rows])
    page.row([titles[i] for i in keep], widths, "Trend" if measured else "")
    for row, cells, trend in zip(shown, rows, trends):
        page.row([cells[i] for i in keep], widths, trend, _ROLES.get(row.trend, ""))
    if len(ranked) > len(shown):
        page.line(f"  ... {len(ranked) - len(shown):,} more", plain=False)


def _columns_that_fit(widths: Sequence[int], room: int) -> List[int]:
    """Indexes of the columns a narrow page keeps; the least telling ones go first."""
    keep = list(range(len(widths)))
    for index in _DROP_FIRST:
        if sum(widths[i] + 2 for i in keep) <= room:
            break
        keep.remove(index)
    return keep


def _per_hour(value: Optional[float]) -> str:
    return "?" if value is None else signed(round(value))
