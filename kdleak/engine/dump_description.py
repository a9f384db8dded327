"""What a dump's header says of the target, in words."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from kdleak.quantities import amount

if TYPE_CHECKING:
    from kdleak.dump.header import DumpHeader

LIVE_DUMP = 0x161
"""Bug check code of a dump that was taken of a running system (LIVE_SYSTEM_DUMP)."""

_FILETIME_EPOCH = datetime(1601, 1, 1, tzinfo=timezone.utc)
_LATEST = 0x7FFF_FFFF_FFFF_FFFF // 4
"""A FILETIME beyond it (year 8907) is damage."""


def describe_target(header: DumpHeader, kind: str, lab: str) -> str:
    """One line for people: "Windows build 22621 x64, 2 processors, <lab>, <kind>"."""
    count = header.processors
    parts = [f"Windows build {header.build} {header.architecture.value}"]
    if count:
        parts.append(amount(count, "processor"))
    if lab:
        parts.append(lab)
    parts.append(kind)
    return ", ".join(parts)


def describe_crash(header: DumpHeader) -> str:
    """Why the dump was written; "" when the header does not say."""
    code = header.bug_check_code
    if not code:
        return ""
    if code == LIVE_DUMP:
        return "live dump: the system went on running"
    shown = ", ".join(f"0x{value:x}" for value in header.bug_check_parameters)
    return f"bug check 0x{code:x} ({shown})"


def describe_times(header: DumpHeader) -> str:
    """When it was written and how long the system had been up; "" when neither is known."""
    parts = []
    if header.system_time is not None and 0 < header.system_time < _LATEST:
        moment = _FILETIME_EPOCH + timedelta(microseconds=header.system_time // 10)
        parts.append(f"written {moment:%Y-%m-%d %H:%M:%S} UTC")
    seconds = uptime_seconds(header)
    if seconds is not None:
        days, rest = divmod(int(seconds), 86400)
        clock = f"{rest // 3600}:{rest // 60 % 60:02}:{rest % 60:02}"
        parts.append("up " + (f"{days} d {clock}" if days else clock))
    return ", ".join(parts)


def uptime_seconds(header: DumpHeader) -> float | None:
    """Seconds since boot; None where the header does not tell."""
    if header.uptime is None or not 0 <= header.uptime < _LATEST:
        return None
    return header.uptime / 1e7
