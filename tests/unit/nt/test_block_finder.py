"""Finding the block of a hit: verified at first, learned later, never guessed."""

from __future__ import annotations

import struct

import pytest
from block_simulation import PC, POOL, STACK, TAG, Simulation
from nt_fakes import FakeMemory

from kdleak.model import Block, BlockTrust, HitKind, Pool, Registers
from kdleak.nt.block import BlockFinder
from kdleak.tags import PoolTag

SIZES = (0x20, 0x123, 0x80, 0x300)


def learn(simulation, hits=6, sizes=SIZES, **more):
    for number in range(hits):
        block, address, size = simulation.alloc_hit(sizes[number % len(sizes)], **more)
        assert (block.address, block.size) == (address, size)
        assert block.trust is BlockTrust.VERIFIED
    return simulation


def test_first_hits_are_verified_by_their_header():
    simulation = Simulation()
    block, address, size = simulation.alloc_hit(0x123)
    assert block == Block(address, size, Pool.NONPAGED, BlockTrust.VERIFIED)
    assert size == 0x140


@pytest.mark.parametrize("body", [True, False])
@pytest.mark.parametrize(
    ("place", "form"),
    [("rsi", "units"), ("r9", "bytes"), (0x40, "request"), (0x28, "body"), (0, "units")],
)
def test_learned_after_six_hits_of_different_sizes(body, place, form):
    simulation = learn(Simulation(body=body, size_place=place, size_form=form))
    for number in range(15):
        before = simulation.reads
        block, address, size = simulation.alloc_hit(SIZES[number % 4] + 16 * number, at=0x100)
        assert block == Block(address, size, None, BlockTrust.LEARNED)
        assert simulation.reads == before
    assert simulation.finder.statistics.learned == 15


def test_one_size_only_is_never_enough():
    simulation = learn(Simulation(), hits=40, sizes=(0x80,))
    assert simulation.finder.statistics.learned == 0
    before = simulation.reads
    simulation.alloc_hit(0x80)
    assert simulation.reads == before + 1  # the holder is known, so only its header is read


def test_size_that_is_nowhere_is_read_at_every_allocation_but_not_at_frees():
    simulation = learn(Simulation(size_place=None), hits=30)
    address, size = simulation.live[3]
    for _ in range(6):
        assert simulation.hit(address, size, 0, HitKind.FREE, PC + 8).size == size
        address, size = simulation.live[4]
    block = simulation.hit(address, size, 0, HitKind.FREE, PC + 8)
    assert block == Block(address, None, None, BlockTrust.LEARNED)


def test_spot_checks_at_growing_distance():
    simulation = learn(Simulation())
    trusts = [simulation.alloc_hit(SIZES[n % 4] + 16, at=0x200)[0].trust for n in range(120)]
    checks = [n for n, trust in enumerate(trusts) if trust is BlockTrust.VERIFIED]
    assert checks == [15, 47, 111]
    assert simulation.finder.statistics.spot_checks == 3
    assert simulation.finder.statistics.contradictions == 0


def test_failed_spot_check_drops_the_rule_and_asks_for_more():
    simulation = learn(Simulation())
    for number in range(15):
        simulation.alloc_hit(SIZES[number % 4], at=0x200)
    address, size = simulation.allocate(0x80)
    simulation.holder, simulation.size_place = "rbx", "r12"
    # The old places hold another block of the tag: only reading tells.
    other, _ = simulation.allocate(0x200, tag=TAG ^ 1)
    simulation.noise = {"rdi": other, "rsi": 0x21}
    block = simulation.hit(address, size, 0x80)
    assert (block.address, block.size, block.trust) == (address, size, BlockTrust.VERIFIED)
    assert simulation.finder.statistics.contradictions == 1
    learn(simulation, hits=11)
    assert simulation.finder.statistics.learned == 15


def test_places_that_disagree_lead_to_a_read():
    simulation = Simulation(noise={"r14": lambda s: s.wanted})
    for request in (0x100, 0x200, 0x300, 0x100, 0x200, 0x300):
        simulation.wanted = (request + 0x1F) & ~0xF
        simulation.alloc_hit(request)
    simulation.wanted = 0x500  # r14 held the size by chance until now
    block, address, size = simulation.alloc_hit(0x180)
    assert (block.address, block.size, block.trust) == (address, size, BlockTrust.VERIFIED)
    simulation.wanted = 0x640
    assert simulation.alloc_hit(0x180)[0].trust is BlockTrust.LEARNED


def test_big_block_is_confirmed_in_its_table():
    simulation = Simulation()
    block, address, size = simulation.alloc_hit(0x2345)
    assert block == Block(address, 0x3000, Pool.NONPAGED, BlockTrust.VERIFIED)
    assert size == 0x3000


def test_big_blocks_are_learned_apart_from_small_ones():
    simulation = Simulation(size_form="request")
    for number in range(12):
        simulation.alloc_hit(SIZES[number % 4])
        simulation.alloc_hit(0x1800 + 0x1000 * (number % 3))
    before = simulation.reads
    small = simulation.alloc_hit(0x90, at=0x100)
    big = simulation.alloc_hit(0x5800)
    assert simulation.reads == before
    for block, address, size in (small, big):
        assert (block.address, block.size, block.trust) == (address, size, BlockTrust.LEARNED)


def test_big_block_where_only_small_ones_came_before():
    for body in (True, False):
        simulation = learn(Simulation(body=body, size_form="request"))
        block, address, size = simulation.alloc_hit(0x4800)
        assert (block.address, block.size, block.trust) == (address, size, BlockTrust.VERIFIED)


def test_freed_big_block():
    simulation = Simulation(size_place=None)
    address, size = simulation.allocate(0x2000)
    simulation.big.mark_freed(next(iter(simulation.big.used)))
    block = simulation.hit(address, size, 0x2000, HitKind.FREE)
    assert (block.address, block.size) == (address, size)
    assert simulation.hit(address, size, 0x2000, HitKind.ALLOC, PC + 8) == Block()


def test_two_blocks_of_the_tag_in_registers_are_not_told_apart_by_guessing():
    other = []
    simulation = Simulation(noise={"rbx": lambda s: other[0]})
    other.append(simulation.allocate(0x90)[0])
    assert simulation.alloc_hit(0x80)[0] == Block()
    assert simulation.finder.statistics.ambiguous == 1
    other[0] = 0  # at the next hit the other register holds something else
    block, address, size = simulation.alloc_hit(0x80)
    assert (block.address, block.size) == (address, size)
    other[0] = simulation.allocate(0x90)[0]
    block, address, size = simulation.alloc_hit(0x80)
    assert (block.address, block.size) == (address, size)


def test_nothing_to_be_found_costs_little_in_the_long_run():
    simulation = Simulation(noise={"rbx": POOL + 0x300020, "rsi": POOL + 0x310020})
    for _ in range(64):
        assert simulation.hit(POOL + 0x320010, 0x40, 0x30) == Block()
    assert simulation.finder.statistics.unknown == 64
    assert simulation.reads < 64


def test_protected_bit_in_the_header_is_no_difference():
    simulation = Simulation()
    address, size = simulation.allocate(0x80, tag=TAG | 0x80000000)
    assert simulation.hit(address, size, 0x80).address == address


@pytest.mark.parametrize(
    ("at", "value"), [(2, 0), (2, 1), (3, 0), (4, 0x41)]
)  # no size, header only, free, another tag
def test_headers_that_cannot_be_the_block(at, value):
    simulation = Simulation()
    address, size = simulation.allocate(0x80)
    simulation.pool[address - 16 - POOL + at] = value
    assert simulation.hit(address, size, 0x80) == Block()


def test_cache_aligned_copy_of_a_header_tells_no_size():
    simulation = Simulation()
    address, size = simulation.allocate(0x80)
    simulation.pool[address - 16 - POOL] = 2
    simulation.pool[address - 13 - POOL] |= 4
    block = simulation.hit(address, size, 0x80)
    assert (block.address, block.size, block.trust) == (address, None, BlockTrust.VERIFIED)


def test_x86():
    memory = FakeMemory()
    page = bytearray(0x1000)
    struct.pack_into("<HHI", page, 0x100, 0, 0x60 // 8 | 3 << 9, TAG)
    memory.put(0xFFFFFFFF81234000, bytes(page))
    finder = BlockFinder(memory, 4, PoolTag(TAG), build=7601)
    registers = Registers({"eax": 0x81234108, "ebx": 5, "esp": 0x8F000000, "eip": 0x80401000})
    block = finder.find(registers, 0x8F000000, b"", 0x80401000, HitKind.ALLOC)
    assert block == Block(0xFFFFFFFF81234108, 0x60, Pool.PAGED, BlockTrust.VERIFIED)


def test_values_near_the_stack_are_no_blocks():
    simulation = Simulation()
    simulation.hit(STACK + 0x40, 0x40, 0x30)
    assert simulation.reads == 0
