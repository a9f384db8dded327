"""Blame as JSON values: layers looked through, drivers, the tag's owner."""

from __future__ import annotations

from typing import List

from kdleak.blamed import KnownOwner, ModuleDetails
from kdleak.report.json_values import Absent, Document, or_absent, with_absent
from kdleak.result import CallSite, HuntResult


def through_of(site: CallSite) -> List[Document]:
    """The layers between a call site and the frame blamed, innermost first."""
    return [
        {"module": use.module, "words": use.words, "frames": use.frames} for use in site.through
    ]


def blamed_modules(result: HuntResult) -> List[Document]:
    """What the drivers blamed say about themselves."""
    return [_details(details) for details in result.blamed]


def tag_owner(result: HuntResult) -> object:
    """What the user's list says of the tag, or that it says nothing."""
    if result.tag_owner is None:
        return Absent("no list of tags was found, or none knows the tag")
    return _owner(result.tag_owner)


def _details(details: ModuleDetails) -> Document:
    none = details.unknown or "the version resource does not say"
    return with_absent(
        name=details.name,
        file_name=or_absent(details.file_name or None, "not known"),
        path=or_absent(details.path or None, "not known"),
        timestamp=or_absent(details.timestamp or None, "not known"),
        file_version=or_absent(details.file_version or None, none),
        company=or_absent(details.company or None, none),
        description=or_absent(details.description or None, none),
        product=or_absent(details.product or None, none),
    )


def _owner(owner: KnownOwner) -> Document:
    return with_absent(
        tag=owner.tag,
        binary=or_absent(owner.binary or None, "the list does not say"),
        description=or_absent(owner.description or None, "the list does not say"),
        source=owner.source,
        text=owner.words,
    )
