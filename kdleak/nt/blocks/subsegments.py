"""VS and LFH subsegments of the segment heap: which of their chunks are in use.

Both are encoded with the keys of nt!RtlpHpHeapGlobals and the address they lie at, so a wrong
key, a wrong layout or a stale copy does not decode to anything that fits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterator, Optional, Tuple, Union

import numpy as np
import numpy.typing as npt

from kdleak.nt.blocks.pool_pages import Flags, Sizes
from kdleak.nt.blocks.segment_heap_layout import VS_CONSTANT, SegmentHeapLayout
from kdleak.nt.memory import PAGE_SIZE

NOT_A_CHUNK, ALLOCATED, FREE, UNCERTAIN = -1, 0, 1, 2
States = npt.NDArray[np.int8]


@dataclass(frozen=True)
class HeapKeys:
    """What the heap encodes its structures with; both of pointer size."""

    heap: int
    lfh: int


@dataclass(frozen=True)
class SubsegmentMemory:
    """A subsegment as far as it is there.

    Attributes:
        address: of it.
        data: its bytes, zeros where a page is not there.
        present: which of its pages are there.
    """

    address: int
    data: npt.NDArray[np.uint8]
    present: Flags

    def has(self, offsets: Sizes, size: int) -> Flags:
        """Whether ``size`` bytes (at most a page) at each offset lie in it and are there."""
        last = offsets + size - 1
        inside: Flags = (offsets >= 0) & (last < len(self.data))
        first_page = np.where(inside, offsets, 0) // PAGE_SIZE
        last_page = np.where(inside, last, 0) // PAGE_SIZE
        inside &= self.present[first_page] & self.present[last_page]
        return inside


@dataclass(frozen=True)
class Chunk:
    """Decoded header of a VS chunk; sizes in bytes, its own header included.

    Attributes:
        offset: in the subsegment.
        size: of the chunk.
        previous: of the chunk in front, 0 for the first.
        allocated: in use, or on a lookaside list.
    """

    offset: int
    size: int
    previous: int
    allocated: bool


class VsSubsegment:
    """A subsegment of chunks of any size.

    Args:
        memory: its bytes.
        layout: offsets.
        keys: to decode with.
    """

    def __init__(self, memory: SubsegmentMemory, layout: SegmentHeapLayout, keys: HeapKeys) -> None:
        self._memory = memory
        self._layout = layout
        self._unit = layout.chunk_header
        width = layout.pointer_size
        kind = "<u8" if width == 8 else "<u4"
        self._words: npt.NDArray[Any] = memory.data[: len(memory.data) // width * width].view(kind)
        self._mask = (1 << 8 * width) - 1
        self._key = keys.heap & self._mask

    @property
    def proved(self) -> bool:
        """Whether its signature is right."""
        at = self._layout.vs_size
        if not self._memory.present[0] or len(self._memory.data) < self._layout.first_chunk:
            return False
        size, signature = (int(one) for one in self._memory.data[at : at + 4].view("<u2"))
        return size == signature ^ VS_CONSTANT and size != 0

    def states(self, headers: Sizes, sizes: Sizes) -> States:
        """What the chunks around pool headers say.

        Args:
            headers: offsets of POOL_HEADERs in the subsegment.
            sizes: of their blocks, bytes.

        Returns:
            ``ALLOCATED``, ``FREE``, or ``NOT_A_CHUNK`` where no chunk header in front fits.
        """
        states = self._states_of(headers - self._unit, headers + sizes)
        # A block that would have crossed a page begins with the page; its chunk header, further
        # in front, is found by walking.
        for index in np.flatnonzero((states == NOT_A_CHUNK) & (headers % PAGE_SIZE == 0)):
            start, end = int(headers[index]), int(headers[index] + sizes[index])
            chunk = self._chunk_around(start, end)
            if chunk is not None:
                states[index] = ALLOCATED if chunk.allocated else FREE
        return states

    def _states_of(self, chunks: Sizes, ends: Sizes) -> States:
        """The same for chunks right in front, whose blocks end at ``ends``."""
        unit = self._unit
        known = (chunks >= self._layout.first_chunk) & (chunks % unit == 0)
        known &= self._memory.has(chunks, unit)
        size, previous, allocated = self._decode(chunks, known)
        following, before = chunks + size, chunks - previous
        known &= (size > unit) & (ends <= following) & (following <= len(self._memory.data))
        at_end = following > len(self._memory.data) - unit
        readable = known & ~at_end & self._memory.has(following, unit)
        linked = readable & (self._decode(following, readable)[1] == size)
        first = (previous == 0) & (chunks == self._layout.first_chunk)
        readable = known & ~first & (before >= self._layout.first_chunk)
        readable &= self._memory.has(before, unit)
        linked_back = readable & (self._decode(before, readable)[0] == previous)
        # One neighbour must confirm it; two headers can only agree if both decode rightly. Where
        # the chunk behind is there to be asked, it must.
        asked = ~at_end & self._memory.has(following, unit)
        known &= linked | ((linked_back | first) & ~asked)
        states = np.full(len(chunks), NOT_A_CHUNK, dtype=np.int8)
        states[known & allocated] = ALLOCATED
        states[known & ~allocated] = FREE
        return states

    def _decode(self, offsets: Sizes, readable: Flags) -> Tuple[Sizes, Sizes, Flags]:
        """Size, PreviousSize (bytes) and Allocated of chunk headers; zeros where unreadable."""
        width = self._layout.pointer_size
        at = np.where(readable, offsets, 0)
        raw = self._words[at // width]
        raw = raw ^ (at.astype(raw.dtype) + raw.dtype.type(self._memory.address & self._mask))
        raw = raw ^ raw.dtype.type(self._key)
        raw[~readable] = 0
        if width == 8:
            size, previous, allocated = raw >> 16 & 0xFFFF, raw >> 32 & 0xFFFF, raw >> 48 & 0xFF
        else:
            size, previous, allocated = raw >> 1 & 0x7FFF, raw >> 16 & 0x7FFF, raw >> 31
        unit = self._unit
        return size.astype(np.int64) * unit, previous.astype(np.int64) * unit, allocated != 0

    def chunks(self) -> Iterator[Chunk]:
        """Its chunks from the first one on, as long as each is confirmed by the next."""
        chunk = self._chunk(self._layout.first_chunk)
        if chunk is None or chunk.previous:
            return
        while chunk is not None:
            end = chunk.offset + chunk.size
            following = self._chunk(end)
            at_end = end > len(self._memory.data) - self._unit
            if not at_end and (following is None or following.previous != chunk.size):
                return
            yield chunk
            chunk = following

    def _chunk(self, offset: int) -> Optional[Chunk]:
        at = np.array([offset], dtype=np.int64)
        readable = self._memory.has(at, self._unit)
        if not readable[0]:
            return None
        size, previous, allocated = (one[0] for one in self._decode(at, readable))
        if size <= 0 or offset + size > len(self._memory.data):
            return None
        return Chunk(offset, int(size), int(previous), bool(allocated))

    def _chunk_around(self, start: int, end: int) -> Optional[Chunk]:
        """The chunk that a block at ``start`` of a page lies in, by walking there."""
        for chunk in self.chunks():
            if chunk.offset + chunk.size >= end:
                around = start - PAGE_SIZE < chunk.offset <= start - self._unit
                return chunk if around else None
        return None


class LfhSubsegment:
    """A subsegment of blocks of one size.

    Args:
        memory: its bytes.
        layout: offsets.
        keys: to decode with.

    Attributes:
        block_size: bytes from one block to the next.
        first_block: offset of the first.
    """

    def __init__(self, memory: SubsegmentMemory, layout: SegmentHeapLayout, keys: HeapKeys) -> None:
        self._memory = memory
        self._layout = layout
        at = layout.block_offsets
        raw = int.from_bytes(memory.data[at : at + 4].tobytes(), "little")
        raw ^= (keys.lfh ^ memory.address >> 12) & 0xFFFFFFFF
        self.block_size, self.first_block = raw & 0xFFFF, raw >> 16

    @property
    def blocks(self) -> int:
        """Blocks that have room."""
        if not self.block_size:
            return 0
        return max(len(self._memory.data) - self.first_block, 0) // self.block_size

    @property
    def proved(self) -> bool:
        """Whether what decodes can be: sizes of this heap, and room for the bitmap in front."""
        unit = 2 * self._layout.pointer_size
        bitmap_end = self._layout.bitmap + (2 * self.blocks + 7) // 8
        return (
            bool(self._memory.present[0])
            and self.block_size >= 2 * unit
            and self.block_size % unit == 0
            and self.first_block % unit == 0
            and self.blocks > 0
            and bitmap_end <= self.first_block
        )

    def states(self, headers: Sizes, sizes: Sizes) -> States:
        """As ``VsSubsegment.states``; the bitmap may also leave it ``UNCERTAIN``."""
        states = np.full(len(headers), NOT_A_CHUNK, dtype=np.int8)
        index, rest = np.divmod(headers - self.first_block, self.block_size)
        known = (rest == 0) & (index >= 0) & (index < self.blocks) & (sizes <= self.block_size)
        where = self._layout.bitmap + np.where(known, index, 0) // 4
        known &= self._memory.has(where, 1)
        bits = self._memory.data[where] >> (2 * (np.where(known, index, 0) % 4)) & 3
        states[known & (bits == 1)] = ALLOCATED
        states[known & (bits == 0)] = FREE
        states[known & (bits > 1)] = UNCERTAIN
        return states


Subsegment = Union[VsSubsegment, LfhSubsegment]
