"""Logs for programs: the "kdleak.parse" and "kdleak.logrank" documents.

What a log does not tell is ``null`` with a reason. Keys of KDNET that stand in a log are blanked.
"""

from __future__ import annotations

from typing import List, Optional, Sequence, Tuple

from kdleak.dialect.engine_errors import EngineFailure
from kdleak.dialect.log import DebuggerLog
from kdleak.dialect.source import Unparsed
from kdleak.logged import (
    LogContents,
    LoggedHit,
    LoggedHunt,
    LoggedRank,
    LoggedSite,
    LoggedSnapshot,
    LoggedTagValue,
)
from kdleak.logged.contents import FoundStack
from kdleak.model import Frame, Pool, Stack, TagUsage
from kdleak.report.json_values import (
    Absent,
    Document,
    counters_of,
    dump,
    head,
    hexadecimal,
    name_of,
    or_absent,
    rank_row,
    seconds_of,
    tag_of,
    with_absent,
)
from kdleak.report.parse_outputs_json import outputs
from kdleak.report.secrets import without_secrets

_NOT_SHOWN = "this log does not show it"


def parse_json(logs: Sequence[LogContents]) -> str:
    """Logs as a "kdleak.parse" document: ASCII, ends with a newline."""
    return dump(parse_document(logs))


def logged_rank_json(rank: LoggedRank) -> str:
    """A ranking of logs as a "kdleak.logrank" document: ASCII, ends with a newline."""
    document = {**head("kdleak.logrank"), **_rank(rank)}
    return dump(_blanked(document))


def parse_document(logs: Sequence[LogContents]) -> Document:
    """Logs as JSON values."""
    document = {
        **head("kdleak.parse"),
        "complete": all(one.complete for one in logs),
        "logs": [_contents(one) for one in logs],
    }
    return _blanked(document)


def _blanked(document: Document) -> Document:
    """The document without the value of anything called a key."""

    def blanked(value: object) -> object:
        if isinstance(value, str):
            return without_secrets(value)
        if isinstance(value, list):
            return [blanked(item) for item in value]
        if isinstance(value, dict):
            return {name: blanked(item) for name, item in value.items()}
        return value

    return {name: blanked(item) for name, item in document.items()}


def _contents(contents: LogContents) -> Document:
    log = contents.log
    return with_absent(
        name=contents.name,
        lines=len(log.lines),
        complete=contents.complete,
        target=_target(log),
        found=[
            {"what": kind.name, "count": len(kind.lines), "lines": list(kind.lines)}
            for kind in contents.found
        ],
        hunts=[_hunt(hunt) for hunt in contents.hunts],
        rank=_rank(contents.rank) if contents.rank else Absent("no list of tags in this log"),
        snapshots=[_snapshot(one) for one in contents.snapshots],
        stacks=[_found_stack(one) for one in contents.stacks],
        outputs=outputs(log),
        failures=[
            {"kind": name_of(failure.kind), "text": failure.text, "sentence": failure.sentence}
            for failure in log.of(EngineFailure)
        ],
        refused=[{"line": line, "why": why} for line, why in contents.refused],
        not_understood=_unparsed(contents.not_understood),
        not_read=_unparsed(contents.unread),
    )


def _target(log: DebuggerLog) -> Document:
    version = log.version
    architecture = log.architecture
    return with_absent(
        product=or_absent(version.product or None, _NOT_SHOWN),
        build=or_absent(version.build, _NOT_SHOWN),
        architecture=architecture.value if architecture else Absent(_NOT_SHOWN),
        processors=or_absent(version.processors, _NOT_SHOWN),
        kernel_base=_number(version.kernel_base),
        session=version.session.value if version.session else Absent(_NOT_SHOWN),
        uptime=Absent(_NOT_SHOWN) if version.uptime is None else seconds_of(version.uptime),
    )


def _unparsed(entries: Sequence[Unparsed]) -> List[Document]:
    return [{"line": entry.line, "text": entry.text, "why": entry.why} for entry in entries]


def _hunt(hunt: LoggedHunt) -> Document:
    sites = {_place(site.frame): index for index, site in enumerate(hunt.sites)}
    return with_absent(
        tag=tag_of(hunt.tag) if hunt.tag else Absent(_NOT_SHOWN),
        verdict=list(hunt.verdict),
        by_breakpoint=hunt.by_breakpoint,
        allocs=hunt.allocs,
        frees=hunt.frees,
        unknown_kind=hunt.unknown_kind,
        without_site=hunt.without_site,
        pool_hit_tag=_tag_value(hunt.tag_value),
        call_sites=[_site(site) for site in hunt.sites],
        hits=[_hit(hit, sites.get(_place(hit.site)) if hit.site else None) for hit in hunt.hits],
    )


def _place(frame: Frame) -> Tuple[int, str]:
    """What makes two call sites the same: the address, or the name where there is none."""
    return frame.address, "" if frame.address else str(frame.symbol)


def _tag_value(value: LoggedTagValue) -> Document:
    return with_absent(
        before=_number(value.before),
        armed=[tag_of(tag) for tag in value.armed],
        last_written=_number(value.last_written, "nothing was written"),
        after=_number(value.after),
        state=name_of(value.state),
        safe=value.safe,
        sentence=value.sentence,
    )


def _number(value: Optional[int], reason: str = _NOT_SHOWN) -> object:
    return Absent(reason) if value is None else hexadecimal(value)


def _site(site: LoggedSite) -> Document:
    return {
        "frame": _frame(site.frame),
        "blame": _frame(site.blame),
        "judgement": name_of(site.judgement),
        "sentence": site.sentence,
        "allocs": site.allocs,
        "frees": site.frees,
        "distinct_stacks": site.distinct_stacks,
        "stack": _stack(site.stack),
    }


def _hit(hit: LoggedHit, site: Optional[int]) -> Document:
    return with_absent(
        number=hit.number,
        line=hit.line,
        kind=name_of(hit.kind) if hit.kind else Absent(_NOT_SHOWN),
        evidence=or_absent(hit.evidence or None, "nothing tells the kind"),
        call_site=or_absent(site, "no stack shows who called the allocator"),
        processor=or_absent(hit.processor, _NOT_SHOWN),
        block=_number(hit.block),
        requested=or_absent(hit.requested, _NOT_SHOWN),
        pool=name_of(hit.pool) if hit.pool else Absent(_NOT_SHOWN),
        stack=_stack(hit.stack) if hit.stack else Absent("no stack was printed at it"),
    )


def _frame(frame: Frame) -> Document:
    symbol = frame.symbol
    return with_absent(
        address=_number(frame.address or None),
        text=str(symbol) if symbol.module or symbol.name or frame.address else "?",
        module=or_absent(symbol.module or None, _NOT_SHOWN),
        symbol=or_absent(symbol.name or None, _NOT_SHOWN),
        offset=symbol.offset,
        symbol_kind=name_of(symbol.kind),
    )


def _stack(stack: Stack) -> Document:
    return {"frames": [_frame(frame) for frame in stack.frames], "end": name_of(stack.end)}


def _found_stack(one: FoundStack) -> Document:
    return with_absent(
        lines=list(one.lines),
        command=or_absent(one.command, _NOT_SHOWN),
        at_hits=one.at_hits,
        doubts=list(one.doubts),
        cut=one.cut,
        stack=_stack(one.stack),
    )


def _rank(rank: LoggedRank) -> Document:
    suspect = next((index for index, row in enumerate(rank.rows) if row == rank.suspect), None)
    seconds: object = Absent("the logs do not tell")
    if rank.seconds is not None:
        seconds = seconds_of(rank.seconds)
    return with_absent(
        logs=list(rank.logs),
        by=name_of(rank.by),
        suspect=or_absent(suspect, rank.reason),
        reason=rank.reason,
        seconds=seconds,
        seconds_rest_on=or_absent(rank.seconds_rest_on or None, "the logs do not tell"),
        gaps=list(rank.gaps),
        compared=[
            {"log": one.log, "lines": list(one.lines), "source": one.snapshot.source}
            for one in rank.snapshots
        ],
        rows=[rank_row(row, outstanding_only=rank.outstanding_only) for row in rank.rows],
    )


def _snapshot(one: LoggedSnapshot) -> Document:
    moment = one.moment
    return with_absent(
        lines=list(one.lines),
        source=one.snapshot.source,
        complete=one.complete,
        scope=or_absent(one.scope or None, "the pools of the whole system"),
        uptime=Absent(_NOT_SHOWN) if moment.uptime is None else seconds_of(moment.uptime),
        gaps=list(one.snapshot.gaps),
        rows=[_usage(row, one) for row in one.snapshot.rows],
    )


def _usage(row: TagUsage, one: LoggedSnapshot) -> Document:
    pools = {
        pool.value: counters_of(row.of(pool), outstanding_only=one.snapshot.outstanding_only)
        if (row.tag, pool) in one.known
        else Absent(_NOT_SHOWN)
        for pool in Pool
    }
    return with_absent(
        tag=tag_of(row.tag),
        description=or_absent(one.descriptions.get(row.tag), "the list says nothing"),
        **pools,
    )
