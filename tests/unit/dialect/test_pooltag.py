"""The grammar of tag lists beyond the corpus."""

import time

import pytest

from kdleak.dialect.pooltag import PoolTagEntry, parse_pooltag, starts_pooltag, take_pooltag
from kdleak.dialect.source import split_lines


@pytest.mark.parametrize(
    ("line", "entry"),
    [
        ("Abcd - x.sys - text", ("Abcd", "x.sys", "text")),
        ("Ab - x.sys - text", ("Ab  ", "x.sys", "text")),
        ("A   - x.sys - text", ("A   ", "x.sys", "text")),
        (" Abc - x.sys - text", (" Abc", "x.sys", "text")),
        ("Abcd- x.sys - text", ("Abcd", "x.sys", "text")),
        ("Abcd -x.sys - text", ("Abcd", "x.sys", "text")),
        ("Abcd\t-\tx.sys\t-\ttext", ("Abcd", "x.sys", "text")),
        ("Ab\t- x.sys - text", ("Ab  ", "x.sys", "text")),
        ("abc- - x.sys - text", ("abc-", "x.sys", "text")),
        ("Abcd - my-x.sys - text - more", ("Abcd", "my-x.sys", "text - more")),
        ("Abcd - x.sys- text", ("Abcd", "x.sys", "text")),
        ("Abcd - x.sys", ("Abcd", "x.sys", None)),
        ("Abcd - x.sys y text", ("Abcd", None, None)),
        ("Abcd - - text", ("Abcd", None, "text")),
        ("Abcd -", ("Abcd", None, None)),
        ("Ab*  - x.sys - text", ("Ab* ", "x.sys", "text")),
        ("Remd - x.sys - text", ("Remd", "x.sys", "text")),
        ("remd - x.sys - text", ("remd", "x.sys", "text")),
        ("Abcd - x.sys - text\x1a", ("Abcd", "x.sys", "text")),
    ],
)
def test_entries(line, entry):
    tags = parse_pooltag(line + "\n")
    assert [(e.tag, e.binary, e.description) for e in tags.entries] == [entry]
    assert tags.ignored_lines == 0


@pytest.mark.parametrize(
    "line",
    [
        "well-known tags",
        "RAPID row tags",
        "       <unknown>",
        "Abcde - x.sys - text",
        "    - x - y",
    ],
)
def test_lines_that_are_no_entries(line):
    tags = parse_pooltag(line)
    assert tags.entries == ()
    assert tags.ignored_lines == 1
    assert tags.unparsed[0].text == line


@pytest.mark.parametrize(
    "line",
    ["// x", "//", "rem", "rem x", "  rem x", "REM - a - b", "\N{ZERO WIDTH NO-BREAK SPACE}rem x"],
)
def test_comments(line):
    assert parse_pooltag(line).comment_lines == 1


def test_the_end_of_file_byte_is_no_line():
    tags = parse_pooltag("\r\n\x1a")
    assert (tags.blank_lines, tags.ignored_lines) == (1, 0)


@pytest.mark.parametrize(
    ("pattern", "tag", "wanted"),
    [
        ("Ab??", "Abcd", True),
        ("A?c?", "Abcd", True),
        ("Ab* ", "Ab  ", True),
        ("*   ", "what", True),
        ("Ab??", "ABcd", False),
        ("Zq ?", "Zq 7", True),
        ("Zq ?", "Zqa7", False),
        ("Irz+", "Irzz", False),
        ("Irz+", "Irz+", True),
    ],
)
def test_wildcards(pattern, tag, wanted):
    assert PoolTagEntry(pattern).matches(tag) is wanted


def test_the_wildcard_with_most_fixed_characters_wins():
    tags = parse_pooltag("A*   - a.sys - wide\nAbc? - b.sys - narrow\nA??? - c.sys - other\n")
    assert [entry.description for entry in tags.find("Abcd")] == ["narrow"]
    assert [entry.description for entry in tags.find("Axxx")] == ["wide", "other"]
    assert tags.find("Zxxx") == ()


def test_a_piece_inside_a_log():
    lines = split_lines(
        "0: kd> g\nAbcd - x.sys - a\n\n// b\nAbce - x.sys - c\nAbcf - x.sys - d\nprose\n"
    )
    assert not starts_pooltag(lines, 0)
    assert starts_pooltag(lines, 1)
    tags, index = take_pooltag(lines, 1)
    assert len(tags.entries) == 3
    assert lines[index].text == "prose"


@pytest.mark.parametrize("line", ["Ab" + " " * 100_000 + "x", "- " * 50_000, "-" * 100_000])
def test_long_lines_cost_no_more_than_their_length(line):
    begin = time.perf_counter()
    parse_pooltag(line + "\n" + "Abcd - " + line)
    assert time.perf_counter() - begin < 1
