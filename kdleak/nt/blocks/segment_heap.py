"""The subsegments of the kernel's segment heaps, found from nt!ExPoolState.

Each step is proved before the next is taken: a heap by its signature, a segment by its encoded
one, a subsegment by what it decodes to. What cannot be proved is left out and said.
"""

from __future__ import annotations

import bisect
import struct
from dataclasses import dataclass
from typing import Dict, Iterator, List, Optional, Set, Tuple

import numpy as np

from kdleak.errors import MemoryUnreadable
from kdleak.nt.blocks.pool_pages import Addresses, Sizes
from kdleak.nt.blocks.segment_heap_layout import (
    DESCRIPTORS,
    HEAP_SIGNATURE,
    LFH_RANGE,
    MAXIMUM_POOLS,
    RANGE_FLAGS_MASK,
    VS_RANGE,
    SegmentHeapLayout,
    segment_heap_candidates,
)
from kdleak.nt.blocks.subsegments import (
    NOT_A_CHUNK,
    HeapKeys,
    LfhSubsegment,
    States,
    Subsegment,
    SubsegmentMemory,
    VsSubsegment,
)
from kdleak.nt.memory import PAGE_SIZE, MemoryReader, read_pointer, sign_extend

MAXIMUM_SEGMENTS = 1 << 16
"""Most segments of one context that are followed."""
MAXIMUM_SUBSEGMENTS = 1 << 20
"""Most subsegments that are remembered."""
_HEAPS_OF_A_NODE = 4
_SPECIAL_HEAPS = 4
_UNIT_SHIFTS = range(12, 25)
_LARGEST_SUBSEGMENT = 16 << 20
"""Bytes; a VS subsegment's own Size has room for less."""
_CACHED = 4  # subsegments kept decoded; the search goes in order of address


@dataclass(frozen=True)
class SubsegmentPlace:
    """Where a subsegment lies: what its range descriptor says."""

    address: int
    size: int
    is_vs: bool


class SegmentHeaps:
    """All heaps of nt!ExPoolState.

    Args:
        memory: reads the target.
        state: address of nt!ExPoolState.
        build: Windows build number.
        pointer_size: 4 or 8.

    Attributes:
        heaps: addresses of the heaps that were proved; empty where the layout is not known.
        segments: segments proved.
        places: their subsegments, ascending by address.
        gaps: what could not be followed, one sentence each.

    Raises:
        MemoryUnreadable: nt!ExPoolState cannot be read.
    """

    def __init__(
        self,
        memory: MemoryReader,
        state: int,
        build: int,
        pointer_size: int,
    ) -> None:
        self._memory = memory
        self._pointer_size = pointer_size
        self.heaps: Tuple[int, ...] = ()
        self.segments = 0
        self.places: Tuple[SubsegmentPlace, ...] = ()
        self.gaps: List[str] = []
        keys = read_pointer(memory, state, pointer_size)
        self._keys = HeapKeys(
            read_pointer(memory, keys, pointer_size),
            read_pointer(memory, keys + pointer_size, pointer_size),
        )
        self._cache: Dict[int, Optional[Subsegment]] = {}
        for layout in segment_heap_candidates(build, pointer_size):
            self.heaps = self._find_heaps(state, layout)
            if self.heaps:
                self._layout = layout
                break
        found: Dict[int, SubsegmentPlace] = {}
        for heap in self.heaps:
            for context in range(2):
                at = heap + self._layout.contexts + context * self._layout.context_size
                for place in self._subsegments(at):
                    if len(found) >= MAXIMUM_SUBSEGMENTS:
                        break
                    found.setdefault(place.address, place)
        if len(found) >= MAXIMUM_SUBSEGMENTS:
            self.gaps.append("the pool has too many subsegments: the rest was left out")
        self.places = tuple(found[address] for address in sorted(found))
        self._starts = [place.address for place in self.places]
        self._start_array = np.array(self._starts, dtype=np.uint64)

    # -- finding

    def _find_heaps(self, state: int, layout: SegmentHeapLayout) -> Tuple[int, ...]:
        """Heaps by one layout; none unless the first node's heaps have their signature."""
        try:
            pools = struct.unpack("<I", self._memory.read(state + layout.pools, 4))[0]
        except MemoryUnreadable:
            return ()
        if not 0 < pools <= MAXIMUM_POOLS:
            return ()
        best: List[int] = []
        for node_size in layout.node_sizes:
            found: List[int] = []
            for node in range(pools):
                at = state + layout.nodes + node * node_size
                heaps = self._heaps_at(at, _HEAPS_OF_A_NODE, layout)
                if not heaps:
                    break
                found += heaps
            best = max(best, found, key=len)
        if best:
            best += self._heaps_at(state + layout.special, _SPECIAL_HEAPS, layout)
        return tuple(dict.fromkeys(best))

    def _heaps_at(self, address: int, count: int, layout: SegmentHeapLayout) -> List[int]:
        """Those of an array of pointers that point to a heap."""
        width = layout.pointer_size
        try:
            raw = self._memory.read(address, count * width)
        except MemoryUnreadable:
            return []
        found: List[int] = []
        for index in range(count):
            value = int.from_bytes(raw[index * width : (index + 1) * width], "little")
            heap = sign_extend(value, width)
            try:
                signature = self._memory.read(heap + layout.heap_signature, 4) if heap else b""
            except MemoryUnreadable:
                continue
            if int.from_bytes(signature, "little") == HEAP_SIGNATURE:
                found.append(heap)
        return found

    def _subsegments(self, context: int) -> Iterator[SubsegmentPlace]:
        layout = self._layout
        try:
            raw = self._memory.read(context, layout.context_size)
        except MemoryUnreadable:
            self.gaps.append("a segment context of the pool's heaps is not there")
            return
        shift, first = raw[layout.unit_shift], raw[layout.first_descriptor]
        if shift not in _UNIT_SHIFTS or not first:
            return
        for segment in self._segments(context):
            yield from self._ranges(segment, shift, first)

    def _segments(self, context: int) -> Iterator[int]:
        """Proved segments of a context's list, at most ``MAXIMUM_SEGMENTS``."""
        layout, width = self._layout, self._pointer_size
        head = context + layout.segment_list
        seen: Set[int] = set()
        at = head
        while True:
            try:
                at = read_pointer(self._memory, at, width)
                if at in (head, 0):
                    return
                raw = self._memory.read(at + layout.segment_signature, width)
            except MemoryUnreadable:
                self.gaps.append("a list of pool segments leads to memory that is not there")
                return
            if at in seen or len(seen) >= MAXIMUM_SEGMENTS:
                self.gaps.append("a list of pool segments does not end")
                return
            seen.add(at)
            signature = int.from_bytes(raw, "little") ^ self._keys.heap ^ at
            signature = (signature ^ layout.segment_constant) & (1 << 8 * width) - 1
            if sign_extend(signature, width) != context or at % PAGE_SIZE:
                self.gaps.append("a list of pool segments leads to something else")
                return
            self.segments += 1
            yield at

    def _ranges(self, segment: int, shift: int, first: int) -> Iterator[SubsegmentPlace]:
        """Subsegments by the range descriptors of a segment."""
        layout = self._layout
        size = layout.descriptor_size
        try:
            raw = self._memory.read(segment, DESCRIPTORS * size)
        except MemoryUnreadable:
            self.gaps.append("the descriptors of a pool segment are not there")
            return
        index = first
        while index < DESCRIPTORS:
            flags = raw[index * size + layout.range_flags] & RANGE_FLAGS_MASK
            units = raw[index * size + layout.unit_size]
            if flags in (LFH_RANGE, VS_RANGE) and 0 < units <= DESCRIPTORS - index:
                address = segment + (index << shift)
                if units << shift <= _LARGEST_SUBSEGMENT:
                    yield SubsegmentPlace(address, units << shift, flags == VS_RANGE)
            index += max(units, 1) if flags else 1

    # -- asking

    def states(self, addresses: Addresses, sizes: Sizes) -> States:
        """What the subsegments say about blocks.

        Args:
            addresses: of POOL_HEADERs, ascending.
            sizes: of their blocks, bytes.

        Returns:
            ``subsegments.ALLOCATED``, ``FREE``, ``UNCERTAIN``, or ``NOT_A_CHUNK`` where no proved
            subsegment has a chunk there.
        """
        states = np.full(len(addresses), NOT_A_CHUNK, dtype=np.int8)
        if not len(self._start_array):
            return states
        owner = np.searchsorted(self._start_array, addresses, side="right") - 1
        for index in np.unique(owner[owner >= 0]):
            place = self.places[index]
            chosen = np.flatnonzero(owner == index)
            offsets = (addresses[chosen] - np.uint64(place.address)).astype(np.int64)
            inside = offsets < place.size
            subsegment = self._decoded(place) if inside.any() else None
            if subsegment is not None:
                chosen = chosen[inside]
                states[chosen] = subsegment.states(offsets[inside], sizes[chosen])
        return states

    def around(self, address: int) -> Optional[SubsegmentPlace]:
        """The subsegment that an address lies in."""
        index = bisect.bisect_right(self._starts, address) - 1
        if index >= 0 and address < self.places[index].address + self.places[index].size:
            return self.places[index]
        return None

    def _decoded(self, place: SubsegmentPlace) -> Optional[Subsegment]:
        """A subsegment, None where it is not proved."""
        if place.address not in self._cache:
            while len(self._cache) >= _CACHED:
                del self._cache[next(iter(self._cache))]
            memory = read_subsegment(self._memory, place.address, place.size)
            kind = VsSubsegment if place.is_vs else LfhSubsegment
            subsegment: Subsegment = kind(memory, self._layout, self._keys)
            self._cache[place.address] = subsegment if subsegment.proved else None
        return self._cache[place.address]


def read_subsegment(memory: MemoryReader, address: int, size: int) -> SubsegmentMemory:
    """A subsegment with zeros where a page is not there."""
    present = np.ones(size // PAGE_SIZE, dtype=np.bool_)
    try:
        raw = memory.read(address, size)
    except MemoryUnreadable:
        parts = [_page(memory, address + offset) for offset in range(0, size, PAGE_SIZE)]
        present[:] = [part is not None for part in parts]
        raw = b"".join(part or bytes(PAGE_SIZE) for part in parts)
    return SubsegmentMemory(address, np.frombuffer(raw, dtype=np.uint8), present)


def _page(memory: MemoryReader, address: int) -> Optional[bytes]:
    try:
        return memory.read(address, PAGE_SIZE)
    except MemoryUnreadable:
        return None
