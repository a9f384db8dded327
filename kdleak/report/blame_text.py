"""Blame as text: through which layers, which driver, and who owns the tag."""

from __future__ import annotations

from typing import Sequence

from kdleak.blamed import LayerUse
from kdleak.blaming.blamed_modules import details_of
from kdleak.quantities import amount
from kdleak.report.page import Page
from kdleak.result import CallSite, HuntResult


def blame_lines(page: Page, result: HuntResult, site: CallSite) -> None:
    """Below a call site: on whose behalf it allocates, and what is known of that driver."""
    if not site.allocs:
        return
    if site.blame.address != site.frame.address:
        words = f"on behalf of {site.blame.symbol}, {through_words(site.through)}"
        if not site.blame_found:
            words = f"nothing but framework layers up to {site.blame.symbol}: {layers(site)}"
        page.paragraph(words, indent=6, hanging=2)
    details = details_of(result, site)
    if details is not None:
        page.paragraph(f"driver: {details}", indent=6, hanging=2)


def through_words(through: Sequence[LayerUse]) -> str:
    """``through 5 frames of Wdf01000 (KMDF), ndis (NDIS)``."""
    count = sum(use.frames for use in through)
    return f"through {amount(count, 'frame')} of {_named(through)}"


def layers(site: CallSite) -> str:
    """The layers of a call site, without their number."""
    return _named(site.through)


def owner_line(page: Page, result: HuntResult) -> None:
    """What the user's list says of the tag; nothing when it says nothing."""
    owner = result.tag_owner
    if owner is not None:
        page.paragraph(f"{owner.source} says of '{result.tag}': {owner.words}.", hanging=2)


def _named(through: Sequence[LayerUse]) -> str:
    named = (f"{use.module} ({use.words})" if use.words else use.module for use in through)
    return ", ".join(dict.fromkeys(named))
