"""``kdleak report``, ``hunt --html`` and ``kdleak diff`` of hunts, as their users call them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kdleak.cli.entry import run

SAMPLES = Path(__file__).parents[3] / "samples"
LEAK = SAMPLES / "hunts" / "practice-leak.json"
RANK = SAMPLES / "hunts" / "practice-rank.json"
DUMP = SAMPLES / "dumps" / "early.dmp"
LATER = SAMPLES / "dumps" / "later.dmp"


def one_sentence(err: str, *words: str) -> None:
    assert err.count("\n") == 1
    assert err.startswith("kdleak: ")
    assert "Next: " in err
    for word in words:
        assert word in err


@pytest.fixture
def fixed(tmp_path) -> Path:
    """The sample hunt as it might be after a fix: all blocks come back."""
    document = json.loads(LEAK.read_text(encoding="utf-8"))
    document["accused"] = None
    for site in document["call_sites"]:
        if site["allocs"]:
            site.update(
                judgement="cleared",
                returned=site["allocs"],
                outstanding=0,
                outstanding_old=0,
                outstanding_bytes=0,
            )
            site.pop("scaled", None)
    file = tmp_path / "fixed.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    return file


def test_all_formats_at_once(in_process, tmp_path):
    files = {
        "--html": tmp_path / "r.html",
        "--folded": tmp_path / "r.folded",
        "--speedscope": tmp_path / "r.json",
    }
    arguments = [word for option, file in files.items() for word in (option, file)]
    code, out, err = in_process("report", LEAK, *arguments)
    assert (code, out, err) == (0, "", "")
    assert files["--html"].read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert "leakydrv!TrackRequest+0x1d" in files["--folded"].read_text(encoding="utf-8")
    assert "profiles" in json.loads(files["--speedscope"].read_text(encoding="utf-8"))
    code, _, err = in_process("report", LEAK, "--html", files["--html"])
    assert code == 2
    one_sentence(err, "the file exists", "--force")
    assert in_process("report", LEAK, "--html", files["--html"], "--force")[0] == 0


def test_text_is_what_comes_without_an_option(in_process):
    code, out, err = in_process("report", LEAK)
    assert (code, err) == (0, "")
    assert out == in_process("report", LEAK, "--text")[1]
    assert out.splitlines()[-1].startswith("disarmed: nt!PoolHitTag is back at")


def test_what_folded_stacks_count(in_process, tmp_path):
    file = tmp_path / "f"
    weigh = ("--folded", file, "--force", "--no-offsets", "--weight")
    sums = {}
    for weight in ("bytes", "blocks", "allocs"):
        assert in_process("report", LEAK, *weigh, weight)[0] == 0
        text = file.read_text(encoding="utf-8")
        assert "+0x" not in text
        sums[weight] = sum(int(line.rsplit(" ", 1)[1]) for line in text.splitlines())
    document = json.loads(LEAK.read_text(encoding="utf-8"))
    assert sums["bytes"] == document["pairing"]["outstanding_bytes"]
    assert sums["blocks"] == document["pairing"]["outstanding"]
    assert sums["allocs"] == sum(site["allocs"] for site in document["call_sites"])


def test_nothing_that_weighs_is_told(in_process, fixed, tmp_path):
    document = json.loads(fixed.read_text(encoding="utf-8"))
    for stack in document["stacks"]:
        stack.update(outstanding=0, outstanding_bytes=0)
    fixed.write_text(json.dumps(document), encoding="utf-8")
    code, _, err = in_process("report", fixed, "--folded", tmp_path / "f")
    assert code == 0
    assert "No stack has any outstanding bytes" in err
    assert (tmp_path / "f").read_text(encoding="utf-8") == ""


def test_a_ranking_has_no_stacks(in_process, tmp_path):
    assert in_process("report", RANK, "--html", tmp_path / "r.html")[0] == 0
    assert "Leak" in in_process("report", RANK)[1]
    code, _, err = in_process("report", RANK, "--folded", tmp_path / "f")
    assert code == 2
    one_sentence(err, "a ranking has no stacks")
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is not JSON"),
        ("{", "it is not JSON"),
        ("[]", "not a result of kdleak"),
        ('{"format": "kdleak.parse", "format_version": "1.0"}', "it is kdleak.parse"),
        ('{"format": "kdleak.hunt", "format_version": "3.1"}', "its format version is 3.1"),
        ('{"format": "kdleak.hunt", "format_version": "1.0"}', "is not an object"),
    ],
)
def test_what_is_no_result_is_refused(in_process, tmp_path, text, words):
    file, html = tmp_path / "x.json", tmp_path / "x.html"
    file.write_text(text, encoding="utf-8")
    code, out, err = in_process("report", file, "--html", html)
    assert (code, out) == (2, "")
    one_sentence(err, words, "x.json")
    assert not html.exists()


def test_files_must_differ(in_process, tmp_path):
    same = tmp_path / "same"
    code, _, err = in_process("report", LEAK, "--html", same, "--folded", same)
    assert code == 2
    one_sentence(err, "same name")
    copy = tmp_path / "copy.json"
    copy.write_bytes(LEAK.read_bytes())
    assert in_process("report", copy, "--html", copy, "--force")[0] == 2
    assert copy.read_bytes() == LEAK.read_bytes()


def test_a_hunt_writes_its_html_only_where_it_may(in_process, tmp_path):
    file = tmp_path / "there.html"
    file.write_text("mine", encoding="utf-8")
    target = ("hunt", "-k", "com:ipport=1,port=127.0.0.1", "--html", file)
    code, _, err = in_process(*target)
    assert code == 2
    one_sentence(err, "the file exists")
    code, _, err = in_process(*target, "-o", file, "--force")
    assert code == 2
    one_sentence(err, "two of them have one name")
    assert file.read_text(encoding="utf-8") == "mine"


def test_hunts_before_and_after_a_fix(in_process, fixed, tmp_path):
    code, out, err = in_process("diff", LEAK, fixed, "--fail-on", "leak,growth:1KB")
    assert (code, err) == (0, "")
    assert out.startswith("Fixed: leakydrv!TrackRequest+0x1d: none of its")
    file = tmp_path / "d.json"
    assert in_process("diff", LEAK, fixed, "--json", "-o", file)[0] == 0
    assert json.loads(file.read_text(encoding="utf-8"))["outcome"] == "fixed"


def test_a_gate_is_passed_or_not(in_process, fixed):
    code, out, err = in_process("diff", LEAK, LEAK, "--fail-on", "leak", "--fail-on", "worse")
    assert code == 1
    assert out.startswith("Still leaks: ")
    assert err == "--fail-on leak: leakydrv!TrackRequest+0x1d still leaks\n"
    code, _, err = in_process("diff", fixed, LEAK, "--fail-on", "new")
    assert code == 1
    assert "new leak" in err
    assert in_process("diff", LEAK, LEAK)[0] == 0
    assert in_process("diff", LEAK, LEAK, "--fail-on", "worse")[0] == 0


def test_what_cannot_be_told_is_incomplete_or_gated(in_process, fixed):
    document = json.loads(fixed.read_text(encoding="utf-8"))
    document["tag"]["text"] = "Else"
    fixed.write_text(json.dumps(document), encoding="utf-8")
    assert in_process("diff", LEAK, fixed)[0] == 4
    assert in_process("diff", LEAK, fixed, "--fail-on", "leak")[0] == 4
    code, _, err = in_process("diff", LEAK, fixed, "--fail-on", "leak,unknown")
    assert code == 1
    assert "different tags" in err


def test_kinds_are_told_by_content_and_not_mixed(in_process, tmp_path):
    odd = tmp_path / "hunt.dmp"
    odd.write_bytes(LEAK.read_bytes())
    assert in_process("diff", LEAK, odd)[0] == 0
    for files, words in (
        ((LEAK, DUMP), "some of the files are JSON"),
        ((LEAK, RANK), "it is kdleak.rank, not kdleak.hunt"),
        ((LEAK, LEAK, LEAK), "3 files were given"),
        ((LEAK,), "one file was given"),
        ((DUMP, LATER, "--fail-on", "worse"), "only two hunts do"),
        ((LEAK, LEAK, "--fail-on", "growing"), "it is no condition"),
        ((LEAK, tmp_path / "none.json"), "some of the files are JSON"),
    ):
        code, out, err = in_process("diff", *files)
        assert (code, out) == (2, "")
        one_sentence(err, words)


def test_dumps_have_gates_too(in_process):
    code, _, err = in_process("diff", DUMP, LATER, "--fail-on", "growth:1KB")
    assert code == 1
    assert err.startswith("--fail-on growth of more than 1,024 bytes: 'Leak' nonpaged: 3")
    assert in_process("diff", DUMP, LATER, "--fail-on", "growth:1GB")[0] in (0, 4)
    assert in_process("diff", DUMP, LATER, "--fail-on", "leak")[0] == 1


def test_the_help_names_every_condition(capsys):
    assert run(["diff", "--help"]) == 0
    text = capsys.readouterr().out
    for word in ("leak", "worse", "new", "unknown", "growth:SIZE", "growth:SIZE/h"):
        assert word in text
