"""Layouts of the kernel's pool structures for every Windows version, as data.

The structures are POOL_TRACKER_TABLE (one row of the tag tables), POOL_TRACKER_BIG_PAGES (one
row of the table of page-aligned blocks) and POOL_HEADER. Their types are in the public symbols
of the kernels named beside each row; from those the offsets were taken. Nothing here is trusted
blindly: ``nt/pool.py`` tests the layout it picked against the tag hash.
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass
from typing import Optional, Tuple, Union

from kdleak.tags import PROTECTED_POOL

NEWEST = 1 << 30
"""Upper end of a build range that is still open."""


@dataclass(frozen=True)
class TrackerLayout:
    """One form of POOL_TRACKER_TABLE. ``Key`` is the u32 at offset 0 in all of them.

    Attributes:
        pointer_size: bytes of a pointer on the targets that use it.
        first_build: first Windows build with it.
        last_build: last Windows build with it.
        row_size: bytes from one row to the next.
        count_width: bytes of each counter of allocations and frees.
        bytes_width: bytes of each counter of bytes.
        nonpaged: offsets of NonPagedAllocs, NonPagedFrees, NonPagedBytes.
        paged: offsets of PagedAllocs, PagedFrees, PagedBytes.
    """

    pointer_size: int
    first_build: int
    last_build: int
    row_size: int
    count_width: int
    bytes_width: int
    nonpaged: Tuple[int, int, int]
    paged: Tuple[int, int, int]

    def counters(self, table: Union[bytes, bytearray], offset: int) -> Tuple[int, ...]:
        """The six unsigned counters of the row at ``offset`` of ``table``.

        Returns:
            Nonpaged allocs, frees, bytes, then paged allocs, frees, bytes.
        """
        form, order = _row_form(self)
        values = form.unpack_from(table, offset)
        return tuple(values[place] for place in order)

    @property
    def widths(self) -> Tuple[int, int, int, int, int, int]:
        """Bytes of each counter, in the order of ``counters``."""
        one = (self.count_width, self.count_width, self.bytes_width)
        return one + one


@functools.cache
def _row_form(layout: TrackerLayout) -> Tuple[struct.Struct, Tuple[int, ...]]:
    """One compiled format for the six counters, and where each of them comes out of it."""
    offsets = layout.nonpaged + layout.paged
    text = "<"
    at = 0
    order = [0] * 6
    for place, index in enumerate(sorted(range(6), key=lambda item: offsets[item])):
        width = layout.widths[index]
        text += f"{offsets[index] - at}x{'I' if width == 4 else 'Q'}"
        at = offsets[index] + width
        order[index] = place
    return struct.Struct(text), tuple(order)


# From 1709 on the bytes come before the two counters and the counters are 64 bits wide; Windows
# 11's kernel family added AvailableLimit[2] and LimitInfo behind the same fields.
TRACKER_LAYOUTS: Tuple[TrackerLayout, ...] = (
    # x64 Server 2003 SP1 .. Windows 10 1703; ARM64 from 1703.
    TrackerLayout(8, 3790, 15063, 0x28, 4, 8, (0x04, 0x08, 0x10), (0x18, 0x1C, 0x20)),
    # x64, ARM64: Windows 10 1709 .. 22H2, Server 2019.
    TrackerLayout(8, 16299, 19999, 0x38, 8, 8, (0x10, 0x18, 0x08), (0x28, 0x30, 0x20)),
    # x64, ARM64: Server 2022, Windows 11, Server 2025.
    TrackerLayout(8, 20000, NEWEST, 0x50, 8, 8, (0x10, 0x18, 0x08), (0x28, 0x30, 0x20)),
    # x86: XP .. Windows 10 1703.
    TrackerLayout(4, 2600, 15063, 0x1C, 4, 4, (0x04, 0x08, 0x0C), (0x10, 0x14, 0x18)),
    # x86: Windows 10 1709 .. 22H2.
    TrackerLayout(4, 16299, 19999, 0x30, 8, 4, (0x08, 0x10, 0x04), (0x20, 0x28, 0x18)),
    # x86: the last insider builds (21292).
    TrackerLayout(4, 20000, NEWEST, 0x40, 8, 4, (0x08, 0x10, 0x04), (0x20, 0x28, 0x18)),
)


def tracker_candidates(build: int, pointer_size: int) -> Tuple[TrackerLayout, ...]:
    """Every row layout for the pointer size, the one the build calls for first."""
    fitting = [layout for layout in TRACKER_LAYOUTS if layout.pointer_size == pointer_size]
    fitting.sort(key=lambda layout: _distance(build, layout.first_build, layout.last_build))
    return tuple(fitting)


def _distance(build: int, first: int, last: int) -> int:
    """How many builds outside a range ``build`` lies; 0 inside."""
    return max(first - build, build - last, 0)


@dataclass(frozen=True)
class BigPageLayout:
    """One form of POOL_TRACKER_BIG_PAGES. ``Va`` is the pointer at offset 0 in all of them.

    Attributes:
        pointer_size: bytes of a pointer on the targets that use it.
        first_build: first Windows build with it.
        last_build: last Windows build with it.
        row_size: bytes from one row to the next.
        key: offset of the u32 tag.
        packed: offset of the u32 that carries the pool type; None where there is none.
        size: offset of the number of bytes, or of pages where ``size_in_pages``.
        size_width: bytes of that number.
        size_in_pages: the number counts pages.
    """

    pointer_size: int
    first_build: int
    last_build: int
    row_size: int
    key: int
    packed: Optional[int]
    size: int
    size_width: int
    size_in_pages: bool = False


BIG_PAGE_LAYOUTS: Tuple[BigPageLayout, ...] = (
    BigPageLayout(4, 2600, 2600, 0x0C, 4, None, 8, 4, size_in_pages=True),  # XP
    BigPageLayout(4, 3790, 3790, 0x10, 4, None, 8, 4, size_in_pages=True),  # Server 2003
    BigPageLayout(8, 3790, 3790, 0x18, 8, None, 0xC, 4, size_in_pages=True),
    BigPageLayout(4, 6000, NEWEST, 0x10, 4, 8, 0xC, 4),  # Vista .. Windows 10
    BigPageLayout(8, 6000, 19999, 0x18, 8, 0xC, 0x10, 8),
    BigPageLayout(8, 20000, NEWEST, 0x20, 8, 0xC, 0x10, 8),  # + ProcessBilled
)


def big_page_layout(build: int, pointer_size: int) -> BigPageLayout:
    """The layout of a row of the big page table."""
    fitting = [layout for layout in BIG_PAGE_LAYOUTS if layout.pointer_size == pointer_size]
    return min(fitting, key=lambda item: _distance(build, item.first_build, item.last_build))


FIRST_MULTIPLY_HASH_BUILD = 10240
"""Windows 10: the big page table hashes with the same multiplier as the tag tables."""

FIRST_POOL_FLAGS_BUILD = 26100
"""24H2: the packed dword holds POOL_FLAGS, not POOL_TYPE, and the hash takes the whole page."""


def big_page_is_paged(packed: int, build: int) -> Optional[bool]:
    """Whether a big block lies in paged pool, from the packed dword of its row.

    Up to 8.1 the dword is the POOL_TYPE itself; in Windows 10 its bits 8 to 19 hold it; from
    24H2 these bits hold POOL_FLAGS (0x40 nonpaged, 0x80 executable, 0x100 paged).

    Returns:
        None when the bits name no pool.
    """
    if build < FIRST_MULTIPLY_HASH_BUILD:
        return bool(packed & 1)
    kind = packed >> 8 & 0xFFF
    if build >= FIRST_POOL_FLAGS_BUILD:
        return {0x40: False, 0x80: False, 0x100: True}.get(kind & 0x1C0)
    return bool(kind & 1)


@dataclass(frozen=True)
class PoolHeader:
    """A POOL_HEADER as read.

    Attributes:
        previous_size: bytes back to the header in front (0 on segment heaps).
        block_size: bytes of the block, header included.
        pool_type: the type bits; 0 marks a free block on old kernels.
        tag: the tag, without the protected bit.
    """

    previous_size: int
    block_size: int
    pool_type: int
    tag: int


def pool_header_size(pointer_size: int) -> int:
    """Bytes of a POOL_HEADER; sizes in it count units of the same number of bytes."""
    return 2 * pointer_size


def parse_pool_header(raw: bytes, pointer_size: int) -> PoolHeader:
    """Read a POOL_HEADER from its first 8 bytes.

    x64 and ARM64: one byte each for PreviousSize, PoolIndex, BlockSize, PoolType. x86: two u16,
    each 9 bits of size and 7 bits of index or type. PoolTag is the u32 at offset 4.
    """
    unit = pool_header_size(pointer_size)
    tag = struct.unpack_from("<I", raw, 4)[0] & ~PROTECTED_POOL
    if pointer_size == 8:
        previous, _, block, kind = struct.unpack_from("<4B", raw, 0)
    else:
        first, second = struct.unpack_from("<2H", raw, 0)
        previous, block, kind = first & 0x1FF, second & 0x1FF, second >> 9
    return PoolHeader(previous * unit, block * unit, kind, tag)
