"""Fixtures: practice kernels and kdleak processes that never outlive their test."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from cli_rig import Kdleak, Practice, assert_clean

_SIGNALS = [signal.SIGINT, signal.SIGTERM]
if sys.platform != "win32":
    _SIGNALS.append(signal.SIGHUP)


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            if sys.platform == "win32":
                item.add_marker(pytest.mark.skip(reason="uses POSIX signals and /proc"))


@pytest.fixture
def state(tmp_path):
    """The journal's folder of every kdleak process of this test."""
    folder = tmp_path / "state"
    yield folder
    for file in folder.glob("*") if folder.is_dir() else ():
        assert_clean(file.read_bytes().decode("latin-1"))


@pytest.fixture
def start(tmp_path, state):
    """Start a kdleak process: ``start("hunt", "-k", ...)``."""
    running: list[Kdleak] = []

    def begin(*arguments, **how) -> Kdleak:
        folder = tmp_path / f"kdleak{len(running)}"
        running.append(Kdleak(folder, how.pop("state", state), arguments, **how))
        return running[-1]

    yield begin
    for one in running:
        one.kill()
    for one in running:
        one.check()


@pytest.fixture
def practice(tmp_path, state):
    """Start a practice kernel: ``practice("kdnet", build=15063)``."""
    running: list[Practice] = []

    def boot(link="kdnet", **options) -> Practice:
        running.append(Practice(tmp_path / f"practice{len(running)}", state, link, **options))
        return running[-1]

    yield boot
    for one in running:
        one.kill()


@pytest.fixture
def journal(state):
    """Names of the journal entries that are open."""
    return lambda: sorted(file.name for file in state.glob("*.json"))


@pytest.fixture
def in_process(state, monkeypatch, capsys):
    """Run the command line in this process, for what never gets to a target."""
    from kdleak.cli.entry import run

    def call(*arguments):
        def too_long(*_):
            raise AssertionError(f"{arguments} does not come to an end")

        signal.signal(signal.SIGALRM, too_long)
        signal.alarm(20)
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        try:
            code = run([str(argument) for argument in arguments])
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            for number, handler in before.items():
                signal.signal(number, handler)
        out, err = capsys.readouterr()
        assert_clean(out + err)
        return code, out, err

    monkeypatch.setenv("KDLEAK_STATE_DIR", str(state))
    for name in ("KDLEAK_KEY", "NO_COLOR", "_NT_SYMBOL_PATH"):
        monkeypatch.delenv(name, raising=False)
    return call
