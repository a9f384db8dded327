"""Numbers of the KD protocol: packet types, apis, states, machines, limits."""

from __future__ import annotations

import enum


class PacketType(enum.IntEnum):
    """Packet types of the KD protocol; 4, 5 and 6 are control packets without payload."""

    UNUSED = 0
    STATE_CHANGE32 = 1
    STATE_MANIPULATE = 2
    DEBUG_IO = 3
    ACKNOWLEDGE = 4
    RESEND = 5
    RESET = 6
    STATE_CHANGE64 = 7
    POLL_BREAKIN = 8
    TRACE_IO = 9
    CONTROL_REQUEST = 10
    FILE_IO = 11


CONTROL_TYPES = frozenset((PacketType.ACKNOWLEDGE, PacketType.RESEND, PacketType.RESET))
DATA_TYPES = frozenset(PacketType) - CONTROL_TYPES - {PacketType.UNUSED}


class Api(enum.IntEnum):
    """ApiNumber of DBGKD_MANIPULATE_STATE64."""

    READ_VIRTUAL = 0x3130
    WRITE_VIRTUAL = 0x3131
    GET_CONTEXT = 0x3132
    SET_CONTEXT = 0x3133
    WRITE_BREAKPOINT = 0x3134
    RESTORE_BREAKPOINT = 0x3135
    CONTINUE = 0x3136
    READ_CONTROL_SPACE = 0x3137
    WRITE_CONTROL_SPACE = 0x3138
    READ_IO_SPACE = 0x3139
    WRITE_IO_SPACE = 0x313A
    REBOOT = 0x313B
    CONTINUE2 = 0x313C
    READ_PHYSICAL = 0x313D
    WRITE_PHYSICAL = 0x313E
    QUERY_SPECIAL_CALLS = 0x313F
    SET_SPECIAL_CALL = 0x3140
    CLEAR_SPECIAL_CALLS = 0x3141
    SET_INTERNAL_BREAKPOINT = 0x3142
    GET_INTERNAL_BREAKPOINT = 0x3143
    READ_IO_SPACE_EXTENDED = 0x3144
    WRITE_IO_SPACE_EXTENDED = 0x3145
    GET_VERSION = 0x3146
    WRITE_BREAKPOINT_EX = 0x3147
    RESTORE_BREAKPOINT_EX = 0x3148
    CAUSE_BUG_CHECK = 0x3149
    SWITCH_PROCESSOR = 0x3150
    PAGE_IN = 0x3151
    READ_MSR = 0x3152
    WRITE_MSR = 0x3153
    SEARCH_MEMORY = 0x3156
    GET_BUS_DATA = 0x3157
    SET_BUS_DATA = 0x3158
    CHECK_LOW_MEMORY = 0x3159
    CLEAR_ALL_INTERNAL_BREAKPOINTS = 0x315A
    FILL_MEMORY = 0x315B
    QUERY_MEMORY = 0x315C
    SWITCH_PARTITION = 0x315D
    GET_CONTEXT_EX = 0x315F
    SET_CONTEXT_EX = 0x3160


CONTINUE_APIS = frozenset((Api.CONTINUE, Api.CONTINUE2))


class Machine(enum.IntEnum):
    """IMAGE_FILE_MACHINE_* of the targets we know."""

    I386 = 0x014C
    ARM = 0x01C4
    AMD64 = 0x8664
    ARM64 = 0xAA64


class Status(enum.IntEnum):
    """NTSTATUS values used on the wire."""

    SUCCESS = 0
    BREAKPOINT = 0x80000003
    SINGLE_STEP = 0x80000004
    UNSUCCESSFUL = 0xC0000001
    NO_SUCH_FILE = 0xC000000F
    ASSERTION_FAILURE = 0xC0000420
    DBG_CONTINUE = 0x00010002
    DBG_EXCEPTION_NOT_HANDLED = 0x80010001


class NewState(enum.IntEnum):
    """NewState of DBGKD_ANY_WAIT_STATE_CHANGE, without the alternate flag 0x10000."""

    EXCEPTION = 0x3030
    LOAD_SYMBOLS = 0x3031
    COMMAND_STRING = 0x3032


BREAK_IN_BYTE = b"b"
"""0x62 outside a packet asks the target to break in."""

MAX_PACKET_SERIAL = 4000
MAX_PACKET_KDNET = 1152
MAX_PAYLOAD = 0x2000
"""Bytes of payload we accept; the nominal limits are exceeded by replies with a context."""

MANIPULATE_SIZE = 56
STATE_CHANGE_SIZE = 0xF0
CONTEXT_SIZES: dict[int, int] = {Machine.AMD64: 0x4D0, Machine.I386: 0x2CC, Machine.ARM64: 0x390}
CONTEXT_PROGRAM_COUNTER: dict[int, int] = {
    Machine.AMD64: 0xF8,
    Machine.I386: 0xB8,
    Machine.ARM64: 0x108,
}
"""Byte offset of Rip, Eip or Pc in CONTEXT."""
