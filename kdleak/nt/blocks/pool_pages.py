"""Pool pages in bulk: headers that carry a tag, and pages whose headers form one chain.

Everything here works on many pages at once (numpy); a page is 4096 bytes. On kernels without
the segment heap a page of small blocks is a chain: each header's BlockSize leads to the next
one, whose PreviousSize leads back, from the start of the page to its end. Where the whole chain
fits, every block of the page is known exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

import numpy as np
import numpy.typing as npt

from kdleak.nt.layouts import pool_header_size
from kdleak.nt.memory import PAGE_SIZE
from kdleak.tags import PROTECTED_POOL

Addresses = npt.NDArray[np.uint64]
Sizes = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Pages = npt.NDArray[np.uint8]

CACHE_ALIGNED = 4
"""PoolType bit, Vista and later."""

FIRST_IN_USE_BIT_BUILD = 6000
"""Vista: PoolType bit 1 marks a block in use and odd means paged; before, bit 2 and even do."""


@dataclass(frozen=True)
class HeaderHits:
    """Pool headers that carry the tag, in order of address; one entry of each array per header.

    Attributes:
        rows: index of the page in its batch.
        offsets: of the header in its page, bytes.
        addresses: of the header.
        previous: bytes to the header in front, as it says.
        sizes: bytes of the block, header included, as it says.
        types: PoolType.
    """

    rows: npt.NDArray[np.intp]
    offsets: Sizes
    addresses: Addresses
    previous: Sizes
    sizes: Sizes
    types: Pages

    def __len__(self) -> int:
        return len(self.rows)

    def only(self, chosen: Flags) -> HeaderHits:
        """Those of a mask; nothing is copied where that is all."""
        if chosen.all():
            return self
        return HeaderHits(
            self.rows[chosen],
            self.offsets[chosen],
            self.addresses[chosen],
            self.previous[chosen],
            self.sizes[chosen],
            self.types[chosen],
        )


def find_headers(addresses: Addresses, pages: Pages, tag: int, pointer_size: int) -> HeaderHits:
    """Every header with the tag that looks right, protected blocks (bit 31 of the tag) too.

    Looks right: on the grid of headers, at least two units long, with a PoolType there is. That
    the block ends in its page is not asked for here.

    Args:
        addresses: of the pages.
        pages: u8[n, 4096], contiguous.
        tag: without the protected bit.
        pointer_size: 4 or 8.
    """
    unit = pool_header_size(pointer_size)
    slots = PAGE_SIZE // unit
    tags = pages.view("<u4")[:, 1 :: unit // 4]
    found = tags == np.uint32(tag)
    found |= tags == np.uint32(tag | PROTECTED_POOL)
    flat = np.flatnonzero(found)
    word = pages.view("<u4").reshape(-1).take(flat * (unit // 4))
    mask = np.uint32(0xFF if pointer_size == 8 else 0x1FF)
    previous = (word & mask).astype(np.int64) * unit
    sizes = (word >> np.uint32(16) & mask).astype(np.int64) * unit
    types = (word >> np.uint32(24 if pointer_size == 8 else 25)).astype(np.uint8)
    right: Flags = (types & 0x80) == 0
    right &= sizes >= 2 * unit
    rows = flat // slots
    offsets = flat % slots * unit
    places = addresses[rows] + offsets.astype(np.uint64)
    return HeaderHits(rows, offsets, places, previous, sizes, types).only(right)


def inside_page(hits: HeaderHits) -> Flags:
    """Which blocks lie in one page, the header in front of them too."""
    aligned = (hits.types & CACHE_ALIGNED) != 0
    fits: Flags = hits.offsets + hits.sizes <= PAGE_SIZE
    fits &= (hits.previous <= hits.offsets) | aligned
    return fits


def chained_pages(
    pages: Pages, rows: npt.NDArray[np.intp], pointer_size: int
) -> Tuple[Flags, Flags]:
    """Which pages are covered by one chain of headers, and where their headers are.

    Args:
        pages: u8[n, 4096], contiguous.
        rows: the pages to look at.
        pointer_size: 4 or 8.

    Returns:
        bool[n], and bool[n, slots] with one slot for each unit of the page; only the slots of
        pages that fit mean something.
    """
    unit = pool_header_size(pointer_size)
    slots, step = PAGE_SIZE // unit, unit // 4
    mask = np.uint32(0xFF if pointer_size == 8 else 0x1FF)  # of PreviousSize and BlockSize
    # All pages take one step at a time; ``at`` counts 32-bit words of the whole batch.
    words = pages.view("<u4").reshape(-1)
    fits = np.zeros(len(pages), dtype=np.bool_)
    starts = np.zeros(len(pages) * slots, dtype=np.bool_)
    at = rows.astype(np.int64) * (PAGE_SIZE // 4)
    end = at + PAGE_SIZE // 4
    last = np.zeros(len(rows), dtype=np.uint32)
    while len(at):
        word = words.take(at)
        size = word >> np.uint32(16) & mask
        good = (word & mask == last) & (size != 0)
        if not good.all():
            at, end, size = at[good], end[good], size[good]
        starts[at // step] = True
        at = at + size.astype(np.int64) * step
        left = at < end
        if left.all():
            last = size
            continue
        fits[end[at == end] * 4 // PAGE_SIZE - 1] = True
        at, end, last = at[left], end[left], size[left]
    return fits, starts.reshape(-1, slots)


def looks_in_use(types: Pages, build: int) -> Flags:
    """Whether PoolType marks a block in use. A freed one on a lookaside list looks so too."""
    bit = 2 if build >= FIRST_IN_USE_BIT_BUILD else 4
    used: Flags = (types & bit) != 0
    return used


def is_paged(types: Pages, build: int) -> Flags:
    """Whether PoolType names paged pool; meaningless for type 0."""
    odd: Flags = (types & 1) != 0
    return odd if build >= FIRST_IN_USE_BIT_BUILD else ~odd
