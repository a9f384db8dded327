"""How fast pool pages are searched for the blocks of a tag, beside the same in plain Python.

The pages are chains of blocks of random sizes with fifty tags, as a kernel without the segment
heap has them, and the same pages as single headers (PreviousSize 0), as newer kernels have them.
``plain_scan`` is what ``kdleak.nt.blocks.scan`` does, one header after the other; the results are
compared. Figures are those of this machine.
"""

from __future__ import annotations

import argparse
import random
import struct
import sys
import time
from collections import Counter
from typing import Dict, Iterable, Iterator, List, Set, Tuple

import numpy as np

from kdleak.errors import MemoryUnreadable, SymbolNotFound
from kdleak.found import BlockSearch
from kdleak.nt.blocks.search import search_blocks
from kdleak.tags import PoolTag

PAGE = 0x1000
BASE = 0xFFFF9A80_00000000
TAG = PoolTag.parse("Leak")

Header = Tuple[int, int, int, int]
"""Offset, PreviousSize, BlockSize (bytes) and PoolType."""

# ---- the reference


def plain_scan(
    pages: Iterable[Tuple[int, bytes]], tag: int, pointer_size: int, build: int
) -> Counter:
    """Count the blocks of a tag in pages, by (source, state, size); no table, no heap is known."""
    counts: Counter = Counter()
    for _, page in pages:
        headers = plain_headers(page, tag, pointer_size)
        if not headers:
            continue
        headers = [one for one in headers if _in_page(one)]
        starts = plain_chain(page, pointer_size) if build < 18362 else set()
        if starts:
            for offset, _, size, kind in headers:
                if offset in starts:
                    counts["pool page", _state(kind, build, chained=True), size] += 1
            continue
        known = {one[0]: one for one in headers}
        for offset, previous, size, kind in headers:
            real = known.get(offset - previous) if kind & 4 and previous else None
            if real is not None and real[2] > previous and build >= 17763:
                continue  # the copy in front of a cache-aligned block
            counts["header", _state(kind, build, chained=False), size] += 1
    return counts


def plain_headers(page: bytes, tag: int, pointer_size: int) -> List[Header]:
    """Headers with the tag that look right."""
    unit = 2 * pointer_size
    found: List[Header] = []
    for offset in range(0, PAGE, unit):
        if struct.unpack_from("<I", page, offset + 4)[0] & 0x7FFFFFFF != tag:
            continue
        if pointer_size == 8:
            previous, _, size, kind = page[offset : offset + 4]
            if kind & 0x80:
                continue
        else:
            first, second = struct.unpack_from("<HH", page, offset)
            previous, size, kind = first & 0x1FF, second & 0x1FF, second >> 9
        if size >= 2:
            found.append((offset, previous * unit, size * unit, kind))
    return found


def plain_chain(page: bytes, pointer_size: int) -> Set[int]:
    """Offsets of the headers of a page that is one chain of them; empty where it is none."""
    unit = 2 * pointer_size
    starts: Set[int] = set()
    offset, last = 0, 0
    while offset < PAGE:
        if pointer_size == 8:
            previous, size = page[offset], page[offset + 2]
        else:
            first, second = struct.unpack_from("<HH", page, offset)
            previous, size = first & 0x1FF, second & 0x1FF
        if size == 0 or previous != last or offset + size * unit > PAGE:
            return set()
        starts.add(offset)
        offset, last = offset + size * unit, size
    return starts


def _in_page(one: Header) -> bool:
    offset, previous, size, kind = one
    return offset + size <= PAGE and (previous <= offset or bool(kind & 4))


def _state(kind: int, build: int, *, chained: bool) -> str:
    if kind == 0:
        return "free"
    in_use = kind & (2 if build >= 6000 else 4)
    return "allocated" if chained and in_use else "unknown"


# ---- memory to search


class Batch:
    def __init__(self, addresses: np.ndarray, data: np.ndarray) -> None:
        self.addresses = addresses
        self.data = data


class Batches:
    absent = 0
    absent_tables = 0

    def __init__(self, data: np.ndarray, pages: int) -> None:
        self._data = data
        self._pages = pages

    def __iter__(self) -> Iterator[Batch]:
        numbers = np.arange(len(self._data), dtype=np.uint64)
        addresses = np.uint64(BASE) + numbers * np.uint64(PAGE)
        for at in range(0, len(self._data), self._pages):
            part = slice(at, at + self._pages)
            yield Batch(addresses[part], self._data[part])


class PoolMemory:
    """Nothing but pool pages from ``BASE`` on."""

    kernel_half = (0xFFFF8000_00000000, 1 << 64)

    def __init__(self, data: np.ndarray) -> None:
        self._data = data

    def read(self, address: int, size: int) -> bytes:
        raise MemoryUnreadable(address, size)

    def batches(self, _: int, __: int, pages: int = 512, **___: object) -> Batches:
        return Batches(self._data, pages)


def no_symbol(name: str) -> int:
    raise SymbolNotFound(f"looking up {name}")


def search(data: np.ndarray, build: int, pointer_size: int = 8, tag: PoolTag = TAG) -> BlockSearch:
    """What kdleak finds in the pages."""
    return search_blocks(
        tag,
        memory=PoolMemory(data),
        modules=(),
        symbol=no_symbol,
        nearest=lambda _: None,
        build=build,
        pointer_size=pointer_size,
        limit=0,
    )


def pool_pages(count: int, *, linked: bool, seed: int = 1) -> np.ndarray:
    """Random pages of blocks; one in fifty has the tag."""
    rng = random.Random(seed)
    tags = [TAG.value, *(0x41414141 + number for number in range(49))]
    raw = bytearray(count * PAGE)
    for page in range(0, count * PAGE, PAGE):
        offset, last = 0, 0
        while offset < 256:
            units = min(rng.choice((3, 4, 6, 8, 12, 20, 28, 40)), 256 - offset)
            kind = rng.choice((2, 2, 3, 3, 0))
            struct.pack_into(
                "<4BI", raw, page + 16 * offset, last, 0, units, kind, rng.choice(tags)
            )
            offset, last = offset + units, units if linked else 0
    return np.frombuffer(bytes(raw), dtype=np.uint8).reshape(count, PAGE)


# ---- the figures


def measure(megabytes: int, *, linked: bool) -> Dict[str, float]:
    """GB/s of both, and what they agree on."""
    build = 9600 if linked else 22621
    small = pool_pages(512, linked=linked)
    data = np.tile(small, (max(megabytes // 2, 1), 1))
    best = min(_timed(lambda: search(data, build)) for _ in range(3))
    plain_pages = [(BASE + n * PAGE, small[n].tobytes()) for n in range(len(small))]
    began = time.perf_counter()
    expected = plain_scan(plain_pages, TAG.value, 8, build)
    plain = time.perf_counter() - began
    found = search(small, build)
    counted = Counter()
    for (_, state, size), count in expected.items():
        counted[state, size] += count
    for one in found.sizes:
        for state in ("allocated", "free", "unknown"):
            counted[state, one.size] -= getattr(one, state)
    if any(counted.values()):
        sys.exit(f"kdleak and the plain loops disagree: {counted}")
    return {
        "speed": data.nbytes / best / 1e9,
        "plain": small.nbytes / plain / 1e9,
        "blocks": search(data, build).seen,
    }


def _timed(work) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=512, help="pool pages to search")
    parser.add_argument("--check", action="store_true", help="fail below 1 GB/s or 20 times")
    given = parser.parse_args()
    slow = False
    for linked, title in ((True, "chains (no segment heap)"), (False, "single headers")):
        figures = measure(given.megabytes, linked=linked)
        ratio = figures["speed"] / figures["plain"]
        print(
            f"find, {title}: {figures['speed']:.1f} GB/s, plain Python loops "
            f"{1000 * figures['plain']:.1f} MB/s, {ratio:.0f} times; "
            f"{figures['blocks']:,} blocks seen"
        )
        slow |= figures["speed"] < 1 or ratio < 20
    if given.check and slow:
        sys.exit("find is slower than it has to be")


if __name__ == "__main__":
    main()
