"""A result read back from JSON as text for the terminal: the answer, figures, the safety line."""

from __future__ import annotations

from kdleak.report.html_blame import blamed_frame
from kdleak.report.html_data import accused_site, seconds, size
from kdleak.report.html_parts import heading_of, subject_of
from kdleak.report.page import Page, column_widths, number, signed
from kdleak.report.palette import PLAIN, Palette
from kdleak.report.result_document import RANK, Node
from kdleak.report.stack_weights import frame_name

_ROLES = {"accused": "bad", "suspected": "warn", "cleared": "good", "levelled_off": "good"}


def render_document(
    document: Node, *, width: int = 100, style: Palette = PLAIN, top: int = 10
) -> str:
    """A result as text; the safety line of a hunt is the last one. Ends with a newline.

    Args:
        document: a "kdleak.hunt" or "kdleak.rank" document.
        width: characters per line.
        style: colours; ``PLAIN`` writes no escape sequence.
        top: call sites or tags to show.

    Raises:
        UsageError: the document is damaged.
    """
    page = Page(width, style)
    if document.text("format") == RANK:
        page.paragraph(f"Which pool tags grow ({_subject(document)})", indent=0, hanging=2)
        page.paragraph(document.text("reason", ""), role="bad" if document.has("suspect") else "")
        _tags(page, document, top)
        return page.text()
    _hunt(page, document, top)
    return page.text()


def _subject(document: Node) -> str:
    return subject_of(document).replace(" · ", ", ")  # a terminal may have no middle dot


def _hunt(page: Page, hunt: Node, top: int) -> None:
    accused = accused_site(hunt)
    page.paragraph(f"{heading_of(hunt)} ({_subject(hunt)})", indent=0, hanging=2)
    page.heading("Verdict")
    for index, sentence in enumerate(hunt.texts("verdict")):
        page.paragraph(sentence, hanging=2, role="" if index or accused is None else "bad")
    if hunt.has("error"):
        page.paragraph(f"The hunt ended early: {hunt.text('error')}", role="warn")
    sites = hunt.nodes("call_sites")
    if sites:
        _sites(page, hunt, top)
        shown = accused or sites[0]
        page.heading(f"Stack of {frame_name(blamed_frame(shown))}")
        stack = shown.find_node("stack")
        for index, frame in enumerate(stack.nodes("frames") if stack is not None else []):
            page.line(f"  {index:3} {frame_name(frame)}")
    done = hunt.node("completeness")
    page.heading("Watched")
    page.paragraph(
        f"{number(done.integer('hits', 0))} hits in {seconds(done.number('seconds', 0.0))}; armed "
        f"{done.number('share_watched', 0.0):.0%} of the time; target stopped "
        f"{done.number('share_stopped', 0.0):.0%} of the time.",
        hanging=2,
    )
    for title, sentences in (
        ("Missing", done.texts("gaps")),
        ("Remarks", hunt.texts("remarks")),
    ):
        if sentences:
            page.heading(title)
            for sentence in sentences:
                page.paragraph(f"- {sentence}", hanging=2)
    disarm = hunt.node("disarm")
    page.line("")
    for command in disarm.texts("repair"):
        page.whole(f"  {command}", "bad")
    page.whole(disarm.text("sentence"), "good" if disarm.flag("safe") else "bad")


def _sites(page: Page, hunt: Node, top: int) -> None:
    sites = hunt.nodes("call_sites")
    titles = ("Outstanding", "Blocks", "Old", "Allocs", "Freed here")
    keys = ("outstanding_bytes", "outstanding", "outstanding_old", "allocs", "frees")
    rows = [tuple(number(site.integer(key, 0)) for key in keys) for site in sites[:top]]
    widths = column_widths(titles, rows)
    page.heading(f"Call sites (top {len(rows)} of {len(sites)})")
    page.row(titles, widths, "Call site")
    for site, row in zip(sites, rows):
        judgement = site.text("judgement", "")
        page.row(row, widths, frame_name(blamed_frame(site)), _ROLES.get(judgement, ""))
        if judgement != "frees_only":
            words = judgement.replace("_", " ")
            page.paragraph(f"{words}: {site.text('sentence', '')}", indent=6, hanging=2)


def _tags(page: Page, rank: Node, top: int) -> None:
    rows = rank.nodes("rows")[:top]
    titles = ("Growth", "Now held", "Per hour")
    cells = [
        (
            signed(row.integer("growth_bytes")) if row.has("growth_bytes") else "?",
            size(row.node("last").integer("bytes", 0)),
            size(row.number("bytes_per_hour")) if row.has("bytes_per_hour") else "?",
        )
        for row in rows
    ]
    widths = column_widths(titles, cells)
    page.heading(f"Tags (top {len(rows)} of {len(rank.nodes('rows'))})")
    page.row(titles, widths, "Tag")
    for row, shown in zip(rows, cells):
        pool, trend = row.text("pool", ""), row.text("trend", "").replace("_", " ")
        page.row(shown, widths, f"{row.node('tag').text('text')} {pool} {trend}")
