"""``--symbols``: practice kernels whose PDBs only a symbol server has."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "nt"))

from symbol_web_fakes import IMAGES, identity_of, symbol_server

from kdleak.cli.target_options import DUMP, TargetOptions, choose_target
from kdleak.engine.dump import open_dump_engine
from kdleak.errors import SymbolNotFound, UsageError
from kdleak.nt.fetching.server import SymbolFetcher

DUMP_FILE = Path(__file__).parents[3] / "samples" / "dumps" / "early.dmp"
NET = "net:port=50777,key=1.2.3.4"


@pytest.fixture
def server():
    with symbol_server() as running:
        for pdb in IMAGES.glob("**/*.pdb"):
            key = identity_of(pdb).key
            running.files[f"/symbols/{pdb.name}/{key}/{pdb.name}"] = pdb.read_bytes()
        yield running


@pytest.fixture
def environment(tmp_path):
    return {
        "KDLEAK_NO_PRACTICE_SYMBOLS": "1",
        "KDLEAK_SYMBOL_CACHE": str(tmp_path / "cache"),
        "NO_PROXY": "127.0.0.1",
    }


def test_a_dump_engine_with_and_without(server, tmp_path):
    path = f"srv*{tmp_path / 'store'}*{server.base}"
    with open_dump_engine(DUMP_FILE, path) as engine:
        with pytest.raises(SymbolNotFound, match="add --symbols"):
            engine.symbol("nt!PoolHitTag")
        assert any("not asked: http://127.0.0.1" in remark for remark in engine.symbol_remarks)
    assert server.paths == []
    said: list[str] = []
    fetch = SymbolFetcher(path, narrate=said.append, cache=tmp_path / "cache")
    with open_dump_engine(DUMP_FILE, path, fetch=fetch) as engine:
        found = engine.nearest(engine.symbol("nt!PoolHitTag"))
        assert (found.module, found.name, found.offset) == ("nt", "PoolHitTag", 0)
        assert engine.nearest(engine.symbol("leakydrv!TrackRequest")).name == "TrackRequest"
    assert [sentence.split()[1] for sentence in said] == ["ntkrnlmp.pdb", "leakydrv.pdb"]


def test_rank_of_a_dump(server, start, tmp_path, environment):
    path = f"srv*{tmp_path / 'store'}*{server.base.replace('//', '//me:secret@')}"
    command = ("rank", "-z", DUMP_FILE, "-y", path)
    plain = start(*command, env=environment).ends(0)
    assert server.paths == []
    fetched = start(*command, "--symbols", env=environment).ends(0)
    assert "fetching ntkrnlmp.pdb (" in fetched.err
    assert f"from 127.0.0.1:{server.port} ..." in fetched.err
    again = start(*command, "--symbols", env=environment).ends(0)
    assert "fetching" not in again.err
    for run in (plain, fetched, again):
        assert "secret" not in run.out + run.err


def test_a_server_that_lacks_it_is_no_obstacle(server, start, environment):
    server.files.clear()
    ranked = start(
        "rank", "-z", DUMP_FILE, "-y", f"srv**{server.base}", "--symbols", env=environment
    ).ends(0)
    assert "does not have ntkrnlmp.pdb" in ranked.out + ranked.err


def test_a_live_target_runs_while_symbols_are_fetched(practice, server, start, environment):
    target = practice("serial")
    command = ("rank", "-k", target.connection, "--by", "used", "-y", f"srv**{server.base}")
    ranked = start(*command, "--symbols", env=environment).ends(0)
    let_run = ranked.err.index("is let run while nt's symbols are fetched")
    assert let_run < ranked.err.index("fetching ntkrnlmp.pdb")
    assert len(server.paths) == 1
    # It is there now, whatever the path.
    start("rank", "-k", target.connection, "--by", "used", env=environment).ends(0)
    assert len(server.paths) == 1
    target.assert_unharmed()


def test_whose_option_it_is(tmp_path, monkeypatch):
    for engine in ("kd", "pykd", "pybag"):
        with pytest.raises(UsageError, match="fetch symbols themselves"):
            choose_target(TargetOptions(connection=NET, engine=engine, fetch_symbols=True))
    replay = tmp_path / "x.jsonl"
    replay.write_text("{}")
    with pytest.raises(UsageError, match="it needs no symbols"):
        choose_target(TargetOptions(replay=replay, fetch_symbols=True))
    monkeypatch.setenv("KDLEAK_SYMBOL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KDLEAK_NO_PRACTICE_SYMBOLS", "1")
    for name in ("_NT_SYMBOL_PATH", "_NT_ALT_SYMBOL_PATH"):
        monkeypatch.delenv(name, raising=False)
    cache = tmp_path / "cache"
    given = TargetOptions(dump=DUMP_FILE, engine=DUMP)
    assert choose_target(given).request.symbol_path == ""
    chosen = choose_target(TargetOptions(dump=DUMP_FILE, fetch_symbols=True))
    assert chosen.fetch_symbols
    server = "https://msdl.microsoft.com/download/symbols"
    assert chosen.request.symbol_path == f"srv*{cache}*{server}"
    cache.mkdir()
    assert choose_target(given).request.symbol_path == f"cache*{cache}"
    named = TargetOptions(dump=DUMP_FILE, symbol_path=f"{os.sep}mine", fetch_symbols=True)
    assert choose_target(named).request.symbol_path == f"{os.sep}mine;cache*{cache}"
