"""Reports for programs: versioned JSON, one document per result.

Every document names its ``format`` and ``format_version``; minor versions only add, readers
refuse an unknown major one. A value that is not there is ``null``, and the object's ``absent``
says why under the same name. 64-bit numbers that mean addresses are hexadecimal strings. Keys
keep their order, and nothing depends on the run but the result, so equal results are equal text.
The schemas are in ``kdleak/report/schema``.
"""

from __future__ import annotations

import json
import time
from typing import Dict, Optional, Tuple

from kdleak.allocator_frames import kernel_addresses
from kdleak.model import (
    Block,
    Hit,
    Pool,
    Stack,
    Stop,
    TagUsage,
)
from kdleak.report.blame_json import blamed_modules, tag_owner, through_of
from kdleak.report.json_values import (
    Absent,
    Document,
    counters_of,
    dump,
    frame_of,
    head,
    hexadecimal,
    limits_of,
    name_of,
    or_absent,
    rank_row,
    seconds_of,
    stack_of,
    tag_of,
    target_of,
    with_absent,
)
from kdleak.result import (
    Budgets,
    CallSite,
    Check,
    Completeness,
    DisarmState,
    HuntResult,
    Interval,
    RankResult,
    RestoreItem,
    RestoreResult,
    Scaled,
    Scaling,
    SeriesPoint,
    StackUse,
    TagGrowth,
    TargetChange,
)


def hunt_json(result: HuntResult) -> str:
    """A hunt as a "kdleak.hunt" document: ASCII, ends with a newline, one hit to a line."""
    document = hunt_document(result)
    hits, document["hits"] = document["hits"], []
    text = dump(document)
    if not hits:
        return text
    # Thousands of them: laid out like the rest they would take most of the time and the space.
    # No text holds a line break as it is, so this is the property itself.
    head, place, tail = text.partition('\n  "hits": [')
    lines = ",\n    ".join(json.dumps(hit, ensure_ascii=True, allow_nan=False) for hit in hits)
    return f"{head}{place}\n    {lines}\n  {tail}"


def rank_json(result: RankResult) -> str:
    """A ranking as a "kdleak.rank" document: ASCII, ends with a newline."""
    return dump(rank_document(result))


def restore_json(result: RestoreResult) -> str:
    """A restore as a "kdleak.restore" document: ASCII, ends with a newline."""
    return dump(restore_document(result))


def hunt_document(result: HuntResult) -> Document:
    """A hunt as JSON values."""
    pointer_size = result.target.pointer_size
    stack_index = {
        kernel_addresses(use.stack, pointer_size) or (0,): index
        for index, use in enumerate(result.stacks)
    }
    accused = next(
        (index for index, site in enumerate(result.sites) if site == result.accused), None
    )
    return {
        **head("kdleak.hunt"),
        **with_absent(
            target=target_of(result.target),
            engine=result.engine,
            where=result.where,
            started_at=_time(result.started_at),
            tag=tag_of(result.tag) if result.tag else Absent("no tag was picked"),
            tag_reason=result.tag_reason,
            stop_reason=name_of(result.stop_reason),
            interrupted=result.interrupted,
            leave_stopped=result.leave_stopped,
            verdict=list(result.verdict),
            accused=or_absent(accused, "no call site can be accused"),
            call_sites=[_site(site) for site in result.sites],
            stacks=[_stack_use(use) for use in result.stacks],
            hits=[_hit(hit, stack_index, pointer_size) for hit in result.hits],
            pairing=dict(vars(result.pairing)),
            growth=_growth(result.growth) if result.growth else Absent("not measured"),
            completeness=_completeness(result.completeness),
            change=_change(result.change) if result.change else Absent("nothing was written"),
            disarm=_disarm(result.disarm),
            stop=_stop(result.stop, result.stop_stack) if result.stop else _NO_STOP,
            error=or_absent(result.error or None, "no error"),
            checklist=[_check(check) for check in result.checklist],
            rank=_rank(result.rank) if result.rank else Absent("the tag was given"),
            remarks=list(result.remarks),
            min_age=Absent("a multiple of the longest life seen, for each call site")
            if result.min_age is None
            else seconds_of(result.min_age),
            series=[_point(point) for point in result.series],
            watched=[[seconds_of(begin), seconds_of(end)] for begin, end in result.watched],
            scaling=_scaling(result.scaling) if result.scaling else _NOT_SCALED,
            budgets=_budgets(result.budgets)
            if result.budgets
            else Absent("not known of this hunt"),
            blamed_modules=blamed_modules(result),
            tag_owner=tag_owner(result),
        ),
    }


def rank_document(result: RankResult) -> Document:
    """A ranking as JSON values."""
    return {**head("kdleak.rank"), **_rank(result)}


def restore_document(result: RestoreResult) -> Document:
    """A restore as JSON values."""
    return {
        **head("kdleak.restore"),
        "state": _disarm(result.state),
        "entries": [_restore_item(item) for item in result.items],
        "passed_hits": result.passed_hits,
        "leave_stopped": result.leave_stopped,
        "interrupted": result.interrupted,
        "remarks": list(result.remarks),
    }


_NOT_SCALED = Absent("nothing was sampled, or in too few bursts, or the counters were not read")
_NO_STOP = Absent("no stop of the target's own")


def _time(value: float) -> str:
    # Rounded first, so that 59.9996 s does not become 59.1000.
    whole, milliseconds = divmod(round(value * 1000), 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{milliseconds:03}Z"


def _stack_use(use: StackUse) -> Document:
    return {
        "call_site": hexadecimal(use.site),
        "allocs": use.allocs,
        "frees": use.frees,
        "outstanding": use.outstanding,
        "outstanding_bytes": use.outstanding_bytes,
        "blame": hexadecimal(use.blame),
        **stack_of(use.stack),
    }


def _site(site: CallSite) -> Document:
    return with_absent(
        frame=frame_of(site.frame),
        blame=frame_of(site.blame),
        judgement=name_of(site.judgement),
        sentence=site.sentence,
        allocs=site.allocs,
        frees=site.frees,
        bytes_allocated=site.bytes_allocated,
        bytes_freed=site.bytes_freed,
        unsized=site.unsized,
        unaddressed=site.unaddressed,
        unwatched=site.unwatched,
        returned=site.returned,
        replaced=site.replaced,
        outstanding=site.outstanding,
        outstanding_bytes=site.outstanding_bytes,
        outstanding_unsized=site.outstanding_unsized,
        outstanding_old=site.outstanding_old,
        longest_life=Absent("nothing allocated here was seen freed")
        if site.longest_life is None
        else seconds_of(site.longest_life),
        distinct_stacks=site.distinct_stacks,
        stack=stack_of(site.stack),
        outstanding_old_bytes=site.outstanding_old_bytes,
        min_age=seconds_of(site.min_age),
        oldest_age=_age(site.oldest_age),
        median_age=_age(site.median_age),
        share_staying=_interval(site.share_staying)
        if site.share_staying
        else Absent("no block allocated here was followed"),
        growth=name_of(site.growth),
        series=[_point(point) for point in site.series],
        scaled=_scaled(site.scaled) if site.scaled else _NOT_SCALED,
        through=through_of(site),
        blame_found=site.blame_found,
    )


def _age(value: Optional[float]) -> object:
    return Absent("no block is outstanding") if value is None else seconds_of(value)


def _interval(interval: Interval, digits: int = 6) -> Document:
    return {"low": round(interval.low, digits), "high": round(interval.high, digits)}


def _point(point: SeriesPoint) -> Document:
    return {
        "at": seconds_of(point.at),
        "outstanding": point.outstanding,
        "outstanding_bytes": point.outstanding_bytes,
        "allocs": point.allocs,
    }


def _scaled(scaled: Scaled) -> Document:
    return {
        "blocks": round(scaled.blocks, 1),
        "blocks_within": _interval(scaled.blocks_within, 1),
        "bytes": round(scaled.bytes, 1),
        "bytes_within": _interval(scaled.bytes_within, 1),
    }


def _budgets(budgets: Budgets) -> Document:
    no_limit = "no limit was set"
    return with_absent(
        max_hits=budgets.max_hits,
        max_seconds=seconds_of(budgets.max_seconds),
        max_stopped_share=or_absent(budgets.max_stopped_share, no_limit),
        hits_per_second=or_absent(budgets.hits_per_second, no_limit),
    )


def _scaling(scaling: Scaling) -> Document:
    return {
        "method": scaling.method,
        "factor": round(scaling.factor, 6),
        "bursts": scaling.bursts,
        "unattributed_frees": scaling.unattributed_frees,
        "total": _scaled(scaling.total),
    }


def _hit(hit: Hit, stacks: Dict[Tuple[int, ...], int], pointer_size: int) -> Document:
    return with_absent(
        number=hit.number,
        kind=name_of(hit.kind),
        at=seconds_of(hit.at),
        processor=hit.processor,
        thread=hexadecimal(hit.thread) if hit.thread else Absent("not known"),
        stack=or_absent(
            stacks.get(kernel_addresses(hit.stack, pointer_size) or (0,)), "not among the stacks"
        ),
        block=_block(hit.block),
    )


def _block(block: Block) -> Document:
    return with_absent(
        address=hexadecimal(block.address) if block.address else Absent("not found at this hit"),
        size=or_absent(block.size, "not found at this hit"),
        pool=name_of(block.pool) if block.pool else Absent("not found at this hit"),
        trust=name_of(block.trust),
    )


def _usage(usage: TagUsage) -> Document:
    return {pool.value: counters_of(usage.of(pool)) for pool in Pool}


def _growth(growth: TagGrowth) -> Document:
    return {
        "seconds": seconds_of(growth.seconds),
        "bytes": growth.bytes,
        "blocks": growth.blocks,
        "allocs": growth.allocs,
        "frees": growth.frees,
        "before": _usage(growth.before),
        "after": _usage(growth.after),
    }


def _completeness(done: Completeness) -> Document:
    return with_absent(
        hits=done.hits,
        seconds=seconds_of(done.seconds),
        seconds_watched=seconds_of(done.seconds_watched),
        seconds_stopped=seconds_of(done.seconds_stopped),
        share_watched=round(done.share_watched, 4),
        share_stopped=round(done.share_stopped, 4),
        bursts=done.bursts,
        late_hits=done.late_hits,
        broken_stacks=done.broken_stacks,
        unaddressed=done.unaddressed,
        unsized=done.unsized,
        requests=or_absent(done.requests or None, "this engine does not count them"),
        gaps=list(done.gaps),
        hits_left_out=done.hits_left_out,
    )


def _change(change: TargetChange) -> Document:
    return {
        "symbol": "nt!PoolHitTag",
        "address": hexadecimal(change.address),
        "original": hexadecimal(change.original),
        "armed": hexadecimal(change.armed),
        "times_armed": change.times_armed,
    }


def _disarm(state: DisarmState) -> Document:
    return with_absent(
        status=name_of(state.status),
        safe=state.safe,
        sentence=state.sentence(),
        address=hexadecimal(state.address) if state.address else Absent("not looked up"),
        value=Absent("not known") if state.value is None else hexadecimal(state.value),
        why=state.why,
        repair=list(state.repair),
        remarks=list(state.remarks),
    )


def _stop(stop: Stop, stack: Stack) -> Document:
    return {
        "kind": name_of(stop.kind),
        "program_counter": hexadecimal(stop.program_counter),
        "code": hexadecimal(stop.code),
        "first_chance": stop.first_chance,
        "processor": stop.processor,
        "detail": stop.detail,
        "stack": stack_of(stack),
    }


def _check(check: Check) -> Document:
    return {
        "question": check.question,
        "status": name_of(check.status),
        "evidence": check.evidence,
    }


def _rank(result: RankResult) -> Document:
    suspect: Optional[int] = next(
        (index for index, row in enumerate(result.rows) if row == result.suspect), None
    )
    rows = [rank_row(row, outstanding_only=result.outstanding_only) for row in result.rows]
    return with_absent(
        target=target_of(result.target),
        engine=result.engine,
        where=result.where,
        by=name_of(result.by),
        suspect=or_absent(suspect, result.reason),
        reason=result.reason,
        snapshots=result.snapshots,
        seconds=seconds_of(result.seconds),
        seconds_running=seconds_of(result.seconds_running),
        seconds_stopped=seconds_of(result.seconds_stopped),
        source=result.source,
        gaps=list(result.gaps),
        interrupted=result.interrupted,
        leave_stopped=result.leave_stopped,
        stop=_stop(result.stop, result.stop_stack) if result.stop else _NO_STOP,
        times=[seconds_of(time) for time in result.times],
        limits=limits_of(dict(result.limits)),
        rows=rows,
    )


def _restore_item(item: RestoreItem) -> Document:
    return with_absent(
        file_name=item.file_name,
        where=item.where,
        tag=tag_of(item.tag) if item.tag else Absent("not known"),
        state=_disarm(item.state),
        remark=item.remark,
        closed=item.closed,
    )
