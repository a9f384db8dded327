"""Folded stacks, speedscope files, and the tree behind the icicle."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_samples import GOLDEN
from result_documents import HOSTILE, hostile, many_stacks, node, sample

from kdleak import __version__
from kdleak.report.folded import folded
from kdleak.report.speedscope import speedscope
from kdleak.report.stack_tree import merge_stacks
from kdleak.report.stack_weights import WeighedStack, Weight, weighed_stacks

FOLDED = {
    "flame_bytes.folded": lambda: folded(node(sample())),
    "flame_allocs.folded": lambda: folded(node(sample()), Weight.ALLOCS, offsets=False),
}


def speedscope_text() -> str:
    return speedscope(node(sample())).replace(__version__, "0")


@pytest.mark.parametrize("name", FOLDED)
def test_folded_stacks_are_as_they_were(name: str) -> None:
    assert FOLDED[name]() == (GOLDEN / name).read_text(encoding="utf-8")


def test_the_speedscope_file_is_as_it_was() -> None:
    assert speedscope_text() == (GOLDEN / "flame.speedscope.json").read_text(encoding="utf-8")


def test_folded_stacks_weigh_what_the_hunt_says() -> None:
    document = sample()
    lines = folded(node(document)).splitlines()
    total = sum(int(line.rpartition(" ")[2]) for line in lines)
    assert total == document["pairing"]["outstanding_bytes"] > 0
    assert lines[0].startswith("nt!KiStartSystemThread+0x20;")
    assert ";leakydrv!TrackRequest+0x1d;nt!ExAllocatePool2+0x20;" in lines[0]


def test_the_speedscope_file_has_what_its_format_asks_for() -> None:
    pairing = sample()["pairing"]
    document = json.loads(speedscope(node(sample())))
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = document["shared"]["frames"]
    assert all(set(frame) == {"name"} for frame in frames)
    assert [profile["unit"] for profile in document["profiles"]] == ["bytes", "none"]
    for profile, total in zip(
        document["profiles"], (pairing["outstanding_bytes"], pairing["outstanding"])
    ):
        assert profile["type"] == "sampled"
        assert len(profile["samples"]) == len(profile["weights"]) == 1
        assert profile["startValue"] == 0
        assert profile["endValue"] == sum(profile["weights"]) == total
        assert all(0 <= index < len(frames) for one in profile["samples"] for index in one)
    outermost = frames[document["profiles"][0]["samples"][0][0]]["name"]
    assert outermost == "nt!KiStartSystemThread+0x20"


def test_hostile_names_break_no_line() -> None:
    text = folded(node(hostile()))
    lines = text.split("\n")[:-1]
    assert len(lines) == 1
    assert text.count("\n") == 1
    stack, _, value = lines[0].rpartition(" ")
    assert int(value) == sample()["stacks"][0]["outstanding_bytes"]
    assert len(stack.split(";")) == 9  # a semicolon in a name ends no frame
    for char in "\x00\x1b\r\u202e\u2028":
        assert char not in text
        assert char not in json.loads(speedscope(node(hostile())))["name"]
    assert any(name in text for name in HOSTILE[:1])


def test_an_early_end_is_a_frame_of_its_own() -> None:
    document = sample()
    document["stacks"][0]["end"] = "unreadable"
    assert folded(node(document)).startswith("(the stack ends early: unreadable);nt!")


def test_no_weight_gives_nothing() -> None:
    document = sample()
    document["stacks"] = []
    assert folded(node(document)) == ""
    assert json.loads(speedscope(node(document)))["profiles"][0]["samples"] == []


names = st.sampled_from("abcdef")
stacks = st.lists(
    st.builds(
        WeighedStack,
        st.lists(names, min_size=1, max_size=6).map(tuple),
        st.tuples(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99)),
    ),
    max_size=20,
)


@given(stacks)
def test_the_tree_weighs_what_the_stacks_weigh(given_stacks: list[WeighedStack]) -> None:
    tree = merge_stacks(given_stacks, max_frames=10_000)
    assert tree.left_out == 0
    for index in range(3):
        assert tree.totals[index] == sum(stack.weights[index] for stack in given_stacks)
        outermost = sum(one.weights[index] for one in tree.frames if one.parent < 0)
        assert outermost == tree.totals[index]
    for index, one in enumerate(tree.frames):
        assert one.parent < index  # callers come first
        callees = [other for other in tree.frames if other.parent == index]
        for weight in range(3):
            assert sum(other.weights[weight] for other in callees) <= one.weights[weight]
        assert len({other.name for other in callees}) == len(callees)


@given(stacks, st.integers(0, 12))
def test_a_bounded_tree_keeps_whole_branches(given_stacks: list[WeighedStack], most: int) -> None:
    whole = merge_stacks(given_stacks, max_frames=10_000)
    tree = merge_stacks(given_stacks, max_frames=most)
    assert len(tree.frames) == min(most, len(whole.frames))
    assert tree.left_out == len(whole.frames) - len(tree.frames)
    assert tree.totals == whole.totals
    assert all(one.parent < index for index, one in enumerate(tree.frames))


def test_a_stack_deeper_than_python_is_merged() -> None:
    deep = WeighedStack(tuple(str(index) for index in range(5000)), (1, 1, 1))
    assert len(merge_stacks([deep], max_frames=9000).frames) == 5000


def test_only_what_allocated_is_there() -> None:
    stacks = list(weighed_stacks(node(sample())))
    allocating = [stack["allocs"] for stack in sample()["stacks"] if stack["allocs"]]
    assert [stack.of(Weight.ALLOCS) for stack in stacks] == allocating
    assert len(list(weighed_stacks(node(many_stacks(20, 10))))) == 20
