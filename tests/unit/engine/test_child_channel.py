"""The channel to a child process: real processes, with a binding that behaves badly on demand."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kdleak.engine.channels import child as child_module
from kdleak.engine.channels.child import open_child
from kdleak.engine.channels.child_main import decode, encode
from kdleak.errors import (
    LinkError,
    LinkLost,
    MemoryUnreadable,
    MissingDependency,
    NoTarget,
    NotLive,
    TargetError,
    TargetRestarted,
    UsageError,
)

KEY = "9.8.7.6"
CONNECTION = f"net:port=50000,key={KEY}"

BINDING = """
import os, sys, threading, time
class DbgException(Exception): pass
class MemoryException(DbgException): pass
class executionStatus: Break, Go, NoDebuggee = 2, 1, 3
class eventType: Exception = 2
handlers = []
class eventHandler:
    def __init__(self): handlers[:] = [self]
broken = threading.Event()
def log(word):
    with open(os.environ["FAKE_LOG"], "a") as out: out.write(word + "\\n")
def say(text):
    for one in handlers: one.onDebugOutput(text, 1)
def initialize(): log("start %d" % os.getpid())
def boot():
    try: return open(os.environ["FAKE_LOG"] + ".boot").read()
    except OSError: return "Kernel base = 0xfffff801`81200000"
def attachKernel(options):
    mode = os.environ.get("FAKE_ATTACH", "")
    print("binding prints to stdout")
    os.write(1, b"and C code does")
    if os.path.exists(os.environ["FAKE_LOG"] + ".dead") or mode == "hang": time.sleep(600)
    if mode == "refuse": raise DbgException("bad options " + options)
    if mode == "crash": raise ValueError("secret " + options)
    if mode == "die":
        sys.stderr.write("fatal: " + options + "\\n"); sys.stderr.flush(); os._exit(3)
    log("attached")
    say(boot() + "\\nSystem Uptime: 0 days 0:00:03.5\\n")
def loadDump(path):
    if "notes" in path: raise DbgException("OpenDumpFileWide failed\\nHRESULT 0x80070057")
    if "huge" in path: time.sleep(600)
    log("dump " + path)
def dbgCommand(command, suppress=True, mask=1):
    log("command " + command)
    if command == "hang": time.sleep(600)
    if command == "slow":
        if broken.wait(600): broken.clear(); return "interrupted"
    if command == "die": os._exit(7)
    if command == "huge": return "x" * 30000000
    if command == "crash": raise ValueError("unexpected")
    if command == "flood":
        for n in range(20000): os.write(1, b"garbage %d\\n" % n); os.write(2, b"noise %d\\n" % n)
        return "done"
    if command == "||": return "Key=9.8.7.6,Target"
    if command == "signs": return "\\u00e9\\u6f22\\r\\n"
    return None
stuck = False
def go():
    global stuck
    for one in range(3): say("print %d\\n" % one)
    mode = os.environ.get("FAKE_GO", "")
    if mode == "hit": return executionStatus.Break
    if mode == "gone": return executionStatus.NoDebuggee
    if mode == "die": os._exit(9)
    if mode == "lost" and not os.path.exists(os.environ["FAKE_LOG"] + ".second"):
        say("KDNET received an out of sequence ping packet.\\nThe target machine restarted with")
        say("out notifying the debugger.\\nForcing a debugger reconnect...\\n")
        time.sleep(600)
    if mode == "stuck" and not os.path.exists(os.environ["FAKE_LOG"] + ".second"): time.sleep(600)
    broken.wait(600); broken.clear()
    say("Break instruction exception\\n")
    return executionStatus.Break
def breakin(): log("breakin"); broken.set()
def getExecutionStatus(): return executionStatus.Break
class _Event: type = 2
def getLastEvent(): return _Event
class _Exception: exceptionCode, firstChance, exceptionAddress = 0x80000003, True, 0x1234
def getLastException(): return _Exception
def findSymbol(address): return "nt!x"
def getCurrentThreadId(): return 1
def getCPUMode(): return "AMD64"
def reg(name): return 0xfffff80181200000
def loadBytes(address, size):
    if address == 0: raise MemoryException("no")
    return [1] * size
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    (tmp_path / "pykd.py").write_text(BINDING)
    log = tmp_path / "log"
    log.write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("FAKE_LOG", str(log))
    return log


@pytest.fixture
def channel(fake):
    opened = open_child("pykd", CONNECTION, symbol_path="C:\\symbols", timeout=20.0)
    yield opened
    opened.close()


def processes(log: Path):
    return [int(line.split()[1]) for line in log.read_text().split("\n") if line[:5] == "start"]


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def test_session(channel, fake):
    assert (channel.name, channel.session, channel.where) == (
        "pykd",
        "live kernel",
        "net:port=50000",
    )
    assert channel.execute("lm") == ""
    assert channel.execute("signs") == "\u00e9\u6f22\n"
    assert channel.execute("||") == "Key=...,Target"
    assert channel.quick.read(0x1000, 0x200) == b"\x01" * 0x200
    assert channel.quick.registers()["rip"] == 0xFFFFF80181200000
    with pytest.raises(MemoryUnreadable) as raised:
        channel.quick.read(0, 8)
    assert (raised.value.address, raised.value.size) == (0, 8)
    channel.close()
    assert fake.read_text().split("\n")[-2] == "command qd"
    assert gone(processes(fake)[0])
    with pytest.raises(LinkLost, match="closed"):
        channel.execute("r")
    channel.close()


def test_the_key_is_on_no_command_line_and_in_no_environment(channel, fake):
    pid = processes(fake)[0]
    for name in ("cmdline", "environ"):
        assert KEY.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
    assert KEY not in repr(channel)


def test_runs_and_is_interrupted(channel):
    first = channel.resume(0.5)
    assert first.running
    assert channel.running
    with pytest.raises(TargetError, match="runs"):
        channel.execute("r")
    again = channel.resume(0.05)
    assert again.running
    stop = channel.interrupt(10.0)
    assert first.text + again.text + stop.text == (
        "print 0\nprint 1\nprint 2\nBreak instruction exception\n"
    )
    assert (stop.processor, stop.code, stop.running) == (1, 0x80000003, False)
    assert channel.interrupt(1.0).running is False


def test_interrupt_right_behind_the_resume(channel):
    for _ in range(5):
        assert channel.resume(0).running
        assert not channel.interrupt(10.0).running


def test_no_break_in_at_a_stop(channel, fake):
    channel.interrupt(1.0)
    channel.execute("lm")
    assert "breakin" not in fake.read_text()


def test_hits(fake, monkeypatch):
    monkeypatch.setenv("FAKE_GO", "hit")
    channel = open_child("pykd", CONNECTION)
    for _ in range(50):
        assert channel.resume(10.0).text == "print 0\nprint 1\nprint 2\n"
    channel.close()


def test_garbage_and_much_of_it(channel):
    assert channel.execute("flood") == "done"
    assert len(channel.execute("huge")) == 30_000_000


def test_unexpected_error_of_the_binding(channel):
    with pytest.raises(TargetError, match="ValueError: unexpected"):
        channel.execute("crash")
    assert channel.execute("lm") == ""


def test_slow_command_is_interrupted(channel):
    with pytest.raises(LinkLost, match="then it was interrupted"):
        channel.execute("slow", timeout=0.3)
    assert channel.execute("lm") == "", "the session lives on"


def test_command_that_hangs(channel, fake, monkeypatch):
    monkeypatch.setattr(child_module, "_INTERRUPT_SECONDS", 0.3)
    with pytest.raises(LinkLost, match="cannot be interrupted"):
        channel.execute("hang", timeout=0.3)
    assert gone(processes(fake)[0])
    with pytest.raises(LinkLost):
        channel.execute("lm")
    assert not channel.interrupt(20.0).running, "attached again"
    assert channel.execute("lm") == ""


def test_child_that_dies(channel):
    with pytest.raises(LinkLost, match="process ended"):
        channel.execute("die")
    assert not channel.interrupt(20.0).running


def test_child_that_dies_while_the_target_runs(fake, monkeypatch):
    monkeypatch.setenv("FAKE_GO", "die")
    channel = open_child("pykd", CONNECTION)
    with pytest.raises(LinkLost, match="process ended"):
        channel.resume(10.0)
    assert channel.running  # as far as this side knows: it has to be stopped anew
    channel.close()


def test_target_gone(fake, monkeypatch):
    monkeypatch.setenv("FAKE_GO", "gone")
    channel = open_child("pykd", CONNECTION)
    with pytest.raises(LinkLost, match="no target any more"):
        channel.resume(10.0)
    assert not channel.interrupt(20.0).running
    channel.close()


def test_debugger_that_says_its_link_is_lost(fake, monkeypatch):
    """It would wait for ever."""
    monkeypatch.setenv("FAKE_GO", "lost")
    monkeypatch.setattr(child_module, "_LOST_SECONDS", 0.5)
    channel = open_child("pykd", CONNECTION)
    with pytest.raises(LinkLost, match="link to the target is lost"):
        channel.resume(30.0)
    assert channel.running
    Path(f"{fake}.second").touch()
    assert not channel.interrupt(20.0).running, "attached again"
    assert channel.resume(0.1).running
    assert not channel.interrupt(10.0).running
    channel.close()


def test_wait_that_never_ends(fake, monkeypatch):
    """The link is lost; interrupt() is called again and again, as the procedure does."""
    monkeypatch.setenv("FAKE_GO", "stuck")
    channel = open_child("pykd", CONNECTION)
    dead = Path(f"{fake}.dead")
    dead.touch()
    assert channel.resume(0.1).running
    with pytest.raises(LinkLost, match="did not stop within"):
        channel.interrupt(0.3)
    for _ in range(3):
        with pytest.raises(LinkLost, match="did not answer"):
            channel.interrupt(0.4)
    assert len(processes(fake)) <= 2, "one attach is given its time"
    dead.unlink()
    monkeypatch.setattr(channel, "_give_up_at", 0.0)  # its time is over
    deadline = time.monotonic() + 20
    while True:
        try:
            resumed = channel.interrupt(2.0)
            break
        except LinkLost:
            assert time.monotonic() < deadline
    assert not resumed.running
    assert "System Uptime" in resumed.text
    assert not channel.running
    channel.close()
    assert all(gone(pid) for pid in processes(fake))


@pytest.mark.parametrize(
    "boot", ["Kernel base = 0xfffff802`00000000", "System Uptime: 0 days 0:00:01.0"]
)
def test_target_that_was_restarted_meanwhile(channel, fake, boot):
    with pytest.raises(LinkLost):
        channel.execute("die")
    Path(f"{fake}.boot").write_text(boot)
    with pytest.raises(TargetRestarted):
        channel.interrupt(20.0)


@pytest.mark.parametrize(
    ("mode", "kind", "word"),
    [
        ("hang", NoTarget, "no answer within"),
        ("refuse", NoTarget, "bad options"),
        ("crash", TargetError, "ValueError"),
        ("die", NoTarget, "fatal"),
    ],
)
def test_attach_fails(fake, monkeypatch, mode, kind, word):
    monkeypatch.setenv("FAKE_ATTACH", mode)
    with pytest.raises(kind, match=word) as raised:
        open_child("pykd", CONNECTION, timeout=1.0)
    assert KEY not in str(raised.value)
    assert all(gone(pid) for pid in processes(fake))


def test_no_binding(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(MissingDependency, match="pykd"):
        open_child("pykd", CONNECTION)
    with pytest.raises(MissingDependency, match="pybag"):
        open_child("pybag", CONNECTION)
    with pytest.raises(MissingDependency, match="starting"):
        open_child("pykd", CONNECTION, python=str(tmp_path / "no-python"))
    with pytest.raises(UsageError):
        open_child("gdb", CONNECTION)


def test_dump(fake):
    channel = open_child("pykd", "C:\\memory.dmp", dump=True)
    assert (channel.session, channel.where) == ("dump", "C:\\memory.dmp")
    with pytest.raises(NotLive):
        channel.resume(1.0)
    channel.close()
    assert "command q\n" in fake.read_text()


@pytest.mark.parametrize(
    ("name", "words", "next_step"),
    [
        ("/x/notes.txt", "0x80070057", "check that the file is a kernel crash dump"),
        ("/x/huge.dmp", "not done within 1 s", "give it more time"),
    ],
)
def test_what_is_no_dump_has_nothing_to_do_with_a_link(fake, name, words, next_step):
    with pytest.raises(TargetError) as raised:
        open_child("pykd", name, dump=True, timeout=1.0)
    assert not isinstance(raised.value, LinkError)
    assert Path(name).name in raised.value.tried
    assert words in raised.value.came_back
    assert next_step in raised.value.next_step


def test_left_stopped(channel, fake):
    channel.close(leave_stopped=True)
    assert "command qd" not in fake.read_text()


def test_parent_that_ends(fake, tmp_path):
    """The child lets the target run and ends too."""
    script = tmp_path / "parent.py"
    script.write_text(
        "import os\nfrom kdleak.engine.channels.child import open_child\n"
        f"open_child('pykd', {CONNECTION!r})\nos._exit(0)\n"
    )
    root = str(Path(child_module.__file__).parents[3])
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{tmp_path}"}
    subprocess.run([sys.executable, str(script)], env=environment, check=True, timeout=30)
    assert gone(processes(fake)[0])
    assert fake.read_text().endswith("command qd\n")


def test_lines():
    line = encode({"id": 1, "ok": "\u00e9"})
    assert line.endswith(b"\n")
    assert decode(b"garbage " + line) == ({"kdleak": 1, "id": 1, "ok": "\u00e9"}, b"garbage ")
    assert decode(b"garbage\n") == (None, b"garbage\n")
    assert decode(line[:-5]) == (None, line[:-5])


@pytest.mark.skipif(sys.platform == "win32", reason="there the whole tree is ended")
def test_streams_held_by_a_process_that_lives_on(fake, tmp_path, monkeypatch):
    """As Wine's server or a console host may: neither the end nor the close waits for it."""
    holder = tmp_path / "holder"
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    source = (tmp_path / "pykd.py").read_text()
    (tmp_path / "pykd.py").write_text(
        "import subprocess\n"
        f"one = subprocess.Popen({command!r}, close_fds=False, start_new_session=True)\n"
        f"open({str(holder)!r}, 'w').write(str(one.pid))\n" + source
    )
    channel = open_child("pykd", CONNECTION)
    began = time.monotonic()
    try:
        with pytest.raises(LinkLost, match="process ended"):
            channel.execute("die", timeout=30.0)
        channel.close()
        assert time.monotonic() - began < 15.0
    finally:
        os.kill(int(holder.read_text()), 9)
