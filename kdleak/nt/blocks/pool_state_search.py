"""Finding nt!ExPoolState without symbols: by the heaps it points to.

Each of its pool nodes begins with four pointers to segment heaps, and a segment heap has a
signature. Four such pointers in a row in nt's writable data, at the place where a layout has
them and with a number of pools in front, are taken for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterator, List, Optional

import numpy as np

from kdleak.errors import MemoryUnreadable
from kdleak.model import Module
from kdleak.nt.blocks.segment_heap_layout import (
    HEAP_SIGNATURE,
    MAXIMUM_POOLS,
    SegmentHeapLayout,
    segment_heap_candidates,
)
from kdleak.nt.memory import read_pointer, sign_extend

if TYPE_CHECKING:
    from kdleak.nt.blocks.search import SearchedMemory

_HEAPS = 4
_MOST_CANDIDATES = 1 << 18
"""Rows of pointers followed before the search is given up."""


def find_pool_state(
    memory: SearchedMemory, kernel: Module, build: int, pointer_size: int
) -> Optional[int]:
    """Address of nt!ExPoolState; None where nothing in the kernel's data looks like it.

    Args:
        memory: the target's.
        kernel: nt's image.
        build: Windows build number; picks the layout that is tried first.
        pointer_size: 4 or 8.
    """
    layouts = segment_heap_candidates(build, pointer_size)
    heap_signature = layouts[0].heap_signature
    for at in _rows_of_pointers(memory, kernel, pointer_size):
        if not _are_heaps(memory, at, pointer_size, heap_signature):
            continue
        for layout in layouts:
            if _fits(memory, at - layout.nodes, layout, kernel):
                return at - layout.nodes
    return None


def _rows_of_pointers(memory: SearchedMemory, kernel: Module, pointer_size: int) -> Iterator[int]:
    """Where four pointers into kernel space stand in a row."""
    kind = "<u8" if pointer_size == 8 else "<u4"
    lowest = 0xFF00000000000000 if pointer_size == 8 else 0x80000000
    left = _MOST_CANDIDATES
    for batch in memory.batches(kernel.base, kernel.base + kernel.size, writable_only=True):
        words = batch.data.view(kind)
        # The low bits of a heap's address are clear.
        good = (words >= lowest) & (words & 0xF == 0)
        row = good[:, : -_HEAPS + 1].copy()
        for step in range(1, _HEAPS):
            row &= good[:, step : good.shape[1] - _HEAPS + 1 + step]
        pages, places = np.nonzero(row)
        for page, place in zip(pages.tolist(), places.tolist()):
            left -= 1
            if left < 0:
                return
            yield int(batch.addresses[page]) + place * pointer_size


def _are_heaps(memory: SearchedMemory, at: int, width: int, signature: int) -> bool:
    try:
        raw = memory.read(at, _HEAPS * width)
        heaps: List[int] = [
            sign_extend(int.from_bytes(raw[index : index + width], "little"), width)
            for index in range(0, len(raw), width)
        ]
        return all(
            int.from_bytes(memory.read(heap + signature, 4), "little") == HEAP_SIGNATURE
            for heap in heaps
        )
    except MemoryUnreadable:
        return False


def _fits(memory: SearchedMemory, state: int, layout: SegmentHeapLayout, kernel: Module) -> bool:
    """Whether the number of pools makes sense, and the keys lie in nt."""
    if state not in kernel:
        return False
    try:
        pools = int.from_bytes(memory.read(state + layout.pools, 4), "little")
        keys = read_pointer(memory, state, layout.pointer_size)
    except MemoryUnreadable:
        return False
    return 0 < pools <= MAXIMUM_POOLS and keys in kernel
