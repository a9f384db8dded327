"""When something in a log happened, as far as the debugger printed a time near it."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Iterable, List, NamedTuple, Optional, Sequence, Tuple

from kdleak.dialect.breaks import Break
from kdleak.dialect.log_event import Event
from kdleak.dialect.prompt import Prompt
from kdleak.dialect.session import is_resume
from kdleak.dialect.tag_commands import split_commands
from kdleak.dialect.version import TargetVersion
from kdleak.logged.moment import Moment

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_TIME = re.compile(
    r"(?:[A-Za-z]{3} )?(?P<month>[A-Za-z]{3})[ ]{1,2}(?P<day>[0-9]{1,2}) "
    r"(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})(?P<fraction>\.[0-9]{1,6})? "
    r"(?P<year>[0-9]{4})"
    r"(?: \((?:UTC|GMT) ?(?P<sign>[+-]) ?(?P<zone>[0-9]{1,2})(?::(?P<half>[0-9]{2}))?\))?"
)
_SESSION_TIME = "Debug session time"
_HOST_TIME = "Debugger (not debuggee) time"


class Segment(NamedTuple):
    """Events between two resumes: the target stood still, so all of it is one moment.

    Attributes:
        events: in their order.
        moment: times printed among them.
    """

    events: Sequence[Event]
    moment: Moment


def segments(events: Iterable[Event]) -> Tuple[Segment, ...]:
    """Part the events of a log where the target ran.

    A resume command parts; so do a stop whose resume is not in the text and, where a mail holds
    several logs, an uptime that is not the one before it.
    """
    parts: List[List[Event]] = [[]]
    stopped = False
    uptime: Optional[float] = None
    for event in events:
        value = event.value
        if isinstance(value, TargetVersion) and value.uptime is not None:
            if uptime not in (None, value.uptime) and parts[-1]:
                parts.append([])
            uptime = value.uptime
        if isinstance(value, Break):
            if stopped:
                parts.append([])
            stopped = True
        parts[-1].append(event)
        if isinstance(value, Prompt):
            stopped = True
            if any(is_resume(command) for command in split_commands(value.command)):
                parts.append([])
                stopped = False
    known = Moment()
    found = []
    for part in parts:
        moment = _moment_of(part, known)
        known = moment
        found.append(Segment(part, moment))
    return tuple(found)


def _moment_of(events: Sequence[Event], earlier: Moment) -> Moment:
    """What is said in one segment; build and base hold on until something else is said."""
    uptime = target_clock = host_clock = None
    build, kernel_base = earlier.build, earlier.kernel_base
    for event in events:
        version = event.value
        if not isinstance(version, TargetVersion):
            continue
        uptime = version.uptime if version.uptime is not None else uptime
        target_clock = _clock(version.labels.get(_SESSION_TIME, "")) or target_clock
        host_clock = _clock(version.labels.get(_HOST_TIME, "")) or host_clock
        build = version.build or build
        kernel_base = version.kernel_base or kernel_base
    return Moment(uptime, target_clock, host_clock, build, kernel_base)


def _clock(text: str) -> Optional[float]:
    """Seconds since 1970 of a time as DbgEng prints it; None when it is none."""
    found = _TIME.search(text)
    if found is None or found["month"].lower() not in _MONTHS:
        return None
    try:
        time = datetime(
            int(found["year"]),
            _MONTHS.index(found["month"].lower()) + 1,
            int(found["day"]),
            int(found["hour"]),
            int(found["minute"]),
            int(found["second"]),
            tzinfo=timezone.utc,
        )
        seconds = (time - datetime(1970, 1, 1, tzinfo=timezone.utc)).total_seconds()
    except ValueError:
        return None
    zone = timedelta(hours=int(found["zone"] or 0), minutes=int(found["half"] or 0))
    offset = zone.total_seconds() * (-1 if found["sign"] == "-" else 1)
    return seconds + float(found["fraction"] or 0) - offset
