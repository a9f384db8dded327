"""One address through tables of every mode: entries written out by hand, field by field."""

from __future__ import annotations

import pytest
from paging_ram import Ram, frames_of, walk

from kdleak.errors import MemoryUnreadable
from kdleak.model import Architecture
from kdleak.nt.space import virtual
from kdleak.nt.space.paging import (
    PagingMode,
    SoftwareState,
    canonical,
    entry_executable,
    entry_writable,
    kernel_half,
    paging_modes,
    software_state,
)
from kdleak.nt.space.virtual import LARGEST_READ, VirtualMemory

BIG = 1 << 35


def checked(ram, mode, root, pointer_size, expected, **more):
    """Every expectation holds by translate, and the slow walk agrees."""
    memory = VirtualMemory(ram, mode, root, pointer_size, **more)
    for address, physical in expected.items():
        assert memory.translate(address) == physical, hex(address)
        if not more:
            slow = walk(ram, mode, root, address)
            assert physical == (slow if isinstance(slow, int) else None), hex(address)
    return memory


def test_x64_four_levels():
    ram = Ram([1, 2, 3, 4, 5, 6], end=BIG)
    # FFFFF803`12345678: PML4 0x1F0, PDPT 0x00C, PD 0x091, PT 0x145.
    ram.q(0x1000, 0x1F0, 0x8A00_0000_0000_2863)  # bits above 47 are no address
    ram.q(0x2000, 0x00C, 0x0000_0000_0000_3063)
    ram.q(0x3000, 0x091, 0x0000_0000_0000_4063)
    ram.q(0x4000, 0x145, 0x8000_0007_6543_2963)
    ram.q(0x3000, 0x092, 0x8000_0001_234A_00E3)  # 2 MiB: bits 12-20 are no address (PAT)
    ram.q(0x2000, 0x00D, 0x8000_0001_7FFF_F0E3)  # 1 GiB
    ram.q(0x1000, 0x1F1, 0x0000_0000_0000_20E3)  # a PML4 entry cannot be large
    checked(
        ram, PagingMode.X64, 0x1ABC | 1 << 63, 8,
        {
            0xFFFFF803_12345678: 0x7_6543_2678,
            0xFFFFF803_12344678: None,
            0xFFFFF803_12456789: 0x1_2340_0000 + 0x56789,
            0xFFFFF803_5FEDCBA9: 0x1_4000_0000 + 0x1FEDCBA9,
            0xFFFFF883_12345678: None,
            0x0000F803_12345678: None,  # not canonical
            0xFFFF7803_12345678: None,
            0x00007803_12345678: None,
        },
    )  # fmt: skip


def test_x64_five_levels():
    ram = Ram([1, 2, 3, 4, 5], end=BIG)
    # FF12F803`12345678: PML5 bits 56-48 = 0x112.
    ram.q(0x1000, 0x112, 0x2063)
    ram.q(0x2000, 0x1F0, 0x3063)
    ram.q(0x3000, 0x00C, 0x4063)
    ram.q(0x4000, 0x091, 0x5063)
    ram.q(0x5000, 0x145, 0x8000_0000_0777_7963)
    checked(
        ram, PagingMode.X64_LA57, 0x1000, 8,
        {0xFF12F803_12345678: 0x777_7678, 0xFFFFF803_12345678: None, 0xFE12F803_12345678: None},
    )  # fmt: skip


def test_x86_with_large_pages_beyond_4_gib():
    ram = Ram([1, 2], end=BIG)
    # 80412345: directory 0x201, table 0x012.
    ram.d(0x1000, 0x201, 0x0000_2063)
    ram.d(0x2000, 0x012, 0x7654_3163)
    ram.d(0x1000, 0x202, 0x8080_01E3)  # 4 MiB at 80800000
    ram.d(0x1000, 0x203, 0x00C0_01E3 | 0xA << 13)  # PSE-36: bits 13-16 are address bits 32-35
    ram.d(0x1000, 0x204, 0x00C0_01E3 | 1 << 17)  # reserved
    memory = checked(
        ram, PagingMode.X86, 0x1018, 4,
        {
            0x80412345: 0x76543345,
            0xFFFFFFFF_80412345: 0x76543345,
            0x00000001_80412345: None,
            0x80ABCDEF: 0x80ABCDEF,
            0x80FFFFFF: 0xA_00FF_FFFF,
            0x81000000: None,
            0x00412345: None,
        },
    )  # fmt: skip
    assert memory.kernel_half == (0xFFFFFFFF_80000000, 1 << 64)


def test_x86_pae():
    ram = Ram([1, 2, 3, 4], end=BIG)
    root = 0x1E60  # 32-byte aligned, in the middle of a page
    # 8A3FF123: pointer 2, directory 0x051, table 0x1FF.
    ram.q(root, 2, 0x2001)
    ram.q(0x2000, 0x051, 0x3063)
    ram.q(0x3000, 0x1FF, 0x8000_0002_3456_7163)
    ram.q(0x2000, 0x052, 0x8000_0003_8020_00E3)
    ram.q(root, 3, 0x2081)  # bit 7 is reserved there
    checked(
        ram, PagingMode.X86_PAE, root | 0x1F, 4,
        {
            0x8A3FF123: 0x2_3456_7123,
            0xFFFFFFFF_8A3FF123: 0x2_3456_7123,
            0x8A5ABCDE: 0x3_8020_0000 + 0x1ABCDE,
            0xCA3FF123: None,
            0x0A3FF123: None,
        },
    )  # fmt: skip


def test_arm64():
    ram = Ram([1, 2, 3, 4], end=BIG)
    ram.q(0x1000, 0x1F0, 0x0040_0000_0000_2003)
    ram.q(0x2000, 0x00C, 0x3003)
    ram.q(0x3000, 0x091, 0x4003)
    ram.q(0x4000, 0x145, 0x0060_0007_6543_2F03)
    ram.q(0x4000, 0x146, 0x0060_0007_6543_2F01)  # reserved at the last level
    ram.q(0x3000, 0x092, 0x0060_0001_2340_0F01)  # 2 MiB block
    ram.q(0x2000, 0x00D, 0x0060_0001_4000_0F01)  # 1 GiB block
    ram.q(0x1000, 0x1F1, 0x2001)  # no block at the top
    checked(
        ram, PagingMode.ARM64, 0x0042_0000_0000_1001, 8,  # ASID and CnP in TTBR1
        {
            0xFFFFF803_12345678: 0x7_6543_2678,
            0xFFFFF803_12346678: None,
            0xFFFFF803_12456789: 0x1_2340_0000 + 0x56789,
            0xFFFFF803_5FEDCBA9: 0x1_4000_0000 + 0x1FEDCBA9,
            0xFFFFF883_12345678: None,
        },
    )  # fmt: skip


# ---- entries of the memory manager ----

TABLE = 0xFFFFF800_00000000


def software(frames=(1, 2, 3, 4, 5, 6), end=0x100, **more):
    """x64 tables with the page table of FFFFF800`00000000 at 0x4000, and frames 5 and 6 marked."""
    ram = Ram(frames, end=end)
    ram.q(0x1000, 0x1F0, 0x2063)
    ram.q(0x2000, 0, 0x3063)
    ram.q(0x3000, 0, 0x4063)
    ram.put(0x5000, b"five" * 1024)
    return ram, VirtualMemory(ram, PagingMode.X64, 0x1000, 8, **more)


def page(number):
    return TABLE + 0x1000 * number


@pytest.mark.parametrize(
    ("entry", "frame"),
    [
        (0x5880, 5),  # transition, read-write, as before 17763
        (0x5890, 5),  # SwizzleBit set: plain
        (0x2000_0000_5880, 5),  # bit 45 inverted
        (0x3F00_0000_5880, 5),  # more bits inverted
        (0x2000_0000_5890, 0x2_0000_0005),  # plain, and nowhere
        (0x5C80, None),  # prototype wins over transition
    ],
)
def test_transition(entry, frame):
    ram, memory = software()
    ram.q(0x4000, 7, entry)
    assert memory.translate(page(7) + 4) == (None if frame is None else frame << 12 | 4)
    scanned = frames_of(memory.batches(page(0), page(512)))
    if frame == 5:
        assert memory.read(page(7), 8) == b"fivefive"
        assert scanned == {page(7): b"fivefive"}
    else:
        assert memory.page(page(7)) is None
        assert not scanned


def test_transition_to_a_page_that_a_smaller_dump_lacks_is_no_other_page():
    ram, memory = software()
    for index, entry in enumerate([0x0010_0000_5880, 0x0000_0010_5880, 0x0001_0000_5880]):
        ram.q(0x4000, index, entry)
        assert memory.translate(page(index)) == entry & 0xFFFF_FFFF_F000
        assert memory.page(page(index)) is None
    scan = memory.batches(page(0), page(512))
    assert frames_of(scan) == {}
    assert scan.absent == 3
    memory.close()
    memory.machine_end = 0x100  # now it is known to have none of that
    assert [memory.frame(page(index)) for index in range(3)] == [5, 5, 5]
    assert len(frames_of(memory.batches(page(0), page(512)))) == 3


def test_transition_with_a_known_mask_that_lies_below_the_end():
    ram, memory = software(end=1 << 30, invalid_mask=0x0000_0001_0000_0000)
    ram.q(0x4000, 7, 0x1_0000_5880)
    ram.q(0x4000, 8, 0x5890)
    assert memory.translate(page(7)) == 0x5000
    assert memory.translate(page(8)) == 0x5000
    assert len(frames_of(memory.batches(page(0), page(512)))) == 2


def test_demand_zero_reads_as_zeros_and_is_no_page():
    ram, memory = software()
    ram.q(0x4000, 0, 0x5063)
    ram.q(0x4000, 1, 0x80)
    assert memory.translate(page(1)) is None
    assert memory.read(page(1) - 4, 8) == b"five" + bytes(4)
    assert bytes(memory.page(page(1))) == bytes(0x1000)
    assert [at for at, _ in memory.available(page(0), 0x4000)] == [page(0), page(1)]
    assert list(frames_of(memory.batches(page(0), page(4)))) == [page(0)]


@pytest.mark.parametrize(
    ("mode", "entry", "mask", "state"),
    [
        (PagingMode.X64, 0, 0, SoftwareState.ELSEWHERE),  # never mapped
        (PagingMode.X64, 0x0000_1234_0000_0080, 0, SoftwareState.ELSEWHERE),  # offset 0x1234
        (PagingMode.X64, 0x1080, 0, SoftwareState.ELSEWHERE),  # page file 1, since 17763
        (PagingMode.X64, 0x0082, 0, SoftwareState.ELSEWHERE),  # page file 1, before
        (PagingMode.X64, 0x0090, 0, SoftwareState.DEMAND_ZERO),  # SwizzleBit
        (PagingMode.X64, 0x0000_2000_0000_0080, 0, SoftwareState.ELSEWHERE),
        (PagingMode.X64, 0x0000_2000_0000_0080, 1 << 45, SoftwareState.DEMAND_ZERO),
        (PagingMode.X64, 0x0000_2000_0000_0090, 1 << 45, SoftwareState.ELSEWHERE),
        (PagingMode.X86, 0x0080, 0, SoftwareState.DEMAND_ZERO),
        (PagingMode.X86, 0x5080, 0, SoftwareState.ELSEWHERE),
        (PagingMode.X86, 0x0092, 0, SoftwareState.ELSEWHERE),
        (PagingMode.X86, 0x5880, 0, SoftwareState.TRANSITION),
        (PagingMode.X86_PAE, 0x8012_3456_0000_0400, 0, SoftwareState.PROTOTYPE),
        (PagingMode.ARM64, 0x0000_0000_5880, 0, SoftwareState.TRANSITION),
    ],
)
def test_what_an_entry_that_is_not_valid_means(mode, entry, mask, state):
    assert software_state(mode, entry, mask) is state


@pytest.mark.parametrize(
    ("real", "contents"),
    [
        (0x5063, b"fivefive"),
        (0x5880, b"fivefive"),
        (0x0080, bytes(8)),
        (0xFFFFF800_0000_0400 | 0x0400, None),  # another prototype: a mapped file
        (0x0000_0007_0000_0080, None),
    ],
)
def test_prototype_is_followed_once(real, contents):
    ram, memory = software()
    ram.q(0x4000, 1, 0x6063)  # the prototype entries are in frame 6, at FFFFF800`00001000
    ram.q(0x6000, 2, real)
    ram.q(0x4000, 9, (page(1) + 0x10) << 16 & (1 << 64) - 1 | 0x400)
    if contents is None:
        assert memory.page(page(9)) is None
    else:
        assert memory.read(page(9), 8) == contents
    scanned = frames_of(memory.batches(page(9), page(10)))
    assert scanned == ({page(9): contents} if contents and any(contents) else {})


def test_prototype_that_names_itself_or_an_odd_address_ends():
    ram, memory = software()
    ram.q(0x4000, 1, 0x4063)  # the page table, mapped at FFFFF800`00001000
    ram.q(0x4000, 9, (page(1) + 8 * 9) << 16 & (1 << 64) - 1 | 0x400)
    ram.q(0x4000, 10, (page(1) + 3) << 16 & (1 << 64) - 1 | 0x400)
    assert memory.translate(page(9)) is None
    assert memory.translate(page(10)) is None


def test_prototype_of_pae_and_of_plain_x86():
    ram = Ram([1, 2, 3, 4, 5])
    ram.q(0x1000, 2, 0x2001)
    ram.q(0x2000, 0, 0x3063)
    ram.q(0x3000, 1, 0x4063)
    ram.q(0x4000, 5, 0x5163)
    ram.q(0x3000, 2, 0x8000_1028 << 32 | 0x400)
    checked(ram, PagingMode.X86_PAE, 0x1000, 4, {0x80002010: 0x5010})
    ram = Ram([1, 2])
    ram.d(0x1000, 0x200, 0x2063)
    ram.d(0x2000, 2, 0x1234_5400)
    checked(ram, PagingMode.X86, 0x1000, 4, {0x80002010: None})


# ---- reading ----


def test_reads_are_exact_or_name_the_first_byte_missing():
    ram, memory = software()
    ram.q(0x4000, 0, 0x5063)
    ram.q(0x4000, 1, 0x6063)
    ram.q(0x4000, 2, 0x9063)  # a frame that the dump does not have
    ram.put(0x6000, b"six " * 1024)
    assert memory.read(page(1) - 2, 6) == b"vesix "
    assert memory.read(page(0), 0x2000) == b"five" * 1024 + b"six " * 1024
    assert memory.read(page(2), 0) == b""
    for start, size, missing in [
        (page(0) + 5, 0x2000, page(2)),
        (page(2) + 7, 1, page(2) + 7),
        (TABLE - 8, 16, TABLE - 8),
    ]:
        with pytest.raises(MemoryUnreadable) as caught:
            memory.read(start, size)
        assert caught.value.address == missing
    assert memory.translate(page(2)) == 0x9000  # what the tables say
    assert memory.page(page(2)) is None
    with pytest.raises(MemoryUnreadable, match="more than one read"):
        memory.read(page(0), LARGEST_READ + 1)


def test_pages_are_views_of_the_dump():
    ram, memory = software()
    ram.q(0x4000, 0, 0x5063)
    view = memory.page(page(0) + 0x123)
    ram.put(0x5000, b"seen")
    assert view[:4] == b"seen"
    memory.close()
    assert memory.read(page(0), 4) == b"seen"


def test_available_gives_the_parts_that_are_there():
    ram, memory = software()
    ram.q(0x4000, 3, 0x5063)
    ram.q(0x4000, 511, 0x6063)
    parts = [(at, len(part)) for at, part in memory.available(page(3) + 0x10, 1 << 46)]
    assert parts == [(page(3) + 0x10, 0xFF0), (page(511), 0x1000)]
    assert [(at, bytes(part)) for at, part in memory.available(page(3) + 2, 4)] == [
        (page(3) + 2, b"vefi")
    ]
    # Over the hole between the halves in one step.
    found = [at for at, _ in memory.available(0x7FFF_FFFF_F000, TABLE + 0x4000 - 0x7FFF_FFFF_F000)]
    assert found == [page(3)]


def test_available_ends_on_tables_with_absurdly_many_gaps(monkeypatch):
    monkeypatch.setattr(virtual, "_MOST_GAPS", 1000)
    ram = Ram([1, 2])
    ram.q(0x1000, 511, 0x2063)
    for index in range(1, 512, 2):  # at every level again: half of each last table is absent
        ram.q(0x2000, index, 0x2063)
    memory = VirtualMemory(ram, PagingMode.X64, 0x1000, 8)
    parts = [at for at, _ in memory.available(0xFFFFFF80_00000000, 1 << 39)]
    assert 900 < len(parts) < 1001
    assert len(memory.remarks) == 1
    assert "gaps" in memory.remarks[0]


# ---- facts about modes ----


def test_rights_of_entries():
    x64, arm = PagingMode.X64, PagingMode.ARM64
    assert entry_writable(x64, 0x5003)
    assert entry_writable(x64, 0x5801)  # clean: hardware read-only, Windows' bit 11
    assert not entry_writable(x64, 0x5001)
    assert entry_writable(x64, 0x5880)  # transition, MM_READWRITE
    assert not entry_writable(x64, 0x5820)  # transition, MM_READONLY
    assert entry_executable(x64, 0x5001)
    assert not entry_executable(x64, 1 << 63 | 0x5001)
    assert entry_executable(x64, 0x5860)  # transition, MM_EXECUTE_READ
    assert not entry_executable(x64, 0x5880)
    assert entry_writable(arm, 0x5003)
    assert not entry_writable(arm, 0x5083)
    assert entry_writable(arm, 1 << 51 | 0x5083)
    assert not entry_executable(arm, 1 << 53 | 0x5003)
    assert entry_executable(PagingMode.X86, 0x5001)


def test_canonical_addresses_and_halves():
    assert canonical(PagingMode.X64, 0xFFFF8000_00000000) == 1 << 47
    assert canonical(PagingMode.X64, 1 << 47) is None
    assert canonical(PagingMode.X64_LA57, 1 << 47) == 1 << 47
    assert canonical(PagingMode.X64_LA57, 1 << 56) is None
    assert canonical(PagingMode.X86, 0xFFFFFFFF_80000000) == 0x80000000
    assert canonical(PagingMode.X86, 0x1_80000000) is None
    assert kernel_half(PagingMode.X64) == (0xFFFF8000_00000000, 1 << 64)
    assert kernel_half(PagingMode.X64_LA57) == (0xFF000000_00000000, 1 << 64)


def test_modes_that_a_machine_may_be_in():
    assert paging_modes(Architecture.X64) == (PagingMode.X64, PagingMode.X64_LA57)
    assert paging_modes(Architecture.X64, levels=5)[0] is PagingMode.X64_LA57
    assert paging_modes(Architecture.X86) == (PagingMode.X86_PAE, PagingMode.X86)
    assert paging_modes(Architecture.X86, True)[0] is PagingMode.X86_PAE
    assert paging_modes(Architecture.X86, False)[0] is PagingMode.X86
    assert paging_modes(Architecture.ARM64) == (PagingMode.ARM64,)
