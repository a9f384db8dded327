"""Hits one by one: of very many the first and the last ones only; all are in the figures."""

from __future__ import annotations

from collections import deque
from typing import Deque, Iterator, List

from kdleak.model import Hit

KEPT_AT_EACH_END = 5000
"""Hits kept from the beginning, and from the end."""


class HitLog:
    """Takes every hit; memory stays the same after the first ``2 * KEPT_AT_EACH_END``.

    Args:
        kept: hits to keep from each end.

    Attributes:
        count: hits taken.
        unaddressed: of those, hits whose block address is not known.
        unsized: of those, hits whose block size is not known.
    """

    def __init__(self, kept: int = KEPT_AT_EACH_END) -> None:
        self._kept = kept
        self._first: List[Hit] = []
        self._last: Deque[Hit] = deque(maxlen=kept)
        self.count = 0
        self.unaddressed = 0
        self.unsized = 0

    def append(self, hit: Hit) -> None:
        """Take one hit."""
        self.count += 1
        self.unaddressed += not hit.block.address
        self.unsized += hit.block.size is None
        if len(self._first) < self._kept:
            self._first.append(hit)
        else:
            self._last.append(hit)

    @property
    def left_out(self) -> int:
        """Hits that are not kept."""
        return self.count - len(self._first) - len(self._last)

    def __len__(self) -> int:
        """Hits taken, kept or not."""
        return self.count

    def __iter__(self) -> Iterator[Hit]:
        """The hits kept, in order."""
        yield from self._first
        yield from self._last
