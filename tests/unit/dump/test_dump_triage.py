"""Small memory dumps: memory by address, drivers, copies; and what such a dump cannot say."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

import pytest

from kdleak.dump.file import DumpFile, open_dump
from kdleak.dump.kind import DumpKind
from kdleak.dump.triage import NO_POOL_TABLES
from kdleak.errors import KdleakError, MemoryUnreadable, TargetError
from tests.dump_files.build_triage import KDBG, STACK, triage_dump

HIGH = {4: 0xFFFFFFFF80000000, 8: 0xFFFFF80000000000}
DRIVERS = {
    4: [("ntoskrnl.exe", 0x804D7000, 0x1F8580), ("leakdrv.sys", 0xF7A00000, 0x5000)],
    8: [
        ("ntoskrnl.exe", 0xFFFFF80311000000, 0xA00000),
        ("leakdrv.sys", 0xFFFFF80322000000, 0x8000),
    ],
}


def write(path: Path, pointer_size: int, **more: object) -> Path:
    mask = 0xFFFFFFFF if pointer_size == 4 else 0xFFFFFFFFFFFFFFFF
    high = HIGH[pointer_size]
    blocks = [(high + 0x1000, b"A" * 0x80), (high + 0x1080, b"B" * 0x10), (high, b"C" * 8)]
    options: dict[str, object] = {
        "blocks": blocks,
        "drivers": DRIVERS[pointer_size],
        "stack_address": (high + 0x9000) & mask,
        "debugger_data": (high + 0x20000) & mask,
        **more,
    }
    path.write_bytes(triage_dump(pointer_size, **options))  # type: ignore[arg-type]
    return path


@pytest.fixture(params=[4, 8])
def small(request: pytest.FixtureRequest, tmp_path: Path):
    with open_dump(write(tmp_path / "mini.dmp", request.param)) as dump:
        yield dump


def test_contents(small: DumpFile) -> None:
    assert small.header.kind is DumpKind.TRIAGE
    assert small.remarks == [NO_POOL_TABLES]
    contents = small.triage
    assert contents is not None
    width = small.header.pointer_size
    high = HIGH[width]
    assert contents.stack == STACK
    assert contents.stack_address == high + 0x9000
    assert contents.prcb == b"PRCB" * 64
    assert contents.process == b"PROC" * 32
    assert contents.thread == b"THRD" * 32
    assert contents.debugger_data == KDBG
    assert contents.broken_driver == "leakdrv.sys"
    extend = 0 if width == 8 else 0xFFFFFFFF00000000
    assert [(d.name, d.base, d.size, d.entry_point, d.timestamp) for d in contents.drivers] == [
        (name, base + extend, size, base + extend + 0x1000, 0x5F000000)
        for name, base, size in DRIVERS[width]
    ]
    assert [(block.address, block.size) for block in contents.blocks] == [
        (high, 8),
        (high + 0x1000, 0x80),
        (high + 0x1080, 0x10),
        (high + 0x9000, len(STACK)),
        (high + 0x20000, len(KDBG)),
    ]


def test_reads_by_address(small: DumpFile) -> None:
    contents = small.triage
    assert contents is not None
    high = HIGH[small.header.pointer_size]
    assert contents.read(high + 0x1070, 0x20) == b"A" * 0x10 + b"B" * 0x10
    assert contents.read(high + 0x9004, 8) == STACK[4:12]
    assert contents.read(high + 0x20010, 4) == b"KDBG"
    assert contents.read(high + 0x5000, 0) == b""
    for address, size, first in [
        (high + 0x1080, 0x11, high + 0x1090),
        (high + 8, 1, high + 8),
        (high + 0x8FFF, 4, high + 0x8FFF),
        (0, 1, 0),
    ]:
        with pytest.raises(MemoryUnreadable) as caught:
            contents.read(address, size)
        assert caught.value.address == first
    assert small.page(0) is None
    assert (small.pages.pages, list(small.pages.runs())) == (0, [])


def test_contents_outlive_the_open_file(tmp_path: Path) -> None:
    with open_dump(write(tmp_path / "mini.dmp", 8)) as dump:
        mapping, contents = dump.data.obj, dump.triage
    assert isinstance(mapping, mmap.mmap)
    assert mapping.closed
    assert contents is not None
    assert contents.read(HIGH[8], 8) == b"C" * 8


def test_32_bit_addresses_in_either_form(tmp_path: Path) -> None:
    with open_dump(write(tmp_path / "mini.dmp", 4)) as dump:
        assert dump.triage is not None
        assert dump.triage.read(0x80001000, 4) == dump.triage.read(0xFFFFFFFF80001000, 4)


@pytest.mark.parametrize(
    ("width", "stride"), [(8, 0xA8), (8, 0xA0), (8, 0x98), (4, 0x60), (4, 0x54)]
)
def test_driver_entries_of_every_size(width: int, stride: int, tmp_path: Path) -> None:
    path = write(tmp_path / "mini.dmp", width, stride=stride, length_in_bytes=True)
    with open_dump(path) as dump:
        assert dump.triage is not None
        names = [driver.name for driver in dump.triage.drivers]
        assert names == ["ntoskrnl.exe", "leakdrv.sys"]
        newest = stride in {0xA8, 0x60}
        assert {d.timestamp for d in dump.triage.drivers} == {0x5F000000 if newest else 0}


def test_blocks_that_overlap_are_read_once(tmp_path: Path) -> None:
    high = HIGH[8]
    blocks = [(high, b"A" * 16), (high + 8, b"B" * 16), (high + 10, b"C" * 4)]
    with open_dump(write(tmp_path / "mini.dmp", 8, blocks=blocks)) as dump:
        assert dump.triage is not None
        assert dump.triage.read(high, 24) == b"A" * 16 + b"B" * 8


@pytest.mark.parametrize(
    ("lies", "remark"),
    [
        ({"size_of_dump": 0x7FFFFFFF}, "cut off"),
        ({"valid": 0x10}, "mark at the end"),
        ({"options": 0x100}, "no room"),
        ({"driver_count": 0xFFFFFFF0}, "claims 4294967280 drivers"),
        ({"block_count": 0xFFFFFFF0}, "claims 4294967280 blocks"),
        ({"stack_size": 0xFFFFFFF0}, "1 blocks of memory in the dump are cut off"),
        ({"debugger_data_size": 0xFFFFFFF0}, "cut off by the end"),
    ],
)
@pytest.mark.parametrize("width", [4, 8])
def test_odd_contents_are_said(
    lies: dict[str, int], remark: str, width: int, tmp_path: Path
) -> None:
    with open_dump(write(tmp_path / "mini.dmp", width, **lies)) as dump:
        assert dump.remarks[0] == NO_POOL_TABLES
        assert any(remark in text for text in dump.remarks[1:]), dump.remarks


@pytest.mark.parametrize("width", [4, 8])
def test_cut_anywhere(width: int, tmp_path: Path) -> None:
    path = write(tmp_path / "mini.dmp", width)
    whole = path.read_bytes()
    opened = 0
    for length in range(0, len(whole), 64):
        path.write_bytes(whole[:length])
        try:
            with open_dump(path) as dump:
                opened += 1
                assert any("cut off" in text for text in dump.remarks), length
        except TargetError:
            assert length < (0x1080 if width == 4 else 0x2080)
    assert opened == sum(
        length >= (0x1080 if width == 4 else 0x2080) for length in range(0, len(whole), 64)
    )


def test_absurd_values_in_every_field(tmp_path: Path) -> None:
    refused = 0
    for width in (4, 8):
        path = write(tmp_path / "mini.dmp", width)
        whole = bytearray(path.read_bytes())
        base = 0x1000 if width == 4 else 0x2000
        for at in range(0, 0x80, 4):
            for value in (0, 1, 0x45474150, 0x7FFFFFFF, 0xFFFFFFFF, len(whole) - 1):
                damaged = bytearray(whole)
                struct.pack_into("<I", damaged, base + at, value)
                path.write_bytes(damaged)
                try:
                    with open_dump(path) as dump:
                        assert dump.triage is not None
                        for block in dump.triage.blocks:
                            assert block.offset + block.size <= len(whole)
                            assert len(dump.triage.read(block.address, block.size)) == block.size
                except KdleakError:
                    refused += 1
    assert refused < 10
