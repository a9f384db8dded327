"""Hit or not, alloc or free, and the call site: from names alone."""

from __future__ import annotations

from typing import Optional

import pytest
from hunt_fakes import LEAK, stack

from kdleak.allocator_frames import (
    FrameRole,
    StopClass,
    call_site_index,
    classify,
    frame_role,
    kernel_addresses,
)
from kdleak.model import (
    Frame,
    HitKind,
    Registers,
    Stack,
    Stop,
    StopKind,
    Symbolized,
)

BREAK = Stop(StopKind.BREAK_INSTRUCTION)
NO_TAG = Registers({"rbx": 1})
WITH_TAG = Registers({"rbx": 0xFFFFF80000000000 | LEAK.value})
COLD = "nt! ?? ::FNODOBFM::`string'+f120"

HITS = [
    (
        HitKind.ALLOC,
        [
            "nt!ExAllocateHeapPool+5",
            "nt!ExpAllocatePoolWithTagFromNode+4",
            "nt!ExAllocatePool2+6e",
            "drv!F+1",
        ],
        "drv!F+1",
    ),
    (
        HitKind.ALLOC,
        ["nt!ExAllocatePoolWithTag+135", "nt!ObpAllocateObject+f9"],
        "nt!ObpAllocateObject+f9",
    ),
    (
        HitKind.ALLOC,
        [
            "nt!DbgBreakPoint",
            "nt!ExpInsertPoolTracker+9b",
            "nt!ExAllocatePoolWithTag+164",
            "drv!F+1",
        ],
        "drv!F+1",
    ),
    (HitKind.ALLOC, ["nt!DbgUserBreakPoint", "nt!ExAllocatePoolWithTag+a0e", "drv!F+1"], "drv!F+1"),
    (HitKind.ALLOC, [COLD, "nt!ExAllocatePoolWithQuotaTag+4", "drv!F+1"], "drv!F+1"),
    (
        HitKind.ALLOC,
        [
            "nt!ExAllocateHeapPool+5",
            "nt!ExAllocatePoolWithTag+4",
            "nt!VeAllocatePoolWithTagPriority+2d1",
            "nt!VerifierExAllocatePoolWithTag+5",
            "drv!F+1",
        ],
        "drv!F+1",
    ),
    (
        HitKind.ALLOC,
        [
            "nt!ExAllocateContiguousHeapPool+5",
            "nt!MiAllocateContiguousMemory+4",
            "nt!MmAllocateContiguousNodeMemory+4",
            "drv!F+1",
        ],
        "drv!F+1",
    ),
    (
        HitKind.ALLOC,
        [
            "nt!ExAllocateHeapPool+5",
            "nt!ExAllocatePoolWithTag+4",
            "nt!IopVerifierExAllocatePoolWithQuota+5",
            "VerifierExt!ViAllocate+1",
        ],
        "VerifierExt!ViAllocate+1",
    ),
    (HitKind.FREE, ["nt!ExFreeHeapPool+3a2", "nt!ExFreePoolWithTag+7", "drv!F+1"], "drv!F+1"),
    (HitKind.FREE, ["nt!ExFreeHeapPool+3a2", "nt!ExFreePool+9", "drv!F+1"], "drv!F+1"),
    (HitKind.FREE, ["nt!ExFreeLargePool+3a2", "nt!ExFreePoolWithTag+7", "drv!F+1"], "drv!F+1"),
    (
        HitKind.FREE,
        [
            "nt!DbgBreakPoint",
            "nt!ExpRemovePoolTracker+69",
            "nt!ExFreePoolWithTag+449",
            "nt!ObpDeallocateObject+14e",
        ],
        "nt!ObpDeallocateObject+14e",
    ),
    (HitKind.FREE, [COLD, "nt!ExFreePoolWithTag+7", "drv!F+1"], "drv!F+1"),
    # A function named like the allocator that only uses it is a caller.
    (
        HitKind.FREE,
        [
            "nt!ExFreeHeapPool+1",
            "nt!ExFreePoolWithTag+7",
            "nt!ExFreeCacheAwareRundownProtection+2",
            "drv!F+1",
        ],
        "nt!ExFreeCacheAwareRundownProtection+2",
    ),
]


@pytest.mark.parametrize(("kind", "names", "site"), HITS)
def test_hits(kind: HitKind, names, site: str) -> None:
    frames = stack(*names)
    judged = classify(BREAK, frames, NO_TAG, LEAK)
    assert (judged.what, judged.kind) == (StopClass.HIT, kind)
    assert frames.frames[call_site_index(frames)] == stack(site).frames[0]


@pytest.mark.parametrize(
    "names",
    [
        ["drv!Assert+1", "drv!F+1"],
        ["nt!DbgBreakPoint", "drv!F+1", "nt!ExAllocatePoolWithTag+5"],
        ["nt!DbgBreakPoint"],
        [COLD],
        [COLD, "drv!F+1"],
        # An assertion of a checked allocator: its own report routine lies in between.
        ["nt!DbgBreakPoint", "nt!RtlAssert+9", "nt!ExAllocatePoolWithTag+5", "drv!F+1"],
        # Somebody else's function of the same name.
        ["drv!ExAllocatePoolWithTag+1", "drv!F+1"],
        ["nt!ExAllocateTimer+1", "drv!F+1"],
        ["nt!RtlpHpAllocate+1", "nt!ExAllocateHeapPool+5", "drv!F+1"],
    ],
)
def test_foreign_breaks(names) -> None:
    judged = classify(BREAK, stack(*names), NO_TAG, LEAK)
    assert judged.what is StopClass.FOREIGN
    assert judged.why


def test_a_moved_block_under_a_wrong_name_needs_the_tag_in_a_register() -> None:
    frames = stack("nt!SomethingElse+8123", "nt!ExAllocatePoolWithTag+5", "drv!F+1")
    assert classify(BREAK, frames, NO_TAG, LEAK).what is StopClass.FOREIGN
    assert classify(BREAK, frames, None, LEAK).what is StopClass.FOREIGN
    judged = classify(BREAK, frames, WITH_TAG, LEAK)
    assert (judged.what, judged.kind) == (StopClass.HIT, HitKind.ALLOC)
    assert str(frames.frames[call_site_index(frames)].symbol) == "drv!F+0x1"


def test_a_foreign_break_with_the_tag_in_a_register_hints_at_symbols() -> None:
    judged = classify(BREAK, stack("nt!SomethingElse+8123", "drv!F+1"), WITH_TAG, LEAK)
    assert judged.what is StopClass.FOREIGN
    assert "PDB" in judged.why


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (StopKind.BUG_CHECK, StopClass.FOREIGN),
        (StopKind.EXCEPTION, StopClass.FOREIGN),
        (StopKind.SINGLE_STEP, StopClass.FOREIGN),
        (StopKind.BREAK_IN, StopClass.BREAK_IN),
        (StopKind.STILL_RUNNING, StopClass.RUNNING),
    ],
)
def test_other_stops_are_judged_by_their_kind(kind: StopKind, what: StopClass) -> None:
    frames = stack("nt!ExAllocateHeapPool+5", "drv!F+1")
    assert classify(Stop(kind), frames, WITH_TAG, LEAK).what is what


@pytest.mark.parametrize(
    "name", ["nt!DbgBreakPointWithStatus", "nt!RtlpBreakWithStatusInstruction"]
)
def test_a_break_in_reported_as_a_break_instruction(name: str) -> None:
    frames = stack(name, "nt!KdCheckForDebugBreak+1")
    assert classify(BREAK, frames, NO_TAG, LEAK).what is StopClass.BREAK_IN


def test_no_stack_is_no_hit() -> None:
    assert classify(BREAK, Stack(()), WITH_TAG, LEAK).what is StopClass.FOREIGN


def test_a_stack_of_nothing_but_the_allocator_is_called_from_its_end() -> None:
    frames = stack("nt!ExAllocateHeapPool+5", "nt!ExAllocatePool2+6e")
    assert call_site_index(frames) == 1


@pytest.mark.parametrize(
    ("module", "name", "role"),
    [
        ("NT", "ExFreePool2", FrameRole.FREE),
        ("ntkrnlmp", "ExAllocatePool3", FrameRole.ALLOC),
        ("nt", "ExFreeToLookasideListEx", FrameRole.FREE),
        ("nt", "ExAllocateFromLookasideListEx", FrameRole.ALLOC),
        ("nt", "ExpPoolTrackerChargeEntry", FrameRole.ALLOC),
        ("nt", "ExAcquireFastMutex", FrameRole.OTHER),
        ("nt", "", FrameRole.OTHER),
        ("", "", FrameRole.OTHER),
        ("VerifierExt", "VerifierExFreePoolWithTag", FrameRole.FREE),
    ],
)
def test_roles(module: str, name: str, role: FrameRole) -> None:
    assert frame_role(Symbolized(1, module, name)) is role


def frames_at(*addresses: int) -> Stack:
    return Stack(tuple(Frame(address, 0, Symbolized(address)) for address in addresses))


@pytest.mark.parametrize(
    ("pointer_size", "addresses", "kept"),
    [
        (8, [0xFFFFF80000000001, 0xFFFFF80000000002, 0x7FFE0000, 0xFFFFF80000000003], 2),
        (4, [0x80500000, 0xF7D7E000, 0x7C900000], 2),
        (4, [0xFFFFFFFF80500000], 1),
        (8, [0x1000], 0),
    ],
)
def test_the_user_part_does_not_tell_stacks_apart(pointer_size: int, addresses, kept: int) -> None:
    assert kernel_addresses(frames_at(*addresses), pointer_size) == tuple(addresses[:kept])


def test_every_frame_helper_survives_an_unnamed_stack() -> None:
    frames: Optional[Stack] = frames_at(0xFFFFF80000000001, 0xFFFFF80000000002)
    assert frames is not None
    assert call_site_index(frames) == 0
