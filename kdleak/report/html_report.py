"""A hunt or a ranking as one HTML file that needs nothing else: no network, no other file.

What comes from the target is untrusted. Text is made harmless and escaped in the markup, and in
the data for the script no ``<`` is left; the script writes text only. Should all of that fail,
the content security policy lets nothing run or load but our own script and style, known by their
hashes.
"""

from __future__ import annotations

import base64
import hashlib
import pkgutil
from string import Template
from typing import Any, Dict

from kdleak import __version__
from kdleak.report import html_growth, html_parts
from kdleak.report.html_data import Limits, as_script_data, hunt_data
from kdleak.report.result_document import RANK, Node

MAX_BYTES = 1_000_000
"""No report is larger; what does not fit is left out, lightest first, and that is said."""


def render_html(document: Node) -> str:
    """A result as HTML.

    Args:
        document: a "kdleak.hunt" or "kdleak.rank" document.

    Returns:
        The page, under ``MAX_BYTES`` as UTF-8.

    Raises:
        UsageError: the document is damaged.
    """
    limits = Limits()
    while True:
        text = _render(document, limits)
        if limits.least or len(text.encode("utf-8")) < MAX_BYTES:
            return text
        limits = limits.halved()


def _render(document: Node, limits: Limits) -> str:
    page = html_parts.Markup(limits)
    data: Dict[str, Any] = {}
    if document.text("format") == RANK:
        heading, subject = "Which pool tags grow", html_parts.subject_of(document)
        html_growth.ranking(page, document)
    else:
        heading, subject = html_parts.heading_of(document), html_parts.subject_of(document)
        data = hunt_data(document, limits)
        html_parts.verdict(page, document)
        if data["sites"]:
            html_parts.flame(page)
        html_growth.growth(page, document)
        if data["sites"]:
            html_parts.sites(page)
        html_parts.change(page, document)
        html_parts.conditions(page, document)
    style, script = _asset("report.css"), _asset("report.js")
    generator = f"kdleak {__version__}"
    made = document.find_node("generator")
    made_by = f"{made.text('name', '')} {made.text('version', '')}" if made else generator
    return Template(_asset("report.html")).substitute(
        policy=f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'",
        generator=page.text(generator),
        title=page.text(f"{heading} - kdleak"),
        heading=f"<bdi>{page.text(heading)}</bdi>",
        subject=page.text(subject),
        sections=page.markup(),
        footer=page.text(
            f"Result of {made_by}, shown by {generator}. Nothing is loaded from elsewhere."
        ),
        style=style,
        script=script,
        data=as_script_data(data),
    )


def _asset(name: str) -> str:
    data = pkgutil.get_data("kdleak.report", f"assets/{name}")
    if data is None:  # no loader of Python's own answers so
        raise FileNotFoundError(name)
    # The hash is over what the browser parses, and that has no carriage returns.
    return data.decode("utf-8").replace("\r\n", "\n")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
