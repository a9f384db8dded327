"""A crash dump at a glance, as JSON; see ``schema/dump.schema.json``."""

from __future__ import annotations

from kdleak.dumped.glance import DumpOverview, TagDetail
from kdleak.model import Pool
from kdleak.report import find_json, sites_json
from kdleak.report.json_values import (
    Absent,
    Document,
    counters_of,
    dump,
    head,
    hexadecimal,
    or_absent,
    tag_of,
    target_of,
    with_absent,
)

_NOT_SEARCHED = Absent("not searched, see gaps")


def dump_json(overview: DumpOverview) -> str:
    """An overview as a "kdleak.dump" document: ASCII, ends with a newline."""
    crash: object = Absent("the machine did not crash")
    if overview.bug_check is not None:
        crash = {
            "code": hexadecimal(overview.bug_check),
            "parameters": [hexadecimal(one) for one in overview.bug_check_parameters],
        }
    untold = "the header does not tell"
    snapshot = overview.snapshot
    return dump(
        {
            **head("kdleak.dump"),
            **with_absent(
                where=overview.where,
                kind=overview.kind,
                size=overview.size,
                target=target_of(overview.target),
                taken_at=or_absent(overview.moment.target_clock, untold),
                uptime=or_absent(overview.moment.uptime, untold),
                bug_check=crash,
                source=Absent(overview.no_tables) if snapshot is None else snapshot.source,
                totals={pool.value: counters_of(overview.total(pool)) for pool in Pool},
                rows=[
                    {
                        "tag": tag_of(row.tag),
                        "pool": row.pool.value,
                        "counters": counters_of(row.last),
                    }
                    for row in overview.rows
                ],
                details=[_detail(one) for one in overview.details],
                gaps=list(overview.gaps),
                remarks=list(overview.remarks),
            ),
        }
    )


def _detail(detail: TagDetail) -> Document:
    blocks, sites = detail.blocks, detail.sites
    return with_absent(
        tag=tag_of(detail.tag),
        counters={pool.value: counters_of(detail.usage.of(pool)) for pool in Pool},
        owner=or_absent(detail.owner or None, "no pooltag.txt names one"),
        blocks=_NOT_SEARCHED
        if blocks is None
        else with_absent(complete=blocks.complete, **find_json.search_fields(blocks)),
        sites=_NOT_SEARCHED if sites is None else with_absent(**sites_json.search_fields(sites)),
        gaps=list(detail.gaps),
    )
