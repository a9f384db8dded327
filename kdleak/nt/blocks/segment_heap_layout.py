"""Where the fields of the kernel's segment heap lie, by build, as data.

The segment heap holds the small blocks of both pools from Windows 10 1903 on (17763 could be
told to use it). The structures are in the PDB of every kernel; these offsets serve where there
is none, and whatever they lead to is believed only if the signatures in it fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

from kdleak.nt.layouts import NEWEST

FIRST_SEGMENT_HEAP_BUILD = 17763

HEAP_SIGNATURE = 0xDDEEDDEE
SEGMENT_CONSTANT = 0xA2E64EADA2E64EAD
"""XORed into the signature of a _HEAP_PAGE_SEGMENT, up to 22631 (0 from 26100)."""
VS_CONSTANT = 0x2BED
"""_HEAP_VS_SUBSEGMENT: Size XOR Signature."""

MAXIMUM_POOLS = 64
DESCRIPTORS = 256
"""Range descriptors at the start of a segment, one for each unit of it."""
LFH_RANGE, VS_RANGE = 0xB, 0xF
"""RangeFlags of the first descriptor of a subsegment."""
RANGE_FLAGS_MASK = 0x1F


@dataclass(frozen=True)
class SegmentHeapLayout:
    """Offsets for one range of builds.

    Attributes:
        pointer_size: 4 or 8.
        first_build: first build with it.
        last_build: last build with it.
        pools: of NumberOfPools (u32) in _EX_POOL_HEAP_MANAGER_STATE.
        nodes: of PoolNode[] there.
        special: of SpecialHeaps there.
        node_sizes: bytes of _EX_HEAP_POOL_NODE, likeliest first; it begins with four pointers to
            heaps: nonpaged, nonpaged no-execute, paged, paged.
        contexts: of SegContexts[2] in _SEGMENT_HEAP.
        bitmap: of the block bitmap in _HEAP_LFH_SUBSEGMENT.
        segment_constant: see ``SEGMENT_CONSTANT``.
    """

    pointer_size: int
    first_build: int
    last_build: int
    pools: int
    nodes: int
    special: int
    node_sizes: Tuple[int, ...]
    contexts: int
    bitmap: int = 0x30
    segment_constant: int = SEGMENT_CONSTANT

    # What did not change so far, by pointer size: _SEGMENT_HEAP.Signature, _HEAP_SEG_CONTEXT
    # (its size, UnitShift, FirstDescriptorIndex, SegmentListHead), _HEAP_PAGE_SEGMENT.Signature,
    # _HEAP_PAGE_RANGE_DESCRIPTOR (its size, RangeFlags, UnitSize), _HEAP_LFH_SUBSEGMENT
    # .BlockOffsets, the first chunk of a _HEAP_VS_SUBSEGMENT and its header, and Size there.

    def _by_width(self, wide: int, narrow: int) -> int:
        return wide if self.pointer_size == 8 else narrow

    @property
    def heap_signature(self) -> int:
        """Offset of the heap's Signature, u32."""
        return self._by_width(0x10, 0x08)

    @property
    def context_size(self) -> int:
        """Bytes of _HEAP_SEG_CONTEXT."""
        return self._by_width(0xC0, 0x80)

    @property
    def unit_shift(self) -> int:
        """Offset of UnitShift, u8."""
        return self._by_width(0x8, 0x4)

    @property
    def first_descriptor(self) -> int:
        """Offset of FirstDescriptorIndex, u8."""
        return self._by_width(0xA, 0x6)

    @property
    def segment_list(self) -> int:
        """Offset of SegmentListHead."""
        return self._by_width(0x48, 0x44)

    @property
    def segment_signature(self) -> int:
        """Offset of the segment's Signature, pointer-sized."""
        return self._by_width(0x10, 0x08)

    @property
    def descriptor_size(self) -> int:
        """Bytes of a range descriptor."""
        return self._by_width(0x20, 0x10)

    @property
    def range_flags(self) -> int:
        """Offset of RangeFlags, u8."""
        return self._by_width(0x18, 0x0C)

    @property
    def unit_size(self) -> int:
        """Offset of UnitSize, u8."""
        return self._by_width(0x1F, 0x0F)

    @property
    def block_offsets(self) -> int:
        """Offset of BlockOffsets, u32."""
        return self._by_width(0x28, 0x18)

    @property
    def vs_size(self) -> int:
        """Offset of Size, u16; Signature, u16, follows; on x86 by the fields around it."""
        return self._by_width(0x20, 0x14)

    @property
    def first_chunk(self) -> int:
        """Offset of the first chunk of a VS subsegment."""
        return self._by_width(0x30, 0x18)

    @property
    def chunk_header(self) -> int:
        """Bytes of _HEAP_VS_CHUNK_HEADER, also the unit of the sizes in it."""
        return self._by_width(0x10, 0x8)


SEGMENT_HEAP_LAYOUTS: Tuple[SegmentHeapLayout, ...] = (
    SegmentHeapLayout(8, 17763, 19999, 0x38D0, 0x3900, 0x86900, (0x20C0,), 0x100),
    SegmentHeapLayout(8, 20000, 25999, 0x38E0, 0x3900, 0x86900, (0x20C0,), 0x140),
    SegmentHeapLayout(8, 26000, 27999, 0x3910, 0x3940, 0x86940, (0x20C0,), 0x140, 0x40, 0),
    SegmentHeapLayout(8, 28000, NEWEST, 0x3974, 0x3980, 0x86980, (0x20C0,), 0x140, 0x40, 0),
    # x86: 0x20C00 bytes of nodes, either 16 or 64 of them.
    SegmentHeapLayout(4, 17763, NEWEST, 0x1C70, 0x1C80, 0x22880, (0x830, 0x20C0), 0x100, 0x20),
)


def segment_heap_candidates(build: int, pointer_size: int) -> Tuple[SegmentHeapLayout, ...]:
    """Every layout for the pointer size, the one the build calls for first."""
    fitting = [item for item in SEGMENT_HEAP_LAYOUTS if item.pointer_size == pointer_size]
    fitting.sort(key=lambda item: max(item.first_build - build, build - item.last_build, 0))
    return tuple(fitting)
