"""Hunts that go well: over both links, on all builds, in all forms of output."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys

import pytest
from cli_rig import KEY, PROJECT, assert_clean, environment, free_port

SAFE = "disarmed: nt!PoolHitTag is back at 0xffffff0f (read back)."
LEAK_SITES = {"TrackRequest", "CloneHeader", "BuildContext"}


def schema(name):
    file = PROJECT / "kdleak" / "report" / "schema" / f"{name}.schema.json"
    return json.loads(file.read_text(encoding="utf-8"))


def validate(document, name):
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator(schema(name)).validate(document)


def table(text):
    """Names of the call sites of a report, in order."""
    rows = text.partition("Call sites\n")[2].partition("\n\n")[0].splitlines()[1:]
    return [row.split()[-1] for row in rows if row.split()[0].replace(",", "").isdigit()]


@pytest.mark.parametrize("link", ["kdnet", "serial"])
def test_hunt_names_the_leak(practice, start, journal, link):
    target = practice(link)
    hunt = start(
        "hunt", "-k", target.connection, "--interval", 4, "--snapshots", 5, "--hits", 400
    ).ends(0)
    assert hunt.out.splitlines()[-1] == SAFE
    # The accused comes first, even when one large block in use holds more bytes.
    assert table(hunt.out)[0].startswith("leakydrv!TrackRequest+0x")
    verdict = hunt.out.partition("Verdict\n")[2].partition("\n\n")[0]
    assert verdict.split()[0].startswith("leakydrv!TrackRequest+0x")
    assert hunt.out.count("accused: ") == 1
    # The busy driver moves far more memory; it is no suspect.
    assert "busydrv" not in hunt.out.partition("Ranking")[0]
    assert "\x1b" not in hunt.out + hunt.err
    assert journal() == []
    # A second one right after finds a machine as it was.
    again = start("hunt", "-k", target.connection, "--tag", "Leak", "--hits", 40).hunted()
    assert again.out.splitlines()[-1] == SAFE
    statistics = target.assert_unharmed()
    assert statistics["hits_alloc"] + statistics["hits_free"] >= 340


@pytest.mark.parametrize("build", [15063, 19045, 26100])
def test_other_builds(practice, start, build):
    target = practice("serial", build=build, busy_operations=10)
    hunt = start(
        "hunt", "-k", target.connection, "--interval", 2, "--snapshots", 3, "--hits", 250, "--json"
    ).ends(0)
    document = json.loads(hunt.out)
    assert document["target"]["build"] == build
    assert document["tag"]["text"] == "Leak"
    accused = document["call_sites"][document["accused"]]
    assert accused["frame"]["text"].startswith("leakydrv!TrackRequest+0x")
    target.assert_unharmed()


def test_json_agrees_with_the_books(practice, start):
    target = practice("kdnet")
    hunt = start(
        "hunt", "-k", target.connection, "--tag", "Leak", "--hits", 200, "--full-speed", "--json"
    ).ends(0)
    document = json.loads(hunt.out)
    validate(document, "hunt")
    assert SAFE in hunt.err.splitlines()
    books = {
        site["function"]: site
        for site in target.finish()["ground_truth"]
        if site["tag"] == "Leak" and site["allocs"]
    }
    statistics = target.finish()["statistics"]
    hits = document["completeness"]["hits"]
    assert hits == statistics["hits_alloc"] + statistics["hits_free"] >= 200
    sites = {site["frame"]["symbol"]: site for site in document["call_sites"] if site["allocs"]}
    assert set(sites) == LEAK_SITES == set(books)
    assert sum(site["allocs"] for site in sites.values()) == statistics["hits_alloc"]
    for name, site in sites.items():
        assert site["frame"]["module"] == "leakydrv"
        assert site["frame"]["offset"] == books[name]["offset"]
        assert site["returned"] <= books[name]["frees"]
        assert 0 < site["allocs"] <= books[name]["allocs"]
    for innocent in ("CloneHeader", "BuildContext"):
        assert sites[innocent]["outstanding_old"] == sites[innocent]["outstanding_old_bytes"] == 0
        assert sites[innocent]["judgement"] in ("cleared", "too_few")
    assert document["scaling"] is None
    assert len(document["hits"]) == hits
    worst = max(sites.values(), key=lambda site: site["outstanding"])
    assert worst is sites["TrackRequest"]
    assert worst["outstanding"] <= books["TrackRequest"]["outstanding"]


@pytest.mark.parametrize("by", ["growth", "used"])
def test_rank(practice, start, by):
    target = practice("serial")
    text = start("rank", "-k", target.connection, "--by", by, "--interval", 1.5, "--top", 3).ends(0)
    rows = [
        line.split()[0] for line in text.out.splitlines() if "nonpaged" in line or " paged" in line
    ]
    if by == "growth":
        assert "Leak" in rows
    assert "\x1b" not in text.out
    as_json = start("rank", "-k", target.connection, "--by", by, "--interval", 1.5, "--json").ends(
        0
    )
    document = json.loads(as_json.out)
    validate(document, "rank")
    assert document["by"] == by
    first = document["rows"][0]
    if by == "growth":
        assert first["tag"]["text"] == "Leak"
    else:
        held = {}
        for site in target.finish()["ground_truth"]:
            place = site["tag"], site["pool"]
            held[place] = held.get(place, 0) + site["bytes"]
        assert (first["tag"]["text"], first["pool"]) == max(held, key=held.get)
        return
    target.assert_unharmed()


def test_restore_with_nothing_to_do(practice, start):
    target = practice("serial")
    text = start("restore", "-k", target.connection).ends(0)
    assert "nothing to undo" in text.out.splitlines()[-1]
    as_json = start("restore", "-k", target.connection, "--json").ends(0)
    validate(json.loads(as_json.out), "restore")
    target.assert_unharmed()


def test_explain_of_a_ranking_needs_no_target(start):
    text = start("rank", "--explain", "--pool", "nonpaged").ends(0)
    assert "!poolused 2" in text.out
    assert "!poolused 4" not in text.out
    assert ".reload" in text.out


def test_explain_touches_nothing(start):
    text = start("hunt", "--tag", "Leak", "--explain").ends(0)
    assert "nt!PoolHitTag" in text.out
    assert text.err == ""


def test_output_file(practice, start, tmp_path):
    target = practice("serial")
    file = tmp_path / "hunt.json"
    command = ["hunt", "-k", target.connection, "--tag", "Leak", "--hits", 30, "-o", file, "--json"]
    first = start(*command).hunted()
    assert first.out == ""
    assert first.err.splitlines()[-1] == SAFE
    validate(json.loads(file.read_text(encoding="utf-8")), "hunt")
    requests = target.finish()["statistics"]["requests"]
    assert requests["WRITE_VIRTUAL"] >= 2


def test_output_file_is_refused_before_the_work(start, tmp_path):
    file = tmp_path / "hunt.json"
    file.write_text("precious", encoding="utf-8")
    gone = ["-k", f"net:port={free_port(socket.SOCK_DGRAM)},key={KEY}", "--timeout", 30]
    for command in ("hunt", "rank"):
        refused = start(command, *gone, "-o", file).ends(2, timeout=5)
        assert "the file exists" in refused.complaint
        assert "--force" in refused.complaint
    assert file.read_text(encoding="utf-8") == "precious"
    for place in (tmp_path, tmp_path / "no" / "file"):
        refused = start("hunt", *gone, "-o", place, "--force").ends(2, timeout=5)
        assert "folder" in refused.complaint
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    if not os.access(locked, os.W_OK):  # root may write everywhere
        refused = start("hunt", *gone, "-o", locked / "file").ends(2, timeout=5)
        assert "cannot be written" in refused.complaint


def test_output_file_with_force(practice, start, tmp_path):
    target = practice("serial")
    file = tmp_path / "rank.txt"
    file.write_text("old", encoding="utf-8")
    start("rank", "-k", target.connection, "--by", "used", "-o", file, "--force").ends(0)
    assert file.read_text(encoding="utf-8").startswith("Pool tags of com:ipport")
    assert "\x1b" not in file.read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.glob("rank*")) == ["rank.txt"]
    assert stat.S_IMODE(file.stat().st_mode) & 0o400
    target.assert_unharmed()


def test_verbose_says_more_but_no_key(practice, start):
    target = practice("kdnet")
    hunt = start("hunt", "-k", target.connection, "--tag", "Leak", "--hits", 20, "-vv").hunted()
    assert "datagrams_sent" in hunt.err
    target.assert_unharmed()


def test_key_from_the_environment(practice, start):
    target = practice("kdnet")
    start(
        "rank",
        "-k",
        f"net:port={target.port}",
        "--by",
        "used",
        env={"KDLEAK_KEY": KEY},
    ).ends(0)
    target.assert_unharmed()


@pytest.mark.parametrize("link", [["--kdnet"], ["--serial"]])
def test_practice_command(start, tmp_path, state, link):
    """``kdleak practice`` as a user starts it, ended by the end of its input."""
    udp = link == ["--kdnet"]
    port = free_port(socket.SOCK_DGRAM if udp else socket.SOCK_STREAM)
    link = [*link, f"127.0.0.1:{port}" if udp else f"tcp:{port}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "kdleak", "practice", *link, "--until-eof", "--json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(state, KDLEAK_KEY=KEY),
    )
    try:
        assert "kdleak hunt -k" in process.stderr.readline()
        where = f"net:port={port}" if udp else f"com:ipport={port},port=127.0.0.1"
        start("restore", "-k", where, env={"KDLEAK_KEY": KEY}).ends(0)
        out, err = process.communicate("", timeout=30)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0
    assert_clean(out + err)
    assert json.loads(out)["statistics"]["pool_hit_tag"] == 0xFFFFFF0F


def test_demo(start):
    demo = start("demo").ends(0)
    assert "leakydrv!TrackRequest+0x" in demo.out.partition("Call sites")[0]
    assert demo.out.splitlines()[-1] == SAFE
    assert "nt!PoolHitTag is 0xffffff0f" in demo.out


def test_demo_interrupted(start):
    demo = start("demo").says("Snapshot 1")
    demo.send(signal.SIGINT).ends(130)
    # Its practice kernel is gone, too.
    group = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(demo.process.pid)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert group.stdout.split() == []
