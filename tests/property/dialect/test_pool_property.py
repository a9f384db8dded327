"""``!pool``: what is printed is read back, and no text does harm."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kdleak.dialect.pool import BlockState, PoolBlock, parse_pool, starts_pool, take_pool
from kdleak.dialect.source import split_lines

TAG = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=4, max_size=4)
SIZE = st.integers(0, 0xFFF)
ROW = st.tuples(SIZE, SIZE, st.booleans(), st.booleans(), st.booleans(), TAG)
BLOCKS = st.lists(ROW, min_size=1, max_size=20)
PIECES = st.sampled_from(
    ["kd> !pool 8000 1\n", "\n", " ", "*", "f40e0000", " size:   30", " previous size:    0",
     "  (Allocated)", "  (Free )", " *BiXQ", "\t\tPooltag Vjh  : x, Binary : y", "Pool page ",
     " region is Paged pool", " : large page allocation, Tag is Zxiw, size is 0x1c88 bytes",
     "Failed to read heap key", "....", " data: f40e0000 (NonPaged)", " (Protected)", "Process: "]
)  # fmt: skip
ANY_TEXT = st.one_of(st.text(), st.lists(PIECES, max_size=30).map("".join))


def render(blocks, wide, command):
    digits = 16 if wide else 8
    base = 0xFFFF8695BD429000 if wide else 0xF40E0000
    lines = [f"0: kd> {command}"] if command else []
    if wide:
        lines.append(f"Pool page {base:016x} region is Nonpaged pool")
    expected = []
    for number, (size, previous, free, current, protected, tag) in enumerate(blocks):
        state = "(Free)     " if free else "(Allocated)"
        mark = "*" if current else " "
        address = base + number * 16
        lines.append(
            f"{mark}{address:0{digits}x} size: {size:4x} previous size: {previous:4x}  "
            f"{state} {mark}{tag}{' (Protected)' if protected else ''}"
        )
        expected.append(
            PoolBlock(
                address=address,
                size=size,
                previous_size=previous,
                state=BlockState.FREE if free else BlockState.ALLOCATED,
                tag=tag,
                current=current,
                protected=protected,
                line=len(lines),
            )
        )
    return lines, expected


@settings(deadline=None)
@given(BLOCKS, st.booleans(), st.sampled_from(["", "!pool @rax", "!pool f40e0000 1"]))
def test_round_trip(blocks, wide, command):
    lines, expected = render(blocks, wide, command)
    pool = parse_pool("\n".join(lines))
    (page,) = pool.pages
    assert list(page.blocks) == expected
    assert (page.command or "") == command
    assert pool.unparsed == ()


@settings(deadline=None)
@given(BLOCKS, st.booleans(), st.integers(0, 3000))
def test_a_cut_text_gives_the_first_rows(blocks, wide, cut):
    lines, expected = render(blocks, wide, "!pool @rax")
    whole = "\n".join(lines)
    text = whole[: cut % (len(whole) + 1)]
    complete = text.count("\n") - len(lines) + len(expected)
    rows = [block for page in parse_pool(text).pages for block in page.blocks]
    assert rows[: max(complete, 0)] == expected[: max(complete, 0)]
    assert len(rows) <= max(complete, 0) + 1
    for row, wanted in zip(rows[complete:], expected[complete:]):
        # the row that was cut: what it says is true
        assert (row.address, row.size, row.previous_size) == (
            wanted.address,
            wanted.size,
            wanted.previous_size,
        )


@settings(deadline=None)
@given(ANY_TEXT)
def test_any_text(text):
    lines = split_lines(text)
    pool = parse_pool(text)
    numbers = {line.number for line in lines}
    assert {entry.line for entry in pool.unparsed} <= numbers
    for index in range(len(lines)):
        if starts_pool(lines, index):
            _, end = take_pool(lines, index)
            assert index < end <= len(lines)
