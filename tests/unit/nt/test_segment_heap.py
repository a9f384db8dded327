"""Segment heaps built field by field, with random keys, for every range of builds."""

from __future__ import annotations

import random

import numpy as np
import pytest
from pool_fakes import PAGE, TAG, PagedMemory, SegmentHeapMachine, header

from kdleak.errors import MemoryUnreadable
from kdleak.model import Module
from kdleak.nt.blocks.pool_state_search import find_pool_state
from kdleak.nt.blocks.segment_heap import SegmentHeaps, read_subsegment
from kdleak.nt.blocks.segment_heap_layout import segment_heap_candidates
from kdleak.nt.blocks.subsegments import (
    ALLOCATED,
    FREE,
    NOT_A_CHUNK,
    UNCERTAIN,
    HeapKeys,
    LfhSubsegment,
    VsSubsegment,
)

KINDS = [
    (17763, 8), (18362, 8), (19045, 8), (20348, 8), (22631, 8), (26100, 8), (28000, 8), (19045, 4),
]  # fmt: skip


def machine(build: int, pointer_size: int, seed: int = 1) -> SegmentHeapMachine:
    rng = random.Random(seed * build + pointer_size)
    bits = 8 * pointer_size
    return SegmentHeapMachine(
        PagedMemory(pointer_size),
        build,
        heap_key=rng.getrandbits(bits),
        lfh_key=rng.getrandbits(bits),
        pointer_size=pointer_size,
    )


def heaps(built: SegmentHeapMachine, build: int) -> SegmentHeaps:
    return SegmentHeaps(built.memory, built.state, build, built.width)


def ask(found: SegmentHeaps, *blocks: tuple) -> list:
    addresses = np.array([address for address, _ in blocks], dtype=np.uint64)
    sizes = np.array([size for _, size in blocks], dtype=np.int64)
    return found.states(addresses, sizes).tolist()


@pytest.fixture(params=KINDS, ids=lambda kind: f"{kind[0]}-{8 * kind[1]}bit")
def kind(request):
    return request.param


class TestFinding:
    def test_heaps_segments_and_subsegments(self, kind):
        built = machine(*kind)
        built.add_vs(4, 4, [(0x40, True)])
        built.add_lfh(16, 2, 0x80, 0x100, [1, 0])
        built.add_range(40, 3, 8)  # a large block is no subsegment
        found = heaps(built, kind[0])
        assert found.heaps == (built.heap,)
        assert found.segments == 1
        assert not found.gaps
        assert [(one.address, one.size, one.is_vs) for one in found.places] == [
            (built.segment + 4 * PAGE, 4 * PAGE, True),
            (built.segment + 16 * PAGE, 2 * PAGE, False),
        ]
        assert found.around(built.segment + 5 * PAGE) == found.places[0]
        assert found.around(built.segment + 8 * PAGE) is None

    def test_descriptors_inside_a_range_are_stepped_over(self, kind):
        built = machine(*kind)
        built.add_range(4, 3, 8)
        built.add_range(6, 0xF, 2)  # left from before
        assert heaps(built, kind[0]).places == ()

    def test_without_its_memory(self):
        with pytest.raises(MemoryUnreadable):
            SegmentHeaps(PagedMemory(), 0xFFFFF800_00100000, 22621, 8)

    def test_no_heap_signature_no_heap(self, kind):
        built = machine(*kind)
        built.memory.put(built.heap + (0x10 if built.width == 8 else 8), b"\xee\xdd\xee\xde")
        assert heaps(built, kind[0]).heaps == ()

    def test_a_segment_of_another_key_is_not_believed(self, kind):
        built = machine(*kind)
        built.add_vs(4, 4, [(0x40, True)])
        built.put_segment(built.segment, signature=0x1234567)
        found = heaps(built, kind[0])
        assert found.segments == 0
        assert found.places == ()
        assert found.gaps == ["a list of pool segments leads to something else"]

    def test_the_constant_was_dropped(self):
        built = machine(22621, 8)
        built.constant = 0
        built.put_segment(built.segment)
        assert heaps(built, 22621).segments == 0

    def test_a_list_that_leads_back_to_its_middle_ends(self, kind):
        built = machine(*kind)
        others = [built.segment + (number << 20) for number in range(1, 4)]
        built.link([built.segment, *others])
        for at in others:
            built.put_segment(at)
        built.pointer(others[-1], others[0])
        found = heaps(built, kind[0])
        assert found.segments == 4
        assert found.gaps == ["a list of pool segments does not end"]

    def test_a_list_into_nowhere(self, kind):
        built = machine(*kind)
        built.pointer(built.segment, 0xFFFFFFFF_A0000000)
        found = heaps(built, kind[0])
        assert found.segments == 1
        assert found.gaps == ["a list of pool segments leads to memory that is not there"]

    def test_a_subsegment_larger_than_any_is_left_out(self):
        built = machine(22621, 8)
        built.memory.put(built.context + 0x8, bytes([24]))
        built.add_range(4, 0xF, 250)
        assert heaps(built, 22621).places == ()

    def test_a_list_longer_than_any_is_cut(self, monkeypatch):
        monkeypatch.setattr("kdleak.nt.blocks.segment_heap.MAXIMUM_SEGMENTS", 2)
        built = machine(22621, 8)
        others = [built.segment + (number << 20) for number in range(1, 4)]
        built.link([built.segment, *others])
        for at in others:
            built.put_segment(at)
        found = heaps(built, 22621)
        assert found.segments == 2
        assert found.gaps == ["a list of pool segments does not end"]


class TestWithoutSymbols:
    def kernel(self, built):
        return Module("nt", built.state - 0x80000, 0x400000 - 0x80000, "ntoskrnl.exe")

    def test_found_by_its_heaps(self, kind):
        built = machine(*kind)
        kernel = self.kernel(built)
        built.memory.put(kernel.base, (kernel.base + 0x100).to_bytes(8, "little") * 0x100)
        assert find_pool_state(built.memory, kernel, *kind) == built.state

    def test_nothing_like_it(self, kind):
        built = machine(*kind)
        built.memory.put(built.heap + (0x10 if kind[1] == 8 else 8), bytes(4))
        assert find_pool_state(built.memory, self.kernel(built), *kind) is None

    def test_a_copy_whose_keys_are_elsewhere(self, kind):
        built = machine(*kind)
        built.pointer(built.state, built.heap + 0x800)
        kernel = Module("nt", built.state - 0x80000, 0x200000, "ntoskrnl.exe")
        assert find_pool_state(built.memory, kernel, *kind) is None


class TestVs:
    def built(self, kind):
        built = machine(*kind)
        chunk = 0x10 if kind[1] == 8 else 8
        sizes = [0x60, 0x40, 0x200, 0x80]
        left = 4 * PAGE - (0x30 if kind[1] == 8 else 0x18) - sum(sizes)
        chunks = built.add_vs(
            4, 4, [(0x60, True), (0x40, False), (0x200, True), (0x80, True), (left, False)]
        )
        return built, [at + chunk for at in chunks], chunk

    def test_states(self, kind):
        built, headers, chunk = self.built(kind)
        found = heaps(built, kind[0])
        states = ask(
            found, *[(at, size - chunk) for at, size in zip(headers, (0x60, 0x40, 0x200, 0x80))]
        )
        assert states == [ALLOCATED, FREE, ALLOCATED, ALLOCATED]

    def test_decoys(self, kind):
        built, headers, _ = self.built(kind)
        found = heaps(built, kind[0])
        assert ask(found, (headers[2] + 0x20, 0x20), (headers[2] + 0x40, 0x20)) == [NOT_A_CHUNK] * 2
        # Longer than its chunk.
        assert ask(found, (headers[0], 0x60)) == [NOT_A_CHUNK]

    def test_a_neighbour_that_disagrees_is_not_believed(self, kind):
        built, headers, chunk = self.built(kind)
        built.put_chunk(headers[1] - chunk, 0x40, 0x50, allocated=False)
        found = heaps(built, kind[0])
        assert ask(found, (headers[0], 0x40)) == [NOT_A_CHUNK]

    def test_a_subsegment_without_its_signature_is_not_believed(self, kind):
        built, headers, _ = self.built(kind)
        built.memory.put(built.segment + 4 * PAGE + (0x20 if kind[1] == 8 else 0x14), b"\1\0\1\0")
        assert ask(heaps(built, kind[0]), (headers[0], 0x40)) == [NOT_A_CHUNK]

    def test_with_another_key_nothing_is_believed(self, kind):
        built, headers, _ = self.built(kind)
        layout = segment_heap_candidates(*kind)[0]
        memory = read_subsegment(built.memory, built.segment + 4 * PAGE, 4 * PAGE)
        wrong = VsSubsegment(memory, layout, HeapKeys(built.key ^ 0x10000, 0))
        offsets = np.array([at - memory.address for at in headers], dtype=np.int64)
        assert wrong.states(offsets, np.full(len(offsets), 0x20)).tolist() == [-1] * len(headers)
        assert not list(wrong.chunks())

    def test_a_header_moved_to_the_start_of_a_page(self, kind):
        built = machine(*kind)
        wide = kind[1] == 8
        chunk, first = (0x10, 0x30) if wide else (8, 0x18)
        front = PAGE - first - 4 * chunk
        built.add_vs(4, 2, [(front, True), (0x240, True), (PAGE - 0x240 + 4 * chunk, False)])
        page = built.segment + 5 * PAGE
        assert ask(heaps(built, kind[0]), (page, 0x200)) == [ALLOCATED]
        # A block there that would not end in that chunk.
        assert ask(heaps(built, kind[0]), (page, 0x400)) == [NOT_A_CHUNK]

    def test_pages_that_are_not_there(self, kind):
        built, headers, chunk = self.built(kind)
        built.memory.remove(built.segment + 7 * PAGE)
        found = heaps(built, kind[0])
        assert ask(found, (headers[0], 0x60 - chunk)) == [ALLOCATED]
        built.memory.remove(built.segment + 4 * PAGE)
        assert ask(heaps(built, kind[0]), (headers[0], 0x60 - chunk)) == [NOT_A_CHUNK]

    def test_chunks_in_order(self, kind):
        built, headers, chunk = self.built(kind)
        layout = segment_heap_candidates(*kind)[0]
        memory = read_subsegment(built.memory, built.segment + 4 * PAGE, 4 * PAGE)
        walked = list(VsSubsegment(memory, layout, HeapKeys(built.key, 0)).chunks())
        assert [memory.address + one.offset + chunk for one in walked] == headers
        assert [one.size for one in walked][:4] == [0x60, 0x40, 0x200, 0x80]


class TestLfh:
    def test_states(self, kind):
        built = machine(*kind)
        start = built.add_lfh(8, 2, 0x90, 0x200, [1, 0, 1, 3, 0, 1])
        found = heaps(built, kind[0])
        blocks = [(start + 0x200 + 0x90 * number, 0x90) for number in range(6)]
        assert ask(found, *blocks) == [ALLOCATED, FREE, ALLOCATED, UNCERTAIN, FREE, ALLOCATED]

    def test_decoys(self, kind):
        built = machine(*kind)
        start = built.add_lfh(8, 2, 0x90, 0x200, [1, 1, 1])
        found = heaps(built, kind[0])
        assert ask(found, (start + 0x210, 0x20), (start + 0x250, 0x20)) == [NOT_A_CHUNK] * 2
        assert ask(found, (start + 0x200, 0xA0)) == [NOT_A_CHUNK]  # longer than a block

    def test_what_does_not_decode_is_not_believed(self, kind):
        built = machine(*kind)
        start = built.add_lfh(8, 2, 0x90, 0x200, [1])
        built.lfh_key ^= 0x0F0F0F0F
        layout = segment_heap_candidates(*kind)[0]
        memory = read_subsegment(built.memory, start, 2 * PAGE)
        assert not LfhSubsegment(memory, layout, HeapKeys(0, built.lfh_key)).proved

    def test_a_bitmap_that_reaches_into_the_blocks_is_not_believed(self, kind):
        built = machine(*kind)
        start = built.add_lfh(8, 16, 0x20, 0x40, [1])
        assert ask(heaps(built, kind[0]), (start + 0x40, 0x20)) == [NOT_A_CHUNK]


def test_random_memory_decodes_to_nothing():
    rng = np.random.default_rng(9)
    layout = segment_heap_candidates(22621, 8)[0]
    for _ in range(20):
        memory = PagedMemory()
        memory.put(0xFFFF9A80_00000000, rng.integers(0, 256, 4 * PAGE, dtype=np.uint8).tobytes())
        there = read_subsegment(memory, 0xFFFF9A80_00000000, 4 * PAGE)
        vs = VsSubsegment(there, layout, HeapKeys(1, 2))
        every = np.arange(0, 4 * PAGE, 16, dtype=np.int64)
        assert (vs.states(every, np.full(len(every), 0x40)) == NOT_A_CHUNK).all()


def test_the_header_helper_is_what_the_search_reads():
    # The fakes' own header, against the one parser that other tests hold to the format.
    from kdleak.nt.layouts import parse_pool_header

    for pointer_size in (8, 4):
        raw = header(0x140, 3, previous=0x40, pointer_size=pointer_size)
        parsed = parse_pool_header(raw, pointer_size)
        assert (parsed.block_size, parsed.previous_size, parsed.pool_type) == (0x140, 0x40, 3)
        assert parsed.tag == TAG
