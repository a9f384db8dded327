"""Blame for the HTML report, from the document of a hunt: layers, drivers, the tag's owner."""

from __future__ import annotations

from typing import List

from kdleak.quantities import amount
from kdleak.report.result_document import Node


def blamed_frame(site: Node) -> Node:
    """The frame to blame: outside framework layers, where there is one.

    Raises:
        UsageError: the document is damaged.
    """
    found = site.flag("blame_found", default=True) and site.has("blame")
    return site.node("blame" if found else "frame")


def blame_facts(hunt: Node, site: Node) -> List[str]:
    """On whose behalf a call site allocates, and what is known of that driver; plain sentences.

    The text is the target's, and not harmless yet.

    Raises:
        UsageError: the document is damaged.
    """
    if not site.integer("allocs", 0):
        return []
    facts = []
    layers = site.nodes("through")
    named = []
    for layer in layers:
        words = layer.text("words", "")
        named.append(layer.text("module") + (f" ({words})" if words else ""))
    listed = ", ".join(dict.fromkeys(named))
    if layers and not site.flag("blame_found", default=True):
        facts.append(f"Nothing but framework layers on its stack: {listed}.")
    elif layers:
        count = sum(layer.integer("frames") for layer in layers)
        facts.append(f"Looked through {amount(count, 'frame')} of framework layers: {listed}.")
    module = blamed_frame(site).text("module", "")
    for known in hunt.nodes("blamed_modules"):
        if module and known.text("name") == module:
            facts.append(f"Driver: {_driver(known)}.")
            break
    return facts


def owner_sentence(hunt: Node) -> str:
    """What the user's list of tags says of the tag; "" when it says nothing.

    Raises:
        UsageError: the document is damaged.
    """
    owner = hunt.find_node("tag_owner")
    if owner is None:
        return ""
    return f"{owner.text('source')} says of the tag: {owner.text('text')}."


def _driver(known: Node) -> str:
    parts = [known.text("file_name", "") or known.text("name")]
    if known.has("file_version"):
        parts.append(f"version {known.text('file_version')}")
    parts += [known.text(key) for key in ("company", "description") if known.has(key)]
    return ", ".join(parts)
