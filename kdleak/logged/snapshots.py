"""The pool usage in a log: lists of ``!poolused`` and PoolMon as snapshots.

Lists printed at one stop are one moment (``!poolused 2`` and ``!poolused 4`` show the same tags in
another order). Where the text does not show whether the target ran in between, lists are one
moment only if their figures are the same.
"""

from __future__ import annotations

import re
from typing import Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from kdleak.dialect.log import DebuggerLog
from kdleak.dialect.poolmon import PoolMonScreen
from kdleak.dialect.poolused_table import Layout, PoolUsedTable
from kdleak.dialect.tag_text import certain_tag
from kdleak.logged.logged_snapshot import LoggedSnapshot
from kdleak.logged.moment import Moment
from kdleak.logged.segments import Segment, segments
from kdleak.model import Pool, PoolCounters, PoolSnapshot, TagUsage
from kdleak.quantities import amount
from kdleak.tags import PoolTag

_Pair = Tuple[PoolTag, Pool]

_ONLY_SOME_TAGS = re.compile(r"\s[-/][ixIX]\S")
"""PoolMon's options that show some tags (``-iTag``) or hide some (``-xTag``)."""


def snapshots_of_log(log: DebuggerLog, name: str = "") -> Tuple[LoggedSnapshot, ...]:
    """Every moment at which a log shows the pool usage, in its order.

    Args:
        log: as parsed.
        name: of the log, for people.
    """
    found: List[LoggedSnapshot] = []
    for segment in segments(log.events):
        found += _of_segment(segment, name)
    return tuple(found)


def _of_segment(segment: Segment, name: str) -> Iterable[LoggedSnapshot]:
    groups: List[List[PoolUsedTable]] = []
    seen: Dict[PoolTag, TagUsage] = {}
    last_is_list = False
    found: List[Tuple[int, LoggedSnapshot]] = []
    for event in segment.events:
        value = event.value
        if isinstance(value, PoolUsedTable) and value.rows and not value.rejected:
            rows = {usage.tag: _outstanding(usage) for usage in value.snapshot_rows()}
            if last_is_list and _same_moment(seen, rows, groups[-1][-1], value):
                groups[-1].append(value)
                seen.update(rows)
            else:
                groups.append([value])
                seen = rows
            last_is_list = True
        elif isinstance(value, PoolMonScreen) and value.rows:
            found.append((event.line, _of_poolmon(value, segment.moment, name)))
            last_is_list = False
    found += [(group[0].line, _of_lists(group, segment.moment, name)) for group in groups]
    return [snapshot for _, snapshot in sorted(found, key=lambda item: item[0])]


def _same_moment(
    seen: Mapping[PoolTag, TagUsage],
    rows: Mapping[PoolTag, TagUsage],
    last: PoolUsedTable,
    table: PoolUsedTable,
) -> bool:
    """Whether a list shows the moment of those before it, whose rows were seen."""
    common = [tag for tag in rows if tag in seen]
    if common:
        return all(rows[tag] == seen[tag] for tag in common)
    # Nothing to compare: only the commands of one stop tell that they belong together.
    return table.command is not None and last.command is not None


def _of_lists(tables: Sequence[PoolUsedTable], moment: Moment, name: str) -> LoggedSnapshot:
    verbose = [table for table in tables if table.layout is Layout.VERBOSE]
    whole = [table for table in tables if _is_complete(table)]
    used = tables
    if len(verbose) != len(tables) and any(table in whole for table in verbose):
        used = [table for table in verbose if table in whole]
    outstanding_only = any(table.layout is not Layout.VERBOSE for table in used)
    rows: Dict[PoolTag, TagUsage] = {}
    for table in used:
        for usage in table.snapshot_rows():
            rows.setdefault(usage.tag, _outstanding(usage) if outstanding_only else usage)
    known = {(tag, pool) for tag in rows for pool in Pool}
    unreadable = {
        tag
        for table in used
        for text in (*table.unreadable_rows, *filter(None, [table.partial_row]))
        for tag in [certain_tag(text)]
        if tag is not None and tag not in rows
    }
    commands = tuple(dict.fromkeys(table.command for table in used if table.command))
    return LoggedSnapshot(
        PoolSnapshot(
            moment.uptime or 0.0,
            tuple(sorted(rows.values(), key=lambda usage: usage.tag.value)),
            " and ".join(commands) or "a list of !poolused",
            _gaps_of_lists(used, whole),
            outstanding_only,
        ),
        name,
        tuple(table.line for table in tables),
        moment,
        frozenset(known),
        any(table in whole for table in used),
        frozenset(unreadable),
        descriptions=_described(
            (row.pool_tag, row.description, row.binary) for table in used for row in table.rows
        ),
    )


def _gaps_of_lists(
    tables: Sequence[PoolUsedTable], whole: Sequence[PoolUsedTable]
) -> Tuple[str, ...]:
    gaps = []
    for table in tables:
        where = f"the list in line {table.line}"
        if table not in whole and not whole:
            gaps.append(f"{where} {_why_incomplete(table)}")
        lost = [*table.unreadable_rows, *filter(None, [table.partial_row])]
        if lost:
            gaps.append(
                f"{where} has {amount(len(lost), 'row')} that cannot be read: {_some(lost)}"
            )
        open_ = [row.tag for row in table.ambiguous_rows]
        if open_:
            gaps.append(
                f"{where} has {amount(len(open_), 'row')} left out, because the tag shown may be "
                f"one of several: {_some(open_)}"
            )
    return tuple(gaps)


def _why_incomplete(table: PoolUsedTable) -> str:
    if table.filter is not None:
        return f"shows only what fits '{table.filter}'"
    if table.total is None:
        return "has no TOTAL line, so it may be a part"
    return "does not add up to its TOTAL line, so rows are missing"


def _is_complete(table: PoolUsedTable) -> bool:
    """It shows every tag: not filtered, and its rows add up to the TOTAL line."""
    total = table.total
    if total is None or table.filter is not None or table.unreadable_rows or table.partial_row:
        return False
    return (
        sum(row.nonpaged_used for row in table.rows) == total.nonpaged_used
        and sum(row.paged_used for row in table.rows) == total.paged_used
    )


def _of_poolmon(screen: PoolMonScreen, moment: Moment, name: str) -> LoggedSnapshot:
    scope = (screen.header.scope if screen.header else None) or ""
    lines = f"the screen in line {screen.line}"
    live = any(row.bytes_delta is not None for row in screen.rows)
    filtered = screen.command is not None and _ONLY_SOME_TAGS.search(screen.command) is not None
    gaps = []
    if live:
        gaps.append(f"{lines} shows the rows that fitted on it, not all tags")
    elif filtered:
        gaps.append(f"{lines} shows only the tags that were asked for")
    if screen.unparsed:
        gaps.append(f"{lines} has lines that were not understood")
    open_ = [row.tag for row in screen.ambiguous_rows]
    if open_:
        gaps.append(
            f"{lines} has {amount(len(open_), 'row')} left out, because the tag shown may be "
            f"one of several: {_some(open_)}"
        )
    known = {(tag, row.type) for row in screen.rows for tag in [row.pool_tag] if tag is not None}
    return LoggedSnapshot(
        PoolSnapshot(
            moment.uptime or 0.0,
            screen.snapshot_rows(),
            "a screen of PoolMon" if live else "a snapshot file of PoolMon",
            tuple(gaps),
        ),
        name,
        (screen.line,),
        moment,
        frozenset(known),
        not live and not filtered and not screen.unparsed,
        scope="" if scope.lower().startswith("system") else scope,
        descriptions=_described((row.pool_tag, row.driver_text, None) for row in screen.rows),
    )


def _described(
    rows: Iterable[Tuple[Optional[PoolTag], Optional[str], Optional[str]]],
) -> Mapping[PoolTag, str]:
    found: Dict[PoolTag, str] = {}
    for tag, description, binary in rows:
        words = ", ".join(filter(None, [description, binary]))
        if tag is not None and words:
            found.setdefault(tag, words)
    return found


def _outstanding(usage: TagUsage) -> TagUsage:
    """The row as ``!poolused`` without its verbose bit would show it."""
    return TagUsage(usage.tag, _held(usage.nonpaged), _held(usage.paged))


def _held(counters: PoolCounters) -> PoolCounters:
    return PoolCounters(counters.outstanding, 0, counters.bytes)


def _some(texts: Sequence[str]) -> str:
    shown = ", ".join(f"'{text}'" for text in texts[:5])
    return f"{shown}, ..." if len(texts) > 5 else shown
