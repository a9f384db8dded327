"""A crash dump at a glance, as text."""

from __future__ import annotations

from typing import List, Sequence

from kdleak.dumped.glance import DumpOverview, TagDetail
from kdleak.errors import format_address
from kdleak.found import BlockSearch, PoolBlock, SiteKind, SiteSearch, SizeClass
from kdleak.model import Pool, PoolCounters, TagUsage
from kdleak.report.diff_text import span, wall_clock
from kdleak.report.page import Page, number
from kdleak.report.palette import PLAIN, Palette
from kdleak.report.rank_text import average, rows_table

_SIZES_SHOWN = 4
_SITES_SHOWN = 4
_GAPS_SHOWN = 3


def render_dump(
    overview: DumpOverview, *, width: int = 100, style: Palette = PLAIN, top: int = 10
) -> str:
    """An overview as text; ends with a newline.

    Args:
        overview: of one dump.
        width: characters per line.
        style: colours; ``PLAIN`` writes no escape sequence.
        top: rows of the table.
    """
    page = Page(width, style)
    page.line(f"{overview.where}: {number(overview.size)} bytes", "heading")
    page.paragraph(overview.target.description, indent=2, hanging=2)
    for sentence in _moment(overview):
        page.paragraph(sentence, indent=2, hanging=2)
    for remark in overview.remarks:
        page.paragraph(f"note: {remark.rstrip('.')}.", indent=2, hanging=2, role="warn")
    page.heading("Pool")
    if overview.snapshot is None:
        page.paragraph(overview.no_tables, indent=2, hanging=2, role="warn")
    else:
        for pool in Pool:
            page.line(f"  {_total(pool, overview.total(pool))}")
        page.line("")
        rows_table(page, overview.rows, top=top, measured=False, outstanding_only=False)
        page.paragraph(f"Read from: {overview.snapshot.source}.", indent=2)
        for gap in overview.snapshot.gaps:
            page.paragraph(f"missing: {gap.rstrip('.')}.", indent=2, hanging=2, role="warn")
    for detail in overview.details:
        _detail(page, overview, detail)
    if overview.details:
        tag = overview.details[0].tag.text.rstrip()
        page.line("")
        page.paragraph(
            f"Next: kdleak find '{tag}' -z FILE lists its blocks, kdleak sites '{tag}' -z FILE "
            "the code that asks for it. A tag that holds most need not be the one that leaks: "
            "kdleak diff with an earlier dump of the same boot shows what grew.",
            indent=0,
            hanging=2,
        )
    return page.text()


def _moment(overview: DumpOverview) -> List[str]:
    said = []
    if overview.bug_check is not None:
        parameters = ", ".join(format_address(one) for one in overview.bug_check_parameters)
        said.append(f"Bug check 0x{overview.bug_check:x} ({parameters}).")
    words = []
    if overview.moment.target_clock is not None:
        words.append(f"taken {wall_clock(overview.moment.target_clock)}")
    if overview.moment.uptime is not None:
        words.append(f"up for {span(overview.moment.uptime)}")
    if words:
        text = ", ".join(words)
        said.append(f"{text[0].upper()}{text[1:]}.")
    return said


def _total(pool: Pool, counters: PoolCounters) -> str:
    return f"{pool.value}: {number(counters.bytes)} bytes in {number(counters.outstanding)} blocks"


def _detail(page: Page, overview: DumpOverview, detail: TagDetail) -> None:
    page.heading(f"'{detail.tag}'")
    parts = []
    for pool in Pool:
        counters = detail.usage.of(pool)
        if counters.outstanding or counters.bytes:
            whole = overview.total(pool).bytes
            share = f", {counters.bytes / whole:.1%} of the pool" if whole > 0 else ""
            parts.append(f"{_total(pool, counters)} ({average(counters)} bytes each{share})")
    nothing = "It holds nothing."
    if detail.usage == TagUsage(detail.tag):
        nothing = "The tag tables do not name it."
    page.paragraph("; ".join(parts) + "." if parts else nothing)
    if detail.owner:
        page.paragraph(f"pooltag.txt: {detail.owner}", hanging=2)
    if detail.blocks is not None:
        _blocks(page, detail.blocks)
    if detail.sites is not None:
        _sites(page, detail.sites)
    _gaps(page, detail.gaps)


def _blocks(page: Page, search: BlockSearch) -> None:
    if not search.seen:
        page.paragraph("None of its blocks were seen; that does not mean that there are none.")
    else:
        count, held = search.allocated
        sizes = ", ".join(_size(one) for one in _commonest(search.sizes))
        more = len(search.sizes) - _SIZES_SHOWN
        all_of_them = ", all that the tables count" if search.complete else ""
        page.paragraph(
            f"Blocks seen: {number(search.seen)}, of them {number(count)} surely in use "
            f"({number(held)} bytes{all_of_them}). Sizes: {sizes}"
            f"{f', {more} more' if more > 0 else ''}.",
            hanging=2,
        )
        for block in search.blocks[:1]:
            page.paragraph(f"One of them: {_block(block)}", hanging=2)
    if not search.complete:  # else what could not be seen is no block of this tag
        _gaps(page, search.gaps)


def _gaps(page: Page, gaps: Sequence[str]) -> None:
    for gap in gaps[:_GAPS_SHOWN]:
        page.paragraph(f"missing: {gap.rstrip('.')}.", hanging=2, role="warn")
    if len(gaps) > _GAPS_SHOWN:
        page.paragraph(f"missing: {len(gaps) - _GAPS_SHOWN} more (--json names them).", role="warn")


def _commonest(sizes: Sequence[SizeClass]) -> List[SizeClass]:
    ordered = sorted(sizes, key=lambda one: (-(one.allocated + one.unknown + one.free), one.size))
    return ordered[:_SIZES_SHOWN]


def _size(one: SizeClass) -> str:
    return f"{number(one.allocated + one.unknown + one.free)} x {number(one.size)}"


def _block(block: PoolBlock) -> str:
    words = [f"{format_address(block.address)} ({number(block.size)} bytes, {block.state.value})"]
    if block.first_bytes:
        words.append(block.first_bytes[:16].hex(" "))
    words += [f"text '{text}'" for text in block.strings[:2]]
    for pointer in block.pointers[:2]:
        aim = pointer.symbol if pointer.symbol is not None else f"'{pointer.block_tag}' block"
        words.append(f"+0x{pointer.offset:x} -> {aim}")
    return "; ".join(words)


def _sites(page: Page, search: SiteSearch) -> None:
    calls = [site for site in search.sites if site.kind is SiteKind.CALL and not site.frees]
    if calls:
        drivers = ", ".join(search.drivers)
        page.paragraph(f"Code that asks for it: {drivers}.", hanging=2, role="bad")
        for site in calls[:_SITES_SHOWN]:
            page.paragraph(f"{site.symbol}: {site.instruction} -> {site.routine}", indent=4)
        if len(calls) > _SITES_SHOWN:
            page.paragraph(f"... {len(calls) - _SITES_SHOWN} more", indent=4)
    elif search.sites:
        modules = ", ".join(dict.fromkeys(site.module for site in search.sites))
        page.paragraph(
            f"No call that surely asks for it; its four bytes stand in {modules}.", hanging=2
        )
    else:
        page.paragraph(f"No code asks for it in the {search.modules} images looked through.")
    _gaps(page, search.gaps)
