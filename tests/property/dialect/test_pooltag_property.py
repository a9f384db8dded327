"""Tag lists: what is written is read back, and no text makes the reader stumble."""

import string

from hypothesis import given
from hypothesis import strategies as st

from kdleak.dialect.pooltag import parse_pooltag, starts_pooltag, take_pooltag
from kdleak.dialect.source import split_lines

TAGS = st.text(
    st.sampled_from(string.ascii_uppercase + string.digits + "?*$+!: "), min_size=4, max_size=4
).filter(lambda tag: not tag.startswith(" "))
DRIVERS = st.sampled_from(("<unknown>", "nt!mm", "x.sys", "a.sys or b.sys", "a-b.sys/c.dll"))
WORDS = st.text(st.sampled_from(string.ascii_letters + " -()\"'."), max_size=30).map(
    lambda text: " ".join(text.split())
)
ENTRIES = st.lists(st.tuples(TAGS, DRIVERS, WORDS), max_size=12)
ENDS = st.sampled_from(("\n", "\r\n"))


@given(ENTRIES, ENDS, st.sampled_from(("", "\x1a")), st.sampled_from((" ", "", "  ")))
def test_round_trip(rows, end, last, extra):
    # A tag that fills its four characters needs a blank, a padded one may do without.
    lines = []
    for tag, driver, words in rows:
        gap = extra or ("" if tag.endswith(" ") else " ")
        lines.append(f"{tag}{gap}- {driver:12} - {words}{end}")
    tags = parse_pooltag("rem list" + end + end + "".join(lines) + last)
    assert [(e.tag, e.binary, e.description or "") for e in tags.entries] == rows
    assert (tags.comment_lines, tags.blank_lines, tags.ignored_lines) == (1, 1, 0)


@given(
    ENTRIES,
    st.text(st.sampled_from(string.ascii_uppercase + string.digits), min_size=4, max_size=4),
)
def test_an_exact_line_wins(rows, tag):
    text = "".join(f"{t} - {driver} - {words}\n" for t, driver, words in rows)
    tags = parse_pooltag(text + f"{tag} - x.sys - mine\n????  - y.sys - all\n")
    found = tags.find(tag)
    assert all(entry.tag == tag for entry in found)
    assert found[-1].description == "mine"


@given(st.text(max_size=400))
def test_any_text(text):
    lines = split_lines(text)
    tags = parse_pooltag(text)
    counted = len(tags.entries) + tags.ignored_lines + tags.comment_lines + tags.blank_lines
    assert counted <= len(lines)
    assert all(len(entry.tag) == 4 for entry in tags.entries)
    for index in range(len(lines)):
        if starts_pooltag(lines, index):
            _, end = take_pooltag(lines, index)
            assert index < end <= len(lines)
