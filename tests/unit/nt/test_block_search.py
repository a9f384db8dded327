"""Searches for the blocks of a tag in memory that was built for it."""

from __future__ import annotations

import struct
import sys
from typing import Optional, Sequence, Tuple

import pytest
from nt_fakes import FakeSymbols
from pool_fakes import NONPAGED, PAGE, TAG, PagedMemory, SegmentHeapMachine, chain_page, header

from kdleak.errors import MissingDependency
from kdleak.found import BlockSource, BlockState, GapKind, SizeClass
from kdleak.model import Module, Pool, PoolCounters, Symbolized, SymbolKind, TagUsage
from kdleak.nt.blocks.search import search_blocks
from kdleak.tags import PoolTag

LEAK = PoolTag(TAG)
OTHER = 0x6C6F6F50
PAGED = 0xFFFFB480_00000000
TABLE = NONPAGED + 0x400000
VARIABLES = 0xFFFFF800_00010000
DRIVER = Module("leakydrv", 0xFFFFF800_20000000, 0x4000, "leakydrv.sys")
WIN7, WIN10, WIN11 = 7601, 10240, 22621


def usage(nonpaged: Tuple[int, int] = (0, 0), paged: Tuple[int, int] = (0, 0)) -> TagUsage:
    return TagUsage(
        LEAK, PoolCounters(nonpaged[0], 0, nonpaged[1]), PoolCounters(paged[0], 0, paged[1])
    )


class Target:
    """Memory with symbols; ``search`` fills in what every search needs."""

    def __init__(self, build: int, pointer_size: int = 8) -> None:
        self.build = build
        self.pointer_size = pointer_size
        self.memory = PagedMemory(pointer_size)
        self.symbols = FakeSymbols()

    def add_big_table(self, rows: Sequence[bytes], count: int = 0x100) -> None:
        size = len(rows[0]) if rows else 0x18
        empty = struct.pack("<Q", 1).ljust(size, b"\0")
        self.memory.put(TABLE, b"".join(rows) + empty * (count - len(rows)))
        self.memory.put(VARIABLES, struct.pack("<QQ", TABLE, count))
        self.symbols.addresses["nt!PoolBigPageTable"] = VARIABLES
        self.symbols.addresses["nt!PoolBigPageTableSize"] = VARIABLES + 8

    def search(self, counters: Optional[TagUsage] = None, limit: int = 20, **more):
        return search_blocks(
            LEAK,
            memory=self.memory,
            modules=more.pop("modules", (DRIVER,)),
            symbol=self.symbols,
            nearest=lambda at: Symbolized(at, "leakydrv", "Entry", 0x10, SymbolKind.PDB),
            build=self.build,
            pointer_size=self.pointer_size,
            limit=limit,
            counters=counters,
            **more,
        )


def big_row(address: int, size: int, packed: int, tag: int = TAG, *, wide: bool = True) -> bytes:
    row = struct.pack("<QIIQ", address, tag, packed, size)
    return row + bytes(8) if wide else row


def legacy_page() -> bytes:
    return chain_page([(0x140, 2, TAG), (0x40, 3, TAG), (0x80, 0, TAG), (0xE00, 2, OTHER)])


def single_headers(count: int, size: int = 0x140, kind: int = 2) -> bytes:
    """A page of blocks as kernels with a segment heap make them, nothing around to confirm it."""
    return b"".join(header(size, kind).ljust(size, b"\0") for _ in range(count)).ljust(PAGE, b"\0")


class TestPoolPages:
    def test_exact(self):
        target = Target(WIN7)
        target.add_big_table([], 0x100)
        target.memory.put(NONPAGED, legacy_page())
        found = target.search(usage((1, 0x140), (1, 0x40)))
        assert found.complete
        assert not found.gaps
        assert found.sizes == (
            SizeClass(0x40, allocated=1),
            SizeClass(0x80, free=1),
            SizeClass(0x140, allocated=1),
        )
        assert [(one.address, one.size, one.pool, one.state) for one in found.blocks] == [
            (NONPAGED + 0x10, 0x140, Pool.NONPAGED, BlockState.ALLOCATED),
            (NONPAGED + 0x150, 0x40, Pool.PAGED, BlockState.ALLOCATED),
            (NONPAGED + 0x190, 0x80, None, BlockState.FREE),
        ]
        assert {one.source for one in found.blocks} == {BlockSource.POOL_PAGE}
        assert found.allocated == (2, 0x180)
        assert found.bytes_searched == 2 * PAGE  # that one, and the variables' page

    def test_x86_and_server_2003(self):
        target = Target(3790, 4)
        base = 0xFFFFFFFF_82000000
        page = chain_page([(0x48, 5, TAG), (0xF00, 6, TAG), (0xB8, 0, OTHER)], pointer_size=4)
        target.memory.put(base, page)
        found = target.search(usage((1, 0x48), (1, 0xF00)))
        assert found.complete
        assert [(one.address, one.pool) for one in found.blocks] == [
            (base + 8, Pool.NONPAGED),
            (base + 0x50, Pool.PAGED),
        ]

    def test_headers_off_the_chain_are_data(self):
        target = Target(WIN7)
        page = bytearray(legacy_page())
        page[0x300:0x310] = header(0x80, 2)
        target.memory.put(NONPAGED, bytes(page))
        assert target.search().seen == 3

    def test_a_chain_is_no_proof_where_the_segment_heap_is(self):
        target = Target(WIN11)
        target.memory.put(NONPAGED, legacy_page())
        found = target.search()
        assert found.allocated == (0, 0)
        assert {one.source for one in found.blocks} == {BlockSource.HEADER}


class TestHeaders:
    def target(self) -> Target:
        target = Target(WIN11)
        target.memory.put(NONPAGED, single_headers(12))
        return target

    def test_alone_they_are_never_counted_as_in_use(self):
        found = self.target().search(usage((10, 10 * 0x140)))
        assert found.allocated == (0, 0)
        assert found.sizes == (SizeClass(0x140, unknown=12),)
        assert not found.complete
        assert found.blocks[0].state is BlockState.UNKNOWN
        assert any("12 more may be, by their headers alone" in gap for gap in found.gaps)

    def test_counters_that_agree_exactly_settle_it(self):
        found = self.target().search(usage((12, 12 * 0x140)))
        assert found.complete
        assert found.allocated == (12, 12 * 0x140)
        assert {one.state for one in found.blocks} == {BlockState.ALLOCATED}
        assert {one.source for one in found.blocks} == {BlockSource.HEADER}

    def test_the_number_alone_does_not_settle_it(self):
        assert not self.target().search(usage((12, 12 * 0x140 + 16))).complete

    def test_each_pool_by_itself(self):
        target = self.target()
        target.memory.put(PAGED, single_headers(3, 0x80, 3))
        found = target.search(usage((12, 12 * 0x140), (4, 4 * 0x80)))
        assert not found.complete
        assert found.sizes == (SizeClass(0x80, unknown=3), SizeClass(0x140, allocated=12))
        gap = next(gap for gap in found.gaps if gap.startswith("paged pool"))
        assert "does not mean that they are not there" in gap

    def test_a_header_that_says_free_is_free(self):
        target = Target(WIN11)
        target.memory.put(NONPAGED, single_headers(1, 0x80, 0))
        assert target.search().sizes == (SizeClass(0x80, free=1),)

    def test_a_header_without_the_in_use_bit_tells_nothing(self):
        target = Target(WIN11)
        target.memory.put(NONPAGED, single_headers(1, 0x80, 1))
        assert target.search(usage(paged=(1, 0x80))).sizes == (SizeClass(0x80, unknown=1),)

    def test_cache_aligned_blocks_are_counted_once(self):
        target = Target(WIN11)
        page = bytearray(PAGE)
        page[0x40:0x50] = header(0x140, 6)
        page[0x70:0x80] = header(0x140, 6, previous=0x30)
        target.memory.put(NONPAGED, bytes(page))
        found = target.search(usage((1, 0x140)))
        assert found.complete
        assert [one.address for one in found.blocks] == [NONPAGED + 0x80]

    def test_protected_blocks(self):
        target = Target(WIN7)
        target.memory.put(NONPAGED, chain_page([(0x80, 2, TAG | 1 << 31), (0xF80, 2, OTHER)]))
        assert target.search().allocated == (1, 0x80)

    def test_no_counters(self):
        found = self.target().search()
        assert not found.complete
        assert found.counters is None
        assert "what the tag tables count is not known: nothing to compare with" in found.gaps

    def test_images_are_not_searched(self):
        target = self.target()
        target.memory.put(DRIVER.base + 0x1000, single_headers(5))
        assert target.search().seen == 12

    def test_an_image_that_claims_everything_hides_nothing(self):
        liar = Module("liar", 0xFFFF9000_00000000, 1 << 44, "liar.sys")
        assert self.target().search(modules=(liar,)).seen == 12

    def test_pages_that_are_absent_are_a_gap(self):
        target = self.target()
        target.memory.absent, target.memory.absent_tables = 1234, 2
        gaps = target.search().gaps
        assert "not in the dump: 1,234 mapped pages" in gaps
        assert "not in the dump: 2 page tables; what they map is unknown" in gaps

    def test_a_deadline(self):
        target = Target(WIN11)
        for number in range(2048 + 1):
            target.memory.pages[NONPAGED + number * PAGE] = bytearray(single_headers(1))
        times = iter([1.0, 2.0])
        found = target.search(deadline=1.5, clock=lambda: next(times))
        assert found.seen == 2048 + 1
        found = target.search(deadline=0.5, clock=lambda: 1.0)
        assert found.seen == 2048
        (gap,) = [gap for gap in found.gaps if found.kind_of(gap) is GapKind.TIME]
        assert gap.startswith("the time given was over after 2,048 pages")


class TestBigPages:
    A, B, C = NONPAGED + 0x100000, PAGED + 0x200000, NONPAGED + 0x300000

    def test_rows(self):
        target = Target(WIN11)
        target.add_big_table(
            [
                big_row(self.A, 0x2000, 0x200 << 8),
                big_row(self.B, 0x5000, 1 << 8 | 0xFFF00000 | 0x7F),
                big_row(self.C | 1, 0x3000, 0x200 << 8),
                big_row(self.C + 0x10000, 0x3000, 0x200 << 8, OTHER),
            ]
        )
        found = target.search(usage((1, 0x2000), (1, 0x5000)))
        assert found.complete
        assert [(one.address, one.size, one.pool, one.state) for one in found.blocks] == [
            (self.A, 0x2000, Pool.NONPAGED, BlockState.ALLOCATED),
            (self.C, 0x3000, Pool.NONPAGED, BlockState.FREE),
            (self.B, 0x5000, Pool.PAGED, BlockState.ALLOCATED),
        ]
        assert found.searched[0] == "256 rows of the big page table (3 of them in use)"

    @pytest.mark.parametrize("build", [22621, 26100])
    def test_pool_flags_are_recognised_without_the_build(self, build):
        target = Target(build)
        rows = [big_row(self.A + n * 0x10000, 0x1000, 0x40 << 8) for n in range(20)]
        rows.append(big_row(self.B, 0x1000, 0x100 << 8))
        rows.append(big_row(self.C, 0x1000, 0x81 << 8))
        target.add_big_table(rows)
        assert target.search(usage((21, 21 * 0x1000), (1, 0x1000))).complete

    @pytest.mark.parametrize("build", [22621, 26100])
    def test_pool_types_are_recognised_without_the_build(self, build):
        target = Target(build)
        rows = [big_row(self.A + n * 0x10000, 0x1000, 0x200 << 8) for n in range(20)]
        rows.append(big_row(self.B, 0x1000, 1 << 8))
        target.add_big_table(rows)
        assert target.search(usage((20, 20 * 0x1000), (1, 0x1000))).complete

    def test_vista_to_8_1(self):
        target = Target(WIN7)
        target.add_big_table([big_row(self.B, 0x1234, 1, wide=False)])
        assert target.search(usage(paged=(1, 0x1234))).complete
        assert target.search(usage(paged=(1, 0x2000))).complete  # charged by whole pages
        assert not target.search(usage(paged=(1, 0x1800))).complete
        assert not target.search(usage(paged=(2, 0x2000))).complete

    def test_rows_of_server_2003_do_not_tell_their_pool(self):
        target = Target(3790)
        row = struct.pack("<QIIQ", self.A, TAG, 3, 0)  # pages, then a quota pointer
        target.add_big_table([row])
        target.memory.put(NONPAGED, chain_page([(0x80, 5, TAG), (0xF80, 5, OTHER)]))
        found = target.search(usage((1, 0x80), (1, 0x3000)))
        assert found.complete
        assert [one.pool for one in found.blocks] == [Pool.NONPAGED, None]
        assert not target.search(usage((1, 0x80), (2, 0x3000))).complete

    def test_what_lies_in_a_big_block_is_data(self):
        target = Target(WIN11)
        target.add_big_table([big_row(self.A, 0x2000, 0x200 << 8, OTHER)])
        target.memory.put(self.A + PAGE, single_headers(3))
        target.memory.put(self.A + 2 * PAGE, single_headers(1))
        assert target.search().seen == 1

    def test_the_table_itself_is_not_searched(self):
        target = Target(19045, 4)
        base = 0xFFFFFFFF_88000000
        row = struct.pack("<IIII", 0x88300000 & 0xFFFFFFFF, TAG, 0x20000, 0x1000)
        target.memory.put(base, row * 0x100)
        target.memory.put(0xFFFFFFFF_81000000, struct.pack("<II", base & 0xFFFFFFFF, 0x100))
        target.symbols.addresses["nt!PoolBigPageTable"] = 0xFFFFFFFF_81000000
        target.symbols.addresses["nt!PoolBigPageTableSize"] = 0xFFFFFFFF_81000004
        found = target.search()
        assert {one.source for one in found.blocks} == {BlockSource.BIG_PAGES}
        assert found.seen == 0x100

    @pytest.mark.parametrize("rows", [0, 3, 1 << 40, (1 << 64) - 1])
    def test_a_table_that_makes_no_sense(self, rows):
        target = Target(WIN11)
        target.add_big_table([])
        target.memory.put(VARIABLES + 8, struct.pack("<Q", rows))
        assert any("makes no sense" in gap for gap in target.search().gaps)

    def test_no_table(self):
        gap = Target(WIN11).search().gaps[0]
        assert gap == "nt!PoolBigPageTable was not found: blocks larger than a page are missing"

    def test_pages_of_the_table_that_are_absent(self):
        target = Target(WIN11)
        target.add_big_table([big_row(self.A, 0x2000, 0x200 << 8)], 0x400)
        target.memory.remove(TABLE + PAGE)
        found = target.search(usage((1, 0x2000)))
        assert "of the big page table 1 page could not be read" in found.gaps
        assert found.complete

    def test_more_sizes_than_any_tag_has(self, monkeypatch):
        monkeypatch.setattr("kdleak.nt.blocks.tally.MOST_SIZES", 3)
        target = Target(WIN11)
        rows = [big_row(self.A + n * 0x10000, 0x1000 * n, 0x200 << 8) for n in range(1, 6)]
        target.add_big_table(rows)
        found = target.search(usage((5, 15 * 0x1000)))
        assert found.seen == 5
        assert [(one.size, one.allocated) for one in found.sizes] == [
            (0, 2), (0x1000, 1), (0x2000, 1), (0x3000, 1),
        ]  # fmt: skip
        assert "there are too many sizes: the rest is counted as of size 0" in found.gaps

    def test_rows_of_nonsense_are_no_blocks(self):
        target = Target(WIN11)
        target.add_big_table(
            [
                big_row(self.A + 0x10, 0x2000, 0),
                big_row(self.A, 0, 0),
                big_row(self.B, 1 << 63, 0),
                big_row(0x7FFF0000, 0x2000, 0),
            ]
        )
        assert target.search().seen == 0


class TestSegmentHeap:
    def built(self, build: int = 19045) -> Tuple[Target, SegmentHeapMachine]:
        target = Target(build)
        machine = SegmentHeapMachine(
            target.memory, build, heap_key=0x1234567890ABCDEF, lfh_key=0xFEDCBA0987654321
        )
        target.symbols.addresses["nt!ExPoolState"] = machine.state
        return target, machine

    @pytest.mark.parametrize("build", [18362, 19045, 22621, 26100, 28000])
    def test_chunks(self, build):
        target, machine = self.built(build)
        chunks = machine.add_vs(
            4, 4, [(0x150, True), (0x90, False), (0x150, True), (0x3C30, False)]
        )
        for at, size in zip(chunks, (0x140, 0x80, 0x140)):
            target.memory.put(at + 0x10, header(size, 2))
        start = machine.add_lfh(16, 2, 0x50, 0x100, [1, 0, 1])
        for number in range(3):
            target.memory.put(start + 0x100 + 0x50 * number, header(0x50, 3))
        found = target.search(usage((2, 0x280), (2, 0xA0)))
        assert found.complete
        assert {one.source for one in found.blocks} == {BlockSource.SEGMENT_HEAP}
        assert found.sizes == (
            SizeClass(0x50, allocated=2, free=1),
            SizeClass(0x80, free=1),
            SizeClass(0x140, allocated=2),
        )
        assert not any("lookaside" in gap for gap in found.gaps)
        assert "1 segment heap with 2 subsegments in 1 segment" in found.searched

    def test_a_decoy_beside_them_stays_a_header(self):
        target, machine = self.built()
        (at,) = machine.add_vs(4, 4, [(4 * PAGE - 0x30, True)])
        target.memory.put(at + 0x400, header(0x80, 2))
        found = target.search()
        assert found.sizes == (SizeClass(0x80, unknown=1),)
        assert found.blocks[0].source is BlockSource.HEADER

    def test_more_in_use_than_there_can_be(self):
        target, machine = self.built()
        chunks = machine.add_vs(4, 4, [(0x150, True), (0x150, True), (4 * PAGE - 0x2D0, False)])
        for at in chunks[:2]:
            target.memory.put(at + 0x10, header(0x140, 2))
        found = target.search(usage((1, 0x140)))
        assert not found.complete
        (gap,) = [gap for gap in found.gaps if found.kind_of(gap) is GapKind.SURPLUS]
        assert "more than there can be" in gap
        assert "freed blocks that a lookaside list keeps look as if in use" in found.gaps

    def test_an_unknown_layout_is_a_gap(self):
        target, machine = self.built()
        target.memory.put(machine.heap + 0x10, bytes(4))
        assert any(
            "layout of the segment heap of build 19045" in gap for gap in target.search().gaps
        )

    def test_found_without_symbols(self):
        target, machine = self.built()
        (at,) = machine.add_vs(4, 4, [(4 * PAGE - 0x30, True)])
        target.memory.put(at + 0x10, header(0x140, 2))
        target.symbols.forget("ExPoolState")
        kernel = Module("nt", machine.state, 0x300000, "ntoskrnl.exe")
        found = target.search(usage((1, 0x140)), modules=(kernel,))
        assert found.blocks[0].source is BlockSource.SEGMENT_HEAP
        assert any("by the heaps it points to" in one for one in found.searched)

    def test_without_its_symbol(self):
        assert any("nt!ExPoolState was not found" in gap for gap in Target(WIN11).search().gaps)
        assert not any("ExPoolState" in gap for gap in Target(WIN10).search().gaps)


class TestWhatIsTold:
    def target(self) -> Target:
        target = Target(WIN7)
        for number in range(40):
            target.memory.put(NONPAGED + number * PAGE, legacy_page())
        return target

    def test_the_limit_leaves_the_counts_alone(self):
        found = self.target().search(limit=5)
        assert len(found.blocks) == 5
        assert found.seen == 120
        assert {one.state for one in found.blocks} == {BlockState.ALLOCATED}
        assert [one.address for one in found.blocks] == sorted(one.address for one in found.blocks)

    def test_no_blocks_at_all(self):
        found = self.target().search(limit=0)
        assert not found.blocks
        assert found.seen == 120

    def test_one_size(self):
        found = self.target().search(size=0x80, limit=3)
        assert [one.size for one in found.blocks] == [0x80] * 3
        assert found.seen == 120

    def test_one_pool(self):
        found = self.target().search(usage((40, 40 * 0x140), (1, 1)), pool=Pool.NONPAGED, limit=99)
        assert found.complete
        assert found.allocated == (40, 40 * 0x140)
        assert {one.pool for one in found.blocks} == {Pool.NONPAGED, None}

    def test_contents(self):
        target = Target(WIN7)
        target.add_big_table([])
        number = TestBigPages.A >> 12
        slot = (number >> 24 ^ number >> 16 ^ number >> 8 ^ number) & 0xFF
        target.memory.put(
            TABLE + 0x18 * slot, big_row(TestBigPages.A, 0x2000, 0, OTHER, wide=False)
        )
        page = bytearray(chain_page([(0x140, 2, TAG), (0x80, 3, OTHER), (0xE40, 0, OTHER)]))
        body = struct.pack(
            "<6Q",
            DRIVER.base + 0x123,
            NONPAGED + 0x150,
            TestBigPages.A,
            NONPAGED + 0x158,
            5,
            ~0 & (1 << 64) - 1,
        )
        body += b"\\Device\\Leaky\0\0\0" + "Ünicode text".encode("utf-16-le") + b"\0\0abc\0"
        page[0x10 : 0x10 + len(body)] = body
        target.memory.put(NONPAGED, bytes(page))
        (block,) = target.search().blocks
        assert block.first_bytes == body[:64]
        assert block.strings == ("\\Device\\Leaky", "Ünicode text")
        first, second, third = block.pointers
        assert (first.offset, str(first.symbol)) == (0, "leakydrv!Entry+0x10")
        assert (second.offset, second.block) == (8, NONPAGED + 0x150)
        assert second.block_tag == PoolTag(OTHER)
        assert (third.offset, third.block) == (16, TestBigPages.A)
        assert third.block_tag == PoolTag(OTHER)

    def test_contents_stop_where_memory_does(self):
        target = Target(WIN11)
        target.add_big_table([big_row(TestBigPages.A, 0x3000, 0x200 << 8)])
        (block,) = target.search().blocks
        assert block.first_bytes == b""
        target.memory.put(TestBigPages.A, b"x" * PAGE)
        (block,) = target.search().blocks
        assert block.first_bytes == b"x" * 64


def test_without_numpy(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(MissingDependency) as raised:
        Target(WIN11).search()
    assert 'pip install "kdleak[dump]"' in str(raised.value)
