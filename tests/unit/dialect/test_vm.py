"""Oddities of !vm that the corpus does not hold."""

import time

import pytest

from kdleak.dialect.source import split_lines
from kdleak.dialect.vm import parse_vm, starts_vm, take_vm

WHOLE = """\
0: kd> !vm
Page File: \\??\\C:\\pagefile.sys
  Current:   1048576 Kb  Free Space:   1040000 Kb
  Minimum:   1048576 Kb  Maximum:      4194304 Kb
No Name for Paging File
  Current: 16 Kb

Physical Memory:          1048000 (    4192000 Kb)
PagedPool  0:                  12 (         48 Kb)
Syspart SharedCommit 0
********** Excessive NonPaged Pool Usage *****
PagedPool Commit:  18446744073709551615 (18446744073709551612 Kb)
Commit limit:             3009462 (   12037848 Kb)
  Terminal Server Memory Usage By Session:

  Session ID 1 @ 8a1b2000:
  Paged Pool Usage:     3424 Kb
  Commit Usage:         9000 Kb

         15fc devenv.exe       44921 (    179684 Kb)
         0004 System Idle          7 (        28 Kb)
0: kd> k
"""


def only(text):
    (usage,) = parse_vm(text).usages
    return usage


def test_everything_there_is():
    usage = only(WHOLE)
    assert usage.command == "!vm"
    assert [file.name for file in usage.page_files] == ["\\??\\C:\\pagefile.sys", None]
    assert usage.page_files[0].maximum_kb == 4194304
    assert (usage.page_files[1].current_kb, usage.page_files[1].free_kb) == (16, None)
    assert usage.find_value("PagedPool  0").pages == 12
    assert usage.plain == (("Syspart SharedCommit", 0),)
    assert usage.alerts == ("Excessive NonPaged Pool Usage",)
    assert usage.find_value("Paged Pool Usage").session == "Session ID 1 @ 8a1b2000"
    assert usage.find_value("Paged Pool Usage").pages is None
    assert [(process.pid, process.name) for process in usage.processes] == [
        (0x15FC, "devenv.exe"),
        (4, "System Idle"),
    ]
    assert usage.unparsed == ()


def test_wrapped_numbers_keep_their_print_and_get_their_sign():
    value = only(WHOLE).find_value("PagedPool Commit")
    assert value.pages == 18446744073709551615
    assert (value.signed_pages, value.signed_kb) == (-1, -4)
    assert only(WHOLE).find_value("Commit limit").signed_pages == 3009462
    assert only(WHOLE).find_value("Paged Pool Usage").signed_pages is None
    assert only(WHOLE).find_value("No such label") is None


def test_it_ends_at_the_prompt():
    lines = split_lines(WHOLE)
    assert starts_vm(lines, 0)
    _, index = take_vm(lines, 0)
    assert lines[index].text == "0: kd> k"


@pytest.mark.parametrize(
    "head",
    [
        "",
        "*** Virtual Memory Usage ***\n",
        "lkd> !vm 21\n\n*** Virtual Memory Usage ***\n",
        "!vm 1\n",
    ],
)
def test_heads(head):
    usage = only(head + "\tPhysical Memory:      391204   (  1564816 Kb)\n" * 3)
    assert len(usage.values) == 3
    assert not usage.rejected


def test_remarks_and_percentages_are_reported():
    usage = only(
        "!vm\nPhysical Memory: 1 ( 4 Kb)\nNonPaged Pool Usage :  71%\n"
        "this one is too high\nCommit limit: 2 ( 8 Kb)\n"
    )
    assert len(usage.values) == 2
    assert [note.line for note in usage.unparsed] == [3, 4]


def test_a_remark_behind_a_quantity():
    usage = only("!vm\nPhysical Memory: 1 ( 4 Kb)   <- small\nCommit limit: 2 ( 8 Kb)\n")
    assert [value.pages for value in usage.values] == [1, 2]
    assert [note.line for note in usage.unparsed] == [2]


def test_sizes_on_lines_of_their_own():
    usage = only(
        "!vm\nPage File: \\??\\C:\\p.sys\n Current: 1Kb\n Free Space: 2Kb\n Minimum: 3 Kb\n"
    )
    (file,) = usage.page_files
    assert (file.current_kb, file.free_kb, file.minimum_kb, file.maximum_kb) == (1, 2, 3, None)


def test_a_command_without_output():
    usage = only("0: kd> !vm\n0: kd> g\n")
    assert usage.rejected
    assert usage.values == ()


def test_prose_below_is_left():
    lines = split_lines("!vm\nPhysical Memory: 1 ( 4 Kb)\n\nSo there is a leak.\n")
    _, index = take_vm(lines, 0)
    assert index == 2


def test_prose_is_no_vm():
    log = parse_vm("Look at !vm first.\nIt shows memory: 12 ( 48 Kb)\n")
    assert log.usages == ()
    assert len(log.unparsed) == 2


@pytest.mark.parametrize(
    "line", [" " * 100_000 + "x", "*" * 100_000, "a: " * 40_000, "Current: 1" * 9_000]
)
def test_long_lines_cost_no_more_than_their_length(line):
    begin = time.perf_counter()
    parse_vm("!vm\n" + line + "\nPhysical Memory: 1 ( 4 Kb)\n" + line + "\n")
    assert time.perf_counter() - begin < 1
