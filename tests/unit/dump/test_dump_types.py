"""Dumps of every type and pointer size: the same pages, by every way to ask for them."""

from __future__ import annotations

import mmap
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kdleak.dump.file import open_dump
from kdleak.dump.kind import DumpKind
from kdleak.errors import MemoryUnreadable
from tests.dump_files.build_header import build_header
from tests.dump_files.build_memory import (
    bitmap_dump,
    bitmap_sub_header,
    bits_of,
    frames_of,
    full_dump,
    page_of,
    ranges_dump,
    summary_dump,
)

RUNS = [(1, 3), (0x10, 0x20), (0x81, 1), (0x100, 40)]
FRAMES = frames_of(RUNS)
# Scattered over several of the map's inner pieces, with a last byte that is not full.
SCATTERED = [*sorted(random.Random(4).sample(range(300000), 150)), 300001, 300002]

BUILDERS: dict[str, tuple[Callable[[], bytes], DumpKind, list[int]]] = {
    "full-64": (lambda: full_dump(8, RUNS), DumpKind.FULL, FRAMES),
    "full-32": (
        lambda: full_dump(
            4,
            RUNS,
        ),
        DumpKind.FULL,
        FRAMES,
    ),
    "summary-64": (lambda: summary_dump(8, FRAMES), DumpKind.KERNEL, FRAMES),
    "summary-32": (lambda: summary_dump(4, FRAMES, bits=0x1003), DumpKind.KERNEL, FRAMES),
    "bitmap-5": (lambda: bitmap_dump(8, SCATTERED), DumpKind.BITMAP_FULL, SCATTERED),
    "bitmap-6": (
        lambda: bitmap_dump(8, SCATTERED, dump_type=6),
        DumpKind.BITMAP_KERNEL,
        SCATTERED,
    ),
    "bitmap-7": (lambda: bitmap_dump(8, FRAMES, dump_type=7), DumpKind.BITMAP_KERNEL, FRAMES),
    "bitmap-32": (lambda: bitmap_dump(4, FRAMES), DumpKind.BITMAP_FULL, FRAMES),
    "bitmap-32-kernel": (
        lambda: bitmap_dump(4, FRAMES, dump_type=6),
        DumpKind.BITMAP_KERNEL,
        FRAMES,
    ),
    "ranges-8": (lambda: ranges_dump(8, RUNS), DumpKind.KERNEL_RANGES, FRAMES),
    "ranges-9": (lambda: ranges_dump(9, RUNS), DumpKind.KERNEL_AND_USER_RANGES, FRAMES),
    "ranges-10": (lambda: ranges_dump(10, RUNS), DumpKind.COMPLETE_RANGES, FRAMES),
    "arm64": (
        lambda: bitmap_dump(8, FRAMES, machine=0xAA64),
        DumpKind.BITMAP_FULL,
        FRAMES,
    ),
}


@pytest.fixture(params=sorted(BUILDERS))
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, DumpKind, list[int]]:
    build, kind, frames = BUILDERS[request.param]
    path = tmp_path / "memory.dmp"
    path.write_bytes(build())
    return path, kind, frames


def test_every_page_and_no_other(case: tuple[Path, DumpKind, list[int]]) -> None:
    path, kind, frames = case
    with open_dump(path) as dump:
        assert dump.header.kind is kind
        assert dump.remarks == []
        assert (dump.pages.pages, dump.pages.end) == (len(frames), frames[-1] + 1)
        assert (dump.missing, dump.promised_missing) == (0, 0)
        wanted = set(frames)
        for frame in [*frames, *range(0x300), frames[-1] + 1, frames[-1] + 7, 1 << 40, 1 << 63]:
            page = dump.page(frame)
            assert (page is not None) == (frame in wanted), frame
            assert dump.pages.claims(frame) == (frame in wanted)
            if page is not None:
                assert page == page_of(frame)


def test_many_at_once_and_runs_agree(case: tuple[Path, DumpKind, list[int]]) -> None:
    path, _, frames = case
    with open_dump(path) as dump:
        asked = np.array(
            [*range(0x300), *frames, *(frame + 1 for frame in frames), 1 << 40, (1 << 64) - 1],
            dtype=np.uint64,
        )
        one_by_one = [dump.pages.offset(int(frame)) for frame in asked]
        found = dump.pages.offsets(asked)
        assert found.dtype == np.int64
        assert found.tolist() == [-1 if at is None else at for at in one_by_one]
        runs = list(dump.pages.runs())
        assert frames_of((first, count) for first, count, _ in runs) == frames
        for first, count, at in runs:
            assert [dump.pages.offset(first + index) for index in range(count)] == [
                at + 0x1000 * index for index in range(count)
            ]
        # Longest possible: no run continues the one before it.
        assert not any(
            a[0] + a[1] == b[0] and a[2] + 0x1000 * a[1] == b[2]
            for a, b in zip(runs, runs[1:], strict=False)
        )


def test_physical_reads_cross_pages_and_stop_at_the_first_absent_byte(tmp_path: Path) -> None:
    path = tmp_path / "memory.dmp"
    path.write_bytes(full_dump(8, RUNS))
    with open_dump(path) as dump:
        both = page_of(0x10) + page_of(0x11)
        assert dump.read_physical(0x10FF0, 0x20) == both[0xFF0:0x1010]
        assert dump.read_physical(0x10000, 0x2000) == both
        assert dump.read_physical(0x10000, 0) == b""
        with pytest.raises(MemoryUnreadable) as caught:
            dump.read_physical(0x2FFF8, 16)
        assert caught.value.address == 0x30000
        with pytest.raises(MemoryUnreadable):
            dump.read_physical(-1, 4)


def test_whole_file_is_one_view_and_slices_are_no_copies(tmp_path: Path) -> None:
    path = tmp_path / "memory.dmp"
    path.write_bytes(full_dump(8, RUNS))
    with open_dump(str(path)) as dump:
        assert dump.data == path.read_bytes()
        assert dump.size == len(dump.data)
        page = dump.page(1)
        assert page is not None
        assert page.obj is dump.data.obj
        assert page.readonly
        assert dump.where == "memory.dmp"
        assert "complete" in repr(dump)
        del page


def test_close_twice_and_with_a_page_still_held(tmp_path: Path) -> None:
    path = tmp_path / "memory.dmp"
    path.write_bytes(full_dump(8, RUNS))
    dump = open_dump(path)
    page = dump.page(1)
    dump.close()
    dump.close()
    assert page == page_of(1)  # what somebody holds stays readable


@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_closed_file_is_mapped_no_more(name: str, tmp_path: Path) -> None:
    """Windows does not let a mapped file be deleted or replaced."""
    path = tmp_path / "memory.dmp"
    path.write_bytes(BUILDERS[name][0]())
    with open_dump(path) as dump:
        pages = dump.pages
        pages.offsets(np.array([1], dtype=np.uint64))
        mapping = dump.data.obj
        assert isinstance(mapping, mmap.mmap)
        assert not mapping.closed
    assert mapping.closed
    assert pages.pages == dump.pages.pages == len(BUILDERS[name][2])


def test_bits_behind_the_last_frame_mean_nothing(tmp_path: Path) -> None:
    # 0x8B frames: the last byte has 3 bits that count, and the file has all 8 set.
    raw = bytearray(bitmap_dump(8, [1, 0x88, 0x8A], bits=0x8B))
    at = 0x2038 + 0x8B // 8
    assert raw[at] == 0b101
    raw[at] |= 0xF8
    path = tmp_path / "memory.dmp"
    path.write_bytes(raw)
    with open_dump(path) as dump:
        assert dump.remarks == []
        assert (dump.pages.pages, dump.pages.end) == (3, 0x8B)
        assert dump.page(0x8B) is None
        assert list(dump.pages.runs()) == [
            (1, 1, 0x3000),
            (0x88, 1, 0x4000),
            (0x8A, 1, 0x5000),
        ]
        assert dump.pages.offsets(np.arange(0x90, dtype=np.uint64)).tolist() == [
            {1: 0x3000, 0x88: 0x4000, 0x8A: 0x5000}.get(frame, -1) for frame in range(0x90)
        ]


def test_header_only_has_no_pages(tmp_path: Path) -> None:
    path = tmp_path / "header.dmp"
    path.write_bytes(build_header(8, 3))
    with open_dump(path) as dump:
        assert dump.header.kind is DumpKind.HEADER_ONLY
        assert (dump.pages.pages, dump.pages.end, list(dump.pages.runs())) == (0, 0, [])
        assert dump.page(1) is None
        assert dump.pages.offsets(np.array([1], dtype=np.uint64)).tolist() == [-1]


def test_large_bitmaps_with_full_pieces(tmp_path: Path) -> None:
    """Pieces of the map that are all set or all clear take another way."""
    piece = 8 * 0x8000
    runs = [(5, piece), (2 * piece, piece), (4 * piece - 3, 6)]
    path = tmp_path / "memory.dmp"
    frames = frames_of(runs)
    bits = 5 * piece + 3
    bitmap = bits_of(frames, bits)
    first_page = 0x2000 + 0x38 + len(bitmap)
    with path.open("wb") as file:
        file.write(build_header(8, 5))
        file.write(bitmap_sub_header(b"FDMP", first_page, len(frames), bits, bitmap))
        file.truncate(first_page + 0x1000 * len(frames))
    with open_dump(path) as dump:
        assert dump.remarks == []
        assert [(first, count) for first, count, _ in dump.pages.runs()] == runs
        chosen = [*frames[::1009], frames[-1]]
        expected = [first_page + 0x1000 * frames.index(frame) for frame in chosen[:40]]
        assert [dump.pages.offset(frame) for frame in chosen[:40]] == expected
        last = first_page + 0x1000 * (len(frames) - 1)
        assert dump.pages.offset(frames[-1]) == last
        every = np.arange(bits + 10, dtype=np.uint64)
        present = np.flatnonzero(dump.pages.offsets(every) >= 0)
        assert present.tolist() == frames
        found = dump.pages.offsets(np.array(frames, dtype=np.uint64))
        assert found[0] == first_page
        assert bool((np.diff(found) == 0x1000).all())
