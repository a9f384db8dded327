"""What grew between crash dumps, as JSON; see ``schema/diff.schema.json``."""

from __future__ import annotations

from kdleak.dumped import DumpComparison, DumpMoment
from kdleak.report.json_values import (
    Absent,
    Document,
    dump,
    head,
    hexadecimal,
    or_absent,
    rank_row,
    seconds_of,
    with_absent,
)
from kdleak.result import RankBy


def diff_json(comparison: DumpComparison) -> str:
    """A comparison as a "kdleak.diff" document: ASCII, ends with a newline."""
    rank = comparison.rank
    suspect = next((i for i, row in enumerate(rank.rows) if row == rank.suspect), None)
    unmeasured = Absent("growth could not be measured, see gaps")
    seconds: object = unmeasured
    if rank.by is RankBy.GROWTH:
        seconds = (
            Absent("the dumps do not tell") if rank.seconds is None else seconds_of(rank.seconds)
        )
    return dump(
        {
            **head("kdleak.diff"),
            **with_absent(
                dumps=[_dump(one) for one in comparison.dumps],
                by=rank.by.value,
                suspect=or_absent(suspect, "no tag grew"),
                reason=rank.reason,
                seconds=seconds,
                seconds_rest_on=rank.seconds_rest_on,
                rows=[rank_row(row, outstanding_only=False) for row in rank.rows],
                gaps=list(rank.gaps),
                remarks=list(comparison.remarks),
            ),
        }
    )


def _dump(one: DumpMoment) -> Document:
    target = one.target
    return with_absent(
        name=one.name,
        description=target.description,
        architecture=target.architecture.value,
        build=target.build,
        kernel_base=or_absent(
            hexadecimal(target.kernel_base) if target.kernel_base else None, "nt was not found"
        ),
        taken_at=or_absent(one.moment.target_clock, "the header does not tell"),
        uptime=or_absent(one.moment.uptime, "the header does not tell"),
        tags=len(one.snapshot.rows),
        source=one.snapshot.source,
        remarks=list(one.remarks),
    )
