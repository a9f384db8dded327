"""The stub's breakpoint requests, one at a time and many at once.

Source: KD protocol, DBGKD_WRITE_BREAKPOINT64, DBGKD_RESTORE_BREAKPOINT, DBGKD_BREAKPOINTEX.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from kdleak.kd.packets import Api, Manipulate, Status
from kdleak.practice.breakpoints import BreakpointTable
from kdleak.practice.replies import refuse, reply

_BREAKPOINT_EX = struct.Struct("<QIxxxx")


class BreakpointRequests:
    """Serves breakpoint requests on one table."""

    def __init__(self, table: BreakpointTable) -> None:
        self._table = table
        self.handlers: dict[int, Callable[[Manipulate], bytes]] = {
            Api.WRITE_BREAKPOINT: self._write_breakpoint,
            Api.RESTORE_BREAKPOINT: self._restore_breakpoint,
            Api.WRITE_BREAKPOINT_EX: self._write_breakpoint_ex,
            Api.RESTORE_BREAKPOINT_EX: self._restore_breakpoint_ex,
        }

    def _write_breakpoint(self, request: Manipulate) -> bytes:
        (address,) = struct.unpack_from("<Q", request.union)
        handle = self._table.insert(address)
        status = Status.SUCCESS if handle else Status.UNSUCCESSFUL
        return reply(request, struct.pack("<QI", address, handle), status=status)

    def _restore_breakpoint(self, request: Manipulate) -> bytes:
        (handle,) = struct.unpack_from("<I", request.union)
        return reply(request) if self._table.remove(handle) else refuse(request)

    def _write_breakpoint_ex(self, request: Manipulate) -> bytes:
        (count,) = struct.unpack_from("<I", request.union)
        if count * _BREAKPOINT_EX.size > len(request.data):
            return refuse(request)
        rows = []
        for index in range(count):
            address, handle = _BREAKPOINT_EX.unpack_from(request.data, index * _BREAKPOINT_EX.size)
            if handle:
                self._table.remove(handle)
            rows.append((address, self._table.insert(address)))
        status = Status.SUCCESS if all(row[1] for row in rows) else Status.UNSUCCESSFUL
        data = b"".join(_BREAKPOINT_EX.pack(*row) for row in rows)
        return reply(request, data=data, status=status)

    def _restore_breakpoint_ex(self, request: Manipulate) -> bytes:
        (count,) = struct.unpack_from("<I", request.union)
        if count * 4 > len(request.data):
            return refuse(request)
        handles = struct.unpack_from(f"<{count}I", request.data)
        removed = [self._table.remove(handle) for handle in handles]
        status = Status.SUCCESS if all(removed) else Status.UNSUCCESSFUL
        return reply(request, data=request.data[: count * 4], status=status)
