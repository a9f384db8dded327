"""The bulk search against the same in plain loops, on pages of every kind; and on rubbish."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[3]))

from nt_fakes import FakeSymbols
from pool_fakes import PagedMemory, SegmentHeapMachine

from benchmarks.dumps_find import BASE, PAGE, TAG, plain_scan, search
from kdleak.nt.blocks.contents import MOST_STRINGS, strings_in
from kdleak.nt.blocks.search import search_blocks

BUILDS = [2600, 3790, 7601, 10240, 17763, 22621, 26100]


@st.composite
def pages(draw, pointer_size: int) -> np.ndarray:
    """Pages of linked and unlinked blocks, some bytes of which were changed."""
    unit = 2 * pointer_size
    slots = PAGE // unit
    found = []
    for _ in range(draw(st.integers(1, 4))):
        page = bytearray(PAGE)
        linked = draw(st.booleans())
        sizes = draw(st.lists(st.integers(1, 60), min_size=1, max_size=60))
        at, last, index = 0, 0, 0
        while at < slots:
            size = min(sizes[index % len(sizes)], slots - at)
            tag = TAG.value if draw(st.booleans()) else 0x6C6F6F50
            if draw(st.integers(0, 9)) == 0:
                tag |= 0x80000000
            kind = draw(st.sampled_from([0, 1, 2, 3, 5, 6, 7, 0x0B, 0x82]))
            previous = last if linked else draw(st.sampled_from([0, 0, last, 3]))
            if pointer_size == 8:
                head = bytes([previous, 0, size, kind])
            else:
                head = (previous | (size | (kind & 0x7F) << 9) << 16).to_bytes(4, "little")
            page[at * unit : at * unit + 8] = head + tag.to_bytes(4, "little")
            at, last, index = at + size, size, index + 1
        for _ in range(draw(st.integers(0, 2))):
            page[draw(st.integers(0, PAGE - 1))] = draw(st.integers(0, 255))
        found.append(bytes(page))
    return np.frombuffer(b"".join(found), dtype=np.uint8).reshape(-1, PAGE)


@given(st.data(), st.sampled_from(BUILDS), st.sampled_from([8, 4]))
@settings(max_examples=80, deadline=None)
def test_same_as_plain_loops(data, build, pointer_size):
    made = data.draw(pages(pointer_size))
    listed = [(BASE + n * PAGE, made[n].tobytes()) for n in range(len(made))]
    expected = Counter()
    for (_, state, size), count in plain_scan(listed, TAG.value, pointer_size, build).items():
        expected[size, state] += count
    found = search(made, build, pointer_size)
    counted = Counter()
    for one in found.sizes:
        for state in ("allocated", "free", "unknown"):
            if getattr(one, state):
                counted[one.size, state] = getattr(one, state)
    assert counted == expected
    assert found.seen == sum(expected.values())


@given(st.integers(0, 2**32), st.sampled_from(BUILDS), st.sampled_from([8, 4]), st.data())
@settings(max_examples=40, deadline=None)
def test_rubbish_everywhere(seed, build, pointer_size, data):
    """Pool state, tables and lists of random bytes: an answer, and never an exception."""
    rng = np.random.default_rng(seed)
    memory = PagedMemory(pointer_size)
    machine = SegmentHeapMachine(
        memory, build, heap_key=seed, lfh_key=~seed & 0xFFFFFFFF, pointer_size=pointer_size
    )
    machine.add_vs(4, 2, [(0x100, True), (0x200, False)])
    machine.add_lfh(8, 2, 0x80, 0x200, [1, 0, 1])
    symbols = FakeSymbols(
        ExPoolState=machine.state,
        PoolBigPageTable=machine.globals + 0x100,
        PoolBigPageTableSize=machine.globals + 0x108,
    )
    machine.pointer(machine.globals + 0x100, machine.heap)
    machine.pointer(machine.globals + 0x108, 1 << data.draw(st.integers(0, 8)))
    spoiled = sorted(memory.pages)
    for _ in range(data.draw(st.integers(1, 40))):
        page = memory.pages[data.draw(st.sampled_from(spoiled))]
        at = data.draw(st.integers(0, PAGE - 8))
        page[at : at + 8] = rng.integers(0, 256, 8, dtype=np.uint8).tobytes()
    found = search_blocks(
        TAG,
        memory=memory,
        modules=(),
        symbol=symbols,
        nearest=lambda _: None,
        build=build,
        pointer_size=pointer_size,
    )
    assert found.bytes_searched <= len(memory.pages) * PAGE
    assert memory.reads < 5000


@given(st.binary(max_size=4096))
def test_strings_are_bounded_and_printable(body):
    found = strings_in(body)
    assert len(found) <= MOST_STRINGS
    assert all(text.isprintable() or "\xa0" in text or "\xad" in text for text in found)
    assert len(set(found)) == len(found)
