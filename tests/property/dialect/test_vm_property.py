"""!vm: what is printed is read back, and no text makes the reader stumble."""

import string

from hypothesis import given, settings
from hypothesis import strategies as st

from kdleak.dialect.source import split_lines
from kdleak.dialect.vm import parse_vm, starts_vm, take_vm

LABELS = st.text(st.sampled_from(string.ascii_letters + "  "), min_size=3, max_size=24).map(
    lambda text: "L" + " ".join(text.split())
)
FIGURE = st.integers(0, 2**64 - 1)


@st.composite
def outputs(draw):
    values = draw(st.lists(st.tuples(LABELS, FIGURE, FIGURE), min_size=1, max_size=10))
    unit = draw(st.sampled_from((" Kb", "Kb")))
    indent = draw(st.sampled_from(("", "  ", "\t", "      ")))
    gap = draw(st.sampled_from((" ", "   ")))
    lines = [
        f"{indent}{label + ':':24}{gap}{pages:8d}{gap}({kb:10d}{unit})"
        for label, pages, kb in values
    ]
    return values, "3: kd> !vm 1\n\n*** Virtual Memory Usage ***\n" + "\n".join(lines) + "\n"


@given(outputs())
def test_round_trip(case):
    values, text = case
    (usage,) = parse_vm(text).usages
    assert [(value.label, value.pages, value.kb) for value in usage.values] == values
    assert usage.unparsed == ()


@given(outputs(), st.integers(0, 1000))
def test_a_cut_anywhere_leaves_a_prefix(case, at):
    values, text = case
    read = [value for usage in parse_vm(text[:at]).usages for value in usage.values]
    assert [(value.label, value.pages, value.kb) for value in read] == values[: len(read)]


@given(outputs())
def test_signs(case):
    (usage,) = parse_vm(case[1]).usages
    for value in usage.values:
        assert value.signed_kb % 2**64 == value.kb
        assert -(2**63) <= value.signed_kb < 2**63


@given(st.text(max_size=400))
def test_any_text(text):
    count = len(split_lines(text))
    assert all(1 <= note.line <= count for note in parse_vm(text).unparsed)


@settings(max_examples=60)
@given(outputs(), st.lists(st.tuples(st.integers(0, 1000), st.characters()), max_size=12))
def test_damage_anywhere(case, damage):
    signs = list(case[1])
    for at, sign in damage:
        signs[at % len(signs)] = sign
    lines = split_lines("".join(signs))
    for index in range(len(lines)):
        if starts_vm(lines, index):
            _, end = take_vm(lines, index)
            assert index < end <= len(lines)
