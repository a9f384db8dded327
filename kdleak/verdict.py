"""The verdict: what the figures of a call site allow to be said, in plain words.

Rules, in order:

1. No allocation seen: only a place that frees.
2. Fewer than ``MIN_SAMPLE`` blocks whose fate is known: nothing is said.
3. Blocks in use when a burst ended (young ones) went out of sight and are left out.
   Most other blocks stay (``MANY_STAY``), or enough of them stay far longer than what is
   allocated at the same place usually lives: accused.
   A few blocks that stay far longer are no proof, but no clearance either: suspected.
4. Of an accusation a suspicion remains when as many blocks from before the watch came back as
   blocks of it stayed: the tag's blocks simply live longer than we watched.
5. Nor is anybody accused whose blocks stay but stopped getting more (a cache that filled up), or
   got fewer by half on the way (they do come back); see ``kdleak.booking.growth_series``.
6. Blocks whose address is not known cannot be paired. Each free can cancel only one of them, so
   allocations minus all unpaired frees is the least that must have stayed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Sequence, Tuple

from kdleak.booking.confidence import wilson
from kdleak.booking.growth_series import NO_SHAPE, Shape
from kdleak.model import Pool
from kdleak.result import CallSite, Interval, Judgement, Pairing, SiteGrowth, TagGrowth

MIN_SAMPLE = 5
"""Blocks of known fate below which a call site is neither accused nor cleared."""

MANY_STAY = 0.5
"""Part of a site's blocks that must stay for an accusation by number alone."""

TOO_MANY_TO_CLEAR = 0.2
"""Part of blocks still there that forbids clearing a site, however young they are."""

SOME_STAY = 0.02
"""Part below which a handful of long-lived blocks is no leak."""


@dataclass(frozen=True)
class SiteFacts:
    """The counts of one call site the verdict rests on; see ``CallSite`` for their meaning.

    Attributes:
        min_age: seconds the user gave beyond which a block is old; None for automatic.
        least_age: seconds beyond which a block of this site is old.
        shape: how ``outstanding`` moved.
        share: 95 % interval of the share of blocks that stays, where the hunt was sampled; None
            where ``outstanding`` of ``known`` tells it.
    """

    allocs: int
    frees: int
    unaddressed: int
    unwatched: int
    returned: int
    replaced: int
    outstanding: int
    outstanding_old: int
    longest_life: Optional[float]
    outstanding_old_bytes: int = 0
    min_age: Optional[float] = None
    least_age: float = 0.0
    shape: Shape = NO_SHAPE
    share: Optional[Interval] = None

    @property
    def share_staying(self) -> Optional[Interval]:
        """95 % interval of the share of blocks that stays; None when no fate is known."""
        return self.share if self.share is not None else wilson(self.outstanding, self.known)

    @property
    def known(self) -> int:
        """Allocations whose block was followed to a free or to the end of the hunt."""
        return self.allocs - self.unaddressed - self.unwatched


@dataclass(frozen=True)
class Evidence:
    """What is known of the hunt as a whole.

    Attributes:
        pairing: how well frees could be matched.
        share_watched: part of the time during which the tag was armed, 0 to 1.
    """

    pairing: Pairing
    share_watched: float = 1.0


def judge(facts: SiteFacts, evidence: Evidence) -> Tuple[Judgement, str]:
    """Judge one call site and say why."""
    if facts.allocs == 0:
        return Judgement.FREES_ONLY, f"Only frees were seen here ({facts.frees})."
    if facts.known < MIN_SAMPLE <= facts.unaddressed:
        return _judge_unaddressed(facts, evidence.pairing)
    if facts.known < MIN_SAMPLE:
        return (
            Judgement.TOO_FEW,
            f"{_staying(facts)}: too few to say anything (at least {MIN_SAMPLE} are needed).",
        )
    judgement, sentence = _judge_paired(facts)
    if judgement is Judgement.ACCUSED:
        judgement, more = _judge_growth(facts)
        sentence += more
    if judgement is Judgement.ACCUSED:
        judgement, doubt = _doubt(evidence)
        sentence += doubt
    return judgement, sentence


def _judge_paired(facts: SiteFacts) -> Tuple[Judgement, str]:
    if facts.outstanding == 0:
        return Judgement.CLEARED, f"All {_followed(facts)} came back{_at_most(facts)}."
    share = facts.outstanding / facts.known
    old = facts.outstanding_old
    if facts.min_age is None:
        usual = f"what is allocated here usually lives (at most {_seconds(facts.longest_life)})"
        older, no_older = f"far older than {usual}", "no older than usual"
    else:
        older = f"older than {_seconds(facts.min_age)}"
        no_older = f"no {older}"
    if old >= MIN_SAMPLE and (share >= MANY_STAY or old / facts.known >= SOME_STAY):
        age = _seconds(facts.least_age)
        if share < MANY_STAY:
            said = f"{_staying(facts)}, and {old} of them are {older}"
        elif old == facts.outstanding:
            said = f"{_staying(facts)}, all of them older than {age}"
        else:
            said = f"{_staying(facts)}, {old} of them older than {age}"
        return Judgement.ACCUSED, f"{said}; {_confidence(facts)}."
    if old and (facts.longest_life is not None or facts.min_age is not None):
        stayed = "are " if facts.min_age is not None else "stayed far longer than "
        what = older if facts.min_age is not None else usual
        return (
            Judgement.SUSPECTED,
            f"{old} of {_followed(facts)} {stayed}{what}: too few to be sure. Watch longer.",
        )
    if share >= TOO_MANY_TO_CLEAR:
        return (
            Judgement.TOO_FEW,
            (
                f"{_staying(facts)}, but too few of them are old enough (above "
                f"{_seconds(facts.least_age)}) to tell a leak from blocks in use. Watch longer."
            ),
        )
    rest = "is" if facts.outstanding == 1 else "are"
    return (
        Judgement.CLEARED,
        (
            f"All but {facts.outstanding} of {_followed(facts)} came back, and what is left {rest} "
            f"{no_older}{_at_most(facts)}."
        ),
    )


def _judge_growth(facts: SiteFacts) -> Tuple[Judgement, str]:
    """Whether an accusation stands when the way to it is looked at."""
    shape = facts.shape
    if shape.growth is SiteGrowth.LEVELLED_OFF:
        late = f"only {shape.late} more" if shape.late > 0 else "none more"
        return (
            Judgement.LEVELLED_OFF,
            f" But their number levelled off after {_seconds(shape.filled_at)}: {late} in the "
            f"{_seconds(shape.flat_seconds)} since, as with a cache that filled up. Not accused; "
            "if what leaks may have paused, hunt again while it runs.",
        )
    if shape.growth in (SiteGrowth.UP_AND_DOWN, SiteGrowth.FLAT):
        return (
            Judgement.SUSPECTED,
            " But their number fell by half or more on the way: such blocks do come back, only "
            "late. Watch longer.",
        )
    if shape.growth is SiteGrowth.TOO_FEW:
        return (
            Judgement.SUSPECTED,
            " But it was watched for too few moments to tell a leak from a cache that fills up. "
            "Watch longer.",
        )
    return Judgement.ACCUSED, " Their number grew to the end."


def _confidence(facts: SiteFacts) -> str:
    """The ratio of allocations to frees, and how well the sample tells it."""
    interval = facts.share_staying
    if interval is None:
        return "no block was followed"
    return (
        f"{facts.known} allocated to {facts.known - facts.outstanding} freed, so "
        f"{interval.low:.0%} to {interval.high:.0%} of such blocks stay (95 % confidence)"
    )


def _at_most(facts: SiteFacts) -> str:
    """What the sample cannot rule out."""
    interval = facts.share_staying
    if interval is None or facts.known < MIN_SAMPLE:
        return ""
    return f" (at most {interval.high:.1%} stay, 95 % confidence)"


def _doubt(evidence: Evidence) -> Tuple[Judgement, str]:
    pairing = evidence.pairing
    # At a pause some blocks in use go out of sight, and about as many freed after it are unknown.
    older = max(0, pairing.frees_of_older - pairing.unwatched) + pairing.frees_unaddressed
    if older >= pairing.outstanding * 0.5:
        return (
            Judgement.SUSPECTED,
            (
                f" But {older} blocks from before the "
                "watch (or of unknown address) were freed meanwhile: these blocks may live longer "
                "than was watched. Watch longer."
            ),
        )
    if evidence.share_watched < 0.9:
        return (
            Judgement.ACCUSED,
            f" Watched {evidence.share_watched:.0%} of the time; frees in between were not seen.",
        )
    return Judgement.ACCUSED, ""


def _judge_unaddressed(facts: SiteFacts, pairing: Pairing) -> Tuple[Judgement, str]:
    frees = pairing.frees_unaddressed + pairing.frees_of_older
    allocs = facts.unaddressed
    least = allocs - frees
    if least >= MIN_SAMPLE and least >= allocs * MANY_STAY:
        return (
            Judgement.SUSPECTED,
            (
                f"{allocs} blocks were allocated here and only {frees} blocks of the tag freed "
                f"that could be among them, so at least {least} stayed. Their addresses are not "
                "known, so frees could not be matched one by one."
            ),
        )
    return (
        Judgement.TOO_FEW,
        (
            f"{allocs} blocks were allocated here; their addresses are not known, so frees "
            f"({frees} of unknown origin) could not be matched."
        ),
    )


def _staying(facts: SiteFacts) -> str:
    return f"{facts.outstanding} of {_followed(facts)} were not freed while watched"


def _followed(facts: SiteFacts) -> str:
    """The blocks whose fate is known, and how many more there are."""
    text = f"{facts.known} blocks allocated here"
    more = []
    if facts.unaddressed:
        more.append(f"{facts.unaddressed} more of unknown address")
    if facts.unwatched:
        more.append(f"{facts.unwatched} more out of sight in a pause")
    return f"{text} ({', '.join(more)})" if more else text


def _seconds(value: Optional[float]) -> str:
    if value is None:
        return "0 s"
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"


def choose_accused(sites: Sequence[CallSite]) -> Optional[CallSite]:
    """The accused site that holds most bytes in old blocks; None when none is accused."""
    accused = [site for site in sites if site.judgement is Judgement.ACCUSED]
    if not accused:
        return None
    return max(
        accused,
        key=lambda site: (
            site.outstanding_old_bytes,
            site.outstanding_bytes,
            site.outstanding,
            -site.frame.address,
        ),
    )


def verdict_sentences(
    tag: str, sites: Sequence[CallSite], growth: Optional[TagGrowth], hits: int
) -> Tuple[str, ...]:
    """The answer of a hunt in words, the most important sentence first."""
    if hits == 0:
        return (f"No allocation or free of tag '{tag}' was seen.", *_growth_words(tag, growth))
    accused = choose_accused(sites)
    said = []
    if accused is not None:
        said.append(
            f"{accused.frame.symbol} allocates blocks of tag '{tag}' that stay: {accused.sentence}"
        )
        if accused.blame.address != accused.frame.address:
            said.append(
                f"It does so for {accused.blame.symbol}, the first frame outside framework layers."
                if accused.blame_found
                else "There are only framework layers on its stack, so for whom it does so is not "
                f"known; the outermost is {accused.blame.symbol}."
            )
        said.append(_scaled_words(accused))
        others = sum(site.judgement is Judgement.ACCUSED for site in sites) - 1
        if others:
            said.append(f"{others} more call site{'s are' if others > 1 else ' is'} accused too.")
    else:
        suspected = [site for site in sites if site.judgement is Judgement.SUSPECTED]
        if suspected:
            said.append(
                f"No call site can be accused. Most suspicious: {suspected[0].frame.symbol}: "
                f"{suspected[0].sentence}"
            )
        elif any(site.unaddressed >= MIN_SAMPLE for site in sites):
            said.append(
                f"No call site can be accused: the addresses of the blocks of tag '{tag}' are not "
                "known at these hits, so frees could not be matched to allocations."
            )
        elif any(site.judgement is Judgement.LEVELLED_OFF for site in sites):
            said += [
                f"{site.frame.symbol} is not accused: {site.sentence}"
                for site in sites
                if site.judgement is Judgement.LEVELLED_OFF
            ]
        elif any(site.judgement is Judgement.TOO_FEW for site in sites):
            said.append(
                f"Too little was seen of tag '{tag}' to accuse a call site; "
                "hunt longer (--seconds, --hits)."
            )
        else:
            said.append(_all_came_back(tag, sites))
            said.append(_limit(sites))
            if growth is not None and growth.blocks > 0:
                said.append("Its counters say otherwise, so watch longer (--seconds, --hits).")
    said.extend(_growth_words(tag, growth))
    return tuple(sentence for sentence in said if sentence)


def _scaled_words(site: CallSite) -> str:
    """What a sampled call site comes to over the whole hunt."""
    if site.scaled is None:
        return ""
    blocks, size = site.scaled.blocks_within, site.scaled.bytes_within
    return (
        f"Over the whole hunt, the time between bursts included, that is about "
        f"{site.scaled.blocks:,.0f} blocks ({blocks.low:,.0f} to {blocks.high:,.0f}) or "
        f"{site.scaled.bytes:,.0f} bytes ({size.low:,.0f} to {size.high:,.0f}; 95 % confidence)."
    )


def _limit(sites: Sequence[CallSite]) -> str:
    """What the sample could not have shown: of n blocks none stayed (the rule of three)."""
    followed = min(
        (site.returned for site in sites if site.judgement is Judgement.CLEARED), default=0
    )
    if followed < MIN_SAMPLE:
        return ""
    return f"A leak of fewer than about 1 in {max(2, followed // 3)} blocks would not have shown."


def _all_came_back(tag: str, sites: Sequence[CallSite]) -> str:
    allocs = sum(site.allocs for site in sites)
    outstanding = sum(site.outstanding for site in sites)
    if allocs == 0:
        return f"Only frees of tag '{tag}' were seen, so nothing can be said about who allocates."
    if outstanding:
        return (
            f"What is allocated with tag '{tag}' comes back: {outstanding} of {allocs} blocks "
            "were still in use at the end, none of them for unusually long."
        )
    lost = sum(site.unaddressed + site.unwatched for site in sites)
    if lost:
        return (
            f"Every block of tag '{tag}' that could be followed came back; {lost} of {allocs} "
            "could not."
        )
    return f"Every block of tag '{tag}' allocated while watched came back."


def _growth_words(tag: str, growth: Optional[TagGrowth]) -> Tuple[str, ...]:
    if growth is None:
        return ()
    parts = [
        f"{pool.value} {growth.bytes_in(pool):+,} bytes in {growth.blocks_in(pool):+,} blocks"
        for pool in Pool
        if growth.bytes_in(pool) or growth.blocks_in(pool)
    ]
    if not parts:
        return (f"Meanwhile the counters of tag '{tag}' ended where they began.",)
    return (
        f"Meanwhile the counters of tag '{tag}' moved in {growth.seconds:.1f} s: "
        f"{', '.join(parts)}.",
    )
