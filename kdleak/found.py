"""What a search through a target's memory found: blocks of a tag, and the code that asks for it.

Plain values for reports. Sizes are bytes, addresses are target virtual addresses.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Callable, Optional, Tuple

from kdleak.model import Pool, Symbolized, TagUsage
from kdleak.tags import PoolTag


class BlockState(enum.Enum):
    """Whether a block is in use."""

    ALLOCATED = "allocated"
    FREE = "free"
    UNKNOWN = "unknown"
    """Its header names the tag, but nothing seen tells whether it was freed since."""


class BlockSource(enum.Enum):
    """What a block's place and size rest on, strongest first."""

    BIG_PAGES = "big page table"
    """A row of nt!PoolBigPageTable."""
    POOL_PAGE = "pool page"
    """Header by header from the start of a page, each fitting the one before (no segment heap)."""
    SEGMENT_HEAP = "segment heap"
    """A chunk of a VS or LFH subsegment, found from nt!ExPoolState."""
    HEADER = "header"
    """A pool header with the tag that looks right, without anything around it to confirm it."""


@dataclass(frozen=True)
class BlockPointer:
    """A pointer found inside a block.

    Attributes:
        offset: of the pointer in the block's body.
        value: the pointer.
        symbol: what it points into, where that is a loaded image.
        block: body address of the pool block it points into, 0 where it is none.
        block_tag: that block's tag.
    """

    offset: int
    value: int
    symbol: Optional[Symbolized] = None
    block: int = 0
    block_tag: Optional[PoolTag] = None


@dataclass(frozen=True)
class PoolBlock:
    """One block of pool.

    Attributes:
        address: what the driver got: after the header, if there is one.
        size: bytes charged to the tag, header included; 0 where unknown.
        tag: its tag.
        pool: which pool, None where nothing tells.
        state: whether it is in use.
        source: what all this rests on.
        first_bytes: the start of the body, at most 64 bytes; shorter where it is unreadable.
        strings: texts found in the body (ASCII and UTF-16), untrusted.
        pointers: into loaded images or other pool blocks.
    """

    address: int
    size: int
    tag: PoolTag
    pool: Optional[Pool]
    state: BlockState
    source: BlockSource
    first_bytes: bytes = b""
    strings: Tuple[str, ...] = ()
    pointers: Tuple[BlockPointer, ...] = ()


@dataclass(frozen=True)
class SizeClass:
    """Blocks of one size.

    Attributes:
        size: bytes charged for one block.
        allocated: blocks in use; free: blocks freed; unknown: neither is certain.
    """

    size: int
    allocated: int = 0
    free: int = 0
    unknown: int = 0


class GapKind(enum.Enum):
    """What a gap of a search for blocks is about."""

    SHORTFALL = "fewer blocks were seen than the tag tables count"
    SURPLUS = "more blocks were seen than the tag tables count"
    DOUBT = "which blocks are those that the tag tables count is not settled"
    TIME = "the search was ended before all was looked at"
    OTHER = "something else"


@dataclass(frozen=True)
class BlockSearch:
    """All blocks of one tag that were seen.

    Attributes:
        tag: the tag searched for.
        blocks: the blocks told about one by one, at most as many as were asked for, in order of
            address.
        sizes: every block seen, by size, ascending.
        counters: what the tag tables say the tag holds; None where they could not be read.
        searched: what was looked through, one sentence each ("2,048 rows of the big page table").
        gaps: what could not be looked through, one sentence each; empty when all was.
        bytes_searched: pool memory looked through.
        complete: everything the counters count was seen, block by block.
        gap_kinds: what some of the gaps are about; the others are ``GapKind.OTHER``.
    """

    tag: PoolTag
    blocks: Tuple[PoolBlock, ...]
    sizes: Tuple[SizeClass, ...]
    counters: Optional[TagUsage]
    searched: Tuple[str, ...]
    gaps: Tuple[str, ...]
    bytes_searched: int = 0
    complete: bool = False
    gap_kinds: Tuple[Tuple[str, GapKind], ...] = ()

    def kind_of(self, gap: str) -> GapKind:
        """What one of the gaps is about."""
        return dict(self.gap_kinds).get(gap, GapKind.OTHER)

    @property
    def allocated(self) -> Tuple[int, int]:
        """(blocks, bytes) seen in use."""
        return (
            sum(one.allocated for one in self.sizes),
            sum(one.allocated * one.size for one in self.sizes),
        )

    @property
    def seen(self) -> int:
        """Blocks seen, whatever their state."""
        return sum(one.allocated + one.free + one.unknown for one in self.sizes)


class SiteKind(enum.Enum):
    """How sure it is that a place in code asks for a tag."""

    CALL = "call"
    """The tag is loaded into the argument register (or pushed) of a call to an allocator."""
    NEAR_CALL = "near a call"
    """The tag is an immediate shortly before such a call, but not surely its argument."""
    OCCURRENCE = "occurrence"
    """The four bytes stand in the image: an immediate elsewhere, data, or chance."""


@dataclass(frozen=True)
class TagSite:
    """A place in an image where a tag stands.

    Attributes:
        kind: how sure.
        module: name of the image as WinDbg shows it.
        address: of the instruction, or of the four bytes.
        symbol: the nearest name below it.
        instruction: disassembled, "" for data.
        routine: what is called, "nt!ExAllocatePoolWithTag"; "" for an occurrence.
        call_address: of the call, 0 for an occurrence.
        frees: the routine frees.
    """

    kind: SiteKind
    module: str
    address: int
    symbol: Symbolized
    instruction: str = ""
    routine: str = ""
    call_address: int = 0
    frees: bool = False


@dataclass(frozen=True)
class SiteSearch:
    """Where the code asks for a tag.

    Attributes:
        tag: the tag.
        sites: calls first, then weaker ones; by module and address.
        modules: images looked through.
        gaps: what could not be looked through, one sentence each (pages of an image that are not
            in a dump, ...).
        occurrences_left_out: weak places beyond the limit.
    """

    tag: PoolTag
    sites: Tuple[TagSite, ...]
    modules: int
    gaps: Tuple[str, ...] = ()
    occurrences_left_out: int = 0

    @property
    def drivers(self) -> Tuple[str, ...]:
        """Modules with a call, the one with most calls first."""
        return self._with_calls(lambda _: True)

    @property
    def askers(self) -> Tuple[str, ...]:
        """Modules with a call that allocates, the one with most such calls first."""
        return self._with_calls(lambda site: not site.frees)

    def _with_calls(self, wanted: Callable[[TagSite], bool]) -> Tuple[str, ...]:
        calls = [site.module for site in self.sites if site.kind is SiteKind.CALL and wanted(site)]
        return tuple(sorted(set(calls), key=lambda name: (-calls.count(name), name.lower())))
