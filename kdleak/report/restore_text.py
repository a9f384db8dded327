"""What ``kdleak restore`` found and did, as text."""

from __future__ import annotations

from kdleak.quantities import amount
from kdleak.report.hunt_text import notes, safety
from kdleak.report.page import Page
from kdleak.report.palette import PLAIN, Palette
from kdleak.result import RestoreResult


def render_restore(result: RestoreResult, *, width: int = 100, style: Palette = PLAIN) -> str:
    """A restore as text; the safety line is the last one. Ends with a newline."""
    page = Page(width, style)
    if not result.items:
        page.line("The journal has no entry for this target.")
    for item in result.items:
        tag = f"'{item.tag}'" if item.tag is not None else "unknown"
        kept = "closed" if item.closed else "kept"
        page.paragraph(
            f"{item.file_name}: tag {tag} over {item.where}: {item.remark} (entry {kept}).",
            indent=0,
            hanging=2,
            role="" if item.state.safe else "bad",
        )
    if result.passed_hits:
        page.paragraph(
            f"{amount(result.passed_hits, 'break')} of the armed tag let go.",
            indent=0,
        )
    if result.leave_stopped:
        page.paragraph("The target waits for you: it is left stopped.", indent=0, role="warn")
    notes(page, "Remarks", (*result.remarks, *result.state.remarks))
    safety(page, result.state)
    return page.text()
