"""Routines that take a pool tag, and which argument it is.

Signatures: Microsoft's reference pages of wdm.h, ntifs.h, ndis.h, fltkernel.h, storport.h, video.h
and winddi.h. Argument numbers count from 1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class Routine:
    """A routine that is given a tag.

    Attributes:
        name: as it is exported.
        argument: number of the tag among the arguments; 0 where it lies in a structure that the
            routine is given, so that a place near the call is all that can be told.
        frees: it gives memory back.
        wide_before: arguments before the tag that are 64 bits wide on 32-bit targets, too.
    """

    name: str
    argument: int
    frees: bool = False
    wide_before: int = 0


_BY_NAME = {
    routine.name: routine
    for routine in (
        # ntoskrnl
        Routine("ExAllocatePoolWithTag", 3),
        Routine("ExAllocatePool2", 3, wide_before=1),
        Routine("ExAllocatePool3", 3, wide_before=1),
        Routine("ExAllocatePoolWithQuotaTag", 3),
        Routine("ExAllocatePoolWithTagPriority", 3),
        Routine("ExAllocatePoolZero", 3),
        Routine("ExAllocatePoolUninitialized", 3),
        Routine("ExAllocatePoolQuotaZero", 3),
        Routine("ExAllocatePoolQuotaUninitialized", 3),
        Routine("ExAllocatePoolPriorityZero", 3),
        Routine("ExAllocatePoolPriorityUninitialized", 3),
        Routine("ExFreePoolWithTag", 2, frees=True),
        Routine("ExFreePool2", 2, frees=True),
        Routine("ExInitializeNPagedLookasideList", 6),
        Routine("ExInitializePagedLookasideList", 6),
        Routine("ExInitializeLookasideListEx", 7),
        Routine("ExAllocateCacheAwareRundownProtection", 2),
        Routine("FsRtlAllocatePoolWithTag", 3),
        Routine("FsRtlAllocatePoolWithQuotaTag", 3),
        Routine("FsRtlAllocateExtraCreateParameter", 5),
        Routine("FsRtlInitExtraCreateParameterLookasideList", 4),
        # ntoskrnl, not exported: named by its PDB only
        Routine("ExAllocateHeapPool", 3),
        Routine("ExpAllocatePoolWithTagFromNode", 3),
        Routine("MiAllocatePool", 3),
        Routine("CmpAllocatePoolWithTag", 3),
        # ndis
        Routine("NdisAllocateMemoryWithTag", 3),
        Routine("NdisAllocateMemoryWithTagPriority", 3),
        Routine("NdisFreeMemoryWithTag", 2, frees=True),
        Routine("NdisFreeMemoryWithTagPriority", 3, frees=True),
        Routine("NdisInitializeNPagedLookasideList", 6),
        Routine("NdisAllocateCloneOidRequest", 3),
        Routine("NdisAllocateNetBufferListPool", 0),
        Routine("NdisAllocateNetBufferPool", 0),
        Routine("NdisAllocateGenericObject", 2),
        # fltmgr
        Routine("FltAllocatePoolAlignedWithTag", 4),
        Routine("FltFreePoolAlignedWithTag", 3, frees=True),
        Routine("FltAllocateExtraCreateParameter", 6),
        Routine("FltInitExtraCreateParameterLookasideList", 5),
        # storport: StorPortAllocatePool is an inline over this one
        Routine("StorPortExtendedFunction", 4),
        # videoprt, win32k
        Routine("VideoPortAllocatePool", 4),
        Routine("EngAllocMem", 3),
        Routine("EngAllocUserMem", 2),
        Routine("Win32AllocPool", 2),
        Routine("Win32AllocPoolZInit", 2),
    )
}

ROUTINE_NAMES = tuple(_BY_NAME)
"""All of them."""

INTERNAL = (
    "ExAllocateHeapPool",
    "ExpAllocatePoolWithTagFromNode",
    "MiAllocatePool",
    "CmpAllocatePoolWithTag",
)
"""Routines of nt that only its PDB names."""

PROVIDERS = frozenset(
    {"nt", "ndis", "fltmgr", "storport", "videoprt", "win32k", "win32kbase", "win32kfull"}
)
"""Modules, in lower case, that offer such routines."""

WDF_MEMORY_CREATE = 192
"""Place of WdfMemoryCreate in the KMDF function table (WdfFunctions_*), the same since 1.0."""
WDF_MEMORY_CREATE_TAG = 4
"""Its tag: after the driver's globals, attributes and pool type."""

_WRAPPER = re.compile(r"(?:Vf|Verifier|IopVerifier)(?=Ex[AFI])")
_STDCALL = re.compile(r"[_@]([A-Za-z]\w*)@\d+\Z")
_LIKE_ALLOCATOR = re.compile(r"(?i)(?:alloc|free)\w*(?:pool|mem|tag)|pool\w*(?:alloc|free)")


def routine_named(name: str) -> Optional[Routine]:
    """The routine of a name, without decoration or Driver Verifier's prefix; None for others."""
    decorated = _STDCALL.match(name)
    if decorated:
        name = decorated.group(1)
    return _BY_NAME.get(name) or _BY_NAME.get(_WRAPPER.sub("", name))


def like_allocator(name: str) -> bool:
    """Whether a name reads like an allocator's or a wrapper's (``AllocatePool``, ``FreeMem``)."""
    return len(name) <= 0x100 and _LIKE_ALLOCATOR.search(name) is not None
