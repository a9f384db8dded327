"""What one crash dump says at a glance: who holds the pool, in what blocks, and who asks for it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, List, Optional, Sequence, Tuple

from kdleak.dumped.compare import moment_of
from kdleak.errors import KdleakError
from kdleak.found import BlockSearch, SiteSearch
from kdleak.logged.moment import Moment
from kdleak.model import Pool, PoolCounters, PoolSnapshot, TagUsage, TargetInfo
from kdleak.rank import rank_rows
from kdleak.result import RankBy, RankRow
from kdleak.tags import PoolTag

if TYPE_CHECKING:
    from kdleak.engine.dump import DumpEngine

DETAILS = 3
"""Tags that are looked at closely unless some are named."""


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


def overview(
    engine: DumpEngine,
    *,
    tags: Sequence[PoolTag] = (),
    details: int = DETAILS,
    owner: Callable[[PoolTag], str] = lambda _: "",
    seconds: Optional[float] = None,
    clock: Callable[[], float] = time.perf_counter,
) -> DumpOverview:
    """Look at a dump.

    Args:
        engine: an open dump.
        tags: to look at closely; without any, those that hold most.
        details: how many of those.
        owner: what pooltag.txt says about a tag, "" for nothing.
        seconds: for looking at blocks; what was not looked through by then is a gap. None: all.
        clock: seconds, monotonic.
    """
    header = engine.dump.header
    snapshot: Optional[PoolSnapshot] = None
    no_tables = ""
    try:
        snapshot = engine.pool_usage()
    except KdleakError as error:
        no_tables = str(error)
    usages = {usage.tag: usage for usage in snapshot.rows} if snapshot is not None else {}
    chosen = list(tags) or sorted(usages, key=lambda tag: (-usages[tag].bytes, tag))[:details]
    closely = tuple(
        _detail(engine, usages.get(tag, TagUsage(tag)), owner(tag), seconds, clock)
        for tag in chosen
    )
    crashed = bool(header.bug_check_code)
    return DumpOverview(
        where=engine.where,
        kind=header.kind.title,
        size=engine.dump.size,
        target=engine.target,
        moment=moment_of(engine.target, header),
        bug_check=header.bug_check_code if crashed else None,
        bug_check_parameters=tuple(header.bug_check_parameters) if crashed else (),
        rows=rank_rows([snapshot], RankBy.USED) if snapshot is not None else (),
        snapshot=snapshot,
        no_tables=no_tables,
        details=closely,
        remarks=tuple(dict.fromkeys(engine.remarks)),
    )


def _detail(
    engine: DumpEngine,
    usage: TagUsage,
    owner: str,
    seconds: Optional[float],
    clock: Callable[[], float],
) -> TagDetail:
    from kdleak.nt.block_search import search_blocks  # noqa: PLC0415 - numpy
    from kdleak.nt.tag_sites import search_sites  # noqa: PLC0415 - capstone

    gaps: List[str] = []
    blocks: Optional[BlockSearch] = None
    sites: Optional[SiteSearch] = None
    if engine.memory is None:
        gaps.append("this kind of dump holds too little memory to look for blocks and code")
        return TagDetail(usage, owner, gaps=tuple(gaps))
    try:
        blocks = search_blocks(
            usage.tag,
            memory=engine.memory,
            modules=engine.modules(),
            symbol=engine.symbol,
            nearest=engine.nearest,
            build=engine.target.build,
            pointer_size=engine.target.pointer_size,
            limit=1,
            counters=usage,
            deadline=None if seconds is None else clock() + seconds,
        )
    except KdleakError as error:
        gaps.append(f"its blocks were not searched: {error}")
    try:
        sites = search_sites(
            usage.tag,
            memory=engine,
            modules=engine.modules(),
            symbol=engine.symbol,
            nearest=engine.nearest,
            pointer_size=engine.target.pointer_size,
            architecture=engine.target.architecture,
        )
    except KdleakError as error:
        gaps.append(f"the code that asks for it was not searched: {error}")
    return TagDetail(usage, owner, blocks, sites, tuple(gaps))
