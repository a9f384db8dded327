"""A debuggee in simulated time: the scripted target's answers over a state machine."""

from __future__ import annotations

from typing import Callable, List, Optional

from kd_scripted_target import BREAK_PLACE, HIT_PLACE, RCX, RIP, ScriptedTarget

from kdleak.kd.packets import (
    Api,
    ControlReport,
    ExceptionRecord,
    PacketType,
    Status,
    build_exception_change,
    build_load_symbols_change,
    parse_continue2,
    parse_manipulate,
)


class Debuggee:
    """Steps whenever the network does. ``plan`` entries are sent while it runs, in order."""

    def __init__(self, machine) -> None:
        self.machine = machine
        self.body = ScriptedTarget(None)
        self.plan: List[tuple] = []
        self.running = True
        self.mute = False
        self.continues: List[object] = []
        self.answers: List[bytes] = []
        self.heard: List[object] = []
        self.filter: Optional[Callable[[object], bool]] = None
        self._place: Optional[int] = None

    @property
    def context(self) -> bytearray:
        return self.body.context

    def hit(self) -> None:
        self.plan.append(("stop", HIT_PLACE, 0x77))

    def step(self, now: float) -> None:
        reliable = self.machine.reliable
        while reliable.inbox:
            packet = reliable.inbox.popleft()
            if packet.type != PacketType.STATE_MANIPULATE:
                self.heard.append(packet)
                continue
            request = parse_manipulate(packet.payload)
            self.body.requests.append(request)
            if request.api in (Api.CONTINUE, Api.CONTINUE2):
                self.continues.append((request.api, parse_continue2(request.union)))
                self.running = True
                at_place = int.from_bytes(self.context[RIP], "little") == self._place
                if self._place is not None and at_place:
                    self.plan.insert(0, ("stop", self._place, None))
                self._place = None
            elif not self.mute and (self.filter is None or self.filter(request)):
                self.answers.append(self.body.answer(request))
        if not reliable.idle:
            return
        if self.answers:
            reliable.submit(PacketType.STATE_MANIPULATE, self.answers.pop(0), now)
        elif self.running and self.machine.break_ins:
            self.machine.break_ins -= 1
            self._stop(BREAK_PLACE, 1, now)
        elif self.running and self.plan:
            kind, *rest = self.plan.pop(0)
            if kind == "stop":
                self._stop(rest[0], rest[1], now)
            elif kind == "load":
                self.running = False
                self._place = None
                payload = build_load_symbols_change(rest[0])
                reliable.submit(PacketType.STATE_CHANGE64, payload, now)
            else:
                reliable.submit(rest[0], rest[1], now)

    def _stop(self, place: int, argument: Optional[int], now: float) -> None:
        self.running = False
        self._place = place
        self.context[RIP] = place.to_bytes(8, "little")
        if argument is not None:
            self.context[RCX] = argument.to_bytes(8, "little")
        change = build_exception_change(
            ExceptionRecord(Status.BREAKPOINT, address=place, parameters=(0,)),
            program_counter=place,
            control_report=ControlReport(dr7=0x400, instruction_stream=b"\xcc\xc3" + bytes(14)),
        )
        self.machine.reliable.submit(PacketType.STATE_CHANGE64, change, now)
