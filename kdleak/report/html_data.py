"""What the script of the HTML report gets: names, the tree of stacks, the call sites.

Everything is made harmless and bounded here; the script only ever writes it as text. Names are
kept once and referred to by number, which is what keeps the file small.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Dict, List, Optional

from kdleak.report.html_blame import blame_facts, blamed_frame
from kdleak.report.result_document import Node
from kdleak.report.sanitise import sanitise
from kdleak.report.stack_tree import merge_stacks
from kdleak.report.stack_weights import Weight, frame_name, weighed_stacks


@dataclass(frozen=True)
class Limits:
    """How much goes into a report.

    Attributes:
        frames: of the flame graph.
        sites: call sites with their stacks.
        name: characters of a name.
        sentence: characters of a sentence.
    """

    frames: int = 5000
    sites: int = 400
    name: int = 240
    sentence: int = 1500

    def halved(self) -> Limits:
        """Less of everything, for a result that would not fit."""
        return Limits(
            max(50, self.frames // 2),
            max(10, self.sites // 2),
            max(60, self.name // 2),
            max(200, self.sentence // 2),
        )

    @property
    def least(self) -> bool:
        """Whether there is nothing left to halve."""
        return self == self.halved()


def middle_cut(text: str, most: int) -> str:
    """The text made harmless, its middle left out where it is long: both ends tell names apart."""
    text = sanitise(text)
    if len(text) <= most:
        return text
    half = (most - 5) // 2
    return f"{text[: most - 5 - half]} ... {text[-half:]}"


class _Names:
    def __init__(self, most: int) -> None:
        self.list: List[str] = []
        self._most = most
        self._index: Dict[str, int] = {}

    def number(self, name: str) -> int:
        """The number of a name, cut to what is allowed."""
        shown = middle_cut(name, self._most)
        if shown not in self._index:
            self._index[shown] = len(self.list)
            self.list.append(shown)
        return self._index[shown]


def hunt_data(hunt: Node, limits: Limits) -> Dict[str, Any]:
    """The values of a hunt for the script.

    Raises:
        UsageError: the document is damaged.
    """
    names = _Names(limits.name)
    tree = merge_stacks(weighed_stacks(hunt), max_frames=limits.frames)
    frames = [[names.number(one.name), one.parent, *one.weights] for one in tree.frames]
    sites = hunt.nodes("call_sites")
    accused = accused_site(hunt)
    return {
        "weights": [weight.words for weight in Weight],
        "totals": list(tree.totals),
        "tree": frames,
        "leftOut": tree.left_out,
        "accused": names.number(frame_name(blamed_frame(accused))) if accused else -1,
        "sites": [_site(hunt, site, names, limits) for site in sites[: limits.sites]],
        "sitesLeftOut": max(0, len(sites) - limits.sites),
        "names": names.list,
    }


def accused_site(hunt: Node) -> Optional[Node]:
    """The call site that is accused, if one is.

    Raises:
        UsageError: the document is damaged.
    """
    if not hunt.has("accused"):
        return None
    index, sites = hunt.integer("accused"), hunt.nodes("call_sites")
    if not 0 <= index < len(sites):
        hunt.refuse("accused", "one of the call sites")
    return sites[index]


def _site(hunt: Node, site: Node, names: _Names, limits: Limits) -> Dict[str, Any]:
    frame, blame = site.node("frame"), blamed_frame(site)
    stack = site.find_node("stack")
    through = frame_name(frame) != frame_name(blame)
    return {
        "name": names.number(frame_name(blame)),
        "via": names.number(frame_name(frame)) if through else -1,
        "blame": len(blame_facts(hunt, site)),
        "judgement": middle_cut(site.text("judgement", "not judged").replace("_", " "), 40),
        "sentence": middle_cut(site.text("sentence", ""), limits.sentence),
        "facts": [
            middle_cut(fact, limits.sentence) for fact in (*blame_facts(hunt, site), *_facts(site))
        ],
        "bytes": site.integer("outstanding_bytes", 0),
        "unsized": site.integer("outstanding_unsized", 0),
        "blocks": site.integer("outstanding", 0),
        "old": site.integer("outstanding_old", 0),
        "allocs": site.integer("allocs", 0),
        "returned": site.integer("returned", 0),
        "frees": site.integer("frees", 0),
        "stacks": site.integer("distinct_stacks", 1),
        "end": "" if stack is None else sanitise(stack.text("end", "complete").replace("_", " ")),
        "stack": []
        if stack is None
        else [names.number(frame_name(one)) for one in stack.nodes("frames")],
    }


def _facts(site: Node) -> List[str]:
    """What else is known of a call site, in words."""
    facts = []
    blocks = site.integer("outstanding", 0)
    if blocks and site.has("oldest_age"):
        median = ""
        if site.has("median_age") and blocks > 1:
            median = f", half of them for {seconds(site.number('median_age'))} or longer"
        facts.append(
            f"The oldest block that stayed is {seconds(site.number('oldest_age'))} old{median}; "
            f"old is more than {seconds(site.number('min_age', 0.0))}."
        )
    scaled = site.find_node("scaled")
    if scaled is not None and (blocks or scaled.node("bytes_within").number("low") > 0):
        facts.append(f"Over the whole hunt, pauses included: {scaled_words(scaled)}.")
    if site.has("longest_life"):
        facts.append(
            f"Longest time from allocation to free: {seconds(site.number('longest_life'))}."
        )
    for key, words in (
        ("unaddressed", "allocations of unknown block address, left out of the pairing"),
        ("unwatched", "blocks that went out of sight in a pause"),
        ("replaced", "blocks freed unseen (their address came again)"),
        ("unsized", "hits of unknown block size"),
    ):
        if site.integer(key, 0):
            facts.append(f"{site.integer(key):,} {words}.")
    return facts


def scaled_words(scaled: Node) -> str:
    """A figure scaled from a sample, with its error bars.

    Raises:
        UsageError: the document is damaged.
    """
    within = scaled.node("bytes_within")
    return (
        f"about {size(scaled.number('bytes'))} in {scaled.number('blocks'):,.0f} blocks stayed "
        f"(95 % interval: {size(within.number('low'))} to {size(within.number('high'))})"
    )


def seconds(value: float) -> str:
    """A time for people, from microseconds to days."""
    if value < 0.001:
        return f"{value * 1e6:.3g} µs"
    if value < 1:
        return f"{value * 1000:.3g} ms"
    for limit, divisor, unit in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if value < limit:
            return f"{value / divisor:.3g} {unit}"
    return f"{value / 86400:.3g} d"


def size(value: float) -> str:
    """A size for people: ``8,640 bytes``, ``1.5 MiB``."""
    if abs(value) < 10 << 10:
        return f"{value:,.0f} byte{'' if abs(value) == 1 else 's'}"
    for bits, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB")):
        if abs(value) >= 1 << bits:
            return f"{value / (1 << bits):,.3g} {unit}"
    return f"{value / 1024:,.4g} KiB"


def as_script_data(data: Dict[str, Any]) -> str:
    """JSON that is safe inside a script element, whatever the names are.

    ``<`` never stands in it, so neither ``</script>`` nor ``<!--`` can end or change the element.
    """
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
