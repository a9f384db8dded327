"""What the name of a frame says about a stop: allocation, free, or nothing.

Names of the pool allocator of nt and of Driver Verifier's wrappers, as public symbols show them.
"""

from __future__ import annotations

import enum
import re
from typing import Iterable, Optional

from kdleak.model import HitKind

_KERNEL = frozenset({"nt", "ntoskrnl", "ntkrnlmp", "ntkrnlpa", "ntkrpamp"})
_VERIFIER = frozenset({"verifierext", "vfdrvx"})
_FRAMEWORK = frozenset({"wdf01000"})

_BREAK = re.compile(r"_?(?:Dbg(?:User)?BreakPoint|RtlpBreakPoint)\Z")
_BREAK_IN = re.compile(r"_?(?:DbgBreakPointWithStatus|RtlpBreakWithStatusInstruction)\Z")
_COLD = re.compile(r".{0,40}FNODOBFM")
_USERS = re.compile(
    r"_?Ex(?:Allocate|Free)(?:Timer|CacheAware|AutoExpand|LocallyUniqueId|Uuid|Rundown)"
)
_WRAPPER = r"(?:Ve|Vf|Verifier|IopVerifier)\w{0,24}?"
_ALLOC = re.compile(
    rf"_?(?:Ex[pi]?Allocate|ExpInsertPoolTracker|ExpPoolTrackerCharge|ExpAddTagForBigPages|"
    rf"ExInitialize\w{{0,24}}LookasideList|{_WRAPPER}Allocate|MmAllocate(?:Contiguous|NonCached)|MiAllocateContiguous)"
)
_FREE = re.compile(
    rf"_?(?:Ex[pi]?Free|ExpRemovePoolTracker|ExpPoolTrackerReturn|ExpRemoveTagForBigPages|"
    rf"ExDelete\w{{0,24}}LookasideList|{_WRAPPER}Free|MmFree(?:Contiguous|NonCached)|MiFreeContiguous)"
)
_VERIFIER_POOL = re.compile(r"_?(?:Verifier|Vf|Ve)[A-Z]\w{0,40}?(?:Pool|Alloc)")


class FrameMeaning(enum.Enum):
    """What a name says."""

    ALLOC = "alloc"
    FREE = "free"
    BREAK = "break"
    """A break instruction and nothing else: its caller decides."""
    COLD = "cold"
    """Code moved out of its function: its caller decides."""
    BREAK_IN = "break-in"
    """Where a break-in of the debugger lands."""
    OTHER = "other"

    @property
    def kind(self) -> Optional[HitKind]:
        """The kind of a hit in it, None where the name alone does not tell."""
        return {FrameMeaning.ALLOC: HitKind.ALLOC, FrameMeaning.FREE: HitKind.FREE}.get(self)

    @property
    def undecided(self) -> bool:
        """Whether the next frame has to be looked at."""
        return self in {FrameMeaning.BREAK, FrameMeaning.COLD}


def is_kernel(module: Optional[str]) -> bool:
    """Whether a module is nt under any of its names."""
    return module is not None and module.lower() in _KERNEL


def is_driver(module: Optional[str]) -> bool:
    """Whether a module is neither nt nor a layer that allocates for others.

    Wdf01000 (KMDF) and VerifierExt (Driver Verifier) are such layers.
    """
    if module is None:
        return False
    name = module.lower()
    return name not in _KERNEL and name not in _VERIFIER and name not in _FRAMEWORK


_IN_KERNEL = (
    (_BREAK, FrameMeaning.BREAK),
    (_BREAK_IN, FrameMeaning.BREAK_IN),
    (_COLD, FrameMeaning.COLD),
    (_USERS, FrameMeaning.OTHER),
    (_FREE, FrameMeaning.FREE),
    (_ALLOC, FrameMeaning.ALLOC),
)


def meaning_of(module: Optional[str], name: Optional[str]) -> FrameMeaning:
    """What ``module!name`` says about a stop."""
    if name and is_kernel(module):
        for pattern, meaning in _IN_KERNEL:
            if pattern.match(name):
                return meaning
    elif name and module and module.lower() in _VERIFIER:
        if _FREE.match(name):
            return FrameMeaning.FREE
        if _ALLOC.match(name) or _VERIFIER_POOL.match(name):
            return FrameMeaning.ALLOC
    return FrameMeaning.OTHER


def meaning_of_stack(meanings: Iterable[FrameMeaning]) -> FrameMeaning:
    """The first frame that decides, innermost first; at most four are looked at."""
    last = FrameMeaning.OTHER
    for count, meaning in enumerate(meanings):
        last = meaning
        if not meaning.undecided or count == 3:
            break
    return last
