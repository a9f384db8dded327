"""Two hunts compared, as text: the answer first."""

from __future__ import annotations

from typing import Optional

from kdleak.report.html_data import seconds, size
from kdleak.report.hunt_diff import LEAKING, HuntComparison, HuntFigures, Outcome
from kdleak.report.hunt_diff_sites import SiteFigures
from kdleak.report.page import Page, column_widths, number
from kdleak.report.palette import PLAIN, Palette


def render_hunt_diff(
    comparison: HuntComparison, *, width: int = 100, style: Palette = PLAIN, top: int = 20
) -> str:
    """A comparison as text; ends with a newline.

    Args:
        comparison: of two hunts.
        width: characters per line.
        style: colours; ``PLAIN`` writes no escape sequence.
        top: call sites to show.
    """
    page = Page(width, style)
    page.paragraph(comparison.sentence, indent=0, hanging=2, role=_role(comparison.outcome))
    page.line("")
    for word, hunt in (("before", comparison.before), ("after", comparison.after)):
        page.paragraph(f"{word}: {_hunt(hunt)}", indent=0, hanging=2)
    sites = comparison.sites[:top]
    if sites:
        titles = ("Stay/h before", "Stay/h after", "Stayed before", "Stayed after")
        rows = [
            (
                _rate(change.pair.before),
                _rate(change.pair.after),
                _stayed(change.pair.before),
                _stayed(change.pair.after),
            )
            for change in sites
        ]
        widths = column_widths(titles, rows)
        more = f" (top {len(sites)} of {len(comparison.sites)})"
        page.heading(f"Call sites{more if len(sites) < len(comparison.sites) else ''}")
        page.row(titles, widths, "Call site")
        for change, row in zip(sites, rows):
            page.row(row, widths, change.pair.name, _role(change.outcome))
            words = f"{change.outcome.value}: {change.sentence}"
            if change.pair.matched_by not in ("", "offset"):
                words += f" (Matched by {change.pair.matched_by}.)"
            page.paragraph(words, indent=6, hanging=2)
    if comparison.remarks:
        page.line("")
    for remark in comparison.remarks:
        page.paragraph(f"note: {remark}", indent=0, hanging=2, role="warn")
    return page.text()


def _role(outcome: Outcome) -> str:
    if outcome in LEAKING:
        return "bad"
    return {Outcome.CANNOT_TELL: "warn", Outcome.FIXED: "good"}.get(outcome, "")


def _hunt(hunt: HuntFigures) -> str:
    tag = f"'{hunt.tag}'" if hunt.tag else "no tag"
    watched = f"{number(hunt.hits)} hits in {seconds(hunt.seconds)} of watching"
    if hunt.bursts > 1:
        watched = (
            f"{number(hunt.hits)} hits in {hunt.bursts:,} bursts, {seconds(hunt.seconds_watched)} "
            f"of {seconds(hunt.seconds)}"
        )
    return f"{hunt.name}: {tag}, {watched}; {hunt.target}, {hunt.engine}."


def _rate(site: Optional[SiteFigures]) -> str:
    if site is None:
        return "-"
    # What is scaled from a sample is never exactly nothing.
    nothing = site.stayed == 0 and site.within.low <= 0
    return "0" if nothing else size(site.bytes_per_hour)


def _stayed(site: Optional[SiteFigures]) -> str:
    return "-" if site is None else f"{site.stayed:,} of {site.followed:,}"
