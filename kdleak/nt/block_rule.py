"""What was learned about one break instruction: where it keeps the block and the block's size.

A compiled instruction always finds its values in the same registers and stack slots. Which ones
is found by elimination: every place that held the value at all verified hits stays.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Dict, Iterable, Iterator, Mapping, Optional, Set, Tuple

PAGE_SIZE = 0x1000
FIRST_REQUIRED = 6
_MOST_REQUIRED = 96
_FIRST_INTERVAL = 16
_LONGEST_INTERVAL = 1024
_STACK_LIMIT = 0x100
_DISTINCT = 4  # different values remembered; more prove nothing further

Place = Tuple[str, int, int]
"""A register (name, 0, 0), or a stack slot ("", offset from the stack pointer, bytes)."""


class SizeForm(enum.Enum):
    """How a value stands for the size of a block."""

    BYTES = "bytes of the block"
    UNITS = "block size in units of the pool header"
    BODY = "bytes without the header"
    REQUEST = "bytes asked for, before rounding"
    PAGES = "pages"

    def size(self, value: int, unit: int, big: bool) -> int:
        """The size in bytes that a value means in this form; 0 when it can mean none.

        Args:
            value: as found.
            unit: bytes of a pool header, which blocks are rounded to.
            big: the block has no header and is rounded to pages.
        """
        if value <= 0 or value > 1 << 40:
            return 0
        if self is SizeForm.BYTES:
            return value
        if self is SizeForm.REQUEST:
            grain, header = (PAGE_SIZE, 0) if big else (unit, unit)
            return (value + header + grain - 1) // grain * grain
        if self is SizeForm.PAGES:
            return value * PAGE_SIZE
        return value * unit if self is SizeForm.UNITS else value + unit


_SMALL_FORMS = (SizeForm.BYTES, SizeForm.UNITS, SizeForm.BODY, SizeForm.REQUEST)
_BIG_FORMS = (SizeForm.BYTES, SizeForm.PAGES, SizeForm.REQUEST)


@dataclass(frozen=True)
class Sight:
    """What is known at a hit without asking the target.

    Attributes:
        registers: integer registers by name, as unsigned values.
        stack_address: the stack pointer.
        stack: bytes from there.
    """

    registers: Mapping[str, int]
    stack_address: int
    stack: bytes

    def value(self, place: Place) -> Optional[int]:
        """The value in a place; None where the place is not known at this hit."""
        name, offset, width = place
        if name:
            return self.registers.get(name)
        if offset + width > len(self.stack):
            return None
        return int.from_bytes(self.stack[offset : offset + width], "little")

    def places(self) -> Iterator[Place]:
        """Every place that may hold a size."""
        for name in self.registers:
            yield name, 0, 0
        for width in (8, 4):
            for offset in range(0, min(len(self.stack), _STACK_LIMIT) - width + 1, width):
                yield "", offset, width


class Rule:
    """What one break instruction taught about small blocks, or about big ones.

    Args:
        unit: bytes of a pool header.
        big: for page-aligned blocks without header.

    Attributes:
        observed: whether a hit of this kind was certain since the rule was started, so that
            the right holder is among ``holders``.
        verified: hits in a row that agreed since the rule was started.
        required: verified hits before it is trusted.
        holders: (register, bytes from its value to the block) that fitted every time; None
            before the first.
    """

    def __init__(self, unit: int, big: bool) -> None:
        self.required = FIRST_REQUIRED
        self._unit = unit
        self._big = big
        self._interval = _FIRST_INTERVAL
        self._trusted_hits = 0
        self._start()

    def _start(self) -> None:
        self.observed = False
        self.verified = 0
        self.holders: Optional[Set[Tuple[str, int]]] = None
        self._sizes: Optional[Dict[Tuple[Place, SizeForm], None]] = None
        self._distinct_starts: Set[int] = set()
        self._distinct_sizes: Set[int] = set()

    # -- learning

    def narrow(self, fitting: Set[Tuple[str, int]]) -> None:
        """Keep only holders that fitted at this hit too."""
        if self.holders is not None and self.holders & fitting:
            self.holders &= fitting
        else:
            self._start()
            self.holders = set(fitting)

    def observe(self, sight: Sight, fitting: Set[Tuple[str, int]], start: int, size: int) -> None:
        """Take a hit whose block was verified.

        Args:
            sight: the hit.
            fitting: every holder that leads to the block at this hit.
            start: address of the header, or of a big block.
            size: bytes of the block.
        """
        self.narrow(fitting)
        self.observed = True
        self.verified += 1
        if len(self._distinct_starts) < _DISTINCT:
            self._distinct_starts.add(start)
        if len(self._distinct_sizes) < _DISTINCT:
            self._distinct_sizes.add(size)
        forms = _BIG_FORMS if self._big else _SMALL_FORMS
        tried: Iterable[Tuple[Place, SizeForm]] = (
            self._sizes
            if self._sizes is not None
            else [(place, form) for place in sight.places() for form in forms]
        )
        self._sizes = {pair: None for pair in tried if self._size_at(sight, pair) == size}

    def _size_at(self, sight: Sight, pair: Tuple[Place, SizeForm]) -> Optional[int]:
        value = sight.value(pair[0])
        return None if value is None else pair[1].size(value, self._unit, self._big)

    def drop(self) -> None:
        """Forget everything: it was wrong. The next rule must prove itself for longer."""
        self.required = min(2 * self.required, _MOST_REQUIRED)
        self._interval = _FIRST_INTERVAL
        self._trusted_hits = 0
        self._start()

    def unsettle(self) -> None:
        """A hit could not be verified: the agreement has to start over."""
        self.verified = 0

    # -- using it

    @property
    def trusts_address(self) -> bool:
        """Enough hits with different blocks agreed on where the address is."""
        return (
            self.verified >= self.required and bool(self.holders) and len(self._distinct_starts) > 1
        )

    @property
    def trusts_size(self) -> bool:
        """The same for the size; blocks of one size only could agree by chance."""
        return self.trusts_address and bool(self._sizes) and len(self._distinct_sizes) > 1

    def start(self, sight: Sight) -> Optional[int]:
        """The address all holders lead to; None when they disagree or there is none."""
        found = {
            sight.registers[name] + delta
            for name, delta in self.holders or ()
            if name in sight.registers
        }
        return found.pop() if len(found) == 1 else None

    def starts(self, sight: Sight) -> Set[int]:
        """Every address that a holder leads to."""
        return {
            sight.registers[name] + delta
            for name, delta in self.holders or ()
            if name in sight.registers
        }

    @property
    def behind_header(self) -> bool:
        """Whether one of the holders holds the address behind the header."""
        return any(delta < 0 for _, delta in self.holders or ())

    def size(self, sight: Sight) -> Optional[int]:
        """The size all places agree on; None when they disagree or none can be seen."""
        found = {self._size_at(sight, pair) for pair in self._sizes or ()}
        found.discard(None)
        return found.pop() if len(found) == 1 else None

    def check_is_due(self) -> bool:
        """Whether this trusted hit is one to verify all the same; counts it."""
        self._trusted_hits += 1
        if self._trusted_hits < self._interval:
            return False
        self._trusted_hits = 0
        return True

    def check_passed(self) -> None:
        """The spot check agreed: the next one may wait longer."""
        self._interval = min(2 * self._interval, _LONGEST_INTERVAL)
