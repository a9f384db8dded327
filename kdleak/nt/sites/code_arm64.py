"""ARM64 instructions for the search for tags.

What matters (moves of constants, loads of pointers, branches) is decoded here by the bits that
the Arm architecture reference gives it; capstone tells what every other instruction writes, and
the text.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from kdleak.nt.sites.allocators import WDF_MEMORY_CREATE, WDF_MEMORY_CREATE_TAG, Routine
from kdleak.nt.sites.call_targets import Called, CallTargets, adrp_page, branch_offset
from kdleak.nt.sites.code_step import (
    CodePointer,
    Constant,
    Effect,
    Flow,
    Op,
    Place,
    State,
    Step,
    TagValue,
)
from kdleak.tags import PoolTag

_RET, _BRK, _UDF = 0xD65F0000, 0xD4200000, 0
_ZERO = 31
_CONSTANT, _ADDED, _LOADED = 1, 2, 3  # effects that depend on the state


class Arm64Decoder:
    """Decodes instructions into steps.

    Args:
        disassembler: capstone's, with details.
        code: reads code: (address, most bytes) -> bytes.
        targets: what calls lead to.
        tag: the tag looked for.
    """

    volatile = tuple(f"x{number}" for number in range(18))

    def __init__(
        self,
        disassembler: Any,  # noqa: ANN401 - capstone has no types
        code: Callable[[int, int], bytes],
        targets: CallTargets,
        tag: PoolTag,
    ) -> None:
        self._disassembler = disassembler
        self._code = code
        self._targets = targets
        self._tag = tag

    def argument(self, routine: Routine, *, tail: bool) -> Place:  # noqa: ARG002
        """Where a routine finds its tag; nothing it matters for has more than eight arguments."""
        return f"x{routine.argument - 1}"

    def arguments(self) -> tuple[tuple[int, Place], ...]:
        """The first arguments of any routine and where they are."""
        return tuple((number + 1, f"x{number}") for number in range(8))

    def pointer_register(self, step: Step, holds: Callable[[str], bool]) -> str:
        """The register with the routine that is called; a guard's dispatcher takes it in x15."""
        if step.register:
            return step.register
        return "x15" if holds("x15") and self._targets.is_dispatcher(step.target) else ""

    def call_pointer(self, step: Step) -> CodePointer | None:  # noqa: ARG002
        """No call goes through memory on ARM64."""
        return None

    def decode(self, address: int) -> Step | None:
        """The instruction at an address; None where there is none."""
        raw = self._code(address, 4)
        if len(raw) < 4:
            return None
        word = struct.unpack("<I", raw)[0]
        found = next(self._disassembler.disasm(raw, address, 1), None)
        if found is None:
            return None
        text = f"{found.mnemonic} {found.op_str}".strip()
        flow, target, register = _flow(address, word)
        effects: tuple[Effect, ...] = ()
        if flow is Flow.NEXT:
            effects = self._effects(found, address, word)
        return Step(
            address,
            4,
            text,
            flow,
            target,
            register=register,
            effects=effects,
            loads=_is_constant_move(word) or word & 0xBF000000 == 0x18000000,
        )

    def _effects(self, insn: Any, address: int, word: int) -> tuple[Effect, ...]:  # noqa: ANN401
        to = f"x{word & 31}"
        source = f"x{word >> 5 & 31}"
        if word & 0x9F000000 == 0x90000000:  # adrp
            return (Effect(Op.SET, to, value=Constant(adrp_page(address, word))),)
        if word & 0x7FE0FFE0 == 0x2A0003E0:  # mov (register)
            return (Effect(Op.COPY, to, f"x{word >> 16 & 31}"),)
        if word & 0x7FE00C00 == 0x1A800000:  # csel
            other = f"x{word >> 16 & 31}"
            return (Effect(Op.COPY, to, source), Effect(Op.MERGE, to, other))
        if word & 0xBF000000 == 0x18000000:  # ldr from the literal pool
            return (self._literal(address, word, to),)
        late = _late(word)
        if late:
            place = to if late == _CONSTANT else source
            return (Effect(Op.SET, to, source=place, value=Constant(word), amount=late),)
        return tuple(
            Effect(Op.KILL, canonical(str(insn.reg_name(number))))
            for number in insn.regs_access()[1]
        )

    def _literal(self, address: int, word: int, to: str) -> Effect:
        literal = self._code(address + branch_offset(word, 5, 19), 4)
        if len(literal) == 4 and PoolTag.from_bytes(literal) == self._tag:
            return Effect(Op.SET, to, value=TagValue(address))
        return Effect(Op.KILL, to)

    def refine(self, state: State, step: Step) -> tuple[Effect, ...]:
        """Effects whose outcome depends on what the source holds now."""
        return tuple(
            self._refined(state, effect, step.address) if effect.amount else effect
            for effect in step.effects
        )

    def _refined(self, state: State, effect: Effect, address: int) -> Effect:
        word = effect.value.number if isinstance(effect.value, Constant) else 0
        known = [v.number for v in state.at(effect.source) if isinstance(v, Constant)]
        if effect.amount == _CONSTANT:
            # Of several paths' halves any may fit.
            results = [_moved(old, word) for old in (known if _keeps_rest(word) else [0])]
            fitting = next((value for value in results if self._is_tag(value)), None)
            if fitting is not None:
                return Effect(Op.SET, effect.place, value=TagValue(address))
            return _set_or_kill(effect.place, Constant(results[0]) if results else None)
        if effect.amount == _ADDED:
            return _set_or_kill(effect.place, self._sum(known, word))
        return _set_or_kill(effect.place, self._loaded(known, word))

    def _sum(self, known: list[int], word: int) -> CodePointer | Constant | None:
        if not known:
            return None
        whole = known[0] + (word >> 10 & 0xFFF)
        called = self._targets.direct(whole)
        if called is not None and called.routine is not None:
            return CodePointer(called)
        return Constant(whole)

    def _loaded(self, known: list[int], word: int) -> CodePointer | None:
        if known:
            called = self._targets.slot(known[0] + (word >> 10 & 0xFFF) * 8)
            return None if called is None else CodePointer(called)
        if word >> 10 & 0xFFF == WDF_MEMORY_CREATE:
            routine = Routine("WdfMemoryCreate", WDF_MEMORY_CREATE_TAG)
            return CodePointer(Called("Wdf01000!WdfMemoryCreate", routine), sure=False)
        return None

    def _is_tag(self, value: int) -> bool:
        return value < 1 << 32 and value & 0x7FFFFFFF == self._tag.value


def _set_or_kill(place: Place, value: CodePointer | Constant | None) -> Effect:
    return Effect(Op.KILL, place) if value is None else Effect(Op.SET, place, value=value)


def _late(word: int) -> int:
    """Which kind of effect depends on what a register holds then; 0 for none of them."""
    if _is_constant_move(word):
        return _CONSTANT
    if word & 0xFFC00000 == 0x91000000 and _ZERO not in (word & 31, word >> 5 & 31):
        return _ADDED  # add x, x, #low: the other half of adrp
    return _LOADED if word & 0xFFC00000 == 0xF9400000 else 0  # ldr x, [x, #offset]


def canonical(name: str) -> str:
    """The 64-bit name of a register."""
    if name in ("fp", "lr"):
        return {"fp": "x29", "lr": "x30"}[name]
    return "x" + name[1:] if name[:1] == "w" and name[1:].isdigit() else name


def _is_constant_move(word: int) -> bool:
    """MOVN, MOVZ or MOVK."""
    return word & 0x1F800000 == 0x12800000 and word >> 29 & 3 != 1


def _keeps_rest(word: int) -> bool:
    return word >> 29 & 3 == 3  # MOVK


def _moved(old: int, word: int) -> int:
    """What a constant move leaves in a register that held ``old``."""
    shift = 16 * (word >> 21 & 3)
    part = (word >> 5 & 0xFFFF) << shift
    mask = 0xFFFFFFFFFFFFFFFF if word >> 31 else 0xFFFFFFFF
    kind = word >> 29 & 3
    if kind == 3:
        return (old & ~(0xFFFF << shift) | part) & mask
    return (part if kind == 2 else ~part) & mask


def _flow(address: int, word: int) -> tuple[Flow, int, str]:  # noqa: PLR0911 - one per encoding
    if word & 0xFFFFFC1F == _RET or word & 0xFFE0001F == _BRK or word >> 16 == _UDF:
        return Flow.STOP, 0, ""
    if word >> 26 == 0b100101:  # bl
        return Flow.CALL, address + branch_offset(word, 0, 26), ""
    if word >> 26 == 0b000101:  # b
        return Flow.JUMP, address + branch_offset(word, 0, 26), ""
    if word & 0xFFFFFC1F == 0xD63F0000:  # blr
        return Flow.CALL, 0, f"x{word >> 5 & 31}"
    if word & 0xFFFFFC1F == 0xD61F0000:  # br
        return Flow.JUMP, 0, f"x{word >> 5 & 31}"
    if word & 0xFF000000 == 0x54000000 or word & 0x7E000000 == 0x34000000:  # b.cond, cbz, cbnz
        return Flow.BRANCH, address + branch_offset(word, 5, 19), ""
    if word & 0x7E000000 == 0x36000000:  # tbz, tbnz
        return Flow.BRANCH, address + branch_offset(word, 5, 14), ""
    return Flow.NEXT, 0, ""
