"""One simulated x64 processor: a Unicorn instance over the machine's RAM and page tables.

The processor runs until it halts or something happens that a debugger would see. Register state
goes in and out as the CONTEXT record (AMD64, 0x4D0 bytes) and as KSPECIAL_REGISTERS.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import Any, Protocol

import unicorn as _untyped_unicorn
from unicorn import x86_const as x86

from kdleak.practice.boot import GDT_SIZE, IDT_SIZE, LEDGER_PHYSICAL
from kdleak.practice.paging import (
    FRAME_MASK,
    NO_EXECUTE,
    WRITABLE,
    AddressSpace,
)

unicorn: Any = _untyped_unicorn  # its functions carry no types
_EmulationError: type[Exception] = unicorn.UcError

STATUS_BREAKPOINT = 0x80000003
STATUS_SINGLE_STEP = 0x80000004
STATUS_ACCESS_VIOLATION = 0xC0000005
STATUS_ASSERTION_FAILURE = 0xC0000420
STATUS_ILLEGAL_INSTRUCTION = 0xC000001D

CONTEXT_SIZE = 0x4D0
SPECIAL_REGISTERS_SIZE = 0xF0
_CONTEXT_ALL = 0x0010001F
_TRAP_FLAG = 0x100
_INTERRUPT_DEBUG_SERVICE = 0x2D
_INTERRUPT_ASSERTION = 0x2C
_INTERRUPT_BREAKPOINT = 3
_SERVICE_LOAD_SYMBOLS = 3

KERNEL_CODE, KERNEL_DATA, USER_DATA, USER_TEB, TASK = 0x10, 0x18, 0x2B, 0x53, 0x40

_INTEGER_REGISTERS = (
    x86.UC_X86_REG_RAX,
    x86.UC_X86_REG_RCX,
    x86.UC_X86_REG_RDX,
    x86.UC_X86_REG_RBX,
    x86.UC_X86_REG_RSP,
    x86.UC_X86_REG_RBP,
    x86.UC_X86_REG_RSI,
    x86.UC_X86_REG_RDI,
    x86.UC_X86_REG_R8,
    x86.UC_X86_REG_R9,
    x86.UC_X86_REG_R10,
    x86.UC_X86_REG_R11,
    x86.UC_X86_REG_R12,
    x86.UC_X86_REG_R13,
    x86.UC_X86_REG_R14,
    x86.UC_X86_REG_R15,
    x86.UC_X86_REG_RIP,
)
"""In the order of CONTEXT, offsets 0x78 to 0xF8."""


class Pause(enum.Enum):
    """Why a processor is not executing any more."""

    HALTED = "halted"
    EXCEPTION = "exception"
    PRINT = "print"
    LOAD_SYMBOLS = "load symbols"


@dataclass(frozen=True)
class ProcessorStop:
    """What ended a run of one processor.

    Attributes:
        pause: the kind of event.
        code: NTSTATUS of an exception, else 0.
        address: of the instruction that caused it.
        parameters: of an access violation: 0 read, 1 write, 8 execute; and the address.
        text: what the kernel prints.
        entry: KLDR_DATA_TABLE_ENTRY of an image that was loaded.
    """

    pause: Pause
    code: int = 0
    address: int = 0
    parameters: tuple[int, ...] = ()
    text: bytes = b""
    entry: int = 0


HALTED = ProcessorStop(Pause.HALTED)


class _TlbEntry(Protocol):
    """What Unicorn wants filled at a miss: physical page and UC_PROT_ bits."""

    paddr: int
    perms: int


class Processor:
    """One processor.

    Args:
        number: index, from 0.
        space: the page tables all processors share.
        ledger_host: host address and size of the ledger's memory.
        pcr: address of this processor's KPCR.
        gdt: address of the GDT.
        idt: address of the IDT.
    """

    def __init__(
        self,
        number: int,
        space: AddressSpace,
        *,
        ledger_host: tuple[int, int],
        pcr: int,
        gdt: int,
        idt: int,
    ) -> None:
        self.number = number
        self.pcr = pcr
        self.prcb = pcr + 0x180
        self._space = space
        self._gdt, self._idt = gdt, idt
        self._event: ProcessorStop | None = None
        self._fault = (0, 0)
        self._debug_registers = [0, 0, 0, 0, 0xFFFF0FF0, 0x400]
        self._control = [0x80050033, 0, space.root, 0x350678]
        self._uc: Any = unicorn.Uc(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
        self._uc.ctl_set_tlb_mode(unicorn.UC_TLB_VIRTUAL)
        memory = space.memory
        self._uc.mem_map_ptr(0, memory.size, unicorn.UC_PROT_ALL, memory.address_in_host)
        host, size = ledger_host
        self._uc.mem_map_ptr(LEDGER_PHYSICAL, size, unicorn.UC_PROT_ALL, host)
        self._uc.hook_add(unicorn.UC_HOOK_TLB_FILL, self._fill_tlb)
        self._uc.hook_add(unicorn.UC_HOOK_INTR, self._interrupt)
        write = self._uc.reg_write
        write(x86.UC_X86_REG_GDTR, (0, gdt, GDT_SIZE - 1, 0))
        write(x86.UC_X86_REG_IDTR, (0, idt, IDT_SIZE - 1, 0))
        write(x86.UC_X86_REG_CS, KERNEL_CODE)
        write(x86.UC_X86_REG_SS, KERNEL_DATA)
        write(x86.UC_X86_REG_GS_BASE, pcr)
        write(x86.UC_X86_REG_EFLAGS, 0x202)

    # ---- running ----

    def start(self, entry: int, stack: int, *arguments: int) -> None:
        """Prepare the first instruction; up to two arguments go to rcx and rdx."""
        self.program_counter = entry
        self._uc.reg_write(x86.UC_X86_REG_RSP, stack)
        for register, value in zip(
            (x86.UC_X86_REG_RCX, x86.UC_X86_REG_RDX), arguments, strict=False
        ):
            self._uc.reg_write(register, value)

    def run(self) -> ProcessorStop:
        """Execute until the processor halts or stops."""
        return self._emulate(0)

    def step(self) -> ProcessorStop:
        """Execute one instruction; HALTED when nothing happened."""
        # Unicorn counts instructions only in code it translates while counting.
        self.forget_code()
        try:
            return self._emulate(1)
        finally:
            self.forget_code()

    def _emulate(self, instructions: int) -> ProcessorStop:
        self._event = None
        try:
            self._uc.emu_start(self.program_counter, 0, 0, instructions)
        except _EmulationError as error:
            return self._failed(error)
        return self._event or HALTED

    def interrupt(self, handler: int, *arguments: int) -> None:
        """Enter a handler as the hardware does through an interrupt gate.

        Up to three arguments go to rcx, rdx and r8; hardware knows none.
        """
        read, write = self._uc.reg_read, self._uc.reg_write
        stack, flags = int(read(x86.UC_X86_REG_RSP)), int(read(x86.UC_X86_REG_EFLAGS))
        frame = struct.pack("<5Q", self.program_counter, KERNEL_CODE, flags, stack, KERNEL_DATA)
        top = (stack & ~0xF) - len(frame)
        self._space.write(top, frame)
        write(x86.UC_X86_REG_RSP, top)
        write(x86.UC_X86_REG_EFLAGS, flags & ~0x200)
        for register, value in zip(
            (x86.UC_X86_REG_RCX, x86.UC_X86_REG_RDX, x86.UC_X86_REG_R8), arguments, strict=False
        ):
            write(register, value)
        self.program_counter = handler

    def forget_code(self) -> None:
        """Drop translated code: somebody changed instructions behind the emulator's back."""
        self._uc.ctl_flush_tb()

    def forget_pages(self) -> None:
        """Drop cached translations: somebody changed page tables behind the emulator's back."""
        self._uc.ctl(unicorn.unicorn_const.UC_CTL_TLB_FLUSH, unicorn.unicorn_const.UC_CTL_IO_WRITE)

    @property
    def program_counter(self) -> int:
        """RIP."""
        return int(self._uc.reg_read(x86.UC_X86_REG_RIP))

    @program_counter.setter
    def program_counter(self, value: int) -> None:
        self._uc.reg_write(x86.UC_X86_REG_RIP, value)

    @property
    def stack_pointer(self) -> int:
        """RSP."""
        return int(self._uc.reg_read(x86.UC_X86_REG_RSP))

    @property
    def thread(self) -> int:
        """KTHREAD address from the KPRCB."""
        return int.from_bytes(self._space.read(self.prcb + 8, 8), "little")

    def _failed(self, error: Exception) -> ProcessorStop:
        address = self.program_counter
        if getattr(error, "errno", 0) == unicorn.UC_ERR_INSN_INVALID:
            return ProcessorStop(Pause.EXCEPTION, STATUS_ILLEGAL_INSTRUCTION, address)
        self._uc.reg_write(x86.UC_X86_REG_CR2, self._fault[1])
        self._control[1] = self._fault[1]
        return ProcessorStop(Pause.EXCEPTION, STATUS_ACCESS_VIOLATION, address, self._fault)

    # ---- called by Unicorn ----

    def _fill_tlb(
        self, _uc: object, address: int, access: int, result: _TlbEntry, _data: object
    ) -> bool:
        entry = self._space.entry(address)
        write = access in {unicorn.UC_MEM_WRITE, unicorn.UC_MEM_WRITE_PROT}
        fetch = access == unicorn.UC_MEM_FETCH
        if not entry or (write and not entry & WRITABLE) or (fetch and entry & NO_EXECUTE):
            self._fault = (1 if write else 8 if fetch else 0, address)
            return False
        result.paddr = entry & FRAME_MASK
        result.perms = (
            unicorn.UC_PROT_READ
            | (unicorn.UC_PROT_WRITE if entry & WRITABLE else 0)
            | (0 if entry & NO_EXECUTE else unicorn.UC_PROT_EXEC)
        )
        return True

    def _interrupt(self, _uc: object, vector: int, _data: object) -> None:
        uc = self._uc
        after = self.program_counter
        if vector == _INTERRUPT_BREAKPOINT:
            self._event = ProcessorStop(Pause.EXCEPTION, STATUS_BREAKPOINT, after - 1)
            self.program_counter = after - 1
        elif vector == _INTERRUPT_ASSERTION:
            self._event = ProcessorStop(Pause.EXCEPTION, STATUS_ASSERTION_FAILURE, after - 2)
            self.program_counter = after - 2
        elif vector == _INTERRUPT_DEBUG_SERVICE:
            self._event = self._debug_service(after - 2)
            self.program_counter = after + 1  # over the int3 that follows every debug service
            uc.reg_write(x86.UC_X86_REG_RAX, 0)
        else:
            self._event = ProcessorStop(Pause.EXCEPTION, STATUS_ILLEGAL_INSTRUCTION, after)
        uc.emu_stop()

    def _debug_service(self, address: int) -> ProcessorStop:
        service, first, second = (
            int(self._uc.reg_read(register))
            for register in (x86.UC_X86_REG_EAX, x86.UC_X86_REG_RCX, x86.UC_X86_REG_EDX)
        )
        if service == _SERVICE_LOAD_SYMBOLS:
            return ProcessorStop(Pause.LOAD_SYMBOLS, address=address, entry=first)
        text = self._space.read(first, second & 0xFFF)
        return ProcessorStop(Pause.PRINT, address=address, text=text)

    # ---- state ----

    def context(self) -> bytes:
        """The CONTEXT record of this processor."""
        record = bytearray(CONTEXT_SIZE)
        values = self._uc.reg_read_batch(_INTEGER_REGISTERS)
        flags = int(self._uc.reg_read(x86.UC_X86_REG_EFLAGS))
        struct.pack_into(
            "<II6HI6Q", record, 0x30,
            _CONTEXT_ALL, 0x1F80,
            KERNEL_CODE, USER_DATA, USER_DATA, USER_TEB, USER_DATA, KERNEL_DATA,
            flags & ~_TRAP_FLAG, *self._debug_registers,
        )  # fmt: skip
        struct.pack_into("<17Q", record, 0x78, *values)
        struct.pack_into("<HxxxxxxxxxxxxxxxxxxxxxxII", record, 0x100, 0x27F, 0x1F80, 0xFFFF)
        return bytes(record)

    def set_context(self, record: bytes) -> None:
        """Take the integer, flag and debug registers of a CONTEXT; segments stay as they are."""
        values = struct.unpack_from("<17Q", record, 0x78)
        for register, value in zip(_INTEGER_REGISTERS, values, strict=True):
            self._uc.reg_write(register, value)
        (flags,) = struct.unpack_from("<I", record, 0x44)
        self._uc.reg_write(x86.UC_X86_REG_EFLAGS, flags & ~_TRAP_FLAG | 2)
        self._debug_registers = list(struct.unpack_from("<6Q", record, 0x48))

    @property
    def flags(self) -> int:
        """RFLAGS without the trap flag."""
        return int(self._uc.reg_read(x86.UC_X86_REG_EFLAGS)) & ~_TRAP_FLAG

    @property
    def dr6(self) -> int:
        """Debug status register."""
        return self._debug_registers[4]

    @property
    def dr7(self) -> int:
        """Debug control register."""
        return self._debug_registers[5]

    @dr7.setter
    def dr7(self, value: int) -> None:
        self._debug_registers[5] = value

    def special_registers(self) -> bytes:
        """KSPECIAL_REGISTERS of this processor, 0xF0 bytes."""
        record = bytearray(SPECIAL_REGISTERS_SIZE)
        struct.pack_into("<10Q", record, 0x00, *self._control, *self._debug_registers)
        struct.pack_into("<6xHQ", record, 0x50, GDT_SIZE - 1, self._gdt)
        struct.pack_into("<6xHQ", record, 0x60, IDT_SIZE - 1, self._idt)
        struct.pack_into("<HHI", record, 0x70, TASK, 0, 0x1F80)
        irql = self._space.read(self.pcr + 0x50, 1)
        struct.pack_into("<QQ", record, 0xA0, irql[0] if irql else 0, self.pcr)
        return bytes(record)

    def set_special_registers(self, record: bytes) -> None:
        """Take the debug registers; control registers and descriptor tables stay as they are."""
        self._debug_registers = list(struct.unpack_from("<6Q", record, 0x20))

    def save_state(self) -> None:
        """Write the registers to KPRCB.ProcessorState, as the kernel does when it freezes."""
        self._space.write(self.prcb + 0x40, self.special_registers())
        self._space.write(self.prcb + 0x130, self.context())

    def close(self) -> None:
        """Let go of the emulator."""
        self._uc = None
