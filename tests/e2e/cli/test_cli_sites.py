"""``kdleak sites`` on dumps and live practice kernels, held against what these kernels did."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cli_rig import PROJECT, environment

from kdleak.cli import session as session_module
from kdleak.cli import sites as sites_module
from kdleak.cli.target_options import NO_PRACTICE_VARIABLE
from kdleak.errors import ExitCode

DUMPS = {"22621": (), "15063 without KDBG": ("--build", "15063", "--no-kdbg")}
LISTED = "Leak - leaky.sys - Records of the test driver\nBus? - busy.sys - All of them\n"


def kdleak(state: Path, *arguments: object, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "kdleak", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=PROJECT,
        env=environment(state, **variables),
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module", params=DUMPS)
def dump(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sites")
    file = folder / "MEMORY.DMP"
    made = kdleak(
        folder, "practice", "--dump", file, "--ticks", 60, "--json", *DUMPS[request.param]
    )
    assert made.returncode == 0, made.stderr
    return file, json.loads(made.stdout)["ground_truth"]


def calls_that_ran(truth: list, tag: str) -> set:
    """(module, function) of every place in a driver that allocated."""
    return {
        (one["module"], one["function"])
        for one in truth
        if one["tag"] == tag and one["allocs"] and one["module"] != "nt"
    }


def allocating(document: dict) -> set:
    return {
        (site["module"], site["symbol"])
        for site in document["sites"]
        if site["kind"] == "call" and not site["frees"] and site["module"] != "nt"
    }


@pytest.mark.parametrize("tag", ["Leak", "Busy"])
def test_every_place_that_allocated_is_found_in_a_dump(dump, tag) -> None:
    file, truth = dump
    done = kdleak(file.parent, "sites", tag, "-z", file, "--json")
    assert done.returncode == ExitCode.DONE, done.stderr
    document = json.loads(done.stdout)
    ran = calls_that_ran(truth, tag)
    assert ran
    assert allocating(document) == ran
    assert document["drivers"] == [next(iter(ran))[0]]
    assert (document["gaps"], document["data_sections"]) == ([], True)


def test_without_any_symbols_the_addresses_are_the_same(dump) -> None:
    file, _ = dump
    with_symbols = kdleak(file.parent, "sites", "Leak", "-z", file, "--json")
    without = kdleak(
        file.parent, "sites", "Leak", "-z", file, "--json", **{NO_PRACTICE_VARIABLE: "1"}
    )
    both = [json.loads(done.stdout)["sites"] for done in (with_symbols, without)]
    places = [
        [(site["address"], site["call_address"], site["routine"]) for site in sites]
        for sites in both
    ]
    assert places[0] == places[1]
    assert {site["symbol_kind"] for site in both[0]} == {"pdb"}
    assert "pdb" not in {site["symbol_kind"] for site in both[1]}


def test_owner_from_the_users_own_list(dump, tmp_path) -> None:
    file, _ = dump
    listed = tmp_path / "pooltag.txt"
    listed.write_text(LISTED)
    done = kdleak(tmp_path, "sites", "Leak", "-z", file, "--pooltag", listed)
    assert "Known owner: leaky.sys - Records of the test driver" in done.stdout
    done = kdleak(tmp_path, "sites", "Busy", "-z", file, KDLEAK_POOLTAG=str(listed))
    assert "busy.sys - All of them (the list has 'Bus?')" in done.stdout
    done = kdleak(tmp_path, "sites", "Leak", "-z", file, "--pooltag", tmp_path / "gone.txt")
    assert done.returncode == ExitCode.USAGE
    assert "gone.txt" in done.stderr


def test_live_over_kdnet_and_it_runs_on(practice, start) -> None:
    target = practice("kdnet")
    done = start("sites", "Leak", "-k", target.connection, "--engine", "native", "--json").ends(0)
    document = json.loads(done.out)
    assert allocating(document) == {
        ("leakydrv", "TrackRequest"), ("leakydrv", "BuildContext"), ("leakydrv", "CloneHeader"),
    }  # fmt: skip
    assert document["target"]["live"]
    assert not document["data_sections"]
    assert "the target stands still meanwhile" in done.err
    assert target.runs()


def test_live_one_module_reads_less(practice, start) -> None:
    target = practice("serial")
    whole = start("sites", "Busy", "-k", target.connection, "--engine", "native", "-v").ends(0)
    one = start(
        "sites", "Busy", "-k", target.connection, "--engine", "native", "-v",
        "--module", "busydrv.sys", "--json",
    ).ends(0)  # fmt: skip
    assert json.loads(one.out)["only_modules"] == ["busydrv"]
    assert allocating(json.loads(one.out)) == {("busydrv", "AllocateEntry")}
    requests = [
        int(next(line for line in done.err.splitlines() if " requests, " in line).split()[0])
        for done in (whole, one)
    ]
    assert requests[1] < requests[0]


def test_module_that_is_not_loaded(dump) -> None:
    file, _ = dump
    done = kdleak(file.parent, "sites", "Leak", "-z", file, "--module", "leaky")
    assert done.returncode == ExitCode.USAGE
    assert "there is leakydrv" in done.stderr


def test_file_that_exists_is_not_overwritten(dump, in_process, tmp_path) -> None:
    file, _ = dump
    output = tmp_path / "sites.json"
    output.write_text("mine")
    code, _, err = in_process("sites", "Leak", "-z", file, "-o", output)
    assert (code, output.read_text()) == (ExitCode.USAGE, "mine")
    assert "--force" in err
    code, out, _ = in_process("sites", "Leak", "-z", file, "-o", output, "--force", "--json")
    assert (code, out) == (ExitCode.DONE, "")
    assert json.loads(output.read_text())["format"] == "kdleak.sites"


@pytest.mark.parametrize("tag", ["Leaky", "", "0x0"])
def test_bad_tag_is_refused_before_anything_is_opened(in_process, monkeypatch, tag) -> None:
    def opened(*_):
        raise AssertionError("it attached")

    monkeypatch.setattr(session_module, "attach", opened)
    code, _, err = in_process("sites", tag, "-k", "net:port=50000,key=1.2.3.4")
    assert code == ExitCode.USAGE
    assert "pool tag" in err


def test_progress_is_told_now_and_then() -> None:
    now = [0.0]
    said = []
    progress = sites_module._Progress(10 << 20, said.append, lambda: now[0])
    for _ in range(5):
        now[0] += 2.0
        progress("leakydrv", 1 << 20)
    assert said == ["3.0 MB of 10.0 MB, leakydrv, about 14 s left"]


def test_cost_is_told_before() -> None:
    assert sites_module._cost(700, 1, live=True).startswith("Reading 1 KB of code of 1 module t")
    words = sites_module._cost(64 << 20, 180, live=False)
    assert words.startswith("Reading 64.0 MB of code of 180 modules through the debugger.")
    assert "stands still" not in words
