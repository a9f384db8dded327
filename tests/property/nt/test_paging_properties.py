"""Random page tables: one address, many addresses and the manuals' plain walk agree."""

from __future__ import annotations

import random
import time

from hypothesis import example, given, settings
from hypothesis import strategies as st
from paging_ram import PAGE, ZERO, Ram, frames_of, walk

from kdleak.nt.kdbg import EncodingKeys
from kdleak.nt.space.paging import LAYOUTS, PagingMode
from kdleak.nt.space.virtual import VirtualMemory

MODES = st.sampled_from(list(PagingMode))
WORD = st.integers(0, (1 << 64) - 1)


def random_tables(mode, seed, *, acyclic):
    """Tables of few frames, each entry of any kind; RAM, root, and addresses worth a look."""
    rng = random.Random(seed)
    layout = LAYOUTS[mode]
    size, arm = layout.entry_size, mode is PagingMode.ARM64
    depth = len(layout.levels)
    ram = Ram(rng.sample(range(1, 60), 40), lead=rng.choice([0, 0x1000, 0x2030]))
    frames = sorted(ram.order)
    rng.shuffle(frames)
    # With ``acyclic`` every frame is a table of one place only, as Windows' are.
    root_frame = frames.pop()
    offset = rng.randrange(128) * 32 if mode is PagingMode.X86_PAE else 0
    interesting = []
    data = frames[:8]

    def software(at_last):
        kind = rng.randrange(5)
        frame = rng.choice(frames) << 12
        if kind == 0:
            return (
                frame
                | 0x880
                | rng.choice([0, 0x10])
                | rng.choice([0, 0, 1 << 45 if size == 8 else 0])
            )
        if kind == 1:
            return 0x80 | rng.choice([0, 0, 0x10, 0x2, 0x5000])
        if kind == 2 and at_last and size == 8:
            where = rng.choice(interesting) if interesting else 0
            shift = 32 if mode is PagingMode.X86_PAE else 16
            return (where + 8 * rng.randrange(512) + rng.choice([0, 0, 0, 4])) << shift & (
                1 << 64
            ) - 1 | 0x400
        if kind == 3:
            return rng.getrandbits(8 * size) & ~1
        return 0

    def leaf():
        if rng.random() < 0.35:
            return software(True)
        flags = rng.choice([0x3, 0x1, 0x801, 0x63])
        if arm:
            flags = rng.choice([0x3, 0x3, 0x1, 0x703, 0x83])
        top = rng.choice([0, 0, 1 << 63, 1 << 52]) if size == 8 else 0
        return rng.choice([*data, 77, rng.choice(frames)]) << 12 | flags | top

    def large(shift):
        if mode is PagingMode.X86:
            return rng.choice([0, 0, 1 << 13, 1 << 17]) | 0xE3
        low = rng.choice([0, 0, 1 << shift]) | rng.choice([0, 1 << 13])
        return low | (1 if arm else 0xE3)

    def build(level, frame, at, start):
        here = layout.levels[level]
        table = frame * PAGE + at
        put = ram.d if size == 4 else ram.q
        for index in {rng.randrange(1 << here.bits) for _ in range(4 if level < depth - 1 else 12)}:
            address = start + (index << here.shift)
            interesting.append(address)
            if level == depth - 1:
                put(table, index, leaf())
                continue
            choice = rng.random()
            if choice < 0.6 and (frames if not acyclic else len(frames) > 12):
                below = frames.pop() if acyclic else rng.choice(frames)
                flags = 3 if arm else rng.choice([0x1, 0x63, 0x3])
                put(table, index, below << 12 | flags)
                if acyclic or rng.random() < 0.5:
                    build(level + 1, below, 0, address)
            elif choice < 0.8:
                put(table, index, large(here.shift))
            else:
                put(table, index, software(False))

    build(0, root_frame, offset, 0)
    bits = layout.address_bits
    whole = [
        at if bits == 32 or not at >> (bits - 1) else at | (1 << 64) - (1 << bits)
        for at in interesting
    ]
    near = [
        (at + rng.choice([0, 1, 0x1000, -0x1000, 0x200000, 8]) + rng.randrange(PAGE)) % (1 << 64)
        for at in whole
    ]
    return ram, root_frame * PAGE + offset, whole + near, rng


@settings(max_examples=150, deadline=None)
@given(MODES, st.integers(0, 1 << 32), st.booleans())
def test_one_address_is_what_the_manual_says(mode, seed, acyclic):
    ram, root, addresses, _ = random_tables(mode, seed, acyclic=acyclic)
    memory = VirtualMemory(ram, mode, root, LAYOUTS[mode].entry_size)
    for address in addresses:
        slow = walk(ram, mode, root, address)
        assert memory.translate(address) == (slow if isinstance(slow, int) else None), hex(address)
        page = memory.page(address)
        if slow == ZERO:
            assert bytes(page) == bytes(PAGE)
        else:
            expected = None if slow is None else ram.page(slow >> 12)
            assert (page is None) == (expected is None)
            assert page is None or bytes(page) == bytes(expected)


@settings(max_examples=100, deadline=None)
@given(MODES, st.integers(0, 1 << 32), st.integers(1, 700))
# A top entry that is no table names a frame that is one somewhere else.
@example(PagingMode.X86_PAE, 76, 1)
def test_many_addresses_are_page_by_page(mode, seed, pages):
    ram, root, addresses, rng = random_tables(mode, seed, acyclic=True)
    ram.stamp()
    memory = VirtualMemory(ram, mode, root, LAYOUTS[mode].entry_size)
    end = 1 << 32 if LAYOUTS[mode].address_bits == 32 else 1 << 64
    scan = memory.batches(0, end, pages)
    found = frames_of(scan)
    assert memory.remarks == []
    for address, start in found.items():
        assert bytes(memory.page(address)[:8]) == start
        assert walk(ram, mode, root, address) != ZERO
    for address in addresses:
        slow = walk(ram, mode, root, address)
        there = isinstance(slow, int) and slow >> 12 in ram.order
        if end == 1 << 64 or address < end:
            assert (address & ~0xFFF in found) == there
    # Any part of it is the part of the whole.
    low, high = sorted(rng.choice(addresses) for _ in range(2))
    part = frames_of(memory.batches(low, min(high, end), pages))
    wanted = {at: data for at, data in found.items() if low & ~0xFFF <= at < min(high, end)}
    assert part == wanted
    without = frames_of(
        memory.batches(0, end, pages, skip=[(low & ~0xFFF, min(high, end) & ~0xFFF)])
    )
    assert without == {
        at: data for at, data in found.items() if not low & ~0xFFF <= at < min(high, end) & ~0xFFF
    }


@settings(max_examples=30, deadline=None)
@given(MODES, st.integers(0, 1 << 32), st.booleans())
def test_tables_of_noise_end(mode, seed, tables):
    rng = random.Random(seed)
    ram = Ram(range(1, 17))
    size = LAYOUTS[mode].entry_size
    for frame in ram.order:
        words = [
            rng.randrange(1, 17) << 12 | rng.choice([1, 3, 0x63, 0xE3, 0x880, 0x400, 0])
            for _ in range(PAGE // size)
        ]
        ram.put(frame << 12, b"".join(word.to_bytes(size, "little") for word in words))
    memory = VirtualMemory(ram, mode, 0x1000, size)
    start = time.perf_counter()
    count = 0
    for batch in memory.batches(0, 1 << 64, page_tables=tables):
        count += len(batch.addresses)
    assert time.perf_counter() - start < 5
    assert count <= 4 * (1 << 15) + (1 << 16)


@settings(max_examples=200, deadline=None)
@given(WORD, WORD, WORD, WORD)
def test_encoding_of_the_debugger_data_is_undone(never, always, flag, word):
    keys = EncodingKeys(never, always, flag)
    assert keys.decode(keys.encode(word)) == word
    assert 0 <= keys.encode(word) < 1 << 64
