"""A leak, its fix, and a gate: two real hunts, reported in every format and compared."""

from __future__ import annotations

import json

import pytest


def hunt(start, practice, permille: int, name: str, folder):
    """Hunt on a practice kernel whose driver leaks so many of 1000 requests."""
    target = practice("kdnet", leak_permille=permille)
    result, page = folder / f"{name}.json", folder / f"{name}.html"
    options = ["--tag", "Leak", "--full-speed", "--hits", 300, "--min-age", 0.4]
    start("hunt", "-k", target.connection, *options, "--json", "-o", result, "--html", page).ends(
        0, timeout=90
    )
    target.assert_unharmed()
    return result, page


@pytest.fixture
def hunts(start, practice, tmp_path):
    """The JSON of the hunt before the fix and after it, and the HTML of both."""
    before, before_page = hunt(start, practice, 400, "before", tmp_path)
    after, after_page = hunt(start, practice, 0, "after", tmp_path)
    return before, after, before_page, after_page


def test_a_fix_is_seen_and_gated(hunts, in_process, tmp_path):
    before, after, before_page, after_page = hunts
    documents = [json.loads(file.read_text(encoding="utf-8")) for file in (before, after)]
    assert [document["accused"] is None for document in documents] == [False, True]
    assert "TrackRequest" in documents[0]["verdict"][0]
    assert "comes back" in documents[1]["verdict"][0]
    for file in (before_page, after_page):
        assert file.stat().st_size < 1_000_000
    # Rendered later it is the same page.
    again = tmp_path / "again.html"
    assert in_process("report", before, "--html", again)[0] == 0
    assert again.read_bytes() == before_page.read_bytes()

    code, out, _ = in_process("diff", before, after, "--fail-on", "leak,worse,new,growth:4KB/h")
    assert code == 0
    assert out.startswith("Fixed: leakydrv!TrackRequest+0x1d: ")
    code, out, err = in_process("diff", after, before, "--fail-on", "leak")
    assert code == 1
    assert out.startswith("New leak: leakydrv!TrackRequest+0x1d: ")
    assert err == "--fail-on leak: leakydrv!TrackRequest+0x1d new leak\n"

    folded, scope = tmp_path / "b.folded", tmp_path / "b.speedscope.json"
    assert in_process("report", before, "--folded", folded, "--speedscope", scope)[0] == 0
    stacks = [line.rpartition(" ") for line in folded.read_text(encoding="utf-8").splitlines()]
    total = documents[0]["pairing"]["outstanding_bytes"]
    assert sum(int(weight) for *_, weight in stacks) == total > 0
    assert any(";leakydrv!TrackRequest+0x1d;" in stack for stack, *_ in stacks)
    profile = json.loads(scope.read_text(encoding="utf-8"))["profiles"][0]
    assert profile["endValue"] == total
