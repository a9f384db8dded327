"""The stub's memory requests: read, write, search, fill, query, virtual and physical.

Source: KD protocol, DBGKD_MANIPULATE_STATE64 and the unions DBGKD_READ_MEMORY64,
DBGKD_SEARCH_MEMORY, DBGKD_FILL_MEMORY and DBGKD_QUERY_MEMORY.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from kdleak.kd.packets import Api, Manipulate, Status, parse_memory_union
from kdleak.practice.breakpoints import BreakpointTable
from kdleak.practice.machine import PracticeMachine
from kdleak.practice.paging import PAGE_MASK
from kdleak.practice.replies import refuse, reply, reply_read, reply_written

_STATUS_NO_MORE_ENTRIES = 0x8000001A
_SEARCH_LIMIT = 1 << 30
_SEARCH_CHUNK = 1 << 20
_FILL_LIMIT = 1 << 24
_FILL_VIRTUAL, _FILL_PHYSICAL = 1, 2
_KERNEL_SPACE_START = 0xFFFF8000_00000000


class MemoryRequests:
    """Serves memory requests of one machine; reads longer than ``max_transfer`` are cut short."""

    def __init__(
        self, machine: PracticeMachine, breakpoints: BreakpointTable, max_transfer: int
    ) -> None:
        self._machine = machine
        self._breakpoints = breakpoints
        self._max_transfer = max_transfer
        self.handlers: dict[int, Callable[[Manipulate], bytes]] = {
            Api.READ_VIRTUAL: self._read_virtual,
            Api.WRITE_VIRTUAL: self._write_virtual,
            Api.READ_PHYSICAL: self._read_physical,
            Api.WRITE_PHYSICAL: self._write_physical,
            Api.SEARCH_MEMORY: self._search_memory,
            Api.FILL_MEMORY: self._fill_memory,
            Api.QUERY_MEMORY: self._query_memory,
        }

    def _read_virtual(self, request: Manipulate) -> bytes:
        address, count, _ = parse_memory_union(request.union)
        data = self._machine.read_virtual(address, min(count, self._max_transfer))
        return reply_read(request, self._breakpoints.hide(address, data))

    def _write_virtual(self, request: Manipulate) -> bytes:
        address, count, _ = parse_memory_union(request.union)
        return reply_written(request, self._breakpoints.write(address, request.data[:count]))

    def _read_physical(self, request: Manipulate) -> bytes:
        address, count, _ = parse_memory_union(request.union)
        data = self._machine.memory.read(address, min(count, self._max_transfer))
        return reply_read(request, data)

    def _write_physical(self, request: Manipulate) -> bytes:
        address, count, _ = parse_memory_union(request.union)
        return reply_written(request, self._machine.write_physical(address, request.data[:count]))

    def _search_memory(self, request: Manipulate) -> bytes:
        address, length, pattern_length = struct.unpack_from("<QQI", request.union)
        pattern = request.data[:pattern_length]
        found = self._find(address, min(length, _SEARCH_LIMIT), pattern) if pattern else None
        if found is None:
            return reply(request, status=_STATUS_NO_MORE_ENTRIES)
        return reply(request, struct.pack("<QQI", found, length, pattern_length))

    def _find(self, address: int, length: int, pattern: bytes) -> int | None:
        end = address + length
        while address < end:
            data = self._machine.read_virtual(address, min(end - address, _SEARCH_CHUNK))
            spot = self._breakpoints.hide(address, data).find(pattern)
            if spot >= 0:
                return address + spot
            if len(data) >= _SEARCH_CHUNK:
                address += len(data) - len(pattern) + 1
            else:  # the rest of this page cannot be read: go on with the next
                address = (address + len(data) | PAGE_MASK) + 1
        return None

    def _fill_memory(self, request: Manipulate) -> bytes:
        address, length, flags, pattern_length = struct.unpack_from("<QIHH", request.union)
        pattern = request.data[:pattern_length]
        if not pattern or length > _FILL_LIMIT or flags not in {_FILL_VIRTUAL, _FILL_PHYSICAL}:
            return refuse(request)
        data = (pattern * (length // len(pattern) + 1))[:length]
        write = self._breakpoints.write if flags == _FILL_VIRTUAL else self._machine.write_physical
        done = write(address, data)
        status = Status.SUCCESS if done == length else Status.UNSUCCESSFUL
        union = struct.pack("<QIHH", address, done, flags, pattern_length)
        return reply(request, union, status=status)

    def _query_memory(self, request: Manipulate) -> bytes:
        (address,) = struct.unpack_from("<Q", request.union)
        entry = self._machine.space.entry(address)
        if not entry:
            return refuse(request)
        # Whatever the entry says: the kernel's debugger writes through it anyway, and DbgEng
        # refuses breakpoints on pages that are not writable and executable here.
        flags = 1 | 2 | 4
        space = 2 if address >= _KERNEL_SPACE_START else 0
        return reply(request, struct.pack("<QQII", address, 0, space, flags))
