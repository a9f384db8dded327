"""The ranking as text: PoolMon's columns, and growth."""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Sequence

from kdleak.model import Pool, PoolCounters
from kdleak.quantities import amount
from kdleak.report.next_step import tag_word
from kdleak.report.page import Page, number, signed
from kdleak.report.palette import PLAIN, Palette
from kdleak.result import PoolLimit, RankResult, RankRow, Trend

_DROP_FIRST = ("Frees", "Allocs", "Each", "Blocks", "Diff", "Bytes/h")
"""Columns by how little they tell beside the others."""

_ROLES = {
    Trend.STEADY: "bad",
    Trend.BURST: "warn",
    Trend.LEVELLING: "warn",
    Trend.UNCERTAIN: "warn",
    Trend.UP_AND_DOWN: "warn",
    Trend.SAWTOOTH: "warn",
}


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
    role = "bad" if result.snapshots > 1 else "heading"  # to hold most is no crime
    page.paragraph(result.reason, indent=0, role=role if result.suspect else "")
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
    if result.suspect is not None:
        growth_lines(page, result.suspect, dict(result.limits))
    words = amount(result.snapshots, "snapshot")
    if result.snapshots > 1:
        words += f" over {result.seconds:.1f} s, target running for {result.seconds_running:.1f} s"
    words += f", stopped for {result.seconds_stopped:.1f} s. "
    page.paragraph(f"{words if target.live else ''}Read from: {result.source}.", indent=0)
    for gap in result.gaps:
        page.paragraph(f"missing: {gap}", indent=0, role="warn")
    if not target.live and result.suspect is not None:
        _next(page, tag_word(result.suspect.tag))
    return page.text()


def _next(page: Page, tag: str) -> None:
    """What a dump tells about a tag besides: nobody can hunt in it."""
    page.heading("Next")
    for command in (f"sites {tag} -z FILE", f"find {tag} -z FILE", "diff EARLIER.DMP FILE"):
        page.paragraph(f"kdleak {command}", hanging=2)


def growth_lines(page: Page, row: RankRow, limits: Mapping[Pool, PoolLimit]) -> None:
    """The slope of a row with its interval, and when its pool will be full; nothing without one.

    Args:
        page: to write to.
        row: of the tag.
        limits: of the pools, as far as known.
    """
    fit = row.fit
    if fit is None or fit.points < 3:
        return
    interval = "? to ?, fewer than five snapshots"
    if fit.low is not None and fit.high is not None:
        interval = f"{_per_hour(fit.low)} to {_per_hour(fit.high)}"
    page.paragraph(
        f"'{row.tag}' gains {_per_hour(fit.bytes_per_hour)} bytes/h (95 % interval {interval}); in "
        f"random order its {fit.points} values would rise as consistently in "
        f"{_percent(fit.p_rise)} of cases.",
        indent=0,
    )
    if row.trend is not Trend.STEADY:
        return
    limit = limits.get(row.pool)
    if limit is None or row.hours_left is None:
        left = "? (its limit is not known)"
    else:
        left = (
            f"{hours(row.hours_left)} at that rate (limit {number(limit.bytes)} bytes, "
            f"{limit.source})"
        )
    page.paragraph(f"Until the {row.pool.value} pool is exhausted: {left}.", indent=0)


def hours(value: float) -> str:
    """Hours of running target in the unit that suits: minutes, hours, days or years."""
    for unit, many, least in (("years", 8766.0, 8766.0), ("days", 24.0, 48.0), ("h", 1.0, 1.0)):
        if value >= least:
            return f"{value / many:,.3g} {unit}" if value / many < 1000 else "over 1,000 years"
    return f"{value * 60:.3g} minutes"


def _percent(chance: float) -> str:
    return "under 0.01 %" if chance < 1e-4 else f"{chance * 100:.2g} %"


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
