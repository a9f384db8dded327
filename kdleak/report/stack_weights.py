"""The stacks of a hunt with what they weigh: the common ground of flame graphs of every kind."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Iterator, Tuple

from kdleak.report.result_document import Node
from kdleak.report.sanitise import sanitise


class Weight(enum.Enum):
    """What a stack counts for."""

    BYTES = "bytes"
    """Bytes allocated over it and not seen freed."""
    BLOCKS = "blocks"
    """Blocks allocated over it and not seen freed."""
    ALLOCS = "allocs"
    """Allocations seen over it, freed or not."""

    @property
    def words(self) -> str:
        """The quantity in words."""
        return {
            Weight.BYTES: "outstanding bytes",
            Weight.BLOCKS: "outstanding blocks",
            Weight.ALLOCS: "allocations seen",
        }[self]


_FIELDS = {
    Weight.BYTES: "outstanding_bytes",
    Weight.BLOCKS: "outstanding",
    Weight.ALLOCS: "allocs",
}


@dataclass(frozen=True)
class WeighedStack:
    """One distinct stack.

    Attributes:
        frames: names, outermost first, made harmless; "module!symbol+0x1d" or an address.
        weights: in the order of ``Weight``.
    """

    frames: Tuple[str, ...]
    weights: Tuple[int, ...]

    def of(self, weight: Weight) -> int:
        """One of the weights."""
        return self.weights[list(Weight).index(weight)]


def weighed_stacks(hunt: Node, *, offsets: bool = True) -> Iterator[WeighedStack]:
    """The stacks that allocated something, as the result orders them.

    Args:
        hunt: a "kdleak.hunt" document.
        offsets: keep ``+0x1d``, so that two calls in one function stay apart.

    Raises:
        UsageError: the document is damaged.
    """
    for stack in hunt.nodes("stacks"):
        weights = tuple(max(0, stack.integer(_FIELDS[weight], 0)) for weight in Weight)
        if any(weights):
            names = [frame_name(frame, offsets=offsets) for frame in stack.nodes("frames")]
            ending = stack.text("end", "complete")
            if ending not in ("complete", "user_mode"):
                names.append(f"(the stack ends early: {sanitise(ending.replace('_', ' '))})")
            yield WeighedStack(tuple(reversed(names)) or ("(no stack)",), weights)


def frame_name(frame: Node, *, offsets: bool = True) -> str:
    """The name of a frame, made harmless.

    Raises:
        UsageError: the document is damaged.
    """
    symbol = frame.text("symbol", "")
    if not offsets and symbol:
        module = frame.text("module", "")
        return sanitise(f"{module}!{symbol}" if module else symbol)
    return sanitise(frame.text("text")) or "(no name)"
