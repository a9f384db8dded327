"""The channel over the real pykd and Microsoft's engine, against a practice target."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kdleak.errors import LinkLost, NoTarget
from tests.rig.channel_session import HITS, hunt_by_hand, opened, python_command, runs_on
from tests.rig.conftest import KEY, Practice
from tests.rig.places import windows_path
from tests.rig.rig import Rig

BINDING = "pykd"
Start = Callable[..., Practice]


def test_hunt_by_hand(rig: Rig, practice_over_kdnet: Start, tmp_path: Path):
    practice = practice_over_kdnet()
    with opened(BINDING, rig, practice, tmp_path) as channel:
        assert channel.session == "live kernel"
        assert KEY not in channel.where
        hunt_by_hand(channel)
    statistics = runs_on(practice)
    assert statistics["hits_alloc"] + statistics["hits_free"] == HITS
    assert statistics["pool_hit_tag"] != int.from_bytes(b"Leak", "little")
    assert statistics["requests"]["CONTINUE2"] == statistics["stops"], "left stopped"


def test_requests_per_hit(rig: Rig, practice_over_kdnet: Start, tmp_path: Path):
    """go, registers and one read of the stack: nothing else may cost the target time."""
    reads = []
    for hits in (5, 25):
        practice = practice_over_kdnet()
        with opened(BINDING, rig, practice, tmp_path) as channel:
            channel.execute("ed nt!PoolHitTag 'kaeL'")
            for _ in range(hits):
                channel.resume(20.0)
                top = channel.quick.registers()["rsp"]
                channel.quick.read(top, 0x80)
            channel.execute("ed nt!PoolHitTag 0ffffff0f")
        reads.append(sum(practice.finish()["statistics"]["requests"].values()))
    assert (reads[1] - reads[0]) / 20 <= 10.5


def test_link_lost_and_found_again(rig: Rig, practice_over_kdnet: Start, tmp_path: Path):
    practice = practice_over_kdnet()
    with opened(BINDING, rig, practice, tmp_path, timeout=20.0) as channel:
        assert channel.resume(0.2).running
        os.kill(practice.process.pid, signal.SIGSTOP)
        try:
            for _ in range(2):
                with pytest.raises(LinkLost):
                    channel.interrupt(1.5)
            with pytest.raises(LinkLost):
                channel.execute("r")
        finally:
            os.kill(practice.process.pid, signal.SIGCONT)
        deadline = time.monotonic() + 60
        while True:
            try:
                resumed = channel.interrupt(5.0)
                break
            except LinkLost:
                assert time.monotonic() < deadline
        assert not resumed.running
        assert "rip" in channel.quick.registers()
        assert "PoolHitTag" in channel.execute("ln nt!PoolHitTag")
        assert channel.resume(0.2).running
        channel.interrupt(10.0)
    assert runs_on(practice)["stops"] >= 2


def test_dead_target(rig: Rig, practice_over_kdnet: Start, tmp_path: Path):
    practice = practice_over_kdnet()
    with opened(BINDING, rig, practice, tmp_path) as channel:
        assert channel.resume(0.2).running
        practice.kill()
        with pytest.raises(LinkLost):
            channel.interrupt(2.0)
        began = time.monotonic()
    assert time.monotonic() - began < 10.0
    assert rig.processes() == []


def test_nobody_answers(rig: Rig, practice_over_kdnet: Start, tmp_path: Path):
    practice = practice_over_kdnet(key="5.6.7.8")
    wrong = Practice(practice.connection.replace("5.6.7.8", KEY), practice.symbols, [])
    began = time.monotonic()
    with pytest.raises(NoTarget) as raised, opened(BINDING, rig, wrong, tmp_path, timeout=3.0):
        pass
    assert "no answer within 3 s" in str(raised.value)
    assert KEY not in str(raised.value)
    assert time.monotonic() - began < 60.0
    assert rig.processes() == []


def test_not_inside_windbg(rig: Rig, practice_over_kdnet: Start, tmp_path: Path):
    script = tmp_path / "inside.py"
    script.write_text(
        "from kdleak.engine.channels.pykd import pykd_inside\n"
        "from kdleak.errors import NoTarget\n"
        "try:\n    pykd_inside()\nexcept NoTarget as error:\n    print(error)\n"
    )
    done = rig.python(windows_path(script))
    assert "does not run inside a debugger" in done.out
    assert "Traceback" not in done.err


def test_binding_missing(rig: Rig, practice_over_kdnet: Start, tmp_path: Path):
    """A Python without the binding is one sentence, with what to do."""
    from kdleak.engine.channels.child import open_child
    from kdleak.errors import MissingDependency

    practice = practice_over_kdnet()
    program = Path(python_command(rig, practice, tmp_path))
    program.write_text(program.read_text().replace('"$@"', '-S "$@"'))
    with pytest.raises(MissingDependency, match="No module named 'pykd'"):
        open_child(BINDING, practice.connection, python=str(program))
