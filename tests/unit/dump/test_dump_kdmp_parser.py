"""kdmp-parser, an independent reader, sees the same in constructed dumps as we do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kdleak.dump.file import open_dump
from tests.dump_files.build_memory import (
    bitmap_dump,
    frames_of,
    full_dump,
    page_of,
    ranges_dump,
)

kdmp_parser = pytest.importorskip("kdmp_parser")

RUNS = [(1, 3), (0x10, 0x20), (0x81, 1), (0x100, 40)]
FRAMES = frames_of(RUNS)
# A multiple of 8: this reader does not look at the last frames of a bitmap otherwise.
BITS = 0x200
FIELDS = {
    "bug_check_code": 0xE2,
    "bug_check_parameters": (1, 2, 3, 0xFFFFF80312345678),
    "module_list": 0xFFFFF80311223344,
    "process_list": 0xFFFFF80311223388,
    "debugger_data": 0xFFFFF80311220000,
    "pfn_database": 0xFFFFF80311110000,
    "system_time": 0x1DA000000001234,
    "uptime": 0x1234567,
    "product_type": 1,
}
BUILDERS: dict[str, Callable[[], bytes]] = {
    "1": lambda: full_dump(8, RUNS, **FIELDS),
    "5": lambda: bitmap_dump(8, FRAMES, bits=BITS, **FIELDS),
    "6": lambda: bitmap_dump(8, FRAMES, bits=BITS, dump_type=6, **FIELDS),
    "8": lambda: ranges_dump(8, RUNS, **FIELDS),
    "9": lambda: ranges_dump(9, RUNS, **FIELDS),
    "10": lambda: ranges_dump(10, RUNS, **FIELDS),
}


@pytest.mark.parametrize("dump_type", BUILDERS)
def test_same_pages_and_header(dump_type: str, tmp_path: Path) -> None:
    path = tmp_path / "memory.dmp"
    path.write_bytes(BUILDERS[dump_type]())
    other = kdmp_parser.KernelDumpParser(path)
    with open_dump(path) as dump:
        addresses = sorted(other.pages.keys())
        ours = [
            0x1000 * (first + index)
            for first, count, _ in dump.pages.runs()
            for index in range(count)
        ]
        assert ours == addresses == [0x1000 * frame for frame in FRAMES]
        for address in addresses:
            page = dump.page(address >> 12)
            assert page == other.read_physical_page(address) == page_of(address >> 12)
        header = dump.header
        assert other.type == header.dump_type == int(dump_type)
        assert other.directory_table_base == header.directory_table_base
        theirs = other.header
        assert theirs.BugCheckCode == header.bug_check_code
        assert tuple(theirs.BugCheckCodeParameter) == header.bug_check_parameters
        assert theirs.PsLoadedModuleList == header.module_list
        assert theirs.PsActiveProcessHead == header.process_list
        assert theirs.KdDebuggerDataBlock == header.debugger_data
        assert theirs.PfnDatabase == header.pfn_database
        assert theirs.MachineImageType == header.machine
        assert theirs.NumberProcessors == header.processors
        assert theirs.SystemTime == header.system_time
        assert theirs.SystemUpTime == header.uptime
        assert theirs.ProductType == header.product_type
