"""Choosing an engine, recording a session and replaying it; Microsoft's own is not needed here."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "engine"))

from dbgeng_fakes import FINISH, TRACK, FakeDebugger, hit

from kdleak.cli import target_options
from kdleak.cli.target_options import NATIVE, TargetOptions, choose_target
from kdleak.engine.channels import child, kd
from kdleak.errors import BadConnection, MissingDependency, UsageError

KEY = "k3yp4rt1.zz9sec0nd.th1rdp1ece.l4stb1t"
NET = f"net:port=50777,key={KEY}"
HUNT = ("hunt", "-k", NET, "--engine", "kd", "--tag", "Leak", "--hits", "4")


def halts(count: int = 3):
    """Allocations that are never freed, and some that are."""
    return [
        one
        for number in range(count)
        for one in (
            hit(*TRACK, registers={"rbx": 0x1000 * number}),
            hit(*FINISH, alloc=False, registers={"rbx": 0x1000 * number}),
        )
    ]


@pytest.fixture
def debugger(monkeypatch):
    """What ``--engine kd`` opens."""
    opened = FakeDebugger(*halts(), quick=True)
    asked = []

    def open_kd(connection, **how):
        asked.append((connection, how))
        return opened

    monkeypatch.setattr(kd, "open_kd", open_kd)
    opened.asked_to_open = asked
    return opened


def idle(debugger: FakeDebugger) -> bool:
    from dbgeng_fakes import HIT_TAG

    return bytes(debugger.bytes_at(HIT_TAG, 4)) == bytes.fromhex("0fffffff")


# --- which engine


def test_native_where_there_is_no_kd(monkeypatch):
    monkeypatch.setattr(target_options, "debugger_found", lambda: False)
    assert choose_target(TargetOptions(connection=NET)).engine == NATIVE


def test_kd_where_there_is_one(monkeypatch):
    monkeypatch.setattr(target_options, "debugger_found", lambda: True)
    assert choose_target(TargetOptions(connection=NET)).engine == "kd"
    assert choose_target(TargetOptions(connection=NET, engine=NATIVE)).engine == NATIVE


def test_naming_kd_chooses_it(monkeypatch):
    monkeypatch.setattr(target_options, "debugger_found", lambda: False)
    assert choose_target(TargetOptions(connection=NET, kd="kd.exe")).engine == "kd"


@pytest.mark.parametrize(
    "given",
    [
        {"kd": "kd.exe", "engine": NATIVE},
        {"kd": "kd.exe", "engine": "pykd"},
        {"python": "py", "engine": NATIVE},
        {"python": "py", "engine": "kd"},
        {"kb": True, "engine": NATIVE},
        {"record": Path("x.jsonl"), "engine": NATIVE},
    ],
    ids=str,
)
def test_options_of_another_engine_are_refused(given):
    with pytest.raises(UsageError, match="it has no such thing"):
        choose_target(TargetOptions(connection=NET, **given))


def test_a_replay_is_no_target(tmp_path):
    file = tmp_path / "hunt.jsonl"
    file.write_text("{}")
    for given in (
        {"connection": NET},
        {"engine": "kd"},
        {"record": tmp_path / "other.jsonl"},
    ):
        with pytest.raises(UsageError):
            choose_target(TargetOptions(replay=file, **given))
    with pytest.raises(UsageError, match="no such file"):
        choose_target(TargetOptions(replay=tmp_path / "none.jsonl"))


@pytest.mark.parametrize("engine", ["kd", "pykd", "pybag"])
def test_a_connection_without_a_key_is_refused_before_anything_starts(engine):
    with pytest.raises(BadConnection, match="KDNET needs a key"):
        choose_target(TargetOptions(connection="net:port=50777", engine=engine))


def test_the_symbol_path_of_the_environment_stays_the_debuggers(monkeypatch):
    for name in ("_NT_SYMBOL_PATH", "_NT_ALT_SYMBOL_PATH"):
        monkeypatch.delenv(name, raising=False)
    assert choose_target(TargetOptions(connection=NET, engine="kd")).request.symbol_path == ""
    path = choose_target(TargetOptions(connection=NET, engine="kd", symbol_path="srv*"))
    assert path.request.symbol_path.startswith("srv*;")


def test_it_says_which_engine_it_uses(in_process, debugger):
    _, _, err = in_process(*HUNT)
    assert "waiting for the target at net:port=50777,key=... through kd" in err
    (connection, how) = debugger.asked_to_open[0]
    assert connection == NET
    assert how["kd"] is None


@pytest.mark.parametrize("command", ["hunt", "rank", "restore"])
@pytest.mark.parametrize("engine", ["kd", "pykd", "pybag"])
def test_an_engine_that_is_not_there(in_process, monkeypatch, command, engine):
    def missing(*_, **__):
        raise MissingDependency(f"starting {engine}", "it is not installed", "install it")

    monkeypatch.setattr(kd, "open_kd", missing)
    monkeypatch.setattr(child, "open_child", missing)
    code, out, err = in_process(command, "-k", NET, "--engine", engine)
    assert (code, out) == (2, "")
    said = err.splitlines()[-1]
    assert said == f"kdleak: starting {engine}: it is not installed. Next: install it."


# --- hunting, recording, replaying


def test_a_hunt_over_a_debugger(in_process, debugger):
    code, out, err = in_process(*HUNT, "-v")
    assert code in (0, 4), err
    assert "leakdrv!TrackRequest+0x30" in out
    assert out.endswith("disarmed: nt!PoolHitTag is back at 0xffffff0f (read back).\n")
    assert idle(debugger)
    assert debugger.closed is False
    assert "target stopped" in err
    assert "link:" not in err, "no native link here"


def test_json_names_the_engine(in_process, debugger):
    _, out, _ = in_process(*HUNT, "--json")
    assert json.loads(out)["engine"] == "dbgeng over fake"


def test_kb_is_passed_on(in_process, debugger):
    in_process(*HUNT, "--kb")
    assert any(command.startswith("kb") for command in debugger.asked)


@pytest.mark.parametrize("more", [[], ["--kb"]])
def test_a_replay_finds_what_the_hunt_found(in_process, debugger, tmp_path, state, more):
    record = tmp_path / "hunt.jsonl"
    code, out, err = in_process(*HUNT, "--record", record, *more)
    assert "recording the session" in err
    again, replayed, err = in_process("hunt", "--replay", record)
    assert again == code
    assert "no target is touched" in err
    same = ("Call sites", "leakdrv!TrackRequest", "Frees matched", "hits in")
    for words in same:
        lines = [line for line in out.splitlines() if words in line]
        assert lines
        assert lines == [line for line in replayed.splitlines() if words in line]
    assert "of no effect" not in err
    assert replayed.startswith("Replayed hunt of 'Leak'")
    assert replayed.endswith(
        "\nreplayed, no target was touched; in the recording: disarmed: nt!PoolHitTag is back at "
        "0xffffff0f (read back).\n"
    )
    assert KEY not in record.read_text(encoding="utf-8")
    assert not list(state.glob("*.json")), "a replay leaves nothing in the user's journal"


def test_what_a_replay_does_not_heed_is_named(in_process, debugger, tmp_path):
    record = tmp_path / "hunt.jsonl"
    in_process(*HUNT, "--record", record)
    _, out, err = in_process("hunt", "--replay", record, "--tag", "Busy", "--kb", "--top", "1")
    assert "--kb, --tag: of no effect here, a replay does what was recorded." in err
    assert out.startswith("Replayed hunt of 'Leak'")


def test_a_replay_is_of_the_time_of_its_recording(in_process, debugger, tmp_path):
    record = tmp_path / "hunt.jsonl"
    in_process(*HUNT, "--record", record)
    header, _, rest = record.read_text(encoding="utf-8").partition("\n")
    document = json.loads(header)
    document["options"]["started_at"] = 1_000_000_000.0
    record.write_text(f"{json.dumps(document)}\n{rest}", encoding="utf-8")
    _, out, _ = in_process("hunt", "--replay", record, "--json")
    assert json.loads(out)["started_at"].startswith("2001-09-09T01:46:40")


def test_a_recording_that_was_cut_ends_without_waiting(in_process, debugger, tmp_path, monkeypatch):
    record = tmp_path / "hunt.jsonl"
    in_process(*HUNT, "--record", record)
    lines = record.read_text(encoding="utf-8").splitlines(keepends=True)
    disarm = max(number for number, line in enumerate(lines) if '"ed nt!PoolHitTag' in line)
    record.write_text("".join(lines[:disarm]), encoding="utf-8")
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail(f"slept {seconds} s"))
    code, out, err = in_process("hunt", "--replay", record)
    assert code == 5
    assert "Trying for" not in err
    assert "the recording ends behind line" in out
    assert "\nreplayed, no target was touched; in the recording: DISARM NOT CONFIRMED" in out
    assert "kept in the journal" not in out, "the journal of a replay is gone"


def test_a_log_is_no_target_either(in_process, tmp_path):
    log = tmp_path / "windbg.log"
    log.write_text("0: kd> g\n")
    code, out, err = in_process("hunt", "-k", "net:port=1,key=1.2.3.4", "--replay", log)
    assert (code, out) == (2, "")
    assert "both -k and --replay" in err
    _, _, err = in_process("hunt", "--tag", "Leak", "--replay", log)
    assert "--tag: of no effect" in err


def test_a_recording_is_of_one_command(in_process, debugger, tmp_path):
    record = tmp_path / "hunt.jsonl"
    in_process(*HUNT, "--record", record)
    code, out, err = in_process("rank", "--replay", record)
    assert (code, out) == (2, "")
    assert "recorded by kdleak hunt" in err


def test_a_recording_is_not_written_over(in_process, debugger, tmp_path):
    record = tmp_path / "hunt.jsonl"
    record.write_text("precious")
    code, _, err = in_process(*HUNT, "--record", record)
    assert code == 2
    assert "the file exists" in err
    assert record.read_text() == "precious"
    assert debugger.asked == []
    in_process(*HUNT, "--record", record, "--force")
    assert record.read_text() != "precious"


@pytest.mark.parametrize("command", ["rank", "restore"])
def test_what_is_no_recording(in_process, tmp_path, command):
    file = tmp_path / "windbg.log"
    file.write_text("0: kd> !poolused 4\n")
    code, out, err = in_process(command, "--replay", file)
    assert (code, out) == (2, "")
    assert "kdleak parse" in err
