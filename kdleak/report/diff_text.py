"""What grew between crash dumps, as text."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Mapping, Optional, Sequence

from kdleak.dumped import DumpComparison, DumpMoment
from kdleak.report.next_step import path_word, tag_word
from kdleak.report.page import Page, number
from kdleak.report.palette import PLAIN, Palette
from kdleak.report.rank_text import rows_table
from kdleak.result import RankBy
from kdleak.tags import PoolTag


def render_diff(
    comparison: DumpComparison,
    *,
    width: int = 100,
    style: Palette = PLAIN,
    top: int = 20,
    files: Optional[Mapping[str, str]] = None,
) -> str:
    """A comparison as text; ends with a newline.

    Args:
        comparison: of two dumps or more.
        width: characters per line.
        style: colours; ``PLAIN`` writes no escape sequence.
        top: rows to show.
        files: the dumps as the user named them, by their names in the comparison.
    """
    rank = comparison.rank
    measured = rank.by is RankBy.GROWTH
    page = Page(width, style)
    names = " -> ".join(dump.name for dump in comparison.dumps)
    page.paragraph(f"Pool tags of {names} by {rank.by.value}", indent=0, hanging=2)
    if not measured:  # why it is no comparison comes before what it is instead
        _notes(page, rank.gaps)
    page.paragraph(rank.reason, indent=0, role="bad" if rank.suspect and measured else "")
    page.line("")
    changed = [row for row in rank.rows if row.growth_bytes or row.growth_blocks]
    if not measured:
        rows_table(page, rank.rows, top=top, measured=False, outstanding_only=False)
    elif changed:
        rows_table(page, changed, top=top, measured=True, outstanding_only=False)
    same = len(rank.rows) - len(changed)
    if measured and same:
        page.paragraph(f"{number(same)} hold{'s' if same == 1 else ''} as much as before.")
    page.line("")
    for dump in comparison.dumps:
        page.paragraph(f"{dump.name}: {_words(dump)}", indent=0, hanging=2)
    if measured:
        time = "The time between is unknown, so growth has no rate."
        if rank.seconds is not None:
            time = f"{span(rank.seconds)} between, by {rank.seconds_rest_on}."
        page.paragraph(time, indent=0)
        _notes(page, rank.gaps)
    _notes(page, comparison.remarks)
    if rank.suspect is not None:
        last = comparison.dumps[-1].name
        _next(page, rank.suspect.tag, (files or {}).get(last, last))
    return page.text()


def _notes(page: Page, gaps: Sequence[str]) -> None:
    for gap in gaps:
        page.paragraph(f"note: {gap.rstrip('.')}.", indent=0, hanging=2, role="warn")


def _next(page: Page, tag: PoolTag, last: str) -> None:
    page.heading("Next")
    for command in ("sites", "find"):
        page.paragraph(f"kdleak {command} {tag_word(tag)} -z {path_word(last)}", hanging=2)


def _words(dump: DumpMoment) -> str:
    words = [dump.target.description]
    if dump.moment.target_clock is not None:
        words.append(f"taken {wall_clock(dump.moment.target_clock)}")
    if dump.moment.uptime is not None:
        words.append(f"up for {span(dump.moment.uptime)}")
    words.append(f"{number(len(dump.snapshot.rows))} tags from {dump.snapshot.source}")
    return "; ".join(word for word in words if word) + "."


def wall_clock(seconds: float) -> str:
    """A time of the target for people: ``2026-03-01 12:00:05 UTC``."""
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"at an impossible time ({seconds:.0f} s after 1970)"


def span(seconds: float) -> str:
    """A long time for people: ``3 d 04:05:06``, ``04:05:06``, ``5.2 s``."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    whole = int(seconds)
    hours = f"{whole // 3600 % 24:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"
    return f"{whole // 86400} d {hours}" if whole >= 86400 else hours
