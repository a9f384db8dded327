"""Whole hunts on the practice machine, held against the books its kernel keeps itself."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from direct_host import DirectHost
from practice_wire import symbol_path

from kdleak.engine.blocks import block_finder
from kdleak.engine.native import NativeEngine
from kdleak.hunt import hunt
from kdleak.hunt_options import HuntOptions
from kdleak.journal import Journal
from kdleak.model import Registers
from kdleak.practice.ledger import CallSite, changes_between
from kdleak.practice.machine import PracticeMachine
from kdleak.practice.workload import Workload
from kdleak.result import HuntResult, Interval, Judgement, SiteGrowth, StopReason
from kdleak.tags import PoolTag

pytestmark = pytest.mark.e2e

HOT = Workload(leak_requests=20, busy_operations=5, population=0)
"""About a hundred hits of ``Leak`` in every clock tick."""

INNOCENT = ("CloneHeader", "BuildContext")


class Hunted(NamedTuple):
    """A hunt, and what its target's kernel booked meanwhile, by function."""

    result: HuntResult
    books: dict[str, CallSite]

    def site(self, function: str):
        return next(
            site
            for site in self.result.sites
            if site.frame.address == self.books[function].return_address
        )


def hunted(folder: Path, tag: str, seed: int, workload: Workload | None, **options) -> Hunted:
    with PracticeMachine(seed=seed, workload=workload) as machine:
        for _ in range(30):
            machine.tick()
        host = DirectHost(machine)
        engine = NativeEngine(host, "direct", symbol_path(), host.clock)
        engine.attach(5)
        before = machine.ground_truth()
        result = hunt(
            engine,
            HuntOptions(tag=PoolTag.parse(tag), **options),
            journal=Journal(folder),
            block_finder_factory=block_finder,
            clock=host.clock,
            sleep=lambda _: None,
        )
        changes = changes_between(before, machine.ground_truth())
    books = {site.function: site for site in changes if site.tag.text == tag and site.allocs}
    return Hunted(result, books)


@pytest.mark.parametrize("min_age", [None, 0.5])
@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_sampled_is_the_books_to_the_byte(tmp_path, seed, min_age):
    run = hunted(
        tmp_path,
        "Leak",
        seed,
        Workload(leak_requests=2, busy_operations=5, population=0),
        max_hits=100_000,
        max_seconds=2.0,  # ends between two ticks, so no block is half booked
        settle_seconds=0.0,
        hits_per_second=None,
        max_stopped_share=None,
        min_age=min_age,
    )
    result = run.result
    assert result.stop_reason is StopReason.SECONDS
    assert set(run.books) == {"TrackRequest", *INNOCENT}
    for function, booked in run.books.items():
        site = run.site(function)
        assert (site.allocs, site.bytes_allocated) == (booked.allocs, booked.bytes_allocated)
        assert site.scaled is None
        assert site.min_age == min_age or min_age is None
    leak = run.site("TrackRequest")
    booked = run.books["TrackRequest"]
    assert (leak.outstanding, leak.outstanding_bytes) == (booked.outstanding, booked.bytes)
    assert leak.outstanding > 100
    # Contexts are freed ticks later, so some freed now are from before the hunt.
    assert result.pairing.outstanding - result.pairing.frees_of_older == sum(
        site.outstanding for site in run.books.values()
    )
    assert leak.judgement is Judgement.ACCUSED
    assert leak == result.accused
    assert leak.growth is SiteGrowth.GREW
    assert leak.outstanding_old >= 0.5 * leak.outstanding
    assert leak.oldest_age == pytest.approx(2.0, abs=0.1)
    assert leak.median_age == pytest.approx(1.0, abs=0.25)
    assert leak.share_staying.low < booked.outstanding / booked.allocs < leak.share_staying.high
    for function in INNOCENT:
        site = run.site(function)
        assert (site.outstanding_old, site.outstanding_old_bytes) == (0, 0)
        assert site.judgement is Judgement.CLEARED
    assert result.scaling is None
    assert result.series[-1].outstanding == result.pairing.outstanding
    assert result.watched == ((0.0, pytest.approx(2.0, abs=0.05)),)


@pytest.fixture(scope="module")
def sampled(tmp_path_factory) -> list[Hunted]:
    """One hit in about fifty is seen."""
    return [
        hunted(
            tmp_path_factory.mktemp(f"seed{seed}"),
            "Leak",
            seed,
            HOT,
            max_hits=2000,
            max_seconds=600.0,
            hits_per_second=200.0,
        )
        for seed in range(1, 7)
    ]


def within(value: float, interval: Interval) -> bool:
    return interval.low <= value <= interval.high


def test_a_sampled_tag_scales_to_the_full_count(sampled):
    """95 % intervals: one of six hunts may miss the leak (its blocks and its bytes together)."""
    hits, leak_hits = [], []
    for run in sampled:
        assert run.result.completeness.share_watched < 0.05
        assert run.result.scaling.factor > 20
        for function, booked in run.books.items():
            scaled = run.site(function).scaled
            found = [
                within(booked.outstanding, scaled.blocks_within),
                within(booked.bytes, scaled.bytes_within),
            ]
            hits += found
            if function == "TrackRequest":
                leak_hits += found
    assert len(hits) == 36
    assert sum(hits) >= 33
    assert sum(leak_hits) >= 10


def test_the_error_bars_are_of_use(sampled):
    for run in sampled:
        leak, clone = run.site("TrackRequest").scaled, run.site("CloneHeader").scaled
        for value, interval in (
            (leak.blocks, leak.blocks_within),
            (leak.bytes, leak.bytes_within),
        ):
            assert 0.05 * value < value - interval.low == pytest.approx(interval.high - value)
            assert value - interval.low < 0.3 * value
        assert clone.blocks_within.high < leak.blocks_within.low / 10
        share = run.site("TrackRequest").share_staying
        assert 0.25 < share.low < share.high < 0.55
        total = run.result.scaling.total
        net = sum(site.outstanding for site in run.books.values())
        assert within(net, total.blocks_within)


def test_the_share_that_stays_is_that_of_the_driver(sampled):
    held = [within(0.4, run.site("TrackRequest").share_staying) for run in sampled]
    assert sum(held) >= 5  # LeakPermille is 400


def test_the_leak_of_a_sampled_tag_is_accused_and_nobody_else(sampled):
    for run in sampled:
        assert run.result.accused == run.site("TrackRequest")
        for function in INNOCENT:
            site = run.site(function)
            assert site.judgement is Judgement.CLEARED
            assert site.outstanding_old == 0


@pytest.mark.parametrize("seed", [1, 2])
def test_blocks_that_outlive_a_burst_are_not_scaled_to_a_leak(tmp_path, seed):
    """The cache of busydrv: its blocks live for ticks, a burst lasts for two; nothing leaks."""
    run = hunted(
        tmp_path,
        "Busy",
        seed,
        Workload(population=0),
        max_hits=2000,
        max_seconds=600.0,
        hits_per_second=200.0,
    )
    (site,) = (site for site in run.result.sites if site.allocs)
    (booked,) = run.books.values()
    assert within(booked.outstanding, site.scaled.blocks_within)
    assert within(booked.bytes, site.scaled.bytes_within)
    width = site.scaled.blocks_within.high - site.scaled.blocks_within.low
    assert width < 0.3 * booked.allocs
    assert run.result.accused is None


def test_registers_that_lead_to_no_block_leave_its_value_unknown(tmp_path, monkeypatch):
    """Neither header nor big page: said, nothing guessed, nobody accused."""
    registers = NativeEngine.registers

    def without_pointers(engine):
        kept = registers(engine).values
        return Registers({name: kept[name] for name in ("rip", "rsp")})

    monkeypatch.setattr(NativeEngine, "registers", without_pointers)
    run = hunted(tmp_path, "Leak", 1, None, max_hits=120, hits_per_second=None)
    result = run.result
    assert result.completeness.unaddressed == result.completeness.hits == 120
    assert result.accused is None
    assert "addresses of the blocks of tag 'Leak' are not known" in result.verdict[0]
    for function in run.books:
        site = run.site(function)
        assert site.unaddressed == site.allocs > 0
        assert (site.outstanding, site.outstanding_bytes) == (0, 0)
        assert site.judgement is Judgement.TOO_FEW
