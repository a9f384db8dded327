"""A KdHost without a wire: its requests go straight to the practice machine's debugger stub."""

from __future__ import annotations

import struct

from kdleak.kd.packets import (
    Api,
    LoadSymbols,
    Status,
    build_manipulate,
    memory_union,
    parse_manipulate,
    parse_memory_union,
    parse_state_change,
)
from kdleak.kd.structures import parse_version
from kdleak.practice.machine import PracticeMachine
from kdleak.practice.stub import Action, KdStub


class DirectHost:
    """Time is counted in ticks of the machine: ``clock`` goes with it."""

    max_read = 0x400
    break_in_pending = False
    state = None

    def __init__(self, machine: PracticeMachine, tick_seconds: float = 0.01) -> None:
        self.machine = machine
        self.requests = 0
        self.log: list[int] = []
        self.module_events: list[LoadSymbols] = []
        self.stopped = False
        self.closed = False
        self.now = 100.0
        self._tick_seconds = tick_seconds
        self._stub = KdStub(machine, self.max_read + 56)

    def clock(self) -> float:
        return self.now

    def _request(self, api, processor=0, union=b"", data=b""):
        assert self.stopped, "a request to a running target"
        self.requests += 1
        self.log.append(int(api))
        outcome = self._stub.handle(parse_manipulate(build_manipulate(api, processor, union, data)))
        if outcome.action is Action.RESUME:
            self.stopped = False
        return None if outcome.reply is None else parse_manipulate(outcome.reply)

    def _stop(self, stop):
        self.stopped = True
        return parse_state_change(self._stub.exception_change(stop))

    def attach(self, timeout):
        return self.break_in(timeout)

    def break_in(self, timeout):
        self.machine.request_break()
        change = self.wait(timeout)
        assert change is not None
        return change

    def get_version(self):
        return parse_version(self._request(Api.GET_VERSION).union)

    def read_virtual_once(self, address, size):
        reply = self._request(Api.READ_VIRTUAL, union=memory_union(address, size))
        return b"" if reply.status != Status.SUCCESS else reply.data

    def read_virtual(self, address, size, processor=None):
        found = b""
        while len(found) < size:
            data = self.read_virtual_once(
                address + len(found), min(size - len(found), self.max_read)
            )
            found += data
            if not data:
                break
        return found

    def write_virtual(self, address, data):
        reply = self._request(Api.WRITE_VIRTUAL, union=memory_union(address, len(data)), data=data)
        return parse_memory_union(reply.union)[2]

    def get_context(self, processor):
        return self._request(Api.GET_CONTEXT, processor).data

    def set_context(self, processor, context):
        self._request(Api.SET_CONTEXT, processor, data=context)

    def restore_breakpoints(self):
        for handle in range(1, 33):
            self._request(Api.RESTORE_BREAKPOINT, union=struct.pack("<I", handle))

    def resume(self, status=0x10002, trace=False, dr7=0x400):
        self._request(Api.CONTINUE2, union=struct.pack("<IIQQQ", status, int(trace), dr7, 1, 0))

    def wait(self, timeout):
        end = None if timeout is None else self.now + timeout
        while True:
            stop = self.machine.tick()
            if stop is not None:
                return self._stop(stop)
            self.now += self._tick_seconds
            if end is not None and self.now >= end:
                return None

    def detach(self):
        self.resume()
        self.close()

    def close(self):
        self.closed = True
