"""``!poolfind``: what is printed is read back, and no text does harm."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kdleak.dialect.pool import BlockState
from kdleak.dialect.poolfind import FoundBlock, parse_poolfind, starts_poolfind, take_poolfind
from kdleak.dialect.source import split_lines

TAG = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=4, max_size=4)
ADDRESS = st.integers(0xFFFF800000000000, 0xFFFFFFFFFFFFFFFF)
ROWS = st.lists(st.tuples(ADDRESS, st.integers(0, 0xFFFFF), TAG), min_size=1, max_size=20)
OLD_ROWS = st.lists(
    st.tuples(st.integers(0x80000000, 0xFFFFFFFF), st.integers(0, 0xFFF), st.booleans(), TAG),
    min_size=1,
    max_size=20,
)
PIECES = st.sampled_from(
    ["kd> !poolfind Ab 1\n", "\n", " ", "86794130", " size:   b0 previous size:   48  (Free) KhHi",
     "Scanning large pool allocation table for Tag: KhHi (8686b000 : 86883000)",
     "Searching Paged pool (e3000000 : e6800000) for Tag: ", "Searching x pool (", "0x12 (Ab) ",
     " : tag srlb, size    0x1b40, Nonpaged pool", " : tag srlb", ", size   ", "......",
     "...terminating - searched pool to e331f000", "unable to get large pool"]
)  # fmt: skip
ANY_TEXT = st.one_of(st.text(), st.lists(PIECES, max_size=30).map("".join))


@settings(deadline=None)
@given(ROWS, TAG, st.sampled_from(["Nonpaged", "Paged", "Paged session"]), st.booleans())
def test_new_layout(rows, tag, pool, stopped):
    value = int.from_bytes(tag.encode(), "little")
    lines = [
        f"1: kd> !poolfind -tag {tag}",
        f"Scanning large pool allocation table for tag 0x{value:08x} ({tag}) "
        "(ffffc107db3bd000 : ffffc107db7bd000)",
        "",
    ]
    expected = []
    for address, size, row_tag in rows:
        shown = f"0x{size:x}" if size else "0"
        lines.append(f"{address:016x} : tag {row_tag}, size {shown:>9}, {pool} pool")
        expected.append(FoundBlock(address, row_tag, size, pool.lower(), line=len(lines)))
    if stopped:
        lines += ["", "...terminating - searched pool to ffffc10013511f50"]
    found = parse_poolfind("\n".join(lines))
    (search,) = found.searches
    assert list(search.blocks) == expected
    assert (search.tag, search.tag_value) == (tag, value)
    assert search.interrupted_at == (0xFFFFC10013511F50 if stopped else None)
    assert found.unparsed == ()


@settings(deadline=None)
@given(OLD_ROWS, TAG)
def test_old_layout(rows, tag):
    lines = [f"Searching NonPaged pool (8644b000 : 8689a000) for Tag: {tag}", ""]
    expected = []
    for address, size, free, row_tag in rows:
        state = "(Free)     " if free else "(Allocated)"
        lines.append(f"{address:08x} size: {size:4x} previous size: {size:4x}  {state} {row_tag}")
        kind = BlockState.FREE if free else BlockState.ALLOCATED
        expected.append(FoundBlock(address, row_tag, size, None, size, kind, len(lines)))
    found = parse_poolfind("\n".join(lines))
    (search,) = found.searches
    assert list(search.blocks) == expected
    assert search.tag == tag
    assert found.unparsed == ()


@settings(deadline=None)
@given(ROWS, st.integers(0, 3000))
def test_a_cut_text_gives_the_first_rows(rows, cut):
    lines = ["Scanning large pool allocation table for Tag: Wisp (8686b000 : 86883000)"]
    lines += [
        f"{address:016x} : tag {tag}, size {f'0x{size:x}':>9}, Nonpaged pool"
        for address, size, tag in rows
    ]
    whole = "\n".join(lines)
    text = whole[: cut % (len(whole) + 1)]
    blocks = [block for search in parse_poolfind(text).searches for block in search.blocks]
    complete = max(text.count("\n") - 1, 0)
    assert [block.address for block in blocks] == [row[0] for row in rows[: len(blocks)]]
    assert [(block.tag, block.size) for block in blocks[:complete]] == [
        (row[2], row[1]) for row in rows[:complete]
    ]
    assert complete <= len(blocks) <= complete + 1


@settings(deadline=None)
@given(ANY_TEXT)
def test_any_text(text):
    lines = split_lines(text)
    found = parse_poolfind(text)
    assert {entry.line for entry in found.unparsed} <= {line.number for line in lines}
    for index in range(len(lines)):
        if starts_poolfind(lines, index):
            _, end = take_poolfind(lines, index)
            assert index < end <= len(lines)
