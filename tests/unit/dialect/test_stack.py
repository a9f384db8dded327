"""Stacks in forms and with oddities beyond the samples."""

from __future__ import annotations

import time

import pytest

from kdleak.dialect.decoration import undecorate
from kdleak.dialect.source import split_lines
from kdleak.dialect.stack import StackText, parse_stacks, starts_stack, take_stack
from kdleak.dialect.stack_header import HeaderKind, StackHeader, read_header

KV_64 = (
    "Child-SP          RetAddr           : Args to Child" + " " * 59 + ": Call Site",
    "ffffab85`913bd0c8 fffff80a`8c57ef19 : 00000000`00000009 ffffb5f7`15700be0 "
    "00000000`00000006 00000000`00000007 : nt!KeBugCheckEx",
    "ffffab85`913bd0d0 fffff80a`8c57d76a : 00000000`00000006 ffffbbc5`6430b140 "
    "ffffab85`913bd2d0 00000000`00000002 : drv!Take+0xc2",
)


def only(text: str) -> StackText:
    (stack,) = parse_stacks(undecorate(text)).stacks
    return stack


def names(stack: StackText):
    return [frame.symbol or frame.module or frame.address for frame in stack.frames]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ChildEBP RetAddr  ", StackHeader(HeaderKind.CHILD_EBP)),
        (" # ChildEBP RetAddr      Args to Child", StackHeader(HeaderKind.CHILD_EBP, True)),
        (
            "ChildEBP RetAddr Args to Child",
            StackHeader(HeaderKind.CHILD_EBP, without_modules=True),
        ),
        ("Call stack:  # ChildEBP RetAddr", StackHeader(HeaderKind.CHILD_EBP, True)),
        ("  Memory  ChildEBP RetAddr  ", StackHeader(HeaderKind.CHILD_EBP, memory=True)),
        (KV_64[0], StackHeader(HeaderKind.CHILD_SP)),
        ("# " + KV_64[0][18:], StackHeader(HeaderKind.RETURN_ADDRESS, True)),
        ("RetAddr            Args to Child      Call Site", StackHeader(HeaderKind.RETURN_ADDRESS)),
        (" # Call Site", StackHeader(HeaderKind.CALL_SITE, True)),
        (
            "    # Child-SP         Return           Call Site",
            StackHeader(HeaderKind.CHILD_SP, True),
        ),
        ("Child-SP          Child-BSP         RetAddr", StackHeader(HeaderKind.ITANIUM)),
        (
            "FramePtr  RetAddr   Param1   Param2   Param3   Function Name",
            StackHeader(HeaderKind.FRAME_POINTER, without_modules=True),
        ),
        ("STACK_TEXT:  ", StackHeader(HeaderKind.STACK_TEXT)),
        ("The RetAddr and Child-SP columns", None),
        ("RetAddr", None),
        ("ChildEBP", None),
        ("Call Site 7 was closed", None),
    ],
)
def test_headers(text, expected):
    assert read_header(text) == expected


def test_one_line_for_each_parameter():
    stack = only(
        "0: kd> kP\n # ChildEBP RetAddr  \n"
        "00 95777ec0 e9f03fb6 FARA!Foo(\n"
        "\t\t\tvoid * Unit = 0x0026c0d4, \n"
        "\t\t\tunsigned long Sail = 0xb18)+0x477 [c:\\a b\\x.c @ 12]\n"
        "01 95777ee4 00000000 FARA!Bar(void)+0xc6\n"
    )
    first, second = stack.frames
    assert first.parameters == "void * Unit = 0x0026c0d4, unsigned long Sail = 0xb18"
    assert (first.offset, first.source) == (0x477, "c:\\a b\\x.c @ 12")
    assert (second.symbol, second.parameters, second.wrapped) == ("Bar", "void", False)


def test_a_list_that_never_closes_swallows_nothing():
    found = parse_stacks(
        "kd> kP\nChildEBP RetAddr  \n95777ec0 e9f03fb6 FARA!Foo(\n\tint a = 1,\n"
        "95777ee4 00000000 FARA!Bar(void)+0xc6\nkd> g\n"
    )
    (stack,) = found.stacks
    assert names(stack) == ["Foo", "Bar"]
    assert ("FARA!Foo(" in found.unparsed[0].text, found.unparsed[0].line) == (True, 3)


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        (
            "1: kd> kf\n #   Memory  Child-SP          RetAddr           Call Site\n"
            "00           fffff880`046a6438 fffff800`004b3ad4 nt!DbgBreakPoint\n"
            "01         8 fffff880`046a6440 00000000`00000000 nt!X+0x69\n",
            [None, 8],
        ),
        (
            "kd> kf\n  Memory  ChildEBP RetAddr  \n          f7d7e8f4 804bd3ea nt!DbgBreakPoint\n"
            "       60 f7d7e954 00000000 nt!X+0x489\n",
            [None, 0x60],
        ),
    ],
)
def test_bytes_between_frames(text, memory):
    stack = only(text)
    assert names(stack) == ["DbgBreakPoint", "X"]
    assert [frame.memory for frame in stack.frames] == memory


def test_inline_rows_with_argument_columns_and_address():
    stack = only(
        "1: kd> kv\n # " + KV_64[0] + "\n00 " + KV_64[1] + "\n"
        "01 (Inline Function) --------`--------     : --------`-------- --------`-------- "
        "--------`-------- --------`-------- : w!FxFoo::operator new+0x6d "
        "(Inline Function @ fffff810`09135303) [a\\b.h @ 4] \n02 " + KV_64[2] + "\n"
    )
    inline = stack.frames[1]
    assert (inline.number, inline.inline, inline.symbol) == (1, True, "FxFoo::operator new")
    assert (inline.inline_address, inline.source) == (0xFFFFF81009135303, "a\\b.h @ 4")
    assert (inline.return_address, inline.args) == (None, None)


def test_itanium():
    stack = only(
        "Child-SP          Child-BSP         RetAddr           Call Site\n"
        "e0000000`83053a30 e0000000`83055010 e0000000`83089250 nt!DbgBreakPoint\n"
    )
    (frame,) = stack.frames
    assert stack.header is HeaderKind.ITANIUM
    assert (frame.frame_address, frame.backing_store) == (0xE000000083053A30, 0xE000000083055010)
    assert frame.return_address == 0xE000000083089250


def test_names_without_modules():
    rows = "8014c2a0 8010b9a0 00000001 00000002 00000003 {}\n"
    old = "ChildEBP RetAddr Args to Child\n" + rows.format("KiFoo+0x12") + rows.format("_Ki@8")
    assert [(f.module, f.symbol) for f in only(old).frames] == [(None, "KiFoo"), (None, "_Ki@8")]
    new = "ChildEBP RetAddr Args to Child\n" + rows.format("drv+0x12") + rows.format("nt!Ki+0x1")
    assert [(f.module, f.symbol) for f in only(new).frames] == [("drv", None), ("nt", "Ki")]


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_terminal_cuts_inside_addresses(width):
    rows = [row[at : at + width] for row in KV_64[1:] for at in range(0, len(row), width)]
    stack = only("\n".join(["kd> kv", KV_64[0], *rows, "kd> g"]))
    assert names(stack) == ["KeBugCheckEx", "Take"]
    assert stack.frames[0].args == (9, 0xFFFFB5F715700BE0, 6, 7)
    assert all(frame.wrapped for frame in stack.frames)


def test_suffixes_on_the_next_line():
    stack = only(
        "ChildEBP RetAddr  Args to Child\n"
        "e33de504 93197d4d 00000008 ed82d9b1 d0d266bc nt!A\n(FPO: [4,0,0])\n"
        "e33de554 931975e9 00000008 93850810 e33de954 nt!B+0xda\n[d:\\nt\\a.c @ 12]\n"
    )
    assert [(f.fpo, f.source) for f in stack.frames] == [
        ("[4,0,0]", None),
        (None, "d:\\nt\\a.c @ 12"),
    ]


def test_everything_on_one_line():
    stack = only(
        "0: kd> k ChildEBP RetAddr f7d7e8f4 804bd3ea nt!Dbg f7d7e954 8051e42b "
        "nt! ?? ::F::`string'+0x489 f7d7e98c 00000000 drv+0x157\n"
    )
    assert stack.command == "k"
    assert [(f.module, f.symbol, f.offset) for f in stack.frames] == [
        ("nt", "Dbg", None),
        ("nt", "?? ::F::`string'", 0x489),
        ("drv", None, 0x157),
    ]


def test_messages_between_header_and_rows_and_glued_to_a_row():
    error = "*** ERROR: Module load completed but symbols could not be loaded for drip.sys"
    stack = only(
        f"kd> kb\nChildEBP RetAddr  Args to Child\nLoading symbols for 0x0     a.sys ->   a.sys\n"
        f"baa4923c 9651677f 89fd6478 89ef81d0 00000000 {error}\ndrip+0x7b38\n"
        "WARNING: Frame IP not in any known module. Following\nframes may be wrong.\n"
        "baa49240 00000000 89fd6478 89ef81d0 00000000 0x1234\n"
    )
    assert stack.warnings == (
        error,
        "WARNING: Frame IP not in any known module. Following frames may be wrong.",
    )
    assert names(stack) == ["drip", 0x1234]
    assert [frame.uncertain for frame in stack.frames] == [False, True]


def test_registers_and_rules_between_rows():
    stack = only(
        "kd> !for_each_frame r\n_  _  _  _  _  _\n00 f7d7e92c 804bbd98 nt!A\n"
        "eax=656c6946 ebx=656c6946 ecx=3f9f0000 edx=00000002 esi=80630800 edi=ffdff120\n"
        "cs=0008  ss=0010  ds=0023  es=0023  fs=0030  gs=0000             efl=00000246\n"
        "nt!A:\n8059cec8 cc              int     3\n_  _  _  _  _  _\n"
        "01 f7d7e974 8051f260 nt!B+0x135\nkd> g\n"
    )
    assert names(stack) == ["A", "B"]
    assert stack.unparsed == ()


def test_damage_is_reported_and_ends_nothing():
    found = parse_stacks(
        "kd> k\nChildEBP RetAddr\nf7d7e8f4 804bd3ea nt!A\nf7d7e9S4 8051e42b nt!B+0x489\n"
        "f7d7e954 8051e42b nt!C+0x489 <-- here\nhello\nf7d7e98c 00000000 nt!D+0x157\nkd> g"
    )
    (stack,) = found.stacks
    assert names(stack) == ["A", "C", "D"]
    assert [frame.after_gap for frame in stack.frames] == [False, True, False]
    assert [(entry.line, entry.why) for entry in found.unparsed] == [
        (4, "a damaged row"),
        (5, "text behind the call site"),
        (6, "no row of a stack"),
    ]


def test_a_gap_is_marked():
    stack = only("ChildEBP RetAddr\nf7d7e8f4 804bd3ea nt!A\n...\nf7d7e954 8051e42b nt!B\n")
    assert [frame.after_gap for frame in stack.frames] == [False, True]


def test_double_spaced():
    stack = only(
        "3: kd> kb\n\nChildEBP RetAddr  Args to Child\n\n"
        "baa49220 baa9c652 00000003 00000683 34626f52 nt!A+0x4a8\n\n"
        "baa4923c 9651677f 89fd6478 89ef81d0 00000000 drip+0x7b38\n\n3: kd> g\n"
    )
    assert names(stack) == ["A", "drip"]


def test_call_sites_without_addresses():
    stack = only(
        "kd> kcn\n # Call Site\n00 nt!A\n01 drip\n02 (Inline Function) w!X::operator new\n"
        "03 nt! ?? ::F::`string'\n04 0x0\nkd> g"
    )
    assert [(f.module, f.symbol, f.address, f.inline) for f in stack.frames] == [
        ("nt", "A", None, False),
        ("drip", None, None, False),
        ("w", "X::operator new", None, True),
        ("nt", "?? ::F::`string'", None, False),
        (None, None, 0, False),
    ]


def test_two_stacks_without_headers_part_at_frame_zero():
    rows = "00 f7d7e8f4 804bd3ea nt!A\n01 f7d7e954 00000000 nt!B+0x1\n"
    assert [names(stack) for stack in parse_stacks(rows + rows).stacks] == [["A", "B"]] * 2


def test_logs_of_addresses_and_symbols():
    stack = only("87c1b68d nt!Iov+0x95\n926ecbed VerifierExt!Sv+0xf2\n87c1f948 nt!Vi+0x37\n")
    assert stack.header is HeaderKind.ADDRESS_ONLY
    assert [frame.return_address for frame in stack.frames] == [0x87C1B68D, 0x926ECBED, 0x87C1F948]


def test_a_break_ends_a_stack():
    found = parse_stacks(
        "ChildEBP RetAddr\nf7d7e8f4 804bd3ea nt!A\n"
        "Break instruction exception - code 80000003 (first chance)\nnt!DbgBreakPoint:\n"
        "8059cec8 cc              int     3\nf7d7e954 8051e42b nt!B\n"
    )
    assert [names(stack) for stack in found.stacks] == [["A"], ["B"]]


def test_a_header_without_rows_is_refused():
    (stack,) = parse_stacks("Child-SP RetAddr Call Site\nthese columns are explained here\n").stacks
    assert stack.frames == ()
    assert "no row" in stack.rejected


@pytest.mark.parametrize(
    "text",
    [
        "00400000 00407000   csrss      (deferred)             ",
        "7c920000 7c9f3000   ntdll      (export symbols)       ntdll.dll",
        "8014c000  00000000 00000001 00000002 00000003",
        "965a9024  34626f52 34626f52 34626f52 34626f52  R!b4Rob4Rob4Rob4",
        "80640384          nt!PoolVector = <no type information>",
        "8064037c          nt!ExAllocatePoolWithTag (<no parameter info>)",
        "804bbd98 83ec0c          sub     esp,0Ch",
        "fffff800`004b3c90 eb95            jmp     nt!Foo+0x32 (fffff800`004b3c27)",
        "(8059cec8)   nt!DbgUserBreakPoint   |  (8059cecc)   nt!RtlpBreak",
        " f40e0000 size:   30 previous size:    0  (Allocated)  BiXQ",
        "  0x9a2b64f0  0x00000340  VTfk  0x9249208c  Baz!Signal",
        "  0  ffe50bc0  855928d0            ................",
        "nt!DbgBreakPoint:",
        "eax=656c6946 ebx=656c6946 ecx=3f9f0000 edx=00000002 esi=80630800 edi=ffdff120",
        "WARNING: the disk is nearly full",
    ],
)
def test_other_output_is_no_stack(text):
    assert parse_stacks(f"{text}\n{text}\n").stacks == ()
    assert not starts_stack(split_lines(text), 0)


def test_take_looks_for_its_command_itself():
    lines = split_lines("kd> kb 2\nChildEBP RetAddr\nf7d7e8f4 804bd3ea nt!A\nkd> g\n")
    stack, following = take_stack(lines, 1)
    assert (stack.command, following) == ("kb 2", 3)
    assert take_stack(lines, 1, "")[0].command is None


def test_long_texts_take_linear_time():
    """Four times the text takes about four times as long: far from the sixteen of a square."""
    patterns = (
        "f7d7e8f4 804bd3ea nt!A+0x1\n",
        "f7d7e8f4 804bd3ea nt!A(\n",
        "fffff880`046a6438 fffff800`004b3ad4 : 00000000`00000001\n",
        "*** ERROR: Symbol file could not be found.\n",
        "ChildEBP RetAddr\n\n",
        "kd> kc\nword\n",
        "STACK_TEXT:  \n...\n",
    )
    for pattern in patterns:
        best = []
        for count in (500, 2000):
            text = pattern * count
            best.append(min(_seconds(text) for _ in range(2)))
        assert best[1] < best[0] * 10 + 0.05, pattern


def _seconds(text: str) -> float:
    started = time.perf_counter()
    parse_stacks(text)
    return time.perf_counter() - started


@pytest.mark.parametrize(
    ("header", "leading"),
    [
        ("Child-SP          RetAddr            Args to Child      Call Site", 2),
        ("RetAddr            Args to Child      Call Site", 1),
        ("Child-SP  Child-BSP  RetAddr  Args to Child      Call Site", 3),
    ],
)
def test_rows_without_colons_cut_between_arguments(header, leading):
    columns = [f"fffff8ba`0000000{number}" for number in range(leading + 4)]
    cut = leading + 2
    text = f"{header}\n{' '.join(columns[:cut])}\n{' '.join(columns[cut:])} nt!A+0x1\n"
    (frame,) = only(text).frames
    assert frame.args == tuple(0xFFFFF8BA00000000 + leading + number for number in range(4))
    assert frame.return_address == 0xFFFFF8BA00000000 + leading - 1
    assert (frame.symbol, frame.wrapped) == ("A", True)


def test_a_symbol_alone_on_the_next_line_behind_all_columns():
    stack = only(f"{KV_64[0]}\n{KV_64[1].replace(' nt!KeBugCheckEx', '')}\nnt!KeBugCheckEx\n")
    assert names(stack) == ["KeBugCheckEx"]
    assert len(stack.frames[0].args or ()) == 4
