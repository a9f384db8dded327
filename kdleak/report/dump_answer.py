"""The answer of a crash dump in one sentence per pool: who holds it, in what blocks, who asks."""

from __future__ import annotations

from typing import List, Optional, Sequence

from kdleak.dumped.glance import DumpOverview, TagDetail
from kdleak.model import Pool, PoolCounters
from kdleak.report.page import number
from kdleak.report.rank_text import average
from kdleak.result import RankRow

_MODULES_NAMED = 3
_WORTH_NAMING = 0.5
"""A second tag is named where it holds at least this part of what the first one holds."""


def answer(overview: DumpOverview) -> List[str]:
    """A sentence per pool that holds anything; none where there are no tag tables."""
    sentences = []
    for pool in Pool:
        rows = [row for row in overview.rows if row.pool is pool and row.last.bytes > 0]
        if not rows:
            continue
        first = rows[0]
        detail = _detail(overview, first)
        words = [
            f"{pool.value} pool: {_share(overview, first)} {first.tag.text!r}, "
            f"{blocks_words(first.last, detail)}"
        ]
        words += _asked_for(detail)
        if len(rows) > 1 and rows[1].last.bytes >= _WORTH_NAMING * first.last.bytes:
            words.append(_second(overview, rows[1]))
        sentences.append("".join(words) + ".")
    return sentences


def blocks_words(counters: PoolCounters, detail: Optional[TagDetail]) -> str:
    """Blocks and their size: all of one size only where every one was seen."""
    count = counters.outstanding
    if count == 1:
        return f"1 block of {number(counters.bytes)} bytes"
    of = "of" if one_size(detail) else "averaging"
    words = f"{number(count)} blocks {of} {average(counters)} bytes"
    return f"{words} ({number(counters.bytes)} bytes)"


def one_size(detail: Optional[TagDetail]) -> bool:
    """Whether all blocks in use are known to be of one size."""
    if detail is None or detail.blocks is None or not detail.blocks.complete:
        return False
    return sum(bool(one.allocated) for one in detail.blocks.sizes) == 1


def named(modules: Sequence[str]) -> str:
    """Some modules by name, the others by number."""
    more = len(modules) - _MODULES_NAMED
    shown = ", ".join(modules[:_MODULES_NAMED])
    return f"{shown} and {more} more" if more > 0 else shown


def _share(overview: DumpOverview, row: RankRow) -> str:
    whole = overview.total(row.pool).bytes
    if not 0 < row.last.bytes <= whole:  # torn tables: bytes of other tags are below zero
        return "most is held by"
    return f"{row.last.bytes / whole:.1%} is"


def _asked_for(detail: Optional[TagDetail]) -> List[str]:
    """Who asks; else who pooltag.txt says."""
    if detail is None:
        return []
    if detail.sites is not None:
        modules = detail.sites.askers
        if modules:
            return [f", asked for by {named(modules)}"]
    if detail.owner:
        return [f"; pooltag.txt: {detail.owner}".rstrip(".")]
    return ["; who asks for it was not found"] if detail.sites is not None else []


def _second(overview: DumpOverview, row: RankRow) -> str:
    detail = _detail(overview, row)
    modules = detail.sites.askers if detail and detail.sites else []
    return f"; next {row.tag.text!r} with {number(row.last.bytes)} bytes" + (
        f", {named(modules)}" if modules else ""
    )


def _detail(overview: DumpOverview, row: RankRow) -> Optional[TagDetail]:
    return next((one for one in overview.details if one.tag == row.tag), None)
