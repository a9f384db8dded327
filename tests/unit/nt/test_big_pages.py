"""Looking one page-aligned block up in the big page table."""

from __future__ import annotations

import pytest
from nt_fakes import BIG_X64, FakeBigPages, tag_value

from kdleak.model import Pool
from kdleak.nt.bigpages import BigPageTable
from kdleak.nt.layouts import BIG_PAGE_LAYOUTS, big_page_is_paged, big_page_layout
from kdleak.nt.tag_table import multiply_hash
from kdleak.tags import PoolTag

LEAK = tag_value("Leak")
BLOCK = 0xFFFF8A0123456000


def table(pages, build=22631, **more):
    return BigPageTable(pages.memory, pages.symbols, build, 8, **more)


@pytest.mark.parametrize("full_hash", [False, True])
@pytest.mark.parametrize("build", [19045, 22631, 26100])
def test_found_by_either_hash(build, full_hash):
    pages = FakeBigPages(big_page_layout(build, 8), full_hash=full_hash)
    packed = (0x40 if build >= 26100 else 0x200) << 8
    pages.add(BLOCK, LEAK | 0x80000000, 0x3000, packed)
    found = table(pages, build).find_big_page(BLOCK)
    assert found.address == BLOCK
    assert found.size == 0x3000
    assert found.tag == PoolTag(LEAK)
    assert found.pool is Pool.NONPAGED
    assert not found.freed


def test_few_reads_and_probing_past_others():
    pages = FakeBigPages(BIG_X64)
    slot = multiply_hash(BLOCK >> 12 & 0xFFFFFFFF) & 0xFFF
    same = [
        BLOCK + 0x1000 * step
        for step in range(1, 100000)
        if multiply_hash((BLOCK + 0x1000 * step) >> 12 & 0xFFFFFFFF) & 0xFFF == slot
    ][:3]
    for address in [*same, BLOCK]:
        pages.add(address, LEAK, 0x2000, 0x20000)
    finder = table(pages)
    assert finder.find_big_page(BLOCK).size == 0x2000
    assert len(pages.memory.reads) == 2  # both variables together, then the rows
    assert finder.find_big_page(BLOCK + 0x5000_0000) is None
    assert finder.find_big_page(BLOCK + 8) is None


def test_row_of_a_block_being_freed():
    pages = FakeBigPages(BIG_X64)
    pages.mark_freed(pages.add(BLOCK, LEAK, 0x2000, 0x100))
    finder = table(pages)
    assert finder.find_big_page(BLOCK) is None
    found = finder.find_big_page(BLOCK, freed=True)
    assert found.freed
    assert found.pool is Pool.PAGED


def test_probing_wraps_and_ends():
    pages = FakeBigPages(BIG_X64, rows=16)
    for step in range(16):
        pages.add(BLOCK + 0x1000 * step, LEAK, 0x1000, 0)
    finder = table(pages)
    assert all(finder.find_big_page(BLOCK + 0x1000 * step) for step in range(16))
    assert finder.find_big_page(BLOCK - 0x1000) is None


@pytest.mark.parametrize("rows", [0, 3, 1 << 30])
def test_senseless_size(rows):
    pages = FakeBigPages(BIG_X64)
    pages.memory.put(pages.symbols("nt!PoolBigPageTableSize"), rows.to_bytes(8, "little"))
    assert table(pages).find_big_page(BLOCK) is None


@pytest.mark.parametrize(
    ("build", "packed", "paged"),
    [
        (9600, 1, True), (9600, 0x200, False),
        (19045, 0x100, True), (19045, 0x20000, False), (22631, 0x900, True),
        (26100, 0x10000, True), (26100, 0x4000, False), (26100, 0x8000, False), (26100, 0, None),
        (26100, 0x14000, None),
    ],
)  # fmt: skip
def test_pool_of_a_row(build, packed, paged):
    assert big_page_is_paged(packed, build) is paged


def test_layouts_by_build():
    assert [big_page_layout(b, 8).row_size for b in (3790, 9600, 19045, 20348, 26100)] == [
        0x18, 0x18, 0x18, 0x20, 0x20,
    ]  # fmt: skip
    assert [big_page_layout(b, 4).row_size for b in (2600, 3790, 7601)] == [0xC, 0x10, 0x10]
    assert all(item.row_size >= item.size + item.size_width for item in BIG_PAGE_LAYOUTS)


def test_sizes_in_pages_on_the_oldest():
    layout = big_page_layout(3790, 8)
    pages = FakeBigPages(BIG_X64, rows=16)
    raw = bytearray(layout.row_size)
    raw[:8] = BLOCK.to_bytes(8, "little")
    raw[layout.key : layout.key + 4] = LEAK.to_bytes(4, "little")
    raw[layout.size : layout.size + 4] = (3).to_bytes(4, "little")
    pages.memory.put(pages.table, bytes(16 * BIG_X64.row_size))
    number = BLOCK >> 12
    slot = (number >> 24 ^ number >> 16 ^ number >> 8 ^ number) & 15
    pages.memory.put(pages.table + slot * layout.row_size, bytes(raw))
    found = table(pages, 3790).find_big_page(BLOCK)
    assert found.size == 0x3000
    assert found.pool is None
