"""Dumps of the practice machine, ranked, against its ledger."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import defaultdict

import pytest

from kdleak.dump.kind import DumpKind
from kdleak.engine.dump import open_dump_engine
from kdleak.model import Pool, StackEnd, SymbolKind
from kdleak.practice.crash import DataBlock, write_crash_dump
from kdleak.practice.images import BUILDS, symbol_directories
from kdleak.tags import PoolTag

MEMORY = 128 << 20
CASES = [
    *((build, DumpKind.BITMAP_FULL, DataBlock.PLAIN) for build in BUILDS),
    *((build, DumpKind.BITMAP_KERNEL, DataBlock.ABSENT) for build in BUILDS),
    (22621, DumpKind.BITMAP_FULL, DataBlock.ENCODED),
    (22621, DumpKind.FULL, DataBlock.PLAIN),
]


@pytest.fixture(scope="module", params=CASES, ids=lambda c: f"{c[0]}-{c[1].name}-{c[2].name}")
def crash(request, tmp_path_factory):
    build, kind, block = request.param
    path = tmp_path_factory.mktemp("dumps") / "practice.dmp"
    return write_crash_dump(path, kind=kind, build=build, memory=MEMORY, ticks=60, data_block=block)


def ledger(crash):
    """(tag, pool) -> [allocs, frees, bytes outstanding] of all call sites.

    The ledger counts a free for the site that allocated the block.
    """
    found = defaultdict(lambda: [0, 0, 0])
    for site in crash.ground_truth:
        if site.tag.value:
            row = found[site.tag, site.pool]
            row[0] += site.allocs
            row[1] += site.frees
            row[2] += site.bytes_allocated - site.bytes_freed
    # The kernel charges its tracking tables themselves to this tag, at no call site.
    found.pop((PoolTag.parse("Pool"), Pool.NONPAGED))
    return {key: row for key, row in found.items() if row[0]}


def check_against_ledger(crash, snapshot):
    assert snapshot.gaps == ()
    truth = ledger(crash)
    assert len(truth) > 50
    for (tag, pool), row in truth.items():
        counters = snapshot.find(tag).of(pool)
        assert [counters.allocs, counters.frees, counters.bytes] == row, tag


@pytest.mark.parametrize("symbols", [False, True], ids=["bare", "symbols"])
def test_ranking_equals_the_ledger(crash, symbols):
    path = ";".join(map(str, symbol_directories(crash.build))) if symbols else ""
    with open_dump_engine(crash.path, path) as engine:
        check_against_ledger(crash, engine.pool_usage())
        assert [module.base for module in engine.modules()] == [m.base for m in crash.modules]
        assert engine.target.build == crash.build
        assert any("bug check 0xe2" in remark for remark in engine.remarks)


def test_stack_of_the_crash(crash):
    with open_dump_engine(
        crash.path, ";".join(map(str, symbol_directories(crash.build)))
    ) as engine:
        stack = engine.stack()
        assert str(stack.frames[0].symbol) == "nt!KeBugCheckEx"
        assert stack.end is StackEnd.COMPLETE
        assert all(frame.symbol.kind is SymbolKind.PDB for frame in stack.frames)
        assert engine.registers()["rip"] == stack.frames[0].address


def test_opening_and_ranking_is_quick(crash):
    best = 10.0
    for _ in range(3):
        begun = time.perf_counter()
        with open_dump_engine(crash.path) as engine:
            engine.pool_usage()
        best = min(best, time.perf_counter() - begun)
    assert best < 1.0  # 0.02 to 0.07 s on a quiet machine


def test_the_command(crash):
    done = subprocess.run(
        [sys.executable, "-m", "kdleak", "rank", "-z", str(crash.path), "--json"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    allocs, frees, size = ledger(crash)[PoolTag.parse("Leak"), Pool.NONPAGED]
    rows = [row for row in json.loads(done.stdout)["rows"] if row["tag"]["text"] == "Leak"]
    (last,) = [row["last"] for row in rows if row["pool"] == "nonpaged"]
    assert (last["allocs"], last["frees"], last["bytes"]) == (allocs, frees, size)


def test_encoded_debugger_data_is_decoded_with_symbols(tmp_path):
    dump = write_crash_dump(tmp_path / "a.dmp", ticks=5, data_block=DataBlock.ENCODED)
    path = ";".join(map(str, symbol_directories(dump.build)))
    with open_dump_engine(dump.path, path) as engine:
        assert "22621.1.amd64fre.practice" in engine.target.description
        assert any("was decoded" in remark for remark in engine.remarks)
    with open_dump_engine(dump.path) as engine:
        assert "amd64fre" not in engine.target.description
        assert any("encoded" in remark for remark in engine.remarks)
