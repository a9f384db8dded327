"""Writes a large bitmap dump for benchmarks: 16 GB of memory of which a million pages are in it.

``python -m benchmarks.make_big_dump FILE`` needs about 4 GB of disk and numpy. The dump is one of
the practice kernel with everything a reader needs, plus pool pages that the kernel itself never
made: mapped into kernel address space by page tables of their own, spread over all of physical
memory in runs of 1 to 512 pages that lie in no order in virtual memory, every page different from
every other. The tag tables count their blocks, so sums can be checked.

Each pool page is cut into blocks of one size, as the practice kernel's allocator does it: a
POOL_HEADER (previous size 0, units of 16 bytes, type, tag) and a body, some of them free.
"""

from __future__ import annotations

import argparse
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from kdleak.dump.kind import DumpKind
from kdleak.dump.writer import write_dump
from kdleak.practice.crash import DEFAULT_WORKLOAD, FIRST_FRAME, booted, dump_header
from kdleak.practice.crash import run_until_crash as crash_after
from kdleak.practice.machine import PracticeMachine
from kdleak.practice.paging import FRAME_MASK, PAGE_SIZE, READ_WRITE, TABLE_FLAGS, canonical
from kdleak.tags import PoolTag

MEMORY = 16 << 30
PAGES = 1_000_000
TAGS = ("Leak", "File", "Thre", "Irp ", "Even", "MmCa", "EtwR", "Ntfr")
SIZES = (0x40, 0x80, 0xC0, 0x140, 0x200, 0x400)
LEAK_SHARE = 1 / 64
_BATCH = 4096  # pages made at a time: 16 MB
_ROW = 0x50  # of the tag table, build 22621
_QWORDS = PAGE_SIZE // 8


@dataclass(frozen=True)
class BigDump:
    """What was written.

    Attributes:
        path: the file.
        pages: pages in it.
        size: bytes of the file.
        pool_start: address of the first synthetic pool page.
        pool_pages: how many there are, one behind the other.
        blocks: tag to allocated blocks and their bytes, headers included, in these pages.
        seconds: how long it took.
    """

    path: Path
    pages: int
    size: int
    pool_start: int
    pool_pages: int
    blocks: dict[str, tuple[int, int]]
    seconds: float


@dataclass(frozen=True)
class _Templates:
    """Pages cut into blocks, bodies empty, and what is allocated in each."""

    pages: np.ndarray
    tags: tuple[str, ...]
    counts: np.ndarray
    sizes: np.ndarray


def make_big_dump(
    path: Path, *, pages: int = PAGES, memory: int = MEMORY, seed: int = 1, force: bool = False
) -> BigDump:
    """Write the dump.

    Args:
        path: the file.
        pages: pages in the dump, all together; at least 20,000.
        memory: bytes of physical memory it claims.
        seed: chooses what is where.
        force: replace a file that is there.
    """
    began = time.perf_counter()
    rng = np.random.default_rng(seed)
    templates = _make_templates(rng)
    with booted(
        seed=seed, build=22621, processors=2, memory=128 << 20, workload=DEFAULT_WORKLOAD
    ) as machine:
        bug_check = crash_after(machine, 200)
        base = machine.read_u64("MiNextFreePage") - FIRST_FRAME
        count = _pool_pages(pages - base)
        tables_at = machine.memory.size // PAGE_SIZE
        tables = pages - base - count
        frames = _spread(rng, tables_at + tables, memory // PAGE_SIZE, count)
        start, table_pages = _map_pool(machine, frames, tables_at, rng)
        assert len(table_pages) == tables
        kinds = _choose_kinds(rng, templates, count)
        blocks = _charge_tags(machine, templates, kinds)
        header = replace(
            dump_header(machine, bug_check),
            runs=((FIRST_FRAME, memory // PAGE_SIZE - FIRST_FRAME),),
            comment=f"kdleak benchmark: {pages} pages",
        )

        def contents() -> Iterator[tuple[int, bytes]]:
            yield from machine.used_pages()
            for index, table in enumerate(table_pages):
                yield tables_at + index, table.tobytes()
            yield from _pool_contents(rng, templates, kinds, frames)

        written = write_dump(path, DumpKind.BITMAP_FULL, header, contents(), force=force)
    return BigDump(
        path=path,
        pages=written,
        size=path.stat().st_size,
        pool_start=start,
        pool_pages=count,
        blocks=blocks,
        seconds=time.perf_counter() - began,
    )


def _pool_pages(room: int) -> int:
    """Pool pages that fit into ``room`` pages together with their page tables."""
    count = room
    while count + _table_count(count) > room:
        count -= 1
    return count


def _table_count(pages: int) -> int:
    return 1 + -(-pages // _QWORDS**2) + -(-pages // _QWORDS)


def _spread(rng: np.random.Generator, first: int, end: int, count: int) -> np.ndarray:
    """``count`` frames between ``first`` and ``end``, ascending, in runs with gaps between."""
    lengths = rng.choice(np.array([1, 4, 16, 64, 512]), size=count)
    lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), count)) + 1]
    lengths[-1] -= lengths.sum() - count
    free = end - first - count
    cuts = np.sort(rng.integers(0, free, size=len(lengths)))
    starts = first + cuts + np.concatenate(([0], np.cumsum(lengths)[:-1]))
    inside = np.arange(count) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    frames: np.ndarray = np.repeat(starts, lengths) + inside
    return frames


def _map_pool(
    machine: PracticeMachine, frames: np.ndarray, tables_at: int, rng: np.random.Generator
) -> tuple[int, list[np.ndarray]]:
    """Page tables for the frames, runs in random order, in an unused 512 GB of kernel space.

    Returns:
        Address of the first page, and the tables, which lie in frames from ``tables_at`` on.
    """
    words, root = machine.memory.words, machine.directory_table_base // 8
    slot = next(slot for slot in range(0x110, 0x1D0) if not words[root + slot])
    breaks = np.flatnonzero(np.diff(frames) != 1) + 1
    runs = np.split(frames, breaks)
    order = np.concatenate([runs[index] for index in rng.permutation(len(runs))])
    entries = (order.astype(np.uint64) << np.uint64(12)) | np.uint64(READ_WRITE)
    levels = [_tables(entries)]
    while len(levels[-1]) > 1 or len(levels) < 3:
        # A level's frames follow those of the level above, which come first.
        levels.append(_tables(np.zeros(len(levels[-1]), np.uint64)))
    levels.reverse()
    at = tables_at
    for upper, lower in zip(levels, levels[1:], strict=False):
        at += len(upper)
        links = (np.arange(at, at + len(lower), dtype=np.uint64) << np.uint64(12)) | np.uint64(
            TABLE_FLAGS
        )
        for index, table in enumerate(upper):
            part = links[index * _QWORDS : (index + 1) * _QWORDS]
            table[: len(part)] = part
    words[root + slot] = tables_at * PAGE_SIZE & FRAME_MASK | TABLE_FLAGS
    return canonical(slot << 39), [table for level in levels for table in level]


def _tables(entries: np.ndarray) -> list[np.ndarray]:
    """Entries in tables of 512, the last one filled with zeros."""
    padded = np.zeros(-(-len(entries) // _QWORDS) * _QWORDS, np.uint64)
    padded[: len(entries)] = entries
    return list(padded.reshape(-1, _QWORDS))


def _make_templates(rng: np.random.Generator) -> _Templates:
    combinations = [(tag, size) for tag in TAGS for size in SIZES]
    pages = np.zeros((len(combinations), PAGE_SIZE), np.uint8)
    counts = np.zeros(len(combinations), np.int64)
    for index, (tag, size) in enumerate(combinations):
        for at in range(0, PAGE_SIZE // size * size, size):
            allocated = bool(rng.random() < 0.9)
            header = struct.pack(
                "<BBBB4sQ", 0, 0, size // 16, 2 if allocated else 0, tag.encode("ascii"), 0
            )
            pages[index, at : at + 16] = np.frombuffer(header, np.uint8)
            counts[index] += allocated
    return _Templates(
        pages,
        tuple(tag for tag, _ in combinations),
        counts,
        np.array([size for _, size in combinations], np.int64),
    )


def _choose_kinds(rng: np.random.Generator, templates: _Templates, count: int) -> np.ndarray:
    """The template of every pool page; the leak has a small share of them."""
    leaks = np.array([tag == "Leak" for tag in templates.tags])
    share = np.where(leaks, LEAK_SHARE / leaks.sum(), (1 - LEAK_SHARE) / (~leaks).sum())
    kinds: np.ndarray = rng.choice(len(share), size=count, p=share)
    return kinds


def _charge_tags(
    machine: PracticeMachine, templates: _Templates, kinds: np.ndarray
) -> dict[str, tuple[int, int]]:
    """Count the blocks in the tag table of processor 0."""
    pages_of_kind = np.bincount(kinds, minlength=len(templates.tags))
    blocks: dict[str, tuple[int, int]] = {}
    for index, tag in enumerate(templates.tags):
        number, size = blocks.get(tag, (0, 0))
        more = int(pages_of_kind[index] * templates.counts[index])
        blocks[tag] = (number + more, size + more * int(templates.sizes[index]))
    table = int.from_bytes(machine.read_virtual(machine.symbol("ExPoolTagTables"), 8), "little")
    rows = machine.read_virtual(table, machine.read_u64("PoolTrackTableSize") * _ROW)
    for tag, (number, size) in blocks.items():
        (at,) = [
            at
            for at in range(0, len(rows), _ROW)
            if rows[at : at + 4] == PoolTag.parse(tag).value.to_bytes(4, "little")
        ]
        held, allocs = struct.unpack_from("<QQ", rows, at + 8)
        machine.write_virtual(table + at + 8, struct.pack("<QQ", held + size, allocs + number))
    return blocks


def _pool_contents(
    rng: np.random.Generator, templates: _Templates, kinds: np.ndarray, frames: np.ndarray
) -> Iterator[tuple[int, bytes]]:
    """The pool pages in the order of their frames; the bodies make every page another."""
    for first in range(0, len(frames), _BATCH):
        batch = templates.pages[kinds[first : first + _BATCH]]
        words = batch.view(np.uint64)
        # Sizes are multiples of 0x40, so the fourth of eight words is always inside a body.
        words[:, 3::8] = rng.integers(0, 1 << 63, size=(len(batch), _QWORDS // 8), dtype=np.uint64)
        raw = memoryview(batch).cast("B")
        for index, frame in enumerate(frames[first : first + _BATCH].tolist()):
            yield frame, bytes(raw[index * PAGE_SIZE : (index + 1) * PAGE_SIZE])


def main() -> int:
    """Write the file named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--pages", type=int, default=PAGES)
    parser.add_argument("--memory-gb", type=int, default=MEMORY >> 30)
    parser.add_argument("--force", action="store_true", help="replace a file that is there")
    options = parser.parse_args()
    made = make_big_dump(
        options.file, pages=options.pages, memory=options.memory_gb << 30, force=options.force
    )
    print(
        f"{made.path.name}: {made.pages:,} pages, {made.size:,} bytes, {made.pool_pages:,} pool "
        f"pages at {made.pool_start:#x}, made in {made.seconds:.1f} s"
    )
    for tag, (number, size) in made.blocks.items():
        print(f"  {tag}: {number:,} blocks, {size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
