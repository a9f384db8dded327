"""The debugger's role above the link: requests, resuming, and serving a running target.

Every request is a round trip during which the whole target stands still, so each method says
how many it costs and none adds one behind the caller's back.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import NoReturn

from kdleak.errors import (
    LinkError,
    LinkLost,
    NoTarget,
    ProtocolError,
    TargetError,
    TargetRestarted,
    format_address,
)
from kdleak.kd.break_in import BreakInAccount, points_at_break, status_of_break_in
from kdleak.kd.link import HostLink
from kdleak.kd.packets import (
    CONTEXT_PROGRAM_COUNTER,
    CONTEXT_SIZES,
    Api,
    Continue2,
    LoadSymbols,
    Machine,
    Manipulate,
    NewState,
    Packet,
    PacketType,
    StateChange,
    Status,
    build_manipulate,
    context_ex_union,
    continue2_union,
    memory_union,
    parse_context_ex_union,
    parse_manipulate,
    parse_memory_union,
    parse_state_change,
    u32_union,
)
from kdleak.kd.serving import answer_packet
from kdleak.kd.structures import Version, parse_version

PAGE = 0x1000
BREAKPOINT_HANDLES = range(1, 33)
MODULE_EVENTS_LIMIT = 4096

_PENDING_STOP_SECONDS = 0.3
_RESET_SECONDS = 0.6
_CONTEXT_FLAGS: dict[int, int] = {
    Machine.AMD64: 0x10001F,
    Machine.I386: 0x1003F,
    Machine.ARM64: 0x40001F,
}
_CONTEXT_SLICE = 0x400
_MEMORY_APIS = frozenset((Api.READ_VIRTUAL, Api.WRITE_VIRTUAL, Api.READ_PHYSICAL))
_UNANSWERED_ASKS = 2


class KdHost:
    """A debugger attached to one target over one link.

    Args:
        link: the link; this object owns it from here on.
        clock: seconds, monotonic; the one the link uses.
        on_print: called with each text the target prints.
        request_timeout: seconds a request may take in all.

    Attributes:
        requests: STATE_MANIPULATE packets sent (continues included, retransmissions not).
        module_events: images loaded and unloaded since the last ``attach``, oldest first; the
            oldest are forgotten beyond 4096.
        stopped: whether the target is stopped, as far as we know.
        state: the state change that stopped it last.
        machine: IMAGE_FILE_MACHINE_* of the target; AMD64 until ``get_version`` says otherwise.
        unread: packets dropped because they could not be understood.
        link: the link, for its statistics.
    """

    def __init__(
        self,
        link: HostLink,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_print: Callable[[str], None] | None = None,
        request_timeout: float = 10.0,
    ) -> None:
        self.link = link
        self.requests = 0
        self.module_events: list[LoadSymbols] = []
        self.stopped = False
        self.state: StateChange | None = None
        self.machine: int = Machine.AMD64
        self.unread = 0
        self.request_timeout = request_timeout
        self._clock = clock
        self._on_print = on_print
        self._version: Version | None = None
        self._breaks = BreakInAccount()
        self._context_ex: bool | None = None
        self._generation = 0
        self._context_written = False

    @property
    def max_read(self) -> int:
        """Bytes per read or write request on this link."""
        return self.link.max_read

    # --- attaching, stopping, running -------------------------------------------------------

    def attach(self, timeout: float) -> StateChange:
        """Connect, break in if the target runs, and return why it is stopped.

        May be called again after LinkLost or TargetRestarted.

        Raises:
            NoTarget: nothing answered within ``timeout`` seconds.
            WrongKey: KDNET datagrams arrived, none of them made with our key.
            LinkLost: the medium is gone.
        """
        deadline = self._clock() + timeout
        self._forget_target()
        self.link.connect(timeout)
        self._generation = self.link.generation
        if self.link.handshakes:
            state = self._await_stop(min(deadline, self._clock() + _PENDING_STOP_SECONDS))
        else:
            self.link.reset()
            state = self._await_stop(min(deadline, self._clock() + _RESET_SECONDS))
        if state is None:
            state = self._stop_running_target(deadline)
        if state is None:
            raise NoTarget(
                f"breaking into the target on {self.link.where}",
                f"it did not stop within {timeout:g} s",
                "check that it was started with kernel debugging on for this connection",
            )
        return state

    def break_in(self, timeout: float) -> StateChange:
        """Stop the running target and return its state change; a stopped one stays as it is.

        The stop may be another than the one asked for, when that came first.

        Raises:
            LinkLost: it did not stop within ``timeout`` seconds.
            TargetRestarted.
        """
        if self.stopped and self.state is not None:
            return self.state
        state = self._stop_running_target(self._clock() + timeout)
        if state is None:
            raise LinkLost(
                f"breaking into the target on {self.link.where}",
                f"it did not stop within {timeout:g} s",
                "check that it still runs; attach again",
            )
        return state

    def _stop_running_target(self, deadline: float) -> StateChange | None:
        """Send break-ins until it stops; on a byte stream every second try is a RESET instead.

        A stopped target does not react to a break-in but to a RESET: this finds both.
        """
        tries = 0
        while (now := self._clock()) < deadline:
            if tries % 2 and not self.link.handshakes:
                self.link.reset()
            else:
                self._breaks.sent()
                self.link.break_in()
            tries += 1
            state = self._await_stop(min(deadline, now + self.link.break_in_interval))
            if state is not None:
                return state
        return None

    def resume(
        self,
        status: int = Status.DBG_CONTINUE,
        trace: bool = False,
        dr7: int = 0x400,
    ) -> None:
        """Let the target run (Continue2); returns when acknowledged. One packet, no reply.

        Args:
            status: DBG_CONTINUE or DBG_EXCEPTION_NOT_HANDLED.
            trace: run one instruction only.
            dr7: debug control register to run with.

        Raises:
            LinkLost, TargetRestarted.
        """
        self._require_stopped("resuming the target")
        self._continue(Continue2(status, trace, dr7))

    def _continue(self, what: Continue2) -> None:
        processor = self.state.processor if self.state is not None else 0
        payload = build_manipulate(
            Api.CONTINUE2, processor, continue2_union(what, self.machine), level=self._level()
        )
        self.requests += 1
        self._send(PacketType.STATE_MANIPULATE, payload, self.request_timeout)
        self.stopped = False
        self._breaks.resumed(self._clock())

    def wait(self, timeout: float | None) -> StateChange | None:
        """Serve the running target until an exception stops it; None at timeout.

        Prints, prompts, file requests and module loads are answered meanwhile. A target that is
        stopped already gives its state at once.

        Raises:
            LinkLost: the medium is gone.
            TargetRestarted: it booted again, or said that it is about to.
        """
        if self.stopped:
            return self.state
        deadline = None if timeout is None else self._clock() + timeout
        while (state := self._await_stop(deadline, restarts=True)) is not None:
            self._check_same_system()
            if not self._absorb_surplus_break(state):
                return state
        return None

    def _await_stop(self, deadline: float | None, *, restarts: bool = False) -> StateChange | None:
        """Serve packets until an exception state change arrives or the deadline has passed."""
        while True:
            remaining = None if deadline is None else max(0.0, deadline - self._clock())
            packet = self._receive(remaining)
            if packet is not None:
                state = self._take_unasked(packet, restarts=restarts)
                if state is not None:
                    return state
            elif deadline is None or self._clock() >= deadline:
                return None

    def _take_unasked(self, packet: Packet, *, restarts: bool) -> StateChange | None:
        """Serve a packet that is no reply; returns the state change when it is a stop."""
        if packet.type == PacketType.STATE_CHANGE64:
            try:
                state = parse_state_change(packet.payload, self.machine)
            except ProtocolError:
                self.unread += 1
                return None
            return self._take_state_change(state, restarts=restarts)
        try:
            answer = answer_packet(packet, self._on_print)
        except ProtocolError:
            self.unread += 1
            return None
        if answer is not None:
            self._send(packet.type, answer, self.request_timeout)
        return None

    def _take_state_change(self, state: StateChange, *, restarts: bool) -> StateChange | None:
        self.state = state
        if state.new_state == NewState.EXCEPTION:
            self.stopped = True
            self._context_written = False
            self._breaks.stopped(state)
            return state
        if state.load_symbols is not None:
            self.module_events.append(state.load_symbols)
            del self.module_events[:-MODULE_EVENTS_LIMIT]
            if state.load_symbols.unload_all:
                self._send_continue()
                if restarts:
                    raise TargetRestarted(
                        f"waiting for the target on {self.link.where}",
                        "it unloaded everything and is starting again",
                        "attach again when it is up; what was changed in its memory is gone",
                    )
                return None
        self._continue(Continue2())
        return None

    def _send_continue(self) -> None:
        """The plain Continue, which answers the unload-everything form."""
        self.requests += 1
        payload = build_manipulate(Api.CONTINUE, 0, u32_union(Status.DBG_CONTINUE))
        with contextlib.suppress(LinkLost):
            # The target may be gone before it acknowledges; that is what it just told us.
            self._send(PacketType.STATE_MANIPULATE, payload, 2.0)
        self.stopped = False

    def _forget_target(self) -> None:
        self.stopped = False
        self.state = None
        self.module_events = []
        self._version = None
        self._breaks = BreakInAccount()
        self._context_ex = None
        self._context_written = False

    def _check_same_system(self) -> None:
        """After the target started its numbering anew: is it still the system we knew?

        Costs one request, and only then; KDNET tells reboots by itself.
        """
        if self.link.generation == self._generation:
            return
        self._generation = self.link.generation
        before = self._version
        if before is not None and self.get_version() != before:
            raise TargetRestarted(
                f"waiting for the target on {self.link.where}",
                "another kernel answers than before",
                "attach again; what was changed in its memory is gone",
            )

    # --- break-ins that come late -----------------------------------------------------------

    def _absorb_surplus_break(self, state: StateChange) -> bool:
        """Let the target run on when this stop is a break-in request of ours sent too often.

        Costs up to four requests, and only then. Certain only when the kernel passed the
        status of a break-in to its breakpoint; otherwise the stop is reported.
        """
        if not self._breaks.is_surplus(self._clock()):
            return False
        context = self.get_context(state.processor)
        if not status_of_break_in(self.machine, context, self.read_virtual_once):
            return False
        self.step_over_break()
        self.resume()
        return True

    def step_over_break(self) -> bool:
        """Move the program counter behind the break instruction the target stopped at.

        Does nothing when it is not at one, when it was moved already, or when the registers were
        written since the stop (by whoever moved it then). Two requests when it does something.

        Returns:
            Whether the program counter was moved.
        """
        state = self.state
        if state is None or not self.stopped or self._context_written:
            return False
        length = points_at_break(state, self.machine)
        if not length:
            return False
        context = bytearray(self.get_context(state.processor))
        offset = CONTEXT_PROGRAM_COUNTER[self.machine]
        width = 4 if self.machine == Machine.I386 else 8
        counter = int.from_bytes(context[offset : offset + width], "little") + length
        context[offset : offset + width] = (counter % (1 << 8 * width)).to_bytes(width, "little")
        self.set_context(state.processor, bytes(context))
        return True

    # --- requests ---------------------------------------------------------------------------

    def get_version(self) -> Version:
        """DBGKD_GET_VERSION64 (one request). The machine it names is used from then on."""
        reply = self._request(Api.GET_VERSION)
        version = parse_version(reply.union)
        self._version = version
        self.machine = version.machine
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
        try:
            self.link.send(packet_type, payload, timeout)
        except TargetRestarted:
            self.stopped = False
            raise

    def _receive(self, timeout: float | None) -> Packet | None:
        try:
            return self.link.receive(timeout)
        except TargetRestarted:
            self.stopped = False
            raise

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
        self.requests += 1
        deadline = self._clock() + self.request_timeout
        for ask in range(_UNANSWERED_ASKS):
            if ask:
                # Acknowledged and not answered: the target took it for a repeated one.
                self.link.reset()
            remaining = max(0.1, deadline - self._clock())
            generation = self.link.generation
            self._send(PacketType.STATE_MANIPULATE, payload, remaining)
            share = remaining if ask else remaining / 2
            reply = self._await_reply(api, union, self._clock() + share, generation)
            if reply is not None:
                return reply
        raise LinkLost(
            f"waiting for the reply to {api.name} on {self.link.where}",
            f"none came within {self.request_timeout:g} s",
            "check that the target still runs, then attach again",
        )

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
            elif packet.type != PacketType.STATE_CHANGE64:
                self._take_unasked(packet, restarts=False)
            # A state change now is the present one, sent again after a RESET.
        return None

    # --- leaving ----------------------------------------------------------------------------

    def detach(self) -> None:
        """Remove breakpoints, let a stopped target run on, close the link.

        Never raises LinkError: a target that is gone needs no farewell.
        """
        try:
            if self.stopped:
                self.restore_breakpoints()
                self.step_over_break()
                self.resume()
        except (LinkError, TargetError):
            # Nothing more can be done for it from here.
            self.stopped = False
        finally:
            self.close()

    def close(self) -> None:
        """Close the link and leave the target as it is."""
        self.link.close()

    def __repr__(self) -> str:
        at = format_address(self.state.program_counter) if self.state and self.stopped else "-"
        return f"KdHost({self.link.where}, stopped={self.stopped}, at={at})"
