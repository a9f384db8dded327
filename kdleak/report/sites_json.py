"""The code that asks for a pool tag for programs: a "kdleak.sites" document.

The conventions of ``json_report`` hold; the schema is ``schema/sites.schema.json``.
"""

from __future__ import annotations

from kdleak.blaming.pooltag_file import TagOwner
from kdleak.found import SiteKind, SiteSearch, TagSite
from kdleak.model import Symbolized
from kdleak.report.json_values import (
    Absent,
    Document,
    dump,
    head,
    hexadecimal,
    name_of,
    or_absent,
    tag_of,
    target_of,
    with_absent,
)
from kdleak.report.sites_subject import SitesSubject


def sites_json(search: SiteSearch, subject: SitesSubject) -> str:
    """A search for code as text: ASCII, ends with a newline.

    Args:
        search: what was found.
        subject: the target and the tag's known owner.
    """
    target = subject.target
    document = head("kdleak.sites") | with_absent(
        target=target_of(target),
        engine=subject.engine,
        where=subject.where,
        tag=tag_of(search.tag),
        only_modules=list(subject.only) if subject.only else Absent("not limited"),
        data_sections=subject.data_sections,
        owner=owner_document(subject.owner)
        if subject.owner is not None
        else Absent("no tag list has this tag" if subject.tag_lists else "there is no tag list"),
        tag_lists=[str(file) for file in subject.tag_lists],
        **search_fields(search),
    )
    return dump(document)


def search_fields(search: SiteSearch) -> Document:
    """What a document says about a search, without what was searched for."""
    return {
        "drivers": list(search.drivers),
        "askers": list(search.askers),
        "sites": [site_document(site) for site in search.sites],
        "occurrences_left_out": search.occurrences_left_out,
        "modules": search.modules,
        "gaps": list(search.gaps),
    }


def site_document(site: TagSite) -> Document:
    """One place."""
    nothing = Absent("nothing is called here, as far as can be seen")
    weak = site.kind is SiteKind.OCCURRENCE
    return with_absent(
        kind=name_of(site.kind),
        module=site.module,
        address=hexadecimal(site.address),
        text=str(site.symbol),
        **_symbol(site.symbol),
        instruction=or_absent(site.instruction or None, "it is no instruction that was decoded"),
        routine=nothing if weak else site.routine,
        call_address=nothing if weak else hexadecimal(site.call_address),
        frees=nothing if weak else site.frees,
    )


def _symbol(symbol: Symbolized) -> Document:
    return {
        "symbol": or_absent(symbol.name or None, "no symbol is known there"),
        "offset": symbol.offset,
        "symbol_kind": name_of(symbol.kind),
    }


def owner_document(owner: TagOwner) -> Document:
    """What a tag list says."""
    return with_absent(
        tag=owner.tag,
        wildcard=owner.wildcard,
        binary=or_absent(owner.binary, "the list leaves it open"),
        description=or_absent(owner.description, "the list has none"),
        source=str(owner.source),
        more_lines=owner.others,
    )
