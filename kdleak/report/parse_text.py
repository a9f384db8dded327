"""A log as text: what is in it, the hunts, the ranked tags, the rest in short, what is left."""

from __future__ import annotations

from collections import Counter
from typing import Optional, Sequence

from kdleak.dialect.engine_errors import EngineFailure
from kdleak.dialect.source import Unparsed
from kdleak.dialect.version import TargetVersion
from kdleak.logged import LogContents
from kdleak.logged.contents import FoundStack
from kdleak.quantities import amount
from kdleak.report.hunt_text import stack_lines
from kdleak.report.logged_text import hunt_sections, ranking
from kdleak.report.page import Page, column_widths, number
from kdleak.report.palette import PLAIN, Palette
from kdleak.report.parse_outputs import output_lines
from kdleak.report.secrets import without_secrets

UNPARSED_SHOWN = 20
"""Lines that were not understood which are shown unless all are asked for."""


def render_contents(
    contents: LogContents,
    *,
    width: int = 100,
    style: Palette = PLAIN,
    top: int = 20,
    all_unparsed: bool = False,
) -> str:
    """One log as text; ends with a newline.

    Args:
        contents: of the log.
        width: characters per line.
        style: colours; ``PLAIN`` writes no escape sequence.
        top: rows of each table to show.
        all_unparsed: show every line that was not understood.
    """
    page = Page(width, style)
    log = contents.log
    target = target_words(log.version, log.architecture.value if log.architecture else None)
    page.paragraph(
        f"{contents.name}: {amount(len(log.lines), 'line')}{target}", indent=0, hanging=2
    )
    _found(page, contents, top)
    for hunt in contents.hunts:
        hunt_sections(page, hunt, top=top)
    if contents.rank is not None:
        page.heading(f"Pool tags by {contents.rank.by.value}")
        ranking(page, contents.rank, top=top)
    _stacks(page, contents, top)
    for title, lines in output_lines(log, top):
        page.heading(title)
        for line in lines:
            page.paragraph(line, hanging=2)
    _failures(page, log.of(EngineFailure), top)
    _left_over(page, contents, None if all_unparsed else UNPARSED_SHOWN)
    return without_secrets(page.text())


def target_words(version: TargetVersion, architecture: Optional[str]) -> str:
    """What a log says about its target, as the end of a line: "; Windows 10 build 19045 x64"."""
    words = [version.product] if version.product else []
    if version.build:
        words.append(f"build {version.build}")
    words += [architecture] if architecture else []
    if version.session is not None:
        words.append(f"({version.session.value})")
    return f"; {' '.join(words)}" if words else ""


def _found(page: Page, contents: LogContents, top: int) -> None:
    page.heading("Found")
    if not contents.found:
        page.paragraph("Nothing that is known here.")
    rows = [(kind.name, number(len(kind.lines)), _places(kind.lines)) for kind in contents.found]
    widths = column_widths(("", ""), [row[:2] for row in rows])
    for name, count, places in rows:
        page.line(f"  {name.ljust(widths[0])}  {count.rjust(widths[1])}  {places}")
    for line, why in contents.refused[:top]:
        page.paragraph(f"refused: line {line:,}: {without_secrets(why)}", hanging=2, role="warn")
    if len(contents.refused) > top:
        page.line(f"  ... {len(contents.refused) - top:,} more", plain=False)


def _places(lines: Sequence[int]) -> str:
    shown = ", ".join(number(line) for line in lines[:6])
    more = ", ..." if len(lines) > 6 else ""
    return f"in line{'' if len(lines) == 1 else 's'} {shown}{more}"


def _stacks(page: Page, contents: LogContents, top: int) -> None:
    others = [one for one in contents.stacks if len(one.lines) > one.at_hits]
    for one in others[:top]:
        page.heading(f"Stack {_stack_words(one)}")
        stack_lines(page, one.stack)
        for doubt in one.doubts:
            page.paragraph(without_secrets(doubt), indent=6, hanging=2, role="warn")
        if one.cut:
            page.paragraph("Rows of it were not understood.", indent=6, role="warn")
    if len(others) > top:
        page.heading(f"... {len(others) - top:,} more stacks")


def _stack_words(one: FoundStack) -> str:
    command = f"{one.command} " if one.command else ""
    times = f", {len(one.lines)} times" if len(one.lines) > 1 else ""
    return without_secrets(f"{command}({_places(one.lines)}{times})")


def _failures(page: Page, failures: Sequence[EngineFailure], top: int) -> None:
    if not failures:
        return
    page.heading("Commands that failed")
    counts = Counter(failure.sentence for failure in failures)
    for sentence, count in list(counts.items())[:top]:
        times = f" ({count} times)" if count > 1 else ""
        page.paragraph(f"- {without_secrets(sentence)}{times}", hanging=2)
    if len(counts) > top:
        page.line(f"  ... {len(counts) - top:,} more", plain=False)


def _left_over(page: Page, contents: LogContents, limit: Optional[int]) -> None:
    if contents.unread:
        page.heading("Not read")
        page.paragraph(
            f"{amount(len(contents.unread), 'line')} below commands whose output is not read here.",
            hanging=2,
        )
    _lines(page, contents.unread if limit is None else (), None)
    page.heading("Not understood")
    if not contents.not_understood:
        page.paragraph("Nothing is left over.")
        return
    total = len(contents.not_understood)
    page.paragraph(f"{amount(total, 'line')}.", role="warn")
    _lines(page, contents.not_understood, limit)
    if limit is not None and total > limit:
        page.line(f"  ... {total - limit:,} more (--unparsed shows all)", plain=False)


def _lines(page: Page, entries: Sequence[Unparsed], limit: Optional[int]) -> None:
    for entry in entries[:limit]:
        page.line(f"  {entry.line:6} {without_secrets(entry.text.strip())}")
        page.line(f"         ({without_secrets(entry.why)})", plain=False)
