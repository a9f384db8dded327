"""What differs between machines in a CONTEXT and in stepping over a break instruction."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from kdleak.model import Architecture, Registers


@dataclass(frozen=True)
class MachineContext:
    """Where the integer registers lie in a CONTEXT (KD protocol, GetContext).

    Attributes:
        architecture: WinDbg's name for it.
        machine: IMAGE_FILE_MACHINE_ number.
        registers: (name, offset, bytes) of each.
        program_counter: name of the instruction pointer.
        stack_pointer: name of the stack pointer.
        argument: register of a function's first argument; "" where it is on the stack.
        break_bytes: encoding of the break instruction, as compilers emit it.
    """

    architecture: Architecture
    machine: int
    registers: tuple[tuple[str, int, int], ...]
    program_counter: str
    stack_pointer: str
    argument: str
    break_bytes: bytes

    def parse(self, context: bytes) -> Registers:
        """Register values; one whose bytes are missing from a short CONTEXT is left out."""
        return Registers(
            {
                name: int.from_bytes(context[offset : offset + size], "little")
                for name, offset, size in self.registers
                if offset + size <= len(context)
            }
        )

    def with_program_counter(self, context: bytes, value: int) -> bytes:
        """A CONTEXT that goes on at another instruction."""
        offset, size = next(
            (offset, size) for name, offset, size in self.registers if name == self.program_counter
        )
        form = "<I" if size == 4 else "<Q"
        changed = bytearray(context)
        struct.pack_into(form, changed, offset, value & ((1 << 8 * size) - 1))
        return bytes(changed)


X64 = MachineContext(
    Architecture.X64,
    0x8664,
    (
        *((name, 0x78 + 8 * index, 8) for index, name in enumerate(
            ("rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi",
             "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rip")
        )),
        ("efl", 0x44, 4), ("cs", 0x38, 2), ("ss", 0x42, 2),
    ),
    "rip", "rsp", "rcx", b"\xcc",
)  # fmt: skip

X86 = MachineContext(
    Architecture.X86,
    0x14C,
    (
        ("edi", 0x9C, 4), ("esi", 0xA0, 4), ("ebx", 0xA4, 4), ("edx", 0xA8, 4),
        ("ecx", 0xAC, 4), ("eax", 0xB0, 4), ("ebp", 0xB4, 4), ("eip", 0xB8, 4),
        ("cs", 0xBC, 4), ("efl", 0xC0, 4), ("esp", 0xC4, 4), ("ss", 0xC8, 4),
    ),
    "eip", "esp", "", b"\xcc",
)  # fmt: skip

ARM64 = MachineContext(
    Architecture.ARM64,
    0xAA64,
    (
        *((f"x{index}", 0x8 + 8 * index, 8) for index in range(29)),
        ("fp", 0xF0, 8), ("lr", 0xF8, 8), ("sp", 0x100, 8), ("pc", 0x108, 8), ("cpsr", 4, 4),
    ),
    "pc", "sp", "x0", b"\x00\x00\x3e\xd4",
)  # fmt: skip

MACHINES = {machine.machine: machine for machine in (X64, X86, ARM64)}
