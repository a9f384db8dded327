"""How the outstanding bytes of call sites moved while they were watched, from a result's hits."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

from kdleak.report.html_blame import blamed_frame
from kdleak.report.result_document import Node
from kdleak.report.stack_weights import frame_name
from kdleak.report.svg_chart import Line, Point

MAX_LINES = 4


def site_lines(hunt: Node) -> Tuple[Line, ...]:
    """Outstanding bytes over time of the call sites that hold most.

    Args:
        hunt: a "kdleak.hunt" document.

    Returns:
        A line per call site; none where the result does not tell how it was.

    Raises:
        UsageError: the document is damaged.
    """
    lines = []
    done = hunt.node("completeness")
    paused = done.integer("bursts", 0) > 1
    for site in hunt.nodes("call_sites"):
        points = tuple(
            (point.number("at"), point.number("outstanding_bytes", 0.0))
            for point in site.nodes("series")
        )
        if site.integer("allocs", 0) and len(points) > 1:
            # Nothing is seen to move in a pause, so no slope must be drawn across one.
            lines.append(Line(frame_name(blamed_frame(site)), points, steps=paused))
        if len(lines) == MAX_LINES:
            break
    # Without a series the hits tell, but not where a free may have come in a pause.
    if lines or paused or done.integer("hits_left_out", 0):
        return tuple(lines)
    return _from_hits(hunt)


def _from_hits(hunt: Node) -> Tuple[Line, ...]:
    stacks = [stack.text("call_site", "") for stack in hunt.nodes("stacks")]
    labels: Dict[str, str] = {}
    for site in hunt.nodes("call_sites"):
        if site.integer("allocs", 0) and len(labels) < MAX_LINES:
            labels[site.node("frame").text("address", "")] = frame_name(site.node("frame"))
    held: Dict[str, Tuple[str, int]] = {}
    sums = dict.fromkeys(labels, 0)
    points: Dict[str, List[Point]] = {site: [(0.0, 0)] for site in labels}
    last = 0.0
    for hit in hunt.rows("hits"):
        last, stack, address, size = _hit(hunt, hit, last)
        block = held.pop(address, None) if address else None
        if block is not None and block[0] in sums:
            sums[block[0]] -= block[1]
            points[block[0]].append((last, sums[block[0]]))
        if hit.get("kind") == "alloc" and address and 0 <= stack < len(stacks):
            owner = stacks[stack]
            held[address] = (owner, size)
            if owner in sums:
                sums[owner] += size
                points[owner].append((last, sums[owner]))
    return tuple(
        Line(label, (*points[address], (last, sums[address])), steps=True)
        for address, label in labels.items()
        if len(points[address]) > 1
    )


def _hit(hunt: Node, hit: Dict[str, Any], last: float) -> Tuple[float, int, str, int]:
    """Time, stack index (-1: none), block address ("": unknown) and size of a hit."""
    at, stack, block = hit.get("at"), hit.get("stack"), hit.get("block")
    if not isinstance(at, (int, float)) or not 0 <= at < 1e12:
        hunt.refuse("hits", "a list of hits with times")
    if not isinstance(stack, int):
        stack = -1
    if not isinstance(block, dict):
        block = {}
    address, size = block.get("address"), block.get("size")
    return (
        max(float(at), last),
        stack,
        address if isinstance(address, str) else "",
        size if isinstance(size, int) and 0 <= size < 1 << 64 else 0,
    )
