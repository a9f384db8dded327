"""The kd channel against a program that imitates kd.exe at its pipes, with trouble of all kinds."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kdleak.engine.channels import kd_channel, kd_conversation
from kdleak.engine.channels.base import DUMP, LIVE_KERNEL, LOCAL_KERNEL
from kdleak.engine.channels.kd import open_kd
from kdleak.engine.channels.kd_channel import KdChannel
from kdleak.engine.channels.kd_process import KdProcess
from kdleak.errors import (
    BadConnection,
    LinkLost,
    MissingDependency,
    NoTarget,
    PortInUse,
    TargetError,
    UsageError,
)

FAKE = Path(__file__).with_name("fake_kd.py")
KEY = "1a.2b.3c.4d"

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the fake reads its breaks from a pipe")


class Bench:
    """Opens channels over the fake and reads its diary."""

    def __init__(self, folder):
        self.path = folder / "diary"
        self.processes = []
        self.channels = []
        self.modes = []

    def open(self, *modes, session=LIVE_KERNEL, timeout=10.0, limit=1 << 20):
        """Each debugger started takes the next mode; the last one stays."""
        self.modes = list(modes or ("normal",))

        def start(command):
            mode = self.modes.pop(0) if len(self.modes) > 1 else self.modes[0]
            fake = [sys.executable, "-IS", str(FAKE), str(self.path), *mode.split(None, 1)]
            self.processes.append(KdProcess([*fake, *command], limit=limit))
            return self.processes[-1]

        channel = KdChannel(
            [], where="net:port=50000", session=session, secrets=(KEY,), start=start
        )
        self.channels.append(channel)
        channel.attach(timeout)
        return channel

    @property
    def diary(self):
        return [line.strip() for line in self.path.read_text().splitlines()]

    def close(self):
        for process in self.processes:
            process.end()
        for channel in self.channels:
            channel.close()


@pytest.fixture
def bench(tmp_path, monkeypatch):
    for name, seconds in (
        ("_ABORT_SECONDS", 1.0),
        ("_LOST_SECONDS", 0.3),
        ("_ATTACH_MORE", 0.5),
        ("_SURPLUS_SECONDS", 0.6),
        ("_LEAVE_SECONDS", 2.0),
        ("_ASK_AGAIN", 0.3),
    ):
        module = kd_channel if hasattr(kd_channel, name) else kd_conversation
        monkeypatch.setattr(module, name, seconds)
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def settled(channel):
    """Absorb the break-in that may follow an attach, so that plans work from the first resume."""
    channel._talk.break_owed = False
    return channel


# -- commands


def test_output_comes_without_prompts_and_marks(bench):
    channel = bench.open()
    assert channel.name == "kd"
    assert channel.where == "net:port=50000"
    assert channel.session == LIVE_KERNEL
    assert channel.quick is None
    assert not channel.running
    assert channel.sessions == 1
    assert channel.execute("r") == "you said r\n"
    assert channel.execute("say one|two") == "one\ntwo\n"
    assert channel.execute("plan never") == ""
    assert channel.execute("r") == "you said r\n"
    channel.close()
    assert bench.diary[-1] == "qd"


def test_text_without_line_end_keeps_its_digits(bench):
    channel = bench.open()
    channel.execute("say ")
    assert channel.execute("bytes 76616c75652031") == "value 1"
    assert channel.processor == 0
    channel.execute("prompt 12: kd")
    channel.execute("say x")
    assert channel.processor == 12
    assert channel.execute("bytes 31") == "1"
    channel.execute("prompt kd")
    channel.execute("say x")
    assert channel.processor is None


def test_a_debugger_that_repeats_its_input(bench):
    channel = bench.open()
    channel.execute("echoing")
    assert channel.execute("say one") == "one\n"
    assert channel.execute("plan never") == ""
    assert channel.execute("say two") == "two\n"


def test_garbled_bytes_and_cut_line_ends(bench):
    channel = bench.open()
    assert (
        channel.execute("bytes 610d0a620aff0d0ac3a40d630d0a")
        == "a\nb\n\N{REPLACEMENT CHARACTER}\nä\nc\n"
    )


def test_a_key_in_the_output_is_blanked(bench):
    channel = bench.open()
    assert channel.execute(f"say net:key={KEY}!") == "net:key=...!\n"


@pytest.mark.parametrize("command", ["", "  ", "r\nq", "r\x03", "r\r", "x" * 2001])
def test_what_is_no_single_line_is_refused(bench, command):
    channel = bench.open()
    with pytest.raises(UsageError):
        channel.execute(command)
    assert channel.execute("r") == "you said r\n"


def test_a_flood_is_kept_in_bounds(bench):
    channel = bench.open(limit=20_000)
    text = channel.execute("flood 5000")
    assert len(text) < 20_200
    first, second = text.split("\n", 2)[:2]
    assert first.startswith("[kdleak: ")
    dropped = int(first.split()[1])
    assert second.startswith("line ")
    assert dropped + len(text) - len(first) - 1 == 5000 * 97
    assert "\nline       4999 " in text
    assert channel.execute("r") == "you said r\n"


# -- commands that do not end


def test_a_command_that_takes_too_long_is_broken_off(bench):
    channel = bench.open()
    with pytest.raises(LinkLost, match="running busy on net:port=50000: no answer within 0 s"):
        channel.execute("busy", timeout=0.3)
    assert not channel.running
    assert channel.execute("r") == "you said r\n"
    assert channel.sessions == 1


def test_a_debugger_that_hangs_is_replaced(bench):
    channel = bench.open()
    with pytest.raises(LinkLost) as caught:
        channel.execute("hang", timeout=0.2)
    assert "kdleak" not in str(caught.value).replace("kdleak.", "")
    assert not bench.processes[0].alive()
    assert channel.running  # as far as anybody knows
    with pytest.raises(LinkLost, match="the debugger has ended"):
        channel.execute("r")
    stop = channel.interrupt(10.0)
    assert not stop.running
    assert "you pressed either" in stop.text
    assert channel.sessions == 2
    assert channel.execute("r") == "you said r\n"


def test_a_debugger_that_dies(bench):
    channel = bench.open()
    with pytest.raises(LinkLost, match=r"ended \(exit code 3\); .*about to die"):
        channel.execute("die")
    assert channel.interrupt(10.0).processor == 0
    assert channel.sessions == 2


def test_output_that_keeps_coming_gives_more_time(bench, monkeypatch):
    monkeypatch.setattr(kd_channel, "seconds_for", lambda command: 0.5)
    channel = bench.open()
    assert channel.execute("drip 20") == 20 * "." + "\n"
    with pytest.raises(LinkLost):
        channel.execute("drip 40", timeout=0.5)


def test_endless_output_comes_to_an_end(bench, monkeypatch):
    monkeypatch.setattr(kd_channel, "seconds_for", lambda command: 0.2)
    monkeypatch.setattr(kd_conversation, "_STRETCH", 3)
    channel = bench.open()
    began = time.monotonic()
    with pytest.raises(LinkLost):
        channel.execute("drip 1000")
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("command", ["lose", "losehang"])
def test_the_debugger_says_that_the_link_is_lost(bench, command):
    channel = bench.open()
    with pytest.raises(LinkLost, match="seems lost"):
        channel.execute(command, timeout=5.0)
    channel.interrupt(10.0)
    assert channel.sessions == 2


def test_memory_that_holds_such_a_sentence_is_no_lost_link(bench):
    channel = bench.open()
    sentence = "  Retry sending the same data packet for 64 times."
    assert channel.execute(f"say {sentence}") == sentence + "\n"


def test_ctrl_c_in_a_command_leaves_the_session_usable(bench, monkeypatch):
    channel = bench.open()

    def pressed(deadline):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(bench.processes[0], "wait_until", pressed)
        with pytest.raises(KeyboardInterrupt):
            channel.execute("busy")
    assert channel.execute("r") == "you said r\n"
    assert "break" in bench.diary


# -- running


def test_hits(bench):
    channel = settled(bench.open())
    channel.execute("plan hits 1")
    for _ in range(20):
        stop = channel.resume(5.0)
        assert not stop.running
        assert stop.processor == 1
        assert stop.text.startswith("Break instruction exception")
        assert stop.text.endswith("int     3\n")
        assert channel.execute("kb") == "you said kb\n"
    assert bench.diary.count("g") == 20


def test_prints_of_the_target_come_with_the_stop(bench):
    channel = settled(bench.open())
    channel.execute("plan prints 3")
    assert channel.resume(None).text.startswith("driver says 0\ndriver says 1\ndriver says 2\n")


def test_a_target_that_runs_on(bench):
    channel = settled(bench.open())
    channel.execute("plan chatters")
    running = channel.resume(0.5)
    assert running.running
    assert running.text == "driver says hello\n"
    assert channel.running
    with pytest.raises(TargetError, match="the target runs"):
        channel.execute("r")
    assert channel.resume(0.1).text == ""
    stop = channel.interrupt(5.0)
    assert stop.text.startswith("half a line\nBreak instruction")
    assert not channel.running
    assert channel.interrupt(5.0).text == ""  # it stands already
    assert bench.diary.count("break") == 1
    assert bench.diary.count("g") == 1


def test_prints_without_end_do_not_fill_the_memory(bench):
    channel = settled(bench.open(limit=5000))
    channel.execute("plan prints 2000")
    stop = channel.resume(5.0)
    assert stop.text.startswith("[kdleak: ")
    assert len(stop.text) < 5200
    assert "driver says 1999\n" in stop.text


def test_the_break_in_left_over_from_attaching_is_absorbed(bench):
    channel = bench.open("surplus")
    assert channel.resume(1.0).running
    assert bench.diary.count("g") == 2
    assert channel.interrupt(5.0).text.startswith("Break instruction")


def test_a_restart_is_never_absorbed(bench):
    channel = bench.open()
    channel.execute("plan restarts")
    stop = channel.resume(5.0)
    assert stop.text.startswith("Shutdown occurred at ")
    assert not channel.running
    assert bench.diary.count("g") == 1


def test_a_break_in_later_on_is_a_stop(bench, monkeypatch):
    channel = bench.open()
    assert channel.resume(0.8).running  # longer than a surplus may take
    bench.processes[0].break_in()  # somebody else
    assert "you pressed either" in channel.resume(5.0).text


def test_a_hit_that_is_faster_than_the_break(bench):
    channel = settled(bench.open())
    channel.execute("plan late")
    assert channel.resume(0.1).running
    stop = channel.interrupt(5.0)
    assert "ExAllocateHeapPool" in stop.text
    assert "slept" in bench.diary  # what was left of the request in kd
    assert channel.execute("r") == "you said r\n"
    assert channel.resume(1.0).running  # and at the target
    assert bench.diary.count("g") == 3


def test_a_hit_that_is_told_in_two_pieces(bench):
    """The time is over just when the debugger has printed why the target stopped, not yet where."""
    channel = settled(bench.open())
    channel.execute("plan slowly")
    running = channel.resume(0.4)
    assert running.running
    assert running.text == "driver says hello\n"
    stop = channel.interrupt(5.0)
    assert stop.text.startswith("Break instruction exception - code 80000003")
    assert "int     3" in stop.text


def test_ctrl_c_while_waiting_leaves_the_target_running(bench, monkeypatch):
    channel = settled(bench.open())

    def pressed(deadline):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(bench.processes[0], "wait_until", pressed)
        with pytest.raises(KeyboardInterrupt):
            channel.resume(None)
    assert channel.running
    assert "you pressed either" in channel.interrupt(5.0).text


@pytest.mark.parametrize("plan", ["dies", "lost"])
def test_trouble_while_running(bench, plan):
    channel = settled(bench.open())
    channel.execute(f"plan {plan}")
    with pytest.raises(LinkLost):
        channel.resume(10.0)
    assert channel.interrupt(10.0).processor == 0
    assert channel.sessions == 2


def test_a_deaf_target_gets_a_new_debugger_in_the_end(bench):
    channel = settled(bench.open("normal", "alone", "normal"))
    channel.execute("plan deaf")
    channel.resume(0.1)
    with pytest.raises(LinkLost, match="no answer within 1 s"):
        channel.interrupt(1.0)
    assert bench.diary.count("break") > 1
    assert bench.processes[0].alive()
    with pytest.raises(LinkLost, match="did not stop"):
        channel.interrupt(0.3)
    assert not bench.processes[0].alive()
    for _ in range(2):  # it waits for the target: the same debugger goes on waiting
        with pytest.raises(NoTarget, match="no target connected"):
            channel.interrupt(0.5)
    assert len(bench.processes) == 2
    bench.processes[1].end()
    assert "you pressed either" in channel.interrupt(10.0).text
    assert channel.sessions == 2


# -- attaching


def test_nobody_there(bench):
    with pytest.raises(NoTarget) as caught:
        bench.open("alone", timeout=0.5)
    assert "Waiting to reconnect" in str(caught.value)
    assert "key" in caught.value.next_step
    assert not bench.processes[0].alive()


def test_a_debugger_that_says_nothing(bench):
    with pytest.raises(NoTarget, match="the debugger said: nothing"):
        bench.open("mute", timeout=0.5)


def test_a_target_that_answers_but_does_not_stop_is_let_go(bench):
    with pytest.raises(NoTarget, match="did not stop within 0 s"):
        bench.open("frozen", timeout=0.3)
    assert bench.diary[-1] == "qd"


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("Kernel debugger failed initialization, Win32 error 0n10048", PortInUse),
        ("Kernel debugger failed initialization, HRESULT 0x80070057", BadConnection),
        ("kd: unable to attach", NoTarget),
    ],
)
def test_a_debugger_that_gives_up(bench, words, kind):
    with pytest.raises(kind) as caught:
        bench.open(f"says {words}")
    assert words in str(caught.value)
    assert "net:port=50000" in str(caught.value)


def test_the_port_is_free_a_moment_after_the_old_debugger(bench):
    busy = "says Kernel debugger failed initialization, Win32 error 0n10048"
    channel = bench.open("normal", busy, "normal")
    bench.processes[0].end()
    assert channel.interrupt(10.0).processor == 0
    assert channel.sessions == 2
    assert len(bench.processes) == 3


def test_ctrl_c_while_attaching_leaves_nothing_behind(bench, monkeypatch):
    monkeypatch.setattr(
        KdProcess, "wait_until", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        bench.open("alone")
    assert bench.processes[0].exit_code is not None


# -- leaving


def test_close_stops_a_running_target_and_lets_it_go(bench):
    channel = settled(bench.open())
    channel.resume(0.1)
    channel.close()
    assert bench.diary[-2:] == ["break", "qd"]
    assert bench.processes[0].exit_code == 0
    channel.close()
    assert bench.diary[-1] == "qd"


def test_close_can_leave_it_stopped(bench):
    channel = bench.open()
    channel.close(leave_stopped=True)
    assert bench.diary == ["start", "q"]


def test_close_leaves_no_break_in_behind(bench):
    channel = bench.open("surplus")
    channel.close()
    assert bench.diary == ["start", "g", "qd"]


def test_close_of_a_dump(bench):
    channel = bench.open(session=DUMP)
    channel.close()
    assert bench.diary == ["start", "q"]


@pytest.mark.parametrize("plan", ["deaf", "stubborn"])
def test_close_ends_what_does_not_obey(bench, plan):
    channel = settled(bench.open())
    channel.execute(f"plan {plan}")
    channel.resume(0.1)
    channel.close()
    assert not bench.processes[0].alive()
    assert bench.processes[0].exit_code == -signal.SIGKILL


def test_close_after_the_end_is_quiet(bench):
    channel = bench.open()
    bench.processes[0].end()
    channel.close()
    with pytest.raises(LinkLost, match="closed"):
        channel.interrupt(1.0)
    with pytest.raises(LinkLost):
        channel.resume(1.0)
    assert len(bench.processes) == 1


def test_a_forgotten_session_is_closed_at_the_end_of_the_program(tmp_path):
    program = (
        "import sys\n"
        f"sys.path.insert(0, {str(FAKE.parents[3])!r})\n"
        "from kdleak.engine.channels.kd_channel import KdChannel\n"
        f"fake = [sys.executable, '-IS', {str(FAKE)!r}, {str(tmp_path / 'diary')!r}, 'normal']\n"
        "KdChannel(fake, where='x').attach(10)\n"
    )
    subprocess.run([sys.executable, "-IS", "-c", program], check=True, timeout=30)
    assert (tmp_path / "diary").read_text().split()[-1] == "qd"


def test_ctrl_c_at_the_terminal_does_not_reach_the_debugger(bench):
    channel = bench.open()
    assert os.getpgid(bench.processes[0]._process.pid) != os.getpgid(0)
    channel.close()


# -- opening


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A kd on this machine: the fake, as a program that takes kd's arguments."""
    monkeypatch.setattr(kd_conversation, "_SURPLUS_SECONDS", 0.1)
    path = tmp_path / "kd"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -IS {FAKE} {tmp_path}/diary $MODE "$@"\n')
    path.chmod(0o755)
    return path


def test_arguments_of_kd(program, tmp_path, monkeypatch):
    monkeypatch.setenv("MODE", "normal")
    channel = open_kd(f'"net:port=50000,key={KEY}"', kd=str(program), symbol_path="c:\\sym bols")
    assert channel.where == "net:port=50000"
    assert KEY not in repr(vars(channel)["_where"])
    channel.close()
    first = (tmp_path / "diary").read_text().splitlines()[0]
    assert first == f"start -k net:port=50000,key={KEY} -b -y c:\\sym bols"


def test_a_dump(program, tmp_path, monkeypatch):
    monkeypatch.setenv("MODE", "normal")
    dump = tmp_path / "memory.dmp"
    with pytest.raises(UsageError, match="no such file"):
        open_kd("", kd=str(program), dump=str(dump))
    dump.write_bytes(b"PAGEDU64")
    channel = open_kd("", kd=str(program), dump=str(dump))
    assert channel.session == DUMP
    channel.close()
    assert (tmp_path / "diary").read_text().splitlines() == [f"start -z {dump}", "q"]


@pytest.mark.parametrize(
    "connection",
    [
        "net:port=50000",
        f"net:port=abc,key={KEY}",
        f"net:port=50000,key={KEY}.5",
        "com:listen=5000",
        "tcp:5000",
        "com:port=",
    ],
)
def test_strings_that_would_make_the_debugger_wait_for_ever(program, connection):
    with pytest.raises(BadConnection) as caught:
        open_kd(connection, kd=str(program))
    assert "1a.2b" not in str(caught.value)


@pytest.mark.parametrize(
    "connection",
    [
        f"net:port=50000,key={KEY}",
        f"net:port=50000,key={KEY},target=machine",
        "com:port=COM1,baud=115200",
        r"com:pipe,port=\\.\pipe\x,resets=0,reconnect",
        "com:ipport=4555,port=10.0.0.1",
        "usb:targetname=x",
    ],
)
def test_strings_of_windbg_are_passed_on(program, connection, monkeypatch, tmp_path):
    monkeypatch.setenv("MODE", "normal")
    open_kd(connection, kd=str(program)).close()
    assert (tmp_path / "diary").read_text().startswith(f"start -k {connection} -b\n")


def test_the_local_kernel(program, monkeypatch, tmp_path):
    monkeypatch.setenv("MODE", "normal")
    channel = open_kd("local", kd=str(program))
    assert channel.session == LOCAL_KERNEL
    channel.close()
    assert (tmp_path / "diary").read_text().splitlines() == ["start -kl", "q"]


def test_a_program_that_cannot_be_started(tmp_path):
    (tmp_path / "kd.exe").write_bytes(b"MZ\0\0")
    (tmp_path / "kd.exe").chmod(0o755)
    with pytest.raises(MissingDependency, match=r"kd\.exe") as caught:
        open_kd(f"net:port=50000,key={KEY}", kd=str(tmp_path))
    assert KEY not in str(caught.value)
    assert "Wine" in caught.value.next_step
