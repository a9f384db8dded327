"""Dumps that are cut, lie about themselves or are huge: read as far as they go, or an error."""

from __future__ import annotations

import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kdleak.dump.file import open_dump
from kdleak.errors import KdleakError, TargetError
from tests.dump_files.build_header import FIELDS, build_header, place, place_runs
from tests.dump_files.build_memory import (
    bitmap_dump,
    bitmap_sub_header,
    full_dump,
    page_of,
    pages_of,
    ranges_dump,
    summary_dump,
)

MEGABYTE = [(0x10, 300)]
FRAMES = list(range(0x10, 0x10 + 300))
BUILDERS: dict[str, Callable[[], bytes]] = {
    "full-64": lambda: full_dump(8, MEGABYTE),
    "full-32": lambda: full_dump(4, MEGABYTE),
    "summary-32": lambda: summary_dump(4, FRAMES),
    "summary-64": lambda: summary_dump(8, FRAMES),
    "bitmap-32": lambda: bitmap_dump(4, FRAMES, dump_type=6),
    "bitmap-64": lambda: bitmap_dump(8, FRAMES),
    "ranges-8": lambda: ranges_dump(8, MEGABYTE),
    "ranges-10": lambda: ranges_dump(10, MEGABYTE),
}


def refused(path: Path, raw: bytes) -> TargetError:
    path.write_bytes(raw)
    with pytest.raises(TargetError) as caught:
        open_dump(path)
    assert path.name in caught.value.tried
    assert caught.value.next_step
    return caught.value


def remarks(path: Path, raw: bytes) -> list[str]:
    path.write_bytes(raw)
    with open_dump(path) as dump:
        return dump.remarks


@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_cut_at_every_4_kb(name: str, tmp_path: Path) -> None:
    whole = BUILDERS[name]()
    path = tmp_path / "m.dmp"
    first_page = len(whole) - 0x1000 * len(FRAMES)
    for length in range(0, 1 << 20, 0x1000):
        path.write_bytes(whole[:length])
        if length < first_page:
            with pytest.raises(TargetError):
                open_dump(path)
            continue
        with open_dump(path) as dump:
            here = (length - first_page) // 0x1000
            assert dump.promised_missing == len(FRAMES) - here
            assert any(f"{len(FRAMES) - here} of {len(FRAMES)} pages" in r for r in dump.remarks)
            for index in {0, here - 1, here, len(FRAMES) - 1} - {-1}:
                page = dump.page(FRAMES[index])
                assert (page is not None) == (index < here)
            assert dump.missing == len({here, len(FRAMES) - 1})
            assert sum(count for _, count, _ in dump.pages.runs()) == here
            found = dump.pages.offsets(np.array(FRAMES, dtype=np.uint64))
            assert int((found >= 0).sum()) == here
            assert dump.pages.pages == len(FRAMES)


def test_a_page_cut_in_the_middle_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "m.dmp"
    path.write_bytes(full_dump(8, MEGABYTE)[:-1])
    with open_dump(path) as dump:
        assert dump.promised_missing == 1
        assert dump.page(FRAMES[-1]) is None
        assert dump.page(FRAMES[-2]) is not None


def test_why_it_is_incomplete(tmp_path: Path) -> None:
    path = tmp_path / "m.dmp"
    whole = bitmap_dump(8, FRAMES, required_space=0x7000000, attributes=4)
    said = remarks(path, whole)
    assert any("too small" in text for text in said)
    assert any(f"wanted {0x7000000} bytes" in text for text in said)
    # Without secondary data a dump is shorter than wanted, and whole.
    assert remarks(path, bitmap_dump(8, FRAMES, required_space=len(whole) + 99)) == []


def test_counts_that_disagree(tmp_path: Path) -> None:
    path = tmp_path / "m.dmp"
    raw = bytearray(bitmap_dump(8, FRAMES))
    struct.pack_into("<Q", raw, 0x2028, 999)
    assert remarks(path, raw) == ["The dump claims 999 pages; its bitmap has 300 bits set."]
    raw = bytearray(summary_dump(4, FRAMES))
    struct.pack_into("<I", raw, 0x1014, 999)
    assert remarks(path, raw) == ["The dump claims 999 pages; its bitmap has 300 bits set."]
    raw = bytearray(ranges_dump(10, MEGABYTE))
    struct.pack_into("<Q", raw, 0x2028, 999)
    assert remarks(path, raw) == ["The dump claims 999 pages; its ranges add up to 300."]
    raw = bytearray(full_dump(8, MEGABYTE))
    place(raw, 8, "number_of_pages", 999)
    assert remarks(path, raw) == ["The header claims 999 pages; its runs add up to 300."]


@pytest.mark.parametrize(("width", "room"), [(4, 86), (8, 43)])
@pytest.mark.parametrize("number", [44 + 43, 0xFFFFFFFF, 0x7FFFFFFF])
def test_absurd_number_of_runs(width: int, room: int, number: int, tmp_path: Path) -> None:
    raw = bytearray(full_dump(width, [(1, 2), (8, 1)]))
    place(raw, width, "number_of_runs", number)
    path = tmp_path / "m.dmp"
    path.write_bytes(raw)
    with open_dump(path) as dump:
        assert f"room for {room}" in dump.remarks[0]
        assert dump.pages.pages == 3
        assert dump.page(8) == page_of(8)


def test_runs_that_overlap_or_overflow(tmp_path: Path) -> None:
    path = tmp_path / "m.dmp"
    header = build_header(8, 1)
    place_runs(header, 8, [(1, 4), (3, 4), (20, 0), (2, 1)])
    path.write_bytes(bytes(header) + pages_of([1, 2, 3, 4, 3, 4, 5, 6, 2]))
    with open_dump(path) as dump:
        assert any("overlap: 3 pages" in text for text in dump.remarks)
        assert [dump.page(frame) == page_of(frame) for frame in range(1, 7)] == [True] * 6
        frames = [first + i for first, count, _ in dump.pages.runs() for i in range(count)]
        assert frames == [1, 2, 3, 4, 5, 6]
    header = build_header(8, 1)
    place_runs(header, 8, [(0x100, 1), (2, 1)], pages=2)
    path.write_bytes(bytes(header) + pages_of([0x100, 2]))
    with open_dump(path) as dump:  # out of order
        assert dump.remarks == []
        assert dump.page(2) == page_of(2)
        assert dump.page(0x100) == page_of(0x100)
        assert [first for first, _, _ in dump.pages.runs()] == [2, 0x100]
    header = build_header(8, 1)
    place_runs(header, 8, [(1, 1), ((1 << 64) - 2, 5)], pages=6)
    path.write_bytes(bytes(header) + page_of(1))
    with open_dump(path) as dump:
        assert dump.pages.end == 2
        assert dump.remarks == ["The header claims 6 pages; its runs add up to 1."]
    header = build_header(8, 1)
    place_runs(header, 8, [(0, (1 << 64) - 1)], pages=3)
    assert "empty" in refused(path, bytes(header)).came_back
    place_runs(header, 8, [(0, 0)])
    assert "no page" in refused(path, bytes(header)).came_back
    assert "no list" in refused(path, bytes(build_header(8, 1))).came_back


def test_a_huge_run_in_a_small_file(tmp_path: Path) -> None:
    header = build_header(8, 1)
    place_runs(header, 8, [(1, 1 << 38)])
    path = tmp_path / "m.dmp"
    path.write_bytes(bytes(header) + page_of(1))
    with open_dump(path) as dump:
        assert dump.promised_missing == (1 << 38) - 1
        assert list(dump.pages.runs()) == [(1, 1, 0x2000)]
        assert dump.page(2) is None
        assert dump.missing == 1
        asked = np.array([1, 2, 1 << 38], dtype=np.uint64)
        assert dump.pages.offsets(asked).tolist() == [0x2000, -1, -1]


def test_200_gb_bitmap_in_a_megabyte(tmp_path: Path) -> None:
    path = tmp_path / "m.dmp"
    bits = 200 * (1 << 30) * 8
    for first_page in (0x2038 + bits // 8, 0x8000, 0x3000, 0, (1 << 64) - 1, 0x2038):
        raw = bytes(build_header(8, 5)) + bitmap_sub_header(b"FDMP", first_page, 5, bits, b"\x1f")
        path.write_bytes(raw.ljust(1 << 20, b"\0"))
        started = time.perf_counter()
        if first_page in {0x3000, 0x8000}:
            with open_dump(path) as dump:
                assert any("has room for" in text for text in dump.remarks)
                assert dump.pages.pages == 5
        else:
            with pytest.raises(TargetError, match="first page should lie"):
                open_dump(path)
        assert time.perf_counter() - started < 1


def test_200_gb_bitmap_that_a_sparse_file_really_has(tmp_path: Path) -> None:
    path = tmp_path / "m.dmp"
    size = 200 << 30
    with path.open("wb") as file:
        file.write(build_header(8, 5))
        file.write(bitmap_sub_header(b"FDMP", 0x3000 + size, 0, 8 * size, b""))
        try:
            file.truncate(0x3000 + size)
        except OSError:
            pytest.skip("no room for a sparse file of this size here")
    started = time.perf_counter()
    with pytest.raises(TargetError, match="no machine has"):
        open_dump(path)
    assert time.perf_counter() - started < 1


def test_range_list_without_an_end(tmp_path: Path) -> None:
    path = tmp_path / "m.dmp"
    count = (1 << 20) + 5000
    table = np.empty((count, 2), dtype="<u8")
    table[:, 0] = np.arange(count, dtype=np.uint64) * 2 + 1
    table[:, 1] = 1
    raw = bytearray(ranges_dump(8, [(1, 1)])[:0x2030])
    first_page = 0x2030 + 16 * count
    struct.pack_into("<QQ", raw, 0x2010, first_page - 0x2040 + 0x20, first_page)
    with path.open("wb") as file:
        file.write(raw)
        file.write(table.tobytes())
        file.truncate(first_page + 0x1000 * count)
    started = time.process_time()
    with open_dump(path) as dump:
        took = time.process_time() - started
        assert dump.pages.pages == 1 << 20
        assert any("first 1048576 ranges only" in text for text in dump.remarks)
        assert dump.pages.offset(5) == first_page + 0x2000
        assert dump.pages.offset(6) is None
    assert took < 1
    # Out of order, such a list would take a while to sort.
    table[:, 0] = table[::-1, 0]
    with path.open("r+b") as file:
        file.seek(0x2030)
        file.write(table.tobytes())
    started = time.process_time()
    with open_dump(path) as dump:
        took = time.process_time() - started
        assert any("out of order" in text for text in dump.remarks)
        assert dump.pages.offset(int(table[9, 0])) == first_page + 9 * 0x1000
    assert took < 1


def test_range_lists_that_lie(tmp_path: Path) -> None:
    path = tmp_path / "m.dmp"
    raw = bytearray(ranges_dump(8, [(1, 1), (5, 2)]))
    struct.pack_into("<Q", raw, 0x2018, 1 << 63)
    assert "first page" in refused(path, raw).came_back
    raw = bytearray(ranges_dump(8, [(1, 1), (5, 2)]))
    raw[0x2004:0x2008] = b"XXXX"
    assert "RDMP" in refused(path, raw).came_back
    raw = bytearray(ranges_dump(9, [(1, 1), (5, 2)]))
    struct.pack_into("<QQ", raw, 0x2040, (1 << 64) - 1, 1 << 50)
    path.write_bytes(raw)
    with open_dump(path) as dump:
        assert "Range 1" in dump.remarks[0]
        assert dump.pages.pages == 1
    raw = bytearray(ranges_dump(8, [(1, 1)]))
    struct.pack_into("<QQ", raw, 0x2030, 0, 0)
    assert "empty" in refused(path, raw).came_back
    raw = bytearray(ranges_dump(8, [(1, 1)]))
    struct.pack_into("<Q", raw, 0x2010, 7)
    assert "disagree" in remarks(path, raw)[0]


@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_absurd_values_in_every_header_field(name: str, tmp_path: Path) -> None:
    whole = BUILDERS[name]()
    width = 4 if whole[4:8] == b"DUMP" else 8
    path = tmp_path / "m.dmp"
    places = [(at32, at64) for at32, _, at64, _ in FIELDS.values()]
    header = len(build_header(width, 1))
    refusals: list[KdleakError] = []
    ats = sorted({pair[width == 8] for pair in places} | set(range(header, header + 0x40, 4)))
    for at in ats:
        for value in (0, 1, 0x45474150, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF):
            raw = bytearray(whole)
            struct.pack_into("<I", raw, at, value)
            path.write_bytes(raw[: header + 0x8000])
            started = time.perf_counter()
            try:
                with open_dump(path) as dump:
                    dump.page(FRAMES[0])
                    assert dump.pages.pages >= dump.promised_missing >= 0
                    list(zip(range(1000), dump.pages.runs(), strict=False))
            except KdleakError as error:
                refusals.append(error)
            assert time.perf_counter() - started < 1
    assert refusals
    assert all(error.came_back and error.next_step for error in refusals)


_OPEN_AND_MEASURE = """
import re, sys, time
from kdleak.dump.file import open_dump
started = time.perf_counter()
with open_dump(sys.argv[1]) as dump:
    took = time.perf_counter() - started
    for frame in range(0, dump.pages.end, 65_537):
        dump.page(frame)
    # Not getrusage: its peak is inherited from the process that started this one.
    status = open("/proc/self/status", encoding="ascii").read()
    print(took, re.search(r"VmHWM:\\s+(\\d+)", status)[1], dump.pages.pages)
    print(dump.remarks)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
@pytest.mark.parametrize("pattern", [b"\xff", b"\x0f", b"\x5a\0\xff\x01"])
def test_256_gb_sparse_dump_opens_fast_in_little_memory(pattern: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.dmp"
    bits = 1 << 26
    bitmap = pattern * (bits // 8 // len(pattern))
    pages = int.from_bytes(bitmap, "little").bit_count()
    first_page = 0x3000 + bits // 8
    with path.open("wb") as file:
        file.write(build_header(8, 5))
        file.write(bitmap_sub_header(b"FDMP", first_page, pages, bits, bitmap))
        try:
            file.truncate(first_page + 0x1000 * pages)
        except OSError:
            pytest.skip("no room for a sparse file of this size here")
    ran = subprocess.run(
        [sys.executable, "-c", _OPEN_AND_MEASURE, str(path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    took, kilobytes, seen = ran.stdout.split("\n")[0].split()
    assert ran.stdout.split("\n")[1] == "[]"
    assert int(seen) == pages
    assert float(took) < 1
    assert int(kilobytes) < 150 * 1024
    # Behind 4 GB, where 32-bit offsets end.
    with open_dump(path) as dump:
        assert dump.pages.offset(dump.pages.end - 1) == first_page + 0x1000 * (pages - 1)
        page = dump.page(dump.pages.end - 1)
        assert page == bytes(0x1000)
        del page


def test_file_that_shrinks_while_open(tmp_path: Path) -> None:
    path = tmp_path / "m.dmp"
    path.write_bytes(full_dump(8, MEGABYTE))
    with open_dump(path) as dump:
        dump.check_unchanged()
        with path.open("r+b") as file:
            file.truncate(0x5000)
        with pytest.raises(TargetError, match="shrank"):
            dump.check_unchanged()
