"""PoolMon: what is printed is read back, and no text makes the reader stumble."""

import string

from hypothesis import given, settings
from hypothesis import strategies as st

from kdleak.dialect.poolmon import parse_poolmon, starts_poolmon, take_poolmon
from kdleak.dialect.source import split_lines
from kdleak.model import Pool

HEAD = (
    " Memory:  486307K Avail:  215274K  PageFlts:   403   InRam Krnl: 8615K P:46995K\n"
    " Commit: 629937K Limit:8079038K Peak: 713171K            Pool N:28168K P:41823K\n"
    " System pool information\n"
    " Tag  Type     Allocs            Frees            Diff   Bytes       Per Alloc\n\n"
)
TAGS = st.text(
    st.sampled_from(string.ascii_letters + string.digits + " .-_?*$"), min_size=4, max_size=4
).filter(lambda tag: tag.strip())
FIGURE = st.integers(0, 10**10)
DELTA = st.integers(-(10**6), 10**6)


@st.composite
def screens(draw):
    deltas = draw(st.booleans())
    rows = draw(
        st.lists(
            st.tuples(TAGS, st.sampled_from(("Nonp", "Paged")), *[FIGURE] * 4, *[DELTA] * 3),
            max_size=8,
        )
    )
    lines = []
    for tag, kind, allocs, frees, size, per, a, f, b in rows:
        if deltas:
            lines.append(
                f" {tag} {kind:5}{allocs:11d} ({a:4d}){frees:11d} ({f:4d})"
                f"{allocs - frees:9d} {size:8d} ({b:6d}){per:7d}"
            )
        else:
            lines.append(
                f" {tag} {kind:5} {allocs:11d} {frees:11d} {allocs - frees:9d} {size:8d} {per:7d}"
            )
    return rows, deltas, HEAD + "\n".join(lines) + "\n"


@given(screens())
def test_round_trip(case):
    rows, deltas, text = case
    (screen,) = parse_poolmon(text).screens
    assert screen.unparsed == ()
    assert len(screen.rows) == len(rows)
    for read, (tag, kind, allocs, frees, size, per, a, f, b) in zip(screen.rows, rows):
        assert (read.tag, read.type) == (tag, Pool.PAGED if kind == "Paged" else Pool.NONPAGED)
        assert (read.allocs, read.frees, read.diff) == (allocs, frees, allocs - frees)
        assert (read.bytes, read.per_alloc) == (size, per)
        wanted = (a, f, b) if deltas else (None, None, None)
        assert (read.allocs_delta, read.frees_delta, read.bytes_delta) == wanted


@given(screens(), st.integers(0, 1500))
def test_a_cut_anywhere_leaves_a_prefix(case, at):
    rows, _, text = case
    read = [row for screen in parse_poolmon(text[:at]).screens for row in screen.rows]
    # The last number may be cut: a screen has no sign for its end.
    assert [(row.tag, row.allocs, row.frees, row.bytes) for row in read] == [
        (row[0], row[2], row[3], row[4]) for row in rows
    ][: len(read)]


@given(st.text(max_size=400))
def test_any_text(text):
    count = len(split_lines(text))
    assert all(1 <= note.line <= count for note in parse_poolmon(text).unparsed)


@settings(max_examples=60)
@given(screens(), st.lists(st.tuples(st.integers(0, 2000), st.characters()), max_size=12))
def test_damage_anywhere(case, damage):
    signs = list(case[2])
    for at, sign in damage:
        signs[at % len(signs)] = sign
    lines = split_lines("".join(signs))
    for index in range(len(lines)):
        if starts_poolmon(lines, index):
            screen, end = take_poolmon(lines, index)
            assert index < end <= len(lines)
            assert all(len(row.tag) == 4 for row in screen.rows)
