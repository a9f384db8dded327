"""The sections of the HTML report that need no script, as escaped markup."""

from __future__ import annotations

from html import escape
from typing import Iterable, List, Sequence, Tuple

from kdleak.quantities import amount
from kdleak.report.html_blame import blamed_frame, owner_sentence
from kdleak.report.html_data import (
    Limits,
    accused_site,
    middle_cut,
    scaled_words,
    seconds,
    size,
)
from kdleak.report.result_document import Node
from kdleak.report.stack_weights import frame_name

_TONES = ("accused", "suspected")


class Markup:
    """Escaped markup under construction: every text is made harmless, cut and escaped.

    Args:
        limits: characters of a name and of a sentence.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._parts: List[str] = []

    def raw(self, markup: str) -> None:
        """Markup of our own, without any text of the target in it."""
        self._parts.append(markup)

    def text(self, text: str) -> str:
        """A sentence or name of the target, ready to stand in markup or an attribute."""
        return escape(middle_cut(text, self.limits.sentence), quote=True)

    def open(self, ident: str, title: str, classes: str = "card") -> None:
        """Begin a section."""
        self.raw(
            f'<section class="{classes}" aria-labelledby="{ident}-h" id="{ident}">'
            f'<h2 id="{ident}-h">{self.text(title)}</h2>'
        )

    def close(self) -> None:
        """End it."""
        self.raw("</section>\n")

    def paragraph(self, text: str, classes: str = "") -> None:
        """A paragraph."""
        attribute = f' class="{classes}"' if classes else ""
        self.raw(f"<p{attribute}>{self.text(text)}</p>")

    def facts(self, rows: Iterable[Tuple[str, str]], classes: str = "facts") -> None:
        """Names and values."""
        cells = "".join(
            f"<div><dt>{self.text(name)}</dt><dd>{self.text(value)}</dd></div>"
            for name, value in rows
            if value
        )
        self.raw(f'<dl class="{classes}">{cells}</dl>')

    def bullets(self, title: str, sentences: Sequence[str], classes: str = "") -> None:
        """A list of sentences under a title; nothing when there are none."""
        if sentences:
            shown = [f"<li>{self.text(sentence)}</li>" for sentence in sentences[:100]]
            if len(sentences) > 100:
                shown.append(f"<li>... and {len(sentences) - 100:,} more in the JSON.</li>")
            self.raw(f'<h3>{self.text(title)}</h3><ul class="{classes}">{"".join(shown)}</ul>')

    def markup(self) -> str:
        """All of it."""
        return "".join(self._parts)


def verdict(page: Markup, hunt: Node) -> None:
    """The answer in words, and the figures behind it.

    Raises:
        UsageError: the document is damaged.
    """
    accused = accused_site(hunt)
    tone = "calm"
    if accused is not None:
        tone = "bad"
    elif any(site.text("judgement", "") in _TONES for site in hunt.nodes("call_sites")):
        tone = "warn"
    disarm = hunt.node("disarm")
    if not disarm.flag("safe"):
        page.raw('<section class="card alarm" role="alert">')
        page.paragraph(disarm.text("sentence"), "lead")
        _repair(page, disarm)
        page.raw("</section>")
    page.open("verdict", "Verdict", f"card verdict {tone}")
    _sentences(page, hunt)
    owner = owner_sentence(hunt)
    if owner:
        page.paragraph(owner)
    if hunt.has("stop"):
        stop = hunt.node("stop")
        page.paragraph(
            f"The target waits for you: {stop.text('kind').replace('_', ' ')} at "
            f"{stop.text('program_counter')}. {stop.text('detail', '')}",
            "warn",
        )
    if hunt.has("error"):
        page.paragraph(f"The hunt ended early: {hunt.text('error')}", "warn")
    _tiles(page, hunt, accused)
    page.close()


def _sentences(page: Markup, hunt: Node) -> None:
    for index, sentence in enumerate(hunt.texts("verdict")):
        # The accusation large, its evidence after it.
        accusation, colon, evidence = sentence.partition(" that stay: ")
        if index or not colon:
            page.paragraph(sentence, "" if index else "lead")
        else:
            page.paragraph(f"{accusation} that stay.", "lead")
            page.paragraph(f"{evidence[:1].upper()}{evidence[1:]}")


def _repair(page: Markup, disarm: Node) -> None:
    commands = disarm.texts("repair")
    if commands:
        page.paragraph("This puts it right, in this order:")
        page.raw(f"<pre><code>{chr(10).join(page.text(one) for one in commands)}</code></pre>")


def _tiles(page: Markup, hunt: Node, accused: Node | None) -> None:
    done = hunt.node("completeness")
    rows: List[Tuple[str, str]] = []
    if accused is not None:
        stay, allocs = accused.integer("outstanding", 0), accused.integer("allocs", 0)
        # As the sentences count: blocks that went out of sight are neither here nor there.
        allocs -= sum(accused.integer(key, 0) for key in ("unwatched", "unaddressed", "replaced"))
        rows.append(("Stayed there", size(accused.integer("outstanding_bytes", 0))))
        rows.append(("In blocks", f"{stay:,} of {allocs:,}"))
    else:
        pairing = hunt.node("pairing")
        rows.append(("Stayed in all", size(pairing.integer("outstanding_bytes", 0))))
    scaled = accused.find_node("scaled") if accused is not None else None
    if scaled is not None:
        rows.append(("In all, about", size(scaled.number("bytes"))))
    rows.append(("Hits", f"{done.integer('hits', 0):,}"))
    rows.append(("Watched", f"{done.number('share_watched', 0.0):.0%} of {_whole(done)}"))
    rows.append(("Target", "put back" if hunt.node("disarm").flag("safe") else "NOT CONFIRMED"))
    page.facts(rows, "tiles")


def _whole(done: Node) -> str:
    return seconds(done.number("seconds", 0.0))


def change(page: Markup, hunt: Node) -> None:
    """What was written to the target, and whether that is undone.

    Raises:
        UsageError: the document is damaged.
    """
    disarm = hunt.node("disarm")
    safe = disarm.flag("safe")
    page.open("change", "What was changed in the target")
    written = hunt.find_node("change")
    if written is None:
        page.paragraph("Nothing was written to the target.")
    else:
        times = written.integer("times_armed", 0)
        page.paragraph(
            f"{written.text('symbol', 'nt!PoolHitTag')} at {written.text('address')}, four bytes: "
            f"{written.text('original')} before, {written.text('armed')} while watching, written "
            f"{amount(times, 'time')}. Nothing else."
        )
    page.paragraph(disarm.text("sentence"), "safe" if safe else "unsafe")
    if not safe:
        _repair(page, disarm)
    page.bullets("Remarks", disarm.texts("remarks"))
    page.close()


def conditions(page: Markup, hunt: Node) -> None:
    """Under which conditions the hunt was made: what else a reader must know to believe it.

    Raises:
        UsageError: the document is damaged.
    """
    target, done, pairing = hunt.node("target"), hunt.node("completeness"), hunt.node("pairing")
    hits = done.integer("hits", 0)
    requests = done.integer("requests", 0)
    bursts = done.integer("bursts", 0)
    page.open("conditions", "Conditions of the run")
    page.facts(
        [
            ("Target", target.text("description", "")),
            ("Build", f"{target.integer('build', 0)} {target.text('architecture', '')}"),
            ("Reached at", hunt.text("where", "")),
            ("Engine", hunt.text("engine", "")),
            ("Started", hunt.text("started_at", "").replace("T", " ").replace("Z", " UTC")),
            ("Ended because", hunt.text("stop_reason", "").replace("_", " ")),
            ("Tag chosen because", hunt.text("tag_reason", "")),
            ("Hits", f"{hits:,} in {_whole(done)}"),
            (
                "Watched",
                f"{done.number('share_watched', 0.0):.0%} of the time "
                f"({seconds(done.number('seconds_watched', 0.0))}), in "
                f"{amount(bursts, 'burst')}",
            ),
            (
                "Target stood still",
                f"{done.number('share_stopped', 0.0):.0%} of the time "
                f"({seconds(done.number('seconds_stopped', 0.0))})",
            ),
            (
                "Requests",
                f"{requests:,}, {requests / hits:.1f} per hit" if requests and hits else "",
            ),
            *_sampling(hunt),
            (
                "Pairing",
                f"{pairing.integer('paired', 0):,} frees matched to their allocation, "
                f"{pairing.integer('frees_of_older', 0):,} of blocks from before the watch, "
                f"{pairing.integer('unwatched', 0):,} blocks out of sight in a pause",
            ),
            ("Left out", _left_out(done)),
        ]
    )
    page.bullets("What could not be done or read", done.texts("gaps"), "warn")
    page.bullets("Remarks", hunt.texts("remarks"))
    checks = [
        f"{one.text('question')}: {one.text('status').replace('_', ' ')}; {one.text('evidence')}"
        for one in hunt.nodes("checklist")
    ]
    page.bullets("No hits: what may be the reason", checks)
    page.close()


def _sampling(hunt: Node) -> List[Tuple[str, str]]:
    """How figures were scaled and what counted as old, where the result tells."""
    rows = []
    if hunt.has("min_age"):
        rows.append(("Old is more than", seconds(hunt.number("min_age"))))
    scaling = hunt.find_node("scaling")
    if scaling is not None:
        words = scaling.text("method", "")
        if scaling.has("total"):
            words += f"; all call sites: {scaled_words(scaling.node('total'))}"
        rows.append(("Scaled from a sample", f"{words}; times {scaling.number('factor', 1.0):.3g}"))
    budgets = hunt.find_node("budgets")
    for key, name, shown in (
        ("max_hits", "Hits at most", "{:,g}"),
        ("max_seconds", "Seconds of watching at most", "{:,g}"),
        ("max_stopped_share", "Share of the time stopped at most", "{:.0%}"),
        ("hits_per_second", "Watched in bursts from hits per second", "{:,g}"),
    ):
        if budgets is not None and budgets.has(key):
            rows.append((name, shown.format(budgets.number(key))))
    return rows


def _left_out(done: Node) -> str:
    words = [
        f"{done.integer(key, 0):,} {what}"
        for key, what in (
            ("late_hits", "hits that arrived after a disarm"),
            ("broken_stacks", "hits whose stack ends early"),
            ("unaddressed", "hits of unknown block address"),
            ("unsized", "hits of unknown block size"),
        )
        if done.integer(key, 0)
    ]
    return "; ".join(words) or "nothing"


def flame(page: Markup) -> None:
    """The place of the flame graph, filled by the script."""
    page.open("flame", "Where the memory was asked for")
    page.raw(
        '<p class="note">Callers stand above what they call; a frame is as wide as what stayed '
        "of the blocks allocated under it. Click or Enter zooms in, Esc zooms out, arrow keys "
        "move.</p>"
        '<div class="tools" id="flame-tools" hidden>'
        '<label>Width <select id="flame-weight"></select></label>'
        '<label>Search <input id="flame-search" type="search" autocomplete="off" '
        'spellcheck="false" placeholder="function or driver"></label>'
        '<button type="button" id="flame-reset" disabled>Reset zoom</button>'
        '<span id="flame-found" role="status"></span></div>'
        '<div id="flame-graph" role="tree" aria-label="Flame graph of call stacks"></div>'
        '<p id="flame-detail" class="detail"></p>'
        '<details id="flame-table"><summary>The same as a table</summary></details>'
    )
    page.close()


def sites(page: Markup) -> None:
    """The place of the table of call sites, filled by the script."""
    page.open("sites", "Call sites")
    page.raw('<div id="site-table"></div>')
    page.close()


def subject_of(hunt: Node) -> str:
    """The target and the time in one line.

    Raises:
        UsageError: the document is damaged.
    """
    parts = [hunt.node("target").text("description", ""), f"engine {hunt.text('engine', '')}"]
    if hunt.has("started_at"):
        parts.append(hunt.text("started_at")[:16].replace("T", " ") + " UTC")
    return " · ".join(part for part in parts if part)


def heading_of(hunt: Node) -> str:
    """The title of the page.

    Raises:
        UsageError: the document is damaged.
    """
    tag = hunt.find_node("tag")
    if tag is None:
        return "No pool tag was hunted"
    accused = accused_site(hunt)
    name = f"Who leaks pool tag '{tag.text('text')}'"
    if accused is not None:
        name += f": {frame_name(blamed_frame(accused))}"
    return name
