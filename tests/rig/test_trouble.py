"""Whole hunts that go wrong, through every channel and Microsoft's engine.

Ctrl+C or Ctrl+Break, a dead target, a lost link, a killed debugger: the target is disarmed or it
is said that it is not, the processes end, one clear sentence says what happened.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.rig.conftest import Practice, plan_practice
from tests.rig.hunt_process import Doors, HuntProcess
from tests.rig.rig import Rig
from tests.rig.wire import Wire

StartPractice = Callable[..., Practice]

IDLE = 0xFFFFFF0F
SAFE = "disarmed: nt!PoolHitTag is back at 0xffffff0f (read back)."
LONG = ("--hits", "100000", "--seconds", "120", "--full-speed")
CHANNELS = ["kd", "pykd", "pybag"]
GRACE = 60
"""Seconds a hunt tries to get a link back that does come back; each test waits longer than that."""
SLOW_START = {"kd": 1.0, "pykd": 3.0, "pybag": 8.0}
"""Seconds until the debugger listens: a target that boots then is found at once."""


@pytest.fixture
def doors(rig: Rig, tmp_path: Path) -> Iterator[Doors]:
    made = Doors(rig, tmp_path)
    yield made
    made.close()


@pytest.fixture
def hunt(doors: Doors) -> Iterator[Callable[..., HuntProcess]]:
    """Start a hunt, and its target at about the time when the debugger listens."""
    timers: list[threading.Timer] = []

    def begin(channel: str, practice: Practice, *options: str) -> HuntProcess:
        started = doors.start(channel, practice, "--tag", "Leak", *options)
        timers.append(threading.Timer(SLOW_START[channel], practice.start))
        timers[-1].start()
        return started

    yield begin
    for one in timers:
        one.cancel()
        one.join()


def runs(practice: Practice) -> bool:
    """Whether the machine runs: a stopped one uses next to no processor time."""
    stat = Path(f"/proc/{practice.process.pid}/stat")

    def used() -> int:
        fields = stat.read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    for _ in range(10):
        before = used()
        time.sleep(0.5)
        if used() - before >= 3:  # hundredths of a second
            return True
    return False


def assert_unharmed(practice: Practice, hunt: HuntProcess) -> None:
    """It runs, and nt!PoolHitTag is the original."""
    assert runs(practice), f"left stopped: {hunt.said}"
    tag = practice.statistics["pool_hit_tag"]
    assert tag == IDLE, f"{tag:#x}: {hunt.said}"


def test_hunt_from_windows_python(
    hunt: Callable[..., HuntProcess], practice_over_kdnet: StartPractice, doors: Doors, rig: Rig
) -> None:
    practice = practice_over_kdnet(late=True)
    started = hunt("pykd", practice, "--hits", "50").ends(0, 4)
    assert started.out.splitlines()[-1] == SAFE
    assert "leakydrv!" in started.out
    assert rig.processes() == []
    assert doors.journal == []
    assert_unharmed(practice, started)


@pytest.mark.parametrize("channel", CHANNELS)
def test_interrupted(
    channel: str,
    hunt: Callable[..., HuntProcess],
    practice_over_kdnet: StartPractice,
    doors: Doors,
    rig: Rig,
) -> None:
    practice = practice_over_kdnet(late=True)
    started = hunt(channel, practice, *LONG).says("watching '")
    time.sleep(1.0)
    started.interrupt().ends(130, timeout=30)
    assert started.out.splitlines()[-1] == SAFE
    assert "leakydrv!" in started.out  # what was seen so far is reported
    assert rig.processes() == []
    assert doors.journal == []
    assert_unharmed(practice, started)


@pytest.mark.parametrize("channel", CHANNELS)
def test_target_dies(
    channel: str,
    hunt: Callable[..., HuntProcess],
    practice_over_kdnet: StartPractice,
    doors: Doors,
    rig: Rig,
) -> None:
    """Nobody can know that its memory is gone, too: no disarm may be claimed."""
    practice = practice_over_kdnet(late=True)
    started = hunt(channel, practice, *LONG, "--timeout", "5", "--grace", "4").says("watching '")
    time.sleep(0.5)
    practice.kill()
    time.sleep(0.5)
    started.interrupt().ends(5, timeout=60)
    assert_not_confirmed(started)
    assert rig.processes() == []
    assert len(doors.journal) == 1


def assert_not_confirmed(hunt: HuntProcess) -> None:
    """The last thing said is what to do by hand."""
    ending = hunt.out.split("\n\n")[-1]
    assert "DISARM NOT CONFIRMED" in ending, hunt.said
    assert "ed nt!PoolHitTag" in ending
    assert "kdleak restore" in ending


@pytest.mark.parametrize("channel", CHANNELS)
def test_link_lost_for_a_while(
    channel: str,
    hunt: Callable[..., HuntProcess],
    practice_over_kdnet: StartPractice,
    doors: Doors,
    rig: Rig,
) -> None:
    practice = practice_over_kdnet(late=True)
    with Wire(practice.port) as wire:
        practice.plug_into(wire.target_side)
        started = hunt(channel, practice, *LONG, "--timeout", "6", "--grace", str(GRACE))
        started.says("watching '")
        time.sleep(0.5)
        wire.cut()
        time.sleep(0.5)
        started.interrupt().says("The link is lost")
        wire.mend()
        # 4: cut off in the middle of a command, the hunt knew of the link before of Ctrl+C.
        started.ends(130, 4, timeout=2 * GRACE)
        assert wire.dropped > 0
        assert started.out.splitlines()[-1] == SAFE, started.said
        assert rig.processes() == []
        assert doors.journal == []
        assert_unharmed(practice, started)


@pytest.mark.parametrize("channel", CHANNELS)
def test_debugger_killed(
    channel: str,
    hunt: Callable[..., HuntProcess],
    practice_over_kdnet: StartPractice,
    doors: Doors,
    rig: Rig,
) -> None:
    practice = practice_over_kdnet(late=True)
    started = hunt(channel, practice, *LONG, "--grace", str(GRACE)).says("watching '")
    time.sleep(1.0)
    for one in rig.processes():
        if not (channel == "pykd" and one == started.process.pid):
            os.kill(one, signal.SIGKILL)
    started.ends(4, 0, timeout=2 * GRACE)
    assert started.out.splitlines()[-1] == SAFE, started.said
    assert rig.processes() == []
    assert doors.journal == []
    assert_unharmed(practice, started)


def test_link_lost_for_good(
    hunt: Callable[..., HuntProcess],
    practice_over_kdnet: StartPractice,
    doors: Doors,
    rig: Rig,
) -> None:
    """Given up, and put right later by a debugger of another kind."""
    practice = practice_over_kdnet(late=True)
    with Wire(practice.port) as wire:
        practice.plug_into(wire.target_side)
        started = hunt("kd", practice, *LONG, "--timeout", "5", "--grace", "4")
        started.says("watching '")
        wire.cut()
        time.sleep(0.5)
        started.interrupt().ends(5, timeout=90)
        assert_not_confirmed(started)
        assert rig.processes() == []
        assert len(doors.journal) == 1
        wire.mend()
        restored = doors.start("pykd", practice, command="restore").ends(0)
        assert "0xffffff0f" in restored.out
        assert rig.processes() == []
        assert doors.journal == []
        assert_unharmed(practice, restored)


def test_target_starts_anew(
    hunt: Callable[..., HuntProcess],
    practice_over_kdnet: StartPractice,
    doors: Doors,
    rig: Rig,
) -> None:
    """The debugger itself finds no way to the new boot: it is replaced."""
    practice = practice_over_kdnet(late=True)
    started = hunt("pybag", practice, *LONG, "--timeout", "10", "--grace", str(GRACE))
    started.says("watching '")
    time.sleep(0.5)
    again = practice.reborn()
    try:
        practice.kill()
        again.start()
        started.ends(4, timeout=2 * GRACE)
        assert "restarted" in started.out
        assert "NOT CONFIRMED" not in started.out
        assert rig.processes() == []
        assert doors.journal == []
        assert len(list(doors.state.glob("*.past"))) == 1
        assert_unharmed(again, started)
    finally:
        again.kill()


@pytest.mark.parametrize("channel", ["kd", "pykd"])
def test_stop_of_its_own(
    channel: str,
    hunt: Callable[..., HuntProcess],
    practice_over_kdnet: StartPractice,
    doors: Doors,
    rig: Rig,
) -> None:
    """The target breaks for a reason of its own: disarmed, left stopped, said."""
    practice = practice_over_kdnet("--break-at-tick", "900", late=True)
    # Of a tag that is quiet: where hits keep the target busy it may miss that very tick.
    started = hunt(channel, practice, *LONG, "--tag", "FMfz").ends(3, timeout=60)
    assert "The target waits for you" in started.out, started.said
    assert started.out.splitlines()[-1] == SAFE
    assert rig.processes() == []
    assert doors.journal == []
    assert not runs(practice)
    assert practice.statistics["pool_hit_tag"] == IDLE


def test_nobody_to_attach_to(doors: Doors, rig: Rig) -> None:
    """All three at once: they only wait."""
    began = time.monotonic()
    for one in [
        doors.start(channel, plan_practice(), "--tag", "Leak", "--timeout", "4")
        for channel in CHANNELS
    ]:
        one.ends(3, timeout=60)
        assert "within 4 s" in one.complaint
        assert "Next: " in one.complaint
        assert one.out == "" or "nothing" in one.out
    assert time.monotonic() - began < 60
    assert rig.processes() == []
    assert doors.journal == []


def test_port_that_is_taken(
    hunt: Callable[..., HuntProcess],
    practice_over_kdnet: StartPractice,
    doors: Doors,
    rig: Rig,
) -> None:
    practice = practice_over_kdnet(late=True)
    first = hunt("kd", practice, "--hits", "100000", "--seconds", "20").says("watching '")
    later = [
        doors.start(channel, practice, "--tag", "Leak", "--timeout", "5") for channel in CHANNELS
    ]
    for one in later:
        one.ends(3, timeout=60)
        assert "port" in one.complaint
        assert "Next: " in one.complaint
    first.ends(0, 4)
    assert first.out.splitlines()[-1] == SAFE
    assert rig.processes() == []
    assert_unharmed(practice, first)
