"""Recording a session and replaying it: the same hunt, event by event."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dbgeng_fakes import FINISH, TRACK, FakeDebugger, hit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kdleak.engine.channels.base import Resumed
from kdleak.engine.channels.record import RecordingChannel
from kdleak.engine.channels.replay import NotARecording, ReplayMismatch, open_replay
from kdleak.engine.dbgeng import open_dbgeng
from kdleak.errors import KdleakError, LinkLost, UsageError
from kdleak.hunt import hunt
from kdleak.hunt_options import HuntOptions
from kdleak.journal import Journal
from kdleak.report.json_report import hunt_document
from kdleak.result import DisarmStatus, StopReason
from kdleak.tags import PoolTag

KEY = "1.2.3.4"


class Ticks:
    """A clock that moves a little with every look."""

    now = 5.0

    def __call__(self) -> float:
        self.now += 0.0123
        return self.now


def hunted(channel, folder: Path, *, hits: int = 5):
    engine = open_dbgeng(channel, clock=channel.clock)
    try:
        return hunt(
            engine,
            HuntOptions(tag=PoolTag.parse("Leak"), max_hits=hits, max_seconds=20, settle_seconds=0),
            journal=Journal(folder),
            clock=channel.clock,
            wall_clock=lambda: 1.7e9,
            sleep=lambda _: None,
        )
    finally:
        engine.close()


def halts():
    return [hit(*TRACK), hit(*FINISH, alloc=False), hit(*TRACK, depth=0x100), hit(*TRACK),
            hit(*FINISH, alloc=False, processor=1)]  # fmt: skip


def recorded(path: Path, *, quick: bool = False, fakes=None, hits: int = 5):
    debugger = FakeDebugger(*(halts() if fakes is None else fakes), quick=quick)
    debugger.answers[".lastevent"] = (
        f"Last event: Break instruction exception - code 80000003 (first chance) Key={KEY},x\n"
    )
    channel = RecordingChannel(debugger, path, clock=Ticks(), options={"tag": "Leak"})
    return hunted(channel, path.parent / "journal", hits=hits)


def same(one, other) -> bool:
    first, second = hunt_document(one), hunt_document(other)
    assert second["engine"] == "dbgeng over fake (replayed)"
    first.pop("engine")
    second.pop("engine")
    return first == second


@pytest.mark.parametrize("quick", [True, False])
def test_a_replayed_hunt_is_the_recorded_one(tmp_path, quick):
    path = tmp_path / "hunt.jsonl"
    result = recorded(path, quick=quick)
    assert result.completeness.hits == 5
    assert result.disarm.status is DisarmStatus.CONFIRMED
    channel = open_replay(path)
    assert channel.options == {"tag": "Leak"}
    again = hunted(channel, tmp_path / "journal2")
    assert same(result, again)
    assert KEY not in path.read_text()


def test_a_lost_link_replays_too(tmp_path):
    path = tmp_path / "hunt.jsonl"
    fakes = halts()
    debugger = FakeDebugger(*fakes[:2])

    def cut(timeout):
        if not debugger.halts:
            debugger.link_down = True
            raise LinkLost("waiting for the target", "the connection is lost", "look at the link")
        return

    debugger.on_resume = cut
    channel = RecordingChannel(debugger, path, clock=Ticks())
    result = hunted(channel, tmp_path / "journal")
    assert result.stop_reason is StopReason.LINK_LOST
    assert result.disarm.status is DisarmStatus.NOT_CONFIRMED
    again = hunted(open_replay(path), tmp_path / "journal2")
    assert again.stop_reason is StopReason.LINK_LOST
    assert again.disarm.status is DisarmStatus.NOT_CONFIRMED


def test_ctrl_c_replays_too(tmp_path):
    path = tmp_path / "hunt.jsonl"
    debugger = FakeDebugger(hit(*TRACK))

    def press(timeout):
        if not debugger.halts:
            debugger.on_resume = None
            raise KeyboardInterrupt
        return

    debugger.on_resume = press
    channel = RecordingChannel(debugger, path, clock=Ticks())
    result = hunted(channel, tmp_path / "journal")
    assert result.stop_reason is StopReason.INTERRUPTED
    assert result.disarm.status is DisarmStatus.CONFIRMED
    assert same(result, hunted(open_replay(path), tmp_path / "journal2"))


def test_other_questions_are_refused_in_words(tmp_path):
    path = tmp_path / "hunt.jsonl"
    recorded(path)
    channel = open_replay(path)
    channel.execute("vertarget")
    with pytest.raises(ReplayMismatch, match=r"line 3 holds execute .*now execute !poolused 4"):
        channel.execute("!poolused 4")
    channel.close()


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_cut_anywhere_it_ends_in_words(tmp_path, data):
    path = tmp_path / "whole.jsonl"
    if not path.exists():
        recorded(path)
    whole = path.read_bytes()
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 2))])
    try:
        channel = open_replay(cut)
    except UsageError:
        return
    try:
        result = hunted(channel, tmp_path / "journal2")
    except KdleakError:
        return
    finally:
        channel.close()
    assert result.completeness.hits <= 5


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_anywhere_it_ends_in_words(tmp_path, data):
    path = tmp_path / "whole.jsonl"
    if not path.exists():
        recorded(path, quick=True)
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(raw)
    try:
        channel = open_replay(bad)
    except UsageError:
        return
    try:
        hunted(channel, tmp_path / "journal2")
    except KdleakError:
        pass
    finally:
        channel.close()


def test_what_is_no_recording(tmp_path):
    log = tmp_path / "log.txt"
    log.write_text("0: kd> !poolused 4\n")
    with pytest.raises(NotARecording, match="kdleak parse"):
        open_replay(log)
    with pytest.raises(UsageError, match="No such file"):
        open_replay(tmp_path / "nothing")
    newer = tmp_path / "newer.jsonl"
    newer.write_text(json.dumps({"format": "kdleak.recording", "format_version": "2.0"}) + "\n")
    with pytest.raises(UsageError, match=r"2\.0"):
        open_replay(newer)


def test_never_over_a_file_that_is_there(tmp_path):
    path = tmp_path / "hunt.jsonl"
    path.write_text("precious")
    with pytest.raises(UsageError, match="exists"):
        RecordingChannel(FakeDebugger(), path)
    with pytest.raises(UsageError, match="folder"):
        RecordingChannel(FakeDebugger(), tmp_path / "none" / "hunt.jsonl")
    assert path.read_text() == "precious"


def test_a_full_disk_ends_the_recording_and_not_the_hunt(tmp_path):
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    debugger = FakeDebugger(*halts())
    channel = RecordingChannel(debugger, full, clock=Ticks(), force=True)
    result = hunted(channel, tmp_path / "journal")
    assert result.disarm.status is DisarmStatus.CONFIRMED
    assert "incomplete" in channel.remarks[0]


def test_what_a_stop_says_survives(tmp_path):
    path = tmp_path / "stops.jsonl"
    debugger = FakeDebugger()
    told = [
        Resumed("text \N{GREEK SMALL LETTER ALPHA}\n", processor=3, code=0x80000003,
                first_chance=False),
        Resumed(running=True),
        Resumed(broke_in=True),
    ]  # fmt: skip
    answers = list(told)
    debugger.on_resume = lambda timeout: answers.pop(0)
    channel = RecordingChannel(debugger, path, clock=Ticks())
    for expected in told:
        assert channel.resume(1) == expected
    channel.close()
    replay = open_replay(path)
    assert [replay.resume(1) for _ in told] == told
    replay.close()
