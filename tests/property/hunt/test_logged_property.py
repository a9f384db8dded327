"""Any text has contents and reports: nothing raises, counts agree, nothing harmful is shown."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kdleak.dialect.log import parse_log
from kdleak.dialect.source import decode
from kdleak.logged import contents_of_log, rank_of_snapshots
from kdleak.report.logged_text import render_logged_rank
from kdleak.report.parse_json import logged_rank_json, parse_json
from kdleak.report.parse_text import render_contents
from kdleak.result import Judgement

TESTS = Path(__file__).parents[2]
FILES = sorted([*TESTS.glob("corpus/*.txt"), *TESTS.glob("transcripts/*.txt")])
LINES = [decode(path.read_bytes()).splitlines() for path in FILES]
SLOW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def mixtures(draw):
    """Pieces of several samples, shuffled together, some lines damaged."""
    lines: list[str] = []
    for sample in draw(st.lists(st.sampled_from(LINES), min_size=1, max_size=4)):
        start = draw(st.integers(0, max(0, len(sample) - 1)))
        lines += sample[start : start + draw(st.integers(1, 80))]
    for _ in range(draw(st.integers(0, 6))):
        index = draw(st.integers(0, len(lines) - 1))
        line = lines[index]
        at = draw(st.integers(0, len(line)))
        lines[index] = line[:at] + draw(st.text(max_size=6)) + line[at + draw(st.integers(0, 4)) :]
    return "\n".join(lines)


def check(text: str) -> None:
    contents = contents_of_log(parse_log(text), "log")
    shown = render_contents(contents, all_unparsed=True)
    assert all(char == "\n" or char.isprintable() for char in shown)
    (log,) = json.loads(parse_json([contents]))["logs"]
    assert len(log["not_understood"]) + len(log["not_read"]) == len(contents.log.unparsed)
    assert sum(len(hunt["hits"]) for hunt in log["hunts"]) == len(contents.log.hits)
    for hunt in contents.hunts:
        booked = sum(site.allocs + site.frees for site in hunt.sites)
        assert booked + hunt.without_site + hunt.unknown_kind == len(hunt.hits)
        judgements = {site.judgement for site in hunt.sites}
        assert not judgements & {Judgement.ACCUSED, Judgement.CLEARED}
    if contents.snapshots:
        twice = rank_of_snapshots([*contents.snapshots, *contents.snapshots])
        assert render_logged_rank(twice).endswith("\n")
        assert json.loads(logged_rank_json(twice))["format"] == "kdleak.logrank"


@given(mixtures())
@SLOW
def test_mixtures(text):
    check(text)


@given(st.text(max_size=300))
@SLOW
def test_any_text(text):
    check(text)
