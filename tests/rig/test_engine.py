"""Microsoft's engine in the rig's kd.exe, attached to the practice target over KDNET."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kdleak.engine.native import attach_native
from kdleak.model import PoolSnapshot
from tests.rig.conftest import Practice
from tests.rig.kd_session import KdSession
from tests.rig.rig import Rig

StartKd = Callable[..., KdSession]
StartPractice = Callable[..., Practice]

GOING = 0.5
"""Seconds after which a target surely runs: a break request that overtakes the g is lost."""

BUILDS = ("15063", "19045", "22621", "26100")
"""One of each layout of the tag tables."""

ROW = re.compile(r"^ (.{4}) +(\d+) +(-?\d+) +(\d+) +(-?\d+)\t(.*)$", re.MULTILINE)
VERBOSE_ROW = re.compile(r"^ (.{4})" + r" +(-?\d+)" * 8 + r"\t(.*)$", re.MULTILINE)


@pytest.fixture
def start_kd(rig: Rig) -> Iterator[StartKd]:
    """Starts kd on a practice target and waits for its first prompt."""
    running: list[KdSession] = []

    def start(practice: Practice, *options: str, kdexts: bool = True) -> KdSession:
        kd = KdSession(rig, practice.connection, practice.symbols, "-b", *options, kdexts=kdexts)
        running.append(kd)
        kd.greeting = kd.until("Waiting to reconnect...")
        practice.start()
        kd.greeting += kd.until_prompt()
        return kd

    yield start
    for one in running:
        one.close()


def native_snapshot(practice: Practice) -> PoolSnapshot:
    """What our own engine reads of a target that kd left stopped."""
    with attach_native(practice.connection, practice.symbols, timeout=30) as engine:
        return engine.pool_usage()


def printed(tag_bytes: bytes) -> str:
    return "".join(chr(one) if 0x20 <= one < 0x7F else "." for one in tag_bytes)


def test_a_stopped_target_is_read(start_kd: StartKd, practice_over_kdnet: StartPractice) -> None:
    practice = practice_over_kdnet(late=True)
    kd = start_kd(practice)
    assert "Kernel Debugger connection established.  (Initial Breakpoint" in kd.greeting
    assert "Break instruction exception - code 80000003 (first chance)" in kd.greeting
    assert "nt!DbgBreakPointWithStatus:" in kd.greeting
    assert "Loading Kernel Symbols" in kd.command(".reload")
    assert "Windows 10 Kernel Version 22621 MP (2 procs) Free x64" in kd.command("vertarget")
    modules = kd.command("lm")
    assert re.search(r"nt +\(private pdb symbols\) +z:\\.*\\ntkrnlmp\.pdb", modules)
    assert {"leakydrv", "busydrv"} <= set(modules.split())
    assert re.fullmatch(r"\S+ nt!PoolHitTag = 0xffffff0f\n", kd.command("x nt!PoolHitTag"))
    kd.send("qd")
    assert kd.until_end() == "quit:\n"
    assert kd.process.returncode == 0


@pytest.mark.parametrize("build", BUILDS)
def test_poolused_tells_what_the_native_engine_reads(
    build: str, start_kd: StartKd, practice_over_kdnet: StartPractice
) -> None:
    practice = practice_over_kdnet("--build", build, late=True)
    kd = start_kd(practice)
    verbose = kd.command("!poolused 1")
    plain = {flag: kd.command(f"!poolused {flag}") for flag in ("", "2", "4")}
    kd.send("q")
    kd.until_end()
    usage = native_snapshot(practice).rows

    rows = VERBOSE_ROW.findall(verbose)
    assert "\n Sorting by Tag\n" in verbose
    assert len(rows) > 100
    told = sorted((row[0], *map(int, row[1:9])) for row in rows)
    assert told == sorted(
        (
            printed(row.tag.raw),
            *(row.nonpaged.allocs, row.nonpaged.frees),
            *(row.nonpaged.outstanding, row.nonpaged.bytes),
            *(row.paged.allocs, row.paged.frees),
            *(row.paged.outstanding, row.paged.bytes),
        )
        for row in usage
        if row.nonpaged.allocs or row.paged.allocs
    )
    held = sorted(
        (
            printed(row.tag.raw),
            *(row.nonpaged.outstanding, row.nonpaged.bytes),
            *(row.paged.outstanding, row.paged.bytes),
        )
        for row in usage
        if row.nonpaged.outstanding or row.paged.outstanding
    )
    for text in plain.values():
        assert sorted((row[0], *map(int, row[1:5])) for row in ROW.findall(text)) == held
    assert "\n Sorting by Tag\n" in plain[""]
    for flag, column, words in (("2", 2, "NonPaged"), ("4", 4, "Paged")):
        assert f"\n Sorting by {words} Pool Consumed\n" in plain[flag]
        sizes = [int(row[column]) for row in ROW.findall(plain[flag])]
        assert sizes == sorted(sizes, reverse=True)
    total = re.search(r"^TOTAL +(\d+) +(\d+) +(\d+) +(\d+)$", plain["2"], re.MULTILINE)
    assert total is not None
    assert [int(one) for one in total.groups()] == [
        sum(row[column] for row in held)  # type: ignore[misc]
        for column in range(1, 5)
    ]


def test_poolused_of_some_tags(start_kd: StartKd, practice_over_kdnet: StartPractice) -> None:
    kd = start_kd(practice_over_kdnet(late=True))
    one = kd.command("!poolused 2 Leak")
    assert [row[0] for row in ROW.findall(one)] == ["Leak"]
    assert "Sorting" not in one
    assert not one.startswith(".")
    assert "\tUNKNOWN pooltag 'Leak', please update pooltag.txt\n" in one
    several = kd.command("!poolused 1 L*")
    assert "\n Sorting by Tag\n" in several
    assert {row[0][0] for row in VERBOSE_ROW.findall(several)} == {"L"}
    assert [row[0] for row in ROW.findall(kd.command("!poolused 4 Mm?t"))] == ["MmSt"]
    assert [row[0] for row in ROW.findall(kd.command("!poolused 2 Irp"))] == ["Irp "]
    assert ROW.findall(kd.command("!poolused 2 leak")) == []
    kd.send("qd")
    kd.until_end()


def test_without_kdexts(start_kd: StartKd, practice_over_kdnet: StartPractice) -> None:
    kd = start_kd(practice_over_kdnet(late=True), kdexts=False)
    assert "Unable to add extension DLL: kdexts" in kd.greeting
    assert "No export poolused found" in kd.command("!poolused 2")
    kd.send("qd")
    kd.until_end()


def test_poolused_without_symbols(
    start_kd: StartKd, practice_over_kdnet: StartPractice, tmp_path: Path
) -> None:
    practice = practice_over_kdnet(late=True)
    practice.symbols = str(tmp_path)
    kd = start_kd(practice)
    assert "unable to get nt!PoolTrackTable - symbols are wrong" in kd.command("!poolused 2")
    kd.send("qd")
    kd.until_end()


def test_a_hit_and_its_stack(start_kd: StartKd, practice_over_kdnet: StartPractice) -> None:
    practice = practice_over_kdnet(late=True)
    kd = start_kd(practice)
    kd.command(".reload")
    assert kd.command("ed nt!PoolHitTag 'kaeL'") == ""
    assert "4c 65 61 6b" in kd.command("db nt!PoolHitTag L4")
    hit = kd.command("g")
    assert "Break instruction exception - code 80000003 (first chance)" in hit
    assert re.search(r"^nt!Ex(Alloc|Free)\w*\+0x[0-9a-f]+:$", hit, re.MULTILINE)
    stack = kd.command("kb")
    assert "RetAddr" in stack
    assert re.search(r": leakydrv!\w+\+0x", stack)
    assert ": nt!KiStartSystemThread+0x" in stack.splitlines()[-1]
    kd.command("ed nt!PoolHitTag ffffff0f")
    kd.send("qd")
    kd.until_end()
    report = practice.statistics
    assert report["hits_alloc"] + report["hits_free"] == 1
    assert report["pool_hit_tag"] == 0xFFFFFF0F


def test_ctrl_c_stops_a_running_target(
    start_kd: StartKd, practice_over_kdnet: StartPractice
) -> None:
    """SIGINT to kd's process is what Ctrl+C is on Windows: nothing more is needed."""
    practice = practice_over_kdnet(late=True)
    kd = start_kd(practice)
    for _ in range(2):
        kd.send("g")
        # A line typed while the target runs waits for the next prompt.
        kd.send(".echo typed early")
        time.sleep(GOING)
        kd.interrupt()
        text = kd.until("typed early\r\n0: kd> ")
        assert re.search(r"nt!DbgBreakPointWithStatus:\n.*\n0: kd> typed early\n", text)
    kd.send("qd")
    kd.until_end()


def test_a_byte_03_stops_a_running_target(
    start_kd: StartKd, practice_over_kdnet: StartPractice
) -> None:
    kd = start_kd(practice_over_kdnet(late=True))
    kd.send("g")
    time.sleep(GOING)
    kd.send("\x03")
    assert "nt!DbgBreakPointWithStatus:" in kd.until_prompt()
    kd.send("qd")
    kd.until_end()


@pytest.mark.parametrize("running", [False, True])
def test_the_end_of_input_lets_the_target_run(
    running: bool, start_kd: StartKd, practice_over_kdnet: StartPractice
) -> None:
    practice = practice_over_kdnet(late=True)
    kd = start_kd(practice)
    if running:
        kd.send("g")
    assert kd.process.stdin is not None
    kd.process.stdin.close()
    assert kd.until_end().endswith("quit:\n")
    statistics = practice.statistics
    assert statistics["stops"] == (2 if running else 1)
    assert statistics["requests"]["CONTINUE2"] >= statistics["stops"]


def test_the_end_of_input_ends_kd_without_a_target(
    rig: Rig, practice_over_kdnet: StartPractice
) -> None:
    practice = practice_over_kdnet(late=True)
    kd = KdSession(rig, practice.connection, practice.symbols, "-b")
    try:
        kd.until("Waiting to reconnect...")
        assert kd.process.stdin is not None
        kd.process.stdin.close()
        assert kd.until_end().endswith("the target does not answer\n")
        assert kd.process.returncode == 1
    finally:
        kd.close()


def test_a_log_file(start_kd: StartKd, practice_over_kdnet: StartPractice, tmp_path: Path) -> None:
    log = tmp_path / "session.log"
    kd = start_kd(practice_over_kdnet(late=True), "-logo", str(log))
    kd.command("x nt!PoolHitTag")
    kd.send("qd")
    kd.until_end()
    text = log.read_text(encoding="latin-1")
    assert "0: kd> x nt!PoolHitTag\n" in text.replace("\r\n", "\n")
    assert "nt!PoolHitTag = 0xffffff0f" in text
