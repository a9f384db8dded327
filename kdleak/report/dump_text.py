"""A crash dump at a glance, as text."""

from __future__ import annotations

from typing import Callable, Dict, List, Sequence, Tuple

from kdleak.dumped.glance import DumpOverview, TagDetail
from kdleak.errors import format_address
from kdleak.found import (
    BlockPointer,
    BlockSearch,
    GapKind,
    PoolBlock,
    SiteKind,
    SiteSearch,
    SizeClass,
)
from kdleak.model import Pool, PoolCounters, TagUsage
from kdleak.quantities import amount
from kdleak.report.diff_text import span, wall_clock
from kdleak.report.dump_answer import answer, one_size
from kdleak.report.next_step import path_word, tag_word
from kdleak.report.page import Page, number
from kdleak.report.palette import PLAIN, Palette
from kdleak.report.rank_text import average, rows_table

_SIZES_SHOWN = 4
_SITES_SHOWN = 4
_GAPS_SHOWN = 6

_SAID_ANYWAY = (GapKind.SHORTFALL, GapKind.DOUBT)
"""Gaps that the lines about a tag's blocks say, too."""

_TIME_IS_OVER = (
    "the time given was over before all pages were looked at (--seconds 0 looks at all of them, "
    "however long it takes)"
)

_BUG_CHECKS = {
    0x19: "BAD_POOL_HEADER",
    0x41: "MUST_SUCCEED_POOL_EMPTY",
    0xC2: "BAD_POOL_CALLER",
    0xC4: "DRIVER_VERIFIER_DETECTED_VIOLATION",
    0xC5: "DRIVER_CORRUPTED_EXPOOL",
    0xE2: "MANUALLY_INITIATED_CRASH",
    0x13A: "KERNEL_MODE_HEAP_CORRUPTION",
    0x161: "LIVE_SYSTEM_DUMP",
}
"""Those of pool and of dumps made on purpose, as Microsoft's bug check reference names them."""


def render_dump(
    overview: DumpOverview,
    *,
    width: int = 100,
    style: Palette = PLAIN,
    top: int = 10,
    file: str = "FILE",
) -> str:
    """An overview as text; ends with a newline.

    Args:
        overview: of one dump.
        width: characters per line.
        style: colours; ``PLAIN`` writes no escape sequence.
        top: rows of the table.
        file: the dump as the user named it, for the commands proposed.
    """
    page = Page(width, style)
    page.line(f"{overview.where}: {number(overview.size)} bytes", "heading")
    for sentence in answer(overview):
        page.paragraph(sentence, indent=2, hanging=2, role="heading")
    page.paragraph(overview.target.description, indent=2, hanging=2)
    for sentence in _moment(overview):
        page.paragraph(sentence, indent=2, hanging=2)
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
    for remark in overview.remarks:
        page.paragraph(f"note: {remark.rstrip('.')}.", indent=2, hanging=2, role="warn")
    for detail in overview.details:
        _detail(page, overview, detail)
    _gaps(page, overview.details)
    _next(page, overview, file)
    return page.text()


def _moment(overview: DumpOverview) -> List[str]:
    said = []
    if overview.bug_check is not None:
        name = _BUG_CHECKS.get(overview.bug_check)
        parameters = ", ".join(f"0x{one:x}" for one in overview.bug_check_parameters)
        known = f" {name}" if name else ""
        said.append(f"Bug check 0x{overview.bug_check:x}{known} ({parameters}).")
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
    return f"{pool.value}: {number(counters.bytes)} bytes in {_blocks_counted(counters)}"


def _blocks_counted(counters: PoolCounters) -> str:
    return amount(counters.outstanding, "block")


def _detail(page: Page, overview: DumpOverview, detail: TagDetail) -> None:
    page.heading(f"'{detail.tag}'")
    if overview.snapshot is not None and detail.usage == TagUsage(detail.tag):
        _not_there(page, overview, detail)
        return
    parts = []
    for pool in Pool:
        counters = detail.usage.of(pool)
        if counters.outstanding or counters.bytes:
            whole = overview.total(pool).bytes
            share = f", {counters.bytes / whole:.1%} of the pool" if whole > 0 else ""
            each = "each" if counters.outstanding == 1 or one_size(detail) else "on average"
            parts.append(f"{_total(pool, counters)} ({average(counters)} bytes {each}{share})")
    if overview.snapshot is not None:
        page.paragraph("; ".join(parts) + "." if parts else "It holds nothing.", hanging=2)
    if detail.owner:
        page.paragraph(f"pooltag.txt: {detail.owner}", hanging=2)
    if detail.sites is not None:
        _sites(page, detail.sites)
    if detail.blocks is not None:
        _blocks(page, detail)


def _not_there(page: Page, overview: DumpOverview, detail: TagDetail) -> None:
    """A tag that the tables do not name: a slip, or one that never was used."""
    page.paragraph("The tag tables do not name it.", role="warn")
    wanted = detail.tag.text.lower()
    alike = dict.fromkeys(row.tag.text for row in overview.rows if row.tag.text.lower() == wanted)
    if alike:
        page.paragraph(f"Upper and lower case count: there is {', '.join(map(repr, alike))}.")
    if detail.owner:
        page.paragraph(f"pooltag.txt: {detail.owner}", hanging=2)
    if detail.blocks is not None and detail.blocks.seen:
        _blocks(page, detail)
    if detail.sites is not None and detail.sites.sites:
        _sites(page, detail.sites)


def _blocks(page: Page, detail: TagDetail) -> None:
    search = detail.blocks
    if search is None:
        return
    count, held = search.allocated
    unknown = sum(one.unknown for one in search.sizes)
    free = sum(one.free for one in search.sizes)
    if search.complete:
        words = "Every block in use was seen"
        if not count:
            words = "None in use"
    elif search.counters is None:
        words = f"Blocks in use: {number(count)} seen ({number(held)} bytes)"
    else:
        usage = search.counters
        words = (
            f"Blocks in use: {number(count)} of {number(usage.outstanding)} seen "
            f"({number(held)} of {number(usage.bytes)} bytes)"
        )
    words += _sizes(search.sizes, lambda one: one.allocated)
    if unknown:
        words += (
            f"; {number(unknown)} more may be in use, by their headers alone"
            f"{_sizes(search.sizes, lambda one: one.unknown)}"
        )
    if free:
        words += f"; {number(free)} freed seen, too"
    page.paragraph(f"{words}.", hanging=2)
    for block in search.blocks[:1]:
        _block(page, block)


def _sizes(sizes: Sequence[SizeClass], count_of: Callable[[SizeClass], int]) -> str:
    """The commonest sizes among blocks of one state: ``: 12 x 320 bytes, 3 x 64, 4 more sizes``."""
    counts = [(count_of(one), one.size) for one in sizes if count_of(one)]
    if not counts:
        return ""
    counts.sort(key=lambda one: (-one[0], one[1]))
    shown = [f"{number(count)} x {number(size)}" for count, size in counts[:_SIZES_SHOWN]]
    shown[0] += " bytes"
    more = len(counts) - _SIZES_SHOWN
    if more > 0:
        shown.append(f"{amount(more, 'more size')}")
    return f": {', '.join(shown)}"


def _block(page: Page, block: PoolBlock) -> None:
    """One block as an example."""
    words = (
        f"One of them: {format_address(block.address)} "
        f"({number(block.size)} bytes, {block.state.value})"
    )
    first = block.first_bytes[:16]
    if not first:
        words += "; what is in it could not be read"
    elif not any(first):
        words += ", zeros at its start"
    else:
        words += f": {first.hex(' ')}"
    page.paragraph(words, hanging=2)
    for text in block.strings[:2]:
        page.paragraph(f'"{text}"', indent=4, hanging=2)
    for aim, offsets in _aims(block.pointers):
        places = ", ".join(f"+0x{offset:x}" for offset in offsets)
        page.paragraph(f"{places} -> {aim}", indent=4, hanging=2)


def _aims(pointers: Sequence[BlockPointer]) -> List[Tuple[str, List[int]]]:
    """What a block points to, each once, with where the pointers lie; the first two."""
    aims: Dict[str, List[int]] = {}
    for pointer in pointers:
        aim = str(pointer.symbol) if pointer.symbol is not None else "a block"
        if pointer.symbol is None and pointer.block_tag is not None:
            aim = f"a block of {pointer.block_tag.text!r}"
        aims.setdefault(aim, []).append(pointer.offset)
    return [(aim, offsets[:4]) for aim, offsets in list(aims.items())[:2]]


def _sites(page: Page, search: SiteSearch) -> None:
    calls = [site for site in search.sites if site.kind is SiteKind.CALL and not site.frees]
    if calls:
        modules = ", ".join(search.askers)
        page.paragraph(f"Code that asks for it: {modules}.", hanging=2, role="heading")
        for site in calls[:_SITES_SHOWN]:
            page.paragraph(
                f"{site.symbol}: {site.instruction} -> {site.routine}", indent=4, hanging=2
            )
        if len(calls) > _SITES_SHOWN:
            page.paragraph(f"... {len(calls) - _SITES_SHOWN} more", indent=4)
    elif search.sites:
        modules = ", ".join(dict.fromkeys(site.module for site in search.sites))
        page.paragraph(
            f"No call that surely asks for it; its four bytes stand in {modules}.", hanging=2
        )
    else:
        page.paragraph(
            f"No code asks for it in the {number(search.modules)} images looked through.",
            hanging=2,
        )


def _gaps(page: Page, details: Sequence[TagDetail]) -> None:
    """What could not be looked at, each sentence once, with the tags it concerns."""
    concerned: Dict[str, List[str]] = {}
    for detail in details:
        for gap in dict.fromkeys(_gaps_of(detail)):
            concerned.setdefault(gap.rstrip("."), []).append(f"'{detail.tag}'")
    if not concerned:
        return
    page.heading("Not seen, which does not mean that it is not there")
    for gap, tags in list(concerned.items())[:_GAPS_SHOWN]:
        whose = "" if len(tags) == len(details) else f"{', '.join(tags)}: "
        page.paragraph(f"missing: {whose}{gap}.", hanging=2, role="warn")
    more = len(concerned) - _GAPS_SHOWN
    if more > 0:
        page.paragraph(f"missing: {number(more)} more (--json names them).", role="warn")


def _gaps_of(detail: TagDetail) -> List[str]:
    gaps: List[str] = []
    if detail.blocks is not None and not detail.blocks.complete:
        # Else what could not be seen is no block of this tag.
        for gap in detail.blocks.gaps:
            kind = detail.blocks.kind_of(gap)
            if kind is GapKind.TIME:
                gaps.append(_TIME_IS_OVER)
            elif kind not in _SAID_ANYWAY:
                gaps.append(gap)
        if _lacking(detail.blocks) and not gaps:
            gaps.append("the blocks counted but not seen: paged out, or not in the dump")
    if detail.sites is not None:
        gaps += detail.sites.gaps
    return [*gaps, *detail.gaps]


def _lacking(search: BlockSearch) -> bool:
    return search.counters is not None and search.allocated[0] < search.counters.outstanding


def _next(page: Page, overview: DumpOverview, file: str) -> None:
    there = [one for one in overview.details if one.usage != TagUsage(one.tag)]
    if not there:
        return
    tag, where = tag_word(there[0].tag), path_word(file)
    page.heading("Next")
    commands = (
        (f"kdleak find {tag} -z {where}", "its blocks one by one"),
        (f"kdleak sites {tag} -z {where}", "the code that asks for it, and that frees it"),
        (f"kdleak diff EARLIER.DMP {where}", "what grew: the tag that holds most need not leak"),
    )
    column = max(len(command) for command, _ in commands)
    in_one_line = column + max(len(why) for _, why in commands) + 4 <= page.width
    for command, why in commands:
        if in_one_line:
            page.line(f"  {command.ljust(column)}  {why}")
        else:
            page.paragraph(command, hanging=2)
            page.paragraph(why, indent=6)
