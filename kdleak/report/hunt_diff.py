"""Two hunts of one tag compared, before and after a fix: which call sites still leak.

What is compared is the share of blocks allocated at a call site that stay, with its 95 % interval:
it does not depend on how busy the target was or how long each hunt watched. Bytes per hour are
given beside it.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Optional, Sequence, Tuple

from kdleak.booking.confidence import binomial_at_most
from kdleak.report.html_data import size
from kdleak.report.hunt_diff_sites import Pair, SiteFigures, pair_sites, site_figures
from kdleak.report.result_document import Node
from kdleak.report.sanitise import sanitise

_CHANCE = 0.01
# Of seeing no block stay although as many stay as before: below it "fixed" is said.
_EXPECTED = 20
# Allocations that must have been expected of a call site before its silence says anything.


class Outcome(enum.Enum):
    """What became of a call site, or of the tag as a whole."""

    FIXED = "fixed"
    """It leaked before, and would have been seen to leak now."""
    LESS = "leaks less"
    """It still leaks, but fewer of its blocks stay."""
    STILL = "still leaks"
    WORSE = "worse"
    """It leaks, and more of its blocks stay than before."""
    NEW = "new leak"
    """It leaks now and did not before."""
    CLEAN = "no leak"
    """It leaks in neither hunt."""
    CANNOT_TELL = "cannot tell"


LEAKING = (Outcome.WORSE, Outcome.NEW, Outcome.STILL, Outcome.LESS)
"""Outcomes of a tag that leaks now, the worst first."""


@dataclass(frozen=True)
class HuntFigures:
    """One of the hunts.

    Attributes:
        name: of its file.
        tag: the tag hunted; "" for none.
        target: description.
        architecture: of the target.
        engine: that drove the target.
        started_at: as in the result; "" when not told.
        hits: recorded.
        seconds: from the first arming to the last disarming.
        seconds_watched: of those, armed.
        bursts: times it was armed.
        scaled: whether every call site has figures for the pauses as well.
    """

    name: str
    tag: str
    target: str
    architecture: str
    engine: str
    started_at: str
    hits: int
    seconds: float
    seconds_watched: float
    bursts: int
    scaled: bool


@dataclass(frozen=True)
class SiteChange:
    """What became of one call site.

    Attributes:
        pair: its figures in both hunts.
        outcome: see Outcome.
        sentence: why, in words.
    """

    pair: Pair
    outcome: Outcome
    sentence: str


@dataclass(frozen=True)
class HuntComparison:
    """Two hunts compared.

    Attributes:
        before: the earlier one.
        after: the later one.
        outcome: of the tag as a whole.
        sentence: the answer in words.
        sites: call sites that allocate, the worst outcome first.
        remarks: what to know about the comparison.
    """

    before: HuntFigures
    after: HuntFigures
    outcome: Outcome
    sentence: str
    sites: Tuple[SiteChange, ...]
    remarks: Tuple[str, ...]


def compare_hunts(before: Node, after: Node) -> HuntComparison:
    """Compare two "kdleak.hunt" documents.

    Raises:
        UsageError: one of them is damaged.
    """
    first, second = _figures(before), _figures(after)
    remarks = _remarks(first, second)
    why = _incomparable(first, second)
    if why:
        return HuntComparison(
            first, second, Outcome.CANNOT_TELL, f"Cannot tell: {why}", (), remarks
        )
    scaled = first.scaled and second.scaled
    pairs = pair_sites(
        site_figures(before, scaled=scaled and first.bursts > 1),
        site_figures(after, scaled=scaled and second.bursts > 1),
    )
    busy = any(pair.before and pair.after and pair.after.allocs for pair in pairs)
    changes = [_change(pair, first, second, busy=busy) for pair in pairs]
    order = [*LEAKING, Outcome.CANNOT_TELL, Outcome.FIXED, Outcome.CLEAN]
    changes.sort(key=lambda change: (order.index(change.outcome), -_weight(change.pair)))
    outcome, sentence = _whole(changes, first.tag)
    return HuntComparison(first, second, outcome, sentence, tuple(changes), remarks)


def _figures(hunt: Node) -> HuntFigures:
    done, target, tag = hunt.node("completeness"), hunt.node("target"), hunt.find_node("tag")
    bursts = done.integer("bursts", 0)
    return HuntFigures(
        name=hunt.name,
        tag=sanitise(tag.text("text")) if tag is not None else "",
        target=sanitise(target.text("description", "")),
        architecture=sanitise(target.text("architecture", "")),
        engine=sanitise(hunt.text("engine", "")),
        started_at=sanitise(hunt.text("started_at", "")),
        hits=done.integer("hits", 0),
        seconds=done.number("seconds", 0.0),
        seconds_watched=done.number("seconds_watched", 0.0),
        bursts=bursts,
        scaled=bursts == 1
        or all(
            site.has("scaled") for site in hunt.nodes("call_sites") if site.integer("allocs", 0)
        ),
    )


def _incomparable(before: HuntFigures, after: HuntFigures) -> str:
    for hunt in (before, after):
        if not hunt.tag:
            return f"{hunt.name} hunted no tag; hunt with --tag so that both hunt the same."
    if before.tag != after.tag:
        return f"the hunts are of different tags, '{before.tag}' and '{after.tag}'."
    for hunt in (before, after):
        if not hunt.hits or not hunt.seconds_watched:
            return f"{hunt.name} saw no allocation of '{hunt.tag}'."
    return ""


def _remarks(before: HuntFigures, after: HuntFigures) -> Tuple[str, ...]:
    remarks = []
    if before.started_at and after.started_at and before.started_at > after.started_at:
        remarks.append("The hunt named first is the later one; was the order meant?")
    if before.architecture != after.architecture:
        remarks.append(
            f"The targets differ: {before.architecture} before, {after.architecture} after."
        )
    elif before.target != after.target:
        remarks.append(f"The targets differ: {before.target} before, {after.target} after.")
    for hunt in (before, after):
        if hunt.bursts > 1:
            share = hunt.seconds_watched / hunt.seconds if hunt.seconds else 0.0
            remarks.append(f"{hunt.name} was sampled: watched {share:.0%} of the time.")
    if not (before.scaled and after.scaled):
        remarks.append(
            "Not both can be scaled to the whole of their hunts, so bytes per hour are those of "
            "the time watched."
        )
    return tuple(remarks)


def _change(pair: Pair, before: HuntFigures, after: HuntFigures, *, busy: bool) -> SiteChange:
    if pair.before is not None and pair.after is not None:
        outcome, sentence = _of_both(pair.before, pair.after)
    elif pair.before is not None:
        outcome, sentence = _gone(pair.before, before, after, busy=busy)
    elif pair.after is not None:
        outcome, sentence = _appeared(pair.after)
    else:
        raise ValueError("a pair without sides")
    return SiteChange(pair, outcome, sentence)


def _of_both(before: SiteFigures, after: SiteFigures) -> Tuple[Outcome, str]:
    shares = f"{_share(before)} before, {_share(after)} after"
    if before.leaks and after.leaks:
        return _both_leak(before, after, shares)
    if before.leaks:
        return _no_longer(before, after, shares)
    if after.leaks and before.judgement in ("cleared", "levelled_off"):
        return Outcome.NEW, f"it leaks and did not before: {shares}."
    if after.leaks:
        unknown = "it leaks; whether it did before cannot be told, too little was seen"
        return Outcome.STILL, f"{unknown}: {shares}."
    few = after.judgement == "too_few"
    seen = "no leak was seen, but too few allocations to be sure."
    return Outcome.CLEAN, seen if few else "it leaks in neither hunt."


def _both_leak(before: SiteFigures, after: SiteFigures, shares: str) -> Tuple[Outcome, str]:
    first, second = before.share_within, after.share_within
    rates = f"{size(before.bytes_per_hour)} per hour before, {size(after.bytes_per_hour)} after"
    if first is None or second is None:
        return Outcome.STILL, f"it is accused in both hunts ({rates})."
    if second.low > first.high:
        return Outcome.WORSE, f"a greater part of its blocks stays: {shares} ({rates})."
    if second.high < first.low:
        return Outcome.LESS, f"fewer of its blocks stay: {shares} ({rates})."
    return Outcome.STILL, f"about as many of its blocks stay: {shares} ({rates})."


def _no_longer(before: SiteFigures, after: SiteFigures, shares: str) -> Tuple[Outcome, str]:
    low = before.share_within.low if before.share_within is not None else 0.0
    # As many staying as before, at the least: how likely is it that no more than these were seen?
    if low > 0 and binomial_at_most(after.stayed, after.followed, low) < _CHANCE:
        none = "none" if after.stayed == 0 else "far fewer"
        return Outcome.FIXED, f"{none} of its {after.followed:,} blocks stayed: {shares}."
    if after.stayed == 0 and 0 < low < 1:
        needed = math.ceil(math.log(_CHANCE) / math.log1p(-low))
        return (
            Outcome.CANNOT_TELL,
            f"too few allocations were seen after: {after.followed:,}; watch for at least "
            f"{needed:,}.",
        )
    return Outcome.CANNOT_TELL, f"it is no longer accused, but the figures overlap: {shares}."


def _gone(
    before: SiteFigures, first: HuntFigures, second: HuntFigures, *, busy: bool
) -> Tuple[Outcome, str]:
    if not before.leaks:
        return Outcome.CLEAN, "it did not leak and allocates no more."
    expected = before.allocs / first.seconds_watched * second.seconds_watched
    if busy and expected >= _EXPECTED:
        return (
            Outcome.FIXED,
            f"it allocates no more, though about {expected:,.0f} allocations were to be expected "
            "and others of the tag went on.",
        )
    return (
        Outcome.CANNOT_TELL,
        "it was not seen to allocate after; make sure that the same work is done, or watch longer.",
    )


def _appeared(after: SiteFigures) -> Tuple[Outcome, str]:
    if after.judgement == "accused":
        return Outcome.NEW, f"it was not seen before, and leaks: {_share(after)}."
    if after.leaks:
        return Outcome.CANNOT_TELL, f"it was not seen before, and may leak: {_share(after)}."
    return Outcome.CLEAN, "it was not seen before, and does not leak."


def _whole(changes: Sequence[SiteChange], tag: str) -> Tuple[Outcome, str]:
    found: Optional[SiteChange] = changes[0] if changes else None
    if found is None:
        return Outcome.CANNOT_TELL, f"Cannot tell: neither hunt saw '{tag}' allocated."
    name = found.pair.name
    more = sum(1 for change in changes if change.outcome in LEAKING) - 1
    others = f" {more:,} more call site{'s leak' if more > 1 else ' leaks'}." if more > 0 else ""
    sentences = {
        Outcome.WORSE: f"Worse: {name}: {found.sentence}{others}",
        Outcome.NEW: f"New leak: {name}: {found.sentence}{others}",
        Outcome.STILL: f"Still leaks: {name}: {found.sentence}{others}",
        Outcome.LESS: f"Leaks less, but leaks: {name}: {found.sentence}{others}",
        Outcome.CANNOT_TELL: f"Cannot tell: {name}: {found.sentence}",
        Outcome.FIXED: f"Fixed: {name}: {found.sentence}",
        Outcome.CLEAN: f"No leak of '{tag}' in either hunt.",
    }
    return found.outcome, sentences[found.outcome]


def _share(site: SiteFigures) -> str:
    text = f"{site.stayed:,} of {site.followed:,}"
    if site.share_within is not None:
        text += f" ({site.share_within.low:.0%} to {site.share_within.high:.0%})"
    return text


def _weight(pair: Pair) -> float:
    return max((side.bytes_per_hour for side in (pair.before, pair.after) if side), default=0.0)
