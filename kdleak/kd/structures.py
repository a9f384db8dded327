"""Cold KD structures as data (construct): what travels once per session or now and then.

Sources: KD protocol, DBGKD_GET_VERSION64, DBGKD_DEBUG_IO, DBGKD_FILE_IO, DBGKD_CONTROL_REQUEST,
DBGKD_TRACE_IO; and the two payloads of the KDNET handshake.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from construct import (
    Bytes,
    Const,
    ConstructError,
    GreedyBytes,
    Int8ul,
    Int16ub,
    Int16ul,
    Int32ul,
    Int64ul,
    Padding,
    Struct,
)

from kdleak.errors import ProtocolError
from kdleak.kd.packets import Status


class DebugIoApi(enum.IntEnum):
    """ApiNumber of DBGKD_DEBUG_IO."""

    PRINT = 0x3230
    GET_STRING = 0x3231


class FileIoApi(enum.IntEnum):
    """ApiNumber of DBGKD_FILE_IO."""

    CREATE = 0x3430
    READ = 0x3431
    WRITE = 0x3432
    CLOSE = 0x3433


class ControlRequestApi(enum.IntEnum):
    """ApiNumber of DBGKD_CONTROL_REQUEST."""

    REQUEST_HARDWARE_BREAKPOINT = 0x4300
    RELEASE_HARDWARE_BREAKPOINT = 0x4301


class VersionFlag(enum.IntFlag):
    """Flags of DBGKD_GET_VERSION64."""

    MULTIPROCESSOR = 1
    DATA = 2
    POINTER64 = 4
    NO_MEMORY_MANAGER = 8
    HARDWARE_STEP = 0x10
    PARTITIONS = 0x20


GET_VERSION64 = Struct(
    "major" / Int16ul,
    "minor" / Int16ul,
    "protocol" / Int8ul,
    "secondary" / Int8ul,
    "flags" / Int16ul,
    "machine" / Int16ul,
    "max_packet_type" / Int8ul,
    "max_state_change" / Int8ul,
    "max_manipulate" / Int8ul,
    "simulation" / Int8ul,
    Padding(2),
    "kernel_base" / Int64ul,
    "loaded_module_list" / Int64ul,
    "debugger_data_list" / Int64ul,
)
"""DBGKD_GET_VERSION64, the 40-byte union of GetVersion."""

DEBUG_IO = Struct(
    "api" / Int32ul,
    "level" / Int16ul,
    "processor" / Int16ul,
    "length" / Int32ul,
    "reply_length" / Int32ul,
    "text" / GreedyBytes,
)
"""DBGKD_DEBUG_IO: ``length`` of the string or prompt, ``reply_length`` for get string."""

FILE_IO = Struct(
    "api" / Int32ul,
    "status" / Int32ul,
    "union" / Bytes(56),
    "data" / GreedyBytes,
)
"""DBGKD_FILE_IO, 0x40 bytes and the file name or data."""

FILE_IO_CREATE = Struct(
    "desired_access" / Int32ul,
    "file_attributes" / Int32ul,
    "share_access" / Int32ul,
    "disposition" / Int32ul,
    "options" / Int32ul,
    Padding(4),
    "handle" / Int64ul,
    "length" / Int64ul,
)
"""Union of a FILE_IO create."""

CONTROL_REQUEST = Struct("api" / Int32ul, "breakpoint" / Int32ul, "available" / Int32ul)
"""DBGKD_CONTROL_REQUEST."""

TRACE_IO = Struct(
    "api" / Int32ul,
    "level" / Int16ul,
    "processor" / Int16ul,
    "length" / Int32ul,
    "data" / GreedyBytes,
)
"""DBGKD_TRACE_IO."""

POKE = Struct(
    Const(b"\x01\x01"),
    "nonce" / Bytes(32),
    "target_address" / Bytes(16),
    "target_port" / Int16ub,
    "host_address" / Bytes(16),
    "host_port" / Int16ub,
    "debugger_address" / Bytes(16),
    "debugger_port" / Int16ub,
    Padding(256),
)
"""KDNET, target to host: 344 bytes. Addresses are IPv6 or IPv4-mapped IPv6."""

RESPONSE = Struct(
    Const(b"\x01\x02"), "client_nonce" / Bytes(32), "host_nonce" / Bytes(32), Padding(256)
)
"""KDNET, host to target: 322 bytes. The whole of it goes into the data key."""


def parse_structure(structure: Any, name: str, raw: bytes) -> Any:  # noqa: ANN401
    """Parse ``raw`` with a structure of this module.

    Raises:
        ProtocolError: the bytes do not fit the structure.
    """
    try:
        return structure.parse(raw)
    except ConstructError as error:
        raise ProtocolError(
            f"decoding {name}",
            f"{len(raw)} bytes that do not fit",
            "the packet was dropped; try again",
        ) from error


@dataclass(frozen=True)
class Version:
    """DBGKD_GET_VERSION64, the answer to GetVersion.

    Attributes:
        major: low byte 0x0F free or 0x0C checked; high byte the kind of debuggee, 0 for NT.
        minor: Windows build number.
        flags: ``VersionFlag`` bits.
        machine: IMAGE_FILE_MACHINE_* number.
        max_manipulate: number of manipulate apis counted from 0x3130.
        kernel_base, loaded_module_list, debugger_data_list: 64-bit addresses (sign-extended on
            32-bit targets).
    """

    major: int
    minor: int
    protocol: int
    secondary: int
    flags: int
    machine: int
    max_packet_type: int
    max_state_change: int
    max_manipulate: int
    simulation: int
    kernel_base: int
    loaded_module_list: int
    debugger_data_list: int

    @property
    def build(self) -> int:
        """Windows build number."""
        return self.minor

    @property
    def debuggee_kind(self) -> int:
        """0 for NT, 4 for a boot application."""
        return self.major >> 8


def parse_version(union: bytes) -> Version:
    """Decode the union of a GetVersion reply.

    Raises:
        ProtocolError: shorter than 40 bytes.
    """
    fields = parse_structure(GET_VERSION64, "a GetVersion reply", union)
    return Version(**{name: fields[name] for name in Version.__dataclass_fields__})


def build_version(version: Version) -> bytes:
    """Encode the 40-byte union of a GetVersion reply (target role)."""
    fields = {name: getattr(version, name) for name in Version.__dataclass_fields__}
    return bytes(GET_VERSION64.build(fields))


def build_print(text: bytes, processor: int = 0, level: int = 0) -> bytes:
    """DEBUG_IO payload that prints ``text`` on the debugger (target role)."""
    return bytes(
        DEBUG_IO.build(
            {
                "api": DebugIoApi.PRINT,
                "level": level,
                "processor": processor,
                "length": len(text),
                "reply_length": 0,
                "text": text,
            }
        )
    )


def build_get_string(prompt: bytes, maximum: int, processor: int = 0, level: int = 0) -> bytes:
    """DEBUG_IO payload that asks the debugger for a line of at most ``maximum`` bytes."""
    return bytes(
        DEBUG_IO.build(
            {
                "api": DebugIoApi.GET_STRING,
                "level": level,
                "processor": processor,
                "length": len(prompt),
                "reply_length": maximum,
                "text": prompt,
            }
        )
    )


def build_get_string_reply(line: bytes, processor: int = 0, level: int = 0) -> bytes:
    """The host's answer to a get string request."""
    return bytes(
        DEBUG_IO.build(
            {
                "api": DebugIoApi.GET_STRING,
                "level": level,
                "processor": processor,
                "length": 0,
                "reply_length": len(line),
                "text": line,
            }
        )
    )


def build_file_io_refusal(api: int, status: int = Status.NO_SUCH_FILE) -> bytes:
    """The host's answer that declines a FILE_IO request, 0x40 bytes."""
    return bytes(FILE_IO.build({"api": api, "status": status, "union": bytes(56), "data": b""}))
