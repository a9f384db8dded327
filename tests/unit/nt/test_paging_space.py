"""The kernel's page tables of a dump: proved, or searched for, or refused in words."""

from __future__ import annotations

import struct
import sys
import time

import pytest
from paging_ram import PAGE, Ram, header_of

from kdleak.errors import MissingDependency, TargetError
from kdleak.model import Architecture
from kdleak.nt.space.kernel_space import choose_space, find_self_maps, prove_space
from kdleak.nt.space.paging import PagingMode
from kdleak.nt.space.virtual import VirtualMemory

MACHINES = {
    PagingMode.X86: 0x14C,
    PagingMode.X86_PAE: 0x14C,
    PagingMode.X64: 0x8664,
    PagingMode.X64_LA57: 0x8664,
    PagingMode.ARM64: 0xAA64,
}
MODES = pytest.mark.parametrize("mode", list(PagingMode))
ROOT = 0x8000


def kernel(mode, *, root_page=8, levels=0, present=True, end=None):
    """A machine whose data page (frame 0x20) and image page (0x21) are mapped at ``base``."""
    wide = mode not in {PagingMode.X86, PagingMode.X86_PAE}
    base = 0xFFFFF801_00000000 if wide else 0xFFFFFFFF_80400000
    frames = [root_page, *range(0x10, 0x18), *([0x20, 0x21] if present else [])]
    ram = Ram(frames, end=end or 0x100)
    valid = 3 if mode is PagingMode.ARM64 else 0x63
    size = 4 if mode is PagingMode.X86 else 8
    put = ram.d if size == 4 else ram.q
    root = root_page * PAGE
    if mode is PagingMode.X86_PAE:
        for index in range(4):
            ram.q(root, index, (0x10 + index) << 12 | 1)
            ram.q(0x13000, index, (0x10 + index) << 12 | 0x63)
        ram.q(0x12000, 2, 0x14063)
        last = 0x14000
    elif mode is PagingMode.X86:
        ram.d(root, 0x201, 0x14063)
        ram.d(root, 0x300, root | 0x63)
        last = 0x14000
    else:
        shifts = [39, 30, 21] if mode is not PagingMode.X64_LA57 else [48, 39, 30, 21]
        put(root, 0x1ED, root | valid)
        table = root
        for number, shift in enumerate(shifts):
            below = (0x11 + number) << 12
            put(table, base >> shift & 0x1FF, below | valid)
            table = below
        last = table
    put(last, 0, 0x20 << 12 | valid)
    put(last, 1, 0x21 << 12 | valid)

    head, entry, block, image = base + 0x40, base + 0x80, base + 0x400, base + PAGE
    pointers = f"<{'I' if not wide else 'Q'}"
    width = 8 if wide else 4
    mask = (1 << 8 * width) - 1
    if present:
        for at, value in {
            0x40: entry, 0x40 + width: entry, 0x80: head, 0x80 + width: head,
            0x80 + (0x30 if wide else 0x18): image,
        }.items():  # fmt: skip
            ram.put(0x20000 + at, struct.pack(pointers, value & mask))
        ram.put(0x20400, struct.pack("<QQ4sIQ", head, head, b"KDBG", 0x340, image))
        ram.put(0x20436, struct.pack("<H", levels << 2))
        ram.put(0x21000, b"MZ")
        ram.put(0x2103C, struct.pack("<I", 0x80))
        ram.put(0x21080, b"PE\0\0" + struct.pack("<H", MACHINES[mode]))
    ram.header = header_of(
        pointer_size=width,
        machine=MACHINES[mode],
        architecture={0x14C: Architecture.X86, 0x8664: Architecture.X64}.get(
            MACHINES[mode], Architecture.ARM64
        ),
        directory_table_base=root,
        module_list=head,
        debugger_data=block,
    )
    return ram


@MODES
def test_header_is_right(mode):
    ram = kernel(mode)
    memory = choose_space(ram)
    assert (memory.mode, memory.root, memory.remarks) == (mode, ROOT, [])
    proof = prove_space(memory, ram.header)
    assert (proof.module_list, proof.kernel_image, proof.debugger_data) == (True, True, True)


@MODES
def test_header_is_wrong_and_the_self_map_is_found(mode):
    ram = kernel(mode)
    ram.header.directory_table_base = 0x20000
    memory = choose_space(ram)
    assert memory.mode is mode
    assert memory.root == (0x13000 if mode is PagingMode.X86_PAE else ROOT)
    assert len(memory.remarks) == 1
    assert "0x20000 does not show the kernel" in memory.remarks[0]
    assert memory.read(ram.header.debugger_data + 0x10, 4) == b"KDBG"


@MODES
def test_candidates_come_before_a_search(mode):
    ram = kernel(mode)
    ram.header.directory_table_base = 0x666000
    ram.pages.runs = None  # would fail if it were searched
    assert choose_space(ram, [0x777000, ROOT]).root == ROOT


def test_header_is_wrong_about_pae():
    for mode, said in ((PagingMode.X86, True), (PagingMode.X86_PAE, False)):
        ram = kernel(mode)
        ram.header.pae = said
        memory = choose_space(ram)
        assert memory.mode is mode
        assert "wrong about PAE" in memory.remarks[0]
        ram.header.pae = not said
        assert choose_space(ram).remarks == []


def test_levels_that_the_kernel_speaks_of_are_compared():
    assert choose_space(kernel(PagingMode.X64_LA57, levels=5)).remarks == []
    assert choose_space(kernel(PagingMode.X64, levels=4)).remarks == []
    remarks = choose_space(kernel(PagingMode.X64, levels=5)).remarks
    assert remarks == ["the kernel speaks of 5 paging levels, and its tables have 4"]


def test_highest_page_of_the_machine_is_learnt():
    ram = kernel(PagingMode.X64)
    assert choose_space(ram).machine_end == 1 << 28
    ram.header.runs = ((0, 0x9F), (0x100, 0x300))
    assert choose_space(ram).machine_end == 0x400
    variable = ram.header.module_list + 0x10
    ram.put(0x20050, struct.pack("<Q", 0x87FFFF))
    ram.put(0x20400 + 0xF0, struct.pack("<Q", variable))
    assert choose_space(ram).machine_end == 0x880000
    ram.put(0x20050, struct.pack("<Q", (1 << 64) - 1))
    assert choose_space(ram).machine_end == 0x400
    ram.put(0x20400 + 0xF0, struct.pack("<Q", 0xFFFFF900_00000000))
    assert choose_space(ram).machine_end == 0x400


@pytest.mark.parametrize("field", ["module_list", "debugger_data"])
def test_either_address_is_enough(field):
    ram = kernel(PagingMode.X64_LA57)
    setattr(ram.header, field, 0)
    memory = choose_space(ram)
    assert (memory.mode, memory.remarks) == (PagingMode.X64_LA57, [])


def test_list_that_does_not_close_is_no_proof():
    ram = kernel(PagingMode.X64)
    ram.put(0x20048, struct.pack("<Q", 0x1234))
    ram.put(0x20410, b"nope")
    memory = choose_space(ram)
    proof = prove_space(memory, ram.header)
    assert (proof.parts, proof.mapped, proof.self_map) == (0, True, True)
    assert "could not be proved" in memory.remarks[0]


@MODES
def test_pages_that_the_dump_lacks_leave_it_unproved(mode):
    ram = kernel(mode, present=False)
    memory = choose_space(ram)
    assert (memory.mode, memory.root) == (mode, ROOT)
    assert ["could not be proved" in remark for remark in memory.remarks] == [True]


@MODES
def test_self_map_alone_is_taken_with_a_remark(mode):
    ram = kernel(mode)
    ram.header.module_list = ram.header.debugger_data = 0
    memory = choose_space(ram)
    assert memory.root == ROOT
    assert "could not be proved" in memory.remarks[0]


@MODES
def test_nothing_there_is_an_error_in_words(mode):
    ram = kernel(mode)
    blank = Ram([1, 2, 3], header=ram.header)
    with pytest.raises(TargetError, match="finding the kernel's page tables in ram"):
        choose_space(blank)


@MODES
def test_garbage_ends_quickly(mode):
    ram = kernel(mode)
    size = 4 if mode is PagingMode.X86 else 8
    for frame in ram.order:
        entry = frame << 12 | 3
        ram.put(frame << 12, entry.to_bytes(size, "little") * (PAGE // size))
    start = time.perf_counter()
    memory = choose_space(ram)
    assert time.perf_counter() - start < 1
    assert "could not be proved" in memory.remarks[0]


def test_self_maps_found_are_limited():
    frames = range(1, 200)
    ram = Ram(frames)
    for frame in frames:
        ram.q(frame << 12, 0x1F0, frame << 12 | 0x63)
    assert find_self_maps(ram, PagingMode.X64) == [frame << 12 for frame in range(1, 65)]
    assert find_self_maps(ram, PagingMode.ARM64) == find_self_maps(ram, PagingMode.X64)
    assert find_self_maps(ram, PagingMode.X86_PAE) == []


def test_self_map_in_the_users_half_does_not_count():
    ram = Ram([1])
    ram.q(0x1000, 0x0F0, 0x1063)
    assert find_self_maps(ram, PagingMode.X64) == []


def test_without_numpy_nothing_is_searched(monkeypatch):
    ram = kernel(PagingMode.X64)
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert choose_space(ram).remarks == []
    assert find_self_maps(ram, PagingMode.X64) == []
    monkeypatch.delitem(sys.modules, "kdleak.nt.space.page_scan", raising=False)
    memory = VirtualMemory(ram, PagingMode.X64, ROOT, 8)
    with pytest.raises(MissingDependency, match="numpy is not installed"):
        memory.batches(0, 1)
