"""kdleak hunt against the practice scenarios: whom it blames, and what the user can add to that."""

from __future__ import annotations

import json

import pytest

SAFE = "disarmed: nt!PoolHitTag is back at 0xffffff0f (read back)."
POOLTAG = "rem a list\nFmwk - hiddendrv.sys - Sessions of the practice driver\n"


def hunt(start, target, *more):
    # Nothing of the user's own configuration may have a part in a test.
    env = {"HOME": "/nonexistent", "XDG_CONFIG_HOME": "", "KDLEAK_FRAMEWORKS": ""}
    return start(
        "hunt", "-k", target.connection, "--tag", "Fmwk", "--hits", 400, "--seconds", 20,
        "--full-speed", *more, env=env,
    )  # fmt: skip


def test_the_driver_behind_five_frames(practice, start, tmp_path):
    target = practice("kdnet", scenario="frameworks", scenario_operations=2)
    (tmp_path / "pooltag.txt").write_text(POOLTAG)
    ended = hunt(start, target, "--pooltag", tmp_path / "pooltag.txt").ends(0)
    text = " ".join(ended.out.split())
    assert "on behalf of hiddendrv!OpenSession+0x" in text
    assert "through 5 frames of Wdf01000 (KMDF), ndis (NDIS), NETIO (network" in text
    assert "hiddendrv.sys, version 3.1.4.159, Practice Hidden Works, Leaks behind" in text
    assert "pooltag.txt says of 'Fmwk': hiddendrv.sys - Sessions of the practice driver." in text
    assert "for hiddendrv!OpenSession+0x" in text.partition("Call sites")[0]
    assert ended.out.splitlines()[-1] == SAFE
    target.assert_unharmed()


def test_as_json_and_with_a_list_of_ones_own(practice, start, tmp_path):
    target = practice("serial", scenario="frameworks", scenario_operations=2)
    own = tmp_path / "own.txt"
    own.write_text("# wrappers of ours\nhiddendrv!OpenSess*  our wrapper\n-fltmgr  not for us\n")
    ended = hunt(start, target, "--json", "--frameworks", own, "--through", "fltmgr").ends(0)
    document = json.loads(ended.out)
    site = document["call_sites"][document["accused"]]
    assert site["blame"]["text"].startswith("hiddendrv!HiddenPreCreate+0x")
    assert [use["words"] for use in site["through"]][-2:] == ["named by the user", "our wrapper"]
    assert site["blame_found"] is True
    assert document["blamed_modules"][0]["company"] == "Practice Hidden Works"
    assert document["tag_owner"] is None
    target.assert_unharmed()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--frameworks", "absent.txt"), "absent.txt"),
        (("--through", "a!b!c*d*e*f*g*h*i*j*k*"), "wildcards"),
        (("--pooltag", "absent.txt"), "absent.txt"),
    ],
)
def test_files_are_read_before_the_target_is_touched(in_process, options, said):
    code, _, err = in_process("hunt", "-k", "net:port=1,key=1.2.3.4", *options)
    assert code == 2
    assert said in err


def test_bad_lines_are_told(in_process, tmp_path):
    bad = tmp_path / "bad.txt"
    bad.write_text("ndis\n!nothing\n")
    code, _, err = in_process("hunt", "-k", "net:port=1,key=1.2.3.4", "--frameworks", bad)
    assert code == 2
    assert "line 2" in err


def test_scenarios_of_the_practice_command(in_process, tmp_path):
    code, out, _ = in_process(
        "practice", "--scenario", "cache", "--dump", tmp_path / "x.dmp", "--ticks", 300,
        "--workload", "population=5", "--json",
    )  # fmt: skip
    assert code == 0
    books = {
        site["function"]: site
        for site in json.loads(out)["ground_truth"]
        if site["tag"] == "Warm" and site["allocs"]
    }
    assert list(books) == ["AddEntry"]
    assert books["AddEntry"]["module"] == "cachedrv"
    assert books["AddEntry"]["outstanding"] == 200
    code, _, err = in_process("practice", "--scenario", "nonsense", "--serial", "tcp:1")
    assert code == 2
    assert "frameworks" in err
