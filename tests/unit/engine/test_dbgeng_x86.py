"""The DbgEng engine on a 32-bit target: addresses are 64 bits wide in the model, 32 in the text."""

from __future__ import annotations

import pytest
from x86_debugger import BREAK_IN, HIT_TAG, USER_BREAK, X86Debugger

from kdleak.allocator_frames import StopClass, classify
from kdleak.engine.dbgeng import open_dbgeng
from kdleak.errors import MemoryUnreadable
from kdleak.model import Architecture, HitKind, StackEnd, StopKind
from kdleak.tags import PoolTag

WIDE = 0xFFFFFFFF << 32


def test_target_symbols_and_memory():
    engine = open_dbgeng(X86Debugger())
    target = engine.target
    assert (target.architecture, target.pointer_size) == (Architecture.X86, 4)
    assert target.kernel_base == WIDE | 0x80400000
    assert [module.name for module in engine.modules()] == ["nt"]
    assert engine.symbol("nt!PoolHitTag") == WIDE | HIT_TAG
    assert engine.stop.kind is StopKind.BREAK_IN
    assert engine.stop.program_counter == WIDE | BREAK_IN


def test_memory():
    debugger = X86Debugger()
    debugger.memory[0x80641000] = bytes(range(0x48))
    engine = open_dbgeng(debugger)
    address = engine.symbol("nt!PoolHitTag")
    assert engine.read(address, 4) == bytes.fromhex("0fffffff")
    engine.write(address, b"File")
    assert engine.read(address, 4) == b"File"
    assert engine.read(WIDE | 0x80641003, 0x41) == bytes(range(3, 0x44))
    with pytest.raises(MemoryUnreadable) as caught:
        engine.read(WIDE | 0x80641040, 0x20)
    assert caught.value.address == WIDE | 0x80641048


def test_a_hit():
    debugger = X86Debugger()
    debugger.surplus = 1  # left over from the attach
    engine = open_dbgeng(debugger)
    stop = engine.resume(5)
    assert engine.break_ins_absorbed == 1
    assert (stop.kind, stop.program_counter) == (StopKind.BREAK_INSTRUCTION, WIDE | USER_BREAK)
    stack = engine.stack()
    assert [str(frame.symbol) for frame in stack.frames[:3]] == [
        "nt!DbgUserBreakPoint", "nt!ExAllocatePoolWithTag+0xa0e", "nt!ObpAllocateObject+0xf5",
    ]  # fmt: skip
    assert [frame.address for frame in stack.frames[:3]] == [
        WIDE | USER_BREAK, WIDE | 0x804BC671, WIDE | 0x8051F260,
    ]  # fmt: skip
    assert stack.end is StackEnd.USER_MODE
    judged = classify(stop, stack, engine.registers(), PoolTag.parse("File"))
    assert (judged.what, judged.kind) == (StopClass.HIT, HitKind.ALLOC)
