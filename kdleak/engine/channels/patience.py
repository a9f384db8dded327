"""How long a debugger may take to answer before its link to the target counts as lost.

DbgEng itself never gives up: it sends to a silent target for ever. A limit that is too short
breaks off a download of symbols; one that is too long leaves a tag armed in a target that could
be reached again by attaching anew.
"""

from __future__ import annotations

import re

QUICK_SECONDS = 15.0
"""A few packets with the target, and no symbols that are not loaded yet."""
COMMAND_SECONDS = 60.0
"""Whatever names an address may download the symbols of a module first."""
SLOW_SECONDS = 300.0
"""``.reload``, and extensions that walk the pool: minutes over a serial line."""
_BYTES_PER_SECOND = 2000.0  # of memory over a slow serial line, with resends

_QUICK = re.compile(r"(?:e[bdq]|d[bdq]|lm|\.lastevent|vertarget|qd?)(?:\s|$)")
_SLOW = re.compile(r"(?:^|;)\s*(?:\.reload|!|[a-z0-9_]+!)", re.IGNORECASE)


def seconds_for(command: str) -> float:
    """Seconds that a command may take.

    Args:
        command: as typed in WinDbg.
    """
    if _SLOW.search(command):
        return SLOW_SECONDS
    if _QUICK.match(command) and ";" not in command:
        return QUICK_SECONDS
    return COMMAND_SECONDS


def seconds_to_read(size: int) -> float:
    """Seconds that reading memory may take.

    Args:
        size: bytes.
    """
    return QUICK_SECONDS + size / _BYTES_PER_SECOND
