"""``!verifier``: oddities beyond the samples."""

from __future__ import annotations

import pytest

from kdleak.dialect.source import split_lines
from kdleak.dialect.verifier import parse_verifier, starts_verifier, take_verifier
from kdleak.dialect.verifier_log import (
    PoolOperation,
    is_pool_log,
    parse_verifier_log,
    starts_verifier_log,
)

HEAD = "Pool block 9b32eab0, Size 000000b2, Thread 9f173190\n"


@pytest.mark.parametrize(
    ("row", "tag", "symbol"),
    [
        ("0x9a2b64f0  0x00000340  VTfk  0x9249208c  Winch!Turn", "VTfk", "Winch!Turn"),
        ("0x9a2b64f0  0x00000340  VT    0x9249208c", "VT  ", None),
        ("0x9a2b64f0  0x00000340   Tfk  0x9249208c  Winch!Turn+0x4", " Tfk", "Winch!Turn+0x4"),
        ("0x9a2b64f0  0x00000340  R  3  0x9249208c", "R  3", None),
        ("0x9a2b64f0 0x00000340 VTfk 0x9249208c Winch!Turn", "VTfk", "Winch!Turn"),
        ("9a2b64f0     0x00000340     VTfk      9249208c", "VTfk", None),
        ("9a2b64f0     0x00000340      Tfk      9249208c", " Tfk", None),
        ("9a2b64f0 0x00000340 Tfk 9249208c", "Tfk ", None),
    ],
)
def test_allocation_rows(row, tag, symbol):
    verifier = parse_verifier("Verify Flags Level 0x00000001\n      " + row)
    (report,) = verifier.reports
    (allocation,) = report.allocations
    assert (allocation.address, allocation.length) == (0x9A2B64F0, 0x340)
    assert (allocation.caller, allocation.tag, allocation.symbol) == (0x9249208C, tag, symbol)
    assert verifier.unparsed == ()


@pytest.mark.parametrize(
    "row",
    ["0x9a2b64f0  0x00000340  VTfk", "0x9a2b64f0  0x00000340  VTfkk  0x9249208c"],
)
def test_rows_that_cannot_be_read(row):
    verifier = parse_verifier("Verify Flags Level 0x00000001\n" + row)
    assert [entry.line for entry in verifier.unparsed] == [2]
    assert verifier.reports[0].allocations == ()


def test_two_reports_without_prompts():
    text = "Verify Flags Level 0x00000001\n[X] (0x00000001) Special pool\nVerify Level 3\n"
    verifier = parse_verifier(text)
    assert [report.level for report in verifier.reports] == [1, 3]
    assert [len(report.flags) for report in verifier.reports] == [1, 0]


def test_injected_faults_have_a_log_of_their_own():
    text = (
        "Fault injection trace log\n"
        "Thread:             fffff84006f6ef90\n"
        "    fffff8b1111eccda WINCH!Turn+0x2d\n"
        "Track irql trace log\n"
        "Thread:             fffff84006f6ef91\n"
        "Old irql:           0000000000000001\n"
        "    fffff8b1111eccda\n"
    )
    (report,) = parse_verifier("Verify Level 3\n" + text).reports
    assert [entry.thread for entry in report.fault_log] == [0xFFFFF84006F6EF90]
    (entry,) = report.irql_log
    assert (entry.old_irql, entry.new_irql) == (1, None)
    assert [(frame.return_address, frame.symbol) for frame in entry.frames] == [
        (0xFFFFF8B1111ECCDA, None)
    ]


def test_a_driver_with_a_blank_in_its_name_and_no_state():
    text = (
        "Driver Verification List\n"
        "MODULE: 0x912823b8 my winch.sys (Unloaded)\n"
        "fffffade1071baa0 Unloaded         00000050       000004a4    old winch.sys\n"
        "MODULE: 0x912823b8 winch.sys\n"
    )
    (report,) = parse_verifier(text).reports
    assert [(driver.name, driver.state) for driver in report.drivers] == [
        ("my winch.sys", "Unloaded"),
        ("old winch.sys", "Unloaded"),
        ("winch.sys", ""),
    ]


@pytest.mark.parametrize(
    ("command", "is_log"),
    [
        ("!verifier 0x80", True),
        ("!verifier 80 9b32eab0", True),
        ("!verifier 0x00000080 9b32eab0", True),
        ("!kdexts.verifier 0x80", True),
        ("!verifier 3", False),
        ("!verifier 0x8", False),
        ("!verifier", False),
        ("!verifier 0x180", False),
    ],
)
def test_which_command_prints_which(command, is_log):
    lines = split_lines(f"0: kd> {command}\n")
    assert is_pool_log(command) is is_log
    assert starts_verifier_log(lines, 0) is is_log
    assert starts_verifier(lines, 0) is not is_log


@pytest.mark.parametrize(
    ("frames", "operation"),
    [
        ("87c1b68d nt!ExAllocatePoolWithTag+0x95\n", PoolOperation.ALLOC),
        ("87c1b68d nt!ExAllocatePool2+0x95\n", PoolOperation.ALLOC),
        ("87c1b68d nt!VeAllocatePoolWithTagPriority+0x95\n", PoolOperation.ALLOC),
        ("87c1b68d nt!VerifierExFreePoolWithTag+0x95\n", PoolOperation.FREE),
        ("87c1b68d NT!_ExFreePool@4+0x95\n", PoolOperation.FREE),
        ("87c1b68d nt!IovTurn+0x1\n87c1b68d VerifierExt!ExFreePoolWithTag_wrapper+0x95\n",
         PoolOperation.FREE),
        ("87c1b68d WINCH!ExAllocatePoolTurn+0x1\n87c1b68d nt!ExFreePoolWithTag+0x9\n", None),
        ("87c1b68d nt!IovTurn+0x1\n", None),
        ("87c1b68d\n", None),
        ("", None),
    ],
)  # fmt: skip
def test_operations(frames, operation):
    (search,) = parse_verifier_log(HEAD + frames).searches
    assert [entry.operation for entry in search.operations] == [operation]


def test_old_log_with_rules():
    text = (
        "kd> !verifier 80 a2b1cf20\n"
        "Parsing 00004000 array entries, searching for address a2b1cf20.\n"
        "=======================================\n"
        "Pool block a2b1ce98, Size 00000168, Thread a2b1ce98\n"
        "808f1be6 winch!TurnBack+0x39\n"
        "=======================================\n"
        "Pool block a2b1ce98, Size 00000164, Thread a2b1ce98\n"
        "822af87f nt!VerifierExAllocatePoolWithTagPriority+0x5d\n"
        "808f1be6 winch+0x39\n"
        "808f1be6 operator here [d:\\winch.c @ 3]\n"
    )
    log = parse_verifier_log(text)
    (search,) = log.searches
    assert (search.address, search.entries) == (0xA2B1CF20, 0x4000)
    assert [entry.operation for entry in search.operations] == [None, PoolOperation.ALLOC]
    frames = search.operations[1].frames
    assert [(frame.module, frame.symbol, frame.offset) for frame in frames] == [
        ("nt", "VerifierExAllocatePoolWithTagPriority", 0x5D),
        ("winch", None, 0x39),
    ]
    assert [entry.line for entry in log.unparsed] == [10]


def test_whole_log_without_address_64_bit():
    text = (
        "Parsing 0x0000000000010000 log entries.\n"
        "Pool block ffffe001c5b8f010, Size 0000000000000070, Thread ffffe001c4f2d880\n"
        "fffff801`c5b8f010 nt!ExFreePoolWithTag+0x1\n"
    )
    (search,) = parse_verifier_log(text).searches
    assert (search.address, search.command) == (None, None)
    (operation,) = search.operations
    assert operation.frames[0].return_address == 0xFFFFF801C5B8F010


def test_a_log_ends_at_a_prompt_and_at_prose():
    lines = split_lines("Verify Level 3\nTrims  0x1\nwhat do you think of it?\n0: kd> g\n")
    verifier, end = take_verifier(lines, 0)
    assert end == 2
    assert verifier.unparsed == ()
    assert [entry.line for entry in parse_verifier(lines).unparsed] == [3]
