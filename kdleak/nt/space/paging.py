"""Page tables of x86, x64 and ARM64 Windows as data: levels, masks, and what one entry says.

Facts from the Intel SDM volume 3A (paging), the Arm ARM (VMSAv8-64, 4 KiB granule) and Windows'
MMPTE types for entries that are not valid. Everything here is about one entry; the walks are in
``virtual`` (one address) and ``page_scan`` (many at once).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Optional, Tuple

from kdleak.model import Architecture

PAGE_SIZE = 0x1000
PAGE_SHIFT = 12
PAGE_MASK = PAGE_SIZE - 1


class PagingMode(enum.Enum):
    """How a processor reads its page tables."""

    X86 = "x86"
    X86_PAE = "x86 PAE"
    X64 = "x64"
    X64_LA57 = "x64, five levels"
    ARM64 = "ARM64"


@dataclass(frozen=True)
class Level:
    """One level of tables.

    Attributes:
        shift: lowest address bit of the index into a table of this level.
        bits: width of the index.
        large: an entry of this level can map memory itself (a large page or block).
    """

    shift: int
    bits: int
    large: bool = False

    @property
    def span(self) -> int:
        """Bytes of address space that one entry covers."""
        return 1 << self.shift


@dataclass(frozen=True)
class Layout:
    """The tables of one mode.

    An entry ``e`` above the last level leads to a table when ``e & table_mask == table_value``
    and maps a large page when its level allows it and ``e & large_mask == large_value``; one of
    the last level maps a page when ``e & leaf_mask == leaf_value``. All else is not valid, and
    with bit 0 clear it is the memory manager's own (``software_entry``).

    Attributes:
        levels: top level first.
        entry_size: bytes, 4 or 8.
        address_bits: meaningful bits of a virtual address.
        root_mask: bits of the directory table base that are an address; the others hold a
            PCID or ASID, or cache attributes.
        frame_mask: bits of a valid entry that are a physical address.
        transition_mask: bits of a transition entry that are a physical address.
        write_bits: bits of a last-level entry any of which makes the page writable; Windows
            keeps pages that are writable but clean read-only in hardware and says so in a
            software bit.
        read_only_bits: bits of an entry that take writability away (ARM64).
        table_write_bit: bit that every table above must have for a page to be writable, or 0.
        table_read_only_bit: bit of a table above that takes writability away, or 0.
        no_execute_bit: bit of a page or large page that forbids the kernel to execute it, or 0.
        table_no_execute_bit: the same in an entry that leads to a table.
    """

    levels: Tuple[Level, ...]
    entry_size: int
    address_bits: int
    root_mask: int
    frame_mask: int
    transition_mask: int
    table_mask: int = 0x81
    table_value: int = 0x01
    large_mask: int = 0x81
    large_value: int = 0x81
    leaf_mask: int = 0x01
    leaf_value: int = 0x01
    write_bits: int = 1 << 1 | 1 << 11
    read_only_bits: int = 0
    table_write_bit: int = 1 << 1
    table_read_only_bit: int = 0
    no_execute_bit: int = 1 << 63
    table_no_execute_bit: int = 1 << 63


# Windows' PFN field has 36 bits; the architectures allow bits 48 to 51 too, never used by it.
_FRAME = 0x0000_FFFF_FFFF_F000
_FOUR = (Level(39, 9), Level(30, 9, large=True), Level(21, 9, large=True), Level(12, 9))

LAYOUTS = {
    PagingMode.X86: Layout(
        levels=(Level(22, 10, large=True), Level(12, 10)),
        entry_size=4,
        address_bits=32,
        root_mask=0xFFFF_F000,
        frame_mask=0xFFFF_F000,
        transition_mask=0xFFFF_F000,
        no_execute_bit=0,
        table_no_execute_bit=0,
    ),
    PagingMode.X86_PAE: Layout(
        levels=(Level(30, 2), Level(21, 9, large=True), Level(12, 9)),
        entry_size=8,
        address_bits=32,
        root_mask=0xFFFF_FFE0,  # a table of 32 bytes
        frame_mask=_FRAME,
        transition_mask=0x0000_003F_FFFF_F000,
    ),
    PagingMode.X64: Layout(
        levels=_FOUR,
        entry_size=8,
        address_bits=48,
        root_mask=0x000F_FFFF_FFFF_F000,
        frame_mask=_FRAME,
        transition_mask=_FRAME,
    ),
    PagingMode.X64_LA57: Layout(
        levels=(Level(48, 9), *_FOUR),
        entry_size=8,
        address_bits=57,
        root_mask=0x000F_FFFF_FFFF_F000,
        frame_mask=_FRAME,
        transition_mask=_FRAME,
    ),
    PagingMode.ARM64: Layout(
        levels=_FOUR,
        entry_size=8,
        address_bits=48,
        root_mask=_FRAME,
        frame_mask=_FRAME,
        transition_mask=_FRAME,
        table_mask=0x3,
        table_value=0x3,
        large_mask=0x3,
        large_value=0x1,
        leaf_mask=0x3,
        leaf_value=0x3,
        # DBM (51), and Windows' software bit for "writable" (55): hardware may still say
        # read-only while the page is clean.
        write_bits=1 << 51 | 1 << 55,
        read_only_bits=1 << 7,  # AP[2]
        table_write_bit=0,
        table_read_only_bit=1 << 62,  # APTable[1]
        no_execute_bit=1 << 53,  # PXN
        table_no_execute_bit=1 << 59,  # PXNTable
    ),
}

_PSE_RESERVED = 0x3E_0000  # bits 17-21 of a 4 MiB entry; 13-16 are physical address bits 32-35

PROTOTYPE = 1 << 10
TRANSITION = 1 << 11
SWIZZLE = 1 << 4
_PROTECTION = 0x1F << 5
PROTECTION_WRITE = 4 << 5  # MM_READWRITE, MM_WRITECOPY and their executable forms
PROTECTION_EXECUTE = 2 << 5  # MM_EXECUTE and what contains it


class SoftwareState(enum.Enum):
    """What a last-level entry with bit 0 clear means to Windows (MMPTE_TRANSITION and others)."""

    TRANSITION = "transition"
    PROTOTYPE = "prototype"
    DEMAND_ZERO = "demand zero"
    ELSEWHERE = "paged out or never mapped"


def large_page_address(mode: PagingMode, entry: int, level: Level) -> Optional[int]:
    """Physical address at which the large page of ``entry`` begins.

    Returns:
        None when reserved bits of a 4 MiB entry are set (the processor would fault).
    """
    if mode is PagingMode.X86:
        if entry & _PSE_RESERVED:
            return None
        return (entry & 0xFFC0_0000) | (entry >> 13 & 0xF) << 32
    return entry & LAYOUTS[mode].frame_mask & ~(level.span - 1)


def software_state(mode: PagingMode, entry: int, invalid_mask: int = 0) -> SoftwareState:
    """What an entry that is not valid means.

    Args:
        mode: of the tables.
        entry: with bit 0 clear.
        invalid_mask: the kernel's InvalidPteMask (L1TF), 0 where unknown or not used.
    """
    if entry & PROTOTYPE:
        return SoftwareState.PROTOTYPE
    if entry & TRANSITION:
        return SoftwareState.TRANSITION
    if not entry & _PROTECTION:
        return SoftwareState.ELSEWHERE
    if mode is PagingMode.X86:
        # File number in bits 1-4, offset in 12-31.
        return SoftwareState.ELSEWHERE if entry & 0xFFFF_F01E else SoftwareState.DEMAND_ZERO
    if invalid_mask and not entry & SWIZZLE:
        entry ^= invalid_mask
    # The file number is in bits 1-4 before build 17763 and in 12-15 since, where bit 4 became
    # SwizzleBit. Page file 8 and above of an old system would be needed to tell bit 4 wrong.
    if entry >> 32 or entry & 0xF00E:
        return SoftwareState.ELSEWHERE
    return SoftwareState.DEMAND_ZERO


def transition_frame(mode: PagingMode, entry: int, end: int, invalid_mask: int = 0) -> int:
    """Page frame number in a transition entry.

    On processors with the L1TF flaw Windows inverts high address bits of entries that are not
    valid (SwizzleBit clear), with a mask that a dump does not name. The mask lies above all
    memory, so a number past the end is right again once the bits above the end are cleared.

    Args:
        mode: of the tables.
        entry: with ``TRANSITION`` set, bit 0 and ``PROTOTYPE`` clear.
        end: highest frame of the machine + 1 (not of the dump, which may lack the page).
        invalid_mask: the kernel's InvalidPteMask where known, else 0.
    """
    mask = LAYOUTS[mode].transition_mask
    if entry & SWIZZLE or mode is PagingMode.X86:
        return (entry & mask) >> PAGE_SHIFT
    frame = ((entry ^ invalid_mask) & mask) >> PAGE_SHIFT
    if frame >= end:
        frame &= (1 << (end - 1).bit_length()) - 1
    return frame


def prototype_address(mode: PagingMode, entry: int, invalid_mask: int = 0) -> Optional[int]:
    """Virtual address of the prototype entry that ``entry`` stands for.

    Returns:
        None on x86 without PAE, where the address is relative to a kernel variable.
    """
    if mode is PagingMode.X86:
        return None
    if invalid_mask and not entry & SWIZZLE:
        entry ^= invalid_mask
    if mode is PagingMode.X86_PAE:
        return entry >> 32
    address = entry >> 16
    return address | 0xFFFF_0000_0000_0000 if address >> 47 else address


def entry_writable(mode: PagingMode, entry: int) -> bool:
    """Whether a last-level or large entry, valid or in transition, lets the kernel write."""
    if not entry & 1:
        return bool(entry & PROTECTION_WRITE)
    layout = LAYOUTS[mode]
    if entry & layout.write_bits:
        return True
    return bool(layout.read_only_bits) and not entry & layout.read_only_bits


def entry_executable(mode: PagingMode, entry: int) -> bool:
    """Whether a last-level or large entry, valid or in transition, lets the kernel execute."""
    if not entry & 1:
        return bool(entry & PROTECTION_EXECUTE)
    return not entry & LAYOUTS[mode].no_execute_bit


def table_rights(
    mode: PagingMode, level: Level, entry: int, rights: Tuple[bool, bool]
) -> Tuple[bool, bool]:
    """What an entry that leads to a table leaves of the rights (write, execute) above it."""
    if mode is PagingMode.X86_PAE and not level.large:
        return rights  # a page directory pointer entry has no such bits
    layout = LAYOUTS[mode]
    write, execute = rights
    if layout.table_write_bit and not entry & layout.table_write_bit:
        write = False
    if entry & layout.table_read_only_bit:
        write = False
    return write, execute and not entry & layout.table_no_execute_bit


def canonical(mode: PagingMode, address: int) -> Optional[int]:
    """The address as the walk takes it: its meaningful bits.

    32-bit addresses may come sign-extended to 64 bits, as KD has them, or not.

    Returns:
        None when the address is not one of this mode's (not canonical).
    """
    bits = LAYOUTS[mode].address_bits
    low = address & ((1 << bits) - 1)
    if bits == 32:
        return low if address >> 32 in (0, 0xFFFF_FFFF) else None
    extended = low | (1 << 64) - (1 << bits) if low >> (bits - 1) else low
    return low if extended == address else None


def canonical_parts(mode: PagingMode) -> Tuple[Tuple[int, int, int], ...]:
    """The addresses of a mode as (base, low, high): base + bits in [low, high)."""
    bits = LAYOUTS[mode].address_bits
    half, whole = 1 << (bits - 1), 1 << bits
    base = (1 << 64) - whole
    # 32-bit addresses are wanted in the kernel's half in either spelling.
    return (0, 0, whole if bits == 32 else half), (base, half, whole)


def kernel_half(mode: PagingMode) -> Tuple[int, int]:
    """The half of the address space that is the kernel's, as (start, end); 32-bit sign-extended."""
    return (1 << 64) - (1 << (LAYOUTS[mode].address_bits - 1)), 1 << 64


def paging_modes(
    architecture: Architecture, pae: Optional[bool] = None, levels: int = 0
) -> Tuple[PagingMode, ...]:
    """The modes a machine may be in, likeliest first.

    Args:
        architecture: of the target.
        pae: what the dump header says of PAE, None where it says nothing.
        levels: PagingLevels of the debugger data block, 0 where unknown.
    """
    if architecture is Architecture.ARM64:
        return (PagingMode.ARM64,)
    if architecture is Architecture.X64:
        four = (PagingMode.X64, PagingMode.X64_LA57)
        return four[::-1] if levels == 5 else four
    both = (PagingMode.X86_PAE, PagingMode.X86)
    return both[::-1] if pae is False else both
