"""Every sample of ``!verifier`` gives every expected value."""

from __future__ import annotations

import pytest
from corpus_sample import differences, load

from kdleak.dialect.verifier import parse_verifier
from kdleak.dialect.verifier_log import parse_verifier_log

OF_THE_REPORT = ("command", "level", "drivers", "irql_log", "allocations")


@pytest.mark.parametrize("number", [69, 70, 71])
def test_report(number):
    lines, expected = load(number)
    verifier = parse_verifier(lines)
    (report,) = verifier.reports
    for driver in expected.get("drivers", [expected.get("driver")]):
        for name, value in driver.items():
            if isinstance(value, list) and name != "allocations":
                driver[name] = tuple(value)
    wanted = {name: expected[name] for name in OF_THE_REPORT if name in expected}
    assert differences(report, wanted) == []
    if "driver" in expected:
        (driver,) = report.drivers
        assert differences(driver, expected["driver"]) == []
    if "flags" in expected:
        flags = {f"0x{flag.value:08x}": flag.enabled for flag in report.flags}
        assert flags == expected["flags"]
        assert list(flags) == list(expected["flags"])
    assert verifier.unparsed == ()


def test_pool_log():
    lines, expected = load(72)
    log = parse_verifier_log(lines)
    assert differences(log.searches, expected["searches"]) == []
    # "operation" is left out where it is open, "symbol" where no "+" shows where it ends
    assert log.searches[0].operations[0].operation is None
    glued = [frame for search in log.searches for frame in search.operations[0].frames[3:5]]
    glued = [frame for frame in glued if frame.text.endswith("0x75")]
    assert [(frame.symbol, frame.offset) for frame in glued] == [(None, None)] * 2
    assert [(entry.line, entry.why) for entry in log.unparsed] == [
        (frame.line, "no + before the offset of a symbol") for frame in glued
    ]


def test_old_summary_and_options():
    lines, _ = load(69)
    (report,) = parse_verifier(lines).reports
    assert report.options[0] == "Special pool"
    assert len(report.options) == 8
    by_name = {row.name: (row.count, row.size) for row in report.statistics}
    assert by_name["AcquireSpinLocks"] == (0xC0D, None)
    assert by_name["Peak nonpaged pool allocations"] == (0xB82, 0xCC3D2)
    assert len(by_name) == 14
    assert [driver.cut for driver in report.drivers] == [True, True]


def test_new_summary():
    lines, _ = load(70)
    (report,) = parse_verifier(lines).reports
    by_name = {row.name: (row.count, row.size) for row in report.statistics}
    assert by_name["Current nonpaged pool allocations"] == (3, 0x96E0)
    assert len(by_name) == 13
    (driver,) = report.drivers
    assert (driver.entry, driver.state) == (0x912823B8, "Loaded")
    assert (driver.contiguous_bytes, driver.peak_contiguous_bytes) == (0, 0)
