"""Every tag list of the corpus, field by field."""

import pytest
from corpus_sample import CORPUS, differences, load

from kdleak.dialect.pooltag import parse_pooltag
from kdleak.dialect.source import decode

NUMBERS = range(87, 90)


@pytest.mark.parametrize("number", NUMBERS)
def test_sample(number):
    _, expected = load(number)
    (path,) = CORPUS.glob(f"{number:02d}-*.txt")
    tags = parse_pooltag(decode(path.read_bytes()))
    for field in ("entries", "ignored_lines", "comment_lines", "blank_lines"):
        assert differences(getattr(tags, field), expected[field], field) == []


def test_entries_that_are_left_open():
    (path,) = CORPUS.glob("88-*.txt")
    entries = {entry.tag: entry for entry in parse_pooltag(decode(path.read_bytes())).entries}
    assert (entries["PtwO"].binary, entries["PtwO"].description) == (None, None)
    assert entries["BTmp"].binary is None


@pytest.mark.parametrize(
    ("tag", "descriptions"),
    [
        ("Jrps", ["Row packets under test", "Row packets"]),
        ("Jrpx", ["Row packets"]),
        ("sqMD", ["Square list"]),
        ("sqXX", ["Square rows"]),
        ("KlZ9", ["Kiln family"]),
        ("KlA", ["Kiln, part A"]),
        ("TPX", ["Tap of the first kind", "Tap of the second kind"]),
        ("JRPS", []),
    ],
)
def test_lookups_named_in_the_notes(tag, descriptions):
    (path,) = CORPUS.glob("89-*.txt")
    tags = parse_pooltag(decode(path.read_bytes()))
    assert [entry.description for entry in tags.find(tag)] == descriptions
