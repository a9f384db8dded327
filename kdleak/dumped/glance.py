"""A crash dump at a glance, as plain values for reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple

from kdleak.found import BlockSearch, SiteSearch
from kdleak.logged.moment import Moment
from kdleak.model import Pool, PoolCounters, PoolSnapshot, TagUsage, TargetInfo
from kdleak.result import RankRow
from kdleak.tags import PoolTag


@dataclass(frozen=True)
class TagDetail:
    """One tag looked at closely.

    Attributes:
        usage: what the tag tables say.
        owner: who pooltag.txt says it is, "" where it does not or there is none.
        blocks: its blocks; None where they were not searched.
        sites: the code that asks for it; None where it was not searched.
        gaps: why something was not searched, one sentence each.
    """

    usage: TagUsage
    owner: str = ""
    blocks: Optional[BlockSearch] = None
    sites: Optional[SiteSearch] = None
    gaps: Tuple[str, ...] = ()

    @property
    def tag(self) -> PoolTag:
        """The tag."""
        return self.usage.tag


@dataclass(frozen=True)
class DumpOverview:
    """A crash dump at a glance.

    Attributes:
        where: the file, without folders.
        kind: of dump, for people.
        size: of the file, bytes.
        target: what was dumped.
        moment: when.
        bug_check: its code, None where the machine did not crash.
        bug_check_parameters: the four parameters.
        rows: tags by outstanding bytes, each pool apart.
        snapshot: the same as the tables have them; None where there are none.
        no_tables: why there are none.
        details: the tags looked at closely.
        remarks: what is missing in the dump or odd about it.
    """

    where: str
    kind: str
    size: int
    target: TargetInfo
    moment: Moment
    bug_check: Optional[int]
    bug_check_parameters: Tuple[int, ...]
    rows: Tuple[RankRow, ...]
    snapshot: Optional[PoolSnapshot]
    no_tables: str
    details: Tuple[TagDetail, ...]
    remarks: Tuple[str, ...]

    def total(self, pool: Pool) -> PoolCounters:
        """One pool, all tags together."""
        every = [row.last for row in self.rows if row.pool is pool]
        return PoolCounters(
            sum(one.allocs for one in every),
            sum(one.frees for one in every),
            sum(one.bytes for one in every),
        )

    @property
    def gaps(self) -> Tuple[str, ...]:
        """What the figures of the tags lack."""
        return self.snapshot.gaps if self.snapshot is not None else (self.no_tables,)
