"""Stacks rendered in any layout come back; no text at all makes the readers fail."""

from __future__ import annotations

import textwrap
from typing import List, Tuple

from hypothesis import given, settings
from hypothesis import strategies as st

from kdleak.dialect.decoration import undecorate
from kdleak.dialect.stack import parse_stacks, starts_stack, take_stack
from kdleak.dialect.stack_frame import StackFrame
from kdleak.dialect.stack_model import to_model
from kdleak.dialect.symbol import parse_symbol

WORDS = st.text("abcdefgXYZ_019", min_size=2, max_size=14).map(lambda text: f"k{text}z")
NAMES = st.one_of(
    WORDS,
    WORDS.map(lambda word: f"{word}::operator new"),
    WORDS.map(lambda word: f"?? ::{word}::`string'"),
    WORDS.map(lambda word: f"Ring<{word},int *>::Put"),
    WORDS.map(lambda word: f"_{word}@8"),
)
SYMBOLS = st.one_of(
    st.tuples(WORDS, NAMES, st.integers(1, 0xFFFFF)),
    st.tuples(WORDS, NAMES, st.none()),
    st.tuples(WORDS, st.none(), st.integers(1, 0xFFFFF)),
)
LAYOUTS = ("k32", "kn32", "kb32", "k64", "kn64", "wide64", "kb64", "kv64")


@st.composite
def stacks(draw, layouts=LAYOUTS) -> Tuple[str, List[StackFrame], List[str]]:
    layout = draw(st.sampled_from(layouts))
    wide = layout.endswith("64")
    top = (1 << (64 if wide else 32)) - 1
    frames = []
    for index in range(draw(st.integers(1, 12))):
        module, symbol, offset = draw(SYMBOLS)
        count = {"kb32": 3, "kb64": 4, "kv64": 4}.get(layout)
        args = None
        if count:
            args = tuple(draw(st.lists(st.integers(0, top), min_size=count, max_size=count)))
        frames.append(
            StackFrame(
                index if layout in ("kn32", "kn64", "wide64") else None,
                None if layout == "kb64" else draw(st.integers(0, top)),
                draw(st.integers(0, top)),
                args,
                module,
                symbol,
                offset,
                source=draw(st.one_of(st.none(), WORDS.map(lambda word: f"d:\\{word}\\a.c @ 17"))),
                line=index + 2,
            )
        )
    return layout, frames, [header(layout), *(render(layout, frame) for frame in frames)]


def header(layout: str) -> str:
    return {
        "k32": "ChildEBP RetAddr  ",
        "kn32": " # ChildEBP RetAddr  ",
        "kb32": "ChildEBP RetAddr  Args to Child              ",
        "k64": "Child-SP          RetAddr           Call Site",
        "kn64": " # Child-SP          RetAddr           Call Site",
        "wide64": " # Child-SP          RetAddr               Call Site",
        "kb64": "RetAddr           : Args to Child" + " " * 59 + ": Call Site",
        "kv64": "Child-SP          RetAddr           : Args to Child" + " " * 59 + ": Call Site",
    }[layout]


def render(layout: str, frame: StackFrame) -> str:
    digits = wide_digits if layout.endswith("64") else narrow_digits
    columns = [
        digits(value) for value in (frame.frame_address, frame.return_address) if value is not None
    ]
    text = " ".join(columns)
    if frame.number is not None:
        text = f"{frame.number:02x} {text}"
    if layout == "wide64":
        text += "    "
    if frame.args:
        arguments = " ".join(digits(value) for value in frame.args)
        text += f" : {arguments} :" if layout.endswith("64") else f" {arguments}"
    return f"{text} {place(frame)}"


def wide_digits(value: int) -> str:
    return f"{value >> 32:08x}`{value & 0xFFFFFFFF:08x}"


def narrow_digits(value: int) -> str:
    return f"{value:08x}"


def place(frame: StackFrame) -> str:
    text = frame.module or ""
    if frame.symbol is not None:
        text += f"!{frame.symbol}"
    if frame.offset is not None:
        text += f"+0x{frame.offset:x}"
    return f"{text} [{frame.source}]" if frame.source else text


def plain(frames) -> List[Tuple[object, ...]]:
    """What a frame says, without where it stands in the text."""
    return [
        (
            f.number,
            f.frame_address,
            f.return_address,
            f.args,
            f.module,
            f.symbol,
            f.offset,
            f.source,
        )
        for f in frames
    ]


@given(stacks())
def test_a_rendered_stack_comes_back(drawn):
    _, frames, lines = drawn
    found = parse_stacks("\r\n".join(lines) + "\r\n")
    assert found.unparsed == ()
    assert [stack.frames for stack in found.stacks] == [tuple(frames)]


@given(stacks(), st.integers(0, 8), st.sampled_from(("", " ", "  ")))
def test_indentation_and_double_spacing_change_nothing(drawn, indent, behind):
    _, frames, lines = drawn
    text = "\n\n".join(" " * indent + line + behind for line in lines)
    (stack,) = parse_stacks(text).stacks
    assert plain(stack.frames) == plain(frames)


@given(stacks(), st.sampled_from((80, 100, 120, 132)))
def test_a_terminal_may_break_the_rows_anywhere(drawn, width):
    _, frames, lines = drawn
    rows = [line[at : at + width] for line in lines[1:] for at in range(0, len(line), width)]
    (stack,) = parse_stacks("\n".join([lines[0], *rows])).stacks
    assert plain(stack.frames) == plain(frames)


@given(stacks(layouts=("kb32", "k64", "kn64", "kb64", "kv64")), st.integers(60, 120))
def test_a_mail_program_may_break_the_rows_at_blanks(drawn, width):
    _, frames, lines = drawn
    wrap = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    rows = [part for line in lines[1:] for part in wrap.wrap(line)]
    (stack,) = parse_stacks("\n".join([lines[0], *rows])).stacks
    names = [(f.frame_address, f.return_address, f.args) for f in frames]
    assert [(f.frame_address, f.return_address, f.args) for f in stack.frames] == names
    whole = [index for index, line in enumerate(lines[1:]) if len(line) <= width]
    assert [plain(stack.frames)[index] for index in whole] == [plain(frames)[i] for i in whole]


@given(stacks(), st.data())
def test_a_cut_text_gives_the_first_frames(drawn, data):
    _, frames, lines = drawn
    text = "\n".join(lines)
    cut = data.draw(st.integers(0, len(text)))
    found = parse_stacks(text[:cut])
    whole = text[:cut].count("\n") - 1
    if whole < 1:
        return
    (stack,) = found.stacks
    assert len(stack.frames) in (whole, whole + 1)
    assert plain(stack.frames[:whole]) == plain(frames[:whole])


@given(stacks(), st.lists(st.tuples(st.integers(0, 4000), st.characters()), max_size=12))
def test_damage_never_raises_and_is_bounded(drawn, damage):
    _, _, lines = drawn
    text = list("\n".join(lines))
    for position, sign in damage:
        text[position % len(text)] = sign
    broken = "".join(text)
    found = parse_stacks(undecorate(broken))
    assert (
        sum(len(stack.frames) for stack in found.stacks)
        <= broken.count("\n") + len(broken) // 20 + 2
    )
    for stack in found.stacks:
        to_model(stack, 0x1000, stack.pointer_size or 8)


@given(st.text(max_size=400))
def test_no_text_raises(text):
    parse_stacks(text)
    parse_symbol(text)


LOGS = st.lists(
    st.sampled_from(
        [
            "0: kd> k",
            "0: kd> kc",
            "kd> dps esp",
            "ChildEBP RetAddr  ",
            " # Call Site",
            "STACK_TEXT:  ",
            "Child-SP RetAddr : Args to Child : Call Site",
            "nt!Foo+0x12",
            "nt!Foo(",
            "int a = 3)+0x1",
            "f7d7e8f4 804bd3ea nt!Foo",
            "f7d7e8f4 804bd3ea",
            "f7d7e8f4  804bd3ea nt!Foo+0x2",
            "",
            " ",
            "00 fffff880`046a6438 fffff800`004b3ad4 nt!Foo [d:\\a",
            "01 (Inline Function) --------`-------- a!b",
            "fffff880`046a6438 fffff800`004b3ad4 : 00000000`00000001",
            "00000000`00000001 : nt!Foo",
            "WARNING: Stack unwind information not available. Following frames may be",
            "wrong.",
            "...",
            "*** ERROR: Symbol file could not be found.  Defaulted to export symbols for ",
            "eax=00000000",
            "8059cec8 cc              int     3",
            "nt!DbgBreakPoint:",
            "kd> g",
            "anything at all",
            "9",
        ]
    ),
    max_size=30,
)


@settings(max_examples=200)
@given(LOGS)
def test_walking_always_moves_on(lines):
    source = undecorate("\n".join(lines))
    index = 0
    taken = 0
    while index < len(source):
        if starts_stack(source, index):
            stack, following = take_stack(source, index)
            assert following > index
            assert all(source[index].number <= frame.line for frame in stack.frames)
            taken += len(stack.frames)
            index = following
        else:
            index += 1
    assert taken <= len(lines)
