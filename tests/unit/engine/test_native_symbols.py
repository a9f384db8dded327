"""Names of frames on a scripted host with real image headers."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest
from native_fakes import DRIVER, KERNEL, LIST, STACK, ScriptedHost, break_in, exception

from kdleak.engine.native import NativeEngine
from kdleak.errors import TargetError
from kdleak.kd.packets import LoadSymbols
from kdleak.model import StackEnd, StopKind, SymbolKind

sys.path.append(str(Path(__file__).parents[1] / "nt"))
from image_builder import image

PART = 0x5000
HEAP = 0x1000


def engine_on(host, *script):
    host.script = [break_in(), *script]
    engine = NativeEngine(host, "x", clock=lambda: host.now)
    engine.attach(5)
    return engine


def kernel_image():
    """ExAllocateHeapPool at 0x1000 with a part of it at 0x5000, behind another function."""
    chained = b"\x21\x00\x00\x00" + struct.pack("<III", HEAP, HEAP + 0x100, 0x3000)
    return image(
        size=0x100000,
        exports={"ExAllocateHeapPool": HEAP, "ExSomethingElse": 0x4F00, "Caller": 0x1800},
        functions=[
            (HEAP, HEAP + 0x100, 0x3000), (0x1800, 0x1900, 0x3000), (0x4F00, PART, 0x3000),
            (PART, PART + 0x40, 0x3020), (0x6000, 0x6040, 0x3040),
        ],
        unwind={
            0x3000: b"\x01\x04\x01\x00\x04\x32\x00\x00", 0x3020: chained,
            0x3040: b"\x21\x00\x00\x00" + struct.pack("<III", 0x7000, 0x7100, 0x3000),
        },
        pdb="",
    )  # fmt: skip


def test_moved_part_is_named_after_its_function():
    host = ScriptedHost()
    host.fill(KERNEL, kernel_image())
    engine = engine_on(
        host, exception(KERNEL + PART + 8), exception(KERNEL + 0x6008), exception(KERNEL + 0x4F10)
    )
    words = [0] * 8 + [KERNEL + 0x1810] + [0] * 8
    host.fill(STACK - 0x800, struct.pack("<17Q", *words[4:], *[0] * 4))
    engine.resume(5)
    stack = engine.stack()
    assert [str(frame.symbol) for frame in stack.frames] == [
        f"nt!ExAllocateHeapPool+0x{PART - HEAP + 8:x}",
        "nt!Caller+0x10",
    ]
    assert stack.end is StackEnd.COMPLETE
    assert engine.nearest(KERNEL + PART + 8).name == "ExSomethingElse"
    engine.resume(5)
    # No symbol stands at the function of this part: the nearest name has to do.
    assert engine.stack().frames[0].symbol.name == "ExSomethingElse"
    engine.resume(5)
    assert str(engine.stack().frames[0].symbol) == "nt!ExSomethingElse+0x10"
    assert engine.stack(depth=1).end is StackEnd.DEPTH
    assert engine.stack(depth=1).frames[0].symbol.kind is SymbolKind.EXPORT


def test_kernel_that_the_list_does_not_name_is_known_by_its_headers():
    host = ScriptedHost()
    host.fill(KERNEL, kernel_image())
    host.fill(LIST, struct.pack("<QQ", LIST + 0x300, 0))
    engine = engine_on(host)
    assert [module.name for module in engine.modules()] == ["nt", "leak_drv"]
    assert engine.symbol("nt!Caller") == KERNEL + 0x1800


def test_symbols_of_the_kernel_need_no_module_list():
    host = ScriptedHost()
    host.fill(KERNEL, kernel_image())
    engine = engine_on(host)
    before = host.requests
    assert engine.symbol("nt!ExAllocateHeapPool") == KERNEL + HEAP
    assert host.requests - before <= 8
    table_reads = host.requests
    assert [module.name for module in engine.modules()] == ["nt", "leak_drv"]
    list_reads = host.requests
    assert list_reads > table_reads
    assert engine.symbol("nt!Caller") == KERNEL + 0x1800  # the table is still there
    assert host.requests == list_reads


def test_loaded_image_whose_size_was_not_reported():
    host = ScriptedHost()
    new, gone, twin = DRIVER + 0x100000, DRIVER + 0x200000, DRIVER + 0x300000
    host.fill(new, image(pdb=""))
    engine = engine_on(
        host,
        LoadSymbols("\\drivers\\new.sys", new),
        LoadSymbols("\\drivers\\gone.sys", gone),
        LoadSymbols("\\other\\new.sys", twin, size=0x1000),
        LoadSymbols("", KERNEL + 1, unload=True),
        LoadSymbols("\\ntoskrnl.exe", KERNEL, size=0x100000),
        break_in(),
    )
    host.register("rcx", 2)
    assert len(engine.modules()) == 2
    engine.resume(5)
    modules = {module.base: module for module in engine.modules()}
    assert modules[new].size == 0x8000
    assert gone not in modules
    assert modules[twin].name == f"new_{twin & 0xFFFFFFFF:08x}"
    assert modules[KERNEL].name == "nt"


def test_registers_that_cannot_be_had_leave_a_break_in():
    host = ScriptedHost()
    engine = engine_on(host, lambda: setattr(host, "during", refuse), break_in())

    def refuse(what):
        if what == "get context":
            raise TargetError("reading the registers", "refused")

    engine.resume(None)
    assert engine.stop.kind is StopKind.BREAK_IN
    with pytest.raises(TargetError):
        engine.registers()
