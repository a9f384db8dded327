"""The channel over pykd, with a module that behaves as pykd does."""

from __future__ import annotations

import sys
import threading
import time

import pytest
from fake_pykd import BREAK_IN_ADDRESS, ExecutionStatus, FakePykd

from kdleak.engine.channels.base import DUMP, LIVE_KERNEL, LOCAL_KERNEL
from kdleak.engine.channels.pykd import attach_pykd, describe_session, pykd_inside
from kdleak.engine.channels.running_text import RunningText
from kdleak.errors import (
    LinkLost,
    MemoryUnreadable,
    MissingDependency,
    NoTarget,
    NotLive,
    TargetError,
    UnsupportedTarget,
)

REMOTE = ".  0 Remote KD: KdSrv:Server=@{<Local>},Trans=@{NET:Port=50000,Key=9.8.7.6,Target}\n"
CONNECTION = "net:port=50000,key=9.8.7.6"


@pytest.fixture
def pykd(monkeypatch):
    fake = FakePykd()
    fake.answers["||"] = REMOTE
    monkeypatch.setitem(sys.modules, "pykd", fake)
    return fake


def no_threads_left():
    return [one for one in threading.enumerate() if one.name == "deadline"] == []


def test_session_inside_windbg(pykd):
    channel = pykd_inside()
    assert (channel.name, channel.session, channel.running) == ("pykd", LIVE_KERNEL, False)
    assert channel.where == "net:port=50000"
    channel.close()
    assert pykd.commands == ["||"], "the session is the user's"


@pytest.mark.parametrize(
    ("change", "kind", "word"),
    [
        ({"inside": False}, NoTarget, "does not run inside a debugger"),
        ({"status": ExecutionStatus.NoDebuggee}, NoTarget, "no target"),
        ({"status": ExecutionStatus.Go}, NoTarget, "runs"),
        ({"kernel": False}, UnsupportedTarget, "user-mode"),
        ({"failures": {"||": ""}}, NoTarget, "0x80040205"),
    ],
)
def test_no_session(pykd, change, kind, word):
    for name, value in change.items():
        setattr(pykd, name, value)
    with pytest.raises(kind, match=word):
        pykd_inside()


def test_pykd_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "pykd", None)
    with pytest.raises(MissingDependency, match=r"CPython 3\.") as raised:
        pykd_inside()
    assert "pip install pykd" in raised.value.next_step


@pytest.mark.parametrize(
    ("systems", "dump", "expected"),
    [
        (REMOTE, False, ("net:port=50000", LIVE_KERNEL)),
        (".  0 64-bit Kernel bitmap dump: C:\\m.dmp\n", True, ("C:\\m.dmp", DUMP)),
        (".  0 Local KD: <Local>\n", False, ("this machine's own kernel", LOCAL_KERNEL)),
        (
            "   0 64-bit Full kernel dump: C:\\m.dmp\n"
            ".  1 Remote KD: KdSrv:Server=@{<Local>},Trans=@{COM:Port=\\\\.\\com1,Baud=115200}\n",
            False,
            ("com:port=COM1", LIVE_KERNEL),
        ),
        ("", False, ("the debugger's target", LIVE_KERNEL)),
        ("", True, ("a dump", DUMP)),
    ],
)
def test_what_is_debugged(systems, dump, expected):
    assert describe_session(systems, dump=dump) == expected


def test_commands(pykd):
    channel = pykd_inside()
    pykd.answers["lm"] = "start\r\nend\r\n"
    pykd.failures["ed 0 1"] = "   ^ Memory access error in 'ed 0 1'\n"
    assert channel.execute("lm") == "start\nend\n"
    assert channel.execute("ed nt!PoolHitTag 0") == ""
    assert channel.execute("ed 0 1") == "   ^ Memory access error in 'ed 0 1'\n"
    assert all(mask & 7 == 7 for mask in pykd.masks), "errors and warnings are part of an answer"
    assert "9.8.7.6" not in channel.execute("||")


@pytest.mark.parametrize("command", ["g; kb", "r rip=@rip+1; bogus", '.printf "}"', "~0 gc", "q"])
def test_what_failed_is_not_done_twice(pykd, command):
    channel = pykd_inside()
    pykd.failures[command] = "text that a second time would give"
    before = len(pykd.commands)
    assert "0x80040205" in channel.execute(command)
    assert pykd.commands[before:] == [command]


def test_command_that_takes_too_long(pykd, monkeypatch):
    channel = pykd_inside()

    def slow(command, suppress, mask):
        assert pykd.broken_in.wait(10)
        raise pykd.DbgException("interrupted")

    monkeypatch.setattr(pykd, "dbgCommand", slow)
    with pytest.raises(LinkLost, match="interrupted"):
        channel.execute("!poolfind Leak", timeout=0.05)
    assert no_threads_left()


def test_resume_stops_by_itself(pykd):
    channel = pykd_inside()
    pykd.stops.append(lambda: None)
    resumed = channel.resume(30.0)
    assert (resumed.running, resumed.broke_in, resumed.processor) == (False, False, 1)
    assert (resumed.code, resumed.first_chance) == (0x80000003, True)
    assert no_threads_left()
    assert not pykd.broken_in.is_set()


def test_resume_breaks_in_when_the_time_is_over(pykd):
    channel = pykd_inside()
    resumed = channel.resume(0.05)
    assert resumed.broke_in
    assert not channel.running
    assert no_threads_left()


def test_break_in_that_crossed_a_hit_is_still_ours(pykd):
    """The hit comes first; the break-in that was asked for comes at the next resume."""
    channel = pykd_inside()
    pykd.stops.append(lambda: pykd.broken_in.wait(10))
    first = channel.resume(0.05)
    assert first.broke_in

    def late():
        pykd.address = BREAK_IN_ADDRESS

    pykd.stops += [late, late]
    assert channel.resume(None).broke_in
    assert not channel.resume(None).broke_in, "somebody else's"


def test_ctrl_break_passes_through(pykd):
    """pykd-ext raises SystemExit at the first bytecode after go()."""
    channel = pykd_inside()

    def ctrl_break():
        raise SystemExit("CTRL+BREAK")

    pykd.stops.append(ctrl_break)
    with pytest.raises(SystemExit):
        channel.resume(20.0)
    assert not channel.running
    assert no_threads_left()
    assert not channel.interrupt(1.0).running


def test_lost(pykd):
    channel = pykd_inside()

    def gone():
        pykd.status = ExecutionStatus.NoDebuggee

    pykd.stops.append(gone)
    with pytest.raises(LinkLost, match="no target any more"):
        channel.resume(1.0)
    with pytest.raises(LinkLost):
        channel.interrupt(1.0)

    def refused():
        raise pykd.DbgException("Call WaitForEvent failed\nHRESULT 0x8000ffff")

    pykd.stops.append(refused)
    with pytest.raises(LinkLost, match="0x8000ffff"):
        channel.resume(1.0)
    assert no_threads_left()


def test_dump_does_not_run(pykd):
    pykd.dump = True
    channel = pykd_inside()
    with pytest.raises(NotLive):
        channel.resume(1.0)


def test_registers(pykd):
    quick = pykd_inside().quick
    assert quick.registers() == {
        "rip": pykd.registers["rip"],
        "rsp": 0x1000,
        "rax": 0xFFFFFFFFFFFFFFFF,
    }
    pykd.registers["rsp"] = 0x2000
    assert quick.registers()["rsp"] == 0x2000
    del pykd.registers["rsp"]
    with pytest.raises(TargetError):
        quick.registers()


def test_registers_of_x86_are_32_bits(pykd):
    pykd.machine = "I386"
    pykd.registers = {"eip": -0x7FFFFFFF, "esp": 4}
    assert pykd_inside().quick.registers() == {"eip": 0x80000001, "esp": 4}


def test_no_registers_at_all(pykd):
    pykd.registers = {}
    with pytest.raises(TargetError, match="invalid register name"):
        pykd_inside().quick.registers()
    pykd.machine = "ARM"
    with pytest.raises(UnsupportedTarget):
        pykd_inside().quick.registers()


def test_memory(pykd):
    quick = pykd_inside().quick
    pykd.memory[0x1000] = b"Leak"
    assert quick.read(0x1000, 4) == b"Leak"
    with pytest.raises(MemoryUnreadable) as raised:
        quick.read(0x2000, 8)
    assert (raised.value.address, raised.value.size) == (0x2000, 8)
    with pytest.raises(MemoryUnreadable):
        quick.read(0x1000, 8)


def test_standalone(pykd):
    text = RunningText()
    channel = attach_pykd(CONNECTION, "C:\\symbols", text=text)
    assert pykd.attached == [CONNECTION]
    assert pykd.commands == [".sympath C:\\symbols"]
    assert "Kernel base" in text.take()
    assert channel.where == "net:port=50000"
    pykd.stops.append(lambda: None)
    pykd.printed = f"Opened {CONNECTION}\n"
    assert channel.resume(None).text == "Opened net:port=50000,key=...\n"
    assert not pykd.handlers, "a listener outlived its wait"
    channel.close()
    assert pykd.commands[-1] == "qd"


def test_standalone_refused(pykd):
    with pytest.raises(NoTarget) as raised:
        attach_pykd(CONNECTION + ",refused")
    assert "9.8.7.6" not in str(raised.value)
    assert "9.8.7.6" not in repr(raised.value)


def test_deadline_comes_from_a_thread(pykd):
    channel = pykd_inside()
    began = time.monotonic()
    channel.resume(0)
    assert time.monotonic() - began < 5
