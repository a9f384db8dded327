"""Growth in the HTML report: charts of tags and call sites over time, and the table of tags."""

from __future__ import annotations

from typing import List, Optional, Sequence, Tuple

from kdleak.report.html_data import middle_cut, seconds, size
from kdleak.report.html_parts import Markup
from kdleak.report.hunt_series import site_lines
from kdleak.report.page import signed
from kdleak.report.result_document import Node
from kdleak.report.svg_chart import Line, line_chart

_CHARTS = 6
_ROWS = 200
_KINDS = dict.fromkeys(("Growth", "Blocks", "Per hour", "Now held"), "n")


def growth(page: Markup, hunt: Node) -> None:
    """How the hunted tag grew before and while it was watched.

    Raises:
        UsageError: the document is damaged.
    """
    rank = hunt.find_node("rank")
    page.open("growth", "Growth")
    moved = hunt.find_node("growth")
    if moved is not None:
        page.paragraph(
            f"From just before the watch to its end ({seconds(moved.number('seconds'))}) the "
            f"counters of the tag moved by {moved.integer('bytes'):+,} bytes in "
            f"{moved.integer('blocks'):+,} blocks: {moved.integer('allocs', 0):,} allocations, "
            f"{moved.integer('frees', 0):,} frees."
        )
    page.raw('<div class="charts">')
    shown = _watched_chart(page, hunt)
    shown += _tag_charts(page, rank) if rank is not None else 0
    page.raw("</div>")
    if not shown:
        page.paragraph("There is no series of figures over time in this result.", "note")
    if rank is not None:
        page.raw("<details><summary>All tags of the ranking</summary>")
        _table(page, rank)
        page.raw("</details>")
    page.close()


def ranking(page: Markup, rank: Node) -> None:
    """A ranking alone: charts and table.

    Raises:
        UsageError: the document is damaged.
    """
    page.open("verdict", "Verdict", f"card verdict {'warn' if rank.has('suspect') else 'calm'}")
    page.paragraph(rank.text("reason", ""), "lead")
    page.facts(
        [
            ("Snapshots", f"{rank.integer('snapshots', 1):,}"),
            ("Target ran", seconds(rank.number("seconds_running", 0.0))),
            ("Target stood still", seconds(rank.number("seconds_stopped", 0.0))),
            ("Tags", f"{len(rank.nodes('rows')):,}"),
        ],
        "tiles",
    )
    page.close()
    page.open("growth", "Growth")
    page.raw('<div class="charts">')
    shown = _tag_charts(page, rank)
    page.raw("</div>")
    if not shown:
        page.paragraph("One snapshot shows no growth.", "note")
    page.close()
    page.open("tags", "Tags")
    _table(page, rank)
    page.close()
    page.open("conditions", "Conditions of the run")
    target = rank.node("target")
    page.facts(
        [
            ("Target", target.text("description", "")),
            ("Reached at", rank.text("where", "")),
            ("Engine", rank.text("engine", "")),
            ("Read from", rank.text("source", "")),
            *_limits(rank),
        ]
    )
    page.bullets("What could not be done or read", rank.texts("gaps"), "warn")
    page.close()


def watched_intervals(hunt: Node) -> Tuple[Tuple[float, float], ...]:
    """When the tag was armed, in seconds since the first arming; empty when that is not told.

    Raises:
        UsageError: the document is damaged.
    """
    told = hunt.number_pairs("watched")
    done = hunt.node("completeness")
    if not told and done.integer("bursts", 0) == 1:
        return ((0.0, done.number("seconds_watched", 0.0)),)
    return told


def _watched_chart(page: Markup, hunt: Node) -> int:
    lines = site_lines(hunt)
    if not lines:
        return 0
    _figure(
        page,
        "watch",
        "While watched: outstanding bytes by call site",
        lines,
        x_title="since the tag was armed",
        shaded=watched_intervals(hunt),
    )
    return 1


def _tag_charts(page: Markup, rank: Node) -> int:
    rows = [row for row in rank.nodes("rows") if len(row.numbers("bytes_series")) > 1]
    growing = [row for row in rows if row.integer("growth_bytes", 0) > 0]
    shown = (growing or rows)[:_CHARTS]
    for index, row in enumerate(shown):
        tag, pool = row.node("tag").text("text"), _words(row, "pool")
        rate = ""
        if row.has("bytes_per_hour"):
            rate = f", {_signed(row.number('bytes_per_hour'))} per hour"
        if row.has("bytes_per_hour_low") and row.has("bytes_per_hour_high"):
            low, high = row.number("bytes_per_hour_low"), row.number("bytes_per_hour_high")
            rate += f" ({_signed(low)} to {_signed(high)})"
        _figure(
            page,
            f"tag{index}",
            f"Tag '{tag}' ({pool}): {_words(row, 'trend')}{rate}",
            [Line(f"'{tag}' {pool}", _points(row, rank))],
            x_title="the target ran",
        )
    return len(shown)


def _points(row: Node, rank: Node) -> Tuple[Tuple[float, float], ...]:
    series = row.numbers("bytes_series")
    times: Sequence[float] = rank.numbers("times")
    if len(times) != len(series):  # not told: snapshots are taken at equal distances
        running = rank.number("seconds_running", 0.0)
        times = [index * running / (len(series) - 1) for index in range(len(series))]
    return tuple(zip(times, (float(value) for value in series)))


def _words(row: Node, key: str) -> str:
    return row.text(key, "").replace("_", " ")


def _figure(
    page: Markup,
    ident: str,
    title: str,
    lines: Sequence[Line],
    *,
    x_title: str,
    shaded: Sequence[Tuple[float, float]] = (),
) -> None:
    words = "; ".join(
        f"{middle_cut(line.label, 120)}: from {size(line.points[0][1])} to "
        f"{size(line.points[-1][1])} in {seconds(line.points[-1][0] - line.points[0][0])}"
        for line in lines
    )
    page.raw(f"<figure><figcaption>{page.text(title)}</figcaption>")
    page.raw(line_chart(ident, title, words, lines, x_title=x_title, shaded=shaded))
    if len(lines) > 1 or shaded:
        keys = [
            f'<li><span class="key line-{index % 4}"></span>'
            f"<bdi>{page.text(middle_cut(line.label, 120))}</bdi> "
            f"{page.text(size(line.points[-1][1]))}</li>"
            for index, line in enumerate(lines)
        ]
        if shaded:
            keys.append('<li><span class="key shade"></span>tag armed</li>')
        page.raw(f'<ul class="legend">{"".join(keys)}</ul>')
    page.raw("</figure>")


def _table(page: Markup, rank: Node) -> None:
    rows = rank.nodes("rows")
    suspect: Optional[int] = rank.integer("suspect") if rank.has("suspect") else None
    head = ["Tag", "Pool", "Growth", "Blocks", "Per hour", "Now held", "Trend"]
    fills = any(row.has("hours_to_exhaustion") for row in rows)
    if fills:
        head.append("Pool full in")
    page.raw('<div class="scroll"><table><thead><tr>')
    page.raw(
        "".join(f'<th scope="col" class="{_KINDS.get(title, "")}">{title}</th>' for title in head)
    )
    page.raw("</tr></thead><tbody>")
    for index, row in enumerate(rows[:_ROWS]):
        last = row.node("last")
        cells: List[Tuple[str, str]] = [
            ("", _words(row, "pool")),
            ("n", signed(row.integer("growth_bytes")) if row.has("growth_bytes") else "?"),
            ("n", signed(row.integer("growth_blocks")) if row.has("growth_blocks") else "?"),
            ("n", _signed(row.number("bytes_per_hour")) if row.has("bytes_per_hour") else "?"),
            ("n", size(last.integer("bytes", 0))),
            ("", _words(row, "trend")),
        ]
        if fills:
            known = row.has("hours_to_exhaustion")
            left = seconds(row.number("hours_to_exhaustion") * 3600) if known else ""
            cells.append(("", left))
        mark = ' class="suspect"' if index == suspect else ""
        page.raw(f'<tr{mark}><th scope="row">{page.text(row.node("tag").text("text"))}</th>')
        for (kind, text), title in zip(cells, head[1:]):
            label = f' data-label="{title}"'
            page.raw(f'<td{label} class="{kind}">{page.text(text)}</td>')
        page.raw("</tr>")
    page.raw("</tbody></table></div>")
    if len(rows) > _ROWS:
        page.paragraph(f"{len(rows) - _ROWS:,} more tags are in the JSON.", "note")


def _limits(rank: Node) -> List[Tuple[str, str]]:
    limits = rank.find_node("limits")
    rows = []
    for pool in ("nonpaged", "paged"):
        limit = limits.find_node(pool) if limits is not None else None
        if limit is not None:
            words = f"{size(limit.integer('bytes'))}, by {limit.text('source', '')}"
            rows.append((f"Limit of {pool} pool", words))
    return rows


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else '-' if value < 0 else ''}{size(abs(value))}"
