"""No text makes the log walker raise; cuts and mutations lose only what they touch."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kdleak.dialect.decoration import undecorate
from kdleak.dialect.log import parse_log
from kdleak.dialect.memory_dump import parse_memory_dump
from kdleak.dialect.registers import parse_registers
from kdleak.dialect.source import decode, split_lines

CORPUS = Path(__file__).parents[2] / "corpus"
TEXTS = [decode(path.read_bytes()) for path in sorted(CORPUS.glob("*.txt"))]
WORDS = sorted({word for text in TEXTS for word in text.split(" ")})[::7]
QUIET = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@QUIET
@given(st.text(max_size=600))
def test_any_text(text):
    log = parse_log(text)
    assert {line.number for line in log.lines} == {line.number for line in split_lines(text)}


@QUIET
@given(st.lists(st.sampled_from(WORDS), max_size=80), st.sampled_from([" ", "\n", "\n\n", "  "]))
def test_words_of_logs_in_any_order(words, gap):
    parse_log(gap.join(words))


@QUIET
@given(st.sampled_from(TEXTS), st.data())
def test_cut_anywhere(text, data):
    end = data.draw(st.integers(0, len(text)))
    whole, part = parse_log(text), parse_log(text[:end])
    # All complete lines above the last one are read as in the whole text, prompts at least.
    complete = text[:end].count("\n")
    before = [prompt for prompt in whole.prompts if prompt.line <= complete]
    assert [prompt for prompt in part.prompts if prompt.line <= complete] == before


@QUIET
@given(st.sampled_from(TEXTS), st.data())
def test_mutations(text, data):
    signs = list(text)
    for _ in range(data.draw(st.integers(1, 30))):
        if not signs:
            break
        position = data.draw(st.integers(0, len(signs) - 1))
        action = data.draw(st.integers(0, 2))
        if action == 0:
            signs[position] = data.draw(st.sampled_from("\n\t `'>!0a?~\0\u00a0(["))
        elif action == 1:
            del signs[position : position + data.draw(st.integers(1, 40))]
        else:
            signs[position:position] = signs[position : position + 50]
    log = parse_log("".join(signs))
    assert [event.line for event in log.events] == sorted(event.line for event in log.events)


@QUIET
@given(st.sampled_from(TEXTS), st.sampled_from(["> ", ">> ", "    ", "\t"]))
def test_quoted_and_indented_logs_hold_the_same(text, prefix):
    plain = [line.text.strip() for line in undecorate(text)]
    if len(plain) < 3:
        return
    lines = text.replace("\r\n", "\n").split("\n")
    decorated = undecorate("\n".join(prefix + line for line in lines))
    assert [line.text.strip() for line in decorated][: len(plain)] == plain


@QUIET
@given(
    st.integers(0x80000000, 0xFFFFFFFFFFFF0000),
    st.binary(min_size=16, max_size=160).filter(lambda data: len(data) % 16 == 0),
    st.sampled_from([1, 2, 4, 8]),
)
def test_memory_round_trip(address, data, width):
    rows = []
    for offset in range(0, len(data), 16):
        values = [
            int.from_bytes(data[at : at + width], "little")
            for at in range(offset, offset + 16, width)
        ]
        words = [f"{value:0{width * 2}x}" for value in values]
        if width == 8:
            words = [f"{word[:8]}`{word[8:]}" for word in words]
        place = address + offset
        rows.append(f"{place >> 32:08x}`{place & 0xFFFFFFFF:08x}  {' '.join(words)}")
    dump = parse_memory_dump("\n".join(rows))
    assert dump.bytes_at(address, len(data)) == data
    assert dump.unparsed == ()


@QUIET
@given(
    st.dictionaries(st.sampled_from(["rax", "rbx", "r8", "r15", "rip"]), st.integers(0, 2**64 - 1))
)
def test_registers_round_trip(values):
    text = "".join(f"{name}={value:016x}\n" for name, value in values.items())
    blocks = parse_registers(text).blocks
    assert [dict(block.values) for block in blocks] == ([values] if values else [])


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_samples_as_bytes_of_any_encoding(text):
    for encoding in ("utf-16", "utf-8-sig"):
        assert parse_log(decode(text.encode(encoding))).events == parse_log(text).events
