"""Hits of a log as the hunt sees hits: the model's stack, the call site, the block where shown."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Dict, Iterable, Mapping, Optional, Sequence, Tuple

from kdleak.allocator_frames import call_site_index, frame_role
from kdleak.dialect.hit_kind import is_kernel
from kdleak.dialect.log import DebuggerLog
from kdleak.dialect.modules import ModuleList, ModuleRow
from kdleak.dialect.session import LogHit
from kdleak.dialect.stack import StackText
from kdleak.dialect.stack_model import to_model
from kdleak.model import Architecture, Frame, HitKind, Pool, Stack, StackEnd, Symbolized, SymbolKind
from kdleak.result import NO_STACK
from kdleak.tags import PROTECTED_POOL, PoolTag

_FREE = re.compile(r"(?:Verifier|Ve)?ExFreePoolWithTag\Z")
_ALLOC = re.compile(r"(?:Verifier)?ExAllocatePoolWith(?:Quota)?Tag(?:Priority)?\Z")
_POOL_TYPES = 0x1000
"""POOL_TYPE values lie below; an odd one is paged pool."""


@dataclass(frozen=True)
class LoggedHit:
    """One hit in a log; None for what the log does not tell.

    Attributes:
        number: 1 for the first in the log.
        line: number of its first line.
        kind: allocation or free.
        evidence: what the kind rests on: "stack", "label", "return address", "" for nothing.
        stack: innermost frame first; empty when none was printed. Frames without an address
            (``kc``) have 0.
        site: the first frame outside the allocator.
        processor: number of the processor.
        tag: armed at that time.
        block: address of the block, from the arguments of a 32-bit stack that carry the tag.
        requested: bytes the caller asked for, from the same.
        pool: which pool, from the same.
    """

    number: int
    line: int
    kind: Optional[HitKind]
    evidence: str
    stack: Stack
    site: Optional[Frame]
    processor: Optional[int]
    tag: Optional[PoolTag]
    block: Optional[int] = None
    requested: Optional[int] = None
    pool: Optional[Pool] = None


@dataclass(frozen=True)
class Addresses:
    """What a log tells about its addresses.

    Attributes:
        pointer_size: bytes, 4 or 8.
        names: nearest name of each address that a stack names.
        modules: from ``lm``.
    """

    pointer_size: int
    names: Mapping[int, Symbolized]
    modules: Sequence[ModuleRow]

    def symbolize(self, address: int) -> Symbolized:
        """The name of an address, as some stack of the log printed it, or its module."""
        if address in self.names:
            return self.names[address]
        for module in self.modules:
            if module.start <= address < module.end:
                offset = address - module.start
                return Symbolized(address, module.name, "", offset, SymbolKind.MODULE)
        return Symbolized(address)


def addresses_of(log: DebuggerLog) -> Addresses:
    """Pointer size, names and modules of a log."""
    size = pointer_size_of(log)
    names: Dict[int, Symbolized] = {}
    for text in log.of(StackText):
        if not text.rejected:
            for frame in to_model(text, None, size).frames[1:]:
                if frame.address and frame.symbol.module:
                    names.setdefault(frame.address, frame.symbol)
    modules = {(row.start, row.end): row for found in log.of(ModuleList) for row in found.modules}
    return Addresses(size, names, tuple(modules.values()))


def pointer_size_of(log: DebuggerLog) -> int:
    """Bytes of an address: 4 for an x86 target, else 8."""
    return 4 if log.architecture is Architecture.X86 else 8


def hits_of(log: DebuggerLog, addresses: Addresses) -> Tuple[LoggedHit, ...]:
    """Every hit of a log, in its order."""
    return tuple(_logged(hit, addresses) for hit in log.hits)


def _logged(hit: LogHit, addresses: Addresses) -> LoggedHit:
    text = hit.stack
    stack = NO_STACK
    if text is not None:
        size = addresses.pointer_size
        stack = _with_caller(to_model(text, hit.address, size), text, addresses)
    arguments = _Arguments(hit.kind, hit.tag, text) if addresses.pointer_size == 4 else None
    return LoggedHit(
        hit.number,
        hit.line,
        hit.kind,
        hit.evidence,
        stack,
        _site(stack),
        hit.cpu,
        hit.tag,
        arguments.block if arguments else None,
        arguments.requested if arguments else None,
        arguments.pool if arguments else None,
    )


def _site(stack: Stack) -> Optional[Frame]:
    """The call site; None if the stack does not reach out of the allocator."""
    if not stack.frames:
        return None
    frame = stack.frames[call_site_index(stack)]
    return None if frame_role(frame.symbol).of_allocator else frame


def _with_caller(stack: Stack, text: StackText, addresses: Addresses) -> Stack:
    """A stack cut inside the allocator (``kb 2``), with the frame its last row returns to."""
    last = next((row for row in reversed(text.frames) if not row.inline), None)
    if last is None or not last.return_address or _site(stack) is not None:
        return stack
    if stack.end is not StackEnd.DEPTH:
        return stack
    address = last.return_address & ((1 << (8 * addresses.pointer_size)) - 1)
    caller = Frame(address, 0, addresses.symbolize(address))
    return replace(stack, frames=(*stack.frames, caller))


class _Arguments:
    """Block, size and pool from the arguments of a pool routine that carry the tag hunted.

    Only on 32-bit machines, where arguments are on the stack, and only from the outermost
    routine: what the inner ones show is theirs.
    """

    def __init__(
        self, kind: Optional[HitKind], tag: Optional[PoolTag], text: Optional[StackText]
    ) -> None:
        self.block: Optional[int] = None
        self.requested: Optional[int] = None
        self.pool: Optional[Pool] = None
        if tag is None or text is None:
            return
        rows = [row for row in text.frames if is_kernel(row.module) and row.args and row.symbol]
        for row in rows:
            arguments, name = row.args or (), row.symbol or ""
            if kind is HitKind.FREE and _FREE.match(name) and _carries(arguments[1:2], tag):
                self.block = arguments[0] or None
            elif kind is HitKind.ALLOC and _ALLOC.match(name) and _carries(arguments[2:3], tag):
                self.requested = arguments[1]
                if arguments[0] < _POOL_TYPES:
                    self.pool = Pool.PAGED if arguments[0] & 1 else Pool.NONPAGED


def _carries(arguments: Iterable[int], tag: PoolTag) -> bool:
    return any((argument & ~PROTECTED_POOL) == tag.value for argument in arguments)
