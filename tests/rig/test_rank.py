"""Ranking through Microsoft's engine: ``!poolused`` of an extension, and without one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kdleak.engine.channels.kd import open_kd
from kdleak.engine.dbgeng import DbgEngEngine, open_dbgeng
from kdleak.hunt_options import RankOptions
from kdleak.model import PoolCounters, TagUsage
from kdleak.rank import rank
from tests.rig.conftest import Practice
from tests.rig.engines import opened
from tests.rig.rig import MARK, Rig

StartPractice = Callable[..., Practice]


def in_use(rows: tuple[TagUsage, ...]) -> dict[str, TagUsage]:
    """Rows with anything in them, by tag; ``!poolused`` leaves the others out."""
    return {
        row.tag.text: row
        for row in rows
        if (row.nonpaged, row.paged) != (PoolCounters(), PoolCounters())
    }


@pytest.fixture(autouse=True)
def quiet_environment(monkeypatch: pytest.MonkeyPatch, rig: Rig) -> None:
    monkeypatch.setenv(MARK, rig.session)
    monkeypatch.delenv("_NT_SYMBOL_PATH", raising=False)


def test_poolused_and_the_tag_tables_say_the_same(
    rig: Rig, practice_over_kdnet: StartPractice, tmp_path: Path
) -> None:
    practice = practice_over_kdnet(late=True)
    with opened("kd", practice, rig, tmp_path) as engine:
        engine.reload()
        by_command = engine.pool_usage()
        assert by_command.source == "!poolused 3"
        assert not by_command.outstanding_only
        assert isinstance(engine, DbgEngEngine)
        by_memory = engine._pool._from_tables(None, None)
        assert "tag tables" in by_memory.source
        shown, read = in_use(by_command.rows), in_use(by_memory.rows)
        hidden = set(read) - set(shown)
        assert all("." in text or not text.isascii() or not text.isprintable() for text in hidden)
        assert {tag: read[tag] for tag in shown} == shown
        assert len(shown) > 10
        # One tag is read from the tables, with the same figures.
        one = engine.pool_usage(shown["Leak"].tag)
        assert one.find(shown["Leak"].tag) == shown["Leak"]


@pytest.mark.parametrize("kdexts", [True, False])
def test_rank_finds_what_grows(
    rig: Rig,
    practice_over_kdnet: StartPractice,
    monkeypatch: pytest.MonkeyPatch,
    kdexts: bool,
) -> None:
    if not kdexts:
        for name, value in rig.environment(kdexts=False).items():
            if name == "KDLEAK_RIG_KDEXTS":
                monkeypatch.setenv(name, value)
    practice = practice_over_kdnet("--leak-permille", "400")
    channel = open_kd(practice.connection, kd=str(rig.kd), symbol_path=practice.symbols, timeout=60)
    with open_dbgeng(channel) as engine:
        result = rank(engine, RankOptions(seconds=8, snapshots=6))
        remarks = engine.remarks
    assert result.suspect is not None
    assert result.suspect.tag.text == "Leak"
    if kdexts:
        assert result.source == "!poolused 3"
        assert all("do not print" in remark for remark in remarks)
    else:
        assert "tag tables" in result.source
        assert any("no !poolused" in remark for remark in remarks)
    assert practice.statistics["pool_hit_tag"] == 0xFFFFFF0F
