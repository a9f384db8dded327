"""Pages in bulk: the same as page by page, whatever the tables are; and never without end."""

from __future__ import annotations

import struct
import time

import numpy as np
import pytest
from paging_ram import PAGE, Ram, frames_of

from kdleak.nt.space import page_scan
from kdleak.nt.space.paging import PagingMode
from kdleak.nt.space.virtual import VirtualMemory

BASE = 0xFFFFF800_00000000


def simple(frames, mapped, *, lead=0, flags=0x8000_0000_0000_0063):
    """x64: ``mapped`` is index -> entry of the page table at 0x4000 (of BASE)."""
    ram = Ram([1, 2, 3, 4, *frames], lead=lead)
    ram.q(0x1000, 0x1F0, 0x2063)
    ram.q(0x2000, 0, 0x3063)
    ram.q(0x3000, 0, 0x4063)
    for index, entry in mapped.items():
        ram.q(0x4000, index, entry << 12 | flags if entry < 0x1000 else entry)
    ram.stamp()
    return ram, VirtualMemory(ram, PagingMode.X64, 0x1000, 8)


def addresses(scan):
    return [(at - BASE) // PAGE for at in frames_of(scan)]


def test_batches_are_full_but_the_last_and_ascend():
    _, memory = simple(range(8, 20), {index: 8 + index % 12 for index in range(40)})
    sizes = [len(batch.addresses) for batch in memory.batches(BASE, BASE + (1 << 21), 16)]
    assert sizes == [16, 16, 8]
    found = frames_of(memory.batches(BASE, BASE + (1 << 21), 16))
    assert found == {BASE + i * PAGE: struct.pack("<Q", 8 + i % 12) for i in range(40)}
    with pytest.raises(ValueError, match="at least one page"):
        memory.batches(BASE, BASE + 1, 0)


@pytest.mark.parametrize("lead", [0, 0x2000, 0x2030])
def test_contiguous_pages_are_a_view_and_others_a_copy(lead):
    ram, memory = simple(range(8, 20), {0: 8, 1: 9, 2: 10, 5: 19, 6: 12}, lead=lead)
    straight = next(memory.batches(BASE, BASE + 3 * PAGE))
    assert np.shares_memory(straight.data, np.frombuffer(ram.data, dtype=np.uint8))
    mixed = next(memory.batches(BASE, BASE + 7 * PAGE))
    assert mixed.data[:, 0].tolist() == [8, 9, 10, 19, 12]
    assert not np.shares_memory(mixed.data, np.frombuffer(ram.data, dtype=np.uint8))


def test_pages_that_lie_at_odd_distances_in_the_file():
    ram, memory = simple(range(8, 20), {0: 8, 1: 9, 2: 15})
    odd = ram.pages.offsets

    def offsets(frames):
        places = odd(frames)
        places[frames == 15] += 8
        return places

    ram.pages.offsets = offsets
    batch = next(memory.batches(BASE, BASE + 3 * PAGE))
    assert batch.data[:, 0].tolist() == [8, 9, 15]


def test_absent_pages_and_tables_are_counted():
    ram, memory = simple([8], {0: 8, 1: 9, 2: 0x300})
    ram.q(0x3000, 1, 0x77063)  # a page table that the dump does not have
    ram.q(0x2000, 1, 0x78063)  # a directory
    scan = memory.batches(*memory.kernel_half)
    assert addresses(scan) == [0]
    assert (scan.mapped, scan.absent, scan.absent_tables, scan.tables) == (3, 2, 2, 5)
    assert memory.remarks == []


def test_bounds_and_skipped_ranges():
    _, memory = simple(range(8, 20), {index: 8 + index for index in range(10)})

    def of(start, end, *skip):
        ranges = [(BASE + a, BASE + b) for a, b in skip]
        return addresses(memory.batches(BASE + start, BASE + end, skip=ranges))

    assert of(0x2800, 0x4001) == [2, 3, 4]
    assert of(0, 1 << 30, (0x1000, 0x3000), (0x2000, 0x5000), (0x8000, 1 << 40)) == [0, 5, 6, 7]
    assert of(0, 1 << 30, (0x1800, 0x3800)) == [0, 1, 3, 4, 5, 6, 7, 8, 9]
    assert of(0, 1 << 30, (0x1000, 0x1000), (0x5000, 0x4000)) == list(range(10))
    assert of(0x3000, 0x3000) == []
    assert of(0x4000, 0x3000) == []
    assert of(0x5000, 0x7000, (0, 0x6000)) == [6]
    whole = frames_of(memory.batches(0, 1 << 64))
    assert len(whole) == 10


def test_filters():
    nx, writable, clean = 1 << 63, 0x3, 0x801
    entries = {
        0: 0x8000 | writable | nx,
        1: 0x9000 | 1 | nx,
        2: 0xA000 | clean | nx,
        3: 0xB000 | 1,
        4: 0xC880,  # transition, read-write
        5: 0xD820,  # transition, read-only
        6: 0xE860,  # transition, execute and read
    }
    _, memory = simple(range(8, 20), entries, flags=0)
    end = BASE + (1 << 21)
    assert addresses(memory.batches(BASE, end)) == [0, 1, 2, 3, 4, 5, 6]
    assert addresses(memory.batches(BASE, end, writable_only=True)) == [0, 2, 4]
    assert addresses(memory.batches(BASE, end, no_execute_only=True)) == [0, 1, 2, 4, 5]
    both = memory.batches(BASE, end, writable_only=True, no_execute_only=True)
    assert addresses(both) == [0, 2, 4]


def test_tables_above_take_rights_away():
    ram, memory = simple([8, 9], {0: 8, 1: 9}, flags=0x3)
    end = BASE + (1 << 21)
    assert addresses(memory.batches(BASE, end, no_execute_only=True)) == []
    ram.q(0x2000, 0, 1 << 63 | 0x3061)  # not writable, not executable
    assert addresses(memory.batches(BASE, end, no_execute_only=True)) == [0, 1]
    assert addresses(memory.batches(BASE, end, writable_only=True)) == []


def test_filters_of_arm64_and_of_large_pages():
    ram = Ram([1, 2, 3, 4, 8, 9, *range(0x200, 0x400)])
    ram.q(0x1000, 0x1F0, 0x2003)
    ram.q(0x2000, 0, 0x3003)
    ram.q(0x3000, 0, 0x4003)
    ram.q(0x4000, 0, 0x8003)
    ram.q(0x4000, 1, 1 << 53 | 0x9083)  # read-only, PXN
    ram.q(0x3000, 1, 1 << 53 | 0x20_0001)  # block: writable, PXN
    ram.q(0x3000, 2, 0x20_0081)  # block: read-only
    memory = VirtualMemory(ram, PagingMode.ARM64, 0x1000, 8)
    large = list(range(512, 1024))
    end = BASE + (1 << 30)
    assert addresses(memory.batches(BASE, end)) == [0, 1, *large, *range(1024, 1536)]
    assert addresses(memory.batches(BASE, end, writable_only=True)) == [0, *large]
    assert addresses(memory.batches(BASE, end, no_execute_only=True)) == [1, *large]
    ram.q(0x2000, 0, 1 << 59 | 1 << 62 | 0x3003)  # PXNTable, APTable
    assert addresses(memory.batches(BASE, end, writable_only=True)) == []
    assert len(addresses(memory.batches(BASE, end, no_execute_only=True))) == 1026


def test_large_pages_of_every_size():
    ram = Ram([1, 2, 3, 0x240, 0x40123, 0x7FFFF], end=0x80000)
    ram.q(0x1000, 0x1F0, 0x2063)
    ram.q(0x2000, 0, 0x3063)
    ram.q(0x3000, 5, 0x20_00E3)
    ram.q(0x2000, 3, 0x4000_00E3)
    ram.q(0x2000, 4, 0x1_4000_00E3)  # beyond the end of memory
    ram.stamp()
    memory = VirtualMemory(ram, PagingMode.X64, 0x1000, 8)
    scan = memory.batches(*memory.kernel_half)
    found = frames_of(scan)
    assert found == {
        BASE + 5 * (1 << 21) + 0x40 * PAGE: struct.pack("<Q", 0x240),
        BASE + 3 * (1 << 30) + 0x123 * PAGE: struct.pack("<Q", 0x40123),
        BASE + 3 * (1 << 30) + 0x3FFFF * PAGE: struct.pack("<Q", 0x7FFFF),
    }
    part = memory.batches(BASE + 3 * (1 << 30) + 0x123 * PAGE, BASE + 3 * (1 << 30) + 0x124 * PAGE)
    assert len(frames_of(part)) == 1
    assert part.mapped == 1
    for address in found:
        assert memory.page(address) is not None


def test_physical_memory_without_a_buffer():
    ram, memory = simple(range(8, 20), {0: 8, 1: 9, 3: 15, 4: 0x900})

    class Plain:
        page = staticmethod(ram.page)
        read_physical = staticmethod(ram.read_physical)

    plain = VirtualMemory(Plain(), PagingMode.X64, 0x1000, 8)
    end = BASE + (1 << 21)
    assert frames_of(plain.batches(BASE, end)) == frames_of(memory.batches(BASE, end))
    assert addresses(plain.batches(BASE, end)) == [0, 1, 3]


# ---- 32-bit ----


def x86_tables(mode):
    """80000000 and C0400000 map frame 8; the self-map is where Windows has it."""
    ram = Ram([1, 2, 3, 4, 5, 6, 8, 9])
    if mode is PagingMode.X86:
        ram.d(0x1000, 0x200, 0x2063)
        ram.d(0x2000, 0, 0x8063)
        ram.d(0x1000, 0x300, 0x1063)
        return ram, 0x1000
    for index in range(4):  # directories in frames 2 to 5
        ram.q(0x1020, index, (2 + index) << 12 | 1)
        ram.q(0x5000, index, (2 + index) << 12 | 0x63)
    ram.q(0x4000, 0, 0x6063)
    ram.q(0x6000, 0, 0x8063)
    return ram, 0x1020


@pytest.mark.parametrize("mode", [PagingMode.X86, PagingMode.X86_PAE])
def test_32_bit_addresses_come_back_as_they_were_asked_for(mode):
    ram, root = x86_tables(mode)
    memory = VirtualMemory(ram, mode, root, 4)
    assert list(frames_of(memory.batches(*memory.kernel_half))) == [0xFFFFFFFF_80000000]
    assert list(frames_of(memory.batches(0x80000000, 1 << 32))) == [0x80000000]
    assert memory.remarks == []
    tables = frames_of(memory.batches(0x80000000, 1 << 32, page_tables=True))
    # The page, and all tables: a directory and a table, or four directories and a table.
    assert len(tables) == (3 if mode is PagingMode.X86 else 6)
    for address in tables:
        assert memory.page(address) is not None


# ---- tables that mean harm ----


def within(seconds, work):
    start = time.perf_counter()
    found = work()
    assert time.perf_counter() - start < seconds
    return found


def test_self_map_is_left_out_unless_asked_for():
    ram, memory = simple(range(8, 10), {0: 8, 1: 9})
    ram.q(0x1000, 0x1ED, 0x1063)
    assert addresses(memory.batches(*memory.kernel_half)) == [0, 1]
    assert memory.remarks == []
    tables = frames_of(memory.batches(*memory.kernel_half, page_tables=True))
    expected, at = {BASE, BASE + PAGE}, BASE
    for _ in range(4):  # the entry of a page's address lies in its table, and so on to the root
        at = 0xFFFFF680_00000000 + (at >> 12 & (1 << 36) - 1) * 8 & ~0xFFF
        expected.add(at)
    assert set(tables) == expected
    for address in tables:
        assert memory.page(address) is not None


@pytest.mark.parametrize("mode", list(PagingMode))
def test_every_entry_leads_to_its_own_table(mode):
    ram = Ram([1])
    size = memory_entry = 4 if mode is PagingMode.X86 else 8
    entry = 0x1003 if mode is PagingMode.ARM64 else 0x1063
    for index in range(PAGE // size):
        (ram.d if memory_entry == 4 else ram.q)(0x1000, index, entry)
    memory = VirtualMemory(ram, mode, 0x1000, size)
    for start, end in (memory.kernel_half, (0, 1 << 64)):
        assert within(1, lambda: frames_of(memory.batches(start, end))) == {}  # noqa: B023
        aliases = within(2, lambda: sum(
            len(b.addresses) for b in memory.batches(start, end, page_tables=True)  # noqa: B023
        ))  # fmt: skip
        assert aliases <= 1024


def test_tables_that_lead_to_each_other_are_walked_once_per_level():
    frames = range(1, 65)
    ram = Ram(frames)
    for frame in frames:
        for index in range(512):
            ram.q(frame << 12, index, ((frame * 31 + index * 17) % 64 + 1) << 12 | 0x63)
    for mode in (PagingMode.X64, PagingMode.X64_LA57):
        memory = VirtualMemory(ram, mode, 0x1000, 8)

        def count(memory=memory):
            return sum(len(batch.addresses) for batch in memory.batches(*memory.kernel_half))

        found = within(5, count)
        assert found <= 64 * 512 + 512
        assert any("more than one place" in remark for remark in memory.remarks)


def test_pages_handed_out_are_limited_by_the_dump(monkeypatch):
    monkeypatch.setattr(page_scan, "_SMALLEST_LIMIT", 64)
    ram = Ram(range(1, 65))
    ram.q(0x1000, 0x1F0, 0x2063)
    for index in range(512):
        ram.q(0x2000, index, 0x00E3)  # 1 GiB pages over all memory, again and again
    memory = VirtualMemory(ram, PagingMode.X64, 0x1000, 8)
    count = within(2, lambda: sum(len(b.addresses) for b in memory.batches(*memory.kernel_half)))
    assert count <= 5 * 64 + 64
    assert ["over and over" in remark for remark in memory.remarks] == [True]


def test_frames_looked_up_are_limited(monkeypatch):
    monkeypatch.setattr(page_scan, "_SMALLEST_LIMIT", 64)
    monkeypatch.setattr(page_scan, "_MOST_END", 0)
    ram = Ram([1, 2, 3], end=1 << 36)
    ram.q(0x1000, 0x1F0, 0x2063)
    for index in range(512):
        ram.q(0x2000, index, 0x7_0000_00E3 + (index << 30))  # memory that the dump lacks
    memory = VirtualMemory(ram, PagingMode.X64, 0x1000, 8)
    scan = memory.batches(*memory.kernel_half)
    assert within(2, lambda: frames_of(scan)) == {}
    assert scan.absent <= 2 * page_scan._STRIDE
    assert ["far more memory" in remark for remark in memory.remarks] == [True]


def test_tables_walked_are_limited(monkeypatch):
    monkeypatch.setattr(page_scan, "_SMALLEST_LIMIT", 64)
    ram, memory = simple(range(8, 60), {})
    for index in range(50):
        ram.q(0x3000, index, (8 + index) << 12 | 0x63)
        ram.put((8 + index) << 12, bytes(PAGE))
        ram.q((8 + index) << 12, 0, 0x4063)
    scan = memory.batches(*memory.kernel_half)
    found = frames_of(scan)
    assert scan.tables == 16
    assert len(found) == 14
    assert ["more than the dump has room for" in remark for remark in memory.remarks] == [True]


def test_prototypes_followed_are_limited(monkeypatch):
    monkeypatch.setattr(page_scan, "_MOST_PROTOTYPES", 10)
    ram, memory = simple([8, 9], {0: 8})
    ram.put(0x8000, struct.pack("<Q", 0x9063) * 512)
    for index in range(1, 100):
        ram.q(0x4000, index, (BASE + 8 * index) << 16 & (1 << 64) - 1 | 0x400)
    found = frames_of(memory.batches(BASE, BASE + (1 << 21)))
    assert len(found) == 11
    assert ["prototype" in remark for remark in memory.remarks] == [True]


def test_root_that_the_dump_does_not_have():
    memory = VirtualMemory(Ram([5]), PagingMode.X64, 0x1000, 8)
    scan = memory.batches(*memory.kernel_half)
    assert frames_of(scan) == {}
    assert scan.absent_tables == 1
    assert memory.page(BASE) is None
    assert list(memory.available(0, 1 << 64)) == []
