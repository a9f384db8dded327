"""Many ways a tag can behave, and what is said of its call sites."""

from __future__ import annotations

from typing import List, Optional, Tuple

import pytest
from hunt_fakes import ALLOC_TOP, FREE_TOP, stack

from kdleak.booking.hit_log import HitLog
from kdleak.booking.scaling import Whole
from kdleak.booking.tallies import LEAST_AGE, OLD_FACTOR
from kdleak.callsites import Ledger
from kdleak.model import Block, Hit, HitKind
from kdleak.result import CallSite, Judgement, SiteGrowth
from kdleak.verdict import choose_accused, verdict_sentences

MADE = stack(*ALLOC_TOP, "drv!Make+1", "nt!IofCallDriver+55")
GONE = stack(*FREE_TOP, "drv!Drop+1", "nt!IofCallDriver+55")


def hit(kind: HitKind, at: float, address: int, where=None, size: Optional[int] = 0x40) -> Hit:
    chosen = where or (MADE if kind is HitKind.ALLOC else GONE)
    return Hit(1, kind, chosen, at, 0, 0, Block(address, size))


def booked(
    events: List[Tuple[float, str, int]], end: float, min_age: Optional[float] = None
) -> CallSite:
    """Events are (time, "+" or "-", address)."""
    ledger = Ledger(8, min_age)
    for at, sign, address in sorted(events):
        kind = HitKind.ALLOC if sign == "+" else HitKind.FREE
        ledger.add(hit(kind, at, address))
    return next(site for site in ledger.sites(end) if site.allocs)


def leak() -> List[Tuple[float, str, int]]:
    return [(0.1 * n, "+", n) for n in range(1, 101)]


def cache(renewed: bool) -> List[Tuple[float, str, int]]:
    """A hundred blocks in two seconds, then nothing, or every one replaced now and then."""
    events = [(0.02 * n, "+", n) for n in range(1, 101)]
    if renewed:
        for n in range(150):
            events += [(2.05 + 0.05 * n, "-", n + 1), (2.06 + 0.05 * n, "+", n + 101)]
    return events


def test_ages_are_counted_from_the_allocation() -> None:
    site = booked([(1.0, "+", 1), (2.0, "+", 2), (4.0, "+", 3), (4.5, "+", 4), (5.0, "-", 4)], 10.0)
    assert site.oldest_age == pytest.approx(9.0)
    assert site.median_age == pytest.approx(8.0)
    assert site.min_age == pytest.approx(OLD_FACTOR * 0.5)
    even = booked([(1.0, "+", 1), (2.0, "+", 2)], 10.0)
    assert even.median_age == pytest.approx(8.5)
    assert even.min_age == LEAST_AGE
    gone = booked([(1.0, "+", 1), (2.0, "-", 1)], 10.0)
    assert gone.oldest_age is gone.median_age is None


def test_a_leak_is_accused_with_its_figures() -> None:
    site = booked(leak(), 10.5)
    assert site.judgement is Judgement.ACCUSED
    assert site.growth is SiteGrowth.GREW
    assert (site.outstanding_old, site.outstanding_old_bytes) == (94, 94 * 0x40)
    assert site.share_staying is not None
    assert site.share_staying.high == 1.0
    assert site.share_staying.low == pytest.approx(0.963, abs=1e-3)
    for words in ("100 of 100", "94 of them older than 1 s", "100 allocated to 0 freed", "96% to"):
        assert words in site.sentence
    assert site.series[0].outstanding == 0
    assert site.series[-1].outstanding == site.series[-1].allocs == 100


@pytest.mark.parametrize("renewed", [False, True])
@pytest.mark.parametrize("min_age", [None, 1.0, 3.0])
def test_a_cache_that_warmed_up_is_not_accused(renewed: bool, min_age: Optional[float]) -> None:
    site = booked(cache(renewed), 10.0, min_age)
    assert site.outstanding == 100
    assert site.growth is SiteGrowth.LEVELLED_OFF
    assert site.judgement is not Judgement.ACCUSED
    assert choose_accused([site]) is None
    if not renewed:
        assert site.judgement is Judgement.LEVELLED_OFF
        assert "levelled off after" in site.sentence
        assert "none more in the" in site.sentence
        said = " ".join(verdict_sentences("Leak", [site], None, 100))
        assert "drv!Make+0x1 is not accused" in said
        assert "comes back" not in said


def test_a_cache_beside_which_a_leak_runs_does_not_clear_the_leak() -> None:
    ledger = Ledger(8)
    other = stack(*ALLOC_TOP, "leakdrv!Get+3")
    events = [(at, 0, address) for at, _, address in cache(renewed=False)]
    events += [(at, 1, address + 5000) for at, _, address in leak()]
    for at, leaks, address in sorted(events):
        ledger.add(hit(HitKind.ALLOC, at, address, other if leaks else MADE))
    first, second = ledger.sites(10.5)
    assert str(first.frame.symbol) == "leakdrv!Get+0x3"
    assert first.judgement is Judgement.ACCUSED
    assert second.judgement is Judgement.LEVELLED_OFF


def test_a_slow_drain_is_not_accused() -> None:
    """Everything comes back, only seconds later, in the order it went."""
    events = [(0.1 * n, "+", n) for n in range(1, 101)]
    events += [(4.0 + 0.1 * n, "-", n) for n in range(1, 61)]
    for min_age in (None, 1.0):
        site = booked(events, 10.05, min_age)
        assert site.outstanding == 40
        assert site.judgement is not Judgement.ACCUSED, site.sentence


def test_a_sawtooth_is_not_accused() -> None:
    """Forty blocks are taken one by one and given back at once, again and again."""
    events = []
    for tooth in range(5):
        for n in range(40):
            address = tooth * 40 + n + 1
            events += [(tooth * 2 + 0.05 * n, "+", address)]
            if tooth < 4:
                events += [(tooth * 2 + 1.99, "-", address)]
    for min_age in (None, 0.5):
        site = booked(events, 9.99, min_age)
        assert site.growth is SiteGrowth.UP_AND_DOWN
        assert site.judgement is not Judgement.ACCUSED, site.sentence


def test_long_lived_objects_are_cleared_by_their_own_lives() -> None:
    """Each lives two seconds; twenty are in use at any time."""
    events = [(0.1 * n, "+", n) for n in range(1, 101)]
    events += [(0.1 * n + 2.0, "-", n) for n in range(1, 81)]
    site = booked(events, 10.05)
    assert (site.outstanding, site.outstanding_old) == (20, 0)
    assert site.min_age == pytest.approx(8.0)
    assert site.judgement is not Judgement.ACCUSED


def test_the_minimum_age_of_the_user_is_heeded() -> None:
    """One in ten stays; the others live a tenth of a second."""
    events = []
    for n in range(1, 201):
        events.append((0.05 * n, "+", n))
        if n % 10:
            events.append((0.05 * n + 0.1, "-", n))
    for min_age, old in ((None, 19), (0.0, 20), (5.0, 10), (9.0, 2), (60.0, 0)):
        site = booked(events, 10.05, min_age)
        assert site.outstanding_old == old
        assert site.min_age == (pytest.approx(0.4) if min_age is None else min_age)
        if old >= 10:
            assert site.judgement is Judgement.ACCUSED
    assert "older than 5 s" in booked(events, 10.05, 5.0).sentence
    assert booked(events, 10.05, 9.0).judgement is Judgement.SUSPECTED
    assert booked(events, 10.05, 60.0).judgement is Judgement.CLEARED


def test_the_accused_are_ranked_by_their_old_bytes() -> None:
    ledger = Ledger(8)
    few_large = stack(*ALLOC_TOP, "large!Get+1")
    for n in range(1, 101):
        ledger.add(hit(HitKind.ALLOC, 0.1 * n, n, MADE, 0x100))
        if n > 70:  # most of these are young
            for more in range(3):
                ledger.add(hit(HitKind.ALLOC, 0.1 * n, n * 1000 + more, few_large, 0x1000))
    sites = ledger.sites(10.05)
    assert [site.judgement for site in sites] == [Judgement.ACCUSED] * 2
    assert str(sites[0].frame.symbol) == "large!Get+0x1"
    strict = Ledger(8, 5.0)
    for site in sites:
        assert site.outstanding_old_bytes == site.outstanding_old * (
            0x1000 if "large" in str(site.frame.symbol) else 0x100
        )
    for n in range(1, 101):
        strict.add(hit(HitKind.ALLOC, 0.1 * n, n, MADE, 0x100))
        if n > 70:
            for more in range(3):
                strict.add(hit(HitKind.ALLOC, 0.1 * n, n * 1000 + more, few_large, 0x1000))
    sites = strict.sites(10.05)
    assert str(sites[0].frame.symbol) == "drv!Make+0x1"
    assert sites[0].outstanding_bytes < sites[1].outstanding_bytes
    assert sites[1].outstanding_old == 0
    assert choose_accused(sites) == sites[0]


def test_watched_for_a_moment_only_is_suspected_at_most() -> None:
    events = [(0.0001 * n, "+", n) for n in range(1, 30)]
    site = booked(events, 0.003, 0.0005)
    assert site.growth is SiteGrowth.TOO_FEW
    assert site.judgement is Judgement.SUSPECTED
    assert "too few moments" in site.sentence


def test_frees_after_a_pause_are_counted_apart() -> None:
    ledger = Ledger(8)
    ledger.add(hit(HitKind.FREE, 0.1, 0x9000))
    ledger.pause(1.0, 0.9)
    ledger.resume(5.0)
    ledger.add(hit(HitKind.FREE, 5.1, 0xA000))
    ledger.add(hit(HitKind.FREE, 5.2, 0xB000))
    ledger.finish(6.0, 0.9)
    pairing = ledger.pairing()
    assert (pairing.frees_of_older, pairing.frees_after_pause) == (3, 2)
    assert ledger.watched == ((0.0, 1.0), (5.0, 6.0))


def test_memory_of_what_went_out_of_sight_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr("kdleak.callsites._MOST_OUT_OF_SIGHT", 10)
    ledger = Ledger(8)
    at = 0.0
    for n in range(50):
        for address, kind in (
            (1, HitKind.ALLOC), (1, HitKind.FREE), (100 + n, HitKind.ALLOC),
        ):  # fmt: skip
            at += 0.1
            ledger.add(hit(kind, at, address))
        ledger.pause(at, 0.3)
        ledger.resume(at)
    assert ledger.pairing().unwatched == 50
    assert len(ledger._out_of_sight) == 10


def test_hits_one_by_one_are_bounded() -> None:
    log = HitLog(3)
    for n in range(10):
        log.append(Hit(n, HitKind.ALLOC, MADE, 0.0, 0, 0, Block(n, None if n % 2 else 8)))
        assert log.left_out == max(0, n + 1 - 6)
    assert (len(log), log.count, log.unaddressed, log.unsized) == (10, 10, 1, 5)
    assert [kept.number for kept in log] == [0, 1, 2, 7, 8, 9]


@pytest.mark.parametrize("unknown", [0, 3, 1])
def test_blocks_of_unknown_address_are_scaled_as_the_others(unknown: int) -> None:
    """Of 4, 1 or none of them; the kernel counted 4,000 allocations, all of which stay."""
    ledger, address, at = Ledger(8), 0, 0.0
    for _ in range(6):
        for number in range(40):
            address, at = address + 1, at + 0.01
            known = unknown == 0 or number % (unknown + 1) == 0
            ledger.add(hit(HitKind.ALLOC, at, address if known else 0))
        ledger.pause(at, 0.4)
        at += 5.0
        ledger.resume(at)
    ledger.finish(at, 0.0)
    (site,) = ledger.sites(at, 0.1, Whole(30.0, 4000, 0))
    assert site.scaled is not None
    assert site.scaled.blocks == pytest.approx(4000)
    assert site.scaled.blocks_within.low <= 4000 <= site.scaled.blocks_within.high


def test_a_hunt_that_knows_no_address_scales_nothing() -> None:
    ledger = Ledger(8)
    for number in range(100):
        ledger.add(hit(HitKind.ALLOC, 0.1 * number, 0))
        if number % 10 == 9:
            ledger.pause(0.1 * number, 0.1)
            ledger.resume(0.1 * number)
    (site,) = ledger.sites(10.0, 0.5, Whole(30.0, 4000, 0))
    assert site.scaled is None
    assert ledger.scaling(Whole(30.0, 4000, 0)) is None


@pytest.mark.parametrize(("blocks", "min_age"), [(10, 4.0), (40, 0.04)])
def test_one_stall_does_not_stretch_what_is_usual(blocks: int, min_age: float) -> None:
    events = []
    for n in range(1, blocks + 1):
        life = 1.0 if n == blocks // 2 else 0.01
        events += [(0.1 * n, "+", n), (0.1 * n + life, "-", n)]
    site = booked(events, 10.0)
    assert site.longest_life == pytest.approx(1.0)
    assert site.min_age == pytest.approx(min_age)
