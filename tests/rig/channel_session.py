"""One hunt by hand over a channel to Windows Python: the same for every binding."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

from kdleak.engine.channels.child import ChildChannel, open_child
from tests.rig.conftest import KEY, Practice
from tests.rig.places import windows_path
from tests.rig.rig import Rig

HITS = 20


def python_command(rig: Rig, practice: Practice, folder: Path) -> str:
    """A program of this machine that behaves as Windows Python does."""
    rig.need_python()
    environment = rig.environment(symbols=practice.symbols)
    hooks = folder / "hooks"
    hooks.mkdir(exist_ok=True)
    # Wine's sockets refuse one option that the engine insists on.
    (hooks / "sitecustomize.py").write_text("import ctypes; ctypes.CDLL('kdfix.dll')\n")
    environment["PYTHONPATH"] += ";" + windows_path(hooks)
    names = [name for name in environment if name.startswith(("WINE", "_NT", "PYTHON", "KDLEAK"))]
    settings = "\n".join(
        f"export {name}={shlex.quote(environment[name])}" for name in [*names, "WINDBG_DIR"]
    )
    program = folder / "python"
    program.write_text(
        f"#!/bin/sh\nunset DISPLAY PYTHONHOME\n{settings}\n"
        f"exec {shlex.quote(str(rig.wine))} {shlex.quote(str(rig.places.python / 'python.exe'))} "
        '"$@"\n'
    )
    program.chmod(0o755)
    return str(program)


@contextlib.contextmanager
def opened(
    binding: str, rig: Rig, practice: Practice, folder: Path, timeout: float = 60.0
) -> Iterator[ChildChannel]:
    """A channel to the practice target; closed at the end."""
    channel = open_child(
        binding,
        practice.connection,
        timeout=timeout,
        python=python_command(rig, practice, folder),
    )
    try:
        yield channel
    finally:
        channel.close()


def hunt_by_hand(channel: ChildChannel) -> int:
    """Arm, take hits, interrupt, disarm. Returns how many hits were seen."""
    symbol = channel.execute("dd nt!PoolHitTag L1")
    address = int(symbol.split()[0].replace("`", ""), 16)
    original = int(symbol.split()[1], 16)
    assert "Memory access error" in channel.execute("ed 0 1")
    assert "Couldn't resolve" in channel.execute("dd nt!nosuch L1")
    assert KEY not in channel.execute("||")
    assert not channel.running

    quiet = channel.resume(0.3)
    assert quiet.running
    assert channel.running
    broken = channel.interrupt(10.0)
    assert "80000003" in broken.text
    assert not channel.running
    assert not channel.interrupt(1.0).running

    assert channel.execute("ed nt!PoolHitTag 'kaeL'").strip() == ""
    assert channel.quick.read(address, 4) == b"Leak"
    places = set()
    for _ in range(HITS):
        stop = channel.resume(20.0)
        assert not stop.running
        assert "80000003" in stop.text
        registers = channel.quick.registers()
        places.add(registers["rip"])
        assert len(channel.quick.read(registers["rsp"] & ~0xFF, 0x200)) == 0x200
        assert channel.quick.read(registers["rip"], 1) == b"\xcc"
        assert stop.processor in {0, 1}
    assert 1 < len(places) < HITS

    channel.execute(f"ed nt!PoolHitTag {original:x}")
    assert int.from_bytes(channel.quick.read(address, 4), "little") == original
    after = channel.resume(0.5)
    assert after.running, "a hit after the tag was taken back"
    channel.interrupt(10.0)
    return HITS


def runs_on(practice: Practice, before: float = 1.0) -> dict[str, object]:
    """The target's statistics, after some time in which it must have run."""
    time.sleep(before)
    statistics = practice.finish()["statistics"]
    assert isinstance(statistics, dict)
    return statistics
