"""Call sites of two hunts: their figures, made comparable, and which belongs to which.

A call site is known by module, function and offset. Where offsets moved, because the code of the
function changed, the function alone tells; several call sites of one function that do not fit
one to one are taken together.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from kdleak.booking.confidence import Z95, wilson
from kdleak.report.html_blame import blamed_frame
from kdleak.report.result_document import Node
from kdleak.report.sanitise import sanitise
from kdleak.report.stack_weights import frame_name
from kdleak.result import Interval

_OFFSET = re.compile(r"\+0x([0-9a-f]{1,16})(?= for |$)")
_WORST = ("accused", "suspected", "levelled_off", "too_few", "cleared")


@dataclass(frozen=True)
class SiteFigures:
    """One call site in one hunt.

    Attributes:
        name: "module!function+0x1d"; in a framework " for " and the frame blamed follow.
        function: the same without offsets, "" without symbols.
        judgement: as in the result.
        allocs: allocations seen.
        followed: of those, blocks whose fate is known.
        stayed: of those, blocks not freed and older than blocks of this call site usually get.
        outstanding_bytes: of all blocks not freed.
        bytes_per_hour: that stay, of the time watched, or of the whole hunt when scaled.
        within: its 95 % interval.
        share_within: 95 % interval (Wilson) of stayed / followed; None when none was followed.
    """

    name: str
    function: str
    judgement: str
    allocs: int
    followed: int
    stayed: int
    outstanding_bytes: int
    bytes_per_hour: float
    within: Interval
    share_within: Optional[Interval]

    @property
    def leaks(self) -> bool:
        """Whether the hunt says or suspects that blocks stay."""
        return self.judgement == "accused" or (self.judgement == "suspected" and self.stayed > 0)


@dataclass(frozen=True)
class Pair:
    """A call site in both hunts; at least one side is there.

    Attributes:
        before: in the earlier hunt.
        after: in the later hunt.
        matched_by: "offset", "function" or "functions taken together"; "" with one side only.
    """

    before: Optional[SiteFigures]
    after: Optional[SiteFigures]
    matched_by: str = ""

    @property
    def name(self) -> str:
        """As it is called in the later hunt, if it is there."""
        side = self.after or self.before
        return side.name if side is not None else ""


def site_figures(hunt: Node, *, scaled: bool) -> List[SiteFigures]:
    """The call sites of a hunt that allocate.

    Args:
        hunt: a "kdleak.hunt" document.
        scaled: take bytes per hour from the figures scaled to the whole hunt.

    Raises:
        UsageError: the document is damaged.
    """
    done = hunt.node("completeness")
    hours = done.number("seconds" if scaled else "seconds_watched", 0.0) / 3600
    sites = [site for site in hunt.nodes("call_sites") if site.integer("allocs", 0)]
    return [_figures(site, hours, scaled=scaled) for site in sites]


def _figures(site: Node, hours: float, *, scaled: bool) -> SiteFigures:
    name, function = _names(site)
    allocs, outstanding = site.integer("allocs", 0), site.integer("outstanding", 0)
    unknown = sum(site.integer(key, 0) for key in ("unaddressed", "unwatched", "replaced"))
    followed = max(0, allocs - unknown)
    stayed = min(site.integer("outstanding_old", outstanding), followed)
    held = site.integer("outstanding_bytes", 0)
    count = poisson_interval(outstanding)
    each = held / outstanding if outstanding else 0.0
    estimate, low, high = float(held), count.low * each, count.high * each
    if not stayed:
        estimate = low = 0.0  # what was in use at the end is no older than usual: it comes back
    figures = site.find_node("scaled") if scaled else None
    if figures is not None:
        interval = figures.node("bytes_within")
        estimate = figures.number("bytes")
        low, high = interval.number("low"), interval.number("high")
    per_hour = 1 / hours if hours > 0 else 0.0
    return SiteFigures(
        name=name,
        function=function,
        judgement=sanitise(site.text("judgement", "")),
        allocs=allocs,
        followed=followed,
        stayed=stayed,
        outstanding_bytes=held,
        bytes_per_hour=estimate * per_hour,
        within=Interval(low * per_hour, high * per_hour),
        share_within=wilson(stayed, followed),
    )


def _names(site: Node) -> Tuple[str, str]:
    """Name and function; a place in a framework is a call site for each frame it is blamed on."""
    frame, blame = site.node("frame"), blamed_frame(site)
    name, function = frame_name(frame), _function(frame)
    if site.nodes("through") and frame_name(blame) != name:
        name += f" for {frame_name(blame)}"
        function = f"{function} for {_function(blame)}" if function and _function(blame) else ""
    return name, function


def _function(frame: Node) -> str:
    return frame_name(frame, offsets=False) if frame.has("symbol") else ""


def pair_sites(before: Sequence[SiteFigures], after: Sequence[SiteFigures]) -> List[Pair]:
    """Put together what is the same call site."""
    pairs, first, second = _by_key(before, after, lambda site: site.name.lower(), "offset")
    for function in dict.fromkeys(site.function.lower() for site in first if site.function):
        ours = [site for site in first if site.function.lower() == function]
        theirs = [site for site in second if site.function.lower() == function]
        if not theirs:
            continue
        first = [site for site in first if site not in ours]
        second = [site for site in second if site not in theirs]
        if len(ours) == len(theirs):
            # The compiler keeps calls in order far more often than not.
            ordered = zip(sorted(ours, key=_offset), sorted(theirs, key=_offset))
            pairs.extend(Pair(one, other, "function") for one, other in ordered)
        else:
            pairs.append(Pair(_together(ours), _together(theirs), "functions taken together"))
    pairs.extend(Pair(site, None) for site in first)
    pairs.extend(Pair(None, site) for site in second)
    return pairs


def _by_key(
    before: Sequence[SiteFigures],
    after: Sequence[SiteFigures],
    key: Callable[[SiteFigures], str],
    how: str,
) -> Tuple[List[Pair], List[SiteFigures], List[SiteFigures]]:
    theirs: Dict[str, SiteFigures] = {key(site): site for site in after}
    pairs: List[Pair] = []
    alone: List[SiteFigures] = []
    for site in before:
        other = theirs.pop(key(site), None)
        if other is None:
            alone.append(site)
        else:
            pairs.append(Pair(site, other, how))
    matched = {id(pair.after) for pair in pairs}
    return pairs, alone, [site for site in after if id(site) not in matched]


def _offset(site: SiteFigures) -> Tuple[int, ...]:
    """The offsets of all frames in the name, in its order."""
    return tuple(int(digits, 16) for digits in _OFFSET.findall(site.name))


def _together(sites: Sequence[SiteFigures]) -> SiteFigures:
    stayed, followed = sum(s.stayed for s in sites), sum(s.followed for s in sites)
    worst = min(sites, key=lambda s: _WORST.index(s.judgement) if s.judgement in _WORST else 9)
    return replace(
        worst,
        name=worst.function,
        allocs=sum(s.allocs for s in sites),
        followed=followed,
        stayed=stayed,
        outstanding_bytes=sum(s.outstanding_bytes for s in sites),
        bytes_per_hour=sum(s.bytes_per_hour for s in sites),
        within=Interval(sum(s.within.low for s in sites), sum(s.within.high for s in sites)),
        share_within=wilson(stayed, followed),
    )


def poisson_interval(count: int) -> Interval:
    """95 % interval of the mean behind a count (Wilson and Hilferty's approximation)."""
    z, above = Z95, count + 1
    high = above * (1 - 1 / (9 * above) + z / (3 * math.sqrt(above))) ** 3
    if count <= 0:
        return Interval(0.0, high)
    low = count * (1 - 1 / (9 * count) - z / (3 * math.sqrt(count))) ** 3
    return Interval(max(0.0, low), high)
