"""``kdleak dump`` and ``kdleak diff`` on the sample dumps, held against their truth."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

import kdleak.report as reports

ROOT = Path(__file__).resolve().parents[3]
SAMPLES = ROOT / "samples" / "dumps"
TRUTH = json.loads((SAMPLES / "truth.json").read_text(encoding="utf-8"))
NO_SYMBOLS = {"_NT_SYMBOL_PATH": "", "KDLEAK_NO_PRACTICE_SYMBOLS": "1", "KDLEAK_POOLTAG": ""}


def kdleak(*words: str | Path, code: int = 0, **environment: str) -> subprocess.CompletedProcess:
    done = subprocess.run(
        [sys.executable, "-m", "kdleak", *map(str, words)],
        capture_output=True,
        check=False,
        text=True,
        timeout=120,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100", **NO_SYMBOLS, **environment},
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def schema(name: str) -> dict:
    folder = Path(reports.__file__).parent / "schema"
    return json.loads((folder / f"{name}.schema.json").read_text(encoding="utf-8"))


def outstanding(name: str, tag: str, pool: str = "nonpaged") -> tuple[int, int]:
    allocs, frees, held = TRUTH[name]["tags"][tag][pool]
    return allocs - frees, held


@pytest.mark.parametrize("name", sorted(TRUTH))
def test_overview_of_every_sample(name: str):
    document = json.loads(
        kdleak("dump", SAMPLES / name, "--tag", "Leak", "--json", "--seconds", "0").stdout
    )
    jsonschema.validate(document, schema("dump"))
    assert document["size"] == TRUTH[name]["size"]
    assert document["target"]["build"] == TRUTH[name]["build"]
    assert document["bug_check"]["code"] == hex(TRUTH[name]["bug_check"][0])
    assert document["gaps"] == []
    rows = {
        (row["tag"]["value"], row["pool"]): (
            row["counters"]["allocs"],
            row["counters"]["frees"],
            row["counters"]["bytes"],
        )
        for row in document["rows"]
    }
    # The ledger does not book all of the kernel's own tables, tag Pool.
    total = sum(
        held
        for tag, pools in TRUTH[name]["tags"].items()
        for _, _, held in pools.values()
        if tag != "Pool"
    )
    own = sum(row[2] for (tag, _), row in rows.items() if tag == "0x6c6f6f50")
    assert sum(row[2] for row in rows.values()) - own == total
    details = {one["tag"]["text"]: one for one in document["details"]}
    blocks, held = outstanding(name, "Leak")
    leak = details["Leak"]
    assert leak["counters"]["nonpaged"]["outstanding"] == blocks
    assert leak["counters"]["nonpaged"]["bytes"] == held
    assert leak["sites"]["drivers"] == ["leakydrv"]
    assert leak["owner"] is None


def test_blocks_of_the_overview_are_all_that_the_kernel_counts():
    document = json.loads(
        kdleak("dump", SAMPLES / "later.dmp", "--json", "--seconds", "0", "--tag", "Leak").stdout
    )
    (detail,) = document["details"]
    seen = detail["blocks"]["seen"]
    assert (seen["allocated"], seen["allocated_bytes"]) == outstanding("later.dmp", "Leak")
    calls = [site for site in detail["sites"]["sites"] if site["kind"] == "call"]
    truth = {
        site["return_address"]
        for site in TRUTH["later.dmp"]["sites"]
        if site["tag"] == "Leak" and site["allocs"]
    }
    allocations = {int(site["call_address"], 16) for site in calls if not site["frees"]}
    assert len(allocations) == len(truth)
    # A call is at most 7 bytes in front of its return address.
    assert all(any(0 < back - call <= 7 for call in allocations) for back in truth)


def test_text_says_who_holds_and_who_asks():
    text = kdleak("dump", SAMPLES / "later.dmp").stdout
    blocks, held = outstanding("later.dmp", "Leak")
    assert f"nonpaged: {held:,} bytes in {blocks:,} blocks (320 bytes each" in text
    assert "Code that asks for it: leakydrv." in text
    assert "Bug check 0xe2" in text
    assert f"kdleak find Leak -z {SAMPLES / 'later.dmp'}" in " ".join(text.split())


def test_the_first_sentences_answer():
    lines = kdleak("dump", SAMPLES / "later.dmp", COLUMNS="200").stdout.splitlines()
    blocks, held = outstanding("later.dmp", "Leak")
    share = held / sum(pools["nonpaged"][2] for pools in TRUTH["later.dmp"]["tags"].values()
                       if "nonpaged" in pools)  # fmt: skip
    said = lines[1].strip()
    assert said.startswith("nonpaged pool: ")
    # The ledger does not book all of the kernel's own tables, so the share of all is smaller.
    assert 0 < float(said.split()[2].rstrip("%")) <= 100 * share
    assert f"is 'Leak', {blocks:,} blocks of 320 bytes ({held:,} bytes)" in said
    assert "asked for by leakydrv; next 'Busy'" in said
    assert lines[2].strip().startswith("paged pool: ")


def test_sizes_are_those_of_blocks_in_use():
    text = " ".join(kdleak("dump", SAMPLES / "later.dmp", "--tag", "Leak").stdout.split())
    blocks, _ = outstanding("later.dmp", "Leak")
    assert f"Every block in use was seen: {blocks:,} x 320 bytes; " in text
    assert re.search(r"320 bytes; \d+ freed seen, too\.", text)


def test_what_was_not_seen_is_said_once():
    text = " ".join(kdleak("dump", SAMPLES / "later.dmp", "--tag", "Pool").stdout.split())
    # Of the tables, which the ledger does not book.
    assert re.search(r"Blocks in use: \d of 4 seen \([\d,]+ of 106,496 bytes\)", text)
    assert "the tag tables count" not in text
    assert "Not seen, which does not mean that it is not there" in text


def test_an_unknown_tag_is_answered():
    text = kdleak("dump", SAMPLES / "early.dmp", "--tag", "Nope").stdout
    assert "The tag tables do not name it." in text
    assert "kdleak find" not in text
    text = kdleak("dump", SAMPLES / "early.dmp", "--tag", "leak").stdout
    assert "Upper and lower case count: there is 'Leak'." in text


def test_owner_from_the_users_own_list(tmp_path: Path):
    listed = tmp_path / "pooltag.txt"
    listed.write_text("Leak - leakydrv.sys - Records that are forgotten\n")
    text = kdleak("dump", SAMPLES / "early.dmp", "--pooltag", listed).stdout
    assert "Records that are forgotten" in text


def test_growth_between_two_dumps_of_a_boot():
    done = kdleak("diff", SAMPLES / "later.dmp", SAMPLES / "early.dmp", "--json")
    document = json.loads(done.stdout)
    jsonschema.validate(document, schema("diff"))
    assert [one["name"] for one in document["dumps"]] == ["early.dmp", "later.dmp"]
    suspect = document["rows"][document["suspect"]]
    assert suspect["tag"]["text"] == "Leak"
    before, after = outstanding("early.dmp", "Leak"), outstanding("later.dmp", "Leak")
    assert suspect["growth_blocks"] == after[0] - before[0]
    assert suspect["growth_bytes"] == after[1] - before[1]
    assert document["seconds"] == pytest.approx(7.0)
    assert document["gaps"] == []
    assert document["remarks"] == [
        "compared in order of time, not as they were named: early.dmp, later.dmp"
    ]


def test_growth_as_text():
    text = kdleak("diff", SAMPLES / "early.dmp", SAMPLES / "later.dmp").stdout
    assert "'Leak' (nonpaged) grew by 337,920 bytes (+1,056 blocks) in 7 s" in " ".join(
        text.split()
    )


def test_dumps_of_two_machines_show_no_growth():
    done = kdleak("diff", SAMPLES / "early.dmp", SAMPLES / "26100.dmp", code=4)
    words = " ".join(done.stdout.split())
    assert "they are of two systems, builds 22621 and 26100" in words
    assert "Growth" not in done.stdout


def test_one_dump_cannot_be_compared():
    done = kdleak("diff", SAMPLES / "early.dmp", code=2)
    assert "one file was given" in done.stderr


@pytest.mark.parametrize("command", ["dump", "diff"])
def test_what_is_no_dump_is_told(command: str, tmp_path: Path):
    text = tmp_path / "notes.txt"
    text.write_text("nothing but words\n" * 1000)
    files = [text] if command == "dump" else [SAMPLES / "early.dmp", text]
    done = kdleak(command, *files, code=3)
    assert len(done.stderr.splitlines()) <= 3
    assert "Next: " in done.stderr
    missing = [tmp_path / "gone.dmp"] * (1 if command == "dump" else 2)
    assert "gone.dmp" in kdleak(command, *missing, code=2).stderr


def test_a_dump_may_be_named_as_for_the_other_commands():
    alone, named = (
        kdleak("dump", *words, SAMPLES / "early.dmp", "--tag", "Leak", "--json").stdout
        for words in ((), ("-z",))
    )
    assert alone == named
    assert "none was named" in kdleak("dump", code=2).stderr
    both = kdleak("dump", SAMPLES / "early.dmp", "-z", SAMPLES / "early.dmp", code=2)
    assert "two were named" in both.stderr
    quoted = kdleak("dump", SAMPLES / "early.dmp", "--tag", "'Leak'", code=2)
    assert "the quotes came with it" in quoted.stderr
