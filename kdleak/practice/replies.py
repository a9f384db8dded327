"""Answers to KD requests: the request's own record with status, union and data of the reply.

The kernel answers in the request's own buffer, so its ``Processor`` comes back as it was sent:
DbgEng asks again for ever when the reply about another processor's context carries a different
number.
"""

from __future__ import annotations

from kdleak.kd.packets import Manipulate, Status, build_manipulate, memory_union, parse_memory_union

PROCESSOR_LEVEL = 6


def reply(
    request: Manipulate, union: bytes | None = None, data: bytes = b"", status: int = 0
) -> bytes:
    """STATE_MANIPULATE payload of an answer; without ``union`` the request's goes back."""
    return build_manipulate(
        request.api,
        request.processor,
        request.union if union is None else union,
        data,
        status,
        PROCESSOR_LEVEL,
    )


def refuse(request: Manipulate) -> bytes:
    """The answer STATUS_UNSUCCESSFUL."""
    return reply(request, status=Status.UNSUCCESSFUL)


def reply_read(request: Manipulate, data: bytes) -> bytes:
    """The answer to a read: success when anything could be read."""
    address, count, _ = parse_memory_union(request.union)
    status = Status.SUCCESS if data or not count else Status.UNSUCCESSFUL
    return reply(request, memory_union(address, count, len(data)), data, status)


def reply_written(request: Manipulate, written: int) -> bytes:
    """The answer to a write: success when everything was written."""
    address, count, _ = parse_memory_union(request.union)
    status = Status.SUCCESS if written == count else Status.UNSUCCESSFUL
    return reply(request, memory_union(address, count, written), status=status)
