"""Which frames belong to the pool allocator, and what a stop is.

A stop is a hit only if its top frames are in the allocator of nt. The break instruction itself
sits either in the allocator (current kernels) or in nt!DbgBreakPoint called from it (checked and
older ones); compilers move the cold block it stands in away from its function, where it shows
under the nearest name. Which names are the allocator's stands in ``dialect.hit_kind``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Optional, Sequence, Tuple

from kdleak.dialect.hit_kind import FrameMeaning, is_kernel, meaning_of
from kdleak.model import Frame, HitKind, Registers, Stack, Stop, StopKind, Symbolized
from kdleak.tags import PROTECTED_POOL, PoolTag


class FrameRole(enum.Enum):
    """What a frame is to the hunt."""

    BREAK = "break"
    COLD = "cold block"
    ALLOC = "alloc"
    FREE = "free"
    OTHER = "other"

    @property
    def of_allocator(self) -> bool:
        """Whether the call site lies further out."""
        return self is not FrameRole.OTHER


_ROLES = {
    FrameMeaning.BREAK: FrameRole.BREAK,
    FrameMeaning.COLD: FrameRole.COLD,
    FrameMeaning.ALLOC: FrameRole.ALLOC,
    FrameMeaning.FREE: FrameRole.FREE,
}


def in_kernel(symbol: Symbolized) -> bool:
    """Whether the name is one of nt's."""
    return is_kernel(symbol.module)


def frame_role(symbol: Symbolized) -> FrameRole:
    """What a frame is, from its name alone."""
    return _ROLES.get(meaning_of(symbol.module, symbol.name), FrameRole.OTHER)


class StopClass(enum.Enum):
    """What a stop is to the hunt."""

    HIT = "hit"
    BREAK_IN = "break-in"
    FOREIGN = "foreign"
    RUNNING = "running"


@dataclass(frozen=True)
class Classification:
    """A stop, judged.

    Attributes:
        what: see StopClass.
        kind: alloc or free, for a hit.
        why: for a foreign stop, one sentence that says why it is not a hit.
    """

    what: StopClass
    kind: Optional[HitKind] = None
    why: str = ""


def classify(
    stop: Stop, stack: Stack, registers: Optional[Registers], tag: Optional[PoolTag]
) -> Classification:
    """Judge a stop by its kind and its top frames.

    The innermost named allocator frame decides between alloc and free. One frame of nt with an
    unknown name on top of the allocator is accepted only when a register holds the tag, as it
    does at the comparison: symbols of moved code may name the wrong function, and an assertion
    inside the allocator's callees must not pass for a hit.

    Args:
        stop: what the engine saw.
        stack: of the processor that stopped.
        registers: of the same; None where they could not be read.
        tag: the tag armed; None when any will do (a left-over of unknown origin).
    """
    if stop.kind is StopKind.STILL_RUNNING:
        return Classification(StopClass.RUNNING)
    if stop.kind is StopKind.BREAK_IN:
        return Classification(StopClass.BREAK_IN)
    if stop.kind is not StopKind.BREAK_INSTRUCTION:
        why = f"it is not a break instruction ({stop.kind.value})"
        return Classification(StopClass.FOREIGN, why=why)
    if not stack.frames:
        return Classification(StopClass.FOREIGN, why="its stack cannot be read")
    return _classify_break(stack.frames, registers, tag)


def _classify_break(
    frames: Sequence[Frame], registers: Optional[Registers], tag: Optional[PoolTag]
) -> Classification:
    top = frames[0].symbol
    if meaning_of(top.module, top.name) is FrameMeaning.BREAK_IN:
        return Classification(StopClass.BREAK_IN)
    tag_in_register = in_kernel(top) and _holds_tag(registers, tag)
    kind = _kind_of_top(frames)
    if kind is None and tag_in_register:
        kind = _kind_of_top(frames[1:])
    if kind is not None:
        return Classification(StopClass.HIT, kind)
    why = "its top frames are not in the pool allocator"
    if tag_in_register:
        why += (
            f"; a register holds the tag '{tag}' though, so this may be a hit that the symbols of "
            "nt do not name: check that its PDB is loaded"
        )
    return Classification(StopClass.FOREIGN, why=why)


def _kind_of_top(frames: Sequence[Frame]) -> Optional[HitKind]:
    """Alloc or free, when the frames start with (break, cold block)* and an allocator frame."""
    for frame in frames[:4]:
        role = frame_role(frame.symbol)
        if role is FrameRole.ALLOC:
            return HitKind.ALLOC
        if role is FrameRole.FREE:
            return HitKind.FREE
        if role is FrameRole.OTHER:
            return None
    return None


def _holds_tag(registers: Optional[Registers], tag: Optional[PoolTag]) -> bool:
    if registers is None or tag is None:
        return False
    return any(
        (value & 0xFFFFFFFF) in (tag.value, tag.value | PROTECTED_POOL)
        for value in registers.values.values()
    )


def call_site_index(stack: Stack) -> int:
    """Index of the first frame outside the allocator; the last frame when there is none.

    A single frame of nt with an unknown name in front of the allocator's (see ``classify``) is
    skipped with them.
    """
    frames = stack.frames
    start = 0
    if (
        len(frames) > 1
        and not frame_role(frames[0].symbol).of_allocator
        and _kind_of_top(frames[1:]) is not None
    ):
        start = 1
    for index in range(start, len(frames)):
        if not frame_role(frames[index].symbol).of_allocator:
            return index
    return max(0, len(frames) - 1)


def kernel_addresses(stack: Stack, pointer_size: int) -> Tuple[int, ...]:
    """The return addresses of the kernel part of a stack: what makes two stacks the same."""
    limit = 1 << (pointer_size * 8 - 1)
    whole = tuple([frame.address for frame in stack.frames])
    if whole and min(whole) >= limit:  # as nearly always, and this is done at every hit
        return whole
    addresses = []
    for frame in stack.frames:
        if frame.address < limit:
            break
        addresses.append(frame.address)
    return tuple(addresses)
