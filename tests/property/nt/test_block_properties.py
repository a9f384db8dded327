"""Whatever a code path looks like: a block that is reported is the right one."""

from __future__ import annotations

from block_simulation import NAMES, PC, Simulation
from hypothesis import given, settings
from hypothesis import strategies as st

from kdleak.model import BlockTrust, HitKind

SIZE_PLACES = st.one_of(
    st.none(), st.sampled_from(NAMES), st.integers(0, 0x1F).map(lambda slot: 8 * slot)
)


def a_live_block(simulation):
    """A pointer to a block of the same tag: the caller's own structure."""
    return simulation.live[simulation.rng.randrange(len(simulation.live))][0]


def first_live_block(simulation):
    return simulation.live[0][0] - 16


NOISE = st.sampled_from(
    [
        0,
        0x140,
        lambda s: s.rng.getrandbits(64),
        lambda s: 0xFFFF8A0000000000 | s.rng.getrandbits(22) & ~0xF,
        lambda s: s.rng.randrange(0x400),
        lambda s: s.last_size,
        lambda s: s.last_size // 16,
        a_live_block,
        first_live_block,
    ]
)


@st.composite
def code_paths(draw):
    holder = draw(st.sampled_from(NAMES))
    place = draw(SIZE_PLACES.filter(lambda name: name != holder))
    noise = draw(st.dictionaries(st.sampled_from(NAMES), NOISE, max_size=8))
    return Simulation(
        holder,
        body=draw(st.booleans()),
        size_place=place,
        size_form=draw(st.sampled_from(["bytes", "units", "body", "request"])),
        noise=noise,
        seed=draw(st.integers(0, 1 << 32)),
    )


def check(block, address, size):
    if block.trust is BlockTrust.UNKNOWN:
        assert (block.address, block.size) == (0, None)
    else:
        assert block.address == address
        assert block.size in (None, size)


@settings(max_examples=60, deadline=None)
@given(
    code_paths(),
    st.lists(
        st.one_of(st.integers(1, 0xFE0), st.sampled_from([0x80, 0x123, 0x1800, 0x4321])),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 60),
)
def test_reported_blocks_are_right(simulation, requests, hits):
    simulation.live.append(simulation.allocate(0x70))
    for number in range(hits):
        request = requests[number % len(requests)]
        block, address, size = simulation.alloc_hit(request)
        check(block, address, size)
        if number % 3 == 2:
            address, size = simulation.live[-1 - number % 2]
            if address % 0x1000:  # a big block's row is marked by the kernel first
                check(simulation.hit(address, size, 0, HitKind.FREE, PC + 0x40), address, size)
    statistics = simulation.finder.statistics
    assert statistics.contradictions == 0
    assert statistics.verified + statistics.learned + statistics.unknown >= hits


@settings(max_examples=30, deadline=None)
@given(code_paths(), st.lists(st.integers(1, 0xFE0), min_size=3, max_size=10, unique=True))
def test_a_code_path_that_changes_is_noticed_at_the_latest_by_a_check(simulation, requests):
    """After the places moved, at most the hits up to the next spot check can be wrong."""
    simulation.noise = {}
    for number in range(30):
        simulation.alloc_hit(requests[number % len(requests)])
    simulation.holder = "r15" if simulation.holder != "r15" else "r14"
    decoy = simulation.allocate(0x50, tag=0x41414141)[0]
    wrong = 0
    for number in range(80):
        simulation.noise = {name: decoy for name in NAMES if name != simulation.holder}
        if isinstance(simulation.size_place, str):
            simulation.noise.pop(simulation.size_place, None)
        block, address, _ = simulation.alloc_hit(requests[number % len(requests)])
        wrong = wrong + 1 if block.trust is BlockTrust.LEARNED and block.address != address else 0
        assert wrong <= 48
    assert simulation.alloc_hit(0x60)[0].address in (0, simulation.live[-1][0])


@given(
    st.dictionaries(st.sampled_from((*NAMES, "rip", "rsp", "efl")), st.integers(0, (1 << 64) - 1)),
    st.binary(max_size=200),
    st.sampled_from(HitKind),
)
def test_any_registers_at_all(values, stack, kind):
    from kdleak.model import Registers

    simulation = Simulation()
    block = simulation.finder.find(Registers(values), values.get("rsp", 0), stack, PC, kind)
    assert block.trust is BlockTrust.UNKNOWN
    assert simulation.reads < 200
