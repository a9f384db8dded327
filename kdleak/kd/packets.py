"""KD packets as both roles see them: everything a caller of the codecs needs, in one place.

A KD packet is a type and a payload; how it is framed, numbered and acknowledged is the business
of the link. The two payloads of the hot path are in ``manipulate`` and ``state_change``, the
numbers in ``constants``; the cold payloads are in ``structures``.
"""

from __future__ import annotations

from dataclasses import dataclass

from kdleak.kd.constants import (
    BREAK_IN_BYTE,
    CONTEXT_PROGRAM_COUNTER,
    CONTEXT_SIZES,
    CONTINUE_APIS,
    CONTROL_TYPES,
    DATA_TYPES,
    MANIPULATE_SIZE,
    MAX_PACKET_KDNET,
    MAX_PACKET_SERIAL,
    MAX_PAYLOAD,
    STATE_CHANGE_SIZE,
    Api,
    Machine,
    NewState,
    PacketType,
    Status,
)
from kdleak.kd.manipulate import (
    Continue2,
    Manipulate,
    build_manipulate,
    context_ex_union,
    continue2_union,
    memory_union,
    parse_context_ex_union,
    parse_continue2,
    parse_manipulate,
    parse_memory_union,
    u32_union,
)
from kdleak.kd.state_change import (
    REPORT_OFFSET,
    UNION_OFFSET,
    ControlReport,
    ExceptionRecord,
    LoadSymbols,
    StateChange,
    build_control_report,
    build_exception_change,
    build_load_symbols_change,
    build_state_change,
    parse_control_report,
    parse_state_change,
)

__all__ = [
    "Api",
    "BREAK_IN_BYTE",
    "CONTEXT_PROGRAM_COUNTER",
    "CONTEXT_SIZES",
    "CONTINUE_APIS",
    "CONTROL_TYPES",
    "Continue2",
    "ControlReport",
    "DATA_TYPES",
    "ExceptionRecord",
    "LoadSymbols",
    "MANIPULATE_SIZE",
    "MAX_PACKET_KDNET",
    "MAX_PACKET_SERIAL",
    "MAX_PAYLOAD",
    "Machine",
    "Manipulate",
    "NewState",
    "Packet",
    "PacketType",
    "REPORT_OFFSET",
    "STATE_CHANGE_SIZE",
    "StateChange",
    "Status",
    "UNION_OFFSET",
    "build_control_report",
    "build_exception_change",
    "build_load_symbols_change",
    "build_manipulate",
    "build_state_change",
    "context_ex_union",
    "continue2_union",
    "memory_union",
    "parse_context_ex_union",
    "parse_continue2",
    "parse_control_report",
    "parse_manipulate",
    "parse_memory_union",
    "parse_state_change",
    "u32_union",
]


@dataclass(frozen=True)
class Packet:
    """One KD data packet, freed from framing: ``type`` is a PacketType value."""

    type: int
    payload: bytes
