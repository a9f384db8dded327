"""When something was so: the times that a log or a crash dump tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple


@dataclass(frozen=True)
class Moment:
    """Times printed while the target stood at one stop; None for what was not printed.

    Attributes:
        uptime: seconds since the target booted; stands still while the target is stopped.
        target_clock: the target's wall clock, seconds since 1970 (UTC where a zone was printed,
            else as printed).
        host_clock: the debugger's wall clock, the same.
        build: Windows build number of the target.
        kernel_base: load address of nt, another one at each boot of current systems.
    """

    uptime: Optional[float] = None
    target_clock: Optional[float] = None
    host_clock: Optional[float] = None
    build: Optional[int] = None
    kernel_base: Optional[int] = None


def seconds_between(before: Moment, after: Moment) -> Tuple[Optional[float], str]:
    """The time from one moment to a later one, and what it rests on.

    Returns:
        None where the log does not tell, or where its times run backwards; with "" then.
    """
    for name, words in (
        ("uptime", "the target's uptime"),
        ("target_clock", "the target's clock"),
        ("host_clock", "the debugger's clock"),
    ):
        first, last = getattr(before, name), getattr(after, name)
        if first is not None and last is not None:
            return (last - first, words) if last > first else (None, "")
    return None, ""
