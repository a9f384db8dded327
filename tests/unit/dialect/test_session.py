"""What is a hit in a log, and what is not."""

from __future__ import annotations

import time

import pytest

from kdleak.dialect.log import parse_log
from kdleak.dialect.log_event import Text, TextKind
from kdleak.model import HitKind

ARM = "0: kd> ed nt!PoolHitTag 'kaeL'\n0: kd> g\n"
BANNER = "Break instruction exception - code 80000003 (first chance)\n"
STACK = "Child-SP          RetAddr           Call Site\n"


def at(symbol: str) -> str:
    return f"{BANNER}{symbol}:\nfffff801`2c3d5b92 cc              int     3\n1: kd> k\n"


def row(symbol: str) -> str:
    return f"fffff88f`0542c7d0 fffff801`2c8e1170 {symbol}\n"


def kinds(text: str) -> list:
    return [hit.kind for hit in parse_log(text).hits]


def test_checked_kernels_break_in_a_function_of_its_own():
    text = ARM + at("nt!DbgBreakPoint") + STACK + row("nt!DbgBreakPoint")
    assert kinds(text + row("nt!ExpRemovePoolTracker+0x69")) == [HitKind.FREE]
    assert kinds(text + row("nt!ExpInsertPoolTracker+0x9b")) == [HitKind.ALLOC]
    assert kinds(text + row("leakdrv!Assert+0x1")) == []


def test_without_a_stack_the_label_tells():
    assert kinds(ARM + at("nt!ExFreePoolWithTag+0x10")) == [HitKind.FREE]
    assert kinds(ARM + at("nt!DbgBreakPoint")) == [None]


def test_without_a_tag_a_bare_break_is_no_hit():
    assert kinds(at("nt!DbgBreakPoint")) == []
    assert kinds("0: kd> dd nt!PoolHitTag L1\n84b3a774  ffffff0f\n" + at("nt!DbgBreakPoint")) == []


def test_a_log_that_begins_behind_the_command():
    text = at("nt!ExAllocatePoolWithTag+0xb52") + STACK + row("nt!ExAllocatePoolWithTag+0xb52")
    assert kinds(text + row("leakdrv!Take+0x5")) == [HitKind.ALLOC]
    assert parse_log(text).pool_hit_tag is None


def test_cold_code_is_judged_by_its_caller():
    text = ARM + at("nt! ?? ::FNODOBFM::`string'+0x576a6") + STACK
    text += row("nt! ?? ::FNODOBFM::`string'+0x576a6") + row("nt!ExFreePoolWithTag+0x1")
    assert kinds(text) == [HitKind.FREE]


@pytest.mark.parametrize(
    "text",
    [
        "Breakpoint 1 hit\nnt!ExAllocatePoolWithTag:\nfffff801`2c3d5b92 48 push rbx\n",
        "nt!ExAllocatePoolWithTag:\nfffff801`2c3d5b92 48 push rbx\n1: kd> k\n",
        "*** Fatal System Error: 0x0000001e\n  (0x1,0x2,0x3,0x4)\n\n" + at("nt!ExFreePool+0x1"),
        at("nt!RtlpBreakWithStatusInstruction"),
        at("nt!DbgBreakPointWithStatus"),
        at("leakdrv!Check+0x10"),
        at("nt!ExAllocateTimer+0x10"),
        "Access violation - code c0000005 (!!! second chance !!!)\nnt!ExFreePoolWithTag+0x1:\n"
        "fffff801`2c3d5b92 48 push rbx\n",
    ],
)
def test_other_stops_are_no_hits(text):
    assert kinds(ARM + text) == []


def test_what_was_looked_at_belongs_to_its_hit():
    text = ARM + at("nt!ExAllocatePoolWithTag+0x5") + STACK + row("nt!ExAllocatePoolWithTag+0x5")
    text += "1: kd> r rcx\nrcx=0000000000000001\n1: kd> db ffffa801`00000000 L2\n"
    text += "ffffa801`00000000  01 02     ..\n1: kd> g\nprint of the driver\n"
    (hit,) = parse_log(text).hits
    assert hit.cpu == 1
    assert hit.registers[0].values == {"rcx": 1}
    assert hit.memory[0].bytes_at(0xFFFFA80100000000, 2) == b"\1\2"
    assert hit.commands == ("k", "r rcx", "db ffffa801`00000000 L2", "g")
    assert str(hit.tag) == "Leak"
    prints = [text.text for text in parse_log(text).of(Text) if text.kind is TextKind.DEBUG_PRINT]
    assert prints == ["print of the driver"]


def test_two_tags_one_after_the_other():
    text = ARM + at("nt!ExAllocatePoolWithTag+0x5") + "1: kd> ed nt!PoolHitTag 'retO';g\n"
    text += at("nt!ExFreePoolWithTag+0x5")
    log = parse_log(text)
    assert [str(hit.tag) for hit in log.hits] == ["Leak", "Oter"]
    assert log.pool_hit_tag is not None
    assert log.pool_hit_tag.left_armed


def test_local_kernel_prompt_is_kept():
    log = parse_log("lkd> !poolused 4\nunable to get PoolTrackTable\n")
    assert log.prompts[0].local_kernel
    assert [failure.kind.name for failure in log.failures] == ["WRONG_SYMBOLS"]


def test_words_in_other_languages_are_remarks_nobody_reads():
    log = parse_log(
        "Hier ist der Mitschnitt:\n0: kd> k\n" + STACK + row("nt!KiX+0x1") + "ここまでです。\n"
    )
    assert [entry.line for entry in log.unparsed] == [1, 5]
    assert log.events[-1].line == 5


@pytest.mark.parametrize(
    "piece",
    [
        "kd> g\n" + BANNER,
        "fffff801`2c3d5b92 cc              int     3\n",
        "nt!X:\n",
        "rax=0000000000000001\n",
        "*** ERROR: Symbol file could not be found.  Defaulted to export symbols for x -\n",
        "kd> ed nt!PoolHitTag ';';';\n",
        "Unloaded modules:\n",
        "84b3a774  766b6f6e\n\n",
        "    Timestamp: x\n",
        "start    end        module name\n",
        "Evaluate expression:\n",
        "a b c\n",
        "nt!a ",
    ],
)
def test_linear_in_the_text(piece):
    def seconds(count):
        started = time.perf_counter()
        parse_log(piece * count)
        return time.perf_counter() - started

    seconds(20)
    small, large = seconds(1500), seconds(6000)
    assert large < max(0.4, small * 12)
