"""From bursts to the whole hunt: the life table, and intervals that hold what they promise."""

from __future__ import annotations

import random
from typing import List, Optional, Tuple

import pytest

from kdleak.booking.scaling import BurstBooks, LifeTable, Scaler, Whole, class_of
from kdleak.result import Scaled


def test_ages_fall_into_classes_in_order() -> None:
    classes = [class_of(hits) for hits in range(1, 5000)]
    assert classes == sorted(classes)
    assert classes[:7] == [1, 2, 3, 4, 5, 6, 7]
    assert len(set(classes)) < 90


def naive(lives: List[Tuple[int, bool]]) -> float:
    """Kaplan and Meier's product, by its definition; (age, freed)."""
    share = 1.0
    for age in sorted({age for age, freed in lives if freed}):
        at_risk = sum(other >= age for other, _ in lives)
        share *= 1 - sum(other == age and freed for other, freed in lives) / at_risk
    return share


@pytest.mark.parametrize("seed", range(5))
def test_the_life_table_is_kaplan_meier_where_classes_are_single_ages(seed: int) -> None:
    rng = random.Random(seed)
    lives = [(rng.randrange(1, 8), rng.random() < 0.6) for _ in range(60)]
    lives = [(age, freed) for age, freed in lives if freed or age == 7]  # no age has both
    lives = [(age, freed and age < 7) for age, freed in lives]
    table = LifeTable()
    for age, freed in lives:
        (table.ended if freed else table.cut)(age)
    assert table.curve().stays == pytest.approx(naive(lives))


def test_blocks_cut_off_young_do_not_count_as_staying() -> None:
    """Every block lives exactly 5 hits, or for ever (one in four); half are seen for 2 hits."""
    table = LifeTable()
    for number in range(400):
        if number % 2:
            table.cut(2)
        elif number % 8:
            table.ended(5)
        else:
            table.cut(60)
    curve = table.curve()
    assert curve.stays == pytest.approx(0.25, abs=0.01)
    assert curve.stays_given(1) == pytest.approx(0.25, abs=0.01)
    assert curve.stays_given(6) == 1.0
    assert 0 < curve.variance < 0.01


def test_no_life_ended_and_none_at_all() -> None:
    table = LifeTable()
    assert table.curve().stays == 1.0
    table.cut(9)
    assert table.curve().stays == 1.0
    assert table.curve().variance == 0.0


class Tag:
    """Requests that each allocate at two places; one leaks, one keeps its blocks for a while."""

    def __init__(self, seed: int, stays: float, kept: int) -> None:
        self.rng = random.Random(seed)
        self.stays, self.kept = stays, kept
        self.due: List[Tuple[int, int, int]] = []  # (request at which it is freed, place, block)
        self.request = self.block = 0
        self.allocs = self.frees = 0
        self.outstanding = {1: 0, 2: 0}

    def hits(self) -> List[Tuple[str, int, int]]:
        self.request += 1
        found = []
        for place in (1, 2):
            self.block += 1
            found.append(("+", place, self.block))
            self.outstanding[place] += 1
            if place == 1 and self.rng.random() >= self.stays:
                self.due.append((self.request, place, self.block))
            elif place == 2:
                self.due.append((self.request + self.rng.randrange(self.kept), place, self.block))
        self.allocs += 2
        for item in [item for item in self.due if item[0] <= self.request]:
            self.due.remove(item)
            self.outstanding[item[1]] -= 1
            self.frees += 1
            found.append(("-", item[1], item[2]))
        return found


def sampled(
    seed: int, *, stays: float = 0.4, kept: int = 3, counters: bool = True, bursts: int = 12
) -> Tuple[Tag, BurstBooks, Whole]:
    """Bursts of 20 requests out of 400, the rest unseen."""
    tag, books, seconds = Tag(seed, stays, kept), BurstBooks(), 0.0
    for _ in range(bursts):
        live, number = {}, 0
        for _ in range(20):
            for sign, place, block in tag.hits():
                number += 1
                if sign == "+":
                    books.alloc(place, 64 * place)
                    live[block] = (place, number)
                elif block in live:
                    owner, since = live.pop(block)
                    books.free(owner, (100 + place, 64 * place), number - since)
                else:
                    books.strange_free((100 + place, 64 * place))
        books.end_burst(
            0.02, [(place, number - since, 64 * place) for place, since in live.values()]
        )
        for _ in range(380):
            tag.hits()
        seconds += 0.4
    if counters:
        return tag, books, Whole(seconds, tag.allocs, tag.frees)
    return tag, books, Whole(seconds)


def scaled_of(scaler: Scaler, place: int) -> Scaled:
    found = scaler.of(place)
    assert found is not None
    return found


def inside(scaled: Scaled, blocks: int, size: int) -> Tuple[bool, bool]:
    return (
        scaled.blocks_within.low <= blocks <= scaled.blocks_within.high,
        scaled.bytes_within.low <= blocks * size <= scaled.bytes_within.high,
    )


@pytest.mark.parametrize("counters", [True, False])
@pytest.mark.parametrize(("stays", "kept"), [(0.4, 3), (0.05, 3), (1.0, 1), (0.4, 200), (0.0, 60)])
def test_intervals_hold_the_truth(counters: bool, stays: float, kept: int) -> None:
    """Of short lives, of none, and of lives much longer than a burst."""
    held = []
    for seed in range(12):
        tag, books, whole = sampled(seed, stays=stays, kept=kept, counters=counters)
        scaler = books.scaler(whole)
        assert scaler is not None
        assert scaler.factor == pytest.approx(20, rel=0.01)
        for place in (1, 2):
            scaled = scaled_of(scaler, place)
            assert scaled.blocks_within.low <= scaled.blocks <= scaled.blocks_within.high
            held += inside(scaled, tag.outstanding[place], 64 * place)
        if stays == 0.4 and kept == 3:
            scaled, share = scaled_of(scaler, 1), scaler.share_of(1)
            assert share is not None
            assert 0 < share.low < share.high < 1
            assert scaled.blocks_within.high - scaled.blocks < 0.6 * scaled.blocks
            assert scaler.scaling().total.blocks == pytest.approx(scaled.blocks, rel=0.2)
    assert sum(held) >= 0.9 * len(held)  # two figures of a call site miss together


def test_frees_that_belong_to_nobody_lower_the_lower_ends() -> None:
    def of(strangers: int) -> Scaled:
        books = BurstBooks()
        for _ in range(5):
            for number in range(20):
                books.alloc(1, 64)
                if number < strangers:
                    books.strange_free((9, 8))
            books.end_burst(0.1, [(1, number + 1, 64) for number in range(20)])
        scaler = books.scaler(Whole(5.0, 1000, 100 + 50 * strangers))
        assert scaler is not None
        assert scaler.scaling().unattributed_frees == 5 * strangers
        return scaled_of(scaler, 1)

    assert of(3).blocks == of(0).blocks == pytest.approx(1000)
    assert of(3).blocks_within.low == pytest.approx(of(0).blocks_within.low - 15 * 10)
    assert of(3).blocks_within.high == of(0).blocks_within.high


@pytest.mark.parametrize(
    "whole",
    [
        Whole(0.0),
        Whole(0.09),  # less than was seen
        Whole(0.0, 5, 0),
    ],
)
def test_what_cannot_be_scaled_is_not(whole: Whole) -> None:
    _, books, _ = sampled(1, bursts=5)
    assert books.scaler(Whole(0.05, whole.allocs)) is None
    assert books.scaler(whole) is None


@pytest.mark.parametrize("bursts", [0, 1, 2])
def test_two_bursts_tell_no_error(bursts: int) -> None:
    _, books, whole = sampled(1, bursts=bursts)
    assert books.scaler(whole) is None


def test_counters_that_tell_less_than_was_seen_are_not_believed() -> None:
    _, books, whole = sampled(1)
    scaler = books.scaler(Whole(whole.seconds_running, 10, 10))
    assert scaler is not None
    assert "s that the target ran" in scaler.scaling().method
    counted: Optional[int] = whole.allocs
    assert counted is not None
    good = books.scaler(whole)
    assert good is not None
    assert f"{counted:,} allocations" in good.scaling().method


def test_a_place_of_which_no_block_was_followed_is_not_scaled() -> None:
    _, books, whole = sampled(1)
    scaler = books.scaler(whole)
    assert scaler is not None
    assert scaler.of(77) is None
