"""kdleak in a terminal of 80 columns and 24 lines."""

from __future__ import annotations

import contextlib
import re
import sys
import time

import pytest
from cli_rig import SECONDS, assert_clean, environment

pexpect = pytest.importorskip("pexpect")
pyte = pytest.importorskip("pyte")

SAFE = "disarmed: nt!PoolHitTag is back at 0xffffff0f (read back)."


class Terminal:
    """A terminal emulator with a process in it."""

    def __init__(self, state, arguments, **env):
        self.screen = pyte.HistoryScreen(80, 24, history=2000, ratio=1.0)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.child = pexpect.spawn(
            sys.executable,
            ["-m", "kdleak", *map(str, arguments)],
            dimensions=(24, 80),
            env=environment(state, **{"TERM": "xterm-256color", **env}),
            timeout=SECONDS,
        )

    def pump(self, until, timeout=SECONDS):
        """Feed the screen until ``until`` holds or the process has ended."""
        deadline = time.monotonic() + timeout
        while not until():
            assert time.monotonic() < deadline, "\n".join(self.lines())
            try:
                data = self.child.read_nonblocking(4096, timeout=0.2)
            except pexpect.TIMEOUT:
                continue
            except pexpect.EOF:
                return
            self.raw += data
            self._stream.feed(data)

    def lines(self):
        """Everything that was on the screen so far, scrolled-off lines first."""
        above = ["".join(row[i].data for i in range(80)) for row in self.screen.history.top]
        return [line.rstrip() for line in [*above, *self.screen.display]]

    def shows(self, text):
        self.pump(lambda: any(text in line for line in self.lines()))
        assert any(text in line for line in self.lines()), "\n".join(self.lines())

    def ends(self, code):
        self.pump(lambda: False)
        self.child.wait()
        assert (self.child.exitstatus, self.child.signalstatus) == (code, None)
        assert_clean(self.raw.decode("utf-8", "replace"))
        return "\n".join(self.lines()).rstrip()


@pytest.fixture
def terminal(state):
    opened = []

    def start(*arguments, **env):
        opened.append(Terminal(state, arguments, **env))
        return opened[-1]

    yield start
    for one in opened:
        one.child.close(force=True)


def test_hunt(practice, terminal):
    target = practice("serial", busy_operations=10)
    window = terminal(
        "hunt", "-k", target.connection, "--interval", 2, "--snapshots", 3, "--hits", 250
    )
    window.shows("watching 'Leak'")
    text = window.ends(0)
    # The progress line was redrawn in place and is gone; the result is coloured.
    assert len(re.findall(rb"watching 'Leak'", window.raw)) > 2
    assert "watching 'Leak'" not in text
    assert "starting" not in text
    assert text.splitlines()[-1] == SAFE
    assert b"\x1b[1;31m" in window.raw
    assert window.screen.cursor.hidden is False
    assert window.screen.cursor.x == 0
    printed = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", window.raw.decode()).partition("Hunt of")[2]
    assert max(map(len, printed.splitlines())) <= 80
    target.assert_unharmed()


def test_ctrl_c(practice, terminal, journal):
    target = practice("serial")
    window = terminal("hunt", "-k", target.connection, "--tag", "Leak", "--hits", 100000)
    window.shows("watching 'Leak'")
    window.child.sendintr()
    text = window.ends(130)
    assert "watching 'Leak'" not in text
    assert text.splitlines()[-1] == SAFE
    assert window.screen.cursor.hidden is False
    assert journal() == []
    target.assert_unharmed()


def test_ctrl_c_while_waiting(terminal):
    window = terminal("hunt", "-k", "net:port=50778,key=1.2.3.4")
    window.shows("waiting for the target")
    time.sleep(0.3)
    window.child.sendintr()
    text = window.ends(130)
    assert text.splitlines()[-1] == "kdleak: interrupted."
    assert window.screen.cursor.hidden is False


def test_terminal_closes(practice, terminal, journal):
    """The window is closed while the tag is armed."""
    target = practice("serial")
    window = terminal("hunt", "-k", target.connection, "--tag", "Leak", "--hits", 100000)
    window.shows("watching 'Leak'")
    with contextlib.suppress(pexpect.ExceptionPexpect):  # it is not gone at once
        window.child.close(force=False)  # the kernel sends SIGHUP, and writing fails from here on
    deadline = time.monotonic() + 20
    while journal() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert journal() == []
    target.assert_unharmed()
    while window.child.isalive():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["NO_COLOR", "dumb"])
def test_no_colour(terminal, practice, env):
    target = practice("serial")
    window = terminal("rank", "-k", target.connection, "--by", "used", **env)
    text = window.ends(0)
    assert "Pool tags of" in text
    assert not re.search(rb"\x1b\[[0-9;]*[1-9][0-9;]*m", window.raw)
    target.assert_unharmed()


def test_help_fits(terminal):
    window = terminal("hunt", "--help")
    assert "--full-speed" in window.ends(0)
    assert max(map(len, window.raw.decode().splitlines())) <= 80
