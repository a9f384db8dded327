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
from dataclasses import dataclass
from enum import Enum
from typing import Any, Dict, Optional, Tuple

from kdleak import __version__
from kdleak.allocator_frames import kernel_addresses
from kdleak.model import (
    Block,
    Frame,
    Hit,
    Pool,
    PoolCounters,
    Stack,
    Stop,
    TagUsage,
    TargetInfo,
)
from kdleak.result import (
    CallSite,
    Check,
    Completeness,
    DisarmState,
    HuntResult,
    RankResult,
    RankRow,
    RestoreItem,
    RestoreResult,
    StackUse,
    TagGrowth,
    TargetChange,
)
from kdleak.tags import PoolTag

FORMAT_VERSION = "1.0"

Document = Dict[str, Any]


@dataclass(frozen=True)
class _Absent:
    """A value that is not there, and why."""

    reason: str


def hunt_json(result: HuntResult) -> str:
    """A hunt as a "kdleak.hunt" document: ASCII, ends with a newline."""
    return _dump(hunt_document(result))


def rank_json(result: RankResult) -> str:
    """A ranking as a "kdleak.rank" document: ASCII, ends with a newline."""
    return _dump(rank_document(result))


def restore_json(result: RestoreResult) -> str:
    """A restore as a "kdleak.restore" document: ASCII, ends with a newline."""
    return _dump(restore_document(result))


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
        **_head("kdleak.hunt"),
        **_object(
            target=_target(result.target),
            engine=result.engine,
            where=result.where,
            started_at=_time(result.started_at),
            tag=_tag(result.tag) if result.tag else _Absent("no tag was picked"),
            tag_reason=result.tag_reason,
            stop_reason=_name(result.stop_reason),
            interrupted=result.interrupted,
            leave_stopped=result.leave_stopped,
            verdict=list(result.verdict),
            accused=_or_absent(accused, "no call site can be accused"),
            call_sites=[_site(site) for site in result.sites],
            stacks=[_stack_use(use) for use in result.stacks],
            hits=[_hit(hit, stack_index, pointer_size) for hit in result.hits],
            pairing=dict(vars(result.pairing)),
            growth=_growth(result.growth) if result.growth else _Absent("not measured"),
            completeness=_completeness(result.completeness),
            change=_change(result.change) if result.change else _Absent("nothing was written"),
            disarm=_disarm(result.disarm),
            stop=_stop(result.stop, result.stop_stack) if result.stop else _NO_STOP,
            error=_or_absent(result.error or None, "no error"),
            checklist=[_check(check) for check in result.checklist],
            rank=_rank(result.rank) if result.rank else _Absent("the tag was given"),
            remarks=list(result.remarks),
        ),
    }


def rank_document(result: RankResult) -> Document:
    """A ranking as JSON values."""
    return {**_head("kdleak.rank"), **_rank(result)}


def restore_document(result: RestoreResult) -> Document:
    """A restore as JSON values."""
    return {
        **_head("kdleak.restore"),
        "state": _disarm(result.state),
        "entries": [_restore_item(item) for item in result.items],
        "passed_hits": result.passed_hits,
        "leave_stopped": result.leave_stopped,
        "interrupted": result.interrupted,
        "remarks": list(result.remarks),
    }


_NO_STOP = _Absent("no stop of the target's own")


def _dump(document: Document) -> str:
    return json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def _head(name: str) -> Document:
    return {
        "format": name,
        "format_version": FORMAT_VERSION,
        "generator": {"name": "kdleak", "version": __version__},
    }


def _object(**fields: object) -> Document:
    """An object whose absent fields are null, with the reasons under ``absent``."""
    absent = {name: value.reason for name, value in fields.items() if isinstance(value, _Absent)}
    document: Document = {
        name: None if isinstance(value, _Absent) else value for name, value in fields.items()
    }
    if absent:
        document["absent"] = absent
    return document


def _or_absent(value: object, reason: str) -> object:
    return _Absent(reason) if value is None else value


def _name(member: Enum) -> str:
    return member.name.lower()


def _address(value: int) -> str:
    return f"0x{value:x}"


def _seconds(value: float) -> float:
    return round(value, 6)


def _time(value: float) -> str:
    # Rounded first, so that 59.9996 s does not become 59.1000.
    whole, milliseconds = divmod(round(value * 1000), 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{milliseconds:03}Z"


def _tag(tag: PoolTag) -> Document:
    return {"text": tag.text, "value": _address(tag.value)}


def _target(target: TargetInfo) -> Document:
    return {
        "architecture": target.architecture.value,
        "pointer_size": target.pointer_size,
        "build": target.build,
        "live": target.live,
        "processors": target.processors,
        "kernel_base": _address(target.kernel_base),
        "description": target.description,
    }


def _frame(frame: Frame) -> Document:
    symbol = frame.symbol
    return _object(
        address=_address(frame.address),
        text=str(symbol),
        module=_or_absent(symbol.module or None, "in no loaded module"),
        symbol=_or_absent(symbol.name or None, "no symbol is known there"),
        offset=symbol.offset,
        symbol_kind=_name(symbol.kind),
    )


def _stack(stack: Stack) -> Document:
    return {"frames": [_frame(frame) for frame in stack.frames], "end": _name(stack.end)}


def _stack_use(use: StackUse) -> Document:
    return {
        "call_site": _address(use.site),
        "allocs": use.allocs,
        "frees": use.frees,
        "outstanding": use.outstanding,
        "outstanding_bytes": use.outstanding_bytes,
        **_stack(use.stack),
    }


def _site(site: CallSite) -> Document:
    return _object(
        frame=_frame(site.frame),
        blame=_frame(site.blame),
        judgement=_name(site.judgement),
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
        longest_life=_Absent("nothing allocated here was seen freed")
        if site.longest_life is None
        else _seconds(site.longest_life),
        distinct_stacks=site.distinct_stacks,
        stack=_stack(site.stack),
    )


def _hit(hit: Hit, stacks: Dict[Tuple[int, ...], int], pointer_size: int) -> Document:
    return _object(
        number=hit.number,
        kind=_name(hit.kind),
        at=_seconds(hit.at),
        processor=hit.processor,
        thread=_address(hit.thread) if hit.thread else _Absent("not known"),
        stack=_or_absent(
            stacks.get(kernel_addresses(hit.stack, pointer_size) or (0,)), "not among the stacks"
        ),
        block=_block(hit.block),
    )


def _block(block: Block) -> Document:
    return _object(
        address=_address(block.address) if block.address else _Absent("not found at this hit"),
        size=_or_absent(block.size, "not found at this hit"),
        pool=_name(block.pool) if block.pool else _Absent("not found at this hit"),
        trust=_name(block.trust),
    )


def _counters(counters: PoolCounters, *, outstanding_only: bool = False) -> Document:
    uncounted = _Absent("only outstanding blocks were counted")
    return _object(
        allocs=uncounted if outstanding_only else counters.allocs,
        frees=uncounted if outstanding_only else counters.frees,
        outstanding=counters.outstanding,
        bytes=counters.bytes,
    )


def _usage(usage: TagUsage) -> Document:
    return {pool.value: _counters(usage.of(pool)) for pool in Pool}


def _growth(growth: TagGrowth) -> Document:
    return {
        "seconds": _seconds(growth.seconds),
        "bytes": growth.bytes,
        "blocks": growth.blocks,
        "allocs": growth.allocs,
        "frees": growth.frees,
        "before": _usage(growth.before),
        "after": _usage(growth.after),
    }


def _completeness(done: Completeness) -> Document:
    return _object(
        hits=done.hits,
        seconds=_seconds(done.seconds),
        seconds_watched=_seconds(done.seconds_watched),
        seconds_stopped=_seconds(done.seconds_stopped),
        share_watched=round(done.share_watched, 4),
        share_stopped=round(done.share_stopped, 4),
        bursts=done.bursts,
        late_hits=done.late_hits,
        broken_stacks=done.broken_stacks,
        unaddressed=done.unaddressed,
        unsized=done.unsized,
        requests=_or_absent(done.requests or None, "this engine does not count them"),
        gaps=list(done.gaps),
    )


def _change(change: TargetChange) -> Document:
    return {
        "symbol": "nt!PoolHitTag",
        "address": _address(change.address),
        "original": _address(change.original),
        "armed": _address(change.armed),
        "times_armed": change.times_armed,
    }


def _disarm(state: DisarmState) -> Document:
    return _object(
        status=_name(state.status),
        safe=state.safe,
        sentence=state.sentence(),
        address=_address(state.address) if state.address else _Absent("not looked up"),
        value=_Absent("not known") if state.value is None else _address(state.value),
        why=state.why,
        repair=list(state.repair),
        remarks=list(state.remarks),
    )


def _stop(stop: Stop, stack: Stack) -> Document:
    return {
        "kind": _name(stop.kind),
        "program_counter": _address(stop.program_counter),
        "code": _address(stop.code),
        "first_chance": stop.first_chance,
        "processor": stop.processor,
        "detail": stop.detail,
        "stack": _stack(stack),
    }


def _check(check: Check) -> Document:
    return {
        "question": check.question,
        "status": _name(check.status),
        "evidence": check.evidence,
    }


def _rank(result: RankResult) -> Document:
    suspect: Optional[int] = next(
        (index for index, row in enumerate(result.rows) if row == result.suspect), None
    )
    rows = [_rank_row(row, outstanding_only=result.outstanding_only) for row in result.rows]
    return _object(
        target=_target(result.target),
        engine=result.engine,
        where=result.where,
        by=_name(result.by),
        suspect=_or_absent(suspect, result.reason),
        reason=result.reason,
        snapshots=result.snapshots,
        seconds=_seconds(result.seconds),
        seconds_running=_seconds(result.seconds_running),
        seconds_stopped=_seconds(result.seconds_stopped),
        source=result.source,
        gaps=list(result.gaps),
        interrupted=result.interrupted,
        leave_stopped=result.leave_stopped,
        stop=_stop(result.stop, result.stop_stack) if result.stop else _NO_STOP,
        rows=rows,
    )


def _rank_row(row: RankRow, *, outstanding_only: bool) -> Document:
    measured = len(row.bytes_series) > 1
    unmeasured = _Absent("one snapshot only")
    return _object(
        tag=_tag(row.tag),
        pool=_name(row.pool),
        first=_counters(row.first, outstanding_only=outstanding_only),
        last=_counters(row.last, outstanding_only=outstanding_only),
        growth_bytes=row.growth_bytes if measured else unmeasured,
        growth_blocks=row.growth_blocks if measured else unmeasured,
        bytes_per_hour=unmeasured if row.bytes_per_hour is None else round(row.bytes_per_hour, 3),
        trend=_name(row.trend),
        bytes_series=list(row.bytes_series),
    )


def _restore_item(item: RestoreItem) -> Document:
    return _object(
        file_name=item.file_name,
        where=item.where,
        tag=_tag(item.tag) if item.tag else _Absent("not known"),
        state=_disarm(item.state),
        remark=item.remark,
        closed=item.closed,
    )
