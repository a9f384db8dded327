"""Listings of ``dps`` and its relatives."""

from __future__ import annotations

import pytest

from kdleak.dialect.pointer_listing import parse_pointer_listings, starts_pointer_listing
from kdleak.dialect.source import split_lines
from kdleak.dialect.stack import parse_stacks

ROWS = (
    "f7d7e8f0  804bbd98 nt!ExAllocatePoolWithTag+0x135\n"
    "f7d7e8f4  656c6946\n"
    "f7d7e8f8  ????????\n"
    "f7d7e8fc  f8123456 drv+0x3456\n"
)


@pytest.mark.parametrize("command", ["dps esp L4", "dds esp", "dqs @esp", "kd", "DPS esp"])
def test_rows_below_their_command(command):
    (listing,) = parse_pointer_listings(f"0: kd> {command}\n{ROWS}0: kd> g\n")
    assert listing.command == command
    assert [(row.address, row.value) for row in listing.rows] == [
        (0xF7D7E8F0, 0x804BBD98),
        (0xF7D7E8F4, 0x656C6946),
        (0xF7D7E8F8, None),
        (0xF7D7E8FC, 0xF8123456),
    ]
    assert [(row.module, row.symbol, row.offset) for row in listing.rows[::3]] == [
        ("nt", "ExAllocatePoolWithTag", 0x135),
        ("drv", None, 0x3456),
    ]
    assert listing.rows[1].module is None


def test_rows_one_pointer_apart_need_no_command():
    found = parse_stacks(ROWS)
    assert found.stacks == ()
    assert [len(listing.rows) for listing in found.listings] == [4]


def test_messages_and_symbols_on_the_next_line():
    text = (
        "kd> dps rsp\n"
        "ffffc886`c86cdb28  fffff823`7e181f56*** ERROR: Module load completed but symbols could "
        "not be loaded for old.sys\n old+0xb671 <-- look\n\n"
        "*** WARNING: Unable to verify timestamp for x.sys\n...\n"
        "ffffc886`c86cdb40  fffff823`7e181f60 x!y [d:\\a.c @ 4]\n"
    )
    (listing,) = parse_pointer_listings(text)
    first, last = listing.rows
    assert (first.module, first.offset) == ("old", 0xB671)
    assert (last.symbol, last.source, last.line) == ("y", "d:\\a.c @ 4", 7)
    assert len(listing.warnings) == 2


def test_a_remark_is_reported():
    (listing,) = parse_pointer_listings("kd> dps esp\nf7d7e8f0  804bbd98 nt!A+0x1 <-- here\n")
    assert [entry.line for entry in listing.unparsed] == [2]


@pytest.mark.parametrize(
    "text",
    [
        "8014c000  00000000 00000001 00000002 00000003",
        "f7d7e8f0  804bbd98 12345678",
        "f7d7e8f0 804bbd98 nt!A+0x1",
        "f7d7e8f0  804bbd98" + " x" * 5000,
    ],
)
def test_other_dumps_are_none(text):
    assert not starts_pointer_listing(split_lines(f"kd> dps esp\n{text}\n"), 1)


def test_rows_further_apart_are_none():
    lines = split_lines("f7d7e8f0  804bbd98 nt!A+0x1\nf7d7e9f0  804bbd98 nt!A+0x1\n")
    assert not starts_pointer_listing(lines, 0)
