"""Rankings and hunts of logs as text. What a log does not tell is shown as "?"."""

from __future__ import annotations

from typing import Optional, Sequence

from kdleak.errors import format_address
from kdleak.logged import LoggedHit, LoggedHunt, LoggedRank, LoggedSite, LoggedSnapshot
from kdleak.model import HitKind
from kdleak.pool_hit_tag import SYMBOL
from kdleak.report.hunt_text import stack_lines
from kdleak.report.page import Page, column_widths, duration, number
from kdleak.report.palette import PLAIN, Palette
from kdleak.report.rank_text import growth_lines, rows_table
from kdleak.report.secrets import without_secrets
from kdleak.result import Judgement, RankBy

_ROLES = {Judgement.SUSPECTED: "warn", Judgement.TOO_FEW: "quiet", Judgement.FREES_ONLY: "quiet"}
_KINDS = {HitKind.ALLOC: "alloc", HitKind.FREE: "free", None: "?"}


def render_logged_rank(
    rank: LoggedRank, *, width: int = 100, style: Palette = PLAIN, top: int = 20
) -> str:
    """A ranking of logs as text; ends with a newline.

    Args:
        rank: of one log or more.
        width: characters per line.
        style: colours; ``PLAIN`` writes no escape sequence.
        top: rows to show.
    """
    page = Page(width, style)
    page.paragraph(f"Pool tags of {', '.join(rank.logs)} by {rank.by.value}", indent=0, hanging=2)
    ranking(page, rank, top=top)
    return without_secrets(page.text())


def ranking(page: Page, rank: LoggedRank, *, top: int) -> None:
    """Reason, table, time and gaps of a ranking."""
    measured = rank.by is RankBy.GROWTH
    page.paragraph(rank.reason, role="bad" if rank.suspect and measured else "")
    if rank.suspect is not None:
        words = rank.snapshots[-1].descriptions.get(rank.suspect.tag)
        if words:
            page.paragraph(f"The list calls '{rank.suspect.tag}': {words}.", hanging=2)
    page.line("")
    rows_table(page, rank.rows, top=top, measured=measured, outstanding_only=rank.outstanding_only)
    page.line("")
    if measured and rank.suspect is not None:
        growth_lines(page, rank.suspect, {})
    if measured:
        time = "The time between is unknown, so growth has no rate."
        if rank.seconds is not None:
            time = f"{duration(rank.seconds)} between, by {rank.seconds_rest_on}."
        page.paragraph(f"{len(rank.snapshots)} lists compared. {time}", hanging=2)
    for one in rank.snapshots:
        page.paragraph(f"Read from: {_snapshot_words(one)}.", hanging=2)
    if rank.outstanding_only:
        page.paragraph(
            "The list shows only what is outstanding: allocations and frees are not known apart.",
            hanging=2,
        )
    for gap in rank.gaps:
        page.paragraph(f"missing: {gap}.", hanging=2, role="warn")


def _snapshot_words(one: LoggedSnapshot) -> str:
    lines = " and ".join(number(line) for line in one.lines)
    where = f" of {one.log}" if one.log else ""
    up = "" if one.moment.uptime is None else f", target up for {one.moment.uptime:,.0f} s"
    in_lines = f"in line{'s' if len(one.lines) > 1 else ''} {lines}"
    return f"{one.snapshot.source} {in_lines}{where} ({len(one.snapshot.rows):,} tags{up})"


def hunt_sections(page: Page, hunt: LoggedHunt, *, top: int) -> None:
    """One hunt: what is said of it, its call sites, its hits, and how the tag was left."""
    tag = f"'{hunt.tag}'" if hunt.tag is not None else "an unknown tag"
    page.heading(f"Hunt of {tag}")
    for sentence in hunt.verdict:
        page.paragraph(sentence, hanging=2)
    if hunt.by_breakpoint:
        page.paragraph("The hits are those of a breakpoint that compares the tag.", hanging=2)
    _tag_value(page, hunt)
    if hunt.sites:
        _sites(page, hunt.sites, top)
    if hunt.hits:
        _hits(page, hunt.hits, top)
    if hunt.sites:
        site = hunt.sites[0]
        page.heading(f"Stack of {_site_name(site)}{_often(site)}")
        stack_lines(page, site.stack)


def _tag_value(page: Page, hunt: LoggedHunt) -> None:
    value = hunt.tag_value
    if hunt.by_breakpoint and value.last_written is None:
        return
    role = "good" if value.safe else "warn"
    before = "?" if value.before is None else f"0x{value.before:08x}"
    page.paragraph(f"{SYMBOL} before: {before}. At the end: {value.sentence}", hanging=2, role=role)


def _sites(page: Page, sites: Sequence[LoggedSite], top: int) -> None:
    shown = sites[:top]
    titles = ("Allocs", "Frees")
    rows = [(number(site.allocs), number(site.frees)) for site in shown]
    widths = column_widths(titles, rows)
    more = f" (top {len(shown)} of {len(sites)})" if len(sites) > len(shown) else ""
    page.heading(f"Call sites{more}")
    page.row(titles, widths, "Call site")
    for site, row in zip(shown, rows):
        page.row(row, widths, _site_name(site), _ROLES.get(site.judgement, ""))
        if site.judgement is not Judgement.FREES_ONLY:  # the columns say it all
            page.paragraph(f"{site.judgement.value}: {site.sentence}", indent=6, hanging=2)
        if site.allocs and str(site.blame.symbol) != str(site.frame.symbol):
            page.paragraph(f"on behalf of {site.blame.symbol}", indent=6, hanging=2)


def _site_name(site: LoggedSite) -> str:
    name = str(site.frame.symbol)
    return name if site.frame.address else f"{name} (no address shown)"


def _often(site: LoggedSite) -> str:
    if site.distinct_stacks < 2:
        return ""
    return f", the commonest of {site.distinct_stacks}"


def _hits(page: Page, hits: Sequence[LoggedHit], top: int) -> None:
    shown = hits[:top]
    titles = ("Hit", "Line", "Kind", "Block", "Asked for", "Frames")
    rows = [
        (
            number(hit.number),
            number(hit.line),
            _KINDS[hit.kind],
            _known(None if hit.block is None else format_address(hit.block)),
            _known(None if hit.requested is None else number(hit.requested)),
            number(len(hit.stack.frames)) if hit.stack else "?",
        )
        for hit in shown
    ]
    # A column of nothing but question marks says nothing.
    keep = [
        index
        for index in range(len(titles))
        if index in {0, 1, 2, 5} or any(row[index] != "?" for row in rows)
    ]
    titles_kept = [titles[index] for index in keep]
    kept = [[row[index] for index in keep] for row in rows]
    widths = column_widths(titles_kept, kept)
    more = f" (first {len(shown)} of {len(hits)})" if len(hits) > len(shown) else ""
    page.heading(f"Hits{more}")
    page.row(titles_kept, widths, "Call site")
    for hit, row in zip(shown, kept):
        page.row(row, widths, "?" if hit.site is None else str(hit.site.symbol))


def _known(text: Optional[str]) -> str:
    return "?" if text is None else text
