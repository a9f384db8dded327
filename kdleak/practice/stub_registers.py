"""The stub's register requests: contexts, control space, model specific registers.

Source: KD protocol, DBGKD_GET_CONTEXT, DBGKD_CONTEXT_EX, DBGKD_READ_MEMORY64 (control space) and
DBGKD_READ_WRITE_MSR; AMD64 control space selectors.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from kdleak.kd.packets import (
    Api,
    Manipulate,
    context_ex_union,
    memory_union,
    parse_context_ex_union,
    parse_memory_union,
    u32_union,
)
from kdleak.practice.machine import PracticeMachine
from kdleak.practice.processor import CONTEXT_SIZE, Processor
from kdleak.practice.replies import refuse, reply, reply_read


class RegisterRequests:
    """Serves register requests of one machine."""

    def __init__(self, machine: PracticeMachine) -> None:
        self._machine = machine
        self._context_parts = bytearray(CONTEXT_SIZE)
        self._msr = {
            0xC0000080: 0xD01,
            0xC0000081: 0x0023001000000000,
            0xC0000082: machine.kernel.symbols["KiUnexpectedInterrupt"],
            0xC0000102: 0,
            0x1B: 0xFEE00900,
            0x277: 0x0007010600070106,
        }
        self.handlers: dict[int, Callable[[Manipulate], bytes]] = {
            Api.GET_CONTEXT: self._get_context,
            Api.SET_CONTEXT: self._set_context,
            Api.GET_CONTEXT_EX: self._get_context_ex,
            Api.SET_CONTEXT_EX: self._set_context_ex,
            Api.READ_CONTROL_SPACE: self._read_control_space,
            Api.WRITE_CONTROL_SPACE: self._write_control_space,
            Api.READ_MSR: self._read_msr,
            Api.WRITE_MSR: self._write_msr,
        }

    def _chosen(self, request: Manipulate) -> Processor | None:
        processors = self._machine.processors
        return processors[request.processor] if request.processor < len(processors) else None

    def _get_context(self, request: Manipulate) -> bytes:
        processor = self._chosen(request)
        if processor is None:
            return refuse(request)
        return reply(request, data=processor.context())

    def _set_context(self, request: Manipulate) -> bytes:
        processor = self._chosen(request)
        if processor is None or len(request.data) < CONTEXT_SIZE:
            return refuse(request)
        processor.set_context(request.data)
        return reply(request)

    def _get_context_ex(self, request: Manipulate) -> bytes:
        offset, count, _ = parse_context_ex_union(request.union)
        processor = self._chosen(request)
        if processor is None or offset + count > CONTEXT_SIZE:
            return refuse(request)
        data = processor.context()[offset : offset + count]
        return reply(request, context_ex_union(offset, count, len(data)), data)

    def _set_context_ex(self, request: Manipulate) -> bytes:
        offset, count, total = parse_context_ex_union(request.union)
        processor = self._chosen(request)
        data = request.data[:count]
        if processor is None or len(data) < count or offset + count > CONTEXT_SIZE:
            return refuse(request)
        if offset == 0:
            self._context_parts = bytearray(processor.context())
        self._context_parts[offset : offset + count] = data
        if offset + count >= min(total, CONTEXT_SIZE):
            processor.set_context(bytes(self._context_parts))
        return reply(request, context_ex_union(offset, count, count))

    def _read_control_space(self, request: Manipulate) -> bytes:
        selector, count, _ = parse_memory_union(request.union)
        processor = self._chosen(request)
        if processor is None:
            return refuse(request)
        if selector == 0:
            data = struct.pack("<Q", processor.pcr)
        elif selector == 1:
            data = struct.pack("<Q", processor.prcb)
        elif selector == 2:
            data = processor.special_registers()
        elif selector == 3:
            data = struct.pack("<Q", processor.thread)
        else:
            return refuse(request)
        return reply_read(request, data[:count])

    def _write_control_space(self, request: Manipulate) -> bytes:
        selector, count, _ = parse_memory_union(request.union)
        processor = self._chosen(request)
        if processor is None or selector != 2 or not request.data:
            return refuse(request)
        record = bytearray(processor.special_registers())
        data = request.data[: min(count, len(record))]
        record[: len(data)] = data
        processor.set_special_registers(bytes(record))
        return reply(request, memory_union(selector, count, len(data)))

    def _read_msr(self, request: Manipulate) -> bytes:
        (number,) = struct.unpack_from("<I", request.union)
        processor = self._chosen(request)
        if processor is None:
            return refuse(request)
        value = processor.pcr if number == 0xC0000101 else self._msr.get(number)
        if value is None:
            return refuse(request)
        return reply(request, u32_union(number, value & 0xFFFFFFFF, value >> 32))

    def _write_msr(self, request: Manipulate) -> bytes:
        number, low, high = struct.unpack_from("<III", request.union)
        if number not in self._msr:
            return refuse(request)
        self._msr[number] = low | high << 32
        return reply(request)
