"""Every sample of a whole session gives every expected value."""

from __future__ import annotations

from typing import Any, Dict

import pytest
from corpus_sample import differences, load

from kdleak.dialect.log import parse_log

SAMPLES = [45, 46, 47, 48, 49]


def in_our_terms(hit: Dict[str, Any]) -> Dict[str, Any]:
    """A hit of the JSON with its stack in one place, and ``number`` for ``frame``."""
    frames = [
        {"number" if key == "frame" else key: value for key, value in frame.items()}
        for frame in hit["frames"]
    ]
    rest = {key: value for key, value in hit.items() if key not in {"frames", "warnings"}}
    return {**rest, "stack": {"frames": frames, "warnings": hit["warnings"]}}


@pytest.mark.parametrize("number", SAMPLES)
def test_sample(number):
    lines, expected = load(number)
    log = parse_log(lines)
    assert list(log.commands) == expected["commands"]
    assert differences(log.hits, [in_our_terms(hit) for hit in expected["hits"]]) == []
    if expected["pool_hit_tag"] is None:
        assert log.pool_hit_tag is None
    else:
        assert differences(log.pool_hit_tag, expected["pool_hit_tag"]) == []
    if expected["hits"]:
        assert log.architecture is not None
        assert log.architecture.value == expected["arch"]


def test_the_tag_of_a_conditional_breakpoint():
    lines, expected = load(49)
    assert str(parse_log(lines).tag) == expected["tag"]


def test_remarks_and_prints_are_no_outputs():
    log = parse_log(load(45)[0])
    told = {entry.why for entry in log.unparsed}
    assert told == {
        "output of 'dt Tubrel!g_SettingRange' is not read",
        "output of '?? sizeof(nt!_POOL_HEADER)' is not read",
        "output of 'dt nt!_POOL_HEADER 0x86c6a630-8' is not read",
    }


def test_a_tag_taken_back():
    lines, _ = load(48)
    use = parse_log(lines).pool_hit_tag
    assert use is not None
    assert [write.value for write in use.writes] == [0x746C6157, 0]
    assert not use.left_armed


def test_processor_of_a_hit():
    assert [hit.cpu for hit in parse_log(load(48)[0]).hits] == [2, 0]
