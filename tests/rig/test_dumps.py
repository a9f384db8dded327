"""Crash dumps in Microsoft's engine: what it sees in them is what our own reader sees."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kdleak.engine.channels.base import DUMP
from kdleak.engine.channels.child import open_child
from kdleak.engine.channels.kd import open_kd
from kdleak.engine.dbgeng import DbgEngEngine, open_dbgeng
from kdleak.engine.dump import DumpEngine, open_dump_engine
from kdleak.errors import MemoryUnreadable, NotLive
from kdleak.model import PoolCounters, PoolSnapshot, StopKind, TagUsage
from tests.rig.channel_session import python_command
from tests.rig.conftest import IMAGES, plan_practice
from tests.rig.places import ROOT, windows_path
from tests.rig.rig import MARK, Rig

ENGINES = ["kd", "pykd", "pybag"]
KINDS = ["full", "bitmap", "kernel"]
SAMPLES = ROOT / "samples" / "dumps"
SYMBOLS = ";".join(map(str, [IMAGES, *sorted(one for one in IMAGES.glob("[0-9]*"))]))
LEAK = "Leak"
SMALL = [
    *("--memory", "16", "--ticks", "400"),
    *("--workload", "population=1", "--workload", "background_operations=0"),
]
NOT_IN_ANY = 0xFFFFA000_00000000


@dataclass(frozen=True)
class Made:
    """A dump of the practice machine.

    Attributes:
        path: the file.
        truth: what ``kdleak practice --json`` said about it.
    """

    path: Path
    truth: dict[str, Any]


def kdleak(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line of this machine."""
    return subprocess.run(
        [sys.executable, "-m", "kdleak", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    """Makes a dump of each kind, once."""
    folder = tmp_path_factory.mktemp("dumps")
    known: dict[str, Made] = {}

    def make(kind: str) -> Made:
        if kind not in known:
            path = folder / f"{kind}.dmp"
            done = kdleak("practice", "--dump", str(path), "--dump-kind", kind, "--json", *SMALL)
            assert done.returncode == 0, done.stderr
            known[kind] = Made(path, json.loads(done.stdout))
        return known[kind]

    return make


@pytest.fixture(autouse=True)
def quiet_environment(monkeypatch: pytest.MonkeyPatch, rig: Rig, tmp_path: Path) -> None:
    monkeypatch.setenv(MARK, rig.session)
    monkeypatch.setenv("KDLEAK_STATE_DIR", str(tmp_path / "state"))
    for name in ("_NT_SYMBOL_PATH", "_NT_ALT_SYMBOL_PATH"):
        monkeypatch.delenv(name, raising=False)


@contextlib.contextmanager
def opened(engine: str, dump: Path, rig: Rig, folder: Path) -> Iterator[DbgEngEngine]:
    """A dump in Microsoft's engine, its symbols loaded; stacks are the debugger's own."""
    if engine == "kd":
        channel: Any = open_kd("", kd=str(rig.kd), dump=str(dump), symbol_path=SYMBOLS, timeout=60)
    else:
        practice = plan_practice()  # not started: for the symbol path of the environment
        practice.symbols = SYMBOLS
        channel = open_child(
            engine,
            str(dump),
            dump=True,
            timeout=60,
            python=python_command(rig, practice, folder),
        )
    with open_dbgeng(channel, use_kb=True) as dbgeng:
        dbgeng.reload()
        yield dbgeng


@contextlib.contextmanager
def ours(dump: Path) -> Iterator[DumpEngine]:
    """The same dump in our own reader."""
    with open_dump_engine(dump, SYMBOLS) as engine:
        engine.reload()
        yield engine


def leaked_blocks(dump: Path) -> list[int]:
    """Addresses of blocks of the leaking tag."""
    done = kdleak("find", LEAK, "-z", str(dump), "--json")
    assert done.returncode in (0, 4), done.stderr
    return [int(block["address"], 16) for block in json.loads(done.stdout)["blocks"]]


def in_use(snapshot: PoolSnapshot) -> dict[str, TagUsage]:
    """Rows with anything in them; ``!poolused`` leaves the others out."""
    nothing = (PoolCounters(), PoolCounters())
    return {row.tag.text: row for row in snapshot.rows if (row.nonpaged, row.paged) != nothing}


def assert_same_tags(theirs: PoolSnapshot, own: PoolSnapshot) -> None:
    shown, read = in_use(theirs), in_use(own)
    assert len(shown) > 10
    assert {tag: read.get(tag) for tag in shown} == shown
    hidden = set(read) - set(shown)
    assert all("." in text or not text.isascii() or not text.isprintable() for text in hidden)


def shown_bytes(text: str, size: int) -> bytes:
    """The bytes that ``db`` or ``dd`` print, ``size`` of them an item."""
    found = b""
    for line in text.splitlines():
        cells = re.match(r"[0-9a-f`]+  ((?:[0-9a-f]+[ -]){1,16})", line + " ")
        assert cells is not None, line
        found += b"".join(
            int(cell, 16).to_bytes(size, "little")
            for cell in re.findall(r"[0-9a-f]+", cells[1])[: 16 // size]
        )
    return found


# --- the same dump, seen twice


@pytest.mark.parametrize("engine", ENGINES)
def test_same_dump(engine: str, made: Callable[[str], Made], rig: Rig, tmp_path: Path) -> None:
    dump = made("bitmap").path
    blocks = leaked_blocks(dump)
    assert len(blocks) > 10
    with opened(engine, dump, rig, tmp_path) as theirs, ours(dump) as own:
        assert theirs.channel.session == DUMP
        assert theirs.stop.kind is own.stop.kind is StopKind.BUG_CHECK
        assert theirs.stop.detail.startswith("bug check 0xe2")
        assert (theirs.target.build, theirs.target.pointer_size, theirs.target.live) == (
            own.target.build,
            own.target.pointer_size,
            False,
        )
        assert theirs.target.kernel_base == own.target.kernel_base

        modules = {(one.name, one.base, one.size) for one in theirs.modules()}
        assert modules == {(one.name, one.base, one.size) for one in own.modules()}
        assert len(modules) == 3

        places = [
            *((one.base, 0x400) for one in own.modules()),
            *((one.base + one.size - 0x10, 0x10) for one in own.modules()),
            *((block - 0x10, 0x150) for block in blocks[:5] + blocks[-5:]),
            (own.symbol("nt!PoolHitTag"), 4),
            (own.registers().values["rsp"], 0x100),
        ]
        table = int.from_bytes(own.read(own.symbol("nt!PoolTrackTable"), 8), "little")
        places.append((table, 0x1800))  # over a page's end
        for address, size in places:
            assert theirs.read(address, size) == own.read(address, size), hex(address)
        assert own.read(blocks[0] - 0xC, 4) == LEAK.encode()
        block = own.read(blocks[0], 0x40)
        execute = theirs.channel.execute
        assert shown_bytes(execute(f"db 0x{blocks[0]:x} L40"), 1) == block
        assert shown_bytes(execute(f"dd 0x{blocks[0]:x} L10"), 4) == block
        for reader in (theirs, own):
            with pytest.raises(MemoryUnreadable):
                reader.read(NOT_IN_ANY, 8)

        listed = theirs.pool_usage()
        assert listed.source == "!poolused 3"
        assert_same_tags(listed, own.pool_usage())

        registers, known = theirs.registers().values, own.registers().values
        common = set(registers) & set(known)
        assert {"rip", "rsp", "rbp", "rax", "r15"} <= common
        assert {name: registers[name] for name in common if name.startswith("r")} == {
            name: known[name] for name in common if name.startswith("r")
        }
        frames = [(one.address, str(one.symbol)) for one in theirs.stack().frames]
        assert frames[0][1] == "nt!KeBugCheckEx"
        assert len(frames) > 3
        assert frames == [(one.address, str(one.symbol)) for one in own.stack().frames]
        for live in (lambda: theirs.resume(1.0), lambda: theirs.write(table, b"1234")):
            with pytest.raises(NotLive):
                live()


@pytest.mark.parametrize("kind", KINDS)
def test_tags_of_every_kind_of_dump(
    kind: str, made: Callable[[str], Made], rig: Rig, tmp_path: Path
) -> None:
    """By ``!poolused``, from the tables, by our own reader, and as the machine's ledger says."""
    dump = made(kind)
    with opened("kd", dump.path, rig, tmp_path) as theirs, ours(dump.path) as own:
        usage = theirs.pool_usage()
        assert_same_tags(usage, own.pool_usage())
        assert_same_tags(theirs._pool._from_tables(None, None), own.pool_usage())
        leaked = in_use(usage)[LEAK].nonpaged
        sites = [one for one in dump.truth["ground_truth"] if one["tag"] == LEAK]
        assert leaked.outstanding == sum(
            one["outstanding"] for one in sites if one["pool"] == "nonpaged"
        )


def test_without_kdexts(
    made: Callable[[str], Made], rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KDLEAK_RIG_KDEXTS", "0")
    dump = made("bitmap").path
    with opened("kd", dump, rig, tmp_path) as theirs, ours(dump) as own:
        usage = theirs.pool_usage()
        assert "tag tables" in usage.source
        assert_same_tags(usage, own.pool_usage())


@pytest.mark.parametrize("sample", sorted(one.name for one in SAMPLES.glob("*.dmp")))
def test_samples(sample: str, rig: Rig, tmp_path: Path) -> None:
    """Those without KDBG too: the debugger calls them corrupt, and reads them all the same."""
    with opened("kd", SAMPLES / sample, rig, tmp_path) as theirs, ours(SAMPLES / sample) as own:
        assert {(one.name, one.base) for one in theirs.modules()} == {
            (one.name, one.base) for one in own.modules()
        }
        assert theirs.stop.kind is own.stop.kind is StopKind.BUG_CHECK
        for one in own.modules():
            assert theirs.read(one.base, 0x200) == own.read(one.base, 0x200)
        assert_same_tags(theirs.pool_usage(), own.pool_usage())


# --- the commands


def engine_options(engine: str, rig: Rig, folder: Path) -> list[str]:
    """``--engine`` and where it is."""
    if engine == "kd":
        return ["--engine", "kd", "--kd", str(rig.kd), "-y", SYMBOLS]
    practice = plan_practice()
    practice.symbols = SYMBOLS
    return ["--engine", engine, "--python", python_command(rig, practice, folder)]


def ranked(text: str) -> list[tuple[object, ...]]:
    """(tag, pool, bytes) of a ranking in JSON."""
    return [
        (row["tag"]["value"], row["pool"], row["last"]["bytes"]) for row in json.loads(text)["rows"]
    ]


@pytest.mark.parametrize("engine", ENGINES)
def test_rank(engine: str, made: Callable[[str], Made], rig: Rig, tmp_path: Path) -> None:
    dump = made("bitmap").path
    record = tmp_path / "session.jsonl"
    options = engine_options(engine, rig, tmp_path)
    done = kdleak("rank", "-z", str(dump), *options, "--json", "--record", str(record))
    assert done.returncode == 0, done.stderr
    assert f"opening {dump} through {engine}" in done.stderr
    assert "waiting" not in done.stderr
    own = kdleak("rank", "-z", str(dump), "--json")
    assert own.returncode == 0, own.stderr
    rows = ranked(done.stdout)
    assert len(rows) > 10
    assert set(rows) <= set(ranked(own.stdout))
    assert rows[0] == ranked(own.stdout)[0]
    again = kdleak("rank", "--replay", str(record), "--json")
    assert again.returncode == 0, again.stderr
    assert ranked(again.stdout) == rows


def test_rank_from_windows_python(made: Callable[[str], Made], rig: Rig) -> None:
    """What ``!py -m kdleak.rank`` runs, with ``-z``."""
    dump = made("bitmap").path
    done = rig.python(
        *("-m", "kdleak.rank", "-z", windows_path(dump), "--engine", "pykd"),
        environment=rig.environment(symbols=SYMBOLS),
    )
    assert done.returncode == 0, done.err
    assert "opened: Windows build 22621 x64" in done.err
    assert re.search(rf"^ +{LEAK} +nonpaged ", done.out, re.MULTILINE)
    assert "stopped" not in done.out


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_no_dump(engine: str, rig: Rig, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("no dump at all\n" * 1000)
    done = kdleak("rank", "-z", str(file), *engine_options(engine, rig, tmp_path))
    assert done.returncode == 3, done.stderr
    complaints = [line for line in done.stderr.splitlines() if line.startswith("kdleak: ")]
    assert len(complaints) == 1, done.stderr
    assert "notes.txt" in complaints[0]
    assert "Next: check that the file is a kernel crash dump" in complaints[0]
    assert done.stdout == ""
    assert rig.processes() == []
