"""Why a target stopped: reading a state change as a ``Stop``."""

from __future__ import annotations

from kdleak.engine.native_machine import MachineContext
from kdleak.kd.packets import StateChange
from kdleak.model import Registers, Stop, StopKind

STATUS_BREAKPOINT = 0x80000003
STATUS_SINGLE_STEP = 0x80000004
STATUS_ASSERTION_FAILURE = 0xC0000420

DBG_CONTINUE = 0x00010002
DBG_EXCEPTION_NOT_HANDLED = 0x80010001

# Argument of nt!DbgBreakPointWithStatus.
_BREAK_IN_STATUS = 1
_BUG_CHECK_STATUSES = (3, 4, 5)  # first and second chance of a bug check, fatal
_ASSERTION = b"\xcd\x2c"  # int 2c, x86 and x64
_BREAK_FUNCTIONS = ("DbgBreakPointWithStatus", "RtlpBreakWithStatusInstruction")

_NAMES = {
    STATUS_ASSERTION_FAILURE: "assertion failure",
    0xC0000005: "access violation",
    0xC000001D: "illegal instruction",
    0xC0000094: "integer division by zero",
    0xC00000FD: "stack overflow",
    0xC0000409: "fast fail",
}


def classify(change: StateChange, at: float, break_with_status: int, symbol_name: str) -> Stop:
    """The stop of a state change, from what it says itself.

    A stop in DbgBreakPointWithStatus comes out as BREAK_IN; ``is_bug_check`` tells whether it is
    the kernel's announcement of its end.

    Args:
        change: from the target.
        at: seconds, when it arrived.
        break_with_status: address of the kernel's break-in instruction, 0 where unknown.
        symbol_name: nearest nt symbol of the program counter, used where that is unknown.
    """
    exception = change.exception
    code = exception.code if exception is not None else 0
    kind, detail = StopKind.EXCEPTION, ""
    if exception is None:
        detail = "the target reported a module, not an exception"
    elif code == STATUS_BREAKPOINT:
        kind = StopKind.BREAK_INSTRUCTION
        if _at_break_in(change, break_with_status, symbol_name):
            kind = StopKind.BREAK_IN
    elif code == STATUS_SINGLE_STEP:
        kind = StopKind.SINGLE_STEP
    else:
        chance = "first" if exception.first_chance else "second"
        detail = f"{_NAMES.get(code, 'exception')} 0x{code:08x} ({chance} chance)"
    return Stop(
        kind=kind,
        program_counter=change.program_counter,
        code=code,
        first_chance=exception.first_chance if exception is not None else True,
        processor=change.processor,
        thread=change.thread,
        at=at,
        detail=detail,
    )


def _at_break_in(change: StateChange, address: int, symbol_name: str) -> bool:
    if address and address in (change.program_counter, change.program_counter - 1):
        return True
    return symbol_name in _BREAK_FUNCTIONS


def break_status(registers: Registers, machine: MachineContext) -> int:
    """What the kernel passed to DbgBreakPointWithStatus; -1 where it is not in a register."""
    value = registers.values.get(machine.argument)
    return -1 if value is None or not machine.argument else value & 0xFFFFFFFF


def is_bug_check(status: int) -> bool:
    """Whether a stop in DbgBreakPointWithStatus announces a bug check."""
    return status in _BUG_CHECK_STATUSES


def may_be_asked_for(status: int) -> bool:
    """Whether it answers a break-in request (status 1), as far as that can be known."""
    return status in (-1, _BREAK_IN_STATUS)


def bug_check_detail(data: bytes, pointer_size: int) -> str:
    """KiBugcheckData (code and four parameters) as text; "" when it is not filled in."""
    if len(data) < 5 * pointer_size:
        return ""
    values = [
        int.from_bytes(data[at : at + pointer_size], "little")
        for at in range(0, 5 * pointer_size, pointer_size)
    ]
    if not values[0]:
        return ""
    parameters = ", ".join(f"{value:x}" for value in values[1:])
    return f"bug check 0x{values[0] & 0xFFFFFFFF:x} ({parameters})"


def steps_over(change: StateChange, machine: MachineContext) -> int | None:
    """Bytes to move the program counter by before the target may go on; 0 for none.

    NT reports the address of a hard-coded break instruction and does not step over it; boot
    applications have stepped already.

    Returns:
        None when the state change does not show the instruction, so that it must be read.
    """
    exception = change.exception
    if exception is None or exception.code not in (STATUS_BREAKPOINT, STATUS_ASSERTION_FAILURE):
        return 0
    if exception.address not in (0, change.program_counter):
        return 0
    stream = change.control_report.instruction_stream
    if exception.code == STATUS_ASSERTION_FAILURE:
        # Going on behind a failed assertion ignores it; handed back it would be a bug check.
        return len(_ASSERTION) if stream.startswith(_ASSERTION) else 0
    length = len(machine.break_bytes)
    if len(stream) < length:
        return None
    return length if is_break(stream, machine) else 0


def is_break(code: bytes, machine: MachineContext) -> bool:
    """Whether a break instruction is there; on ARM64 any brk, whatever its number."""
    length = len(machine.break_bytes)
    if length == 1:
        return code[:1] == machine.break_bytes
    word = int.from_bytes(code[:length], "little")
    return len(code) >= length and word & 0xFFE0001F == 0xD4200000


def continue_status(stop: Stop) -> int:
    """What to tell the target with the continue: exceptions are its own to handle."""
    if stop.kind is StopKind.EXCEPTION and stop.code not in (0, STATUS_ASSERTION_FAILURE):
        return DBG_EXCEPTION_NOT_HANDLED
    return DBG_CONTINUE
