"""The writer of crash dumps: every field at its documented place, and no half files."""

from __future__ import annotations

import errno
import os
import struct
import sys
from dataclasses import replace

import pytest

from kdleak.dump.file import open_dump
from kdleak.dump.kind import DumpKind
from kdleak.dump.writer import WriterHeader, header_bytes, write_dump
from kdleak.errors import TargetError, UsageError

PAGE = 0x1000
HEADER = WriterHeader(
    build=22621,
    directory_table_base=0x1AD000,
    module_list=0xFFFFF80311223344,
    process_list=0xFFFFF80311223388,
    debugger_data=0xFFFFF80311220000,
    runs=((1, 3), (0x10, 0x1F)),
    pfn_database=0xFFFFF80311110000,
    processors=4,
    secondary_version=2,
    bug_check_code=0xE2,
    bug_check_parameters=(1, 2, 3, 0xFFFFF80312345678),
    context=bytes(range(256)) * 4 + bytes(0xD0),
    exception_code=0x80000003,
    exception_flags=1,
    exception_address=0xFFFFF80311111111,
    exception_parameters=(7, 8),
    comment="two words",
    system_time=0x1DA000000001234,
    uptime=0x1234567,
    product_type=3,
    suite_mask=0x110,
    attributes=4,
)


def page(number: int) -> bytes:
    return struct.pack("<Q", number) * (PAGE // 8)


def pages(*frames: int) -> list[tuple[int, bytes]]:
    return [(frame, page(frame)) for frame in frames]


def test_header_fields_are_at_their_offsets():
    raw = header_bytes(DumpKind.BITMAP_FULL, HEADER, 0x123456)
    assert len(raw) == 0x2000
    assert raw[:8] == b"PAGEDU64"

    def at(layout: str, offset: int) -> tuple[int, ...]:
        return struct.unpack_from("<" + layout, raw, offset)

    assert at("II", 0x08) == (0xF, 22621)
    assert at("4Q", 0x10) == (
        0x1AD000, 0xFFFFF80311110000, 0xFFFFF80311223344, 0xFFFFF80311223388
    )  # fmt: skip
    assert at("3I", 0x30) == (0x8664, 4, 0xE2)
    assert at("4Q", 0x40) == (1, 2, 3, 0xFFFFF80312345678)
    assert at("Q", 0x80) == (0xFFFFF80311220000,)
    assert at("I", 0x88) == (2,)
    assert at("Q", 0x90) == (0x22,)
    assert at("4Q", 0x98) == (1, 3, 0x10, 0x1F)
    assert raw[0xB8:0xC0] == b"PAGEPAGE"
    assert raw[0x348 : 0x348 + 0x4D0] == HEADER.context
    assert at("IIQQI", 0xF00) == (0x80000003, 1, 0, 0xFFFFF80311111111, 2)
    assert at("3Q", 0xF20) == (7, 8, 0)
    assert at("I", 0xF98) == (5,)
    assert at("QQ", 0xFA0) == (0x123456, 0x1DA000000001234)
    assert raw[0xFB0:0xFBA] == b"two words\0"
    assert at("Q", 0x1030) == (0x1234567,)
    assert at("3I", 0x103C) == (0, 3, 0x110)
    assert raw[0x104D] == 2
    assert at("I", 0x1050) == (4,)
    assert raw[0x1058:] == b"PAGE" * ((0x2000 - 0x1058) // 4)


def test_without_comment_the_fill_stays():
    raw = header_bytes(DumpKind.FULL, replace(HEADER, comment=""), 0)
    assert raw[0xFB0:0x1030] == b"PAGE" * 32


@pytest.mark.parametrize(
    "kind",
    [DumpKind.FULL, DumpKind.BITMAP_FULL, DumpKind.BITMAP_KERNEL],
    ids=lambda kind: kind.name,
)
def test_our_reader_reads_it_back(kind, tmp_path):
    path = tmp_path / "memory.dmp"
    given = [*pages(1, 3, 0x10), (0x11, bytes(PAGE)), *pages(0x2E)]
    written = write_dump(path, kind, HEADER, iter(given))
    with open_dump(path) as dump:
        header = dump.header
        assert header.kind is kind
        assert header.required_space == path.stat().st_size
        assert header.runs == HEADER.runs
        assert header.bug_check_parameters == HEADER.bug_check_parameters
        assert header.comment == "two words"
        assert header.context[:0x4D0] == HEADER.context
        assert dump.promised_missing == 0
        for frame, content in given:
            assert bytes(dump.page(frame)) == content
        assert dump.page(0) is None
        assert dump.page(4) is None
        if kind is DumpKind.FULL:
            assert written == dump.pages.pages == 0x22
            assert bytes(dump.page(2)) == bytes(PAGE)
        else:
            assert written == dump.pages.pages == len(given)
            assert dump.page(2) is None


def test_bitmap_is_where_the_format_says(tmp_path):
    path = tmp_path / "memory.dmp"
    write_dump(path, DumpKind.BITMAP_KERNEL, HEADER, pages(1, 0x10, 0x2E))
    raw = path.read_bytes()
    assert raw[0x2000:0x2008] == b"SDMPDUMP"
    first, count, bits = struct.unpack_from("<3Q", raw, 0x2020)
    assert (first, count, bits) == (0x3000, 3, 0x2F)
    assert raw[0x2038 : 0x2038 + 6] == bytes([0x02, 0, 0x01, 0, 0, 0x40])
    assert raw[0x3000:0x6000] == page(1) + page(0x10) + page(0x2E)
    assert len(raw) == 0x6000


def test_large_bitmaps_take_whole_pages(tmp_path):
    path = tmp_path / "memory.dmp"
    header = replace(HEADER, runs=((0, 0x10000),))
    write_dump(path, DumpKind.BITMAP_FULL, header, pages(0xFFFF))
    raw = path.read_bytes()
    assert struct.unpack_from("<3Q", raw, 0x2020) == (0x5000, 1, 0x10000)
    assert raw[0x5000:] == page(0xFFFF)


@pytest.mark.parametrize(
    "given",
    [
        [(3, page(3)), (1, page(1))],
        [(1, page(1)), (1, page(1))],
        [(1, b"short")],
        [(0, page(0))],
        [(4, page(4))],
        [(0x2F, page(0))],
    ],
    ids=["backwards", "twice", "short", "before", "between", "behind"],
)
@pytest.mark.parametrize("kind", [DumpKind.FULL, DumpKind.BITMAP_FULL], ids=["full", "bitmap"])
def test_wrong_pages_leave_nothing(kind, given, tmp_path):
    with pytest.raises(UsageError, match="page frame"):
        write_dump(tmp_path / "memory.dmp", kind, HEADER, given)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [
        {"runs": ()},
        {"runs": ((1, 1),) * 2},
        {"runs": ((5, 1), (1, 1))},
        {"runs": ((1, 0),)},
        {"runs": tuple((2 * index, 1) for index in range(44))},
        {"context": bytes(3001)},
        {"comment": "x" * 128},
        {"comment": "\u00e9"},
        {"bug_check_parameters": (1, 2, 3)},
        {"exception_parameters": (0,) * 16},
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_before_a_file_is_made(change, tmp_path):
    with pytest.raises(UsageError):
        write_dump(tmp_path / "x.dmp", DumpKind.FULL, replace(HEADER, **change), pages(1))
    assert list(tmp_path.iterdir()) == []


def test_other_kinds_are_refused(tmp_path):
    with pytest.raises(UsageError, match="triage"):
        write_dump(tmp_path / "x.dmp", DumpKind.TRIAGE, HEADER, [])


class TestFile:
    def test_a_file_that_is_there_stays(self, tmp_path):
        path = tmp_path / "memory.dmp"
        path.write_text("mine")
        with pytest.raises(UsageError, match="there already"):
            write_dump(path, DumpKind.FULL, HEADER, pages(1))
        assert path.read_text() == "mine"
        assert list(tmp_path.iterdir()) == [path]

    def test_force_replaces_it(self, tmp_path):
        path = tmp_path / "memory.dmp"
        path.write_text("mine")
        write_dump(path, DumpKind.FULL, HEADER, pages(1), force=True)
        assert path.read_bytes()[:8] == b"PAGEDU64"

    def test_a_link_stays_a_link(self, tmp_path):
        real, link = tmp_path / "real.dmp", tmp_path / "link.dmp"
        real.write_text("mine")
        try:
            link.symlink_to(real)
        except OSError:
            pytest.skip("no symbolic links here")
        write_dump(link, DumpKind.FULL, HEADER, pages(1), force=True)
        assert link.is_symlink()
        assert real.read_bytes()[:8] == b"PAGEDU64"

    def test_a_folder_is_never_replaced(self, tmp_path):
        with pytest.raises(UsageError, match="no file"):
            write_dump(tmp_path, DumpKind.FULL, HEADER, pages(1), force=True)

    def test_no_folder(self, tmp_path):
        with pytest.raises(TargetError, match="folder is not there"):
            write_dump(tmp_path / "no" / "x.dmp", DumpKind.FULL, HEADER, pages(1))

    @pytest.mark.skipif(sys.platform == "win32", reason="modes of Unix")
    @pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write")
    def test_no_permission(self, tmp_path):
        tmp_path.chmod(0o500)
        try:
            with pytest.raises(TargetError, match="ermission"):
                write_dump(tmp_path / "x.dmp", DumpKind.FULL, HEADER, pages(1))
        finally:
            tmp_path.chmod(0o700)

    def test_disk_full(self, tmp_path):
        def full():
            yield from pages(1)
            raise OSError(errno.ENOSPC, "No space left on device")

        with pytest.raises(TargetError, match=r"No space left.*make room"):
            write_dump(tmp_path / "x.dmp", DumpKind.FULL, HEADER, full())
        assert list(tmp_path.iterdir()) == []

    def test_interrupted(self, tmp_path):
        path = tmp_path / "x.dmp"
        path.write_text("older")

        def interrupted():
            yield from pages(1)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            write_dump(path, DumpKind.BITMAP_FULL, HEADER, interrupted(), force=True)
        assert path.read_text() == "older"
        assert list(tmp_path.iterdir()) == [path]

    def test_somebody_else_makes_the_file_meanwhile(self, tmp_path):
        path = tmp_path / "x.dmp"

        def slow():
            yield from pages(1)
            path.write_text("theirs")

        with pytest.raises(UsageError, match="there already"):
            write_dump(path, DumpKind.FULL, HEADER, slow())
        assert path.read_text() == "theirs"
        assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(sys.platform == "win32", reason="files are not sparse by themselves there")
def test_pages_of_zeros_take_no_room(tmp_path):
    path = tmp_path / "x.dmp"
    header = replace(HEADER, runs=((0, 0x4000),))
    write_dump(path, DumpKind.FULL, header, pages(5))
    status = path.stat()
    assert status.st_size == 0x2000 + 0x4000 * PAGE
    if status.st_blocks * 512 == status.st_size:
        pytest.skip("this file system knows no sparse files")
    assert status.st_blocks * 512 < 1 << 20
