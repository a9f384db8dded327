"""!poolused: what is printed is read back, and no text makes the reader stumble."""

import string

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kdleak.dialect.poolused import Layout, parse_poolused, starts_poolused, take_poolused
from kdleak.dialect.source import split_lines

HEADERS = {
    Layout.OLD: (
        "  Pool Used:\n            NonPaged            Paged\n"
        " Tag    Allocs     Used    Allocs     Used\n"
    ),
    Layout.NEW: (
        "               NonPaged                  Paged\n"
        " Tag     Allocs         Used     Allocs         Used\n\n"
    ),
    Layout.VERBOSE: (
        "                            NonPaged                                         Paged\n"
        " Tag       Allocs       Frees      Diff         Used"
        "       Allocs       Frees      Diff         Used\n\n"
    ),
}
FORMATS = {
    Layout.OLD: " {} {:8d} {:8d}  {:8d} {:8d}{}",
    Layout.NEW: " {}{:10d}{:13d}{:11d}{:13d}{}",
    Layout.VERBOSE: " {}{:12d}{:12d}{:10d}{:13d}{:13d}{:12d}{:10d}{:13d}{}",
}

TAGS = st.text(
    st.sampled_from(string.ascii_letters + string.digits + " .-_?*'\"$#!("), min_size=4, max_size=4
)
WORDS = st.text(st.sampled_from(string.ascii_letters + string.digits + " :/-."), max_size=30)


@st.composite
def tables(draw):
    layout = draw(st.sampled_from(Layout))
    count = 8 if layout is Layout.VERBOSE else 4
    # Numbers that fit their columns: the widest old one has eight digits.
    figure = st.integers(0, 99_999_999)
    rows = draw(
        st.lists(
            st.tuples(TAGS, st.lists(figure, min_size=count, max_size=count), WORDS),
            min_size=1,
            max_size=8,
        )
    )
    rows = [
        (tag, numbers, " ".join(text.split()))
        for tag, numbers, text in rows
        if tag.strip() and not (tag[0] == " " and tag[1] == " ")
    ]
    assume(rows)
    # A digit may follow a full column only where a TAB stands between.
    if layout is Layout.OLD:
        rows = [(t, [*n[:-1], n[-1] % 10_000_000], d) for t, n, d in rows]
    lines = [
        FORMATS[layout].format(tag, *n, ("" if layout is Layout.OLD or not d else "\t") + d)
        for tag, n, d in rows
    ]
    return layout, rows, HEADERS[layout] + "\n".join(lines) + "\n"


def flat(row):
    if row.nonpaged_frees is None:
        return [row.nonpaged_allocs, row.nonpaged_used, row.paged_allocs, row.paged_used]
    return [
        row.nonpaged_allocs, row.nonpaged_frees, row.nonpaged_diff, row.nonpaged_used,
        row.paged_allocs, row.paged_frees, row.paged_diff, row.paged_used,
    ]  # fmt: skip


@given(tables())
def test_round_trip(case):
    layout, rows, text = case
    (table,) = parse_poolused(text).tables
    assert table.layout is layout
    assert [row.tag for row in table.rows] == [tag for tag, _, _ in rows]
    assert [flat(row) for row in table.rows] == [numbers for _, numbers, _ in rows]
    assert [row.description or "" for row in table.rows] == [text for _, _, text in rows]
    assert table.unparsed == ()


@given(tables(), st.integers(0, 2000))
def test_a_cut_anywhere_leaves_a_prefix(case, at):
    _, rows, text = case
    cut = text[: min(at, len(text))]
    tables_ = parse_poolused(cut).tables
    read = [row for table in tables_ for row in table.rows]
    assert [row.tag for row in read] == [tag for tag, _, _ in rows][: len(read)]
    assert [flat(row) for row in read] == [numbers for _, numbers, _ in rows][: len(read)]


@given(st.text(max_size=400))
def test_any_text(text):
    lines = split_lines(text)
    lists = parse_poolused(text)
    numbers = [note.line for note in lists.unparsed]
    assert all(1 <= number <= len(lines) for number in numbers)


@settings(max_examples=60)
@given(tables(), st.lists(st.tuples(st.integers(0, 2000), st.characters()), max_size=12))
def test_damage_anywhere(case, damage):
    _, _, text = case
    signs = list("0: kd> !poolused 1\n Sorting by Tag\n\n" + text)
    for at, sign in damage:
        signs[at % len(signs)] = sign
    lines = split_lines("".join(signs))
    for index in range(len(lines)):
        if starts_poolused(lines, index):
            table, end = take_poolused(lines, index)
            assert index < end <= len(lines)
            assert all(len(row.tag) == 4 for row in table.rows)


KNOWN = (
    *"".join(HEADERS.values()).splitlines(),
    " Abcd 1 2 3 4 x",
    " Abcd         1            2          3            4\tUNKNOWN",
    " Ab",
    "...",
    "",
    "0: kd> !poolused",
    "TOTAL 1 2 3 4",
    "unable to get PoolTrackTable",
    "Tag Count Size Bytes",
    "words , Binary:",
)


@given(st.lists(st.sampled_from(KNOWN), max_size=30))
def test_any_order_of_known_lines(rows):
    lines = split_lines("\n".join(rows))
    index = 0
    while index < len(lines):
        if starts_poolused(lines, index):
            _, end = take_poolused(lines, index)
            assert index < end <= len(lines)
            index = end
        else:
            index += 1
