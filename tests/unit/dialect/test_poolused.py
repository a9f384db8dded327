"""Oddities of !poolused lists that the corpus does not hold."""

import time

import pytest

from kdleak.dialect.poolused import (
    Layout,
    Sort,
    parse_poolused,
    starts_poolused,
    take_poolused,
)
from kdleak.dialect.source import split_lines
from kdleak.dialect.tag_text import certain_tag
from kdleak.model import PoolCounters
from kdleak.tags import PoolTag

NEW = """\
               NonPaged                  Paged
 Tag     Allocs         Used     Allocs         Used

"""
OLD = """\
  Pool Used:
            NonPaged            Paged
 Tag    Allocs     Used    Allocs     Used
"""
VERBOSE = """\
                            NonPaged                                         Paged
 Tag       Allocs       Frees      Diff         Used       Allocs       Frees      Diff         Used

"""


def new_row(tag, a, b, c, d, description=""):
    tail = f"\t{description}" if description else ""
    return f" {tag:4}{a:10d}{b:13d}{c:11d}{d:13d}{tail}\n"


def old_row(tag, a, b, c, d, description=""):
    return f" {tag:4} {a:8d} {b:8d}  {c:8d} {d:8d}{description}\n"


def only(text):
    (table,) = parse_poolused(text).tables
    return table


def numbers(row):
    return row.nonpaged_allocs, row.nonpaged_used, row.paged_allocs, row.paged_used


def test_whole_output_of_a_live_engine():
    text = (
        "................\n Sorting by NonPaged Pool Consumed\n\n"
        + NEW
        + new_row("Leak", 3000, 12288000, 0, 0, "UNKNOWN pooltag 'Leak', please update pooltag.txt")
        + new_row("Wq  ", 1, 48, 2, 96, "Work items , Binary: nt!ex")
        + "\nTOTAL      3001     12288048          2           96\n"
    )
    lists = parse_poolused(text)
    table = only(text)
    assert lists.unparsed == ()
    assert (table.layout, table.sort, table.command) == (Layout.NEW, Sort.NONPAGED, None)
    assert table.complete
    assert table.total.nonpaged_used == 12288048
    assert [row.tag for row in table.rows] == ["Leak", "Wq  "]
    assert (table.rows[1].description, table.rows[1].binary) == ("Work items", "nt!ex")
    assert [row.line for row in table.rows] == [7, 8]
    assert not table.unparsed


def test_snapshot_rows_of_a_plain_list_are_outstanding_blocks():
    table = only(NEW + new_row("Zebr", 7, 700, 0, 0) + new_row("Abcd", 1, 10, 2, 20))
    rows = table.snapshot_rows()
    assert [row.tag for row in rows] == sorted(PoolTag.parse(tag) for tag in ("Zebr", "Abcd"))
    usage = next(row for row in rows if row.tag == PoolTag.parse("Abcd"))
    assert usage.nonpaged == PoolCounters(allocs=1, frees=0, bytes=10)
    assert usage.paged == PoolCounters(allocs=2, frees=0, bytes=20)


def test_snapshot_rows_of_a_verbose_list_have_frees():
    row = f" Leak{9:12d}{4:12d}{5:10d}{500:13d}{3:13d}{1:12d}{2:10d}{200:13d}\tx\n"
    (usage,) = only(VERBOSE + row).snapshot_rows()
    assert usage.nonpaged == PoolCounters(allocs=9, frees=4, bytes=500)
    assert usage.paged.outstanding == 2


def test_ambiguous_tags_are_kept_as_displayed_and_left_out_of_snapshots():
    table = only(NEW + new_row("qz..", 7, 70, 0, 0) + new_row("Good", 1, 2, 0, 0))
    assert [row.tag for row in table.ambiguous_rows] == ["qz.."]
    assert [usage.tag.text for usage in table.snapshot_rows()] == ["Good"]


def test_figures_of_a_tag_that_occurs_twice_are_added():
    table = only(NEW + new_row("Same", 7, 70, 0, 0) + new_row("Same", 1, 2, 3, 4))
    (usage,) = table.snapshot_rows()
    assert usage.nonpaged == PoolCounters(8, 0, 72)
    assert usage.paged == PoolCounters(3, 0, 4)


@pytest.mark.parametrize("tag", ["0x1f", "Leak", "a b ", " abc", "-T'\""])
def test_certain_tags_are_their_four_bytes(tag):
    assert certain_tag(tag) == PoolTag.from_bytes(tag.encode())


@pytest.mark.parametrize(
    "tag", ["a.bc", "\xe4bcd", "    ", "", "abcde", "ab\x01d", "ab\N{SNOWMAN}d"]
)
def test_uncertain_tags_are_none(tag):
    assert certain_tag(tag) is None


def test_a_short_tag_is_padded():
    assert certain_tag("Wq") == PoolTag.parse("Wq")


@pytest.mark.parametrize("render", [(NEW, new_row), (OLD, old_row)])
@pytest.mark.parametrize("tag", ["Rk 3", "BKR ", "1602", "a   ", " abc", "-T-K", "TOTA", "...."])
def test_tags_with_blanks_digits_and_signs(render, tag):
    header, row = render
    table = only(header + row("Abcd", 1, 2, 3, 4) + row(tag, 5, 6, 7, 8))
    assert table.rows[-1].tag == tag
    assert numbers(table.rows[-1]) == (5, 6, 7, 8)


@pytest.mark.parametrize("indent", [0, 1, 3, 4, 9])
def test_indented_blocks(indent):
    text = "".join(
        " " * indent + line + "\n"
        for line in (OLD + old_row("Abcd", 1, 2, 3, 4, "7 dwarfs")).splitlines()
    )
    (row,) = only(text).rows
    assert numbers(row) == (1, 2, 3, 4)
    assert row.description == "7 dwarfs"


def test_rows_whose_first_blank_was_trimmed():
    (row,) = only(NEW + new_row("Abcd", 1, 2, 3, 4, "x")[1:]).rows
    assert (row.tag, *numbers(row)) == ("Abcd", 1, 2, 3, 4)


def test_rows_that_are_indented_more_than_the_header():
    rows = only(NEW + " " + new_row("Abcd", 1, 2, 3, 4) + " " + new_row("ab", 1, 2, 3, 4)).rows
    assert [row.tag for row in rows] == ["Abcd", "ab  "]


def test_old_layout_without_its_pool_used_line():
    text = OLD.partition("\n")[2] + old_row("Abcd", 1, 2, 3, 4, "802.1x thing")
    table = only(text)
    assert table.layout is Layout.OLD
    assert table.rows[0].description == "802.1x thing"
    assert table.rows[0].paged_used == 4


def test_old_layout_number_wider_than_its_column():
    table = only(OLD + old_row("Abcd", 1, 2, 3, 104857600, "UNKNOWN pooltag 'Abcd', please update"))
    assert table.rows[0].paged_used == 104857600
    assert table.rows[0].unknown
    moved = only(OLD + old_row("Abcd", 123456789, 1234567890, 3, 4, "7 dwarfs"))
    assert numbers(moved.rows[0]) == (123456789, 1234567890, 3, 4)
    assert moved.rows[0].description == "7 dwarfs"


def test_old_layout_reports_what_cannot_be_told_apart():
    table = only(OLD + old_row("Abcd", 1, 2, 3, 12345678, "90 days") + old_row("Next", 1, 2, 3, 4))
    assert [row.tag for row in table.rows] == ["Next"]
    assert table.unreadable_rows == ("Abcd",)
    assert table.unparsed[0].line == 4


@pytest.mark.parametrize("separator", ["\t", " ", "   ", ""])
def test_new_layout_with_any_separator(separator):
    line = new_row("Abcd", 1, 2, 3, 4).rstrip("\n") + separator + "9 tails , Binary: x.sys\n"
    (row,) = only(NEW + line).rows
    assert row.paged_used == 4
    assert (row.description, row.binary) == ("9 tails", "x.sys")


def test_scanned_text_is_reported_not_guessed():
    text = (
        "Tag Allocs Used Allocs Used\n7O31 l4 560 0 0 Of rods\nAbcd 1 2 3 4 Of tins\n"
        "EFGH 1 2O 3 4 Of tins\n"
    )
    table = only(text)
    assert table.unreadable_rows == ("7O31", "EFGH")
    assert [row.tag for row in table.rows] == ["Abcd"]
    assert {note.why for note in table.unparsed} == {"letter inside a number"}


def test_descriptions_that_continue_on_the_next_line():
    text = (
        NEW
        + new_row("Abcd", 1, 2, 3, 4, "UNKNOWN pooltag 'Abcd',")
        + "please update pooltag.txt\n"
        + new_row("Efgh", 1, 2, 3, 4, "Long words about a")
        + "    thing , Binary: x.sys\n"
        + new_row("Ijkl", 1, 2, 3, 4, "Other ,")
        + "Binary: y.sys\n"
    )
    table = only(text)
    assert table.rows[0].unknown
    assert table.rows[1].description == "Long words about a thing"
    assert table.rows[1].binary == "x.sys"
    assert (table.rows[2].description, table.rows[2].binary) == ("Other", "y.sys")
    assert table.unparsed == ()


def test_remarks_and_prints_between_rows_do_not_end_the_list():
    text = (
        NEW
        + new_row("Abcd", 1, 2, 3, 4)
        + "\n// this one grows\n\n"
        + new_row("Efgh", 1, 2, 3, 4)
        + "mydrv: IRP 1 of 5 done\n"
        + new_row("Ijkl", 1, 2, 3, 4)
    )
    table = only(text)
    assert [row.tag for row in table.rows] == ["Abcd", "Efgh", "Ijkl"]
    assert [note.text for note in table.unparsed] == ["mydrv: IRP 1 of 5 done"]


def test_a_double_spaced_list():
    text = "\n\n".join(
        (NEW + new_row("Abcd", 1, 2, 3, 4) + new_row("Efgh", 5, 6, 7, 8)).splitlines()
    )
    assert [row.tag for row in only(text).rows] == ["Abcd", "Efgh"]


@pytest.mark.parametrize(
    ("line", "tag"),
    [
        (" Cut_        12", "Cut_"),
        (" Cut_        12           34          5", "Cut_"),
        (" Cut_        12           34          5              ", "Cut_"),
        (" Cut_        12           34          5         67", "Cut_"),
        (" Cu", "Cu  "),
    ],
)
def test_a_list_cut_inside_a_row(line, tag):
    table = only(NEW + new_row("Abcd", 1, 2, 3, 4) + line)
    assert table.partial_row == tag
    assert [row.tag for row in table.rows] == ["Abcd"]
    assert not table.complete
    assert table.unparsed


def test_a_list_ends_at_a_prompt_and_leaves_it():
    lines = split_lines(NEW + new_row("Abcd", 1, 2, 3, 4) + "0: kd> k\nChild-SP RetAddr\n")
    assert starts_poolused(lines, 0)
    table, index = take_poolused(lines, 0)
    assert len(table.rows) == 1
    assert lines[index].text == "0: kd> k"


def test_prose_below_a_list_is_not_taken():
    lines = split_lines(NEW + new_row("Abcd", 1, 2, 3, 4) + "\nAs we can see, 1 2 3 4 grows.\n")
    _, index = take_poolused(lines, 0)
    assert index == 4


@pytest.mark.parametrize(
    "message",
    [
        "unable to get PoolTrackTable - either pool tagging is off or bad symbols",
        "Unable to read PoolTrackTableSize - probably wrong symbols",
        "*** You must have correct symbols for nt",
        "The symbols are wrong.",
    ],
)
def test_errors_instead_of_rows(message):
    text = f"0: kd> !poolused 2\n{message}\n0: kd> k\n"
    table = only(text)
    assert table.errors == (message,)
    assert (table.layout, table.rows, table.rejected) == (None, (), "")
    assert table.command == "!poolused 2"


@pytest.mark.parametrize(
    "message",
    [
        "unable to get PoolTrackTable - either pool tagging is off or bad symbols",
        "Unable to read nt!Something",
        "NT symbols are incorrect, please fix symbols",
    ],
)
def test_errors_of_a_live_engine_come_without_the_command(message):
    lists = parse_poolused(message + "\n")
    assert [table.errors for table in lists.tables] == [(message,)]
    assert lists.rejected == ""


def test_an_error_above_a_list_belongs_to_it():
    message = "unable to read PoolTrackTableExpansion"
    table = only(message + "\n Sorting by Tag\n\n" + NEW + new_row("Abcd", 1, 2, 3, 4))
    assert table.errors == (message,)
    assert len(table.rows) == 1


def test_a_command_without_a_list():
    table = only("0: kd> !poolused 4\n0: kd> g\n")
    assert table.rejected == "no table follows"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Tag  Type     Allocs            Frees            Diff   Bytes  Per Alloc\n", "PoolMon"),
        ("Tag   Count   Size\nAbcd  12   34\n", "columns"),
        (
            " Tag     Allocs         Used     Allocs         Used\n"
            " Abcd      7a3d       fe2d33          0            0\n"
            " Efgh        1d        2d33f          0            0\n",
            "hexadecimal",
        ),
        ("PoolTag | Count | Bytes\nAbcd | 12 | 34\n", "columns"),
        ("Abcd  12  34  UNKNOWN pooltag 'Abcd', please update pooltag.txt\n", "no column titles"),
        (" Tag Type Allocs Used\n Abcd Nonp 12 44\n", "columns"),
        (
            " Tag     Allocs         Used     Allocs         Used\n"
            " Abcd       1.5       2.7          0            0\n",
            "fraction",
        ),
    ],
)
def test_what_no_debugger_prints_is_refused(text, reason):
    lists = parse_poolused(text)
    assert reason in lists.rejected
    assert all(table.rows == () for table in lists.tables)


def test_prose_about_tags_is_no_table():
    lists = parse_poolused("The Tag column shows which driver Allocs and Used belong to.\n")
    assert lists.tables == ()
    assert len(lists.unparsed) == 1


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("!poolused", None),
        ("!poolused 2 Wisp", "Wisp"),
        ("!poolused 0x3 Rk 3", "Rk 3"),
        ("!poolused /t20 2 Wq", "Wq"),
        ("!poolused /t 20 2 W*", "W*"),
        ("!poolused /t 20", None),
        ("!poolused Wisp", "Wisp"),
        ("!poolused 2 Wisp look here", "Wisp"),
        ("!poolused 4 2", "2"),
    ],
)
def test_filter(command, wanted):
    table = only(f"0: kd> {command}\n" + NEW + new_row("Abcd", 1, 2, 3, 4))
    assert table.filter == wanted


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("2:000>1: kd> !poolused 2", "!poolused 2"),
        ("0 kd !poolused 2", "!poolused 2"),
        ("0: Kd> !poolused 4 // all of it", "!poolused 4"),
        ("lkd> !kdexts.poolused 1", "!kdexts.poolused 1"),
        ("!poolused", "!poolused"),
        ("0: kd> !poolused 2                      [Local        8:38 AM]", "!poolused 2"),
        ("Then I used !poolused 2", None),
        ("0: kd> !poolusedx", None),
    ],
)
def test_command_lines(line, command):
    tables = parse_poolused(f"{line}\n" + NEW + new_row("Abcd", 1, 2, 3, 4)).tables
    assert tables[-1].command == command
    assert len(tables) == 1


def test_negative_difference_is_kept():
    row = f" Leak{4:12d}{9:12d}{-5:10d}{-80:13d}{0:13d}{0:12d}{0:10d}{0:13d}\n"
    (read,) = only(VERBOSE + row).rows
    assert (read.nonpaged_diff, read.nonpaged_used) == (-5, -80)


def test_wide_numbers_of_a_verbose_total():
    total = "TOTAL  123456789012 98765432109876 5 1234567890123456 1 1 0 0\n"
    table = only(
        VERBOSE + f" Leak{9:12d}{4:12d}{5:10d}{5:13d}{3:13d}{1:12d}{2:10d}{2:13d}\n" + total
    )
    assert table.total.nonpaged_frees == 98765432109876
    assert table.total.nonpaged_used == 1234567890123456


def test_unreadable_total_is_said():
    table = only(NEW + new_row("Abcd", 1, 2, 3, 4) + "TOTAL  1 2O 3 4\n")
    assert table.total is None
    assert "TOTAL" in table.unparsed[0].why


def test_five_thousand_rows_are_quick():
    text = NEW + "".join(new_row(f"{n:04x}", n, n * 64, n, n * 32, "text") for n in range(5000))
    begin = time.perf_counter()
    table = only(text)
    spent = time.perf_counter() - begin
    assert len(table.rows) == 5000
    assert spent < 0.5  # the aim is 0.05; this is what a busy machine may need


@pytest.mark.parametrize(
    "line",
    [" " * 100_000 + "x", "-" * 100_000, "Tag " * 25_000, "!poolused" * 10_000, "1 " * 50_000],
)
def test_long_lines_cost_no_more_than_their_length(line):
    begin = time.perf_counter()
    parse_poolused(
        "0: kd> !poolused\n" + line + "\n" + NEW + line + "\n" + new_row("A", 1, 2, 3, 4)
    )
    assert time.perf_counter() - begin < 1


@pytest.mark.parametrize(
    "line",
    [
        " Sorting by Tag",
        "  Pool Used:",
        "!poolused",
        "0: kd> !poolused",
        "Tag Count Bytes",
        "            NonPaged            Paged",
        " Tag     Allocs         Used     Allocs         Used",
        "unable to read it",
        "words",
    ],
)
def test_many_lines_cost_no_more_than_their_number(line):
    text = NEW + new_row("Abcd", 1, 2, 3, 4) + (line + "\n") * 20_000
    begin = time.perf_counter()
    parse_poolused(text)
    assert time.perf_counter() - begin < 5
