"""A whole hunt with a debugger's stdio: what is said, what can be clicked, what is returned."""

from __future__ import annotations

import json

import pytest
from windbg_fakes import ClickablePane, Pane, Session, WinDbgEngine

from hunt_fakes import IDLE, Event, alloc, foreign, leaking  # isort: skip

from kdleak.errors import LinkLost, MissingDependency, NoTarget
from kdleak.windbg.hunt_entry import main
from kdleak.windbg.output import Output

HUNT = ("--tag", "Leak", "--hits", "20", "--hits-per-second", "1000")


def test_a_hunt(tmp_path):
    session = Session(tmp_path)
    assert session.run(*HUNT) in (0, 4)
    assert session.engine.hit_tag == IDLE
    assert "leakdrv" in session.text
    assert "Call sites" in session.out.text
    assert session.last_line == "disarmed: nt!PoolHitTag is back at 0xffffff0f (read back)."
    assert '<link cmd="g">g</link> lets it run' in session.out.text
    assert session.engine.left == [False]
    assert session.requests[0].inside


def test_without_dml_the_report_is_plain(tmp_path):
    session = Session(tmp_path)
    pane = Pane()
    session.job.output = Output(pane, pane)
    session.run(*HUNT)
    assert "<" not in pane.text
    assert "leakdrv!Receive+0x31" in pane.text


def test_names_from_the_target_are_no_markup(tmp_path):
    evil = 'evil!<link cmd="q">\u202e\x1b[2J&quot;</link>+0x10'
    session = Session(
        tmp_path, WinDbgEngine(alloc(0x1000 * n, evil, dt=0.05) for n in range(1, 100))
    )
    session.run(*HUNT)
    clickable = [line for line in session.text.splitlines() if line.startswith("<dml>")]
    assert clickable
    assert not any('<link cmd="q">' in line for line in clickable)
    assert "&lt;link cmd=&quot;q&quot;&gt;" in session.text
    assert "\x1b" not in session.text
    assert "\\u202e" in session.text


def test_json_goes_to_a_file(tmp_path):
    target = tmp_path / "hunt.json"
    session = Session(tmp_path / "journal")
    session.run(*HUNT, "--json", str(target))
    document = json.loads(target.read_text(encoding="utf-8"))
    assert document["format"] == "kdleak.hunt"
    assert document["engine"] == "dbgeng over pykd"
    again = Session(tmp_path / "journal")
    assert again.run(*HUNT, "--json", str(target)) == 2
    assert "the file exists" in again.text
    assert again.engine.calls == []


def test_a_json_file_that_cannot_be_written_does_not_cost_the_report(tmp_path, monkeypatch):
    def full(text, output):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kdleak.windbg.job.write_file", full)
    session = Session(tmp_path / "journal")
    assert session.run(*HUNT, "--json", str(tmp_path / "hunt.json")) in (2, 4)
    assert "No space left" in session.text
    assert "Call sites" in session.text
    assert session.last_line.startswith("disarmed: ")


def test_explain_touches_nothing(tmp_path):
    session = Session(tmp_path)
    assert session.run("--tag", "Leak", "--explain") == 0
    assert "ed nt!PoolHitTag 'kaeL'" in session.text
    assert session.engine.calls == []
    assert session.requests == []


def test_help(tmp_path):
    session = Session(tmp_path)
    assert session.run("--help") == 0
    for option in ("--tag", "--hits", "--kb", "--record", "--engine", "--replay", "-k", "-y"):
        assert option in session.out.text
    assert session.err.text == "" or session.said == session.out.said


@pytest.mark.parametrize(
    "arguments",
    [
        ["--tag", "Leaks"],
        ["--tag", "Le\u0142k"],
        ["--hits", "0"],
        ["--hits", "many"],
        ["--seconds", "nan"],
        ["--seconds", "inf"],
        ["--timeout", "0"],
        ["--timeout", "nan"],
        ["--depth", "129"],
        ["--max-stop-share", "2"],
        ["--min-age", "-1"],
        ["--min-age", "nan"],
        ["--min-age", "old"],
        ["--engine", "gdb"],
        ["--surprise"],
        ["k3yp4rt1.zz9sec0nd.th1rdp1ece.l4stb1t"],
        ["-k", "net:port=50000", "key=k3yp4rt1.zz9sec0nd.th1rdp1ece.l4stb1t"],
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(tmp_path, arguments):
    session = Session(tmp_path)
    assert session.run(*arguments) == 2
    assert session.requests == []
    assert session.text.count("\n") == 1
    assert session.text.startswith("kdleak: ")
    assert "sec0nd" not in session.text


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MissingDependency("using pykd", "it is not installed", "!pip -3.9 install pykd"), 2),
        (NoTarget("waiting for net:port=50000", "nothing came"), 3),
        (ModuleNotFoundError("No module named 'pykd'", name="pykd"), 2),
        (RuntimeError("a bug"), 70),
    ],
)
def test_a_debugger_that_cannot_be_used(tmp_path, error, code):
    session = Session(tmp_path)

    def refuse(request, narrate):
        raise error

    session.job._opener = refuse
    assert session.run(*HUNT) == code
    assert session.text.count("\n") == 1
    assert "Traceback" not in session.text


def test_a_trace_only_when_asked_for(tmp_path):
    for arguments, traced in ((["--debug"], True), (["-vv"], True), (["-v"], False)):
        session = Session(tmp_path)

        def fail(request, narrate):
            raise RuntimeError("a bug")

        session.job._opener = fail
        assert session.run(*HUNT, *arguments) == 70
        assert ("windbg_hunt.py" in session.text) is traced


def test_a_refused_hunt_says_that_nothing_was_written(tmp_path):
    engine = WinDbgEngine(leaking(), live=False)
    session = Session(tmp_path, engine)
    assert session.run(*HUNT) == 3
    assert "it is a dump" in session.text
    assert session.last_line.startswith("disarmed: nothing to undo")
    assert engine.writes == []


def test_a_bug_in_the_middle_is_no_silence(tmp_path):
    class Boom(RuntimeError):
        pass

    def fault(engine, name, when):
        if name == "registers":
            raise Boom

    session = Session(tmp_path, WinDbgEngine(leaking(), fault=fault))
    assert session.run(*HUNT) == 70
    assert session.engine.hit_tag == IDLE
    assert session.last_line.startswith("disarmed: ")


def test_a_bug_that_leaves_it_armed_is_said(tmp_path):
    def fault(engine, name, when):
        if name == "registers":
            engine.refuse_writes = True
            raise RuntimeError("a bug")

    session = Session(tmp_path, WinDbgEngine(leaking(), fault=fault))
    code = session.run(*HUNT)
    assert session.engine.hit_tag != IDLE
    assert session.last_line.startswith("DISARM NOT CONFIRMED")
    assert code == 5
    assert "ed nt!PoolHitTag 0xffffff0f" in session.text


def test_an_unconfirmed_disarm_offers_its_repair_as_links(tmp_path):
    def fault(engine, name, when):
        if len(engine.writes) == 1 and name == "resume" and when == "after":
            engine.refuse_writes = True

    session = Session(tmp_path, WinDbgEngine(leaking(), fault=fault))
    assert session.run(*HUNT) == 5
    assert (
        '<link cmd="ed nt!PoolHitTag 0xffffff0f">ed nt!PoolHitTag 0xffffff0f</link>' in session.text
    )
    assert session.last_line.startswith("DISARM NOT CONFIRMED")
    assert session.engine.left == [True]


def test_a_lost_link_ends_with_what_was_learned(tmp_path):
    def fault(engine, name, when):
        if name == "resume" and len(engine.calls) > 60:
            raise LinkLost("letting the target run", "the debugger ended")

    session = Session(tmp_path, WinDbgEngine(leaking(), fault=fault))
    assert session.run(*HUNT) == 4
    assert session.last_line.startswith("disarmed: ")


def test_a_stop_that_is_not_ours_is_left_for_its_user(tmp_path):
    def events() -> list[Event]:
        return [*(e for e, _ in zip(leaking(), range(5))), foreign("otherdrv!Assert+0x10")]

    session = Session(tmp_path, WinDbgEngine(events()))
    assert session.run(*HUNT) == 4
    assert "The target waits for you" in session.text
    assert "lets it run" not in session.text
    assert session.engine.left == [True]


def test_streams_that_are_not_there(tmp_path):
    session = Session(tmp_path)
    session.job.output = Output(None, None)
    assert session.run(*HUNT) in (0, 4)
    assert session.engine.hit_tag == IDLE


def test_a_result_that_stdout_does_not_take(tmp_path):
    class Full(ClickablePane):
        def writedml(self, text):
            raise OSError(28, "No space left on device")

        write = writedml

    session = Session(tmp_path)
    session.job.output = Output(Full(), session.err)
    assert session.run(*HUNT) == 4
    assert "No space left" in session.err.text


def test_main_takes_the_streams_of_the_interpreter(monkeypatch):
    pane = ClickablePane()
    monkeypatch.setattr("sys.stdout", pane)
    assert main(["--explain", "--tag", "Leak"]) == 0
    assert "ed nt!PoolHitTag" in pane.text
