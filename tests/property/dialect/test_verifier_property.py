"""``!verifier``: what is printed is read back, and no text does harm."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kdleak.dialect.source import split_lines
from kdleak.dialect.verifier import parse_verifier, starts_verifier, take_verifier
from kdleak.dialect.verifier_log import (
    VerifierFrame,
    parse_verifier_log,
    starts_verifier_log,
    take_verifier_log,
)
from kdleak.dialect.verifier_rows import VerifierAllocation

TAG = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=4, max_size=4)
ADDRESS32 = st.integers(0x80000000, 0xFFFFFFFF)
ADDRESS64 = st.integers(0xFFFF800000000000, 0xFFFFFFFFFFFFFFFF)
NAME = st.from_regex(r"[A-Z][A-Za-z_]{0,20}", fullmatch=True)
PIECES = st.sampled_from(
    ["kd> !verifier 3\n", "kd> !verifier 80\n", "\n", "  ", "Verify Flags Level 0x0002018b\n",
     "Verify Level 8bb ... enabled options are:\n", "[X] (0x00000001) Special pool\n",
     "Driver Verification List\n", "MODULE: 0x912823b8 a.sys (Loaded)\n", "0x9a2b64f0",
     " 0x00000340",
     "  VTfk", "Current Pool Bytes: ( 0x1 / 0x0 )\n", "Thread:   fffff84006f6ef90\n", "...\n",
     "Pool block 9b32eab0, Size 000000b2, Thread 9f173190\n", "87c1b68d nt!IovTurn+0x95\n",
     "Parsing 0x00010000 log entries, searching for address 0x9b32eab0.\n", "Trims  0xb22c\n",
     "Log of recent kernel pool Allocate and Free operations:\n",
     "fffffade1071baa0 Loaded 50 4 m\n"]
)  # fmt: skip
ANY_TEXT = st.one_of(st.text(), st.lists(PIECES, max_size=30).map("".join))
ROW = st.tuples(ADDRESS64, st.integers(0, 0xFFFFFFFF), TAG, ADDRESS64, st.none() | NAME)


@settings(deadline=None)
@given(st.lists(ROW, min_size=1, max_size=20), st.integers(0, 0xFFFFFFFF), st.booleans())
def test_allocations(rows, level, named):
    lines = [f"Verify Flags Level 0x{level:08x}", ""]
    if named:
        lines.append("  MODULE: 0xfffff84006f6ef90 winch.sys (Loaded)")
    lines += ["  Address             Length      Tag   Caller", "  ------------------  ----------"]
    expected = []
    for address, length, tag, caller, symbol in rows:
        behind = f"  winch!{symbol}+0x74" if symbol else ""
        lines.append(f"  0x{address:016x}  0x{length:08x}  {tag}  0x{caller:016x}{behind}")
        expected.append(
            VerifierAllocation(address, length, tag, caller, behind.strip() or None, len(lines))
        )
    verifier = parse_verifier("\n".join(lines))
    (report,) = verifier.reports
    (driver,) = report.drivers
    assert list(driver.allocations) == expected
    assert driver.name == ("winch.sys" if named else None)
    assert report.level == level
    assert verifier.unparsed == ()


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(ADDRESS32, st.lists(st.tuples(ADDRESS32, NAME, st.integers(0, 0xFFFF)))),
        min_size=1,
        max_size=8,
    )
)
def test_pool_log(entries):
    lines = ["kd> !verifier 0x80 0x9b32eab0", "# ", ""]
    for block, frames in entries:
        lines.append(f"Pool block {block:08x}, Size 000000b2, Thread 9f173190")
        lines += [f"{address:08x} nt!{name}+0x{offset:x}" for address, name, offset in frames]
    log = parse_verifier_log("\n".join(lines))
    (search,) = log.searches
    assert [operation.block for operation in search.operations] == [block for block, _ in entries]
    for operation, (_, frames) in zip(search.operations, entries):
        assert [frame_of(frame) for frame in operation.frames] == [
            (address, "nt", name, offset) for address, name, offset in frames
        ]
    assert log.unparsed == ()


def frame_of(frame: VerifierFrame):
    return frame.return_address, frame.module, frame.symbol, frame.offset


@settings(deadline=None)
@given(ANY_TEXT)
def test_any_text(text):
    lines = split_lines(text)
    numbers = {line.number for line in lines}
    assert {entry.line for entry in parse_verifier(text).unparsed} <= numbers
    assert {entry.line for entry in parse_verifier_log(text).unparsed} <= numbers
    for index in range(len(lines)):
        if starts_verifier(lines, index):
            _, end = take_verifier(lines, index)
            assert index < end <= len(lines)
        if starts_verifier_log(lines, index):
            _, end = take_verifier_log(lines, index)
            assert index < end <= len(lines)
