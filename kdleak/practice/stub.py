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
    parse_continue2,
    u32_union,
)
from kdleak.kd.structures import Version, VersionFlag, build_version
from kdleak.practice.breakpoints import BreakpointTable
from kdleak.practice.loader import LoadedImage
from kdleak.practice.machine import MachineStop, PracticeMachine
from kdleak.practice.processor import STATUS_SINGLE_STEP, Processor
from kdleak.practice.replies import PROCESSOR_LEVEL, refuse, reply
from kdleak.practice.stub_breakpoints import BreakpointRequests
from kdleak.practice.stub_memory import MemoryRequests
from kdleak.practice.stub_registers import RegisterRequests

_STATUS_WAKE_SYSTEM_DEBUGGER = 0x80000007
_MANUALLY_INITIATED_CRASH = 0xE2
_STREAM_SIZE = 16
_REPORT_FLAGS = 3  # segments included, standard CS

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
        self._current = 0
        self._handlers: dict[int, Callable[[Manipulate], bytes]] = {
            **MemoryRequests(machine, self.breakpoints, max_packet - 56).handlers,
            **RegisterRequests(machine).handlers,
            **BreakpointRequests(self.breakpoints).handlers,
            Api.GET_VERSION: self._get_version,
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
            level=PROCESSOR_LEVEL,
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
            level=PROCESSOR_LEVEL,
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
        return Outcome(Action.STAY, handler(request) if handler else refuse(request))

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
        stack = processor.stack_pointer - 8  # as a call from here leaves it: stacks stay whole
        self.machine.write_virtual(stack, struct.pack("<Q", processor.program_counter))
        struct.pack_into("<Q", record, 0x80, code or _MANUALLY_INITIATED_CRASH)
        struct.pack_into("<Q", record, 0x98, stack)
        struct.pack_into("<Q", record, 0xF8, self.machine.kernel.symbols["KeBugCheckEx"])
        processor.set_context(bytes(record))

    def _query_special_calls(self, request: Manipulate) -> bytes:
        return reply(request, u32_union(0))

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
        return reply(request, build_version(version))
