"""Which debugger is opened, and what is refused before one is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))

from dbgeng_fakes import FINISH, TRACK, FakeDebugger, hit

from kdleak.engine.channels import child, kd, pykd
from kdleak.errors import BadConnection, MissingDependency, TargetError, UsageError
from kdleak.windbg import session
from kdleak.windbg.hunt_entry import HuntJob
from kdleak.windbg.options import parse_hunt, parse_rank, parse_restore, wants_trace
from kdleak.windbg.output import Output
from kdleak.windbg.rank_entry import RankJob
from kdleak.windbg.restore_entry import RestoreJob
from kdleak.windbg.session import SessionRequest, check_request, choose_channel, open_engine

from kdleak.journal import Journal  # isort: skip

KEY = "k3yp4rt1.zz9sec0nd.th1rdp1ece.l4stb1t"
NET = f"net:port=50777,key={KEY}"


@pytest.fixture
def opened(monkeypatch):
    """What every opener was asked for; each gives a debugger that is not there."""
    asked = []

    def opener(name):
        def open_it(*arguments, **how):
            asked.append((name, arguments, how))
            return FakeDebugger(hit(*TRACK), hit(*FINISH, alloc=False), quick=True)

        return open_it

    monkeypatch.setattr(kd, "open_kd", opener("kd"))
    monkeypatch.setattr(child, "open_child", opener("child"))
    monkeypatch.setattr(pykd, "pykd_inside", opener("inside"))
    monkeypatch.setattr(session, "has_package", lambda name: True)
    return asked


def test_each_channel(opened):
    for engine in ("kd", "pykd", "pybag"):
        request = SessionRequest(
            NET, engine, symbol_path="srv*", timeout=7.0, kd=None, python="py39"
        )
        assert open_engine(request, lambda _: None).name == "dbgeng over fake"
    assert opened == [
        ("kd", (NET,), {"kd": None, "symbol_path": "srv*", "timeout": 7.0}),
        ("child", ("pykd", NET), {"symbol_path": "srv*", "timeout": 7.0, "python": "py39"}),
        ("child", ("pybag", NET), {"symbol_path": "srv*", "timeout": 7.0, "python": "py39"}),
    ]


def test_without_a_connection_the_debugger_around_us(opened):
    open_engine(SessionRequest(), lambda _: None)
    assert [name for name, _, _ in opened] == ["inside"]


def test_which_one_where_none_is_named(monkeypatch):
    monkeypatch.setattr(session, "debugger_found", lambda: True)
    assert choose_channel() == "kd"
    monkeypatch.setattr(session, "debugger_found", lambda: False)
    assert choose_channel("kd.exe") == "kd"
    for name in ("pykd", "pybag"):
        monkeypatch.setattr(session, "has_package", lambda asked, name=name: asked == name)
        assert choose_channel() == name
    monkeypatch.setattr(session, "has_package", lambda _: False)
    with pytest.raises(MissingDependency, match="Debugging Tools"):
        choose_channel()


def test_no_key_is_said_while_opening(opened):
    said = []
    open_engine(SessionRequest(NET, "kd"), said.append)
    assert said
    assert "k3yp4rt1" not in " ".join(said)
    assert "k3yp4rt1" not in repr(SessionRequest(NET, "kd"))


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (SessionRequest("net:port=50777"), BadConnection),
        (SessionRequest(NET + "\n.reboot"), BadConnection),
        (SessionRequest(NET, replay=Path("x")), UsageError),
        (SessionRequest(replay=Path("no such file")), UsageError),
        (SessionRequest(replay=Path(__file__), record=Path("x")), UsageError),
    ],
    ids=str,
)
def test_what_is_refused(opened, request_, error):
    with pytest.raises(error):
        check_request(request_)
    with pytest.raises(error):
        open_engine(request_, lambda _: None)
    assert opened == []


def test_the_key_of_the_environment(monkeypatch):
    monkeypatch.setenv("KDLEAK_KEY", KEY)
    assert parse_hunt(["-k", "net:port=50777"]).session.connection == NET
    assert parse_hunt(["-k", "com:port=COM1"]).session.connection == "com:port=COM1"


def test_a_channel_is_closed_when_the_engine_cannot_use_it(monkeypatch):
    debugger = FakeDebugger()
    debugger.answers["vertarget"] = "something else\n"
    monkeypatch.setattr(kd, "open_kd", lambda *_, **__: debugger)
    with pytest.raises(TargetError):
        open_engine(SessionRequest(NET, "kd"), lambda _: None)
    assert debugger.closed is not None


def test_options_arrive():
    request = parse_hunt(
        ["--tag", "Leak", "--hits", "5", "--depth", "9", "--full-speed", "--kb", "--top", "3"]
    )
    assert request.hunt is not None
    assert (request.hunt.max_hits, request.hunt.stack_depth) == (5, 9)
    assert request.hunt.hits_per_second is request.hunt.max_stopped_share is None
    assert request.session.use_kb
    assert request.top == 3
    assert request.hunt.min_age is None
    plain = parse_hunt(["--min-age", "2.5"]).hunt
    assert plain is not None
    assert (plain.min_age, plain.max_stopped_share) == (2.5, 0.2)
    ranking = parse_rank(["--by", "used", "--pool", "paged"]).rank
    assert ranking is not None
    assert (ranking.snapshots, ranking.pool.value) == (1, "paged")
    assert parse_restore(["--value", "0xffffff0f"]).value == 0xFFFFFF0F


def test_when_a_trace_is_wanted():
    assert wants_trace(["--debug"])
    assert wants_trace(["-vv"])
    assert wants_trace(["-v", "--tag", "Leak", "-v"])
    assert not wants_trace(["-v"])


class Pane:
    encoding = "ascii"

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text


@pytest.mark.parametrize(
    ("job", "arguments", "words"),
    [
        (HuntJob, ["--tag", "Leak", "--hits", "2"], "leakdrv!TrackRequest+0x30"),
        (RestoreJob, [], "The journal has no entry for this target."),
    ],
)
def test_recorded_in_windbg_and_replayed(opened, tmp_path, job, arguments, words):
    record = tmp_path / "session.jsonl"
    texts = []
    for how in (["--record", str(record)], ["--replay", str(record)]):
        pane = Pane()
        one = job(Output(pane, Pane()), journal=Journal(tmp_path / "journal"))
        code = one.run([*arguments, *how] if how[0] == "--record" else how)
        assert code in (0, 4)
        assert "of no effect" not in pane.text
        assert words in pane.text
        texts.append([line for line in pane.text.splitlines() if "g lets it run" not in line])
    assert texts[0][2:6] == texts[1][2:6]
    assert texts[1][-1] == f"replayed, no target was touched; in the recording: {texts[0][-1]}"
    assert not list((tmp_path / "journal").glob("*.json"))


def test_what_a_replay_does_not_heed_is_named(opened, tmp_path):
    record = tmp_path / "session.jsonl"
    journal = Journal(tmp_path / "journal")
    options = ["--tag", "Leak", "--hits", "2"]
    HuntJob(Output(Pane(), Pane()), journal=journal).run([*options, "--record", str(record)])
    said, pane = Pane(), Pane()
    again = HuntJob(Output(pane, said), journal=journal)
    assert again.run(["--tag", "Busy", "-y", "x", "--top", "3", "--replay", str(record)]) in (0, 4)
    assert said.text.startswith("--tag, -y: of no effect here, a replay does what was recorded.\n")
    assert pane.text.startswith("Replayed hunt of 'Leak'")


def test_a_ranking_in_windbg(opened, tmp_path):
    pane = Pane()
    job = RankJob(Output(pane, pane), journal=Journal(tmp_path))
    assert job.run(["--by", "used"]) in (0, 3, 4)
    assert "Traceback" not in pane.text
    assert "disarmed" not in pane.text
