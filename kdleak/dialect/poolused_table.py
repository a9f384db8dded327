"""What a ``!poolused`` list holds once it is read."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Dict, NamedTuple, Optional, Tuple

from kdleak.dialect.source import Unparsed
from kdleak.dialect.tag_text import certain_tag
from kdleak.model import PoolCounters, TagUsage
from kdleak.tags import PoolTag


class Layout(enum.Enum):
    """Which of the three tables it is; the value is the short name in reports."""

    OLD = "old"
    """Debuggers of Windows 2000 to 2003: ``Pool Used:`` above, description glued to the number."""
    NEW = "new"
    """Since about 2008: wide columns, a TAB before the description."""
    VERBOSE = "verbose"
    """Flag bit 0: allocations, frees and their difference for both pools."""


class Sort(enum.Enum):
    """What the ``Sorting by`` line says."""

    TAG = "tag"
    NONPAGED = "nonpaged"
    PAGED = "paged"


class PoolUsedRow(NamedTuple):
    """One tag's row. A named tuple because a list holds thousands of them.

    Attributes:
        tag: four characters as displayed, blanks included; dots may stand for other bytes.
        nonpaged_allocs: blocks outstanding; allocations since boot in the verbose layout.
        nonpaged_used: bytes outstanding.
        paged_allocs: as nonpaged_allocs.
        paged_used: bytes outstanding.
        nonpaged_frees: frees since boot; None where the layout has none.
        nonpaged_diff: blocks outstanding as printed; None where the layout has none.
        paged_frees: as nonpaged_frees.
        paged_diff: as nonpaged_diff.
        description: text of the tag list, None when there is none or the tag is unknown.
        binary: the driver the tag list names, None when there is none.
        unknown: the row says that the tag list does not know the tag.
        quoted_tag: the tag in that sentence when it reads differently from the tag column.
        line: number of the line, 1 for the first.
    """

    tag: str
    nonpaged_allocs: int
    nonpaged_used: int
    paged_allocs: int
    paged_used: int
    nonpaged_frees: Optional[int] = None
    nonpaged_diff: Optional[int] = None
    paged_frees: Optional[int] = None
    paged_diff: Optional[int] = None
    description: Optional[str] = None
    binary: Optional[str] = None
    unknown: bool = False
    quoted_tag: Optional[str] = None
    line: int = 0

    @property
    def pool_tag(self) -> Optional[PoolTag]:
        """The tag, None when the displayed characters leave it open."""
        return certain_tag(self.tag)

    @property
    def nonpaged(self) -> PoolCounters:
        """Counters of nonpaged pool; where only outstanding blocks are printed, frees are 0."""
        return PoolCounters(self.nonpaged_allocs, self.nonpaged_frees or 0, self.nonpaged_used)

    @property
    def paged(self) -> PoolCounters:
        """Counters of paged pool; where only outstanding blocks are printed, frees are 0."""
        return PoolCounters(self.paged_allocs, self.paged_frees or 0, self.paged_used)


@dataclass(frozen=True)
class PoolUsedTotal:
    """The TOTAL line; fields as in PoolUsedRow."""

    nonpaged_allocs: int
    nonpaged_used: int
    paged_allocs: int
    paged_used: int
    nonpaged_frees: Optional[int] = None
    nonpaged_diff: Optional[int] = None
    paged_frees: Optional[int] = None
    paged_diff: Optional[int] = None


@dataclass(frozen=True)
class PoolUsedTable:
    """One list.

    Attributes:
        layout: None when no header was found or the table was refused.
        command: as typed, without prompt and remark; None when the paste holds none.
        sort: None without a Sorting line.
        filter: the tag that was asked for, as typed; None when all were.
        rows: in the order printed.
        total: None without a TOTAL line: the list may be partial.
        line: number of its first line.
        rejected: why the table was refused, "" when it was not.
        errors: what the extension reported instead of, or between, the rows.
        unparsed: lines between its first and last line that were not understood.
        unreadable_rows: tags of rows whose numbers must not be guessed.
        partial_row: tag of a row that was cut off, None when none was.
    """

    layout: Optional[Layout]
    command: Optional[str] = None
    sort: Optional[Sort] = None
    filter: Optional[str] = None
    rows: Tuple[PoolUsedRow, ...] = ()
    total: Optional[PoolUsedTotal] = None
    line: int = 0
    rejected: str = ""
    errors: Tuple[str, ...] = ()
    unparsed: Tuple[Unparsed, ...] = ()
    unreadable_rows: Tuple[str, ...] = ()
    partial_row: Optional[str] = None

    @property
    def complete(self) -> bool:
        """The list reaches its TOTAL line. Rows may still have been cut out by hand above it."""
        return self.total is not None

    @property
    def ambiguous_rows(self) -> Tuple[PoolUsedRow, ...]:
        """Rows whose displayed tag may be one of several; ``snapshot_rows`` leaves them out."""
        return tuple(row for row in self.rows if row.pool_tag is None)

    def snapshot_rows(self) -> Tuple[TagUsage, ...]:
        """The rows as a snapshot's, ordered by tag value.

        Outside the verbose layout Allocs is the number of blocks OUTSTANDING (Microsoft's page on
        ``!poolused``), so the counters are ``allocs`` = outstanding and ``frees`` = 0: good for
        bytes and blocks, not for rates. The caller has to say so.

        Rows whose tag is ambiguous are left out, see ``ambiguous_rows``; the figures of a tag that
        occurs twice are added.
        """
        found: Dict[PoolTag, TagUsage] = {}
        for row in self.rows:
            tag = row.pool_tag
            if tag is None:
                continue
            usage = TagUsage(tag, row.nonpaged, row.paged)
            earlier = found.get(tag)
            found[tag] = usage if earlier is None else _added(earlier, usage)
        return tuple(sorted(found.values(), key=lambda usage: usage.tag.value))


def _added(one: TagUsage, other: TagUsage) -> TagUsage:
    """Two rows of one tag as one."""
    return TagUsage(one.tag, _sum(one.nonpaged, other.nonpaged), _sum(one.paged, other.paged))


def _sum(one: PoolCounters, other: PoolCounters) -> PoolCounters:
    return PoolCounters(one.allocs + other.allocs, one.frees + other.frees, one.bytes + other.bytes)


@dataclass(frozen=True)
class PoolUsedLists:
    """Every list of a text.

    Attributes:
        tables: in the order of the text.
        unparsed: lines that belong to no list, and those of all lists, by line number.
    """

    tables: Tuple[PoolUsedTable, ...] = ()
    unparsed: Tuple[Unparsed, ...] = ()

    @property
    def rejected(self) -> str:
        """Why nothing was read: the first refusal, "" when any list was accepted."""
        if not self.tables:
            return "no column titles of !poolused in the text"
        if any(not table.rejected for table in self.tables):
            return ""
        return self.tables[0].rejected
