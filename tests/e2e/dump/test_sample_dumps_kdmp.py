"""kdmp-parser, a reader we did not write, opens every sample and reads the same bytes."""

from __future__ import annotations

import struct

import pytest

from kdleak.dump.file import open_dump
from kdleak.dump.kind import DumpKind
from kdleak.engine.dump import open_dump_engine
from kdleak.errors import MemoryUnreadable
from kdleak.practice.crash import booted, dump_machine, run_until_crash
from kdleak.practice.workload import Workload

kdmp_parser = pytest.importorskip("kdmp_parser")

PAGE = 0x1000


def pages_of(path) -> dict[int, bytes]:
    return {
        at // PAGE: bytes(page) for at, page in kdmp_parser.KernelDumpParser(path).pages.items()
    }


def test_every_page_is_the_same(sample, truth):
    theirs = pages_of(sample)
    assert len(theirs) == truth["pages"]
    with open_dump(sample) as dump:
        ours = {
            frame: bytes(dump.page(frame))
            for first, count, _ in dump.pages.runs()
            for frame in range(first, first + count)
        }
        assert dump.promised_missing == 0
    assert ours == theirs


def test_same_header(sample, truth):
    other = kdmp_parser.KernelDumpParser(sample)
    theirs = other.header
    with open_dump(sample) as dump:
        ours = dump.header
        assert (theirs.BugCheckCode, *theirs.BugCheckCodeParameter) == tuple(truth["bug_check"])
        assert theirs.DirectoryTableBase == ours.directory_table_base
        assert theirs.MinorVersion == ours.build
        assert theirs.MajorVersion == 0xF
        assert theirs.PsLoadedModuleList == ours.module_list
        assert theirs.PsActiveProcessHead == ours.process_list
        assert theirs.KdDebuggerDataBlock == ours.debugger_data
        assert (theirs.KdDebuggerDataBlock == 0) == (sample.name == "nokdbg.dmp")
        assert theirs.NumberProcessors == ours.processors == 2
        assert theirs.RequiredDumpSpace == ours.required_space == sample.stat().st_size
        assert theirs.SystemTime == ours.system_time
        assert theirs.SystemUpTime == ours.uptime
        assert theirs.PhysicalMemoryBlock.NumberOfPages == 576
        assert theirs.Exception.ExceptionCode == ours.exception_code == 0x80000003
        assert theirs.Exception.ExceptionAddress == ours.exception_address == other.context.Rip
        assert other.context.Rsp == struct.unpack_from("<Q", ours.context, 0x98)[0]
        assert other.context.SegCs == 0x10


def test_virtual_memory_is_the_same(sample, truth):
    other = kdmp_parser.KernelDumpParser(sample)
    with open_dump_engine(sample) as engine:
        compared = 0
        for module in truth["modules"]:
            for at in range(module["base"], module["base"] + module["size"], PAGE):
                assert engine.read(at, PAGE) == bytes(other.read_virtual_page(at))
                compared += 1
        # Stacks, pool and tables: every page the kernel's page tables map at the stack pointer.
        near = other.context.Rsp & ~(PAGE - 1)
        present = 0
        for at in range(near - 32 * PAGE, near + 32 * PAGE, PAGE):
            page = other.read_virtual_page(at)
            if page is None:
                with pytest.raises(MemoryUnreadable):
                    engine.read(at, PAGE)
            else:
                assert engine.read(at, PAGE) == bytes(page)
                present += 1
    assert compared > 30
    assert 6 <= present < 64


@pytest.mark.parametrize("kind", [DumpKind.FULL, DumpKind.BITMAP_FULL, DumpKind.BITMAP_KERNEL])
def test_every_page_is_what_the_machine_held(kind, tmp_path):
    path = tmp_path / "memory.dmp"
    workload = Workload(population=0, busy_operations=2, tracker_rows=257, big_page_rows=64)
    with booted(seed=21, build=22621, processors=1, memory=4 << 20, workload=workload) as machine:
        bug_check = run_until_crash(machine, 20)
        dump_machine(machine, bug_check, path, kind=kind)
        held = dict(machine.used_pages())
    theirs = pages_of(path)
    if kind is DumpKind.FULL:
        unused = {frame: bytes(PAGE) for frame in range(0x100, 0x400)}
        assert theirs == {**unused, **held}
    else:
        assert theirs == held
    assert len(held) > 200
