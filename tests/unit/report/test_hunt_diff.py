"""Two hunts compared: what is matched, what is said, and when nothing can be said."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from result_documents import hostile, node, sample

from kdleak.report.hunt_diff import HuntComparison, Outcome, compare_hunts
from kdleak.report.hunt_diff_json import hunt_diff_json
from kdleak.report.hunt_diff_sites import pair_sites, poisson_interval, site_figures
from kdleak.report.hunt_diff_text import render_hunt_diff

SCHEMA = json.loads(
    (Path(__file__).parents[3] / "kdleak/report/schema/huntdiff.schema.json").read_text("utf-8")
)
LEAK, CONTEXT = "leakydrv!TrackRequest+0x1d", "leakydrv!BuildContext+0x4b"


def site_of(document: dict[str, Any], name: str = LEAK) -> dict[str, Any]:
    return next(site for site in document["call_sites"] if site["frame"]["text"] == name)


def hunt(stayed: int = 27, allocs: int = 71, **site: Any) -> dict[str, Any]:
    """The sample with other figures at the leaking call site."""
    document = sample()
    for one in document["call_sites"]:
        one.pop("scaled", None)
    judgement = "accused" if stayed else "cleared" if allocs >= 20 else "too_few"
    site_of(document).update(
        {
            "allocs": allocs,
            "outstanding": stayed,
            "outstanding_old": stayed,
            "outstanding_bytes": stayed * 320,
            "unwatched": 0,
            "returned": allocs - stayed,
            "judgement": judgement,
            **site,
        }
    )
    if not stayed:
        document["accused"] = None
    return document


def moved(
    document: dict[str, Any], offset: int, name: str = LEAK, symbol: str = ""
) -> dict[str, Any]:
    frame = site_of(document, name)["frame"]
    symbol = symbol or frame["symbol"]
    frame.update(symbol=symbol, offset=offset, text=f"leakydrv!{symbol}+0x{offset:x}")
    return document


def without(document: dict[str, Any], name: str = LEAK) -> dict[str, Any]:
    document["call_sites"].remove(site_of(document, name))
    return document


def compare(before: dict[str, Any], after: dict[str, Any]) -> HuntComparison:
    comparison = compare_hunts(node(before), node(after))
    document = json.loads(hunt_diff_json(comparison))
    strict = json.loads(
        json.dumps(SCHEMA).replace('"additionalProperties": true', '"additionalProperties": false')
    )
    jsonschema.Draft202012Validator(strict).validate(document)
    text = render_hunt_diff(comparison)
    assert text.startswith(comparison.sentence[:20])
    assert all(len(line) <= 100 and line.isprintable() for line in text.splitlines())
    return comparison


def outcome_of(comparison: HuntComparison, name: str = LEAK) -> Outcome:
    return next(change.outcome for change in comparison.sites if change.pair.name == name)


def test_a_fix_is_seen() -> None:
    comparison = compare(hunt(), hunt(0))
    assert comparison.outcome is Outcome.FIXED
    assert comparison.sentence.startswith(f"Fixed: {LEAK}: none of its 71 blocks stayed")
    assert outcome_of(comparison, CONTEXT) is Outcome.CLEAN


def test_a_leak_that_goes_on_is_seen() -> None:
    comparison = compare(hunt(), hunt(30))
    assert comparison.outcome is Outcome.STILL
    assert "per hour before" in comparison.sentence


def test_load_and_length_do_not_matter_to_the_share() -> None:
    after = hunt(270, 710)
    after["completeness"].update(seconds=3.0, seconds_watched=3.0)
    assert compare(hunt(), after).outcome is Outcome.STILL


def test_worse_and_less_need_intervals_apart() -> None:
    assert compare(hunt(), hunt(71)).outcome is Outcome.WORSE
    assert compare(hunt(27), hunt(6)).outcome is Outcome.LESS
    assert compare(hunt(27), hunt(34)).outcome is Outcome.STILL


def test_too_few_allocations_after_cannot_tell_and_say_how_many_are_needed() -> None:
    comparison = compare(hunt(), hunt(0, 5))
    assert comparison.outcome is Outcome.CANNOT_TELL
    assert "too few allocations were seen after: 5; watch for at least 15." in comparison.sentence
    assert compare(hunt(), hunt(0, 15)).outcome is Outcome.FIXED
    assert compare(hunt(), hunt(0, 14)).outcome is Outcome.CANNOT_TELL


def test_blocks_that_were_lost_sight_of_prove_nothing() -> None:
    assert compare(hunt(), hunt(0, 71, unwatched=66)).outcome is Outcome.CANNOT_TELL
    assert compare(hunt(), hunt(0, 71, unaddressed=71)).outcome is Outcome.CANNOT_TELL


def test_a_few_stayers_of_very_many_are_a_fix_when_the_hunt_clears_them() -> None:
    after = hunt(1, 500, judgement="cleared")
    assert compare(hunt(), after).outcome is Outcome.FIXED
    after = hunt(20, 71, judgement="suspected")
    assert compare(hunt(), after).outcome is Outcome.STILL
    after = hunt(20, 71, judgement="cleared")
    assert compare(hunt(), after).outcome is Outcome.CANNOT_TELL


def test_a_new_leak_is_seen() -> None:
    comparison = compare(without(hunt()), hunt())
    assert comparison.outcome is Outcome.NEW
    assert "it was not seen before, and leaks" in comparison.sentence
    assert compare(hunt(0), hunt()).outcome is Outcome.NEW
    assert compare(hunt(0, judgement="too_few", allocs=2), hunt()).outcome is Outcome.STILL


def test_a_call_site_only_suspected_and_new_cannot_be_told() -> None:
    after = hunt(5, judgement="suspected")
    assert compare(without(hunt()), after).outcome is Outcome.CANNOT_TELL


def test_a_call_site_that_is_gone_is_fixed_only_when_its_work_was_done() -> None:
    comparison = compare(hunt(), without(hunt(0)))
    assert comparison.outcome is Outcome.FIXED
    assert "about 71 allocations were to be expected" in comparison.sentence
    short = without(hunt(0))
    short["completeness"].update(seconds=0.1, seconds_watched=0.1)
    assert compare(hunt(), short).outcome is Outcome.CANNOT_TELL
    alone = without(hunt(0))
    alone["call_sites"] = [site for site in alone["call_sites"] if not site["allocs"]]
    assert compare(hunt(), alone).outcome is Outcome.CANNOT_TELL


def test_neither_leaks() -> None:
    comparison = compare(hunt(0), hunt(0))
    assert comparison.outcome is Outcome.CLEAN
    assert comparison.sentence == "No leak of 'Leak' in either hunt."


def test_offsets_that_moved_are_matched_by_function() -> None:
    comparison = compare(hunt(), moved(hunt(0), 0x2C))
    assert comparison.outcome is Outcome.FIXED
    change = comparison.sites[0]
    assert change.pair.matched_by == "function"
    assert change.pair.before is not None
    assert change.pair.before.name == LEAK
    assert change.pair.name == "leakydrv!TrackRequest+0x2c"
    assert "Matched by function." in render_hunt_diff(comparison)


def test_several_call_sites_of_one_function_keep_their_order() -> None:
    before, after = hunt(), hunt(0)
    for document, offset in ((before, 0x80), (after, 0x90)):
        second = deepcopy(site_of(document, CONTEXT))
        document["call_sites"].append(second)
        second["frame"].update(symbol="TrackRequest", offset=offset)
        second["frame"]["text"] = f"leakydrv!TrackRequest+0x{offset:x}"
    comparison = compare(before, moved(after, 0x2C))
    pairs = {
        change.pair.before.name: change.pair.after.name
        for change in comparison.sites
        if change.pair.before and change.pair.after and "Track" in change.pair.name
    }
    assert pairs == {
        LEAK: "leakydrv!TrackRequest+0x2c",
        "leakydrv!TrackRequest+0x80": "leakydrv!TrackRequest+0x90",
    }


def test_call_sites_of_one_function_that_do_not_fit_are_taken_together() -> None:
    before = hunt()
    second = deepcopy(site_of(before))
    before["call_sites"].append(second)
    second["frame"].update(offset=0x80, text="leakydrv!TrackRequest+0x80")
    comparison = compare(before, moved(hunt(0), 0x2C))
    change = next(one for one in comparison.sites if "Track" in one.pair.name)
    assert change.pair.matched_by == "functions taken together"
    assert change.pair.before is not None
    assert (change.pair.before.stayed, change.pair.before.followed) == (54, 142)
    assert change.outcome is Outcome.FIXED


def test_other_tags_and_hunts_of_nothing_cannot_be_told() -> None:
    other = hunt()
    other["tag"]["text"] = "Busy"
    comparison = compare(hunt(), other)
    assert comparison.outcome is Outcome.CANNOT_TELL
    assert "different tags, 'Leak' and 'Busy'" in comparison.sentence
    none = hunt()
    none["tag"] = None
    assert "hunted no tag" in compare(hunt(), none).sentence
    empty = hunt()
    empty["completeness"]["hits"] = 0
    assert "saw no allocation of 'Leak'" in compare(hunt(), empty).sentence


def test_what_makes_a_comparison_doubtful_is_remarked() -> None:
    after = hunt()
    after["target"].update(architecture="arm64")
    after["started_at"] = "2020-01-01T00:00:00.000Z"
    after["completeness"].update(bursts=5, seconds=1.0, seconds_watched=0.45)
    remarks = " ".join(compare(hunt(), after).remarks)
    assert "The targets differ: x64 before, arm64 after." in remarks
    assert "The hunt named first is the later one" in remarks
    assert "was sampled: watched 45% of the time" in remarks
    assert "Not both can be scaled" in remarks


def test_scaled_figures_are_taken_where_both_have_them() -> None:
    scaled = {
        "blocks": 100.0,
        "blocks_within": {"low": 80.0, "high": 120.0},
        "bytes": 3600.0,
        "bytes_within": {"low": 1800.0, "high": 7200.0},
    }
    after = hunt()
    after["completeness"].update(bursts=5, seconds=10.0, seconds_watched=2.0)
    for site in after["call_sites"]:
        site["scaled"] = scaled
    comparison = compare(hunt(), after)
    figures = comparison.sites[0].pair.after
    assert figures is not None
    assert figures.bytes_per_hour == pytest.approx(3600 * 360)
    assert (figures.within.low, figures.within.high) == (1800 * 360, 7200 * 360)


def test_hostile_names_stay_harmless() -> None:
    compare(hostile(), hostile())


@given(st.integers(0, 10**6))
def test_an_interval_of_a_count_holds_it(count: int) -> None:
    interval = poisson_interval(count)
    assert 0 <= interval.low <= count <= interval.high
    # Garwood's exact limits: 0 to 3.689 for none, 4.80 to 18.39 for ten.
    if count == 10:
        assert (interval.low, interval.high) == pytest.approx((4.80, 18.39), abs=0.01)


def test_a_hunt_compared_with_itself_pairs_every_call_site() -> None:
    figures = site_figures(node(sample()), scaled=False)
    pairs = pair_sites(figures, figures)
    assert len(pairs) == len(figures)
    assert all(pair.before is pair.after for pair in pairs)
    assert all(pair.matched_by == "offset" for pair in pairs)
