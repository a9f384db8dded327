"""The blocks of a pool tag as text: each block, sizes as bars, and what the counters say."""

from __future__ import annotations

from typing import List, Optional, Sequence

from kdleak.errors import format_address
from kdleak.found import (
    BlockPointer,
    BlockSearch,
    BlockSource,
    BlockState,
    GapKind,
    PoolBlock,
    SizeClass,
)
from kdleak.model import Pool, PoolCounters, TargetInfo
from kdleak.quantities import amount
from kdleak.report.page import Page, column_widths, number
from kdleak.report.palette import PLAIN, Palette

_BYTES_SHOWN = ((16, True), (8, True), (8, False), (6, False), (4, False))
"""How many bytes, and whether with their characters: the widest that fits."""

_DETAILS = 4
_BAR = 40
_SIZES = 16
_ROLES = {BlockState.FREE: "quiet", BlockState.UNKNOWN: "warn"}


def render_find(
    search: BlockSearch,
    *,
    where: str,
    target: TargetInfo,
    pool: Optional[Pool] = None,
    width: int = 100,
    style: Palette = PLAIN,
    sizes: int = _SIZES,
    size: Optional[int] = None,
) -> str:
    """A search for blocks as text: what was seen, how large, then block by block.

    Args:
        search: what was found.
        where: the dump as the user named it.
        target: what it is a dump of.
        pool: the pool that the search was limited to.
        width: characters per line.
        style: colours; ``PLAIN`` writes no escape sequence.
        sizes: rows of the table of sizes.
        size: the size that the blocks shown one by one were limited to.

    Returns:
        The text; ends with a newline.
    """
    page = Page(width, style)
    title = f"Blocks of {search.tag.text!r} in {where}" + (f", {pool.value} pool" if pool else "")
    page.line(f"{title} (build {target.build} {target.architecture.value})")
    for sentence in verdict(search, pool):
        page.paragraph(sentence, indent=0)
    if search.sizes:
        page.heading("By size")
        _sizes(page, search.sizes, sizes)
    if search.blocks:
        page.heading("Block by block" + (f", those of {number(size)} bytes" if size else ""))
        _blocks(page, search.blocks)
        left = _to_show(search, size) - len(search.blocks)
        if left > 0:
            page.line(
                f"  ... {left:,} more (--limit N shows N, --size BYTES one size)", plain=False
            )
    elif size and search.seen and not _to_show(search, size):
        page.line("")
        page.paragraph(f"None of {number(size)} bytes was seen.", indent=0, role="warn")
    page.line("")
    searched = "; ".join(search.searched) or "nothing"
    page.paragraph(f"Searched: {searched} ({number(search.bytes_searched)} bytes).", indent=0)
    for gap in _gaps(search):
        words = "note, although no block is missing" if search.complete else "missing"
        role = "quiet" if search.complete else "warn"
        page.paragraph(f"{words}: {gap}.", indent=0, hanging=2, role=role)
    return page.text()


def _gaps(search: BlockSearch) -> List[str]:
    """What could not be looked at; without the comparison that the verdict has in other words."""
    compared = [gap for gap in search.gaps if search.kind_of(gap) is GapKind.SHORTFALL]
    return [gap for gap in search.gaps if len(compared) > 1 or gap not in compared]


def _to_show(search: BlockSearch, size: Optional[int]) -> int:
    """Blocks seen, whatever their state; of one size where that was asked for."""
    if size is None:
        return search.seen
    return sum(one.allocated + one.free + one.unknown for one in search.sizes if one.size == size)


def verdict(search: BlockSearch, pool: Optional[Pool] = None) -> List[str]:
    """What was seen beside what the counters count, in one or two sentences."""
    blocks, size = search.allocated
    seen = f"{_counted(blocks, size)} seen in use" if blocks else "none seen in use"
    sentences: List[str] = []
    if search.counters is None:
        sentences.append(f"{seen}; what the tag tables count is not known.")
    else:
        usage = search.counters
        counted = usage.of(pool) if pool else PoolCounters(usage.outstanding, 0, usage.bytes)
        if search.complete and not counted.outstanding:
            sentences.append("The tag tables count no block of it.")
            return sentences + _others(search)
        sentence = f"The tag tables count {_counted(counted.outstanding, counted.bytes)}; "
        if search.complete:
            sentences.append(f"{sentence}every one of them was seen.")
            if any(
                block.source is BlockSource.HEADER and block.state is BlockState.ALLOCATED
                for block in search.blocks
            ):
                sentences.append(
                    "Those found by their header alone are taken for in use because together "
                    "they are exactly what is counted."
                )
        else:
            sentences.append(f"{sentence}{seen}.")
            if blocks < counted.outstanding:
                sentences.append(
                    "What was not seen may be there all the same: paged out, not in the dump, or "
                    "not to be told from freed blocks."
                )
    return sentences + _others(search)


def _others(search: BlockSearch) -> List[str]:
    """What was seen beside blocks in use, as a sentence; none where there is nothing."""
    free = sum(one.free for one in search.sizes)
    unknown = sum(one.unknown for one in search.sizes)
    also: List[str] = []
    if free:
        also.append(f"{amount(free, 'freed block')}")
    if unknown:
        also.append(
            f"{amount(unknown, 'header')} with the tag that may "
            "be blocks in use, freed blocks, or copies"
        )
    return [f"Also seen: {' and '.join(also)}."] if also else []


def _counted(blocks: int, size: int) -> str:
    return f"{amount(blocks, 'block')}, {amount(size, 'byte')}"


def _blocks(page: Page, blocks: Sequence[PoolBlock]) -> None:
    titles = ("Address", "Size", "Pool", "State", "Found by")
    rows = [
        (
            format_address(block.address),
            number(block.size) if block.size else "?",
            block.pool.value if block.pool else "?",
            block.state.value,
            block.source.value,
        )
        for block in blocks
    ]
    widths = column_widths(titles, rows)
    page.row(titles, widths, "First bytes")
    room = page.width - sum(widths) - 2 * len(widths) - 2
    count, characters = next(
        (one for one in _BYTES_SHOWN if _bytes_width(*one) <= room), _BYTES_SHOWN[-1]
    )
    told: List[str] = []
    for block, cells in zip(blocks, rows):
        shown = bytes_text(block.first_bytes, count, characters=characters)
        page.row(cells, widths, shown, _ROLES.get(block.state, ""))
        lines = details(block)
        if lines and lines == told:  # the blocks of a leak are often all alike
            page.line("      the same pointers and texts", plain=False)
        else:
            for line in lines:
                page.line(f"      {line}")
        told = lines


def _bytes_width(count: int, characters: bool) -> int:
    return len(bytes_text(bytes(count), count, characters=characters))


def bytes_text(raw: bytes, count: int = 16, *, characters: bool = True) -> str:
    """The first bytes as the debugger's ``db`` shows them; "-" where they cannot be read."""
    shown = raw[:count]
    if not shown:
        return "-"
    if not characters:
        return shown.hex(" ")
    text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in shown)
    return f"{shown.hex(' ')}  {text}"


def details(block: PoolBlock) -> List[str]:
    """Lines about what is in a block: pointers, then strings, a few of each."""
    lines = [pointer_text(pointer) for pointer in block.pointers[:_DETAILS]]
    if len(block.pointers) > _DETAILS:
        lines.append(f"... {len(block.pointers) - _DETAILS} more pointers")
    lines += [f'"{text}"' for text in block.strings[:_DETAILS]]
    if len(block.strings) > _DETAILS:
        lines.append(f"... {len(block.strings) - _DETAILS} more strings")
    return lines


def pointer_text(pointer: BlockPointer) -> str:
    """A pointer and what it points to."""
    head = f"+0x{pointer.offset:03x} {format_address(pointer.value)}"
    if pointer.symbol is not None:
        return f"{head} {pointer.symbol}"
    tag = f" {pointer.block_tag.text!r}" if pointer.block_tag else ""
    return f"{head} block{tag}"


def _sizes(page: Page, sizes: Sequence[SizeClass], most: int) -> None:
    """The sizes with most bytes not freed, in order of size, with a bar for the bytes."""
    total = [one.size * (one.allocated + one.unknown) for one in sizes]
    order = sorted(range(len(sizes)), key=lambda index: (-total[index], sizes[index].size))
    shown = sorted(order[:most])
    unknown = any(one.unknown for one in sizes)
    titles = ("Size", "In use", "Freed", "Unknown", "Bytes or less" if unknown else "Bytes")
    rows = [
        (
            number(sizes[index].size),
            number(sizes[index].allocated),
            number(sizes[index].free),
            number(sizes[index].unknown),
            number(total[index]),
        )
        for index in shown
    ]
    widths = column_widths(titles, rows)
    page.row(titles, widths, "")
    largest = max(total[index] for index in shown)
    room = max(min(_BAR, page.width - sum(widths) - 2 * len(widths) - 4), 1)
    for index, cells in zip(shown, rows):
        bar = "#" * max(1, room * total[index] // largest) if total[index] else ""
        page.row(cells, widths, bar)
    if len(sizes) > len(shown):
        page.line(f"  ... {len(sizes) - len(shown):,} more sizes", plain=False)
