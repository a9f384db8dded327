"""Stacks merged into one tree, outermost frame first: what an icicle shows.

The tree of a long hunt may have any number of frames. The heaviest are kept; what is left out is
counted. A frame is never heavier than its caller, so what is kept stays connected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Iterable, List, Tuple

from kdleak.report.stack_weights import WeighedStack, Weight


@dataclass(frozen=True)
class TreeFrame:
    """One frame below its callers.

    Attributes:
        name: of the frame.
        parent: index of the caller among the frames, -1 for an outermost one.
        weights: of all stacks through it, in the order of ``Weight``.
    """

    name: str
    parent: int
    weights: Tuple[int, ...]


@dataclass(frozen=True)
class StackTree:
    """Callers before callees, the heaviest callee first.

    Attributes:
        frames: in that order.
        totals: weights of all stacks together, in the order of ``Weight``.
        left_out: frames too light to be kept.
    """

    frames: Tuple[TreeFrame, ...]
    totals: Tuple[int, ...]
    left_out: int


class _Building:
    """A frame while stacks are added."""

    __slots__ = ("callees", "depth", "kept", "name", "weights")

    def __init__(self, name: str, depth: int) -> None:
        self.name = name
        self.depth = depth
        self.weights = [0] * len(Weight)
        self.callees: Dict[str, _Building] = {}
        self.kept = False

    def add(self, weights: Tuple[int, ...]) -> None:
        """Count one more stack that goes through here."""
        for index, value in enumerate(weights):
            self.weights[index] += value


def merge_stacks(stacks: Iterable[WeighedStack], *, max_frames: int) -> StackTree:
    """The tree of some stacks.

    Args:
        stacks: in any order.
        max_frames: frames to keep.
    """
    root = _Building("", 0)
    everything: List[_Building] = []
    for stack in stacks:
        here = root
        here.add(stack.weights)
        for name in stack.frames:
            below = here.callees.get(name)
            if below is None:
                below = here.callees[name] = _Building(name, here.depth + 1)
                everything.append(below)
            here = below
            here.add(stack.weights)
    everything.sort(key=lambda one: (-_share(one, root), one.depth))
    for one in everything[:max_frames]:
        one.kept = True
    return StackTree(_in_order(root), tuple(root.weights), max(0, len(everything) - max_frames))


def _share(one: _Building, root: _Building) -> float:
    return max(value / total if total else 0.0 for value, total in zip(one.weights, root.weights))


def _in_order(root: _Building) -> Tuple[TreeFrame, ...]:
    frames: List[TreeFrame] = []
    # A list of what is still to do, not recursion: a stack may be deeper than Python's.
    waiting: List[Tuple[_Building, int]] = [(root, -1)]
    while waiting:
        one, parent = waiting.pop()
        index = -1
        if one is not root:
            index = len(frames)
            frames.append(TreeFrame(one.name, parent, tuple(one.weights)))
        callees = sorted((c for c in one.callees.values() if c.kept), key=lambda c: c.weights)
        waiting.extend((callee, index) for callee in callees)
    return tuple(frames)
