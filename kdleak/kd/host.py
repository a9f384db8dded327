"""The debugger's role above the link: attaching, stopping, resuming, serving a running target."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

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
    Api,
    Continue2,
    LoadSymbols,
    Machine,
    NewState,
    Packet,
    PacketType,
    StateChange,
    Status,
    build_manipulate,
    continue2_union,
    parse_state_change,
    u32_union,
)
from kdleak.kd.requests import KdRequests
from kdleak.kd.serving import answer_packet

MODULE_EVENTS_LIMIT = 4096

_PENDING_STOP_SECONDS = 0.3
_RESET_SECONDS = 0.6
_CONTINUE_SECONDS = 5.0
_POKING_SECONDS = 4.0


class KdHost(KdRequests):
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
        clock: Callable[[], float] = time.perf_counter,
        on_print: Callable[[str], None] | None = None,
        request_timeout: float = 10.0,
    ) -> None:
        super().__init__(link, clock=clock, request_timeout=request_timeout)
        self.module_events: list[LoadSymbols] = []
        self._on_print = on_print
        self._breaks = BreakInAccount()
        self._generation = 0

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
        self.link.connect(timeout)
        state = None
        while state is None and self._clock() < deadline:
            try:
                state = self._attach_once(deadline)
            except TargetRestarted:  # noqa: PERF203
                # While it boots, each stage is a new debuggee: go on with the one now there.
                continue
        if state is None:
            raise NoTarget(
                f"breaking into the target on {self.link.where}",
                f"it did not stop within {timeout:g} s",
                "check that it was started with kernel debugging on for this connection",
            )
        return state

    def _attach_once(self, deadline: float) -> StateChange | None:
        self._forget_target()
        self._generation = self.link.generation
        if self.link.handshakes:
            first_wait = _PENDING_STOP_SECONDS
        else:
            self.link.reset()
            first_wait = _RESET_SECONDS
        state = self._await_stop(min(deadline, self._clock() + first_wait))
        return state if state is not None else self._stop_running_target(deadline)

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
        """Send break-ins until it stops; every second try, on KDNET every third, is a RESET.

        A stopped target does not react to a break-in but to a RESET: this finds both.
        """
        self._refuse_restarted()  # a break-in would stop the new system, with nobody there
        tries = 0
        turn = 3 if self.link.handshakes else 2
        while (now := self._clock()) < deadline:
            if tries % turn == turn - 1:
                self.link.reset()
            else:
                self._breaks.sent()
                self.link.break_in()
            tries += 1
            state = self._await_stop(min(deadline, now + self.link.break_in_interval))
            if state is not None:
                return state
        return None

    @property
    def break_in_pending(self) -> bool:
        """Whether a break-in request of ours may still stop the target."""
        return self._breaks.pending

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
        self._discard_leftovers()
        self.requests += 1
        try:
            self._send(PacketType.STATE_MANIPULATE, payload, self._continue_timeout())
        except LinkLost:
            # A kernel that runs hears no packets: had only its ACK been lost, sending again could
            # never succeed. A stopped one would have acknowledged one of so many.
            if not self._is_poking():
                raise
        self.stopped = False
        self._breaks.resumed(self._clock())

    def _continue_timeout(self) -> float:
        if self.link.handshakes:
            return min(self.request_timeout, _CONTINUE_SECONDS)
        return self.request_timeout

    def _is_poking(self) -> bool:
        """Whether a KDNET target shows that it is there, whatever it does."""
        alive = self.link.alive_at
        return (
            self.link.handshakes and alive is not None and self._clock() - alive < _POKING_SECONDS
        )

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
        if packet.type == PacketType.STATE_MANIPULATE and not self.link.handshakes:
            # The answer to a debugger before us: so the target is stopped, and says where
            # when asked again.
            self.link.reset()
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
                    self._note_restart(
                        TargetRestarted(
                            f"waiting for the target on {self.link.where}",
                            "it unloaded everything and is starting again",
                            "attach again when it is up; what was changed in its memory is gone",
                        )
                    )
                    self._refuse_restarted()
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
        """What we knew of the target may be of another boot, or another machine."""
        self.stopped = False
        self._restarted = None
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
        if self.link.generation == self._generation or self.link.handshakes:
            return
        self._generation = self.link.generation
        before = self._version
        if before is not None and self.get_version() != before:
            self._note_restart(
                TargetRestarted(
                    f"waiting for the target on {self.link.where}",
                    "another kernel answers than before",
                    "attach again; what was changed in its memory is gone",
                )
            )
            self._refuse_restarted()

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
