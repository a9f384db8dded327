"""A tiny debuggee for tests: memory of a few pages, one context, break-in and int3 hits.

It runs in a thread over any target link. Addresses and contents are made up.
"""

from __future__ import annotations

import threading
from typing import Callable, List, Optional

from kdleak.errors import LinkLost
from kdleak.kd.packets import (
    Api,
    ControlReport,
    ExceptionRecord,
    Manipulate,
    PacketType,
    Status,
    build_exception_change,
    build_manipulate,
    context_ex_union,
    memory_union,
    parse_context_ex_union,
    parse_continue2,
    parse_manipulate,
    parse_memory_union,
)
from kdleak.kd.structures import Version, build_version

BASE = 0xFFFFF80000010000
MEMORY_SIZE = 0x3000
BREAK_PLACE = 0xFFFFF80000001000
HIT_PLACE = 0xFFFFF80000002000
RIP = slice(0xF8, 0x100)
RCX = slice(0x80, 0x88)

VERSION = Version(
    0x0F, 19045, 6, 2, 7, 0x8664, 12, 3, 0x31, 0, 0xFFFFF80000000000, 0xFFFFF80000005000, 0
)


class ScriptedTarget:
    """Runs ``serve`` until stopped; ``script`` may do things while the target runs."""

    def __init__(self, link, script: Optional[Callable[[ScriptedTarget], None]] = None) -> None:
        self.link = link
        self.memory = bytearray(bytes(range(256)) * (MEMORY_SIZE // 256))
        self.context = bytearray(0x4D0)
        self.requests: List[Manipulate] = []
        self.requests_served = 0
        self.stop_requested = threading.Event()
        self.script = script
        self.hits_due = 0
        self.refuse_context = False
        self.context_ex = True
        self.continues: List[object] = []
        self.error: Optional[BaseException] = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_requested.set()
        self.link.wake()
        self._thread.join(5)
        assert not self._thread.is_alive()
        self.link.close()
        if self.error is not None:
            raise self.error

    def kill(self) -> None:
        """Vanish as a machine without power does."""
        self.__exit__()

    def _run(self) -> None:
        try:
            while not self.stop_requested.is_set():
                self._running()
        except LinkLost:
            if not self.stop_requested.is_set():
                raise
        except BaseException as error:  # noqa: BLE001
            self.error = error

    def _running(self) -> None:
        if self.link.poll_break_in():
            self.stop(BREAK_PLACE, status=1)
        elif self.hits_due:
            self.hits_due -= 1
            self.stop(HIT_PLACE, status=0x1234)
        elif self.script is not None:
            script, self.script = self.script, None
            script(self)
        else:
            self.stop_requested.wait(0.002)

    def send(self, packet_type: int, payload: bytes) -> bool:
        return self.link.send(packet_type, payload, should_stop=self.stop_requested.is_set)

    def stop(self, place: int, status: int) -> None:
        """Stop at an int3 and serve until continued."""
        self.context[RIP] = place.to_bytes(8, "little")
        self.context[RCX] = status.to_bytes(8, "little")
        while True:
            counter = int.from_bytes(self.context[RIP], "little")
            change = build_exception_change(
                ExceptionRecord(Status.BREAKPOINT, address=counter, parameters=(0,)),
                program_counter=counter,
                control_report=ControlReport(dr7=0x400, instruction_stream=b"\xcc\xc3" + bytes(14)),
            )
            if not self.send(PacketType.STATE_CHANGE64, change):
                return
            self._serve()
            if self.stop_requested.is_set():
                return
            if int.from_bytes(self.context[RIP], "little") != place:
                return
            # Nobody moved the program counter: the same int3 is hit again.

    def _serve(self) -> None:
        while not self.stop_requested.is_set():
            packet = self.link.receive(0.5)
            if packet is None or packet.type != PacketType.STATE_MANIPULATE:
                continue
            request = parse_manipulate(packet.payload)
            self.requests.append(request)
            if request.api in (Api.CONTINUE, Api.CONTINUE2):
                self.continues.append(parse_continue2(request.union))
                return
            self.send(PacketType.STATE_MANIPULATE, self.answer(request))

    def answer(self, request: Manipulate) -> bytes:
        self.requests_served += 1
        status = 0
        union = request.union
        data = b""
        if request.api == Api.GET_VERSION:
            union = build_version(VERSION)
        elif request.api in (Api.READ_VIRTUAL, Api.READ_PHYSICAL):
            status, union, data = self._read(union)
        elif request.api == Api.WRITE_VIRTUAL:
            address, count, _ = parse_memory_union(union)
            offset = address - BASE
            if 0 <= offset <= MEMORY_SIZE - count:
                self.memory[offset : offset + count] = request.data
                union = memory_union(address, count, count)
            else:
                status = Status.UNSUCCESSFUL
                union = memory_union(address, count, 0)
        elif request.api == Api.GET_CONTEXT and not self.refuse_context:
            data = bytes(self.context)
        elif request.api == Api.SET_CONTEXT and not self.refuse_context:
            self.context[:] = request.data
        elif request.api == Api.GET_CONTEXT_EX and self.context_ex:
            offset, count, _ = parse_context_ex_union(union)
            data = bytes(self.context[offset : offset + min(count, 0x300)])
            union = context_ex_union(offset, count, len(data))
        elif request.api == Api.SET_CONTEXT_EX and self.context_ex:
            offset, count, _ = parse_context_ex_union(union)
            self.context[offset : offset + count] = request.data
        elif request.api == Api.READ_CONTROL_SPACE:
            address, count, _ = parse_memory_union(union)
            data = (0xFFFFF78000001000 + address).to_bytes(8, "little")[:count]
            union = memory_union(address, count, len(data))
        else:
            status = Status.UNSUCCESSFUL
        return build_manipulate(request.api, request.processor, union, data, status)

    def _read(self, union: bytes):
        address, count, _ = parse_memory_union(union)
        offset = address - BASE
        # As the boot debugger does: a read that touches a missing page fails as a whole.
        if offset < 0 or offset + count > MEMORY_SIZE:
            return Status.UNSUCCESSFUL, memory_union(address, count, 0), b""
        data = bytes(self.memory[offset : offset + count])
        return 0, memory_union(address, count, len(data)), data
