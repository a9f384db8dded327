"""Value types shared by every floor. Addresses are ``int``, sizes are bytes, times are seconds."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Dict, Mapping, Optional, Tuple

from kdleak.errors import format_address
from kdleak.tags import PoolTag


class Architecture(enum.Enum):
    """Machine of the target; the value is WinDbg's name for it."""

    X86 = "x86"
    X64 = "x64"
    ARM64 = "arm64"


class Pool(enum.Enum):
    """The two pools that the tag tables count apart."""

    NONPAGED = "nonpaged"
    PAGED = "paged"


@dataclass(frozen=True)
class TargetInfo:
    """What is under the debugger.

    Attributes:
        architecture: machine of the target.
        pointer_size: bytes, 4 or 8.
        build: Windows build number (19045, 26100, ...).
        live: True for a running machine, False for a dump.
        processors: logical processors, 0 where unknown.
        kernel_base: load address of nt.
        description: one line for people.
    """

    architecture: Architecture
    pointer_size: int
    build: int
    live: bool
    processors: int
    kernel_base: int
    description: str = ""


@dataclass(frozen=True)
class PoolCounters:
    """Counters of one tag in one pool, as read; all processors summed.

    Attributes:
        allocs: allocations since boot.
        frees: frees since boot.
        bytes: bytes outstanding.
    """

    allocs: int = 0
    frees: int = 0
    bytes: int = 0

    @property
    def outstanding(self) -> int:
        """Blocks allocated and not freed."""
        return self.allocs - self.frees


@dataclass(frozen=True)
class TagUsage:
    """One tag's row of a snapshot."""

    tag: PoolTag
    nonpaged: PoolCounters = PoolCounters()
    paged: PoolCounters = PoolCounters()

    def of(self, pool: Pool) -> PoolCounters:
        """The counters of one pool."""
        return self.nonpaged if pool is Pool.NONPAGED else self.paged

    @property
    def bytes(self) -> int:
        """Bytes outstanding in both pools."""
        return self.nonpaged.bytes + self.paged.bytes

    @property
    def outstanding(self) -> int:
        """Blocks outstanding in both pools."""
        return self.nonpaged.outstanding + self.paged.outstanding


@dataclass(frozen=True)
class PoolSnapshot:
    """Usage of every tag at one moment.

    Attributes:
        taken_at: seconds on the host's monotonic clock; only differences mean something.
        rows: one per tag, ordered by tag value.
        source: how the figures were obtained ("tag tables of 2 processors", or the commands).
        gaps: what could not be read, in words; empty when the snapshot is complete.
        outstanding_only: the source shows only what is outstanding (``!poolused`` without its
            verbose bit): ``allocs`` of every row is that number then, and ``frees`` 0.
    """

    taken_at: float
    rows: Tuple[TagUsage, ...]
    source: str
    gaps: Tuple[str, ...] = ()
    outstanding_only: bool = False

    def find(self, tag: PoolTag) -> Optional[TagUsage]:
        """The row of a tag, or None."""
        for row in self.rows:
            if row.tag == tag:
                return row
        return None


class SymbolKind(enum.Enum):
    """Where a name came from, best first; weaker kinds may name the wrong function."""

    PDB = "pdb"
    EXPORT = "export"
    MODULE = "module"
    NONE = "none"


@dataclass(frozen=True)
class Symbolized:
    """The nearest known name below an address.

    Attributes:
        address: the address asked about.
        module: name of the module as WinDbg shows it ("nt", "leakdrv"), "" when in none.
        name: name of the symbol, "" when only the module is known.
        offset: bytes from the symbol (or from the module base when there is no symbol).
        kind: what the name rests on.
    """

    address: int
    module: str = ""
    name: str = ""
    offset: int = 0
    kind: SymbolKind = SymbolKind.NONE

    def __str__(self) -> str:
        if not self.module:
            return format_address(self.address)
        head = f"{self.module}!{self.name}" if self.name else self.module
        return f"{head}+0x{self.offset:x}" if self.offset else head


@dataclass(frozen=True)
class Module:
    """A loaded image.

    Attributes:
        name: as WinDbg shows it: file name without extension, "nt" for the kernel.
        base: load address.
        size: bytes of address space.
        file_name: as the target names it ("ntkrnlmp.exe").
        timestamp: TimeDateStamp of the PE header, 0 where unknown.
        path: full path in the target, "" where unknown.
    """

    name: str
    base: int
    size: int
    file_name: str
    timestamp: int = 0
    path: str = ""

    def __contains__(self, address: int) -> bool:
        return self.base <= address < self.base + self.size


@dataclass(frozen=True)
class Frame:
    """One frame of a stack.

    Attributes:
        address: the instruction of the first frame; the return address in each later one.
        stack_pointer: value of the stack pointer in that frame (0 where unknown).
        symbol: the nearest name.
    """

    address: int
    stack_pointer: int
    symbol: Symbolized


class StackEnd(enum.Enum):
    """Why a stack ends where it does."""

    COMPLETE = "complete"
    DEPTH = "depth limit"
    UNREADABLE = "unreadable memory"
    NO_UNWIND_DATA = "no unwind data"
    USER_MODE = "user mode"
    IMPLAUSIBLE = "implausible frame"


@dataclass(frozen=True)
class Stack:
    """A call stack, innermost frame first."""

    frames: Tuple[Frame, ...]
    end: StackEnd = StackEnd.COMPLETE

    def __bool__(self) -> bool:
        return bool(self.frames)

    def __str__(self) -> str:
        return "\n".join(str(frame.symbol) for frame in self.frames)


NO_STACK = Stack(())


class StopKind(enum.Enum):
    """Why the target is stopped, as far as the engine can tell by itself."""

    BREAK_INSTRUCTION = "break instruction"
    """A break instruction in the target's own code: a hit, an assertion, somebody's breakpoint."""
    BREAK_IN = "break-in"
    """The stop we asked for."""
    BUG_CHECK = "bug check"
    SINGLE_STEP = "single step"
    EXCEPTION = "exception"
    STILL_RUNNING = "still running"
    """No stop at all: the time given to ``resume`` is over and the target runs."""


@dataclass(frozen=True)
class Stop:
    """What ended (or did not end) a resume.

    Attributes:
        kind: see StopKind.
        program_counter: address of the instruction the target stopped at.
        code: NTSTATUS of the exception, 0 where there is none.
        first_chance: whether handlers in the target have not seen it yet.
        processor: number of the processor that stopped.
        thread: address of the KTHREAD, 0 where unknown.
        at: seconds on the host's monotonic clock when the stop was seen.
        detail: one clause for people, "" when there is nothing to add.
    """

    kind: StopKind
    program_counter: int = 0
    code: int = 0
    first_chance: bool = True
    processor: int = 0
    thread: int = 0
    at: float = 0.0
    detail: str = ""


@dataclass(frozen=True)
class Registers:
    """Integer registers of the stopped processor, by lower-case WinDbg name ("rip", "rsp", ...)."""

    values: Mapping[str, int] = field(default_factory=dict)

    def __getitem__(self, name: str) -> int:
        return self.values[name]

    def as_dict(self) -> Dict[str, int]:
        """A copy as a plain dictionary."""
        return dict(self.values)


class HitKind(enum.Enum):
    """What the allocator was doing when PoolHitTag matched."""

    ALLOC = "alloc"
    FREE = "free"


class BlockTrust(enum.Enum):
    """What a hit's block address and size rest on."""

    VERIFIED = "verified"
    """The pool header was read at this hit and carries the tag."""
    LEARNED = "learned"
    """Taken from the place that held it at every verified hit of the same instruction."""
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Block:
    """The pool block a hit is about.

    Attributes:
        address: what the driver gets or gives back (after the header), 0 when unknown.
        size: bytes charged to the tag, header included; None when unknown.
        pool: which pool, None when unknown.
        trust: what the figures rest on.
    """

    address: int = 0
    size: Optional[int] = None
    pool: Optional[Pool] = None
    trust: BlockTrust = BlockTrust.UNKNOWN


@dataclass(frozen=True)
class Hit:
    """One PoolHitTag break.

    Attributes:
        number: 1 for the first.
        kind: allocation or free.
        stack: innermost frame first, allocator frames included.
        at: seconds since the hunt armed the tag for the first time.
        processor: number of the processor.
        thread: address of the KTHREAD, 0 where unknown.
        block: the block, as far as known.
    """

    number: int
    kind: HitKind
    stack: Stack
    at: float
    processor: int
    thread: int
    block: Block = Block()
