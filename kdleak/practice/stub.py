"""The kernel debugger stub of the practice machine: answers KD requests while it is stopped.

Source: KD protocol, DBGKD_MANIPULATE_STATE64, as the NT kernel's KdpSendWaitContinue handles it.
The stub knows no link: requests come in decoded, and an :class:`Outcome` says what to send.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from dataclasses import dataclass

from kdleak.kd.packets import (
    Api,
    ControlReport,
    ExceptionRecord,
    LoadSymbols,
    Machine,
    Manipulate,
    Status,
    build_exception_change,
    build_load_symbols_change,
    build_manipulate,
    context_ex_union,
    memory_union,
    parse_context_ex_union,
    parse_continue2,
    parse_memory_union,
    u32_union,
)
from kdleak.kd.structures import Version, VersionFlag, build_version
from kdleak.practice.breakpoints import BreakpointTable
from kdleak.practice.loader import LoadedImage
from kdleak.practice.machine import MachineStop, PracticeMachine
from kdleak.practice.paging import PAGE_MASK
from kdleak.practice.processor import CONTEXT_SIZE, STATUS_SINGLE_STEP, Processor

_STATUS_NO_MORE_ENTRIES = 0x8000001A
_STATUS_WAKE_SYSTEM_DEBUGGER = 0x80000007
_MANUALLY_INITIATED_CRASH = 0xE2
_PROCESSOR_LEVEL = 6
_STREAM_SIZE = 16
_REPORT_FLAGS = 3  # segments included, standard CS
_SEARCH_LIMIT = 1 << 30
_FILL_LIMIT = 1 << 24
_FILL_VIRTUAL, _FILL_PHYSICAL = 1, 2
_KERNEL_SPACE_START = 0xFFFF8000_00000000
_BREAKPOINT_EX = struct.Struct("<QIxxxx")

NO_REPLY = frozenset(
    (
        Api.SET_SPECIAL_CALL,
        Api.CLEAR_SPECIAL_CALLS,
        Api.SET_INTERNAL_BREAKPOINT,
        Api.CHECK_LOW_MEMORY,
        Api.CLEAR_ALL_INTERNAL_BREAKPOINTS,
    )
)
"""Requests the kernel takes without answering."""


class Action(enum.Enum):
    """What the caller does after a request."""

    STAY = "stay stopped"
    RESUME = "run on"
    STEP = "execute one instruction and stop again"
    SWITCH = "report the stop again, from another processor"
    REBOOT = "start the machine anew"


@dataclass(frozen=True)
class Outcome:
    """Result of one request.

    Attributes:
        action: see Action.
        reply: STATE_MANIPULATE payload to send first, None for none.
    """

    action: Action
    reply: bytes | None = None


class KdStub:
    """Serves one machine.

    Args:
        machine: the machine, stopped.
        max_packet: bytes of the largest packet on the link; longer reads are cut short.
    """

    def __init__(self, machine: PracticeMachine, max_packet: int) -> None:
        self.machine = machine
        self.breakpoints = BreakpointTable(machine)
        self._max_transfer = max_packet - 56
        self._current = 0
        self._context_parts = bytearray(CONTEXT_SIZE)
        self._msr = {
            0xC0000080: 0xD01,
            0xC0000081: 0x0023001000000000,
            0xC0000082: machine.kernel.symbols["KiUnexpectedInterrupt"],
            0xC0000102: 0,
            0x1B: 0xFEE00900,
            0x277: 0x0007010600070106,
        }
        self._handlers: dict[int, Callable[[Manipulate], bytes]] = {
            Api.READ_VIRTUAL: self._read_virtual,
            Api.WRITE_VIRTUAL: self._write_virtual,
            Api.READ_PHYSICAL: self._read_physical,
            Api.WRITE_PHYSICAL: self._write_physical,
            Api.GET_CONTEXT: self._get_context,
            Api.SET_CONTEXT: self._set_context,
            Api.GET_CONTEXT_EX: self._get_context_ex,
            Api.SET_CONTEXT_EX: self._set_context_ex,
            Api.READ_CONTROL_SPACE: self._read_control_space,
            Api.WRITE_CONTROL_SPACE: self._write_control_space,
            Api.WRITE_BREAKPOINT: self._write_breakpoint,
            Api.RESTORE_BREAKPOINT: self._restore_breakpoint,
            Api.WRITE_BREAKPOINT_EX: self._write_breakpoint_ex,
            Api.RESTORE_BREAKPOINT_EX: self._restore_breakpoint_ex,
            Api.GET_VERSION: self._get_version,
            Api.READ_MSR: self._read_msr,
            Api.WRITE_MSR: self._write_msr,
            Api.SEARCH_MEMORY: self._search_memory,
            Api.FILL_MEMORY: self._fill_memory,
            Api.QUERY_MEMORY: self._query_memory,
            Api.QUERY_SPECIAL_CALLS: self._query_special_calls,
        }

    # ---- state changes ----

    def exception_change(self, stop: MachineStop) -> bytes:
        """STATE_CHANGE64 payload of a stop; the processor in it becomes the current one."""
        self._current = stop.processor
        processor = self._processor
        counter = processor.program_counter
        self.breakpoints.remove_range(counter, counter + _STREAM_SIZE)
        record = ExceptionRecord(
            code=stop.code,
            address=stop.address,
            # The kernel says what kind of break it was: 0, a break instruction.
            parameters=(0,) if stop.code == Status.BREAKPOINT else stop.parameters,
        )
        return build_exception_change(
            record,
            program_counter=counter,
            processor=stop.processor,
            processors=len(self.machine.processors),
            thread=stop.thread,
            level=_PROCESSOR_LEVEL,
            control_report=self._report(stop),
        )

    def load_change(self, stop: MachineStop, image: LoadedImage) -> bytes:
        """STATE_CHANGE64 payload that tells of a loaded image."""
        self._current = stop.processor
        return build_load_symbols_change(
            LoadSymbols(image.path, image.base, checksum=image.checksum, size=image.size),
            program_counter=self._processor.program_counter,
            processor=stop.processor,
            processors=len(self.machine.processors),
            thread=stop.thread,
            level=_PROCESSOR_LEVEL,
            control_report=self._report(stop),
        )

    def _report(self, stop: MachineStop) -> ControlReport:
        processor = self._processor
        return ControlReport(
            dr6=0xFFFF4FF0 if stop.code == STATUS_SINGLE_STEP else processor.dr6,
            dr7=processor.dr7,
            eflags=processor.flags,
            instruction_stream=self.machine.read_virtual(processor.program_counter, _STREAM_SIZE),
            report_flags=_REPORT_FLAGS,
            segments=(0x10, 0x2B, 0x2B, 0x53),
        )

    def switched_stop(self) -> MachineStop:
        """The stop to report after a SwitchProcessor request."""
        processor = self._processor
        return MachineStop(
            processor.number,
            _STATUS_WAKE_SYSTEM_DEBUGGER,
            processor.program_counter,
            (),
            processor.thread,
        )

    @property
    def current(self) -> int:
        """Number of the processor that talks to the debugger."""
        return self._current

    @property
    def _processor(self) -> Processor:
        return self.machine.processors[self._current]

    # ---- requests ----

    def handle(self, request: Manipulate) -> Outcome:
        """Carry out one request."""
        api = request.api
        if api in {Api.CONTINUE, Api.CONTINUE2}:
            return self._continue(request)
        if api == Api.REBOOT:
            return Outcome(Action.REBOOT)
        if api == Api.CAUSE_BUG_CHECK:
            self._cause_bug_check(request)
            return Outcome(Action.RESUME)
        if api == Api.SWITCH_PROCESSOR and request.processor < len(self.machine.processors):
            self._current = request.processor
            return Outcome(Action.SWITCH)
        if api in NO_REPLY:
            return Outcome(Action.STAY)
        handler = self._handlers.get(api)
        return Outcome(Action.STAY, handler(request) if handler else self._refuse(request))

    def _continue(self, request: Manipulate) -> Outcome:
        if request.api == Api.CONTINUE:
            return Outcome(Action.RESUME)
        what = parse_continue2(request.union, Machine.AMD64)
        for processor in self.machine.processors:
            processor.dr7 = what.dr7
        return Outcome(Action.STEP if what.trace else Action.RESUME)

    def _cause_bug_check(self, request: Manipulate) -> None:
        (code,) = struct.unpack_from("<I", request.union)
        processor = self._processor
        record = bytearray(processor.context())
        stack = ((processor.stack_pointer - 0x100) & ~0xF) - 8
        self.machine.write_virtual(stack, struct.pack("<Q", processor.program_counter))
        struct.pack_into("<Q", record, 0x80, code or _MANUALLY_INITIATED_CRASH)
        struct.pack_into("<Q", record, 0x98, stack)
        struct.pack_into("<Q", record, 0xF8, self.machine.kernel.symbols["KeBugCheckEx"])
        processor.set_context(bytes(record))

    def _reply(
        self, request: Manipulate, union: bytes | None = None, data: bytes = b"", status: int = 0
    ) -> bytes:
        return build_manipulate(
            request.api,
            # The kernel answers in the request's own buffer: DbgEng asks again for ever when the
            # reply about another processor's context does not carry that processor's number.
            request.processor,
            request.union if union is None else union,
            data,
            status,
            _PROCESSOR_LEVEL,
        )

    def _refuse(self, request: Manipulate) -> bytes:
        return self._reply(request, status=Status.UNSUCCESSFUL)

    def _done(self, request: Manipulate, *, succeeded: bool) -> bytes:
        return self._reply(request) if succeeded else self._refuse(request)

    def _chosen(self, request: Manipulate) -> Processor | None:
        processors = self.machine.processors
        return processors[request.processor] if request.processor < len(processors) else None

    # ---- memory ----

    def _memory_reply(self, request: Manipulate, data: bytes) -> bytes:
        address, count, _ = parse_memory_union(request.union)
        status = Status.SUCCESS if data or not count else Status.UNSUCCESSFUL
        return self._reply(request, memory_union(address, count, len(data)), data, status)

    def _written_reply(self, request: Manipulate, done: int) -> bytes:
        address, count, _ = parse_memory_union(request.union)
        status = Status.SUCCESS if done == count else Status.UNSUCCESSFUL
        return self._reply(request, memory_union(address, count, done), status=status)

    def _read_virtual(self, request: Manipulate) -> bytes:
        address, count, _ = parse_memory_union(request.union)
        data = self.machine.read_virtual(address, min(count, self._max_transfer))
        return self._memory_reply(request, self.breakpoints.hide(address, data))

    def _write_virtual(self, request: Manipulate) -> bytes:
        address, count, _ = parse_memory_union(request.union)
        return self._written_reply(request, self.breakpoints.write(address, request.data[:count]))

    def _read_physical(self, request: Manipulate) -> bytes:
        address, count, _ = parse_memory_union(request.union)
        data = self.machine.memory.read(address, min(count, self._max_transfer))
        return self._memory_reply(request, data)

    def _write_physical(self, request: Manipulate) -> bytes:
        address, count, _ = parse_memory_union(request.union)
        return self._written_reply(
            request, self.machine.write_physical(address, request.data[:count])
        )

    def _search_memory(self, request: Manipulate) -> bytes:
        address, length, pattern_length = struct.unpack_from("<QQI", request.union)
        pattern = request.data[:pattern_length]
        found = self._find(address, min(length, _SEARCH_LIMIT), pattern) if pattern else None
        if found is None:
            return self._reply(request, status=_STATUS_NO_MORE_ENTRIES)
        return self._reply(request, struct.pack("<QQI", found, length, pattern_length))

    def _find(self, address: int, length: int, pattern: bytes) -> int | None:
        end = address + length
        while address < end:
            data = self.machine.read_virtual(address, min(end - address, 1 << 20))
            spot = self.breakpoints.hide(address, data).find(pattern)
            if spot >= 0:
                return address + spot
            if len(data) >= 1 << 20:
                address += len(data) - len(pattern) + 1
            else:  # the rest of this page cannot be read: go on with the next
                address = (address + len(data) | PAGE_MASK) + 1
        return None

    def _fill_memory(self, request: Manipulate) -> bytes:
        address, length, flags, pattern_length = struct.unpack_from("<QIHH", request.union)
        pattern = request.data[:pattern_length]
        if not pattern or length > _FILL_LIMIT or flags not in {_FILL_VIRTUAL, _FILL_PHYSICAL}:
            return self._refuse(request)
        data = (pattern * (length // len(pattern) + 1))[:length]
        write = self.breakpoints.write if flags == _FILL_VIRTUAL else self.machine.write_physical
        done = write(address, data)
        status = Status.SUCCESS if done == length else Status.UNSUCCESSFUL
        union = struct.pack("<QIHH", address, done, flags, pattern_length)
        return self._reply(request, union, status=status)

    def _query_memory(self, request: Manipulate) -> bytes:
        (address,) = struct.unpack_from("<Q", request.union)
        entry = self.machine.space.entry(address)
        if not entry:
            return self._refuse(request)
        # Whatever the entry says: the kernel's debugger writes through it anyway, and DbgEng
        # refuses breakpoints on pages that are not writable and executable here.
        flags = 1 | 2 | 4
        space = 2 if address >= _KERNEL_SPACE_START else 0
        return self._reply(request, struct.pack("<QQII", address, 0, space, flags))

    # ---- registers ----

    def _get_context(self, request: Manipulate) -> bytes:
        processor = self._chosen(request)
        if processor is None:
            return self._refuse(request)
        return self._reply(request, data=processor.context())

    def _set_context(self, request: Manipulate) -> bytes:
        processor = self._chosen(request)
        if processor is None or len(request.data) < CONTEXT_SIZE:
            return self._refuse(request)
        processor.set_context(request.data)
        return self._reply(request)

    def _get_context_ex(self, request: Manipulate) -> bytes:
        offset, count, _ = parse_context_ex_union(request.union)
        processor = self._chosen(request)
        if processor is None or offset + count > CONTEXT_SIZE:
            return self._refuse(request)
        data = processor.context()[offset : offset + count]
        return self._reply(request, context_ex_union(offset, count, len(data)), data)

    def _set_context_ex(self, request: Manipulate) -> bytes:
        offset, count, total = parse_context_ex_union(request.union)
        processor = self._chosen(request)
        data = request.data[:count]
        if processor is None or len(data) < count or offset + count > CONTEXT_SIZE:
            return self._refuse(request)
        if offset == 0:
            self._context_parts = bytearray(processor.context())
        self._context_parts[offset : offset + count] = data
        if offset + count >= min(total, CONTEXT_SIZE):
            processor.set_context(bytes(self._context_parts))
        return self._reply(request, context_ex_union(offset, count, count))

    def _read_control_space(self, request: Manipulate) -> bytes:
        selector, count, _ = parse_memory_union(request.union)
        processor = self._chosen(request)
        if processor is None:
            return self._refuse(request)
        if selector == 0:
            data = struct.pack("<Q", processor.pcr)
        elif selector == 1:
            data = struct.pack("<Q", processor.prcb)
        elif selector == 2:
            data = processor.special_registers()
        elif selector == 3:
            data = struct.pack("<Q", processor.thread)
        else:
            return self._refuse(request)
        return self._memory_reply(request, data[:count])

    def _write_control_space(self, request: Manipulate) -> bytes:
        selector, count, _ = parse_memory_union(request.union)
        processor = self._chosen(request)
        if processor is None or selector != 2 or not request.data:
            return self._refuse(request)
        record = bytearray(processor.special_registers())
        data = request.data[: min(count, len(record))]
        record[: len(data)] = data
        processor.set_special_registers(bytes(record))
        return self._reply(request, memory_union(selector, count, len(data)))

    def _read_msr(self, request: Manipulate) -> bytes:
        (number,) = struct.unpack_from("<I", request.union)
        value = self._processor.pcr if number == 0xC0000101 else self._msr.get(number)
        if value is None:
            return self._refuse(request)
        return self._reply(request, u32_union(number, value & 0xFFFFFFFF, value >> 32))

    def _write_msr(self, request: Manipulate) -> bytes:
        number, low, high = struct.unpack_from("<III", request.union)
        if number not in self._msr:
            return self._refuse(request)
        self._msr[number] = low | high << 32
        return self._reply(request)

    # ---- breakpoints ----

    def _write_breakpoint(self, request: Manipulate) -> bytes:
        (address,) = struct.unpack_from("<Q", request.union)
        handle = self.breakpoints.insert(address)
        status = Status.SUCCESS if handle else Status.UNSUCCESSFUL
        return self._reply(request, struct.pack("<QI", address, handle), status=status)

    def _restore_breakpoint(self, request: Manipulate) -> bytes:
        (handle,) = struct.unpack_from("<I", request.union)
        return self._done(request, succeeded=self.breakpoints.remove(handle))

    def _write_breakpoint_ex(self, request: Manipulate) -> bytes:
        (count,) = struct.unpack_from("<I", request.union)
        if count * _BREAKPOINT_EX.size > len(request.data):
            return self._refuse(request)
        rows = []
        for index in range(count):
            address, handle = _BREAKPOINT_EX.unpack_from(request.data, index * _BREAKPOINT_EX.size)
            if handle:
                self.breakpoints.remove(handle)
            rows.append((address, self.breakpoints.insert(address)))
        status = Status.SUCCESS if all(row[1] for row in rows) else Status.UNSUCCESSFUL
        data = b"".join(_BREAKPOINT_EX.pack(*row) for row in rows)
        return self._reply(request, data=data, status=status)

    def _restore_breakpoint_ex(self, request: Manipulate) -> bytes:
        (count,) = struct.unpack_from("<I", request.union)
        if count * 4 > len(request.data):
            return self._refuse(request)
        handles = struct.unpack_from(f"<{count}I", request.data)
        removed = [self.breakpoints.remove(handle) for handle in handles]
        status = Status.SUCCESS if all(removed) else Status.UNSUCCESSFUL
        return self._reply(request, data=request.data[: count * 4], status=status)

    # ---- the rest ----

    def _query_special_calls(self, request: Manipulate) -> bytes:
        return self._reply(request, u32_union(0))

    def _get_version(self, request: Manipulate) -> bytes:
        kernel = self.machine.kernel
        flags = VersionFlag.DATA | VersionFlag.POINTER64
        if len(self.machine.processors) > 1:
            flags |= VersionFlag.MULTIPROCESSOR
        version = Version(
            major=0x000F,
            minor=self.machine.build,
            protocol=6,
            secondary=2,
            flags=flags,
            machine=Machine.AMD64,
            max_packet_type=0x0C,
            max_state_change=3,
            max_manipulate=Api.SET_CONTEXT_EX - Api.READ_VIRTUAL + 1,
            simulation=0,
            kernel_base=kernel.base,
            loaded_module_list=kernel.symbols["PsLoadedModuleList"],
            debugger_data_list=kernel.symbols["KdpDebuggerDataListHead"],
        )
        return self._reply(request, build_version(version))
