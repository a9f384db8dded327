"""Every stack sample gives every expected value."""

from __future__ import annotations

from typing import Any, Dict, List

import pytest
from corpus_sample import differences, load

from kdleak.dialect.stack import StackText, parse_stacks, starts_stack, take_stack

STACK_SAMPLES = [*range(13, 43), 44]
POINTERS = 43
REMARKS_IN_NEXT_LINE = {33: [(50, "the row is cut between its arguments")]}


def expected_stacks(expected: Dict[str, Any]) -> List[Dict[str, Any]]:
    """The stacks of a sample in our terms: a frame's ``frame`` is our ``number``."""
    return [
        {
            "command": stack["command"],
            "warnings": stack["warnings"],
            "frames": [
                {"number" if key == "frame" else key: value for key, value in frame.items()}
                for frame in stack["frames"]
            ],
        }
        for stack in expected.get("stacks", [expected])
    ]


@pytest.mark.parametrize("number", STACK_SAMPLES)
def test_sample(number):
    lines, expected = load(number)
    found = parse_stacks(lines)
    wanted = expected_stacks(expected)
    assert len(wanted) > 0
    assert differences(list(found.stacks), wanted) == []
    assert found.listings == ()
    reported = [(entry.line, entry.why) for entry in found.unparsed]
    assert reported == REMARKS_IN_NEXT_LINE.get(number, [])
    size = 4 if expected["arch"] == "x86" else 8
    assert {stack.pointer_size or size for stack in found.stacks} == {size}
    assert not any(stack.rejected for stack in found.stacks)


@pytest.mark.parametrize("number", STACK_SAMPLES)
def test_what_the_json_leaves_out_is_absent(number):
    """The marks a frame may have are set where the sample says so, and nowhere else."""
    lines, expected = load(number)
    marks = ("wrapped", "uncertain", "trap_frame", "parameters", "address", "frame_address")
    for stack, wanted in zip(parse_stacks(lines).stacks, expected_stacks(expected)):
        for frame, other in zip(stack.frames, wanted["frames"]):
            for mark in marks:
                assert (not any(getattr(frame, mark) is one for one in (None, False))) == (
                    mark in other
                ), mark
            assert (frame.args is not None) == ("args" in other)
            assert (frame.number is not None) == ("number" in other)


def test_pointer_sample():
    lines, expected = load(POINTERS)
    found = parse_stacks(lines)
    (listing,) = found.listings
    wanted = {key: expected[key] for key in ("command", "rows", "warnings")}
    assert differences(listing, wanted) == []
    assert found.stacks == ()
    assert found.unparsed == ()


@pytest.mark.parametrize("number", STACK_SAMPLES)
def test_readers_for_a_walker(number):
    """Walking with ``starts`` and ``take`` alone finds the same stacks and commands."""
    lines, _ = load(number)
    walked: List[StackText] = []
    index = 0
    while index < len(lines):
        if starts_stack(lines, index):
            stack, following = take_stack(lines, index)
            assert following > index
            walked.append(stack)
            index = following
        else:
            index += 1
    assert walked == list(parse_stacks(lines).stacks)
