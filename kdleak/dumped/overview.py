"""What one crash dump says at a glance: who holds the pool, in what blocks, and who asks for it."""

from __future__ import annotations

import importlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Sequence, Tuple

from kdleak.dumped.compare import moment_of
from kdleak.dumped.glance import DumpOverview, TagDetail
from kdleak.errors import KdleakError
from kdleak.found import BlockSearch, SiteSearch
from kdleak.model import PoolSnapshot, TagUsage
from kdleak.rank import rank_rows
from kdleak.result import RankBy
from kdleak.tags import PoolTag

if TYPE_CHECKING:
    from kdleak.engine.dump import DumpEngine

DETAILS = 3
"""Tags that are looked at closely unless some are named."""

_TOO_LITTLE = "this kind of dump holds too little memory to look for blocks and code"


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
        seconds: for looking at blocks, all tags together; what was not looked through by then is
            a gap. None: as long as it takes.
        clock: seconds, monotonic.
    """
    from kdleak.engine.dump_description import (  # noqa: PLC0415 - needs construct
        describe_crash,
        describe_times,
    )

    header = engine.dump.header
    snapshot: Optional[PoolSnapshot] = None
    no_tables = ""
    try:
        snapshot = engine.pool_usage()
    except KdleakError as error:
        no_tables = str(error)
    usages = {usage.tag: usage for usage in snapshot.rows} if snapshot is not None else {}
    chosen = list(tags) or sorted(usages, key=lambda tag: (-usages[tag].bytes, tag))[:details]
    closely = [usages.get(tag, TagUsage(tag)) for tag in dict.fromkeys(chosen)]
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
        details=_closely(engine, closely, owner, seconds, clock),
        remarks=tuple(
            remark
            for remark in dict.fromkeys(engine.remarks)
            # Their parts are fields of their own.
            if remark not in (describe_crash(header), describe_times(header))
        ),
    )


def _closely(
    engine: DumpEngine,
    usages: Sequence[TagUsage],
    owner: Callable[[PoolTag], str],
    seconds: Optional[float],
    clock: Callable[[], float],
) -> Tuple[TagDetail, ...]:
    if engine.memory is None or not usages:
        return tuple(TagDetail(one, owner(one.tag), gaps=(_TOO_LITTLE,)) for one in usages)
    sites, no_sites = _sites(engine, [one.tag for one in usages])
    details: List[TagDetail] = []
    importlib.import_module("kdleak.nt.blocks.search")  # numpy takes its time, which is not theirs
    began = clock()
    for done, usage in enumerate(usages, start=1):
        # Every tag gets its share, and what the ones before it left over.
        until = None if seconds is None else began + seconds * done / len(usages)
        blocks, no_blocks = _blocks(engine, usage, until, clock)
        gaps = tuple(gap for gap in (no_blocks, no_sites) if gap)
        details.append(TagDetail(usage, owner(usage.tag), blocks, sites.get(usage.tag), gaps))
    return tuple(details)


def _sites(engine: DumpEngine, tags: Sequence[PoolTag]) -> Tuple[Dict[PoolTag, SiteSearch], str]:
    """The code that asks for each tag, and why it was not searched."""
    from kdleak.nt.sites.search import search_sites  # noqa: PLC0415 - capstone

    if not tags:
        return {}, ""
    try:
        found = search_sites(
            tags,
            memory=engine.memory or engine,
            modules=engine.modules(),
            symbol=engine.symbol,
            nearest=engine.nearest,
            pointer_size=engine.target.pointer_size,
            architecture=engine.target.architecture,
        )
    except KdleakError as error:
        return {}, f"the code that asks for it was not searched: {error}"
    return {one.tag: replace(one, gaps=(*engine.module_gaps, *one.gaps)) for one in found}, ""


def _blocks(
    engine: DumpEngine,
    usage: TagUsage,
    deadline: Optional[float],
    clock: Callable[[], float],
) -> Tuple[Optional[BlockSearch], str]:
    """The blocks of a tag, and why they were not searched."""
    from kdleak.nt.blocks.search import search_blocks  # noqa: PLC0415 - numpy

    if engine.memory is None:
        return None, _TOO_LITTLE
    try:
        found = search_blocks(
            usage.tag,
            memory=engine.memory,
            modules=engine.modules(),
            symbol=engine.symbol,
            nearest=engine.nearest,
            build=engine.target.build,
            pointer_size=engine.target.pointer_size,
            limit=1,
            counters=usage,
            deadline=deadline,
            clock=clock,
        )
    except KdleakError as error:
        return None, f"its blocks were not searched: {error}"
    return found, ""
