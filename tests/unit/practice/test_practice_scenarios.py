"""Scenarios: what their drivers do, and that nothing changes without one."""

from __future__ import annotations

import hashlib

import pefile
import pytest

from kdleak.cli import practice as cli_practice
from kdleak.errors import UsageError
from kdleak.practice.images import (
    SCENARIO_DIRECTORY,
    image_files,
    symbol_directories,
)
from kdleak.practice.machine import PracticeMachine
from kdleak.practice.scenarios import SCENARIOS, VERSIONS, Scenario, scenario_named
from kdleak.practice.workload import Workload

FAST = {"population": 2, "busy_operations": 2, "background_operations": 2}


@pytest.fixture(params=SCENARIOS, ids=lambda scenario: scenario.name)
def scenario(request) -> Scenario:
    return request.param


def run(scenario: str, ticks: int, **more) -> PracticeMachine:
    machine = PracticeMachine(seed=11, workload=Workload(scenario=scenario, **{**FAST, **more}))
    for _ in range(ticks):
        assert machine.tick() is None
    return machine


def books(machine: PracticeMachine, tag: str) -> dict[str, tuple[int, int]]:
    """Blocks allocated and freed by function."""
    return {
        f"{site.module}!{site.function}": (site.allocs, site.frees)
        for site in machine.ground_truth()
        if site.tag.text == tag and site.allocs
    }


@pytest.mark.parametrize("late", [0, 5])
def test_drivers_are_loaded_besides_the_others(scenario: Scenario, late: int) -> None:
    machine = PracticeMachine(
        seed=11, workload=Workload(scenario=scenario.name, late_driver_at_tick=late, **FAST)
    )
    with machine:
        names = [image.name for image in machine.loaded_images()]
        default = ["nt", "leakydrv"] if late else ["nt", "leakydrv", "busydrv"]
        assert names == [*default, *scenario.drivers]
        ranges = sorted((image.base, image.base + image.size) for image in machine.images)
        assert all(first[1] <= second[0] for first, second in zip(ranges, ranges[1:]))


def test_without_one_the_machine_is_the_same() -> None:
    def digest(workload: Workload | None) -> tuple[str, list[int]]:
        with PracticeMachine(seed=11, workload=workload) as machine:
            pages = hashlib.sha256()
            for number, data in machine.physical_pages():
                pages.update(number.to_bytes(8, "little") + data)
            return pages.hexdigest(), [image.base for image in machine.images]

    plain = digest(None)
    assert digest(Workload(scenario_operations=9, scenario_cache_entries=9)) == plain
    with_drivers = digest(Workload(scenario="cache"))
    assert with_drivers[0] != plain[0]
    assert with_drivers[1][:3] == plain[1]


def test_the_leak_behind_frameworks_is_hiddens_alone() -> None:
    with run("frameworks", 100, scenario_operations=2) as machine:
        opened, closed, lost = (
            machine.read_u32(f"hiddendrv!Sessions{what}") for what in ("Opened", "Closed", "Lost")
        )
        honest = [machine.read_u32(f"honestdrv!Handles{what}") for what in ("Opened", "Closed")]
        assert opened == 202
        assert 40 < lost < 140
        assert opened - closed - lost <= 2
        assert honest[0] - honest[1] == 4
        assert books(machine, "Fmwk") == {
            "Wdf01000!FxPoolAllocate": (opened + honest[0], closed + honest[1])
        }


def test_what_is_handed_over_is_freed_by_the_other() -> None:
    with run("handover", 100) as machine:
        made, freed = (machine.read_u32(name) for name in (
            "makerdrv!MessagesMade", "takerdrv!MessagesFreed",
        ))  # fmt: skip
        assert books(machine, "Hand") == {"makerdrv!MakeMessage": (made, freed)}
        assert made > 190
        assert made - freed <= 8
        freeing = [
            s.module for s in machine.ground_truth() if s.free_calls and s.tag.text == "Hand"
        ]
        assert freeing == ["takerdrv"]


def test_the_cache_fills_up_and_stays() -> None:
    with run("cache", 0, scenario_cache_entries=50) as machine:
        sizes = []
        for _ in range(120):
            machine.tick()
            allocs, frees = books(machine, "Warm")["cachedrv!AddEntry"]
            sizes.append(allocs - frees)
        assert sizes[:49] == list(range(sizes[0], sizes[0] + 49))
        assert set(sizes[50:]) == {50}


def test_version_resources_say_what_the_table_says(scenario: Scenario) -> None:
    for driver in scenario.drivers:
        image = pefile.PE(SCENARIO_DIRECTORY / f"{driver}.sys")
        version = VERSIONS.get(driver)
        assert hasattr(image, "VS_FIXEDFILEINFO") == (version is not None)
        if version is not None:
            fixed = image.VS_FIXEDFILEINFO[0]
            numbers = (fixed.FileVersionMS >> 16, fixed.FileVersionMS & 0xFFFF)
            assert (*numbers, fixed.FileVersionLS >> 16, fixed.FileVersionLS & 0xFFFF) == (
                version.number
            )
            strings = image.FileInfo[0][0].StringTable[0].entries
            assert strings[b"CompanyName"].decode() == version.company
        image.close()


def test_files_of_a_scenario(scenario: Scenario) -> None:
    files = image_files(scenario=scenario.name)[3:]
    assert [file.stem for file in files] == list(scenario.drivers)
    assert symbol_directories(scenario=scenario.name)[-1] == files[0].parent
    for file in files:
        for traced in (file, file.with_suffix(".pdb")):
            raw = traced.read_bytes()
            for trace in (b"/tmp", b"/home", b"/root", b"practice-kernel-"):
                assert trace not in raw, traced.name


def test_a_scenario_nobody_made() -> None:
    with pytest.raises(UsageError, match="frameworks, handover, cache"):
        scenario_named("nonsense")
    with pytest.raises(UsageError, match="nonsense"):
        PracticeMachine(workload=Workload(scenario="nonsense"))


def test_the_command_line_knows_every_scenario() -> None:
    option = next(p for p in cli_practice.command.params if p.name == "scenario")
    assert tuple(option.type.choices) == tuple(scenario.name for scenario in SCENARIOS)
