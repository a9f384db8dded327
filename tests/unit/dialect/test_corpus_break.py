"""Every sample of breaks, registers and module lists gives every expected value."""

from __future__ import annotations

from typing import Any, Dict

import pytest
from corpus_sample import differences, load

from kdleak.dialect.breaks import parse_breaks
from kdleak.dialect.log import parse_log
from kdleak.dialect.modules import parse_modules
from kdleak.dialect.prompt import find_prompt
from kdleak.dialect.registers import RegisterBlock, parse_registers
from kdleak.dialect.source import split_lines


def in_our_terms(expected: Dict[str, Any]) -> Dict[str, Any]:
    """A break of the JSON: bytes and instruction are the place's, bugcheck is bug_check."""
    terms = dict(expected)
    place = {key: terms.pop(key) for key in ("bytes", "instruction") if key in terms}
    if place:
        terms["place"] = place
    if "bugcheck" in terms:
        terms["bug_check"] = terms.pop("bugcheck")
    return terms


@pytest.mark.parametrize("number", [50, 51, 52, 53, 54, 55])
def test_break_sample(number):
    lines, expected = load(number)
    found = parse_breaks(lines)
    assert differences(found.breaks, [in_our_terms(item) for item in expected["breaks"]]) == []
    prompts = [prompt for prompt in map(find_prompt, lines) if prompt]
    assert differences(prompts, expected["prompts"]) == []
    for stop, other in zip(found.breaks, expected["breaks"]):
        assert (stop.place is None) == ("symbol" not in other)
        assert stop.ctrl_c == other.get("ctrl_c", False)
        assert (stop.bug_check is None) == ("bugcheck" not in other)
        assert (stop.process is None) == ("process" not in other)
    log = parse_log(lines)
    assert log.hits == ()
    assert len(log.prompts) == len(expected["prompts"])


def check_registers(block: RegisterBlock, expected: Dict[str, Any]) -> None:
    wanted = dict(expected)
    assert list(block.flags) == wanted.pop("flags")
    values = {
        name: value if isinstance(value, int) else int(value, 16) for name, value in wanted.items()
    }
    assert dict(block.values) == values
    assert list(block.values)[:3] == list(values)[:3]


def test_registers_behind_a_breakpoint():
    lines, expected = load(55)
    (block,) = parse_registers(lines).blocks
    check_registers(block, expected["registers"])


@pytest.mark.parametrize("number", [76, 77])
def test_registers_sample(number):
    lines, expected = load(number)
    (block,) = parse_registers(lines).blocks
    check_registers(block, expected["registers"])
    place = {key: expected[key] for key in ("symbol", "address", "bytes", "instruction")}
    assert differences(block.place, place) == []
    assert block.architecture is not None
    assert block.architecture.value == expected["arch"]
    assert block.unparsed == ()


def test_user_registers_between_banner_and_label():
    stop = parse_breaks(load(54)[0]).breaks[1]
    assert stop.registers is not None
    assert stop.registers.values["eip"] == stop.address == 0x5FA043DE


@pytest.mark.parametrize("number", [73, 74, 75])
def test_modules_sample(number):
    lines, expected = load(number)
    found = parse_modules(lines)
    if number == 74:
        # The JSON gives another drive letter than its text.
        assert expected["modules"][4]["file"].startswith("k:")
        expected["modules"][4]["file"] = "q" + expected["modules"][4]["file"][1:]
    assert differences(found.modules, expected["modules"]) == []
    assert differences(found.unloaded, expected.get("unloaded", [])) == []
    assert found.unparsed == ()


@pytest.mark.parametrize(
    ("text", "prompt", "command", "cpu"),
    [
        ("0: kd> k", "0: kd>", "k", 0),
        ("11: kd>", "11: kd>", "", 11),
        ("lkd> !poolused 4", "lkd>", "!poolused 4", None),
        ("0: lkd> r", "0: lkd>", "r", 0),
        ("1: Kd> lm", "1: Kd>", "lm", 1),
        ("## kd> k", "## kd>", "k", None),
        ("> kb", ">", "kb", None),
        (">", ">", "", None),
        ("3 kd kb", "3 kd", "kb", 3),
        ("2:000>1: kd> k", "1: kd>", "k", 1),
        ("2:041>", "2:041>", "", None),
        ("0: kd> kb                      [Local        8:38 AM]", "0: kd>", "kb", 0),
        ("kd> .bugcheck       [Shows the stop codes.]", "kd>", ".bugcheck", None),
        ("kd> g   // and wait", "kd>", "g", None),
        ("kd> k ; now the stack", "kd>", "k", None),
        ("kd> r eax; g", "kd>", "r eax; g", None),
        ("kd>> ed nt!poolhittag 'eliF'", "kd>>", "ed nt!poolhittag 'eliF'", None),
        ("kd> ed nt!PoolHitTag ' nrV' ", "kd>", "ed nt!PoolHitTag ' nrV'", None),
    ],
)
def test_prompts(text, prompt, command, cpu):
    found = find_prompt(split_lines(text)[0])
    assert found is not None
    assert (found.prompt, found.command, found.cpu) == (prompt, command, cpu)


@pytest.mark.parametrize(
    "text", ["", "kdcom (deferred)", "> it was like this", "5 kd is a name", "3:15> no", "<kd>"]
)
def test_no_prompts(text):
    assert find_prompt(split_lines(text + "\n")[0]) is None


def test_prompt_details():
    (line,) = split_lines("2:000>lkd> k   [Local  8:38 AM]")
    found = find_prompt(line)
    assert found is not None
    assert found.local_kernel
    assert (found.outer, found.stamp) == ("2:000>", "Local  8:38 AM")
