"""The engine for crash dumps, on dumps built by hand for every machine."""

from __future__ import annotations

import struct
import subprocess
import sys

import pytest

from kdleak.engine.dump import open_dump_engine
from kdleak.errors import (
    MemoryUnreadable,
    NotLive,
    SymbolNotFound,
    TargetError,
    UnsupportedTarget,
)
from kdleak.model import Architecture, StopKind, SymbolKind
from kdleak.nt.places.pool_places import Way
from kdleak.tags import PoolTag
from tests.dump_files.build_header import build_header
from tests.dump_files.build_triage import triage_dump
from tests.dump_files.built_dump import (
    LAB,
    add_debugger_data,
    add_module_list,
    write_built_dump,
)
from tests.dump_files.built_kernel import PAGE, VERSIONS, BuiltKernel

MACHINES = ["xp-x86", "win7-x86", "win10-x86", "win10-x64", "win11-x64", "win10-arm64",
            "win11-24h2-arm64"]  # fmt: skip


def high(kernel, offset):
    """An address of drivers in the kernel's half."""
    return kernel.base + 0x100_0000 + offset


def built(tmp_path, name, *, kdbg=True, modules=True, absent=lambda kernel: (), **fields):
    kernel = BuiltKernel(VERSIONS[name], processors=1 if name == "xp-x86" else 3)
    drivers = [
        ("leaky.sys", high(kernel, 0), 0x5000),
        ("busy-1.sys", high(kernel, 0x10000), 0x3000),
    ]
    head = add_module_list(kernel, drivers)
    fields.setdefault("module_list", head if modules else 0)
    if kdbg:
        fields.setdefault("debugger_data", add_debugger_data(kernel, head if modules else 0))
    else:
        fields.setdefault("debugger_data", 0)
    path = tmp_path / "MEMORY.DMP"
    write_built_dump(path, kernel, absent=absent(kernel), **fields)
    return kernel, path


def sums(snapshot):
    return {
        row.tag.text: [
            row.nonpaged.allocs, row.nonpaged.frees, row.nonpaged.bytes,
            row.paged.allocs, row.paged.frees, row.paged.bytes,
        ]
        for row in snapshot.rows
    }  # fmt: skip


@pytest.mark.parametrize("kdbg", [True, False], ids=["kdbg", "no-kdbg"])
@pytest.mark.parametrize("name", MACHINES)
def test_ranking_of_every_machine(tmp_path, name, kdbg):
    kernel, path = built(tmp_path, name, kdbg=kdbg)
    with open_dump_engine(path) as engine:
        snapshot = engine.pool_usage()
        assert sums(snapshot) == kernel.sums
        assert snapshot.gaps == ()
        assert [module.name for module in engine.modules()] == ["nt", "leaky", "busy_1"]
        info = engine.target
        assert (info.build, info.pointer_size) == (kernel.windows.build, kernel.windows.width)
        assert info.processors == kernel.processors
        assert info.kernel_base == kernel.base
        assert not info.live
        assert (LAB.decode() in info.description) == kdbg
        assert engine.symbol("nt!pooltracktable") == kernel.at["PoolTrackTable"]
        assert engine.symbol("nt!PoolBigPageTable") == kernel.at["PoolBigPageTable"]
        way = Way.DEBUGGER_DATA if kdbg else Way.CONTENTS
        assert engine.places.how("nt!PoolTrackTable") is way
        tag = next(iter(kernel.sums))
        assert sums(engine.pool_usage(PoolTag.parse(tag)))[tag] == kernel.sums[tag]


@pytest.mark.parametrize("name", ["win7-x86", "win11-x64"])
def test_kernel_without_a_module_list(tmp_path, name):
    kernel, path = built(tmp_path, name, modules=False)
    with open_dump_engine(path) as engine:
        assert [module.base for module in engine.modules()] == [kernel.base]
        assert any("only nt is known" in remark for remark in engine.remarks)
        assert sums(engine.pool_usage()) == kernel.sums


def test_kernel_searched_below_an_address_of_its_variables(tmp_path):
    kernel = BuiltKernel(VERSIONS["win11-x64"])
    data = kernel.base + kernel.DATA
    # Its name among its exports tells it from other images.
    exports = kernel.base + 0x1100
    kernel.memory.put(exports, struct.pack("<III", 0, 0, 0) + struct.pack("<I", 0x1180) + bytes(24))
    kernel.memory.put(kernel.base + 0x1180, b"ntoskrnl.exe\0")
    kernel.memory.put(kernel.base + 0x98 + 0x6C, struct.pack("<III", 16, 0x1100, 0x28))
    path = tmp_path / "a.dmp"
    # The header's module list is mapped, but its page is not in the dump.
    lost = kernel.allocate(bytes(PAGE))
    write_built_dump(
        path, kernel, absent=[lost], module_list=lost, debugger_data=0, process_list=data + 0x500
    )
    with open_dump_engine(path) as engine:
        assert engine.target.kernel_base == kernel.base
        assert sums(engine.pool_usage()) == kernel.sums
        assert any("debugger data block was not found" in remark for remark in engine.remarks)


def test_debugger_data_found_among_the_variables(tmp_path):
    kernel = BuiltKernel(VERSIONS["win10-x64"])
    head = add_module_list(kernel)
    add_debugger_data(kernel, head)
    path = tmp_path / "a.dmp"
    write_built_dump(path, kernel, module_list=head, debugger_data=0)
    with open_dump_engine(path) as engine:
        assert LAB.decode() in engine.target.description
        assert engine.symbol("nt!PoolTrackTable") == kernel.at["PoolTrackTable"]
        assert engine.places.how("nt!PoolTrackTable") is Way.DEBUGGER_DATA


def test_nothing_of_the_pool_found(tmp_path):
    kernel = BuiltKernel(VERSIONS["win10-x64"])
    for table in kernel.tables:
        kernel.memory.put(table, bytes((kernel.mask + 2) * 0x38))
    head = add_module_list(kernel)
    path = tmp_path / "a.dmp"
    write_built_dump(path, kernel, module_list=head, debugger_data=0)
    with open_dump_engine(path) as engine:
        with pytest.raises(SymbolNotFound) as caught:
            engine.pool_usage()
        assert "-y" in str(caught.value)
        assert any("points to a tag table" in remark for remark in engine.remarks)


@pytest.mark.parametrize("which", [0, 2])
def test_absent_pages_of_a_table_are_gaps(tmp_path, which):
    kernel, path = built(
        tmp_path, "win11-x64", absent=lambda kernel: [kernel.tables[which] + 3 * PAGE]
    )
    with open_dump_engine(path) as engine:
        snapshot = engine.pool_usage()
        assert any("unreadable" in gap for gap in snapshot.gaps)
        assert sums(snapshot) != kernel.sums
        # One tag at a time: the rows that are there are as good as ever.
        there = missing = 0
        for text, truth in list(kernel.sums.items())[:60]:
            one = engine.pool_usage(PoolTag.parse(text))
            if one.gaps:
                missing += 1
            else:
                there += 1
                assert sums(one)[text] == truth
        assert there


def test_absent_variables_leave_a_ranking_by_the_debugger_data_or_say_so(tmp_path):
    _, path = built(tmp_path, "win11-x64", absent=lambda kernel: [kernel.at["ExPoolTagTables"]])
    with open_dump_engine(path) as engine:
        snapshot = engine.pool_usage()
        assert any("ExPoolTagTables" in gap for gap in snapshot.gaps)
        assert any("not in the dump" in remark for remark in engine.remarks)


def test_header_facts_are_told(tmp_path):
    _, path = built(
        tmp_path, "win10-x64", bug_check_code=0x139,
        bug_check_parameters=(3, 0xFFFFF80012345678, 0, 0),
        system_time=133_800_000_000_000_000, uptime=(2 * 86400 + 3 * 3600 + 61) * 10_000_000,
    )  # fmt: skip
    with open_dump_engine(path) as engine:
        assert "bug check 0x139 (0x3, 0xfffff80012345678, 0x0, 0x0)" in engine.remarks
        assert "written 2024-12-30 02:40:00 UTC, up 2 d 3:01:01" in engine.remarks
        assert engine.stop.kind is StopKind.BUG_CHECK
        assert "0x139" in engine.stop.detail
        assert engine.pool_usage().taken_at == 2 * 86400 + 3 * 3600 + 61
        assert (engine.requests, engine.seconds_stopped, engine.stack_memory()) == (
            0,
            0.0,
            (0, b""),
        )


def test_live_dump_is_called_that(tmp_path):
    _, path = built(tmp_path, "win10-x64", bug_check_code=0x161)
    with open_dump_engine(path) as engine:
        assert any("live dump" in remark for remark in engine.remarks)


def context64(**registers):
    names = ("rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11",
             "r12", "r13", "r14", "r15", "rip")  # fmt: skip
    raw = bytearray(0x4D0)
    for name, value in registers.items():
        struct.pack_into("<Q", raw, 0x78 + 8 * names.index(name), value)
    return bytes(raw)


def test_registers_and_stack_of_x64(tmp_path):
    kernel = BuiltKernel(VERSIONS["win11-x64"])
    head = add_module_list(kernel)
    stack = kernel.allocate(bytes(PAGE))
    kernel.word(stack + 0x100, kernel.base + 0x1234)
    kernel.word(stack + 0x108, 0)
    path = tmp_path / "a.dmp"
    write_built_dump(
        path, kernel, module_list=head, debugger_data=0,
        context=context64(rip=kernel.base + 0x1010, rsp=stack + 0x100, r9=0x77),
    )  # fmt: skip
    with open_dump_engine(path) as engine:
        registers = engine.registers()
        assert (registers["rip"], registers["r9"]) == (kernel.base + 0x1010, 0x77)
        assert engine.stop.program_counter == kernel.base + 0x1010
        frames = engine.stack().frames
        assert [frame.address for frame in frames][:1] == [kernel.base + 0x1010]
        assert frames[0].symbol.module == "nt"
        assert frames[0].symbol.kind is SymbolKind.MODULE


@pytest.mark.parametrize("name", ["win7-x86", "win10-arm64"])
def test_stacks_of_other_machines_are_refused(tmp_path, name):
    raw = bytearray(0x390)
    offset = 0xB8 if name == "win7-x86" else 0x108
    struct.pack_into("<I", raw, offset, 0x12345678)
    _, path = built(tmp_path, name, context=bytes(raw))
    with open_dump_engine(path) as engine:
        counter = "eip" if name == "win7-x86" else "pc"
        assert engine.registers()[counter] == 0x12345678
        with pytest.raises(UnsupportedTarget):
            engine.stack()


def test_no_registers(tmp_path):
    _, path = built(tmp_path, "win10-x64", context=b"PAGE" * 750)
    with open_dump_engine(path) as engine, pytest.raises(TargetError) as caught:
        engine.registers()
    assert "CONTEXT" in str(caught.value)


def test_reading_memory(tmp_path):
    kernel, path = built(tmp_path, "win10-x64")
    with open_dump_engine(path) as engine:
        assert engine.read(kernel.base, 2) == b"MZ"
        assert engine.memory is not None
        with pytest.raises(MemoryUnreadable):
            engine.read(0x10, 4)
        near = engine.nearest(high(kernel, 0x10))
        assert (near.module, near.offset) == ("leaky", 0x10)
        assert engine.nearest(0x10).module == ""


def test_what_needs_a_machine_is_refused(tmp_path):
    _, path = built(tmp_path, "win10-x64")
    with open_dump_engine(path) as engine:
        for attempt in (
            lambda: engine.write(0, b"x"),
            lambda: engine.resume(1.0),
            engine.interrupt,
        ):
            with pytest.raises(NotLive):
                attempt()
        engine.detach(leave_stopped=True)
        engine.close()


def test_reload_reads_the_list_again(tmp_path):
    _, path = built(tmp_path, "win10-x64")
    with open_dump_engine(path) as engine:
        said = engine.reload()
        assert any(remark.startswith("nt: ") for remark in said)
        assert [module.name for module in engine.modules()] == ["nt", "leaky", "busy_1"]


@pytest.mark.parametrize("pointer_size", [4, 8])
def test_small_dump(tmp_path, pointer_size):
    top = 0xFFFF_F801_0000_0000 if pointer_size == 8 else 0x8040_0000
    extended = top if pointer_size == 8 else top | 0xFFFF_FFFF_0000_0000
    raw = triage_dump(
        pointer_size,
        drivers=[("ntoskrnl.exe", top, 0x800000), ("leaky.sys", top + 0x100_0000, 0x5000)],
        stack_address=top + 0x200_0000,
    )
    path = tmp_path / "Mini.dmp"
    path.write_bytes(raw)
    with open_dump_engine(path) as engine:
        assert [module.name for module in engine.modules()] == ["nt", "leaky"]
        assert engine.target.kernel_base == extended
        assert engine.memory is None
        assert engine.places is None
        assert engine.read(extended + 0x200_0000, 4) == bytes([0, 1, 2, 3])
        for attempt in (engine.pool_usage, lambda: engine.pool_usage(PoolTag.parse("Leak"))):
            with pytest.raises(UnsupportedTarget, match="no pool tables"):
                attempt()
        with pytest.raises(SymbolNotFound):
            engine.symbol("nt!PoolTrackTable")
        assert engine.nearest(extended + 0x100_0010).module == "leaky"
        assert engine.registers().as_dict()


def test_header_only(tmp_path):
    path = tmp_path / "header.dmp"
    path.write_bytes(bytes(build_header(8, 3)))
    with open_dump_engine(path) as engine:
        assert engine.modules() == ()
        assert engine.target.architecture is Architecture.X64
        with pytest.raises(UnsupportedTarget, match="only its header"):
            engine.pool_usage()
        with pytest.raises(MemoryUnreadable):
            engine.read(0xFFFF_F800_0000_0000, 8)


def test_a_ranking_loads_nothing_heavy(tmp_path):
    _, path = built(tmp_path, "win10-x64")
    code = (
        "import sys; from kdleak.engine.dump import open_dump_engine; "
        f"e = open_dump_engine({str(path)!r}); assert e.pool_usage().rows; e.close(); "
        "bad = {'numpy', 'capstone', 'requests', 'purepdb', 'unicorn'} & set(sys.modules); "
        "sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_no_such_file(tmp_path):
    with pytest.raises(TargetError):
        open_dump_engine(tmp_path / "none.dmp")
