"""The code that asks for a pool tag, as text."""

from __future__ import annotations

from typing import List, Sequence

from kdleak.errors import format_address
from kdleak.found import SiteKind, SiteSearch, TagSite
from kdleak.quantities import amount
from kdleak.report.page import Page
from kdleak.report.palette import PLAIN, Palette
from kdleak.report.sites_subject import SitesSubject

_MODULES_NAMED = 6
_STRING_LITERAL = "??_C@_"
"""How names of string literals begin that the Microsoft compiler makes."""

_ROLES = {SiteKind.NEAR_CALL: "warn", SiteKind.OCCURRENCE: "quiet"}
_TITLES = {
    SiteKind.CALL: "Calls: the tag is an argument of the call",
    SiteKind.NEAR_CALL: "Near a call: perhaps an argument",
    SiteKind.OCCURRENCE: "Occurrences: the four bytes, weaker (other use, data, or chance)",
}


def render_sites(
    search: SiteSearch,
    subject: SitesSubject,
    *,
    width: int = 100,
    style: Palette = PLAIN,
    top: int = 100,
) -> str:
    """A search for code as text.

    Args:
        search: what was found.
        subject: the target and the tag's known owner.
        width: characters per line.
        style: colours; ``PLAIN`` writes no escape sequence.
        top: most places shown of each kind.

    Returns:
        The text; ends with a newline.
    """
    page = Page(width, style)
    target = subject.target
    page.line(
        f"Code that asks for {search.tag.text!r} in {subject.where} "
        f"(build {target.build} {target.architecture.value}, {subject.engine})"
    )
    page.paragraph(verdict(search), indent=0, role="bad" if search.drivers else "")
    page.paragraph(owner_words(subject), indent=0)
    for kind in SiteKind:
        _section(page, search, kind, top)
    page.line("")
    page.paragraph(_searched(search, subject), indent=0)
    for gap in search.gaps:
        page.paragraph(f"missing: {gap.rstrip('.')}.", indent=0, hanging=2, role="warn")
    return page.text()


def verdict(search: SiteSearch) -> str:
    """One or two sentences: which modules allocate with the tag."""
    calls = [site for site in search.sites if site.kind is SiteKind.CALL]
    if not calls:
        if not search.sites:
            return "No code with this tag was found."
        names = _named([site.module for site in search.sites])
        return f"No call that surely is given this tag; its four bytes stand in {names}."
    allocating = [site.module for site in calls if not site.frees]
    words = []
    for name in search.drivers[:_MODULES_NAMED]:
        own = [site for site in calls if site.module == name]
        frees = sum(site.frees for site in own)
        words.append(f"{name} ({_parts(len(own) - frees, frees)})")
    more = len(search.drivers) - len(words)
    text = f"Calls with this tag are in {', '.join(words)}"
    text += f" and {more} more modules." if more > 0 else "."
    if not allocating:
        text += " All of them free: who allocates was not found."
    return text


def _parts(allocate: int, free: int) -> str:
    words = []
    if allocate:
        words.append(f"{allocate} allocate{'s' if allocate == 1 else ''}")
    if free:
        words.append(f"{free} free{'s' if free == 1 else ''}")
    return ", ".join(words)


def _named(names: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(names))
    more = len(distinct) - _MODULES_NAMED
    shown = ", ".join(distinct[:_MODULES_NAMED])
    return f"{shown} and {more} more modules" if more > 0 else shown


def owner_words(subject: SitesSubject) -> str:
    """What the tag lists say."""
    if subject.owner is not None:
        return f"Known owner: {subject.owner} [{subject.owner.source}]"
    if subject.tag_lists:
        lists = ", ".join(map(str, subject.tag_lists))
        return f"Known owner: none; {lists} does not have this tag."
    return "Known owner: no pooltag.txt was found to ask (--pooltag FILE names one)."


def _section(page: Page, search: SiteSearch, kind: SiteKind, top: int) -> None:
    sites = [site for site in search.sites if site.kind is kind]
    left_out = search.occurrences_left_out if kind is SiteKind.OCCURRENCE else 0
    if not sites and not left_out:
        return
    page.heading(_TITLES[kind])
    module = ""
    for site in sites[:top]:
        if site.module != module:
            module = site.module
            page.line(f"  {module}")
        _site(page, site)
    more = len(sites) - len(sites[:top]) + left_out
    if more > 0:
        page.line(f"  ... {more:,} more", plain=False)


def _site(page: Page, site: TagSite) -> None:
    place = f"{_symbol(site)}  {format_address(site.address)}"
    text = site.instruction or "data"
    if site.routine:
        text += f" -> {site.routine}"
        text += f" at {_call_place(site)}"
        if site.frees:
            text += " (frees)"
    role = _ROLES.get(site.kind, "quiet" if site.frees else "")
    page.paragraph(place, indent=4, hanging=2, role=role)
    page.paragraph(text, indent=6, hanging=2, role=role)


def _symbol(site: TagSite) -> str:
    """The nearest name; that of a string literal, which holds the mangled text, as `string'."""
    text = str(site.symbol)
    at = text.find(_STRING_LITERAL)
    if at < 0:
        return text
    offset = f"+0x{site.symbol.offset:x}" if site.symbol.offset else ""
    return f"{text[:at]}`string'{offset}"


def _call_place(site: TagSite) -> str:
    """The call as an offset from the same name; its address where it lies before that."""
    offset = site.call_address - site.address + site.symbol.offset
    if offset < 0 or not site.symbol.module:
        return format_address(site.call_address)
    return f"+0x{offset:x}"


def _searched(search: SiteSearch, subject: SitesSubject) -> str:
    words: List[str] = [f"Looked through {amount(search.modules, 'image')}"]
    if not subject.data_sections:
        words.append(", code only")
    words.append(
        ". A tag that is computed, or read from a table, a structure or the registry, is not seen. "
        "Which of these places run, and how often, is shown by kdleak hunt on a live target."
    )
    return "".join(words)
