"""Values that several JSON reports write the same way.

A value that is not there is ``null``, and the object's ``absent`` says why under the same name.
64-bit numbers that mean addresses are hexadecimal strings.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any, Dict, Mapping

from kdleak import __version__
from kdleak.model import Frame, Pool, PoolCounters, Stack, TargetInfo
from kdleak.result import PoolLimit, RankRow, Trend
from kdleak.tags import PoolTag

FORMAT_VERSION = "1.0"

Document = Dict[str, Any]


@dataclass(frozen=True)
class Absent:
    """A value that is not there, and why."""

    reason: str


def dump(document: Document) -> str:
    """A document as text: ASCII, ends with a newline."""
    return json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def head(name: str) -> Document:
    """What every document begins with."""
    return {
        "format": name,
        "format_version": FORMAT_VERSION,
        "generator": {"name": "kdleak", "version": __version__},
    }


def with_absent(**fields: object) -> Document:
    """An object whose absent fields are null, with the reasons under ``absent``."""
    absent = {name: value.reason for name, value in fields.items() if isinstance(value, Absent)}
    document: Document = {
        name: None if isinstance(value, Absent) else value for name, value in fields.items()
    }
    if absent:
        document["absent"] = absent
    return document


def or_absent(value: object, reason: str) -> object:
    """The value, or the reason for there being none."""
    return Absent(reason) if value is None else value


def name_of(member: Enum) -> str:
    """A member of a closed set, in lower case."""
    return member.name.lower()


def hexadecimal(value: int) -> str:
    """An address or another machine number."""
    return f"0x{value:x}"


def seconds_of(value: float) -> float:
    """A time, to the microsecond."""
    return round(value, 6)


def tag_of(tag: PoolTag) -> Document:
    """A pool tag."""
    return {"text": tag.text, "value": hexadecimal(tag.value)}


def target_of(target: TargetInfo) -> Document:
    """What was under the debugger."""
    return {
        "architecture": target.architecture.value,
        "pointer_size": target.pointer_size,
        "build": target.build,
        "live": target.live,
        "processors": target.processors,
        "kernel_base": hexadecimal(target.kernel_base),
        "description": target.description,
    }


def frame_of(frame: Frame) -> Document:
    """A frame of a stack."""
    symbol = frame.symbol
    return with_absent(
        address=hexadecimal(frame.address),
        text=str(symbol),
        module=or_absent(symbol.module or None, "in no loaded module"),
        symbol=or_absent(symbol.name or None, "no symbol is known there"),
        offset=symbol.offset,
        symbol_kind=name_of(symbol.kind),
    )


def stack_of(stack: Stack) -> Document:
    """A call stack."""
    return {"frames": [frame_of(frame) for frame in stack.frames], "end": name_of(stack.end)}


def counters_of(counters: PoolCounters, *, outstanding_only: bool = False) -> Document:
    """Counters of one tag in one pool."""
    uncounted = Absent("only outstanding blocks were counted")
    return with_absent(
        allocs=uncounted if outstanding_only else counters.allocs,
        frees=uncounted if outstanding_only else counters.frees,
        outstanding=counters.outstanding,
        bytes=counters.bytes,
    )


def rank_row(row: RankRow, *, outstanding_only: bool) -> Document:
    """One tag in one pool."""
    measured = len(row.bytes_series) > 1
    unmeasured = Absent("one snapshot only")
    fit = row.fit
    no_rate: object = unmeasured
    if measured:
        no_rate = Absent("the time between the snapshots is not known")
    low, high = (None, None) if fit is None else (fit.low, fit.high)
    no_interval = no_rate if fit is None else Absent("an interval takes five snapshots")
    left: object = Absent("its growth is not steady")
    if row.trend is Trend.STEADY:
        left = Absent("the limit of the pool is not known")
    return with_absent(
        tag=tag_of(row.tag),
        pool=name_of(row.pool),
        first=counters_of(row.first, outstanding_only=outstanding_only),
        last=counters_of(row.last, outstanding_only=outstanding_only),
        growth_bytes=row.growth_bytes if measured else unmeasured,
        growth_blocks=row.growth_blocks if measured else unmeasured,
        bytes_per_hour=no_rate if row.bytes_per_hour is None else round(row.bytes_per_hour, 3),
        bytes_per_hour_low=no_interval if low is None else round(low, 3),
        bytes_per_hour_high=no_interval if high is None else round(high, 3),
        p_rise=no_rate if fit is None else significant(fit.p_rise),
        hours_to_exhaustion=left if row.hours_left is None else round(row.hours_left, 3),
        trend=name_of(row.trend),
        bytes_series=list(row.bytes_series),
    )


def limits_of(limits: Mapping[Pool, PoolLimit]) -> Document:
    """What the pools can come to, as far as known."""
    unknown = Absent("not known, or not looked for where no tag grows steadily")
    return with_absent(
        **{
            name_of(pool): {"bytes": limits[pool].bytes, "source": limits[pool].source}
            if pool in limits
            else unknown
            for pool in Pool
        }
    )


def significant(value: float) -> float:
    """A probability, to six significant digits."""
    return float(f"{value:.6g}")
