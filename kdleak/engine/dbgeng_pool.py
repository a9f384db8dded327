"""Pool usage by ``!poolused``, or from the tag tables where the debugger has no kdexts.

Flags 4 and 2 (sorted by paged and nonpaged use) with the verbose bit, which adds the frees. One
of the two lists is enough when its rows add up to its TOTAL line; each costs the standing target
thousands of requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, List, Optional, Sequence, Tuple

from kdleak.dialect.engine_errors import FailureKind, find_engine_error
from kdleak.dialect.poolused import parse_poolused
from kdleak.dialect.poolused_table import Layout, PoolUsedRow, PoolUsedTable
from kdleak.engine.channels.base import DUMP, Channel
from kdleak.errors import KdleakError, LinkError, TargetError
from kdleak.model import PoolSnapshot, TagUsage
from kdleak.nt.pool import PoolTagTables
from kdleak.quantities import amount
from kdleak.tags import PoolTag

_VERBOSE_LISTS = ("!poolused 3", "!poolused 5")
_PLAIN_LISTS = ("!poolused 2", "!poolused 4")
_PATIENCE = 1800.0
"""Seconds for one list: on a slow serial line it takes many minutes."""

_NEGLIGIBLE_SHARE = 0.01
"""Part of the bytes in use that may hide behind tags which cannot be told apart."""

_OWN_READER = (
    "give the symbol path (-y, or .sympath in WinDbg), or use kdleak's own reader, which needs no "
    "symbols: kdleak rank -z FILE"
)

_NO_EXTENSION = frozenset({FailureKind.NO_EXPORT, FailureKind.NO_EXTENSION})


@dataclass(frozen=True)
class _Listed:
    rows: Tuple[TagUsage, ...]
    command: str
    whole: bool
    verbose: bool
    ambiguous: int
    ambiguous_share: float
    unread: int


class DebuggerPool:
    """Reads pool usage over a channel.

    Args:
        channel: the debugger.
        tables: makes the reader of the tag tables.
        clock: seconds, monotonic.
        remark: takes a sentence worth showing.
    """

    def __init__(
        self,
        channel: Channel,
        tables: Callable[[], PoolTagTables],
        clock: Callable[[], float],
        remark: Callable[[str], None],
    ) -> None:
        self._channel = channel
        self._make_tables = tables
        self._tables: Optional[PoolTagTables] = None
        self._clock = clock
        self._remark = remark
        self._extension: Optional[bool] = None

    def usage(self, tag: Optional[PoolTag] = None) -> PoolSnapshot:
        """Usage of all tags, or of one.

        One tag is read from the tables, which takes a read per processor; ``!poolused`` reads
        all of them for it.

        Raises:
            TargetError: neither way worked; it says what both answered.
        """
        if tag is not None or self._extension is False:
            return self._from_tables(tag, None)
        try:
            return self._from_extension()
        except LinkError:
            raise
        except TargetError as error:
            self._extension = False
            self._remark(
                f"{error.came_back or error}; the pool tag tables are read through memory instead."
            )
            return self._from_tables(tag, error)

    def _from_tables(self, tag: Optional[PoolTag], why: Optional[KdleakError]) -> PoolSnapshot:
        if self._tables is None:
            self._tables = self._make_tables()
        try:
            return self._tables.usage(tag)
        except LinkError:
            raise
        except TargetError as error:
            next_step = error.next_step
            if self._channel.session == DUMP:
                next_step = _OWN_READER
            elif why is None:
                raise
            cause = error.came_back or str(error)
            if why is not None:
                cause = f"{why.came_back}; and through memory: {error.tried}: {cause}"
            raise TargetError("reading the pool usage", cause, next_step) from error

    # -- !poolused

    def _from_extension(self) -> PoolSnapshot:
        at = self._clock()
        first = self._list(_VERBOSE_LISTS[0])
        lists = _VERBOSE_LISTS
        if not first.verbose:
            lists = _PLAIN_LISTS
            first = self._list(lists[0])
        parts = [first]
        if not first.whole:
            parts.append(self._list(lists[1]))
        self._extension = True
        found = {row.tag: row for part in reversed(parts) for row in part.rows}
        gaps: List[str] = []
        if not any(part.whole for part in parts) and len(parts) > 1:
            gaps.append("!poolused ended without a TOTAL that its rows add up to")
        ambiguous = max(part.ambiguous for part in parts)
        share = max(part.ambiguous_share for part in parts)
        if ambiguous:
            sentence = (
                f"{amount(ambiguous, 'tag')} with bytes that do not print "
                f"({share:.1%} of what is in use): !poolused shows dots for them, so they are "
                "left out"
            )
            # Every real system has a few: they make no result incomplete.
            if share > _NEGLIGIBLE_SHARE:
                gaps.append(sentence)
            else:
                self._remark(f"{sentence}.")
        unread = sum(part.unread for part in parts)
        if unread:
            gaps.append(f"{unread} lines of !poolused were not understood")
        return PoolSnapshot(
            taken_at=at,
            rows=tuple(sorted(found.values(), key=lambda row: row.tag.value)),
            source=" and ".join(part.command for part in parts),
            gaps=tuple(gaps),
            outstanding_only=not all(part.verbose for part in parts),
        )

    def _list(self, command: str) -> _Listed:
        text = self._channel.execute(command, _PATIENCE)
        tables = [table for table in parse_poolused(text).tables if not table.rejected]
        good = next((table for table in tables if table.rows and not table.errors), None)
        if good is None:
            failure = find_engine_error(text)
            said = failure.sentence if failure is not None else " ".join(text.split())[:200]
            if failure is not None and failure.kind in _NO_EXTENSION:
                said = "this debugger has no !poolused (no kdexts)"
            raise TargetError(
                f"asking the debugger for {command}",
                said or "it printed no list",
                "check the symbols of nt (.reload, !sym noisy) and that the debugger has its "
                "winext\\kdexts.dll",
            )
        return _Listed(
            rows=good.snapshot_rows(),
            command=command,
            whole=_adds_up(good),
            verbose=good.layout is Layout.VERBOSE,
            ambiguous=len(good.ambiguous_rows),
            ambiguous_share=_used(good.ambiguous_rows) / max(_used(good.rows), 1),
            unread=len(good.unparsed),
        )


def _used(rows: Sequence[PoolUsedRow]) -> int:
    """Bytes in use in both pools."""
    return sum(row.nonpaged_used + row.paged_used for row in rows)


def _adds_up(table: PoolUsedTable) -> bool:
    """Whether the rows of a list are all there: they add up to its TOTAL line."""
    total = table.total
    if total is None or table.unreadable_rows or table.partial_row is not None:
        return False
    return all(
        sum(getattr(row, name) or 0 for row in table.rows) == getattr(total, name)
        for name in ("nonpaged_used", "paged_used")
    )
