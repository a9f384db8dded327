"""x86 and x64 instructions, decoded with capstone for the search for tags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capstone import x86_const

from kdleak.nt.sites.allocators import WDF_MEMORY_CREATE, WDF_MEMORY_CREATE_TAG, Routine
from kdleak.nt.sites.call_targets import Called, CallTargets, sign_extended_32
from kdleak.nt.sites.code_step import (
    CodePointer,
    Effect,
    Flow,
    Op,
    Place,
    Step,
    TagValue,
)
from kdleak.tags import PROTECTED_POOL, PoolTag

_REG, _IMM, _MEM = x86_const.X86_OP_REG, x86_const.X86_OP_IMM, x86_const.X86_OP_MEM
_LONGEST = 15
_STOPS = frozenset({"ret", "retf", "iret", "iretd", "iretq", "int3", "ud2", "hlt", "sysret"})
_FAST_FAIL = 0x29  # int 29h does not come back
_COMPARES = frozenset({"cmp", "test", "cmpxchg"})
_BIT_OPERATIONS = frozenset({"or", "xor", "and", "bts", "btr"})
_WIDE = {"rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp"}
_VOLATILE = ("rax", "rcx", "rdx", "r8", "r9", "r10", "r11")


def _canonical_names() -> dict[str, str]:
    names: dict[str, str] = {}
    for wide in _WIDE:
        stem = wide[1:]
        names.update({wide: wide, "e" + stem: wide, stem: wide, stem + "l": wide})
        if stem.endswith("x"):
            names.update({stem[0] + "l": wide, stem[0] + "h": wide})
    for number in range(8, 16):
        for suffix in ("", "d", "w", "b"):
            names[f"r{number}{suffix}"] = f"r{number}"
    return names


_CANONICAL = _canonical_names()


class X86Decoder:
    """Decodes instructions into steps.

    Args:
        disassembler: capstone's, with details.
        code: reads code: (address, most bytes) -> bytes.
        targets: what calls lead to.
        tag: the tag looked for.
        pointer_size: 4 or 8.
    """

    volatile = _VOLATILE

    def __init__(
        self,
        disassembler: Any,  # noqa: ANN401 - capstone has no types
        code: Callable[[int, int], bytes],
        targets: CallTargets,
        tag: PoolTag,
        pointer_size: int,
    ) -> None:
        self._disassembler = disassembler
        self._code = code
        self._targets = targets
        self._tag = tag
        self._width = pointer_size

    def decode(self, address: int) -> Step | None:
        """The instruction at an address; None where there is none."""
        raw = self._code(address, _LONGEST)
        shown = address & 0xFFFFFFFF if self._width == 4 else address
        found = next(self._disassembler.disasm(raw, shown, 1), None) if raw else None
        return None if found is None else self._step(found, address)

    def argument(self, routine: Routine, *, tail: bool) -> Place:
        """Where a routine finds its tag, as seen at the call (or the jump that stands for one)."""
        if self._width == 4:
            index = routine.argument - 1 + routine.wide_before
            return (4 * index + (4 if tail else 0),)
        if routine.argument <= 4:
            return ("rcx", "rdx", "r8", "r9")[routine.argument - 1]
        return (8 * (routine.argument - 1) + (8 if tail else 0),)

    def arguments(self) -> tuple[tuple[int, Place], ...]:
        """The first arguments of any routine and where they are."""
        if self._width == 4:
            return tuple((index + 1, (4 * index,)) for index in range(7))
        registers: list[tuple[int, Place]] = [(1, "rcx"), (2, "rdx"), (3, "r8"), (4, "r9")]
        return (*registers, *((number, (8 * (number - 1),)) for number in range(5, 8)))

    def pointer_register(self, step: Step, holds: Callable[[str], bool]) -> str:
        """The register with the routine that a dispatcher passes the call on to; "" for none."""
        if step.register:
            return step.register
        if self._width == 4:
            return ""
        if step.target and holds("r10"):
            return "r10"  # retpoline: compilers use it for nothing else in front of a call
        if holds("rax") and (not step.target or self._targets.is_dispatcher(step.target)):
            return "rax"
        return ""

    # ---- decoding ----

    def _is_tag(self, value: int) -> bool:
        high = value >> 32
        return high in (0, -1, 0xFFFFFFFF) and self._tag.value == value & 0x7FFFFFFF

    def _target(self, operand: Any) -> int:  # noqa: ANN401
        if self._width == 4:
            return sign_extended_32(int(operand.imm) & 0xFFFFFFFF)
        return int(operand.imm) & 0xFFFFFFFFFFFFFFFF

    def _register(self, insn: Any, number: int) -> str:  # noqa: ANN401
        name = str(insn.reg_name(number) or "")
        return _CANONICAL.get(name, name)

    def _absolute(self, insn: Any, operand: Any) -> int:  # noqa: ANN401
        """Address of a memory operand that is known from the instruction alone; 0 for others."""
        memory = operand.mem
        if memory.index:
            return 0
        if self._width == 4:
            if memory.base or memory.segment:
                return 0
            return sign_extended_32(int(memory.disp) & 0xFFFFFFFF)
        if memory.base and insn.reg_name(memory.base) == "rip":
            return int(insn.address) + int(insn.size) + int(memory.disp) & 0xFFFFFFFFFFFFFFFF
        return 0

    def _stack_slot(self, insn: Any, operand: Any) -> Place | None:  # noqa: ANN401
        memory = operand.mem
        if operand.type != _MEM or memory.index or not memory.base:
            return None
        if self._register(insn, memory.base) != "rsp":
            return None
        return (int(memory.disp),)

    def _pointer(self, insn: Any, operand: Any) -> CodePointer | None:  # noqa: ANN401
        """The routine whose address lies at a memory operand."""
        address = self._absolute(insn, operand)
        if address:
            called = self._targets.slot(address)
            return None if called is None else CodePointer(called)
        memory = operand.mem
        if memory.base and not memory.index and memory.disp == WDF_MEMORY_CREATE * self._width:
            routine = Routine("WdfMemoryCreate", WDF_MEMORY_CREATE_TAG)
            return CodePointer(Called("Wdf01000!WdfMemoryCreate", routine), sure=False)
        return None

    def _step(self, insn: Any, address: int) -> Step:  # noqa: ANN401
        mnemonic = str(insn.mnemonic).rpartition(" ")[2]
        operands = list(insn.operands)
        text = f"{insn.mnemonic} {insn.op_str}".strip()
        loads = any(op.type == _IMM and op.size >= 4 and self._is_tag(op.imm) for op in operands)
        flow, target, slot, register = self._flow(insn, mnemonic, operands)
        effects: tuple[Effect, ...] = ()
        if flow is Flow.NEXT:
            effects = self._effects(insn, mnemonic, operands, address)
        return Step(
            address,
            int(insn.size),
            text,
            flow,
            target,
            slot,
            register,
            effects,
            loads and flow in (Flow.NEXT, Flow.CALL),
            mnemonic in _COMPARES,
        )

    def _flow(
        self,
        insn: Any,  # noqa: ANN401
        mnemonic: str,
        operands: list[Any],
    ) -> tuple[Flow, int, int, str]:
        if mnemonic in _STOPS or (mnemonic == "int" and operands[0].imm == _FAST_FAIL):
            return Flow.STOP, 0, 0, ""
        if mnemonic in ("call", "jmp") and operands:
            flow = Flow.CALL if mnemonic == "call" else Flow.JUMP
            operand = operands[0]
            if operand.type == _IMM:
                return flow, self._target(operand), 0, ""
            if operand.type == _MEM:
                return flow, 0, self._absolute(insn, operand) or -1, ""
            return flow, 0, 0, self._register(insn, operand.reg)
        if mnemonic.startswith(("j", "loop")) and operands and operands[0].type == _IMM:
            return Flow.BRANCH, self._target(operands[0]), 0, ""
        return Flow.NEXT, 0, 0, ""

    def _effects(
        self,
        insn: Any,  # noqa: ANN401
        mnemonic: str,
        operands: list[Any],
        address: int,
    ) -> tuple[Effect, ...]:
        if mnemonic in ("mov", "movabs") and len(operands) == 2:
            return self._move(insn, operands, address)
        if mnemonic == "push" and operands:
            return self._push(insn, operands, address)
        followed: tuple[Effect, ...] | None = None
        if operands and operands[0].type == _REG:
            to = self._register(insn, operands[0].reg)
            if mnemonic == "pop":
                moved = Effect(Op.MOVE_STACK, amount=self._width)
                followed = (Effect(Op.COPY, to, (0,)), moved) if to != "rsp" else None
            elif mnemonic == "lea":
                followed = self._lea(insn, operands)
            elif len(operands) == 2:
                followed = self._arithmetic(insn, mnemonic, operands, to)
        return self._writes(insn, operands) if followed is None else followed

    def _arithmetic(
        self,
        insn: Any,  # noqa: ANN401
        mnemonic: str,
        operands: list[Any],
        to: str,
    ) -> tuple[Effect, ...] | None:
        """Operations on a register that are followed; None for all others."""
        source = operands[1]
        if mnemonic.startswith("cmov"):
            if source.type == _REG and source.size >= 4:
                return (Effect(Op.MERGE, to, self._register(insn, source.reg)),)
            return ()
        if mnemonic in ("add", "sub") and to == "rsp" and source.type == _IMM:
            amount = int(source.imm)
            return (Effect(Op.MOVE_STACK, amount=amount if mnemonic == "add" else -amount),)
        if mnemonic in _BIT_OPERATIONS and _only_protected(mnemonic, operands):
            return ()
        return None

    def _move(self, insn: Any, operands: list[Any], address: int) -> tuple[Effect, ...]:  # noqa: ANN401
        to, source = operands
        place: Place | None = self._stack_slot(insn, to)
        if to.type == _REG:
            place = self._register(insn, to.reg)
        if place is None:
            return ()
        if place == "rsp":
            return (Effect(Op.FORGET_STACK),)
        if to.size >= 4:
            if source.type == _IMM and self._is_tag(int(source.imm)):
                return (Effect(Op.SET, place, value=TagValue(address)),)
            if source.type == _REG:
                return (Effect(Op.COPY, place, self._register(insn, source.reg)),)
            if source.type == _MEM:
                return (self._load(insn, place, source),)
        return (Effect(Op.KILL, place),)

    def _load(self, insn: Any, place: Place, source: Any) -> Effect:  # noqa: ANN401
        from_stack = self._stack_slot(insn, source)
        if from_stack is not None:
            return Effect(Op.COPY, place, from_stack)
        pointer = self._pointer(insn, source) if source.size == self._width else None
        return Effect(Op.KILL, place) if pointer is None else Effect(Op.SET, place, value=pointer)

    def _lea(self, insn: Any, operands: list[Any]) -> tuple[Effect, ...]:  # noqa: ANN401
        place = self._register(insn, operands[0].reg)
        address = self._absolute(insn, operands[1])
        if place == "rsp":
            slot = self._stack_slot(insn, operands[1])
            if slot is not None and not isinstance(slot, str):
                return (Effect(Op.MOVE_STACK, amount=slot[0]),)
            return (Effect(Op.FORGET_STACK),)
        called = self._targets.direct(address) if address else None
        if called is not None and called.routine is not None:
            return (Effect(Op.SET, place, value=CodePointer(called)),)
        return (Effect(Op.KILL, place),)

    def _push(self, insn: Any, operands: list[Any], address: int) -> tuple[Effect, ...]:  # noqa: ANN401
        moved = Effect(Op.MOVE_STACK, amount=-self._width)
        top: Place = (0,)
        if operands and operands[0].type == _IMM and self._is_tag(int(operands[0].imm)):
            return (moved, Effect(Op.SET, top, value=TagValue(address)))
        if operands and operands[0].type == _REG:
            return (moved, Effect(Op.COPY, top, self._register(insn, operands[0].reg)))
        return (moved, Effect(Op.KILL, top))

    def _writes(self, insn: Any, operands: list[Any]) -> tuple[Effect, ...]:  # noqa: ANN401
        """Everything an instruction that is not followed writes to is unknown after it."""
        effects = []
        for number in insn.regs_access()[1]:
            name = self._register(insn, number)
            effects.append(Effect(Op.FORGET_STACK) if name == "rsp" else Effect(Op.KILL, name))
        for operand in operands:
            slot = self._stack_slot(insn, operand)
            if slot is not None and operand.access & 2:
                effects.append(Effect(Op.KILL, slot))
        return tuple(effects)

    def call_pointer(self, step: Step) -> CodePointer | None:
        """The routine that a call or jump through memory leads to."""
        if step.slot > 0:
            called = self._targets.slot(step.slot)
            return None if called is None else CodePointer(called)
        if step.slot < 0 and f"+ 0x{WDF_MEMORY_CREATE * self._width:x}]" in step.text:
            routine = Routine("WdfMemoryCreate", WDF_MEMORY_CREATE_TAG)
            return CodePointer(Called("Wdf01000!WdfMemoryCreate", routine), sure=False)
        return None


def _only_protected(mnemonic: str, operands: list[Any]) -> bool:
    """Whether an operation changes nothing but the bit of protected pool."""
    first, second = operands
    if second.type != _IMM or first.size < 4:
        return False
    value = int(second.imm) & 0xFFFFFFFF
    if mnemonic in ("bts", "btr"):
        return value == 31
    return value == (PROTECTED_POOL - 1 if mnemonic == "and" else PROTECTED_POOL)
