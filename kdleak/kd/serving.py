"""What a debugger answers to packets the target sends of its own accord."""

from __future__ import annotations

from collections.abc import Callable

from kdleak.kd.packets import Packet, PacketType
from kdleak.kd.structures import (
    DEBUG_IO,
    FILE_IO,
    DebugIoApi,
    build_file_io_refusal,
    build_get_string_reply,
    parse_structure,
)


def answer_packet(packet: Packet, on_print: Callable[[str], None] | None) -> bytes | None:
    """The payload to send back (with the packet's own type), None when the ACK is enough.

    Prints go to ``on_print``; a prompt gets an empty line, because an unanswered one hangs the
    target; files are declined; the rest (trace data, debug register requests, break-in polls, late
    replies) needs nothing.

    Raises:
        ProtocolError: the payload does not have the form of its type.
    """
    if packet.type == PacketType.DEBUG_IO:
        return _answer_debug_io(packet.payload, on_print)
    if packet.type == PacketType.FILE_IO:
        request = parse_structure(FILE_IO, "a FILE_IO packet", packet.payload)
        return build_file_io_refusal(request.api)
    return None


def _answer_debug_io(payload: bytes, on_print: Callable[[str], None] | None) -> bytes | None:
    request = parse_structure(DEBUG_IO, "a DEBUG_IO packet", payload)
    if on_print is not None:
        # The code page of the target is not told; Latin-1 keeps every byte.
        on_print(request.text[: request.length].decode("latin-1"))
    if request.api == DebugIoApi.GET_STRING:
        return build_get_string_reply(b"", request.processor, request.level)
    return None
