"""Practice scenarios over every engine: who is blamed, and what the driver says about itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Optional, Tuple

import pytest

from kdleak.engine.blocks import block_finder
from kdleak.hunt import hunt
from kdleak.hunt_options import HuntOptions
from kdleak.journal import Journal
from kdleak.practice.images import SCENARIO_DIRECTORY
from kdleak.practice.scenarios import scenario_named
from kdleak.result import DisarmStatus, HuntResult, Judgement
from kdleak.tags import PoolTag
from tests.rig.conftest import Practice
from tests.rig.engines import opened
from tests.rig.rig import MARK, Rig
from tests.rig.test_same_hunt import TICK, at_the_moment

ENGINES = ("kd", "pykd", "pybag")


@pytest.fixture(params=ENGINES)
def hunter(
    request: pytest.FixtureRequest,
    rig: Rig,
    tmp_path: Path,
    practice_over_kdnet: Callable[..., Practice],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., HuntResult]:
    """Hunts in a scenario over one engine."""
    monkeypatch.setenv(MARK, rig.session)
    monkeypatch.delenv("_NT_SYMBOL_PATH", raising=False)

    def run(
        scenario: str,
        hits: int,
        *workload: str,
        min_age: Optional[float] = None,
        variables: Sequence[Tuple[str, int]] = (),
    ) -> HuntResult:
        practice = practice_over_kdnet(
            *("--seed", "7", "--break-at-tick", str(TICK), "--scenario", scenario, *workload),
            late=True,
        )
        practice.symbols += f";{SCENARIO_DIRECTORY}"
        with opened(request.param, practice, rig, tmp_path) as engine:
            at_the_moment(engine)
            for name, value in variables:
                engine.write(engine.symbol(name), value.to_bytes(4, "little"))
            result = hunt(
                engine,
                HuntOptions(
                    tag=PoolTag.parse(scenario_named(scenario).tag),
                    max_hits=hits,
                    max_seconds=120,
                    max_stopped_share=None,
                    hits_per_second=None,
                    min_age=min_age,
                ),
                journal=Journal(tmp_path / "journal"),
                block_finder_factory=block_finder,
            )
        assert practice.statistics["pool_hit_tag"] == 0xFFFFFF0F
        assert result.disarm.status is DisarmStatus.CONFIRMED
        return result

    return run


def test_a_leak_behind_five_framework_frames(hunter: Callable[..., HuntResult]) -> None:
    result = hunter("frameworks", 150, min_age=0.3)
    allocating = {
        str(site.blame.symbol).split("+")[0]: site for site in result.sites if site.allocs
    }
    assert set(allocating) == {"hiddendrv!OpenSession", "honestdrv!OpenHandle"}
    assert result.accused is allocating["hiddendrv!OpenSession"]
    assert sum(use.frames for use in result.accused.through) == 5
    honest = allocating["honestdrv!OpenHandle"]
    assert honest.judgement is not Judgement.ACCUSED
    details = result.blamed[0]
    assert (details.name, details.file_version) == ("hiddendrv", "3.1.4.159")
    assert (details.company, details.description) == (
        "Practice Hidden Works",
        "Leaks behind five frames",
    )


def test_blocks_freed_by_another_driver(hunter: Callable[..., HuntResult]) -> None:
    result = hunter("handover", 120)
    assert result.accused is None
    judged = {str(site.frame.symbol).split("+")[0]: site.judgement for site in result.sites}
    assert judged["takerdrv!ConsumeMessages"] is Judgement.FREES_ONLY
    assert judged["makerdrv!MakeMessage"] in (Judgement.CLEARED, Judgement.TOO_FEW)
    assert result.pairing.paired > 30


def test_a_cache_that_warms_up(hunter: Callable[..., HuntResult]) -> None:
    """It fills at first, and then gives back an entry for every new one."""
    entries = 60
    result = hunter(
        *("cache", 400, "--scenario-operations", "0", "--scenario-cache-entries", str(entries)),
        variables=[("cachedrv!ScenarioOperationsPerTick", 2)],
    )
    assert result.accused is None
    (site,) = (site for site in result.sites if site.allocs)
    assert str(site.frame.symbol).startswith("cachedrv!AddEntry+")
    assert site.judgement not in (Judgement.ACCUSED, Judgement.SUSPECTED), site.sentence
    assert site.allocs > 200
    assert site.outstanding in (entries - 1, entries)
    assert result.pairing.frees_of_older == 0
