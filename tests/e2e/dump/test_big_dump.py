"""The benchmark's large dump holds what it says, seen through readers that know nothing of it."""

from __future__ import annotations

import pytest

from kdleak.engine.dump import open_dump_engine
from kdleak.errors import MemoryUnreadable
from kdleak.tags import PoolTag

pytest.importorskip("numpy")
kdmp_parser = pytest.importorskip("kdmp_parser")

from benchmarks.make_big_dump import SIZES, make_big_dump  # noqa: E402 - needs numpy

PAGE = 0x1000


def test_pages_blocks_and_sums(tmp_path):
    path = tmp_path / "big.dmp"
    made = make_big_dump(path, pages=20_000, memory=1 << 30, seed=4)
    other = kdmp_parser.KernelDumpParser(path)
    assert len(other.pages) == made.pages == 20_000
    assert other.header.PhysicalMemoryBlock.NumberOfPages == (1 << 30) // PAGE - 0x100

    blocks: dict[str, list[int]] = {tag: [0, 0] for tag in made.blocks}
    seen: set[bytes] = set()
    frames = []
    with open_dump_engine(path) as engine:
        end = made.pool_start + made.pool_pages * PAGE
        for at in range(made.pool_start, end, PAGE):
            page = engine.read(at, PAGE)
            assert page == bytes(other.read_virtual_page(at))
            frames.append(other.translate_virtual(at) // PAGE)
            seen.add(page)
            size = page[2] * 16
            assert size in SIZES
            for block in range(0, PAGE // size * size, size):
                assert page[block + 2] * 16 == size
                if page[block + 3] == 2:
                    row = blocks[page[block + 4 : block + 8].decode("ascii")]
                    row[0] += 1
                    row[1] += size
        with pytest.raises(MemoryUnreadable):
            engine.read(end, 1)
        usage = engine.pool_usage()
    assert len(seen) == len(set(frames)) == made.pool_pages
    assert frames != sorted(frames)
    assert max(frames) - min(frames) > 10 * made.pool_pages
    assert {tag: tuple(row) for tag, row in blocks.items()} == made.blocks
    for tag, (_, size) in made.blocks.items():
        counted = usage.find(PoolTag.parse(tag))
        assert counted is not None
        assert counted.nonpaged.bytes >= size > 0
