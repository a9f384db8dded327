"""``!py -m kdleak.rank`` where WinDbg has a dump open, and ``-z`` from a plain Python."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))

from dbgeng_fakes import NT, FakeDebugger, Halt, poolused
from fake_pykd import FakePykd

from kdleak.engine.channels import base, child, kd, pykd
from kdleak.engine.dbgeng import open_dbgeng
from kdleak.errors import ExitCode, UsageError
from kdleak.journal import Journal
from kdleak.model import StopKind
from kdleak.windbg import session
from kdleak.windbg.hunt_entry import HuntJob
from kdleak.windbg.options import parse_hunt, parse_rank
from kdleak.windbg.output import Output
from kdleak.windbg.rank_entry import RankJob
from kdleak.windbg.restore_entry import RestoreJob
from kdleak.windbg.session import SessionRequest, check_request, open_engine

_BUG_CHECK = (
    "Bugcheck code 000000D1\n"
    "Arguments ffffa408`89a7c000 00000000`00000002 00000000`00000000 "
    "fffff802`1f5a1233\n"
)


class Pane:
    encoding = "ascii"

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text


@pytest.fixture
def debugger(monkeypatch):
    """A dump in WinDbg, with kdexts; whoever opens something gets it."""
    opened = FakeDebugger(quick=True)
    opened.session, opened.where = base.DUMP, "C:\\MEMORY.DMP"
    opened.answers["!poolused 3"] = poolused(("Leak", 100, 40, 6000), ("Busy", 10, 9, 64))
    opened.openings = []

    def opener(name):
        def open_it(*given, **how):
            opened.openings.append((name, given, how))
            return opened

        return open_it

    monkeypatch.setattr(pykd, "pykd_inside", opener("inside"))
    monkeypatch.setattr(kd, "open_kd", opener("kd"))
    monkeypatch.setattr(child, "open_child", opener("child"))
    monkeypatch.setattr(session, "has_package", lambda name: True)
    return opened


def run(job, folder, *arguments):
    out, said = Pane(), Pane()
    code = job(Output(out, said), journal=Journal(folder / "journal")).run(arguments)
    assert "Traceback" not in out.text + said.text
    return code, out.text, said.text


@pytest.mark.parametrize("arguments", [(), ("--by", "used"), ("--snapshots", "7")])
def test_the_dump_of_the_debugger_around_us(debugger, tmp_path, arguments):
    code, out, said = run(RankJob, tmp_path, *arguments)
    assert code == ExitCode.DONE
    assert "Leak' (nonpaged) holds most, 6,000 bytes" in " ".join(out.split())
    assert "C:\\MEMORY.DMP" in out
    assert (
        said == "opened: Windows build 22621 x64, 2 processors, 22621.1.amd64fre.fake "
        "(dbgeng over fake)\nranking tags: snapshot 1 of 1\n"
    )
    assert "g lets it run" not in out
    assert "stopped" not in out
    assert debugger.asked.count("!poolused 3") == 1
    assert "g" not in debugger.asked


def test_a_dump_of_a_bug_check(debugger, tmp_path):
    debugger.answers[".bugcheck"] = _BUG_CHECK
    code, out, said = run(RankJob, tmp_path)
    assert code == ExitCode.DONE
    assert "holds most" in out
    assert "must not run" not in said
    assert "left stopped" not in said


def test_growth_is_refused(debugger, tmp_path):
    code, out, said = run(RankJob, tmp_path, "--by", "growth")
    assert code == ExitCode.TARGET
    assert "holds most" not in out
    assert "kdleak diff A B" in said
    assert not any(command.startswith("!poolused") for command in debugger.asked)


@pytest.mark.parametrize(
    ("answer", "kind", "detail"),
    [
        (_BUG_CHECK, StopKind.BUG_CHECK, "bug check 0xd1 (0xffffa40889a7c000, 0x2, 0x0, "),
        (_BUG_CHECK.replace("000000D1", "00000000"), StopKind.BREAK_INSTRUCTION, ""),
        (_BUG_CHECK.splitlines()[0] + "\n", StopKind.BREAK_INSTRUCTION, ""),
        ("", StopKind.BREAK_INSTRUCTION, ""),
    ],
)
def test_which_bug_check_it_was(debugger, answer, kind, detail):
    debugger.halt = Halt(NT + 0x1200)
    debugger.answers[".bugcheck"] = answer
    stop = open_dbgeng(debugger).stop
    assert (stop.kind, stop.detail[: len(detail)]) == (kind, detail)
    assert stop.program_counter == NT + 0x1200


@pytest.mark.parametrize("job", [HuntJob, RestoreJob])
def test_nothing_to_hunt_or_restore(debugger, tmp_path, job):
    code, out, said = run(job, tmp_path)
    assert code == ExitCode.TARGET
    assert "it is a dump" in said
    assert not any(command.startswith("ed ") for command in debugger.asked)
    assert "DISARM NOT CONFIRMED" not in out


def test_without_kdexts_the_tables_are_tried(debugger, tmp_path):
    del debugger.answers["!poolused 3"]
    code, out, said = run(RankJob, tmp_path)
    assert code == ExitCode.TARGET  # this target has no tables
    assert "this debugger has no !poolused" in said
    assert "through memory" in said
    assert said.count("Next: ") == 1
    assert "which needs no symbols: kdleak rank -z FILE." in said
    assert out == ""


def test_recorded_and_replayed(debugger, tmp_path):
    record = tmp_path / "dump.jsonl"
    code, out, _ = run(RankJob, tmp_path, "--record", str(record))
    assert code == ExitCode.DONE
    assert json.loads(record.read_text().splitlines()[0])["session"] == "dump"
    again, replayed, _ = run(RankJob, tmp_path, "--replay", str(record))
    assert again == ExitCode.DONE
    assert replayed.splitlines()[1:] == out.splitlines()[1:]


def test_the_command_line_replays_what_windbg_recorded(debugger, tmp_path, capsys, monkeypatch):
    pytest.importorskip("click", reason="the command line needs click")
    cli = importlib.import_module("kdleak.cli.entry")
    record = tmp_path / "dump.jsonl"
    run(RankJob, tmp_path, "--record", str(record))
    monkeypatch.setenv("KDLEAK_STATE_DIR", str(tmp_path / "state"))
    assert cli.run(["rank", "--replay", str(record)]) == ExitCode.DONE
    assert "holds most, 6,000 bytes" in capsys.readouterr().out


# --- -z, from a plain Python


@pytest.mark.parametrize("engine", ["kd", "pykd", "pybag"])
def test_each_engine_opens_it(debugger, tmp_path, engine):
    dump = tmp_path / "MEMORY.DMP"
    dump.write_bytes(b"PAGEDU64")
    code, out, said = run(RankJob, tmp_path, "-z", str(dump), "--engine", engine)
    assert code == ExitCode.DONE
    (opening,) = debugger.openings
    assert opening[2]["dump"] == (str(dump) if engine == "kd" else True)
    assert "waiting" not in said
    assert f"opening {dump} through {engine}" in said
    assert "holds most" in out


def test_only_a_ranking_takes_one():
    assert parse_rank(["-z", "a.dmp"]).session.dump == Path("a.dmp")
    assert parse_rank(["-z", "a.dmp"]).rank.by.value == "used"
    assert parse_rank([]).rank.by.value == "growth"
    with pytest.raises(UsageError, match="-z"):
        parse_hunt(["-z", "a.dmp"])


@pytest.mark.parametrize(
    "request_",
    [
        SessionRequest(dump=Path("no such file")),
        SessionRequest(dump=Path(__file__).parent),
        SessionRequest("com:port=COM1", dump=Path(__file__)),
        SessionRequest(dump=Path(__file__), replay=Path(__file__)),
    ],
    ids=str,
)
def test_what_is_refused(debugger, request_):
    with pytest.raises(UsageError):
        check_request(request_)
    with pytest.raises(UsageError):
        open_engine(request_, lambda _: None)
    assert debugger.openings == []


# --- the channel inside


def test_pykd_tells_a_dump_from_a_target(monkeypatch):
    module = FakePykd()
    module.dump = True
    module.answers["||"] = ".  0 64-bit Full kernel dump: C:\\Windows\\MEMORY.DMP\n"
    monkeypatch.setattr(pykd, "load_pykd", lambda: module)
    channel = pykd.pykd_inside()
    assert (channel.session, channel.where) == (base.DUMP, "C:\\Windows\\MEMORY.DMP")
    channel.close()
    assert module.commands == ["||"]  # the session stays the user's
