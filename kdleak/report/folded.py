"""Folded stacks: one line per stack, ``outer;...;inner 8640``, as flame graph tools read them."""

from __future__ import annotations

from typing import Dict

from kdleak.report.result_document import Node
from kdleak.report.stack_weights import Weight, weighed_stacks


def folded(hunt: Node, weight: Weight = Weight.BYTES, *, offsets: bool = True) -> str:
    """A hunt as folded stacks.

    Equal lines are summed, stacks without weight left out. A ``;`` in a name becomes ``:``, since
    it separates frames.

    Args:
        hunt: a "kdleak.hunt" document.
        weight: what the numbers count.
        offsets: keep ``+0x1d`` in the names.

    Returns:
        Lines in the order of the result; "" when nothing has any weight.

    Raises:
        UsageError: the document is damaged.
    """
    sums: Dict[str, int] = {}
    for stack in weighed_stacks(hunt, offsets=offsets):
        value = stack.of(weight)
        if value:
            line = ";".join(name.replace(";", ":") for name in stack.frames)
            sums[line] = sums.get(line, 0) + value
    return "".join(f"{line} {value}\n" for line, value in sums.items())
