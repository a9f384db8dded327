"""Samples of tests/corpus_own, and stacks of both corpora in decorations that change nothing."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import pytest
from corpus_sample import CORPUS, differences
from test_corpus_break import check_registers
from test_corpus_break import in_our_terms as break_in_our_terms
from test_corpus_session import in_our_terms as hit_in_our_terms
from test_corpus_stack import expected_stacks

from kdleak.dialect.breaks import parse_breaks
from kdleak.dialect.decoration import undecorate
from kdleak.dialect.log import DebuggerLog, parse_log
from kdleak.dialect.modules import parse_modules
from kdleak.dialect.pointer_listing import PointerListing
from kdleak.dialect.prompt import find_prompt
from kdleak.dialect.registers import parse_registers
from kdleak.dialect.source import Line, decode
from kdleak.dialect.stack import StackText, parse_stacks

OWN = CORPUS.parent / "corpus_own"
MARKS = ("wrapped", "uncertain", "trap_frame", "parameters", "address", "frame_address")
Lines = Tuple[Line, ...]


def samples(kind: str) -> List[Path]:
    return sorted(OWN.glob(f"[0-9][0-9][0-9]-{kind}-*.txt"))


def load(path: Path) -> Tuple[Lines, Dict[str, Any]]:
    expected: Dict[str, Any] = json.loads(path.with_suffix(".json").read_text("utf-8"))
    return tuple(undecorate(decode(path.read_bytes()))), expected


def of_kind(kind: str) -> Any:
    return pytest.mark.parametrize("path", samples(kind), ids=lambda path: path.stem)


def reported(found: Any) -> List[List[Any]]:
    return [[entry.line, entry.why] for entry in found.unparsed]


@of_kind("stack")
def test_stack(path):
    lines, expected = load(path)
    found = parse_stacks(lines)
    log = parse_log(lines)
    assert reported(found) == expected.get("reported", [])
    assert log.of(StackText) == found.stacks
    assert log.of(PointerListing) == found.listings
    if "rows" in expected:
        wanted = {key: expected[key] for key in ("command", "rows", "warnings")}
        assert differences(list(found.listings), [wanted]) == []
        return
    wanted_stacks = expected_stacks(expected)
    assert differences(list(found.stacks), wanted_stacks) == []
    for stack, wanted_stack in zip(found.stacks, wanted_stacks):
        for frame, wanted in zip(stack.frames, wanted_stack["frames"]):
            for mark in MARKS:
                value = getattr(frame, mark)
                assert (value is not None and value is not False) == (mark in wanted), mark
            assert (frame.args is not None) == ("args" in wanted)
            assert (frame.number is not None) == ("number" in wanted)


@of_kind("session")
def test_session(path):
    lines, expected = load(path)
    log = parse_log(lines)
    assert list(log.commands) == expected["commands"]
    assert len(log.hits) == len(expected["hits"])
    for hit, of_json in zip(log.hits, expected["hits"]):
        wanted = hit_in_our_terms(of_json)
        if not of_json["frames"]:
            assert hit.stack is None
            del wanted["stack"]
        assert differences(hit, wanted) == []
    if expected["pool_hit_tag"] is None:
        assert log.pool_hit_tag is None
    else:
        assert differences(log.pool_hit_tag, expected["pool_hit_tag"]) == []
    if "tag" in expected:
        assert str(log.tag) == expected["tag"]
    if expected["hits"]:
        assert (log.architecture and log.architecture.value) == expected["arch"]
    assert reported(log) == expected.get("reported", [])


@of_kind("break")
def test_break(path):
    lines, expected = load(path)
    found = parse_breaks(lines)
    wanted = [break_in_our_terms(item) for item in expected["breaks"]]
    assert differences(found.breaks, wanted) == []
    prompts = [prompt for prompt in map(find_prompt, lines) if prompt]
    assert differences(prompts, expected["prompts"]) == []
    for stop, other in zip(found.breaks, expected["breaks"]):
        assert (stop.place is None) == ("address" not in other)
    log = parse_log(lines)
    assert log.hits == ()
    assert len(log.prompts) == len(expected["prompts"])


@of_kind("lm")
def test_modules(path):
    lines, expected = load(path)
    found = parse_modules(lines)
    assert differences(found.modules, expected["modules"]) == []
    assert differences(found.unloaded, expected.get("unloaded", [])) == []
    assert found.unparsed == ()


@of_kind("registers")
def test_registers(path):
    lines, expected = load(path)
    (block,) = parse_registers(lines).blocks
    check_registers(block, expected["registers"])
    place = {key: expected[key] for key in ("symbol", "address", "bytes", "instruction")}
    assert differences(block.place, place) == []
    assert block.architecture is not None
    assert block.architecture.value == expected["arch"]


def test_every_kind_is_there():
    counts = {kind: len(samples(kind)) for kind in ("stack", "session", "break", "lm", "registers")}
    assert counts == {"stack": 55, "session": 26, "break": 10, "lm": 5, "registers": 4}


DECORATIONS: Dict[str, Callable[[str], str]] = {
    "quoted": lambda text: "".join(f"> {line}\n" for line in text.split("\n")),
    "html": lambda text: html.escape(text, quote=False),
    "CR LF": lambda text: text.replace("\n", "\r\n"),
    "indented": lambda text: "".join(f"     {line}\n" for line in text.split("\n")),
    "trailing blanks": lambda text: text.replace("\n", "  \n"),
    "comment": lambda text: "".join(f"//   {line}\n" for line in text.split("\n")),
    "fenced": lambda text: f"```\n{text}\n```\n",
}


DECORATED = {"27", "40", "41", "42", "222", "224", "237", "241", "242", "268"}


def outline(log: DebuggerLog) -> List[Any]:
    """What must not change: every frame, every hit, every command."""
    frames = [
        (frame.number, frame.return_address, frame.args, frame.module, frame.symbol, frame.offset)
        for stack in log.of(StackText)
        for frame in stack.frames
    ]
    hits = [(hit.kind, hit.symbol, hit.address, hit.driver_frame) for hit in log.hits]
    return [frames, hits, log.commands, str(log.tag)]


@pytest.mark.parametrize("decoration", DECORATIONS)
@pytest.mark.parametrize(
    "path",
    [
        path
        for corpus in (CORPUS, OWN)
        for kind in ("stack", "session")
        for path in sorted(corpus.glob(f"*[0-9]-{kind}-*.txt"))
    ],
    ids=lambda path: path.stem,
)
def test_decoration_changes_nothing(path, decoration):
    text = decode(path.read_bytes()).replace("\r\n", "\n")
    if decoration == "comment" and path.name[:3].rstrip("-") in DECORATED:
        return  # it has signs of its own; which go first is open
    plain = outline(parse_log(text))
    assert outline(parse_log(DECORATIONS[decoration](text))) == plain
