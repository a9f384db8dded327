"""Walking an x64 kernel stack by unwind data.

Works on the bytes of the stack that one request brought and asks for more only when a frame
lies beyond them. Rules: Microsoft, "x64 exception handling"; see ``unwind_data`` for the format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kdleak.errors import MemoryUnreadable
from kdleak.model import StackEnd
from kdleak.nt.epilog import Epilog, find_epilog
from kdleak.nt.memory import MemoryReader
from kdleak.nt.unwind_data import FunctionTable, Op, RuntimeFunction, UnwindDataError, UnwindInfo

REGISTERS = (
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi",
    "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
)  # fmt: skip
"""Integer registers by their number in unwind codes."""

RSP = 4
MAXIMUM_CHAIN = 32
_KERNEL_SPACE = 0xFF00000000000000  # with five-level paging; four levels begin at 0xffff8000...
_USER_SPACE = 0x0000800000000000
_MASK = (1 << 64) - 1

TableLookup = Callable[[int], "FunctionTable | None"]
"""The function table of the image an address lies in; None when it lies in none."""


@dataclass(frozen=True)
class UnwoundStack:
    """Frames as (instruction or return address, stack pointer), innermost first."""

    frames: tuple[tuple[int, int], ...]
    end: StackEnd


class _WalkOverError(Exception):
    """The walk is over."""

    def __init__(self, end: StackEnd) -> None:
        self.end = end
        super().__init__(end.value)


def unwind(
    registers: Mapping[str, int],
    tables: TableLookup,
    stack: MemoryReader,
    code: MemoryReader,
    depth: int = 32,
) -> UnwoundStack:
    """Walk the stack of a stopped processor.

    Args:
        registers: ``rip`` and the sixteen integer registers by name.
        tables: function table of the image an address lies in.
        stack: reads stack memory.
        code: reads instructions (asked only about the innermost frame and interrupted ones).
        depth: most frames returned.

    Returns:
        At least the innermost frame, unless ``depth`` is 0.
    """
    walk = _Walk(registers, tables, stack, code)
    frames: list[tuple[int, int]] = []
    seen: set[tuple[int, int]] = set()
    try:
        while len(frames) < depth:
            here = (walk.rip, walk.values[RSP])
            if here in seen:
                return UnwoundStack(tuple(frames), StackEnd.IMPLAUSIBLE)
            seen.add(here)
            frames.append(here)
            walk.step()
    except _WalkOverError as over:
        return UnwoundStack(tuple(frames), over.end)
    except MemoryUnreadable:
        return UnwoundStack(tuple(frames), StackEnd.UNREADABLE)
    return UnwoundStack(tuple(frames), StackEnd.DEPTH)


class _Walk:
    """Register values of one frame, taken to its caller by ``step``."""

    def __init__(
        self,
        registers: Mapping[str, int],
        tables: TableLookup,
        stack: MemoryReader,
        code: MemoryReader,
    ) -> None:
        self.values = [registers.get(name, 0) & _MASK for name in REGISTERS]
        # Where callees saved a register: read only when an outer frame is built on it, since
        # the bytes between the stack pointer and the return address may cost a request.
        self._saved: dict[int, int] = {}
        self.rip = registers.get("rip", 0) & _MASK
        self._tables = tables
        self._stack = stack
        self._code = code
        self._interrupted = True  # rip is an instruction that was not executed yet

    def step(self) -> None:
        """Undo the current frame.

        Raises:
            _WalkOverError: there is no further frame, or none that can be trusted.
            MemoryUnreadable: stack memory is not there.
        """
        # A call may be the last instruction of a function: its return address is outside.
        inside = self.rip if self._interrupted else self.rip - 1
        table = self._tables(inside)
        if table is None:
            raise _WalkOverError(StackEnd.NO_UNWIND_DATA)
        try:
            function = table.find(inside - table.base)
            info = table.info(function) if function is not None else None
            epilog = self._epilog(table, function, info)
        except (UnwindDataError, MemoryUnreadable):
            raise _WalkOverError(StackEnd.NO_UNWIND_DATA) from None
        was_interrupted, self._interrupted = self._interrupted, False
        if function is None or info is None:
            if not was_interrupted:
                raise _WalkOverError(StackEnd.NO_UNWIND_DATA)  # only a leaf function may have none
            self._return()
        elif epilog is not None:
            self._undo_epilog(epilog)
            self._return()
        elif not self._undo_function(table, function, info):
            self._return()
        self._check()

    def _epilog(
        self, table: FunctionTable, function: RuntimeFunction | None, info: UnwindInfo | None
    ) -> Epilog | None:
        """The rest of an epilog at rip. A return address is never in one."""
        if not self._interrupted or function is None or info is None:
            return None
        if info.parent is None and self.rip - table.base - function.begin < info.prolog_size:
            return None
        try:
            return find_epilog(self._code, self.rip, table, function, info.frame_register)
        except MemoryUnreadable:
            return None  # interrupted code that was paged out since cannot be told apart

    def _undo_epilog(self, epilog: Epilog) -> None:
        if epilog.base is not None:
            self.values[RSP] = (self._value(epilog.base) + epilog.adjust) & _MASK
        for register in epilog.pops:
            self._restore(register, self.values[RSP])
            self.values[RSP] = (self.values[RSP] + 8) & _MASK

    def _undo_function(
        self, table: FunctionTable, function: RuntimeFunction, info: UnwindInfo
    ) -> bool:
        """Undo all parts of a function; True when a machine frame gave rip and rsp."""
        done = self.rip - table.base - function.begin  # bytes of the prolog that were executed
        for _ in range(MAXIMUM_CHAIN):
            if self._undo_codes(info, done):
                return True
            if info.parent is None:
                return False
            done = 1 << 32  # the parent's prolog ran long ago
            try:
                info = table.info(info.parent)
            except (UnwindDataError, MemoryUnreadable):
                raise _WalkOverError(StackEnd.NO_UNWIND_DATA) from None
        raise _WalkOverError(StackEnd.NO_UNWIND_DATA)

    def _undo_codes(self, info: UnwindInfo, done: int) -> bool:
        values = self.values
        base = values[RSP]
        if info.frame_register and (
            info.parent is not None
            or any(code.op is Op.SET_FPREG and code.offset <= done for code in info.codes)
        ):
            base = (self._value(info.frame_register) - info.frame_offset) & _MASK
        for code in info.codes:
            if code.offset > done:
                continue
            if code.op is Op.PUSH_NONVOL:
                self._restore(code.info, values[RSP])
                values[RSP] = (values[RSP] + 8) & _MASK
            elif code.op in (Op.ALLOC_SMALL, Op.ALLOC_LARGE):
                values[RSP] = (values[RSP] + code.operand) & _MASK
            elif code.op is Op.SET_FPREG:
                values[RSP] = base
            elif code.op in (Op.SAVE_NONVOL, Op.SAVE_NONVOL_FAR):
                self._restore(code.info, base + code.operand)
            elif code.op is Op.PUSH_MACHFRAME:
                self._machine_frame(8 if code.info else 0)
                return True
        return False

    def _machine_frame(self, skip: int) -> None:
        """What the processor pushed at an interrupt: [error code,] rip, cs, eflags, rsp, ss."""
        frame = self.values[RSP] + skip
        self.rip = self._load(frame)
        self.values[RSP] = self._load(frame + 0x18)
        self._interrupted = True

    def _return(self) -> None:
        self.rip = self._load(self.values[RSP])
        self.values[RSP] = (self.values[RSP] + 8) & _MASK

    def _restore(self, register: int, address: int) -> None:
        """Note where a register was saved."""
        if register == RSP:
            self.values[RSP] = self._load(address)
        else:
            self._saved[register] = self._checked(address)

    def _value(self, register: int) -> int:
        """A register's value in this frame."""
        address = self._saved.pop(register, None)
        if address is not None:
            self.values[register] = self._load(address)
        return self.values[register]

    def _load(self, address: int) -> int:
        return int.from_bytes(self._stack.read(self._checked(address), 8), "little")

    @staticmethod
    def _checked(address: int) -> int:
        address &= _MASK
        if address & 7 or address < _KERNEL_SPACE:
            raise _WalkOverError(StackEnd.IMPLAUSIBLE)
        return address

    def _check(self) -> None:
        """Whether the caller found can be one."""
        if self.rip == 0:
            raise _WalkOverError(StackEnd.COMPLETE)
        if self.rip < _USER_SPACE:
            raise _WalkOverError(StackEnd.USER_MODE)
        if self.rip < _KERNEL_SPACE or self.values[RSP] & 7 or self.values[RSP] < _KERNEL_SPACE:
            raise _WalkOverError(StackEnd.IMPLAUSIBLE)
