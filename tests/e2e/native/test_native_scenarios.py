"""Hunts in the practice scenarios over the native engine, against the machine's own books."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from direct_host import DirectHost

from kdleak.blaming.blamed_modules import MOST_READS
from kdleak.blaming.frameworks import built_in_frameworks
from kdleak.engine.blocks import block_finder
from kdleak.engine.native import NativeEngine
from kdleak.hunt import hunt
from kdleak.hunt_options import HuntOptions
from kdleak.journal import Journal
from kdleak.model import StackEnd
from kdleak.practice.images import BUILDS, DEFAULT_BUILD, symbol_directories
from kdleak.practice.ledger import changes_between
from kdleak.practice.machine import PracticeMachine
from kdleak.practice.scenarios import VERSIONS, scenario_named
from kdleak.practice.workload import Workload
from kdleak.report.json_report import hunt_document
from kdleak.report.text import render_hunt
from kdleak.result import CallSite, HuntResult, Judgement
from kdleak.tags import PoolTag

pytestmark = pytest.mark.e2e

LAYERS = ["Wdf01000", "ndis", "NETIO", "fltmgr"]


@dataclass
class Hunted:
    """A hunt that is over, and what really happened meanwhile."""

    result: HuntResult
    machine: PracticeMachine
    truth: dict[str, tuple[int, int]]  # function: blocks it allocated, of them freed
    counted_before: dict[str, int]  # what the drivers counted themselves before the hunt
    counters: dict[str, int]  # and meanwhile

    def site(self, name: str) -> CallSite:
        """The one call site blamed on (or for frees: in) a function."""
        found = [site for site in self.result.sites if str(site.blame.symbol).split("+")[0] == name]
        assert len(found) == 1, [str(site.blame.symbol) for site in self.result.sites]
        return found[0]


COUNTERS = (
    "hiddendrv!SessionsOpened", "hiddendrv!SessionsClosed", "hiddendrv!SessionsLost",
    "honestdrv!HandlesOpened", "honestdrv!HandlesClosed",
)  # fmt: skip


@contextlib.contextmanager
def hunted(
    tmp_path,
    scenario: str,
    *,
    build=DEFAULT_BUILD,
    ticks=30,
    workload=None,
    frameworks=None,
    **more,
) -> Iterator[Hunted]:
    load = workload or Workload(population=5, background_operations=2, scenario=scenario)
    # Ended by the clock, with a break-in, and without letting go of it again: so the books are
    # those of the stretch that was watched.
    start = HuntOptions(
        tag=PoolTag.parse(scenario_named(scenario).tag),
        max_hits=100_000,
        max_seconds=2.0,
        settle_seconds=0.0,
        hits_per_second=None,
        max_stopped_share=None,
    )
    options = replace(start, **more)
    with PracticeMachine(seed=5, build=build, workload=load) as machine:
        for _ in range(ticks):
            machine.tick()
        host = DirectHost(machine)
        path = ";".join(map(str, symbol_directories(build, scenario)))
        engine = NativeEngine(host, "direct", path, host.clock)
        engine.attach(5)
        counters = [name for name in COUNTERS if name.split("!")[0] in
                    {image.name for image in machine.images}]  # fmt: skip
        before = machine.ground_truth()
        counted = {name: machine.read_u32(name) for name in counters}
        result = hunt(
            engine,
            options,
            journal=Journal(tmp_path),
            block_finder_factory=block_finder,
            clock=host.clock,
            sleep=lambda _: None,
            frameworks=frameworks,
        )
        changes = [
            site
            for site in changes_between(before, machine.ground_truth())
            if site.tag == options.tag and site.allocs
        ]
        names = [f"{site.module}!{site.function}" for site in changes]
        yield Hunted(
            result,
            machine,
            {name: (site.allocs, site.frees) for name, site in zip(names, changes)},
            counted,
            {name: machine.read_u32(name) - counted[name] for name in counters},
        )


@pytest.mark.parametrize("build", BUILDS)
def test_a_leak_behind_five_framework_frames(tmp_path, build) -> None:
    with hunted(tmp_path, "frameworks", build=build, min_age=0.2) as case:
        result = case.result
        hidden, honest = case.site("hiddendrv!OpenSession"), case.site("honestdrv!OpenHandle")
        assert result.accused == hidden
        assert hidden.judgement is Judgement.ACCUSED
        assert str(hidden.frame.symbol).startswith("Wdf01000!FxPoolAllocate+")
        assert [(use.module, use.frames) for use in hidden.through] == [
            ("Wdf01000", 2), ("ndis", 1), ("NETIO", 1), ("fltmgr", 1),
        ]  # fmt: skip
        assert hidden.stack.end is StackEnd.COMPLETE
        # The drivers count for themselves: the ledger knows one call site for both.
        opened, closed, lost = (
            case.counters[f"hiddendrv!Sessions{what}"] for what in ("Opened", "Closed", "Lost")
        )
        assert lost > 50
        assert hidden.allocs == opened
        sessions = [
            case.counted_before[f"hiddendrv!Sessions{what}"]
            for what in ("Opened", "Closed", "Lost")
        ]
        # Open when the watch began, and closed at the next tick.
        older = sessions[0] - sessions[1] - sessions[2]
        assert hidden.outstanding == opened - closed + older
        assert hidden.outstanding >= lost
        size = 0xB0  # of a session: 0xA0 bytes and the header
        assert hidden.outstanding_bytes == size * hidden.outstanding
        # Nothing was sampled, and nothing was there before that was freed meanwhile.
        assert honest.allocs == case.counters["honestdrv!HandlesOpened"]
        assert honest.outstanding_old == 0
        assert honest.judgement is Judgement.CLEARED
        allocs, frees = case.truth["Wdf01000!FxPoolAllocate"]
        assert hidden.allocs + honest.allocs == allocs
        assert result.pairing.paired == frees - result.pairing.frees_of_older
        assert result.pairing.outstanding == hidden.outstanding + honest.outstanding


def test_the_driver_is_named_with_version_and_company(tmp_path) -> None:
    with hunted(tmp_path, "frameworks") as case:
        foremost = case.result.blamed[0]
        version = VERSIONS["hiddendrv"]
        assert foremost.name == "hiddendrv"
        assert foremost.file_name == "hiddendrv.sys"
        assert foremost.file_version == "3.1.4.159"
        assert (foremost.company, foremost.description) == (version.company, version.description)
        assert foremost.product == "kdleak practice target"
        assert foremost.unknown == ""
        text = render_hunt(case.result)
        joined = " ".join(text.split())
        assert "on behalf of hiddendrv!OpenSession+" in joined
        assert "through 5 frames of Wdf01000 (KMDF), ndis (NDIS)" in joined
        assert "hiddendrv.sys, version 3.1.4.159, Practice Hidden Works" in joined
        document = hunt_document(case.result)
        assert document["blamed_modules"][0]["company"] == version.company


def test_versions_cost_few_requests_and_only_at_the_end(tmp_path) -> None:
    with hunted(tmp_path, "frameworks", max_hits=60) as with_them:
        pass
    with hunted(tmp_path, "frameworks", max_hits=60, read_versions=False) as without:
        assert without.result.blamed == ()
    more = with_them.result.completeness.requests - without.result.completeness.requests
    assert 0 < more <= MOST_READS
    assert len(with_them.result.blamed) == 1
    assert more <= 4


def test_resources_that_are_not_in_memory(tmp_path, monkeypatch) -> None:
    """A pageable .rsrc that is not there: said so, and no verdict is lost."""
    read = PracticeMachine.read_virtual

    def without_resources(self, address, size):
        image = next((image for image in self.images if address in image), None)
        gone = image is not None and image.name == "hiddendrv" and address >= image.base + 0x5000
        return b"" if gone else read(self, address, size)

    monkeypatch.setattr(PracticeMachine, "read_virtual", without_resources)
    with hunted(tmp_path, "frameworks", max_hits=200) as case:
        foremost = case.result.blamed[0]
        assert foremost.name == "hiddendrv"
        assert foremost.file_version == ""
        assert "not in memory" in foremost.unknown
        assert case.result.sites


def test_more_can_be_looked_through(tmp_path) -> None:
    frameworks = built_in_frameworks().through(["hiddendrv!OpenSession"])
    with hunted(tmp_path, "frameworks", frameworks=frameworks, max_hits=200) as case:
        assert case.site("hiddendrv!HiddenPreCreate").through[-1].words == "named by the user"


def test_without_the_list_both_drivers_are_one_call_site(tmp_path) -> None:
    """What the list is for: the first frame outside the allocator is innocent of it all."""
    frameworks = type(built_in_frameworks())(())
    with hunted(tmp_path, "frameworks", frameworks=frameworks, max_hits=200) as case:
        allocating = [site for site in case.result.sites if site.allocs]
        assert [str(s.blame.symbol).split("+")[0] for s in allocating] == [
            "Wdf01000!FxPoolAllocate"
        ]


@pytest.mark.parametrize("build", BUILDS)
def test_blocks_freed_by_another_driver_cancel(tmp_path, build) -> None:
    with hunted(tmp_path, "handover", build=build) as case:
        result = case.result
        assert result.accused is None
        maker, taker = case.site("makerdrv!MakeMessage"), case.site("takerdrv!ConsumeMessages")
        allocs, freed = case.truth["makerdrv!MakeMessage"]
        assert maker.allocs == allocs
        assert maker.allocs > 200
        assert maker.judgement is Judgement.CLEARED
        assert maker.outstanding_old == 0
        assert taker.judgement is Judgement.FREES_ONLY
        assert taker.frees == freed
        # Blocks from before the watch are freed in it; all others are matched.
        assert result.pairing.paired == freed - result.pairing.frees_of_older
        assert maker.outstanding == allocs - result.pairing.paired
        assert result.pairing.frees_of_older <= 8


@pytest.mark.parametrize("ticks", [10, 150, 400])
def test_a_warming_cache_is_not_accused(tmp_path, ticks) -> None:
    """Watched from the start of its filling, from near its end, and when it was full."""
    load = Workload(
        population=5, background_operations=2, scenario="cache", scenario_cache_entries=200
    )
    with hunted(tmp_path, "cache", ticks=ticks, workload=load, max_seconds=5.0) as case:
        site = case.site("cachedrv!AddEntry")
        assert case.result.accused is None
        assert site.judgement not in (Judgement.ACCUSED, Judgement.SUSPECTED), site.sentence
        allocs, _ = case.truth["cachedrv!AddEntry"]
        assert site.allocs == allocs
        assert site.outstanding == 200
