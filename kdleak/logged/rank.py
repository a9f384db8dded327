"""Ranking of the tags in logs: by use in one, by growth between two or more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

from kdleak.logged.logged_snapshot import LoggedSnapshot
from kdleak.logged.moment import seconds_between
from kdleak.model import Pool
from kdleak.quantities import amount
from kdleak.rank import NOT_PICKED, pick_suspect, rank_rows
from kdleak.result import RankBy, RankRow, Trend
from kdleak.tags import PoolTag

_MANY_WENT_BACK = 0.25
"""Part of the allocation counters that must have gone back to call it another boot."""

_FEW_TAGS = 3
"""Counters below which that part means nothing: one alone may have wrapped at 2**32."""

_ROWS_THAT_MOVE = 5
"""Rows of which at least one changes while a machine runs."""


@dataclass(frozen=True)
class LoggedRank:
    """Tags in order of suspicion, from logs.

    Attributes:
        logs: names of the logs.
        by: order of the rows.
        rows: best suspect first.
        suspect: the row picked; None when there is none (that is an answer).
        reason: one sentence for the pick, or for there being none.
        snapshots: moments compared, in the order of the logs; the last one alone when ranked by
            use.
        seconds: from the first to the last; None where the logs do not tell.
        seconds_rest_on: what that time was read from, "" when it is unknown.
        gaps: what is missing or could not be compared, in words.
        outstanding_only: allocs and frees of the rows are not known apart.
    """

    logs: Tuple[str, ...]
    by: RankBy
    rows: Tuple[RankRow, ...]
    suspect: Optional[RankRow]
    reason: str
    snapshots: Tuple[LoggedSnapshot, ...]
    seconds: Optional[float] = None
    seconds_rest_on: str = ""
    gaps: Tuple[str, ...] = ()
    outstanding_only: bool = False


def rank_of_snapshots(
    snapshots: Sequence[LoggedSnapshot],
    *,
    by: Optional[RankBy] = None,
    pool: Optional[Pool] = None,
    what: str = "list",
) -> LoggedRank:
    """Rank the tags of logs. Pure.

    Growth is measured between the first and the last snapshot. Where the machine was restarted
    in between (or it is another one) it means nothing: then the tags are ranked by use, and
    ``gaps`` says so.

    Args:
        snapshots: of one machine, in order of time; at least one.
        by: order of the rows; growth where there are two snapshots, if None.
        pool: only this pool.
        what: what one snapshot is called in sentences.

    Raises:
        ValueError: no snapshot.
    """
    if not snapshots:
        raise ValueError("no snapshots to rank")
    compared, gaps = _of_one_scope(snapshots)
    logs = tuple(dict.fromkeys(one.log for one in snapshots))
    wanted = by or (RankBy.GROWTH if len(compared) > 1 else RankBy.USED)
    if wanted is RankBy.GROWTH and len(compared) < 2:
        gaps.append(f"growth takes two {what}s of one machine, and there is one")
        wanted = RankBy.USED
    if wanted is RankBy.GROWTH:
        for before, after in zip(compared, compared[1:]):
            broken = _not_comparable(before, after)
            if broken:
                gaps.append(
                    f"{broken}; so the tags are ranked by what they hold in the last {what}"
                )
                wanted = RankBy.USED
                break
            gaps += _counters_back(before, after)
    if wanted is RankBy.USED:
        return _by_use(logs, compared[-1], gaps, pool)
    return _by_growth(logs, compared, gaps, pool, what)


def _by_use(
    logs: Tuple[str, ...], last: LoggedSnapshot, gaps: List[str], pool: Optional[Pool]
) -> LoggedRank:
    rows = rank_rows([last.snapshot], RankBy.USED, pool=pool)
    suspect, reason = pick_suspect(rows, RankBy.USED, 1, 0.0)
    return LoggedRank(
        logs,
        RankBy.USED,
        rows,
        suspect,
        reason,
        (last,),
        gaps=(*gaps, *_named(last)),
        outstanding_only=last.snapshot.outstanding_only,
    )


def _by_growth(
    logs: Tuple[str, ...],
    compared: Sequence[LoggedSnapshot],
    gaps: List[str],
    pool: Optional[Pool],
    what: str,
) -> LoggedRank:
    seconds, rest_on = seconds_between(compared[0].moment, compared[-1].moment)
    ranked = rank_rows(
        [one.snapshot for one in compared],
        RankBy.GROWTH,
        pool=pool,
        running=seconds or 0.0,
        times=_times(compared),
    )
    rows = tuple(row for row in ranked if all(one.tells(row.tag, row.pool) for one in compared))
    left_out = sorted({row.tag for row in ranked} - {row.tag for row in rows})
    if left_out:
        gaps.append(
            f"{_tags(left_out)} left out: not in all of the lists, and where they are missing "
            "the list may be a part"
        )
    same = compared[0].snapshot.rows == compared[-1].snapshot.rows
    if same and len(rows) >= _ROWS_THAT_MOVE and seconds is None:
        gaps.append(
            f"the first and the last {what} hold the same figures: it is one file twice, or the "
            "target did not run in between"
        )
    suspect, reason = _pick(rows, len(compared), seconds, what)
    return LoggedRank(
        logs,
        RankBy.GROWTH,
        rows,
        suspect,
        reason,
        tuple(compared),
        seconds,
        rest_on,
        (*gaps, *dict.fromkeys(gap for one in compared for gap in _named(one))),
        any(one.snapshot.outstanding_only for one in compared),
    )


def _times(compared: Sequence[LoggedSnapshot]) -> Optional[Sequence[float]]:
    """Seconds from the first snapshot to each, where all of them tell it by the same clock."""
    apart = [seconds_between(compared[0].moment, one.moment) for one in compared[1:]]
    if len({rest_on for _, rest_on in apart}) != 1 or any(seconds is None for seconds, _ in apart):
        return None
    return [0.0, *(seconds or 0.0 for seconds, _ in apart)]


def _of_one_scope(
    snapshots: Sequence[LoggedSnapshot],
) -> Tuple[Tuple[LoggedSnapshot, ...], List[str]]:
    """Those of the system's pools, or of the first session where there are none."""
    scopes = tuple(dict.fromkeys(one.scope for one in snapshots))
    wanted = "" if "" in scopes else scopes[0]
    gaps = [f"not compared with the rest: {scope}" for scope in scopes if scope != wanted]
    if wanted:
        gaps.append(f"these are the figures of one part of the system: {wanted}")
    return tuple(one for one in snapshots if one.scope == wanted), gaps


def _not_comparable(before: LoggedSnapshot, after: LoggedSnapshot) -> str:
    """Why growth between two snapshots means nothing; "" when it does."""
    first, last = before.moment, after.moment
    where = f"between {_place(before)} and {_place(after)}"
    if first.build and last.build and first.build != last.build:
        return f"they are of two systems, builds {first.build} and {last.build}"
    if first.uptime is not None and last.uptime is not None and last.uptime < first.uptime:
        later = (first.target_clock or 0.0) < (last.target_clock or 0.0)
        wrong = "" if later else ", or they stand in the wrong order"
        return (
            f"the machine was restarted {where} (up for {first.uptime:,.0f} s, then for "
            f"{last.uptime:,.0f} s){wrong}"
        )
    if first.kernel_base and last.kernel_base and first.kernel_base != last.kernel_base:
        return f"the machine was restarted {where}, or it is another one: nt was loaded elsewhere"
    back, counted = _went_back(before, after)
    if back >= _FEW_TAGS and back >= counted * _MANY_WENT_BACK:
        return (
            f"the machine was restarted {where}, or they stand in the wrong order: "
            f"{back:,} of {counted:,} allocation counters went back"
        )
    return ""


def _counters_back(before: LoggedSnapshot, after: LoggedSnapshot) -> List[str]:
    back, _ = _went_back(before, after)
    if not back:
        return []
    return [
        f"{amount(back, 'allocation counter')} went back between {_place(before)} "
        f"and {_place(after)}: wrapped, or read while they moved"
    ]


def _went_back(before: LoggedSnapshot, after: LoggedSnapshot) -> Tuple[int, int]:
    """Allocation counters that went back, and how many there are in both; they never should."""
    if before.snapshot.outstanding_only or after.snapshot.outstanding_only:
        return 0, 0
    later = {row.tag: row for row in after.snapshot.rows}
    back = counted = 0
    for row in before.snapshot.rows:
        for pool in Pool:
            # A tag that was used since boot cannot be missing from a whole list later on.
            if row.of(pool).allocs and after.tells(row.tag, pool):
                counted += 1
                other = later.get(row.tag)
                back += other is None or other.of(pool).allocs < row.of(pool).allocs
    return back, counted


def _pick(
    rows: Sequence[RankRow], snapshots: int, seconds: Optional[float], what: str
) -> Tuple[Optional[RankRow], str]:
    span = f"in {seconds:,.0f} s" if seconds is not None else "in an unknown time"
    growing = [row for row in rows if row.growth_bytes > 0 and row.growth_blocks > 0]
    if not growing:
        return None, f"No tag grew between the {what}s ({span})."
    row = growing[0]
    grew = (
        f"'{row.tag}' ({row.pool.value}) grew by {row.growth_bytes:,} bytes "
        f"({row.growth_blocks:+,} blocks) {span}"
    )
    if row.trend in NOT_PICKED:
        return None, f"No tag grew steadily; {grew} {NOT_PICKED[row.trend]}."
    if row.trend is Trend.STEADY:
        return row, f"{grew}, steadily over {snapshots} {what}s."
    if row.trend is Trend.BURST:
        return row, f"{grew}, nearly all of it in one or two steps."
    return row, f"{grew}; more {what}s in between would tell growth from chance."


def _place(one: LoggedSnapshot) -> str:
    if not one.lines:
        return one.log
    line = f"line {one.lines[0]}"
    return f"{line} of {one.log}" if one.log else line


def _named(one: LoggedSnapshot) -> Tuple[str, ...]:
    return tuple(f"{one.log}: {gap}" if one.log else gap for gap in one.snapshot.gaps)


def _tags(tags: Sequence[PoolTag]) -> str:
    shown = ", ".join(f"'{tag}'" for tag in tags[:5])
    if len(tags) > 5:
        return f"{len(tags):,} tags ({shown}, ...)"
    return f"tag{'' if len(tags) == 1 else 's'} {shown}"
