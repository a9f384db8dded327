"""Oddities of PoolMon's screens and snapshot files that the corpus does not hold."""

import time

import pytest

from kdleak.dialect.poolmon import parse_poolmon, starts_poolmon, take_poolmon
from kdleak.dialect.poolmon_row import driver_of
from kdleak.dialect.source import split_lines
from kdleak.model import Pool, PoolCounters
from kdleak.tags import PoolTag

TITLES = " Tag  Type     Allocs            Frees            Diff   Bytes       Per Alloc\n"
MEMORY = """\
 Memory:  486307K Avail:  215274K  PageFlts:   403   InRam Krnl: 8615K P:46995K
 Commit: 629937K Limit:8079038K Peak: 713171K            Pool N:28168K P:41823K
"""
SCOPE = " System pool information\n"


def row(tag, kind="Nonp", allocs=9, frees=4, size=500, tail=""):
    diff = allocs - frees
    return (
        f" {tag:4} {kind:5}{allocs:10d} ({1:4d}){frees:10d} ({2:4d}){diff:9d}{size:8d}"
        f" ({-3:6d}){size // max(diff, 1):7d}{tail}\n"
    )


def snapshot_row(tag, kind="Nonp", allocs=9, frees=4, size=500, tail=""):
    diff = allocs - frees
    per_alloc = size // max(diff, 1)
    return f" {tag:4} {kind:5}{allocs:11d}{frees:10d}{diff:10d}{size:9d}{per_alloc:11d}{tail}\n"


def only(text):
    (screen,) = parse_poolmon(text).screens
    return screen


def test_two_screens_of_one_session_one_shifted_by_a_column():
    first = MEMORY + SCOPE + TITLES + "\n" + row("Leak") + row("Rk 3", "Paged")
    second = (
        MEMORY + SCOPE + TITLES + "\n" + " " + row("Leak", allocs=12) + " " + row("Rk 3", "Paged")
    )
    log = parse_poolmon(first + "\n" + second)
    assert [len(screen.rows) for screen in log.screens] == [2, 2]
    assert [screen.rows[0].allocs for screen in log.screens] == [9, 12]
    assert [screen.rows[1].tag for screen in log.screens] == ["Rk 3", "Rk 3"]
    assert [screen.line for screen in log.screens] == [1, 9]
    assert log.unparsed == ()


@pytest.mark.parametrize("tag", ["Rk 3", "ab  ", "Nonp", "1234", "(0) ", " abc", "[x] ", "Page"])
@pytest.mark.parametrize("render", [row, snapshot_row])
def test_tags(tag, render):
    read = only(TITLES + render(tag, "Paged")).rows[0]
    assert (read.tag, read.type, read.allocs, read.bytes) == (tag, Pool.PAGED, 9, 500)


def test_deltas_and_their_absence():
    (screen_row,) = only(TITLES + row("Leak")).rows
    assert (screen_row.allocs_delta, screen_row.frees_delta, screen_row.bytes_delta) == (1, 2, -3)
    (file_row,) = only(TITLES + snapshot_row("Leak")).rows
    assert (file_row.allocs_delta, file_row.frees_delta, file_row.bytes_delta) == (None, None, None)
    assert file_row.diff == 5


@pytest.mark.parametrize(
    ("text", "driver"),
    [
        ("[x.sys  -  text]", "x.sys"),
        ("[x.sys - text that is cu", "x.sys"),
        ("[x.sys -", "x.sys"),
        ("[x.sys]", "x.sys"),
        ("[nt!mm - text - and more]", "nt!mm"),
        ("[<unknown> - text]", "<unknown>"),
        ("[Vane - lantern flare]", None),
        ("[Vane lantern flare]", None),
        ("[x.sys][y.sys]", None),
        ("[x.s", None),
        ("Unknown Driver", None),
        (None, None),
    ],
)
def test_driver(text, driver):
    assert driver_of(text) == driver


def test_driver_column_of_a_snapshot_stands_behind_blanks():
    titles = TITLES.rstrip("\n") + "  Mapped_Driver\n"
    (read,) = only(titles + snapshot_row("Leak", tail="        [x.sys - text]")).rows
    assert (read.driver_text, read.driver) == ("[x.sys - text]", "x.sys")


def test_signs_behind_the_last_number_are_reported():
    screen = only(TITLES + snapshot_row("Leak", tail="',"))
    assert screen.rows[0].per_alloc == 100
    assert screen.rows[0].driver_text is None
    assert [note.line for note in screen.unparsed] == [2]


@pytest.mark.parametrize(
    "titles",
    [
        "## " + TITLES.strip() + "\n",
        TITLES + " ----------------------------------------\n",
        "Tag Type Allocs Frees Diff Bytes Per Alloc\n",
        TITLES + "\n\n",
    ],
)
def test_titles(titles):
    assert [read.tag for read in only(titles + row("Leak") + row("Ab")).rows] == ["Leak", "Ab  "]


def test_messages_and_command_above():
    text = (
        "C:\\tools> poolmon.exe -p -b\n"
        "PoolMon: No localtag.txt in current directory\n"
        "PoolMon: Creating localtag.txt in current directory......\n"
        + MEMORY
        + TITLES
        + row("Leak")
    )
    screen = only(text)
    assert screen.command == "poolmon.exe -p -b"
    assert len(screen.messages) == 2
    assert screen.header.memory_kb == 486307
    assert screen.header.scope is None
    assert len(screen.rows) == 1


def test_header_fields_that_are_missing_or_unknown():
    text = " Memory:  1K Avail:  2K  PageFlts:  3   Zebra: 7K\n" + TITLES
    screen = only(text)
    assert (screen.header.memory_kb, screen.header.page_faults, screen.header.peak_kb) == (
        1,
        3,
        None,
    )
    assert "unknown field" in screen.unparsed[0].why


def test_a_row_that_is_cut_is_reported():
    screen = only(TITLES + row("Leak") + row("Cuts")[:30] + "\n")
    assert [read.tag for read in screen.rows] == ["Leak"]
    assert [note.line for note in screen.unparsed] == [3]


def test_a_row_with_letters_in_its_numbers_is_reported():
    screen = only(TITLES + row("Leak").replace("500", "5O0") + row("Good"))
    assert [read.tag for read in screen.rows] == ["Good"]
    assert len(screen.unparsed) == 1


def test_a_screen_ends_at_prose_and_prompts():
    lines = split_lines(MEMORY + TITLES + row("Leak") + "\nIt grows and grows.\n0: kd> k\n")
    assert starts_poolmon(lines, 0)
    screen, index = take_poolmon(lines, 0)
    assert len(screen.rows) == 1
    assert index == 4


def test_prose_that_only_names_the_program_is_no_screen():
    log = parse_poolmon("poolmon -b\nThen I looked at the list of tags.\n")
    assert log.screens == ()
    assert len(log.unparsed) == 2


def test_snapshot_rows_join_the_pools_of_a_tag():
    text = TITLES + row("Leak") + row("Leak", "Paged", 7, 2, 70) + row("q...", "Nonp") + row("Abcd")
    screen = only(text)
    usages = {usage.tag: usage for usage in screen.snapshot_rows()}
    assert set(usages) == {PoolTag.parse("Leak"), PoolTag.parse("Abcd")}
    leak = usages[PoolTag.parse("Leak")]
    assert (leak.nonpaged, leak.paged) == (PoolCounters(9, 4, 500), PoolCounters(7, 2, 70))
    assert [read.tag for read in screen.ambiguous_rows] == ["q..."]


@pytest.mark.parametrize(
    "line", [" " * 100_000 + "x", "Memory:" * 20_000, " Nonp" * 20_000, "(" * 90_000]
)
def test_long_lines_cost_no_more_than_their_length(line):
    begin = time.perf_counter()
    parse_poolmon(line + "\n" + MEMORY + line + "\n" + TITLES + line + "\n" + row("Leak"))
    assert time.perf_counter() - begin < 1
