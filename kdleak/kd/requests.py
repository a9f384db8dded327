"""Requests to a stopped target: memory, registers, breakpoints, version.

Every request is a round trip during which the whole target stands still, so each method says
how many it costs and none adds one behind the caller's back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NoReturn

from kdleak.errors import LinkLost, ProtocolError, TargetError, TargetRestarted
from kdleak.kd.link import HostLink
from kdleak.kd.packets import (
    CONTEXT_SIZES,
    Api,
    Machine,
    Manipulate,
    NewState,
    Packet,
    PacketType,
    StateChange,
    build_manipulate,
    context_ex_union,
    memory_union,
    parse_context_ex_union,
    parse_manipulate,
    parse_memory_union,
    parse_state_change,
    u32_union,
)
from kdleak.kd.structures import Version, parse_version

PAGE = 0x1000
BREAKPOINT_HANDLES = range(1, 33)

_CONTEXT_FLAGS: dict[int, int] = {
    Machine.AMD64: 0x10001F,
    Machine.I386: 0x1003F,
    Machine.ARM64: 0x40001F,
}
_CONTEXT_SLICE = 0x400
_MEMORY_APIS = frozenset((Api.READ_VIRTUAL, Api.WRITE_VIRTUAL, Api.READ_PHYSICAL))
_UNANSWERED_ASKS = 2
_OWED_REPLY_SECONDS = 0.5


class KdRequests:
    """The requesting half of ``host.KdHost``; see there for the attributes."""

    def __init__(
        self,
        link: HostLink,
        *,
        clock: Callable[[], float] = time.perf_counter,
        request_timeout: float = 10.0,
    ) -> None:
        self.link = link
        self.requests = 0
        self.stopped = False
        self._restarted: TargetRestarted | None = None
        self.state: StateChange | None = None
        self.machine: int = Machine.AMD64
        self.unread = 0
        self.request_timeout = request_timeout
        self._clock = clock
        self._version: Version | None = None
        self._context_ex: bool | None = None
        self._context_written = False
        self._reply_owed = False

    @property
    def max_read(self) -> int:
        """Bytes per read or write request on this link."""
        return self.link.max_read

    # --- requests ---------------------------------------------------------------------------

    def get_version(self) -> Version:
        """DBGKD_GET_VERSION64 (one request). The machine it names is used from then on."""
        reply = self._request(Api.GET_VERSION)
        version = parse_version(reply.union)
        self._version = version
        if version.machine != self.machine:
            self.machine = version.machine
            if self.state is not None:
                # Its control report was read as that of another machine.
                self.state = parse_state_change(self.state.raw, self.machine)
        return version

    def read_virtual(self, address: int, size: int, processor: int | None = None) -> bytes:
        """Read virtual memory in chunks of ``max_read``; one request each.

        May return fewer bytes than asked for: it stops at the first byte that is not there, b""
        when nothing could be read.

        Args:
            address: 64-bit virtual address (sign-extended on 32-bit targets).
            size: bytes.
            processor: unused by kernels for memory; the stopped one unless given.
        """
        return self._read_on(Api.READ_VIRTUAL, address, size, processor)

    def read_virtual_once(self, address: int, size: int) -> bytes:
        """Exactly one request; b"" when it fails. May return fewer bytes, so ask for little.

        On KDNET no more than 1096 bytes come back.
        """
        return self._read_once(Api.READ_VIRTUAL, address, size, None)

    def read_physical(self, address: int, size: int) -> bytes:
        """Read physical memory, as ``read_virtual``."""
        return self._read_on(Api.READ_PHYSICAL, address, size, None)

    def _read_on(self, api: Api, address: int, size: int, processor: int | None) -> bytes:
        parts: list[bytes] = []
        end = address + size
        while address < end:
            asked = min(self.max_read, end - address)
            part = self._read_once(api, address, asked, processor)
            in_page = PAGE - address % PAGE
            if not part and asked > in_page:
                # The next page may be the one that is missing: get what is before it.
                part = self._read_once(api, address, in_page, processor)
            if not part:
                break
            parts.append(part)
            address += len(part)
        return b"".join(parts)

    def _read_once(self, api: Api, address: int, size: int, processor: int | None) -> bytes:
        reply = self._request(api, processor, memory_union(address, size))
        if not reply.succeeded:
            return b""
        _, _, actual = parse_memory_union(reply.union)
        return reply.data[: min(actual, size)]

    def write_virtual(self, address: int, data: bytes) -> int:
        """Write virtual memory, one request per ``max_read`` bytes; returns the bytes written."""
        written = 0
        while written < len(data):
            part = data[written : written + self.max_read]
            union = memory_union(address + written, len(part))
            reply = self._request(Api.WRITE_VIRTUAL, None, union, part)
            actual = parse_memory_union(reply.union)[2] if reply.succeeded else 0
            written += min(actual, len(part))
            if actual < len(part):
                break
        return written

    def read_control_space(self, processor: int, address: int, size: int) -> bytes:
        """Read control space of a processor (one request); b"" when refused.

        On AMD64 ``address`` is a selector: 0 KPCR, 1 KPRCB, 2 special registers, 3 thread; on
        x86 a byte offset into KPROCESSOR_STATE.
        """
        return self._read_once(Api.READ_CONTROL_SPACE, address, size, processor)

    def restore_breakpoints(self) -> None:
        """Remove the breakpoints of handles 1 to 32 (32 requests); refusals are normal."""
        for handle in BREAKPOINT_HANDLES:
            self._request(Api.RESTORE_BREAKPOINT, None, u32_union(handle))

    # --- registers --------------------------------------------------------------------------

    def get_context(self, processor: int) -> bytes:
        """The CONTEXT of a processor: one request, once the way the target likes is known.

        Raises:
            TargetError: the target refused both ways.
        """
        if not self._context_ex:
            flags = _CONTEXT_FLAGS.get(self.machine, 0x10001F)
            reply = self._request(Api.GET_CONTEXT, processor, u32_union(flags))
            if reply.succeeded and reply.data:
                self._context_ex = False
                return reply.data
            if self._context_ex is False:
                self._refuse(f"reading the registers of processor {processor}", reply)
        context = self._get_context_slices(processor)
        self._context_ex = True
        return context

    def _get_context_slices(self, processor: int) -> bytes:
        size = self._context_size()
        context = b""
        while len(context) < size:
            union = context_ex_union(len(context), size - len(context))
            reply = self._request(Api.GET_CONTEXT_EX, processor, union)
            copied = min(parse_context_ex_union(reply.union)[2], len(reply.data))
            if not reply.succeeded or not copied:
                self._refuse(f"reading the registers of processor {processor}", reply)
            context += reply.data[:copied]
        return context[:size]

    def set_context(self, processor: int, context: bytes) -> None:
        """Write a whole CONTEXT back: one request, more when the target wants slices.

        Raises:
            TargetError: the target refused both ways.
        """
        self._context_written = True
        if not self._context_ex:
            flags = _CONTEXT_FLAGS.get(self.machine, 0x10001F)
            reply = self._request(Api.SET_CONTEXT, processor, u32_union(flags), context)
            if reply.succeeded:
                return
        for offset in range(0, len(context), _CONTEXT_SLICE):
            part = context[offset : offset + _CONTEXT_SLICE]
            union = context_ex_union(offset, len(part), len(context))
            reply = self._request(Api.SET_CONTEXT_EX, processor, union, part)
            if not reply.succeeded:
                self._refuse(f"writing the registers of processor {processor}", reply)

    def _context_size(self) -> int:
        size = CONTEXT_SIZES.get(self.machine)
        if size is None:
            raise TargetError("reading the registers", f"unknown machine 0x{self.machine:x}")
        return size

    @staticmethod
    def _refuse(tried: str, reply: Manipulate) -> NoReturn:
        raise TargetError(tried, f"the target answered 0x{reply.status:08x}")

    # --- the link --------------------------------------------------------------------------

    def _send(self, packet_type: int, payload: bytes, timeout: float) -> None:
        self._refuse_restarted()
        try:
            self.link.send(packet_type, payload, timeout)
        except TargetRestarted as error:
            self._note_restart(error)
            raise

    def _receive(self, timeout: float | None) -> Packet | None:
        self._refuse_restarted()
        try:
            return self.link.receive(timeout)
        except TargetRestarted as error:
            self._note_restart(error)
            raise

    def _note_restart(self, error: TargetRestarted) -> None:
        self.stopped = False
        self._restarted = error

    def _refuse_restarted(self) -> None:
        """What is known of the target, addresses above all, is of a boot that is gone.

        Said again at every call until ``attach``: one caller may have taken the error for its
        own, and the next must not write to the new system what was meant for the old one.
        """
        error = self._restarted
        if error is not None:
            raise TargetRestarted(error.tried, error.came_back, error.next_step)

    # --- one request ------------------------------------------------------------------------

    def _level(self) -> int:
        return self.state.level if self.state is not None else 0

    def _require_stopped(self, tried: str) -> None:
        if not self.stopped:
            raise ProtocolError(tried, "the target is running", "break in first")

    def _request(
        self, api: Api, processor: int | None = None, union: bytes = b"", data: bytes = b""
    ) -> Manipulate:
        """Send one request and wait for its reply.

        Raises:
            ProtocolError: the target is running.
            LinkLost: no reply within the time of a request.
            TargetRestarted.
        """
        self._require_stopped(f"sending a {api.name} request")
        if processor is None:
            processor = self.state.processor if self.state is not None else 0
        payload = build_manipulate(api, processor, union, data, level=self._level())
        if self._reply_owed:
            self._discard_leftovers()
        self.requests += 1
        deadline = self._clock() + self.request_timeout
        for ask in range(_UNANSWERED_ASKS):
            if ask:
                # Acknowledged and not answered: the target took it for a repeated one.
                self.link.reset()
            remaining = max(0.1, deadline - self._clock())
            generation = self.link.generation
            self._reply_owed = True
            self._send(PacketType.STATE_MANIPULATE, payload, remaining)
            share = remaining if ask else remaining / 2
            reply = self._await_reply(api, union, self._clock() + share, generation)
            if reply is not None:
                # Asked twice, it may be answered twice.
                self._reply_owed = ask > 0
                return reply
        raise LinkLost(
            f"waiting for the reply to {api.name} on {self.link.where}",
            f"none came within {self.request_timeout:g} s",
            "check that the target still runs, then attach again",
        )

    def _discard_leftovers(self) -> None:
        """Take what a stopped target may still have for us from before off the link.

        That is the reply to a request that was interrupted, which the next one must not take
        for its own, and a state change told again after a RESET, which would pass for a new
        stop once the target runs.
        """
        wait = _OWED_REPLY_SECONDS if self._reply_owed else 0.0
        while (packet := self._receive(wait)) is not None:
            if packet.type == PacketType.STATE_MANIPULATE:
                wait = 0.0
            elif packet.type == PacketType.STATE_CHANGE64:
                self._take_state_told_again(packet)
            else:
                self._take_unasked(packet, restarts=False)
        self._reply_owed = False

    def _take_state_told_again(self, packet: Packet) -> None:
        """A state change of a target that is stopped already.

        Mostly the present one, sent again after a RESET. But a continue whose acknowledgement
        was lost may have been obeyed after all, and the target has stopped anew since: its
        registers are others now.
        """
        try:
            state = parse_state_change(packet.payload, self.machine)
        except ProtocolError:
            self.unread += 1
            return
        if state.new_state == NewState.EXCEPTION:
            if self.state is None or state.raw != self.state.raw:
                self._context_written = False
            self.state = state

    def _take_unasked(self, packet: Packet, *, restarts: bool) -> StateChange | None:
        """Serve a packet that is no reply; returns the state change when it is a stop."""
        raise NotImplementedError

    def _await_reply(
        self, api: Api, union: bytes, deadline: float, generation: int
    ) -> Manipulate | None:
        while (remaining := deadline - self._clock()) > 0:
            # In slices, to notice a new handshake, after which no reply will come.
            packet = self._receive(min(remaining, 1.0))
            if packet is None:
                if self.link.generation != generation:
                    return None
                continue
            if packet.type == PacketType.STATE_MANIPULATE:
                try:
                    reply = parse_manipulate(packet.payload)
                except ProtocolError:
                    self.unread += 1
                    continue
                if reply.api == api and (api not in _MEMORY_APIS or reply.union[:8] == union[:8]):
                    return reply
            elif packet.type == PacketType.STATE_CHANGE64:
                self._take_state_told_again(packet)
            else:
                self._take_unasked(packet, restarts=False)
        return None
