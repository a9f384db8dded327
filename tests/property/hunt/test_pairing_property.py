"""Booking any trace of allocations and frees, held against a naive model of it."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Dict, List, NamedTuple, Optional, Tuple

from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "hunt"))

from hunt_fakes import ALLOC_TOP, FREE_TOP, stack

from kdleak.callsites import Ledger
from kdleak.model import Block, Hit, HitKind
from kdleak.result import CallSite

PLACES = ("a!A", "b!B", "c!C")


class Step(NamedTuple):
    """One hit: where, and of which block; address 0 where it is not known."""

    alloc: bool
    place: int
    address: int
    size: Optional[int]
    wait: float


STEPS = st.lists(
    st.builds(
        Step,
        st.booleans(),
        st.integers(0, len(PLACES) - 1),
        st.integers(0, 12),
        st.one_of(st.none(), st.integers(1, 0x2000)),
        st.floats(0.0, 3.0),
    ),
    max_size=80,
)


def replay(steps: List[Step], min_age: Optional[float] = None) -> Tuple[Ledger, float]:
    ledger, now = Ledger(8, min_age), 0.0
    for number, step in enumerate(steps):
        now += step.wait
        top = ALLOC_TOP if step.alloc else FREE_TOP
        kind = HitKind.ALLOC if step.alloc else HitKind.FREE
        block = Block(step.address, step.size)
        ledger.add(Hit(number, kind, stack(*top, PLACES[step.place] + "+1"), now, 0, 0, block))
    return ledger, now


class Model:
    """What is true of a trace that was watched from end to end."""

    def __init__(self, steps: List[Step]) -> None:
        self.live: Dict[int, Tuple[int, Optional[int], float]] = {}
        self.lives: Dict[int, List[float]] = {}
        self.count: Counter[Tuple[str, int]] = Counter()
        now = 0.0
        for step in steps:
            now += step.wait
            kind = "alloc" if step.alloc else "free"
            self.count[kind, step.place] += 1
            if not step.address:
                self.count[kind + " nowhere", step.place] += 1
            elif step.alloc:
                if step.address in self.live:
                    self.count["replaced", self.live[step.address][0]] += 1
                self.live[step.address] = (step.place, step.size, now)
            elif step.address in self.live:
                owner, _, since = self.live.pop(step.address)
                self.count["returned", owner] += 1
                self.lives.setdefault(owner, []).append(now - since)
            else:
                self.count["older", step.place] += 1

    def of(self, what: str) -> int:
        return sum(number for (kind, _), number in self.count.items() if kind == what)


def by_place(sites: Tuple[CallSite, ...]) -> Dict[int, List[CallSite]]:
    found: Dict[int, List[CallSite]] = {}
    for site in sites:
        name = str(site.frame.symbol).partition("+")[0]
        found.setdefault(PLACES.index(name), []).append(site)
    return found


@given(STEPS, st.one_of(st.none(), st.floats(0.0, 10.0)))
def test_pairing_is_exact_when_all_is_watched(steps: List[Step], min_age: Optional[float]) -> None:
    ledger, now = replay(steps, min_age)
    model = Model(steps)
    end = now + 0.5
    sites = by_place(ledger.sites(end))
    assert set(sites) == {step.place for step in steps}
    for place, (site,) in sites.items():
        mine = [(size, end - at) for owner, size, at in model.live.values() if owner == place]
        assert site.allocs == model.count["alloc", place]
        assert site.frees == model.count["free", place]
        assert site.returned == model.count["returned", place]
        assert site.replaced == model.count["replaced", place]
        assert site.unaddressed == model.count["alloc nowhere", place]
        assert site.unwatched == 0
        assert site.outstanding == len(mine)
        assert site.outstanding_bytes == sum(size or 0 for size, _ in mine)
        assert site.outstanding_unsized == sum(size is None for size, _ in mine)
        ages = [age for _, age in mine]
        lives = model.lives.get(place, [])
        if not ages:
            assert site.oldest_age is site.median_age is None
        else:
            assert abs(site.oldest_age - max(ages)) < 1e-9
            assert abs(site.median_age - median(ages)) < 1e-9
        usual = sorted(lives)[-2 if len(lives) >= 20 else -1] if lives else 0.25
        least = min_age if min_age is not None else 4 * usual
        assert abs(site.min_age - least) < 1e-9
        close = sum(abs(age - site.min_age) < 1e-9 for age in ages)
        old = sum(age > site.min_age for age in ages)
        assert abs(site.outstanding_old - old) <= close
        if site.allocs:
            assert site.series[-1].outstanding == site.outstanding
            assert site.series[-1].allocs == site.allocs
    pairing = ledger.pairing()
    assert pairing.paired == model.of("returned")
    assert pairing.frees_of_older == model.of("older")
    assert pairing.frees_unaddressed == model.of("free nowhere")
    assert pairing.allocs_unaddressed == model.of("alloc nowhere")
    assert pairing.outstanding == len(model.live)
    series = ledger.series(end)
    assert series[-1].outstanding == len(model.live)


@given(STEPS, st.lists(st.tuples(st.integers(0, 79), st.floats(0.0, 5.0)), max_size=6))
def test_sums_are_conserved_with_pauses(steps: List[Step], pauses: List[Tuple[int, float]]) -> None:
    """Every allocation is somewhere, and every free; whatever was not watched in between."""
    ledger, now, rests = Ledger(8), 0.0, dict(pauses)
    for number, step in enumerate(steps):
        now += step.wait
        top = ALLOC_TOP if step.alloc else FREE_TOP
        kind = HitKind.ALLOC if step.alloc else HitKind.FREE
        block = Block(step.address, step.size)
        ledger.add(Hit(number, kind, stack(*top, PLACES[step.place] + "+1"), now, 0, 0, block))
        if number in rests:
            ledger.pause(now, 0.1)
            now += rests[number]
            ledger.resume(now)
    ledger.finish(now, 0.1)
    pairing = ledger.pairing()
    sites = ledger.sites(now)
    for site in sites:
        assert site.allocs == (
            site.unaddressed + site.unwatched + site.returned + site.replaced + site.outstanding
        )
        assert min(site.outstanding, site.unwatched, site.outstanding_bytes) >= 0
        assert 0 <= site.outstanding_old <= site.outstanding
        assert [point.at for point in site.series] == sorted(point.at for point in site.series)
    frees = sum(not step.alloc for step in steps)
    assert (
        frees
        == pairing.paired
        + pairing.frees_of_older
        + pairing.frees_unaddressed
        + sum(site.returned for site in sites)
        - pairing.paired
    )
    assert 0 <= pairing.frees_after_pause <= pairing.frees_of_older
    uses = ledger.stacks()
    assert sum(use.allocs for use in uses) == sum(step.alloc for step in steps)
    assert sum(use.frees for use in uses) == frees
    assert sum(use.outstanding for use in uses) == pairing.outstanding
    assert sum(use.outstanding_bytes for use in uses) == pairing.outstanding_bytes
