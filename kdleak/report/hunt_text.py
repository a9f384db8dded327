"""The hunt as text: the verdict in words first, the safety line last."""

from __future__ import annotations

from typing import Sequence

from kdleak.booking.tallies import LEAST_AGE, OLD_FACTOR
from kdleak.errors import format_address
from kdleak.model import Pool, Stack, TargetInfo
from kdleak.pool_hit_tag import SYMBOL
from kdleak.quantities import amount
from kdleak.report.blame_text import blame_lines, owner_line
from kdleak.report.page import Page, column_widths, duration, number, signed, unknown
from kdleak.report.palette import PLAIN, Palette
from kdleak.report.rank_text import rank_table
from kdleak.result import (
    CallSite,
    CheckStatus,
    DisarmState,
    DisarmStatus,
    HuntResult,
    Judgement,
    Scaled,
    SiteGrowth,
)

_ROLES = {
    Judgement.ACCUSED: "bad",
    Judgement.SUSPECTED: "warn",
    Judgement.LEVELLED_OFF: "good",
    Judgement.CLEARED: "good",
    Judgement.TOO_FEW: "quiet",
    Judgement.FREES_ONLY: "quiet",
}


def render_hunt(
    result: HuntResult, *, width: int = 100, style: Palette = PLAIN, top: int = 10
) -> str:
    """A hunt as text.

    Args:
        result: whole or partial.
        width: characters per line.
        style: colours; ``PLAIN`` writes no escape sequence.
        top: call sites to show.

    Returns:
        The text; the safety line is the last one. Ends with a newline.
    """
    page = Page(width, style)
    tag = f"'{result.tag}'" if result.tag is not None else "no tag"
    replayed = result.disarm.replayed
    page.line(
        f"{'Replayed hunt' if replayed else 'Hunt'} of {tag} in {result.where} "
        f"({target_words(result.target)}, {result.engine})"
    )
    page.heading("Verdict")
    for index, sentence in enumerate(result.verdict):
        accusation = index == 0 and result.accused is not None
        page.paragraph(sentence, hanging=2, role="bad" if accusation else "")
    owner_line(page, result)
    _ending(page, result)
    if result.sites:
        _sites(page, result, top)
        _stack_of_top(page, result)
    if result.checklist:
        _checklist(page, result)
    if result.rank is not None and result.rank.rows:
        page.heading("Ranking")
        page.paragraph(result.tag_reason)
        rank_table(page, result.rank, top=min(top, 5))
    _growth(page, result)
    if result.change is not None:
        _watched(page, result)
        _pairing(page, result)
    notes(page, "Missing", result.completeness.gaps)
    notes(page, "Remarks", (*result.remarks, *result.disarm.remarks))
    if result.change is not None:
        change = result.change
        back = "and back" if result.disarm.status is DisarmStatus.CONFIRMED else "see below"
        page.heading(f"Changed in the target{', as recorded' if replayed else ''}")
        page.paragraph(
            f"{SYMBOL} at {format_address(change.address)}: 0x{change.original:08x} to "
            f"0x{change.armed:08x} ({result.tag}), "
            f"{amount(change.times_armed, 'time')}, {back}."
        )
    page.line("")
    safety(page, result.disarm)
    return page.text()


def target_words(target: TargetInfo) -> str:
    """One clause for the target: ``build 26100 x64``."""
    return f"build {target.build} {target.architecture.value}"


def safety(page: Page, state: DisarmState) -> None:
    """The repair commands where they are needed, then the safety line."""
    for command in state.repair:
        page.whole(f"  {command}", "bad")
    role = "good" if state.safe else "bad"
    page.whole(state.sentence(), role if state.status is not DisarmStatus.NOT_NEEDED else "quiet")


def notes(page: Page, title: str, sentences: Sequence[str]) -> None:
    """A list of sentences under a title; nothing when there are none."""
    if sentences:
        page.heading(title)
        for sentence in sentences:
            page.paragraph(f"- {sentence}", hanging=2)


def stack_lines(page: Page, stack: Stack) -> None:
    """The frames of a stack, one per line, and why it ends early if it does."""
    for index, frame in enumerate(stack.frames):
        page.line(f"  {index:3} {format_address(frame.address)} {frame.symbol}")
    if stack.end.name not in ("COMPLETE", "USER_MODE"):
        page.line(f"      (ends here: {stack.end.value})", plain=False)


def _ending(page: Page, result: HuntResult) -> None:
    text = f"The hunt ended: {result.stop_reason.value}."
    if result.error:
        text += f" ({result.error.rstrip('.')}.)"
    page.paragraph(text, hanging=2)
    if result.stop is not None:
        stop = result.stop
        detail = f", {stop.detail}" if stop.detail else ""
        page.heading("The target waits for you")
        page.paragraph(
            f"{stop.kind.value} (code 0x{stop.code:08x}{detail}) at "
            f"{format_address(stop.program_counter)}, processor {stop.processor}. It is left "
            "stopped; look at it in a debugger, then let it run.",
            role="warn",
        )
        stack_lines(page, result.stop_stack)


def _sites(page: Page, result: HuntResult, top: int) -> None:
    sites = result.sites
    shown = sites[:top]
    titles = ("Outstanding", "Blocks", "Old", "Allocs", "Freed here")
    rows = [
        (
            unknown(site.outstanding_bytes, site.outstanding_unsized),
            unknown(site.outstanding, site.unaddressed),
            number(site.outstanding_old),
            number(site.allocs),
            number(site.frees),
        )
        for site in shown
    ]
    widths = column_widths(titles, rows)
    more = f" (top {len(shown)} of {len(sites)})" if len(sites) > len(shown) else ""
    page.heading(f"Call sites{more}")
    page.row(titles, widths, "Call site")
    for site, row in zip(shown, rows):
        page.row(row, widths, str(site.frame.symbol), _ROLES[site.judgement])
        if site.judgement is not Judgement.FREES_ONLY:  # the columns say it all
            page.paragraph(f"{site.judgement.value}: {site.sentence}", indent=6, hanging=2)
            _more_of(page, site)
        blame_lines(page, result, site)

    page.paragraph(_old_words(result), hanging=2)


def _more_of(page: Page, site: CallSite) -> None:
    """Ages and growth of what is outstanding, and what it comes to over a sampled hunt."""
    if site.oldest_age is not None and site.median_age is not None:
        words = f"oldest {_age(site.oldest_age)}, median age {_age(site.median_age)}"
        if site.growth is not SiteGrowth.TOO_FEW:
            words += f"; over the watch: {site.growth.value}"
        page.paragraph(words, indent=6, hanging=2)
    if site.scaled is not None:
        page.paragraph(f"whole hunt: {scaled_words(site.scaled)}", indent=6, hanging=2)


def _age(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def scaled_words(scaled: Scaled) -> str:
    """A scaled figure with its error bars: ``+120 blocks (+90 to +150), +11,520 bytes (...)``."""
    return ", ".join(
        f"{signed(round(middle))} {unit} ({signed(round(within.low))} to "
        f"{signed(round(within.high))})"
        for middle, within, unit in (
            (scaled.blocks, scaled.blocks_within, "blocks"),
            (scaled.bytes, scaled.bytes_within, "bytes"),
        )
    )


def _old_words(result: HuntResult) -> str:
    if result.min_age is not None:
        return f"Old: blocks older than {_age(result.min_age)} (--min-age)."
    return (
        f"Old: blocks older than {OLD_FACTOR:g} times the longest life seen at their call site, "
        f"or than {_age(LEAST_AGE)} where no block was seen freed (--min-age sets it)."
    )


def _stack_of_top(page: Page, result: HuntResult) -> None:
    site = result.accused or result.sites[0]
    often = ""
    if site.distinct_stacks > 1:
        often = f", the commonest of {site.distinct_stacks}"
    page.heading(f"Stack of {site.frame.symbol}{often}")
    stack_lines(page, site.stack)


def _checklist(page: Page, result: HuntResult) -> None:
    page.heading("No hits: what may be the reason")
    roles = {CheckStatus.LIKELY: "bad", CheckStatus.POSSIBLE: "warn", CheckStatus.RULED_OUT: ""}
    for check in result.checklist:
        page.paragraph(
            f"{check.status.value + ':':10} {check.question}: {check.evidence}.",
            hanging=11,
            role=roles[check.status],
        )


def _growth(page: Page, result: HuntResult) -> None:
    growth = result.growth
    if growth is None or result.tag is None:
        return
    page.heading(f"Counters of '{result.tag}' over {duration(growth.seconds)}")
    titles = ("Pool", "Allocs", "Frees", "Outstanding", "Bytes", "Growth")
    rows = []
    for pool in Pool:
        before, after = growth.before.of(pool), growth.after.of(pool)
        rows.append(
            (
                pool.value,
                signed(after.allocs - before.allocs),
                signed(after.frees - before.frees),
                number(after.outstanding),
                number(after.bytes),
                signed(growth.bytes_in(pool)),
            )
        )
    widths = column_widths(titles, rows)
    page.row(titles, widths, "")
    for row in rows:
        page.row(row, widths, "")


def _watched(page: Page, result: HuntResult) -> None:
    done = result.completeness
    page.heading("Watched")
    text = (
        f"{done.hits:,} hits in {done.seconds:.1f} s; armed {done.share_watched:.0%} of the time"
        f" in {amount(done.bursts, 'burst')}; target stopped "
        f"{done.share_stopped:.0%} of the time"
    )
    if done.requests and done.hits:
        text += f"; {done.requests:,} requests in all"
    page.paragraph(text + ".", hanging=2)
    if result.scaling is not None:
        scaling = result.scaling
        page.paragraph(f"Figures for the whole hunt: {scaling.method}.", hanging=2)
        page.paragraph(f"All call sites together: {scaled_words(scaling.total)}.", hanging=2)
        if scaling.unattributed_frees:
            page.paragraph(
                f"Frees that could not be put down to a call site: {scaling.unattributed_frees:,}; "
                "the lower ends allow for each of them.",
                hanging=2,
            )
    elif done.bursts > 1 and result.growth is None:
        page.paragraph(
            "Not scaled to the whole hunt: the kernel's counters, which tell how much there was, "
            "were not read.",
            hanging=2,
        )
    short = done.unaddressed or any(site.outstanding_unsized for site in result.sites)
    # A free is often of a block whose allocation told the size.
    left_out = "so left out of the bytes" if short else "none of them of an outstanding block"
    for count, words in (
        (done.late_hits, "that arrived after a disarm"),
        (done.broken_stacks, "with a stack that ends early"),
        (done.unaddressed, "without a known block address, so left out of the pairing"),
        (done.hits_left_out, "in all figures, but too many to be listed one by one in JSON"),
        (done.unsized, f"without a known block size, {left_out}"),
    ):
        if count:
            page.paragraph(f"Hits {words}: {count:,}.")


def _pairing(page: Page, result: HuntResult) -> None:
    pairing = result.pairing
    parts = [f"Frees matched to their allocation: {pairing.paired:,}"]
    for count, words in (
        (
            pairing.frees_of_older - pairing.frees_after_pause,
            "frees of blocks from before the watch",
        ),
        (
            pairing.frees_after_pause,
            "frees of blocks from before the watch or from a pause",
        ),
        (pairing.frees_unaddressed, "frees of unknown address"),
        (pairing.replaced, "blocks freed unseen (their address came again)"),
        (pairing.unwatched, "blocks out of sight in a pause"),
    ):
        if count:
            parts.append(f"{words}: {count:,}")
    page.paragraph("; ".join(parts) + ".", hanging=2)
