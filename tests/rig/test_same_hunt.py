"""Every engine finds the same: one hunt from one moment of the same boot, over each of them.

The practice target stops itself at a tick of its own clock; the hunt begins there, so that all
see the same allocations and frees.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kdleak.engine.base import Engine
from kdleak.engine.blocks import block_finder
from kdleak.hunt import hunt
from kdleak.hunt_options import HuntOptions
from kdleak.journal import Journal
from kdleak.model import StopKind
from kdleak.result import DisarmStatus, HuntResult
from kdleak.tags import PoolTag
from tests.rig.conftest import Practice
from tests.rig.engines import opened
from tests.rig.rig import MARK, Rig

HITS = 60
TICK = 900  # 9 seconds after boot: everybody has attached by then


def at_the_moment(engine: Engine) -> None:
    """Let the target run to where it stops itself."""
    engine.reload()
    place = engine.symbol("nt!DbgBreakPoint")
    for _ in range(5):
        if engine.stop.kind is StopKind.BREAK_INSTRUCTION:
            break
        engine.resume(60)
    assert engine.stop.program_counter in (place, place + 1)


def hunted(engine: Engine, folder: Path) -> HuntResult:
    at_the_moment(engine)
    return hunt(
        engine,
        HuntOptions(
            tag=PoolTag.parse("Leak"),
            max_hits=HITS,
            max_seconds=120,
            max_stopped_share=None,
            hits_per_second=None,
        ),
        journal=Journal(folder / "journal"),
        block_finder_factory=block_finder,
    )


@pytest.fixture(scope="module")
def native_result(tmp_path_factory: pytest.TempPathFactory, whole_rig: Rig) -> HuntResult:
    from tests.rig.conftest import plan_practice

    practice = plan_practice("--seed", "7", "--break-at-tick", str(TICK))
    folder = tmp_path_factory.mktemp("native")
    try:
        with opened("native", practice, whole_rig, folder) as engine:
            return hunted(engine, folder)
    finally:
        practice.kill()


@pytest.mark.parametrize(
    ("name", "use_kb"),
    [("native", False), ("kd", False), ("kd", True), ("pykd", False), ("pybag", False)],
    ids=["native", "kd", "kd-kb", "pykd", "pybag"],
)
def test_same_call_sites_with_the_same_counts(
    name: str,
    use_kb: bool,
    native_result: HuntResult,
    rig: Rig,
    tmp_path: Path,
    practice_over_kdnet: Callable[..., Practice],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(MARK, rig.session)
    monkeypatch.delenv("_NT_SYMBOL_PATH", raising=False)
    practice = practice_over_kdnet("--seed", "7", "--break-at-tick", str(TICK), late=True)
    with opened(name, practice, rig, tmp_path, use_kb=use_kb) as engine:
        result = hunted(engine, tmp_path)
    assert told(result) == told(native_result)
    statistics = practice.statistics
    assert statistics["pool_hit_tag"] == 0xFFFFFF0F


def told(result: HuntResult) -> list[object]:
    """What a hunt saw, hit by hit: kind, block and the names of the stack."""
    assert result.disarm.status is DisarmStatus.CONFIRMED
    assert result.completeness.broken_stacks == 0
    sites = sorted(
        (str(site.frame.symbol), site.allocs, site.frees, site.outstanding_bytes)
        for site in result.sites
    )
    assert sum(allocs + frees for _, allocs, frees, _ in sites) == result.completeness.hits
    return [result.completeness.hits, sites]
