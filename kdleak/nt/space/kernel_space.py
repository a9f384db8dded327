"""Which page tables show the kernel of a dump: the header's, proved, or others that are found.

A dump names one directory table base, and for 32-bit and new 64-bit machines not always how it is
to be read. Whatever is used is proved first: the module list must close on itself there, nt must
be an image for the dump's machine, the debugger data block must carry its tag.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kdleak.errors import MemoryUnreadable, TargetError
from kdleak.model import Architecture
from kdleak.nt.kdbg import find_debugger_data
from kdleak.nt.memory import read_pointer
from kdleak.nt.space.paging import LAYOUTS, PAGE_MASK, PAGE_SHIFT, PagingMode, paging_modes
from kdleak.nt.space.virtual import PhysicalMemory, VirtualMemory

if TYPE_CHECKING:
    from kdleak.dump.header import DumpHeader

_DLL_BASE = {4: 0x18, 8: 0x30}  # of KLDR_DATA_TABLE_ENTRY
_SEARCHED_PAGES = 1 << 20
_MOST_ROOTS = 64
_MOST_FRAMES = 1 << 36
_SEARCH_STEP = 1024

# Entry of the top table (x64, ARM64: some of the upper half), of the page directory (x86), or of
# the last of four page directories (PAE) through which Windows maps the tables themselves.
_UPPER_HALF = slice(256, 512)
_SELF_ENTRY = {PagingMode.X86: slice(0x300, 0x301), PagingMode.X86_PAE: slice(3, 4)}


class Dump(PhysicalMemory, Protocol):
    """What is needed of a dump file (``DumpFile``)."""

    @property
    def header(self) -> DumpHeader:
        """What it says of itself."""

    @property
    def where(self) -> str:
        """Its name, for people."""


@dataclass(frozen=True)
class Proof:
    """What of the kernel page tables show.

    Attributes:
        module_list: PsLoadedModuleList closes on itself in both directions.
        kernel_image: nt begins with the headers of an image for this machine.
        debugger_data: the debugger data block carries its tag (it may be encoded instead).
        mapped: some of these addresses are mapped, whether or not the dump has the pages.
        self_map: the top table contains itself, as Windows' do.
        levels: PagingLevels of the debugger data block, 0 where unknown.
    """

    module_list: bool = False
    kernel_image: bool = False
    debugger_data: bool = False
    mapped: bool = False
    self_map: bool = False
    levels: int = 0

    @property
    def strength(self) -> int:
        """More is better; 0 is nothing, hints alone are less than any part of the kernel."""
        return 3 * self.parts + self.mapped + self.self_map

    @property
    def parts(self) -> int:
        """How much of the kernel was seen."""
        return self.module_list + self.kernel_image + self.debugger_data


def prove_space(memory: VirtualMemory, header: DumpHeader) -> Proof:
    """Look for the kernel through page tables; a handful of reads, whatever they say."""
    size = header.pointer_size
    named = [address for address in (header.module_list, header.debugger_data) if address]
    data = find_debugger_data(memory, header.debugger_data)
    first = _list_closes(memory, header.module_list, size) if header.module_list else None
    bases = []
    if data is not None and data.field("KernBase"):
        bases.append(data.field("KernBase"))
    if first is not None:
        with suppress(MemoryUnreadable):
            bases.append(read_pointer(memory, first + _DLL_BASE[size], size))
    return Proof(
        module_list=first is not None,
        kernel_image=any(_is_image(memory, base, header.machine) for base in bases),
        debugger_data=data is not None,
        mapped=any(0 <= memory.frame(address) < memory.end for address in named),
        self_map=_contains_itself(memory),
        levels=data.paging_levels if data is not None else 0,
    )


def _list_closes(memory: VirtualMemory, head: int, size: int) -> int | None:
    """The first entry of a list whose neighbours know its head."""
    try:
        first = read_pointer(memory, head, size)
        last = read_pointer(memory, head + size, size)
        if first == head or read_pointer(memory, first + size, size) != head:
            return None
        return first if read_pointer(memory, last, size) == head else None
    except MemoryUnreadable:
        return None


def _contains_itself(memory: VirtualMemory) -> bool:
    page = memory.physical.page(memory.root >> PAGE_SHIFT)
    if page is None:
        return False
    layout, size = memory.layout, memory.layout.entry_size
    where = _SELF_ENTRY.get(memory.mode, _UPPER_HALF)
    table = page[memory.root & PAGE_MASK :]
    if memory.mode is PagingMode.X86_PAE:
        # The last directory is the one that contains itself, and its number is in the top table.
        last = int.from_bytes(table[3 * size : 4 * size], "little")
        frame = (last & layout.frame_mask) >> PAGE_SHIFT
        directory = memory.physical.page(frame) if last & 1 else None
        if directory is None:
            return False
        table = directory
    else:
        frame = memory.root >> PAGE_SHIFT
    wanted = frame << PAGE_SHIFT | layout.table_value
    mask = layout.frame_mask | layout.table_mask
    entries = table[where.start * size : where.stop * size].cast("I" if size == 4 else "Q")
    return any(entry & mask == wanted for entry in entries)


def _is_image(memory: VirtualMemory, base: int, machine: int) -> bool:
    try:
        if memory.read(base, 2) != b"MZ":
            return False
        start = struct.unpack("<I", memory.read(base + 0x3C, 4))[0]
        return start < 0x1000 and memory.read(base + start, 6) == b"PE\0\0" + struct.pack(
            "<H", machine
        )
    except MemoryUnreadable:
        return False


def choose_space(dump: Dump, candidates: Sequence[int] = ()) -> VirtualMemory:
    """The kernel's address space, proved.

    The header's directory table base is tried in every mode the machine may be in, then the
    candidates (a processor's CR3, System's DirectoryTableBase), then table pages that map
    themselves, which are looked for in the first 4 GiB of the dump's pages.

    Args:
        dump: with physical pages.
        candidates: other directory table bases.

    Returns:
        The space; its ``remarks`` say what is unproved or was not as the header has it.

    Raises:
        TargetError: no page tables show anything of the kernel.
    """
    header = dump.header
    modes = paging_modes(header.architecture, header.pae)
    roots = (header.directory_table_base, *candidates)
    best = _best(dump, ((root, mode) for root in roots for mode in modes))
    if best is None or not best[0].strength:
        best = _best(dump, _searched(dump, modes))
    if best is None or not best[0].strength:
        raise TargetError(
            f"finding the kernel's page tables in {dump.where}",
            f"neither the header's directory table base {header.directory_table_base:#x} nor any "
            "page that looks like a top table shows the module list, the kernel's image or the "
            "debugger data",
            "the dump is incomplete or damaged; take a new one if you can",
        )
    proof, memory = best
    _measure(memory, header)
    _say(memory, proof, header)
    return memory


def _best(
    dump: Dump, readings: Iterable[tuple[int, PagingMode]]
) -> tuple[Proof, VirtualMemory] | None:
    """The reading that shows most, the first of equals; ends at one that shows enough."""
    best: tuple[Proof, VirtualMemory] | None = None
    for root, mode in readings:
        memory = VirtualMemory(dump, mode, root, dump.header.pointer_size)
        proof = prove_space(memory, dump.header)
        if best is None or proof.strength > best[0].strength:
            best = proof, memory
        if proof.module_list and proof.kernel_image:
            break
    return best


def _searched(dump: Dump, modes: Sequence[PagingMode]) -> Iterator[tuple[int, PagingMode]]:
    for mode in modes:
        if mode is PagingMode.X64_LA57:
            continue  # found together with four levels: the top tables look alike
        for root in find_self_maps(dump, mode):
            yield root, mode
            if mode is PagingMode.X64:
                yield root, PagingMode.X64_LA57


def _measure(memory: VirtualMemory, header: DumpHeader) -> None:
    """Learn the machine's highest frame, of which the dump may have less."""
    ends = [first + count for first, count in header.runs]
    data = find_debugger_data(memory, header.debugger_data)
    if data is not None:
        with suppress(MemoryUnreadable):
            highest = memory.read(data.field("MmHighestPhysicalPage"), header.pointer_size)
            ends.append(int.from_bytes(highest, "little") + 1)
    sane = [end for end in ends if memory.end <= end <= _MOST_FRAMES]
    if sane:
        memory.machine_end = max(sane)
        memory.close()  # what was translated before may have read an entry differently


def _say(memory: VirtualMemory, proof: Proof, header: DumpHeader) -> None:
    own = header.directory_table_base & memory.layout.root_mask
    if memory.root != own:
        memory.remark(
            f"the header's directory table base {own:#x} does not show the kernel: "
            f"{memory.root:#x} is used, which does"
        )
    if not proof.parts:
        memory.remark(
            "the page tables could not be proved: through them the dump has no module list, "
            "kernel image or debugger data where the header says"
        )
    if header.architecture is Architecture.X86 and header.pae not in {
        None,
        memory.mode is PagingMode.X86_PAE,
    }:
        memory.remark(f"the header is wrong about PAE: the tables are {memory.mode.value}")
    levels = len(memory.layout.levels)
    if header.architecture is not Architecture.X86 and proof.levels not in {0, levels}:
        memory.remark(
            f"the kernel speaks of {proof.levels} paging levels, and its tables have {levels}"
        )


def find_self_maps(dump: PhysicalMemory, mode: PagingMode) -> list[int]:
    """Physical addresses of table pages that contain themselves, where Windows' self-map would be.

    At most the first 4 GiB of the dump's pages are searched, and at most 64 are returned. With
    PAE it is the last page directory, whose first four entries serve as the top table. Needs
    numpy and a dump that lies in one buffer: an empty list without.
    """
    try:
        import numpy as np  # noqa: PLC0415 - optional, and slow to load

        from kdleak.nt.space.page_source import BulkPhysicalMemory, PageSource  # noqa: PLC0415
    except ModuleNotFoundError:
        return []
    if not isinstance(dump, BulkPhysicalMemory):
        return []
    layout = LAYOUTS[mode]
    source = PageSource(dump, 1 << 36)
    entries = np.dtype("<u4" if layout.entry_size == 4 else "<u8")
    valid = layout.table_mask | layout.frame_mask
    where = _SELF_ENTRY.get(mode, _UPPER_HALF)
    found: list[int] = []
    for some in _pages_in_steps(dump.pages.runs()):
        table = np.array(some, dtype=np.int64)
        frames = table[:, 0].astype(np.uint64)
        rows = source.rows(table[:, 1]).view(entries)[:, where]
        own = (frames << np.uint64(PAGE_SHIFT)) & np.uint64(layout.frame_mask)
        wanted = (own | np.uint64(layout.table_value)).astype(entries)
        hits = ((rows & entries.type(valid)) == wanted[:, None]).any(axis=1)
        found += (frames[hits] << np.uint64(PAGE_SHIFT)).tolist()
        if len(found) >= _MOST_ROOTS:
            break
    return found[:_MOST_ROOTS]


def _pages_in_steps(runs: Iterator[tuple[int, int, int]]) -> Iterator[list[tuple[int, int]]]:
    """(frame, place) of the first pages of a dump, some at a time."""
    some: list[tuple[int, int]] = []
    left = _SEARCHED_PAGES
    for first, count, place in runs:
        for at in range(min(count, left)):
            some.append((first + at, place + (at << PAGE_SHIFT)))
            if len(some) == _SEARCH_STEP:
                yield some
                some = []
        left -= min(count, left)
        if not left:
            break
    if some:
        yield some
