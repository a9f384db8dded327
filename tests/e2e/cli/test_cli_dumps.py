"""``-z FILE``: which reader opens a dump, what is refused, and the ranking over Microsoft's."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "engine"))

from dbgeng_fakes import FakeDebugger, poolused

from kdleak.cli import target_options
from kdleak.cli.target_options import DUMP, NATIVE, TargetOptions, choose_target
from kdleak.engine.channels import base, child, kd
from kdleak.errors import MissingDependency, TargetError, UsageError
from kdleak.model import (
    Architecture,
    PoolCounters,
    PoolSnapshot,
    Stop,
    StopKind,
    TagUsage,
    TargetInfo,
)
from kdleak.tags import PoolTag

KEY = "k3yp4rt1.zz9sec0nd.th1rdp1ece.l4stb1t"
NET = f"net:port=50777,key={KEY}"


@pytest.fixture
def dump(tmp_path):
    file = tmp_path / "MEMORY.DMP"
    file.write_bytes(b"PAGEDU64" + bytes(0x2000))
    return file


@pytest.fixture
def debugger(monkeypatch):
    """What Microsoft's engine shows of a dump, whichever way it is opened."""
    opened = FakeDebugger(quick=True)
    opened.session = base.DUMP
    opened.where = "MEMORY.DMP"
    opened.halt.text = "Break instruction exception - code 80000003 (first/second chance)\n"
    opened.answers["!poolused 3"] = poolused(("Leak", 100, 40, 6000), ("Busy", 10, 9, 64))
    opened.asked_to_open = []

    def opener(name):
        def open_it(*given, **how):
            opened.asked_to_open.append((name, given, how))
            return opened

        return open_it

    monkeypatch.setattr(kd, "open_kd", opener("kd"))
    monkeypatch.setattr(child, "open_child", opener("child"))
    return opened


@dataclass
class DumpEngine:
    """Our own reader, as much of it as a ranking needs."""

    name = "dump"
    where = "MEMORY.DMP"
    target = TargetInfo(Architecture.X64, 8, 22621, False, 2, 0, "Windows build 22621 x64")
    stop = Stop(StopKind.BUG_CHECK, detail="bug check 0xd1")
    seconds_stopped = 0.0
    requests = 0
    remarks: list[str] = field(default_factory=lambda: ["12 pages are missing from the dump"])
    detached: list[bool] = field(default_factory=list)

    def reload(self):
        return ()

    def pool_usage(self, tag=None):
        assert tag is None
        leak = TagUsage(PoolTag.parse("Leak"), PoolCounters(100, 40, 6000), PoolCounters())
        return PoolSnapshot(0.0, (leak,), "the pool tag tables")

    def detach(self, leave_stopped=False):
        self.detached.append(leave_stopped)


@pytest.fixture
def ours(monkeypatch):
    engine = DumpEngine()
    monkeypatch.setattr(target_options, "_open_dump", lambda choice, fetcher: engine)
    return engine


# --- which reader


def test_our_own_reader_unless_another_is_named(dump, monkeypatch):
    monkeypatch.setattr(target_options, "debugger_found", lambda: True)
    assert choose_target(TargetOptions(dump=dump)).engine == DUMP
    assert choose_target(TargetOptions(dump=dump, engine=DUMP)).engine == DUMP
    assert choose_target(TargetOptions(dump=dump, engine="kd")).engine == "kd"
    assert choose_target(TargetOptions(dump=dump, kd="kd.exe")).engine == "kd"
    assert choose_target(TargetOptions(dump=dump)).where == str(dump)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"connection": NET}, "both -k and -z"),
        ({"replay": Path(__file__)}, "both --replay and -z"),
        ({"engine": NATIVE}, "live targets"),
        ({"record": Path("x.jsonl")}, "it has no such thing"),
        ({"kb": True}, "it has no such thing"),
        ({"python": "py"}, "it has no such thing"),
    ],
    ids=str,
)
def test_what_does_not_go_with_a_dump(dump, given, words):
    with pytest.raises(UsageError, match=words):
        choose_target(TargetOptions(dump=dump, **given))


def test_the_reader_of_dumps_needs_one():
    with pytest.raises(UsageError, match="-z FILE"):
        choose_target(TargetOptions(connection=NET, engine=DUMP))


def test_files_that_cannot_be_one(in_process, tmp_path):
    for name, words in (("none.dmp", "there is no such file"), (".", "it is a folder")):
        code, out, err = in_process("rank", "-z", tmp_path / name)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        assert words in err


def test_a_package_that_is_not_there(dump, monkeypatch):
    monkeypatch.setitem(sys.modules, "kdleak.engine.dump", None)

    class NoConstruct:
        def find_spec(self, name, *_):
            if name == "kdleak.engine.dump":
                raise ModuleNotFoundError("No module named 'construct'", name="construct")

    monkeypatch.delitem(sys.modules, "kdleak.engine.dump")
    monkeypatch.setattr(sys, "meta_path", [NoConstruct(), *sys.meta_path])
    with pytest.raises(MissingDependency, match=r"construct.*kdleak\[dump\]"):
        target_options.attach(choose_target(TargetOptions(dump=dump)), lambda _: None)


@pytest.mark.parametrize("command", ["hunt", "restore"])
def test_nothing_to_hunt_or_restore_in_a_dump(in_process, command, dump, monkeypatch):
    monkeypatch.setattr(target_options, "attach", lambda *_: pytest.fail("opened"))
    code, out, err = in_process(command, "-z", dump)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "nothing runs in it" in err
    assert "kdleak rank -z FILE" in err


# --- ranking


def test_by_what_the_tags_hold(in_process, dump, ours):
    code, out, err = in_process("rank", "-z", dump)
    assert (code, ours.detached) == (0, [False])
    assert "'Leak' (nonpaged) holds most, 6,000 bytes" in " ".join(out.split())
    assert "stopped" not in out
    assert out.endswith(
        "Next\n  kdleak sites Leak -z FILE\n  kdleak find Leak -z FILE\n"
        "  kdleak diff EARLIER.DMP FILE\n"
    )
    assert err == (
        "opened: Windows build 22621 x64\n12 pages are missing from the dump\n"
        "ranking tags: snapshot 1 of 1\n"
    )  # no waiting, no bug check to leave, no statistics of a target
    assert in_process("rank", "-z", dump, "-v")[2] == err


def test_as_json(in_process, dump, ours):
    code, out, _ = in_process("rank", "-z", dump, "--json")
    document = json.loads(out)
    assert code == 0
    assert (document["by"], document["engine"]) == ("used", "dump")
    assert document["target"]["live"] is False
    assert document["rows"][0]["tag"]["text"] == "Leak"


def test_growth_takes_two_dumps(in_process, dump, ours):
    code, out, err = in_process("rank", "-z", dump, "--by", "growth")
    assert (code, out) == (2, "")
    assert "kdleak diff A B" in err
    assert ours.detached == []


def test_no_dump_with_a_log(in_process, dump):
    code, _, err = in_process("rank", "-z", dump, "--log", dump)
    assert code == 2
    assert "-z" in err


@pytest.mark.parametrize("engine", ["kd", "pykd", "pybag"])
def test_through_microsofts_engine(in_process, dump, debugger, engine):
    code, out, err = in_process("rank", "-z", dump, "--engine", engine)
    assert code == 0
    (name, given, how), *more = debugger.asked_to_open
    assert more == []
    if engine == "kd":
        assert (name, how["dump"]) == ("kd", str(dump))
    else:
        assert (name, given, how["dump"]) == ("child", (engine, str(dump)), True)
    assert "'Leak' (nonpaged) holds most" in " ".join(out.split())
    assert f"opening {dump} through {engine} ..." in err
    assert "opened: Windows build 22621 x64" in err
    assert "waiting" not in err
    assert debugger.closed is False


def test_a_relative_name_reaches_the_debugger_whole(in_process, dump, debugger, monkeypatch):
    monkeypatch.chdir(dump.parent)
    assert in_process("rank", "-z", dump.name, "--engine", "kd")[0] == 0
    assert debugger.asked_to_open[0][2]["dump"] == str(dump)


def test_what_the_debugger_says_of_another_file(in_process, dump, monkeypatch):
    def refuse(*_, **__):
        raise TargetError("opening the dump MEMORY.DMP", "it is no dump", "name another one")

    monkeypatch.setattr(kd, "open_kd", refuse)
    code, _, err = in_process("rank", "-z", dump, "--engine", "kd")
    assert code == 3
    assert err.splitlines()[-1].startswith("kdleak: opening the dump MEMORY.DMP: it is no dump.")


def test_recorded_and_replayed(in_process, dump, debugger, tmp_path):
    record = tmp_path / "dump.jsonl"
    code, out, _ = in_process("rank", "-z", dump, "--engine", "kd", "--record", record)
    again, replayed, err = in_process("rank", "--replay", record)
    assert (code, again) == (0, 0)
    assert "no target is touched" in err
    table = [line for line in out.splitlines() if "Leak  nonpaged" in line or "holds most" in line]
    assert len(table) == 2
    assert [line for line in replayed.splitlines() if line in table] == table
