"""``!poolfind``: oddities beyond the samples."""

from __future__ import annotations

import pytest

from kdleak.dialect.poolfind import SearchedArea, parse_poolfind, starts_poolfind, take_poolfind
from kdleak.dialect.source import split_lines
from kdleak.tags import PoolTag

RANGE = "(8644b000 : 8689a000)"
TABLE = "Scanning large pool allocation table for"


@pytest.mark.parametrize(
    ("header", "area", "area_text", "tag"),
    [
        (f"Searching NonPaged pool {RANGE} for Tag: Rk 3", "nonpaged", "NonPaged", "Rk 3"),
        (f"Searching Paged pool {RANGE} for Tag: Rk", "paged", "Paged", "Rk  "),
        (f"Searching special pool {RANGE} for Tag: Rk 3 ", None, "special", "Rk 3"),
        (f"Searching paged pool {RANGE} for tag 0x33206b52 (Rk 3)", "paged", "paged", "Rk 3"),
        (f"{TABLE} Tag: (a:) {RANGE}", "large", "large", "(a:)"),
        (f"{TABLE} Tag 'Irp?' {RANGE}", "large", "large", "Irp?"),
    ],
)
def test_headers(header, area, area_text, tag):
    found = parse_poolfind(header)
    (search,) = found.searches
    assert found.unparsed == ()
    assert (search.start, search.end) == (0x8644B000, 0x8689A000)
    assert (search.area, search.area_text) == (area and SearchedArea(area), area_text)
    assert search.tag == tag


def test_tag_values():
    text = "Searching paged pool (8644b000 : 8689a000) for tag 0x33206b52 (Rk 3)"
    (search,) = parse_poolfind(text).searches
    assert (search.tag_value, search.pool_tag) == (0x33206B52, PoolTag.parse("Rk 3"))
    (search,) = parse_poolfind(text.replace("0x33206b52 (Rk 3)", "0x2020202a (*   )")).searches
    assert (search.tag, search.pool_tag) == ("*   ", None)
    (search,) = parse_poolfind(text.replace("0x33206b52 (Rk 3)", "0x33016b52 (Rk.3)")).searches
    assert search.pool_tag == PoolTag(0x33016B52)


def test_rows_without_a_header():
    text = "ffffc107ef03e000 : tag srlb, size    0x1b40, Paged session pool\n"
    (search,) = parse_poolfind(text).searches
    assert (search.command, search.tag, search.area, search.start) == (None, None, None, None)
    (block,) = search.blocks
    assert (block.address, block.size, block.pool) == (0xFFFFC107EF03E000, 0x1B40, "paged session")


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("ffffc107ef03e000 : tag srlb, size    1b40, Nonpaged pool", "a row of !poolfind, cut"),
        ("ffffc107ef03e000 : tag srlb, size", "a row of !poolfind, cut"),
        ("ffffc107ef03e000 : tag srlbs, size    0x1b40, Nonpaged pool", "a row of !poolfind, cut"),
        ("867bbc00 size:   l8 previous size:   38  (Free)      KhHi", "looks like the row"),
    ],
)
def test_rows_that_cannot_be_read(row, why):
    found = parse_poolfind(
        "Scanning large pool allocation table for Tag: srlb (8686b000 : 86883000)\n" + row
    )
    assert [search.blocks for search in found.searches] == [()]
    assert [(entry.line, entry.why[: len(why)]) for entry in found.unparsed] == [(2, why)]


def test_failure_is_a_message():
    text = (
        "kd> !poolfind Abcd\n"
        "unable to get large pool allocation table - either wrong symbols or pool tagging is off\n"
        "kd> "
    )
    found = parse_poolfind(text)
    assert found.searches == ()
    assert found.messages[0].startswith("unable to get large pool")
    assert found.unparsed == ()


def test_prose_and_other_output_end_it():
    text = (
        'kd> !poolfind -tag "AB C" -nonpaged\n'
        "Scanning large pool allocation table for tag 0x43204241 (AB C) (8686b000 : 86883000)\n"
        "\n"
        "86886140 : tag AB C, size     0x130, Nonpaged pool\n"
        "ChildEBP RetAddr\n"
        "9a1447bc 9a12be1a nt!KiClipBracket+0x5\n"
    )
    lines = split_lines(text)
    assert starts_poolfind(lines, 0)
    found, end = take_poolfind(lines, 0)
    assert end == 4
    (search,) = found.searches
    assert search.command == '!poolfind -tag "AB C" -nonpaged'
    assert [block.tag for block in search.blocks] == ["AB C"]
    assert not starts_poolfind(lines, 4)


def test_interruption_right_below_the_command():
    found = parse_poolfind("kd> !poolfind Abcd\n...terminating - searched pool to 8a000000\n")
    assert [search.interrupted_at for search in found.searches] == [0x8A000000]
