"""The kd channel with Microsoft's engine behind it, attached to the practice target over KDNET."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kdleak.engine.channels import kd_channel
from kdleak.engine.channels.base import LIVE_KERNEL
from kdleak.engine.channels.kd import open_kd
from kdleak.engine.channels.kd_break import BreakWay, SignalBreak
from kdleak.engine.channels.kd_channel import KdChannel
from kdleak.engine.channels.kd_process import KdProcess
from kdleak.errors import LinkLost, NoTarget, PortInUse, TargetError, WrongKey
from tests.rig.conftest import Practice, plan_practice
from tests.rig.places import windows_path
from tests.rig.rig import MARK, Rig

Open = Callable[..., KdChannel]
StartPractice = Callable[..., Practice]

ARM = "ed nt!PoolHitTag 'kaeL'"  # the debugger turns the characters round
DISARM = "ed nt!PoolHitTag 0xffffff0f"
SHOW = "dd nt!PoolHitTag L1"


@pytest.fixture
def open_channel(
    rig: Rig, practice_over_kdnet: StartPractice, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Open]:
    """Opens kd channels; closed before their targets end. The rig notices what they leave."""
    monkeypatch.setenv(MARK, rig.session)
    monkeypatch.delenv("_NT_SYMBOL_PATH", raising=False)
    opened: list[KdChannel] = []

    def start(
        practice: Practice, *, timeout: float = 30.0, way: BreakWay | None = None
    ) -> KdChannel:
        def spawn(words: list[str]) -> KdProcess:
            process = KdProcess(words, break_way=way)
            practice.start()  # only now: a booting target finds the debugger at once
            return process

        channel = open_kd(
            practice.connection,
            kd=str(rig.kd),
            symbol_path=practice.symbols,
            timeout=timeout,
            start=spawn,
        )
        opened.append(channel)
        return channel

    yield start
    for one in opened:
        one.close()


def value_of(channel: KdChannel) -> int:
    """The armed value, as the debugger shows it."""
    return int(channel.execute(SHOW).split()[1], 16)


def hits(channel: KdChannel, count: int) -> list[str]:
    """The stacks of the next hits."""
    stacks: list[str] = []
    while len(stacks) < count:
        stop = channel.resume(10.0)
        assert not stop.running
        assert "int     3" in stop.text
        stacks.append(channel.execute("kb"))
    return stacks


def test_a_hunt_by_hand(open_channel: Open, practice_over_kdnet: StartPractice, rig: Rig) -> None:
    practice = practice_over_kdnet(late=True)
    channel = open_channel(practice)
    assert channel.session == LIVE_KERNEL
    assert channel.where == practice.connection.split(",")[0]
    assert "Loading Kernel Symbols" in channel.execute(".reload")
    assert channel.execute("r").startswith("rax=")
    assert "Leak" in channel.execute("!poolused 4")
    before = value_of(channel)
    assert channel.execute(ARM) == ""
    assert value_of(channel) == int.from_bytes(b"Leak", "little")
    stacks = hits(channel, 20)
    assert all("Call Site\n" in stack and "leakydrv!" in stack for stack in stacks)
    assert channel.execute(f"ed nt!PoolHitTag 0x{before:x}") == ""
    assert channel.resume(0.5).running
    assert channel.running
    stop = channel.interrupt(10.0)
    assert "you pressed either" in stop.text
    assert stop.processor in (0, 1)
    assert value_of(channel) == before
    channel.close()
    assert rig.processes() == []
    time.sleep(1.0)
    statistics = practice.statistics
    assert statistics["hits_alloc"] + statistics["hits_free"] == 20
    assert statistics["pool_hit_tag"] == before
    assert statistics["seconds_running"] > 1.5


@pytest.mark.parametrize("state", ["running", "at a hit", "attached"])
def test_the_target_runs_on_after_close(
    open_channel: Open, practice_over_kdnet: StartPractice, state: str
) -> None:
    practice = practice_over_kdnet(late=True)
    channel = open_channel(practice)
    if state == "at a hit":
        channel.execute(ARM)
        hits(channel, 1)
        channel.execute(DISARM)
    elif state == "running":
        assert channel.resume(0.3).running
    channel.close()
    time.sleep(1.5)
    statistics = practice.statistics
    assert statistics["pool_hit_tag"] == 0xFFFFFF0F
    # It was stopped for a second at most, and not at the end.
    assert statistics["seconds_running"] > 1.4
    assert statistics["seconds_stopped"] < 1.0


def test_it_can_be_left_stopped(open_channel: Open, practice_over_kdnet: StartPractice) -> None:
    practice = practice_over_kdnet(late=True)
    channel = open_channel(practice)
    assert channel.resume(0.3).running
    channel.close(leave_stopped=True)
    time.sleep(1.0)
    again = open_channel(practice)
    again.close()
    assert practice.statistics["seconds_stopped"] > 1.0


def test_a_signal_breaks_in_too(open_channel: Open, practice_over_kdnet: StartPractice) -> None:
    channel = open_channel(practice_over_kdnet(late=True), way=SignalBreak())
    assert channel.resume(0.3).running
    assert "you pressed either" in channel.interrupt(10.0).text


def test_a_killed_debugger_is_replaced_and_disarms(
    open_channel: Open, practice_over_kdnet: StartPractice, rig: Rig
) -> None:
    practice = practice_over_kdnet(late=True)
    channel = open_channel(practice)
    channel.execute(ARM)
    hits(channel, 3)
    rig.kill_processes()
    with pytest.raises(LinkLost, match="ended"):
        channel.execute(SHOW)
    channel.interrupt(30.0)
    assert channel.sessions == 2
    channel.execute(DISARM)
    assert value_of(channel) == 0xFFFFFF0F
    channel.close()
    assert practice.statistics["pool_hit_tag"] == 0xFFFFFF0F


def test_a_target_that_is_away_for_a_while(
    open_channel: Open, practice_over_kdnet: StartPractice
) -> None:
    practice = practice_over_kdnet(late=True)
    channel = open_channel(practice)
    channel.execute(ARM)
    hits(channel, 1)
    os.kill(practice.process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(LinkLost):
            channel.execute(".reload", timeout=3.0)
        for _ in range(2):  # the new debugger waits, and goes on waiting
            with pytest.raises(NoTarget):
                channel.interrupt(3.0)
    finally:
        os.kill(practice.process.pid, signal.SIGCONT)
    channel.interrupt(30.0)
    channel.execute(DISARM)
    assert value_of(channel) == 0xFFFFFF0F
    channel.close()
    assert practice.statistics["pool_hit_tag"] == 0xFFFFFF0F


def test_a_target_that_dies(
    open_channel: Open,
    practice_over_kdnet: StartPractice,
    rig: Rig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kd_channel, "_LEAVE_SECONDS", 2.0)
    practice = practice_over_kdnet(late=True)
    channel = open_channel(practice)
    channel.resume(0.3)
    practice.kill()
    with pytest.raises(LinkLost, match="no answer within 2 s"):
        channel.interrupt(2.0)
    began = time.monotonic()
    channel.close()
    assert time.monotonic() - began < 10
    assert rig.processes() == []


def test_nobody_connects(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARK, rig.session)
    with pytest.raises(NoTarget) as caught:
        open_kd(plan_practice().connection, kd=str(rig.kd), timeout=3.0)
    assert "Waiting to reconnect" in str(caught.value)
    assert rig.processes() == []


def test_a_wrong_key(open_channel: Open, practice_over_kdnet: StartPractice) -> None:
    practice = practice_over_kdnet()
    port = practice.connection.split(",")[0]
    wrong = Practice(f"{port},key=5.6.7.8", practice.symbols, [], practice.process)
    with pytest.raises(WrongKey) as caught:
        open_channel(wrong, timeout=6.0)
    assert "key" in caught.value.next_step
    assert "5.6.7.8" not in str(caught.value)


def test_the_port_is_taken(open_channel: Open, practice_over_kdnet: StartPractice) -> None:
    practice = practice_over_kdnet(late=True)
    first = open_channel(practice)
    with pytest.raises(PortInUse, match="UDP port"):
        open_channel(practice)
    assert first.execute("r").startswith("rax=")


def test_a_dump_that_is_none(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARK, rig.session)
    dump = tmp_path / "memory.dmp"
    dump.write_bytes(1000 * b"no dump ")
    with pytest.raises(TargetError, match="Could not match Dump File signature"):
        open_kd("", kd=str(rig.kd), dump=str(dump))


IN_WINDOWS = r"""
import sys, time
from kdleak.engine.channels.kd import open_kd
from kdleak.errors import LinkLost
channel = open_kd(sys.argv[1], kd=sys.argv[2], symbol_path=sys.argv[3])
print(channel.where, type(channel._talk.process._way).__name__)
channel.execute(".reload")
channel.execute("ed nt!PoolHitTag 'kaeL'")
for _ in range(5):
    assert not channel.resume(10.0).running
    stack = channel.execute("kb")
    assert "leakydrv!" in stack, stack
channel.execute("ed nt!PoolHitTag 0xffffff0f")
assert channel.resume(0.5).running
began = time.monotonic()
assert "you pressed either" in channel.interrupt(20.0).text
channel._talk.process.end()
try:
    channel.execute("r")
except LinkLost:
    print("lost")
channel.interrupt(30.0)
print(channel.execute("dd nt!PoolHitTag L1").split()[1], channel.sessions)
channel.close()
print("closed")
"""


def test_from_windows_python(practice_over_kdnet: StartPractice, rig: Rig) -> None:
    """The same on Windows' side, with its pipes and on Python 3.9.

    Wine does not deliver console events: the break is the byte that stands in for them.
    """
    practice = practice_over_kdnet()
    program = rig.debuggers + "\\kd.exe"
    symbols = windows_path(practice.symbols)
    done = rig.python("-c", IN_WINDOWS, practice.connection, program, symbols, timeout=90)
    assert done.err == ""
    where = practice.connection.split(",")[0]
    assert done.out.split("\n") == [
        f"{where} ConsoleBreak",
        "lost",
        "ffffff0f 2",
        "closed",
        "",
    ]
    assert practice.statistics["pool_hit_tag"] == 0xFFFFFF0F
