"""``kdleak find`` on dumps of the practice kernel, held against what that kernel did."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from cli_rig import PROJECT, environment

from kdleak.errors import ExitCode

pytestmark = pytest.mark.e2e
TICKS = 120
DUMPS = {
    "22621": ("--build", "22621"),
    "15063": ("--build", "15063", "--dump-kind", "full", "--memory", "64"),
    "26100 without KDBG": ("--build", "26100", "--no-kdbg"),
}


def kdleak(state: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "kdleak", *arguments],
        capture_output=True,
        text=True,
        cwd=PROJECT,
        env=environment(state),
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module", params=DUMPS)
def dump(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("find")
    file = folder / "MEMORY.DMP"
    run = ("practice", "--dump", str(file), "--ticks", str(TICKS), "--json")
    made = kdleak(folder, *run, *DUMPS[request.param])
    assert made.returncode == 0, made.stderr
    return file, json.loads(made.stdout)["ground_truth"]


def find(dump_file: Path, *arguments: str) -> dict:
    done = kdleak(dump_file.parent, "find", *arguments, "-z", str(dump_file), "--json")
    assert "Traceback" not in done.stderr
    return {**json.loads(done.stdout), "exit": done.returncode}


@pytest.mark.parametrize("tag", ["Leak", "Busy"])
def test_what_is_seen_is_what_the_machine_did(dump, tag):
    file, truth = dump
    sites = [site for site in truth if site["tag"] == tag]
    assert sites
    found = find(file, tag, "--limit", "100000")
    assert found["exit"] == ExitCode.DONE
    assert found["complete"]
    assert found["seen"]["allocated"] == sum(site["outstanding"] for site in sites)
    assert found["seen"]["allocated_bytes"] == sum(site["bytes"] for site in sites)
    in_use = [one for one in found["blocks"] if one["state"] == "allocated"]
    assert len({one["address"] for one in in_use}) == found["seen"]["allocated"]
    held: Counter = Counter()
    for one in in_use:
        held[one["pool"]] += one["size"]
    for pool in ("nonpaged", "paged"):
        assert held[pool] == sum(site["bytes"] for site in sites if site["pool"] == pool)


def test_blocks_of_the_leak_say_whose_they_are(dump):
    file, _ = dump
    found = find(file, "Leak", "--pool", "nonpaged", "--size", "320", "--limit", "7")
    assert len(found["blocks"]) == 7
    assert {one["size"] for one in found["blocks"]} == {320}
    # FinishRequest unlinked each leaked record, which still names the list it was in.
    assert all(
        pointer["symbol"].startswith("leakydrv")
        for one in found["blocks"]
        if one["state"] == "allocated"
        for pointer in one["pointers"][:1]
    )
    assert any(one["pointers"] for one in found["blocks"])


def test_text(dump):
    file, _ = dump
    done = kdleak(file.parent, "find", "Leak", "-z", str(file), "--limit", "2")
    assert done.returncode == ExitCode.DONE
    assert "every one of them was seen." in done.stdout
    assert "leakydrv!" in done.stdout


def test_a_tag_in_other_letters(dump):
    file, _ = dump
    done = kdleak(file.parent, "find", "leak", "-z", str(file))
    assert done.returncode == ExitCode.DONE
    assert "No tag 'leak' is in the tag tables. There is 'Leak'" in done.stderr


def test_an_output_file(dump):
    file, _ = dump
    output = file.parent / "found.json"
    arguments = ("find", "Leak", "-z", str(file), "--json", "--output", str(output))
    assert kdleak(file.parent, *arguments, "--force").returncode == ExitCode.DONE
    assert json.loads(output.read_text())["format"] == "kdleak.find"
    assert kdleak(file.parent, *arguments).returncode == ExitCode.USAGE


@pytest.mark.parametrize(
    "arguments",
    [
        ("Leak",),
        ("Leak", "-k", "net:port=50000,key=1.2.3.4"),
        ("Leak", "-z", "FILE", "--engine", "pykd"),
        ("Leaky", "-z", "FILE"),
    ],
)
def test_refused(arguments, tmp_path):
    file = tmp_path / "MEMORY.DMP"
    file.write_bytes(bytes(0x2000))
    given = [str(file) if one == "FILE" else one for one in arguments]
    done = kdleak(tmp_path, "find", *given)
    assert done.returncode == ExitCode.USAGE
    assert "Traceback" not in done.stderr
    assert "Next:" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("FILE", "-z", "Leak"), "give the tag first: kdleak find TAG -z "),
        (("Leak", "FILE"), "a dump is named with -z: kdleak find Leak -z "),
        (("Irp", "x", "-z", "FILE"), "one argument too many"),
        (("'Irp '", "-z", "FILE"), "leave them out: Irp is the same tag"),
        (("'Leaky'", "-z", "FILE"), "a pool tag is 1 to 4"),
    ],
)
def test_what_is_commonly_given_instead_of_a_tag(arguments, words, tmp_path):
    file = tmp_path / "MEMORY.DMP"
    file.write_bytes(bytes(0x2000))
    for command in ("find", "sites"):
        given = [str(file) if one == "FILE" else one for one in arguments]
        done = kdleak(tmp_path, command, *given)
        assert done.returncode == ExitCode.USAGE
        assert words.replace("find", command) in done.stderr


def test_help_leaves_out_what_only_live_targets_have(tmp_path):
    done = kdleak(tmp_path, "find", "--help")
    assert "Usage: kdleak find [OPTIONS] TAG\n" in done.stdout
    assert "-z FILE" in done.stdout
    assert "--timeout" not in done.stdout


def test_no_dump(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_bytes(b"no dump at all\n" * 1000)
    done = kdleak(tmp_path, "find", "Leak", "-z", str(file))
    assert done.returncode == ExitCode.TARGET
    assert "Traceback" not in done.stderr
