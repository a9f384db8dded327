"""The block a PoolHitTag hit is about, without a round trip at every hit.

At the break instruction one of the integer registers holds the block's pool header (the tag is
4 bytes into it) or the address behind it. Reading the header proves it and gives the size. That
costs a request, so the finder learns for each break instruction which register holds the block
and which place holds the size, and then takes both from what is known anyway. It checks itself
now and then, and whatever is not certain stays unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Optional, Protocol, Set, Tuple

from kdleak.errors import MemoryUnreadable, SymbolNotFound
from kdleak.model import Block, BlockTrust, HitKind, Pool, Registers
from kdleak.nt.bigpages import BigBlock
from kdleak.nt.block_rule import PAGE_SIZE, Rule, Sight
from kdleak.nt.layouts import PoolHeader, parse_pool_header, pool_header_size
from kdleak.nt.memory import MemoryReader, sign_extend
from kdleak.tags import PROTECTED_POOL, PoolTag

_NOT_INTEGER = frozenset(
    ("rip", "eip", "pc", "rsp", "esp", "sp", "efl", "cpsr", "cs", "ss", "ds", "es", "fs", "gs")
)
_VISTA = 6000
_STACK_REACH = 0x6000  # bytes around the stack pointer that no pool block lies in
_SEARCHES = 4  # searches in vain at one instruction before most are left out
_SEARCH_EVERY = 16
_CACHE_ALIGNED = 4
_KERNEL_SPACE = {8: 0xFF00000000000000, 4: 0xFFFFFFFF80000000}

_Candidates = Dict[Tuple[bool, int], Tuple[int, Optional[Pool]]]
"""(big, address of the header or of a big block) to (bytes of the block or 0, its pool)."""


class BigPages(Protocol):
    """Looks page-aligned blocks up; ``nt.bigpages.BigPageTable`` is one."""

    def find_big_page(self, address: int, freed: bool = False) -> Optional[BigBlock]:
        """The block that starts at an address, or None."""


@dataclass
class BlockStatistics:
    """How the blocks of a hunt were found.

    Attributes:
        verified: hits whose header (or big page row) was read and carries the tag.
        learned: hits whose block was taken from the places learned.
        unknown: hits without a block.
        ambiguous: those of ``unknown`` with more than one block that could be meant.
        spot_checks: learned hits that were verified all the same.
        contradictions: spot checks that failed; each dropped what had been learned.
    """

    verified: int = 0
    learned: int = 0
    unknown: int = 0
    ambiguous: int = 0
    spot_checks: int = 0
    contradictions: int = 0


class _Instruction:
    """What is known of one break instruction."""

    def __init__(self, unit: int) -> None:
        self.small = Rule(unit, big=False)
        self.big = Rule(unit, big=True)
        self.in_vain = 0


class BlockFinder:
    """Finds the blocks of one tag's hits.

    Args:
        memory: reads the stopped target; each read is a round trip.
        pointer_size: 4 or 8.
        tag: the tag that is armed.
        big_pages: looks up page-aligned blocks; None leaves them unknown.
        build: Windows build number, 0 where unknown; tells how a header names its pool.

    Attributes:
        statistics: what the figures rest on.
    """

    def __init__(
        self,
        memory: MemoryReader,
        pointer_size: int,
        tag: PoolTag,
        big_pages: Optional[BigPages] = None,
        *,
        build: int = 0,
    ) -> None:
        self.statistics = BlockStatistics()
        self._memory = memory
        self._pointer_size = pointer_size
        self._unit = pool_header_size(pointer_size)
        self._tag = tag.value & ~PROTECTED_POOL
        self._big_pages = big_pages
        self._build = build
        self._instructions: Dict[int, _Instruction] = {}

    def find(
        self,
        registers: Registers,
        stack_address: int,
        stack_bytes: bytes,
        program_counter: int,
        kind: HitKind,
    ) -> Block:
        """The block the allocator is working on at this hit. Never raises for the target.

        Args:
            registers: of the processor that stopped.
            stack_address: its stack pointer.
            stack_bytes: what is known of the stack from there; may be empty.
            program_counter: address of the break instruction.
            kind: allocation or free.
        """
        sight = Sight(
            {
                name: sign_extend(value, self._pointer_size)
                for name, value in registers.values.items()
                if name not in _NOT_INTEGER
            },
            sign_extend(stack_address, self._pointer_size),
            stack_bytes,
        )
        known = self._instructions.get(program_counter)
        if known is None:
            known = self._instructions[program_counter] = _Instruction(self._unit)
        rule, block = self._learned(known, sight, kind)
        if rule is None or block is None:
            return self._verify(known, sight, kind)
        if rule.check_is_due():
            return self._spot_check(known, rule, block, sight, kind)
        self.statistics.learned += 1
        return block

    # -- learned

    def _learned(
        self, known: _Instruction, sight: Sight, kind: HitKind
    ) -> Tuple[Optional[Rule], Optional[Block]]:
        """The block by what was learned; None unless exactly one rule has a plausible answer."""
        small = self._learned_small(known.small, sight, kind)
        big = self._learned_big(known.big, sight, kind)
        if small is None:
            return (known.big, big) if big is not None else (None, None)
        if any(self._on_page(start, sight) for start in known.big.starts(sight)):
            return None, None  # it could be either
        return known.small, small

    def _learned_small(self, rule: Rule, sight: Sight, kind: HitKind) -> Optional[Block]:
        if not rule.trusts_address:
            return None
        start = rule.start(sight)
        if start is None or not self._may_be_block(start, sight):
            return None
        body = start + self._unit
        if body % PAGE_SIZE == 0 or (start % PAGE_SIZE == 0 and not rule.behind_header):
            return None  # could be a big block, whose address the same register would hold
        size = rule.size(sight) if rule.trusts_size else None
        if size is None:
            # At a free the address is what counts: the size was seen at the allocation.
            settled = kind is HitKind.FREE and not rule.trusts_size
            return Block(body, None, None, BlockTrust.LEARNED) if settled else None
        if not self._small_size_fits(start, size):
            return None
        return Block(body, size, None, BlockTrust.LEARNED)

    def _learned_big(self, rule: Rule, sight: Sight, kind: HitKind) -> Optional[Block]:
        if not rule.trusts_address:
            return None
        start = rule.start(sight)
        if start is None or not self._on_page(start, sight):
            return None
        size = rule.size(sight) if rule.trusts_size else None
        if size is None:
            settled = kind is HitKind.FREE and not rule.trusts_size
            return Block(start, None, None, BlockTrust.LEARNED) if settled else None
        if size <= PAGE_SIZE - 2 * self._unit:
            return None
        return Block(start, size, None, BlockTrust.LEARNED)

    def _spot_check(
        self, known: _Instruction, rule: Rule, block: Block, sight: Sight, kind: HitKind
    ) -> Block:
        self.statistics.spot_checks += 1
        truth = self._verify(known, sight, kind)
        same_size = block.size is None or truth.size is None or block.size == truth.size
        if truth.trust is BlockTrust.VERIFIED and truth.address == block.address and same_size:
            rule.check_passed()
        else:
            self.statistics.contradictions += 1
            rule.drop()
        return truth

    # -- verified

    def _verify(self, known: _Instruction, sight: Sight, kind: HitKind) -> Block:
        """Read headers until it is certain which block is meant, or that nothing tells."""
        found = self._at_holders(known, sight, kind)
        if not found:
            found = self._search(known, sight, kind)
        if len(found) != 1:
            self.statistics.unknown += 1
            self.statistics.ambiguous += bool(found)
            for rule in (known.small, known.big):
                rule.unsettle()
            self._narrow(known, sight, found)
            return Block()
        known.in_vain = 0
        (big, start), (size, pool) = next(iter(found.items()))
        rule = known.big if big else known.small
        if size:
            rule.observe(sight, self._holders_of(sight, start, big), start, size)
        self.statistics.verified += 1
        address = start if big else start + self._unit
        return Block(address, size or None, pool, BlockTrust.VERIFIED)

    def _narrow(self, known: _Instruction, sight: Sight, found: _Candidates) -> None:
        """Several blocks are possible: remember which places could have meant any of them.

        Only when all are of one kind. Otherwise the right one may be of either, and a rule
        would lose the holder it has for the blocks of its own kind.
        """
        kinds = {big for big, _ in found}
        if len(kinds) != 1:
            return
        big = kinds.pop()
        fitting: Set[Tuple[str, int]] = set()
        for _, start in found:
            fitting |= self._holders_of(sight, start, big)
        (known.big if big else known.small).narrow(fitting)

    def _at_holders(self, known: _Instruction, sight: Sight, kind: HitKind) -> _Candidates:
        """What lies where all earlier hits had their block.

        Nothing unless that is certain: the holders agree, and one of them was the right one at
        a hit that left no doubt.
        """
        found: _Candidates = {}
        small, big = known.small, known.big
        start = small.start(sight) if small.observed else None
        if start is not None:
            body = start + self._unit
            if body % PAGE_SIZE == 0:
                self._take_big(found, body, sight, kind)
            elif self._may_be_block(start, sight):
                self._take_small(found, start, self._read(start, 8), kind)
                if start % PAGE_SIZE == 0 and not small.behind_header:
                    self._take_big(found, start, sight, kind)
        if any(self._on_page(page, sight) for page in big.starts(sight)):
            page = big.start(sight) if big.observed else None
            if page is None:
                return {}
            self._take_big(found, page, sight, kind)
        if not big.observed and any(is_big for is_big, _ in found):
            return {}
        return found

    def _search(self, known: _Instruction, sight: Sight, kind: HitKind) -> _Candidates:
        """Look behind every register that may point to a block."""
        known.in_vain += 1
        if known.in_vain > _SEARCHES and known.in_vain % _SEARCH_EVERY:
            return {}
        found: _Candidates = {}
        pages: List[int] = []
        for value in sorted(set(sight.registers.values())):
            if not self._may_be_block(value, sight):
                continue
            if value % PAGE_SIZE == 0:
                pages.append(value)
                self._take_small(found, value, self._read(value, 8), kind)
            else:
                raw = self._read(value - self._unit, self._unit + 8)
                self._take_small(found, value - self._unit, raw[:8], kind)
                self._take_small(found, value, raw[self._unit :], kind)
        for value in pages:
            self._take_big(found, value, sight, kind)
        return found

    def _take_small(self, found: _Candidates, start: int, raw: bytes, kind: HitKind) -> None:
        if len(raw) < 8:
            return
        header = parse_pool_header(raw, self._pointer_size)
        if header.tag != self._tag or not self._small_size_fits(start, header.block_size):
            return
        if kind is HitKind.ALLOC and header.pool_type == 0:
            return  # marked free: what was just allocated is not
        found[False, start] = (self._charged(header), self._pool(header))

    def _take_big(self, found: _Candidates, start: int, sight: Sight, kind: HitKind) -> None:
        if self._big_pages is None or (True, start) in found or not self._on_page(start, sight):
            return
        try:
            row = self._big_pages.find_big_page(start, kind is HitKind.FREE)
        except MemoryUnreadable:
            return
        except SymbolNotFound:
            self._big_pages = None  # it will not be found at the next hit either
            return
        if row is None or row.tag.value & ~PROTECTED_POOL != self._tag:
            return
        if row.freed and any(not is_big for is_big, _ in found):
            return  # the row of a block freed earlier: a header that is there counts for more
        found[True, start] = (row.size, row.pool)

    def _charged(self, header: PoolHeader) -> int:
        """Bytes charged to the tag; 0 where this header does not tell.

        In front of a cache aligned block lies a copy; the real header is further in front.
        """
        if header.pool_type & _CACHE_ALIGNED and header.previous_size:
            return 0
        return header.block_size

    def _pool(self, header: PoolHeader) -> Optional[Pool]:
        """From Vista on, odd types are paged."""
        if self._build < _VISTA or not header.pool_type:
            return None
        return Pool.PAGED if header.pool_type & 1 else Pool.NONPAGED

    # -- plausibility

    def _may_be_block(self, address: int, sight: Sight) -> bool:
        near_stack = abs(address - sight.stack_address) < _STACK_REACH
        return (
            address % self._unit == 0
            and _KERNEL_SPACE[self._pointer_size] <= address < 1 << 64
            and not near_stack
        )

    def _on_page(self, address: int, sight: Sight) -> bool:
        """Whether a big block may start there."""
        return address % PAGE_SIZE == 0 and self._may_be_block(address, sight)

    def _small_size_fits(self, start: int, size: int) -> bool:
        """A block with a header lies in one page and is a multiple of its unit."""
        return (
            size % self._unit == 0 and size > self._unit and start % PAGE_SIZE + size <= PAGE_SIZE
        )

    def _holders_of(self, sight: Sight, start: int, big: bool) -> Set[Tuple[str, int]]:
        deltas: List[int] = [0] if big else [0, -self._unit]
        return {
            (name, delta)
            for name, value in sight.registers.items()
            for delta in deltas
            if value + delta == start
        }

    def _read(self, address: int, size: int) -> bytes:
        """b"" where nothing can be read."""
        try:
            return self._memory.read(address, size)
        except MemoryUnreadable:
            return b""
