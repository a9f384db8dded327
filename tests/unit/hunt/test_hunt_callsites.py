"""Pairing by address and the verdict: who is accused, who is not, and why."""

from __future__ import annotations

import random
from typing import Iterable, List, Optional, Tuple

import pytest
from hunt_fakes import ALLOC_TOP, FREE_TOP, stack

from kdleak.callsites import Ledger
from kdleak.model import Block, BlockTrust, Hit, HitKind, PoolCounters, TagUsage
from kdleak.result import CallSite, Judgement, Pairing, StackUse, TagGrowth
from kdleak.tags import PoolTag
from kdleak.verdict import choose_accused, verdict_sentences


def aggregate(
    hits: Iterable[Hit], pointer_size: int, now: float, share_watched: float = 1.0
) -> Tuple[Tuple[CallSite, ...], Tuple[StackUse, ...], Pairing]:
    """Book a whole list of hits: call sites, stacks and how well frees were paired."""
    ledger = Ledger(pointer_size)
    for hit in hits:
        ledger.add(hit)
    return ledger.sites(now, share_watched), ledger.stacks(), ledger.pairing()


class Script:
    """Hits, one every 0.1 s unless told otherwise."""

    def __init__(self) -> None:
        self.hits: List[Hit] = []
        self.now = 0.0

    def add(self, kind: HitKind, address: int, caller: str, size) -> None:
        top = ALLOC_TOP if kind is HitKind.ALLOC else FREE_TOP
        trust = BlockTrust.VERIFIED if address else BlockTrust.UNKNOWN
        self.now += 0.1
        self.hits.append(
            Hit(
                len(self.hits) + 1,
                kind,
                stack(*top, caller, "nt!IofCallDriver+55"),
                self.now,
                0,
                0,
                Block(address, size, None, trust),
            )
        )

    def alloc(self, address: int, caller: str = "drv!Make+1", size=0x40) -> Script:
        self.add(HitKind.ALLOC, address, caller, size)
        return self

    def free(self, address: int, caller: str = "drv!Drop+1", size=0x40) -> Script:
        self.add(HitKind.FREE, address, caller, size)
        return self

    def sites(self, share: float = 1.0):
        sites, _, _ = aggregate(self.hits, 8, self.now + 0.1, share)
        return {str(site.frame.symbol): site for site in sites}

    def pairing(self):
        return aggregate(self.hits, 8, self.now)[2]


def test_a_block_freed_by_another_function_still_cancels() -> None:
    script = Script()
    for address in range(1, 9):
        script.alloc(address).free(address, "otherdrv!Cleanup+5")
    site = script.sites()["drv!Make+0x1"]
    assert (site.allocs, site.frees, site.returned, site.outstanding) == (8, 0, 8, 0)
    assert site.outstanding_bytes == 0
    assert site.judgement is Judgement.CLEARED
    assert site.sentence == (
        "All 8 blocks allocated here came back (at most 32.4% stay, 95 % confidence)."
    )
    assert script.sites()["otherdrv!Cleanup+0x5"].judgement is Judgement.FREES_ONLY
    assert site.longest_life == pytest.approx(0.1)


def test_the_leak_beside_honest_traffic() -> None:
    script = Script()
    for number in range(1, 60):
        script.alloc(number, "leakdrv!Get+3", size=0x100)
        script.alloc(number + 1000, "gooddrv!Get+3").free(number + 1000, "gooddrv!Put+3")
    for number in range(3):
        script.alloc(number + 5000, "gooddrv!Get+3")
    sites = script.sites()
    leak, good = sites["leakdrv!Get+0x3"], sites["gooddrv!Get+0x3"]
    assert leak.judgement is Judgement.ACCUSED
    assert leak.sentence == (
        "59 of 59 blocks allocated here were not freed while watched, 57 of them older than 1 s; "
        "59 allocated to 0 freed, so 94% to 100% of such blocks stay (95 % confidence). Their "
        "number grew to the end."
    )
    assert (leak.outstanding, leak.outstanding_bytes) == (59, 59 * 0x100)
    assert good.judgement is Judgement.CLEARED
    assert good.sentence == (
        "All but 3 of 62 blocks allocated here came back, and what is left are no older than usual "
        "(at most 13.3% stay, 95 % confidence)."
    )
    assert choose_accused(list(sites.values())) == leak
    assert next(iter(sites)) == "leakdrv!Get+0x3"


@pytest.mark.parametrize("permille", [10, 20, 50, 100, 400])
@pytest.mark.parametrize("blocks", [20, 60, 85, 250])
def test_a_leak_that_left_old_blocks_is_never_cleared(permille: int, blocks: int) -> None:
    """Whatever the share and the sample: long-lived blocks may be too few, never no sign."""
    for seed in range(10):
        rng = random.Random(seed)
        script = Script()
        leaked = 0
        for number in range(1, blocks + 1):
            script.alloc(number)
            if rng.random() * 1000 >= permille:
                script.free(number)
            else:
                leaked += 1
        for number in range(10_000, 10_010):  # time enough for the last one to become old
            script.alloc(number).free(number)
        site = script.sites()["drv!Make+0x1"]
        if leaked:
            assert site.judgement in (Judgement.ACCUSED, Judgement.SUSPECTED), (seed, leaked)
        else:
            assert site.judgement is Judgement.CLEARED


def test_young_blocks_in_use_are_no_reason_to_clear() -> None:
    script = Script()
    for number in range(1, 19):
        script.alloc(number)
    for number in range(1, 14):
        script.free(number)
    site = script.sites()["drv!Make+0x1"]
    assert site.outstanding == 5
    assert site.judgement is Judgement.TOO_FEW


def test_a_large_block_in_use_does_not_stand_above_the_accused() -> None:
    script = Script()
    for number in range(1, 30):
        script.alloc(number, "leakdrv!Get+3", size=0x20)
        script.alloc(number + 1000, "gooddrv!Get+3", size=0x8000)
        if number < 29:
            script.free(number + 1000, "gooddrv!Put+3")
    sites = list(script.sites().values())
    assert str(sites[0].frame.symbol) == "leakdrv!Get+0x3"
    assert sites[0].outstanding_bytes < sites[1].outstanding_bytes


def test_one_leak_in_ten_on_the_same_path_is_found_by_age() -> None:
    script = Script()
    for number in range(1, 301):
        script.alloc(number)
        if number % 10:
            script.free(number)
    site = script.sites()["drv!Make+0x1"]
    assert site.outstanding == 30
    assert site.judgement is Judgement.ACCUSED
    assert "far older" in site.sentence


def test_blocks_in_use_for_a_while_are_not_a_leak() -> None:
    """A queue of twenty: every block is freed twenty allocations later."""
    script = Script()
    for number in range(1, 201):
        script.alloc(number)
        if number > 20:
            script.free(number - 20)
    site = script.sites()["drv!Make+0x1"]
    assert site.outstanding == 20
    assert site.outstanding_old == 0
    assert site.judgement is Judgement.CLEARED


@pytest.mark.parametrize("count", [1, 4])
def test_too_small_a_sample_accuses_nobody(count: int) -> None:
    script = Script()
    for number in range(1, count + 1):
        script.alloc(number)
    site = script.sites()["drv!Make+0x1"]
    assert site.judgement is Judgement.TOO_FEW
    assert "too few" in site.sentence
    assert choose_accused([site]) is None


def test_long_lived_blocks_whose_elders_come_back_are_suspected_only() -> None:
    script = Script()
    for number in range(1, 41):
        script.alloc(number).free(number + 9000)
    site = script.sites()["drv!Make+0x1"]
    assert script.pairing().frees_of_older == 40
    assert site.judgement is Judgement.SUSPECTED
    assert "from before the watch" in site.sentence


def test_an_address_handed_out_again_was_freed_unseen() -> None:
    script = Script()
    for _ in range(10):
        script.alloc(0x1000)
    site = script.sites()["drv!Make+0x1"]
    assert (site.replaced, site.outstanding) == (9, 1)
    assert script.pairing().replaced == 9
    assert site.judgement is Judgement.CLEARED


def test_an_address_reused_after_its_free_counts_for_the_new_site() -> None:
    script = Script().alloc(0x1000, "a!A+1").free(0x1000).alloc(0x1000, "b!B+1", size=0x90)
    sites = script.sites()
    assert sites["a!A+0x1"].outstanding == 0
    assert (sites["b!B+0x1"].outstanding, sites["b!B+0x1"].outstanding_bytes) == (1, 0x90)


def test_unknown_sizes_are_counted_apart() -> None:
    script = Script()
    for number in range(1, 9):
        script.alloc(number, size=None if number % 2 else 0x40)
    site = script.sites()["drv!Make+0x1"]
    assert (site.unsized, site.outstanding_unsized) == (4, 4)
    assert (site.outstanding, site.outstanding_bytes) == (8, 4 * 0x40)


def test_a_free_of_unknown_size_takes_the_size_of_its_allocation() -> None:
    sites = Script().alloc(1, size=0x70).free(1, size=None).sites()
    assert sites["drv!Make+0x1"].outstanding_bytes == 0
    assert sites["drv!Drop+0x1"].bytes_freed == 0x70


def test_unknown_addresses_give_a_lower_bound_and_no_accusation() -> None:
    script = Script()
    for number in range(40):
        script.alloc(0)
        if number % 8 == 0:
            script.free(0)
    site = script.sites()["drv!Make+0x1"]
    assert (site.unaddressed, site.outstanding) == (40, 0)
    assert site.judgement is Judgement.SUSPECTED
    assert "at least 35 stayed" in site.sentence
    pairing = script.pairing()
    assert (pairing.allocs_unaddressed, pairing.frees_unaddressed) == (40, 5)


def test_unknown_addresses_with_balanced_frees_say_nothing() -> None:
    script = Script()
    for _ in range(40):
        script.alloc(0).free(0)
    assert script.sites()["drv!Make+0x1"].judgement is Judgement.TOO_FEW


def test_a_pause_takes_young_blocks_out_of_sight_but_not_a_leak() -> None:
    ledger = Ledger(8)
    script = Script()
    number = 0
    for _ in range(10):
        for _ in range(10):
            number += 1
            script.alloc(number, "leakdrv!Get+3")
            script.alloc(number + 5000, "gooddrv!Get+3").free(number + 5000, "gooddrv!Put+3")
        script.alloc(number + 9000, "gooddrv!Get+3")  # in use when the burst ends
        while script.hits:
            ledger.add(script.hits.pop(0))
        ledger.pause(script.now)
        script.now += 5.0
    sites = {str(site.frame.symbol): site for site in ledger.sites(script.now, 0.3)}
    leak, good = sites["leakdrv!Get+0x3"], sites["gooddrv!Get+0x3"]
    assert (good.unwatched, good.outstanding) == (10, 0)
    assert good.judgement is Judgement.CLEARED
    assert leak.outstanding == 100
    assert leak.judgement is Judgement.ACCUSED
    assert "Watched 30% of the time" in leak.sentence


def test_a_block_out_of_sight_that_is_freed_in_sight_came_back() -> None:
    ledger = Ledger(8)
    script = Script().alloc(1).free(1).alloc(2)
    for hit in script.hits:
        ledger.add(hit)
    ledger.pause(script.now)
    (free,) = Script().free(2).hits
    ledger.add(free)
    (made, _) = ledger.sites(script.now)
    assert (made.unwatched, made.returned) == (0, 2)
    assert ledger.pairing().frees_of_older == 0


def test_a_random_busy_tag_accuses_nobody() -> None:
    """No leak at all: whatever order, nobody is accused."""
    for seed in range(30):
        rng = random.Random(seed)
        script, live = Script(), []
        for number in range(1, 400):
            if live and rng.random() < len(live) / 12:
                script.free(live.pop(rng.randrange(len(live))))
            else:
                live.append(number)
                script.alloc(number, rng.choice(["a!A+1", "b!B+1", "c!C+1"]))
        accused = [s for s in script.sites().values() if s.judgement is Judgement.ACCUSED]
        assert accused == [], seed


def test_sites_are_ordered_and_stacks_kept_apart() -> None:
    script = Script()
    for number in range(1, 6):
        script.alloc(number, "small!S+1", size=0x10)
    for number in range(10, 12):
        script.alloc(number, "big!B+1", size=0x1000)
    script.free(999, "freer!F+1")
    assert list(script.sites()) == ["big!B+0x1", "small!S+0x1", "freer!F+0x1"]
    _, stacks, _ = aggregate(script.hits, 8, script.now)
    assert [use.outstanding for use in stacks] == [2, 5, 0]


def growth(change: int) -> TagGrowth:
    tag = PoolTag.parse("Leak")
    return TagGrowth(
        TagUsage(tag, PoolCounters(10, 5, 5000)),
        TagUsage(tag, PoolCounters(14, 5, 5000 + change)),
        10.0,
    )


def words(hits: Iterable[Hit], change: int = 100, now: Optional[float] = None) -> str:
    found = list(hits)
    if now is None:
        now = found[-1].at + 1.1 if found else 99.0
    sites, _, _ = aggregate(found, 8, now)
    return "\n".join(verdict_sentences("Leak", sites, growth(change), len(found)))


def test_the_verdict_in_words() -> None:
    leak, clean, few = Script(), Script(), Script().alloc(1)
    for number in range(1, 9):
        leak.alloc(number)
        clean.alloc(number).free(number)
    assert words(leak.hits).startswith(
        "drv!Make+0x1 allocates blocks of tag 'Leak' that stay: 8 of 8"
    )
    assert "moved in 10.0 s: nonpaged +100 bytes in +4 blocks" in words(leak.hits)
    assert "Every block of tag 'Leak' allocated while watched came back." in words(clean.hits)
    assert "Too little was seen" in words(few.hits)
    assert "Only frees of tag 'Leak' were seen" in words(Script().free(1).hits)
    queue = Script()
    for number in range(1, 60):
        queue.alloc(number)
        if number > 3:
            queue.free(number - 3)
    in_use = words(queue.hits, now=queue.now)
    assert "3 of 59 blocks were still in use at the end" in in_use
    assert "A leak of fewer than about 1 in 18 blocks would not have shown." in in_use
    assert "Its counters say otherwise" in in_use
    assert "3 of 59 blocks allocated here stayed far longer" in words(queue.hits, now=99.0)
    assert "No allocation or free of tag 'Leak' was seen." in words([], 0)
    assert "nonpaged +0 bytes in +4 blocks" in words([], 0)
    assert "nonpaged -7 bytes" in words([], -7)


def test_the_verdict_names_whom_the_framework_allocates_for() -> None:
    hits = []
    for number in range(1, 9):
        frames = stack(*ALLOC_TOP, "Wdf01000!FxPool+1", "acpbus!Create+2")
        hits.append(Hit(number, HitKind.ALLOC, frames, 0.1 * number, 0, 0, Block(number, 8)))
    assert "It does so for acpbus!Create+0x2" in words(hits)
