"""Crash dumps side by side: what grew between them, by the reasoning for logs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import List, Optional, Protocol, Sequence, Tuple

from kdleak.logged.logged_snapshot import LoggedSnapshot
from kdleak.logged.moment import Moment
from kdleak.logged.rank import LoggedRank, rank_of_snapshots
from kdleak.model import Pool, PoolSnapshot, TargetInfo

_FILETIME_EPOCH = 11_644_473_600
"""Seconds from 1601, where FILETIME starts, to 1970."""


class DumpFacts(Protocol):
    """What a dump's header says about its moment; 100 ns units, None where it does not."""

    @property
    def system_time(self) -> Optional[int]:
        """FILETIME: since 1601, UTC."""

    @property
    def uptime(self) -> Optional[int]:
        """Since boot."""


@dataclass(frozen=True)
class DumpMoment:
    """The pool as one dump has it.

    Attributes:
        name: the file, fit for output.
        target: what was dumped.
        snapshot: its tags.
        moment: when.
        remarks: what is missing in the dump or odd about it.
    """

    name: str
    target: TargetInfo
    snapshot: PoolSnapshot
    moment: Moment
    remarks: Tuple[str, ...] = ()


@dataclass(frozen=True)
class DumpComparison:
    """What grew from dump to dump.

    Attributes:
        rank: the tags in order of suspicion, over the dumps in order of time.
        dumps: what was compared, in that order.
        remarks: what is worth knowing and takes nothing away from the result.
    """

    rank: LoggedRank
    dumps: Tuple[DumpMoment, ...]
    remarks: Tuple[str, ...] = ()


def moment_of(target: TargetInfo, facts: DumpFacts) -> Moment:
    """The moment a dump was taken at."""
    clock = facts.system_time
    return Moment(
        uptime=None if facts.uptime is None else facts.uptime / 1e7,
        target_clock=None if clock is None else clock / 1e7 - _FILETIME_EPOCH,
        build=target.build,
        kernel_base=target.kernel_base or None,
    )


def compare_dumps(dumps: Sequence[DumpMoment], *, pool: Optional[Pool] = None) -> DumpComparison:
    """What grew between dumps of one machine. Pure.

    They are put in order of time where all of them tell it. Dumps of different boots show no
    growth: then the tags are ranked by what they hold in the last one, and ``rank.gaps`` says so.

    Args:
        dumps: two or more.
        pool: only this pool.
    """
    remarks: List[str] = []
    ordered = tuple(dumps)
    clocks = [dump.moment.target_clock for dump in dumps]
    if all(clock is not None for clock in clocks):
        ordered = tuple(sorted(dumps, key=lambda dump: dump.moment.target_clock or 0.0))
        if ordered != tuple(dumps):
            names = ", ".join(dump.name for dump in ordered)
            remarks.append(f"compared in order of time, not as they were named: {names}")
    unproved: Tuple[str, ...] = ()
    if not all(one.target.kernel_base for one in dumps):
        unproved = ("not every dump says where nt was loaded: nothing proves that it is one boot",)
    snapshots = [
        LoggedSnapshot(
            snapshot=dump.snapshot,
            log=dump.name,
            lines=(),
            moment=dump.moment,
            known=frozenset((row.tag, which) for row in dump.snapshot.rows for which in Pool),
            # A row that could not be read may be any tag's.
            complete=not dump.snapshot.gaps,
        )
        for dump in ordered
    ]
    rank = rank_of_snapshots(snapshots, pool=pool, what="dump")
    return DumpComparison(
        replace(rank, gaps=(*unproved, *rank.gaps)),
        ordered,
        (*remarks, *(f"{dump.name}: {one}" for dump in ordered for one in dump.remarks)),
    )
