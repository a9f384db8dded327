"""What the procedure makes of a log: hunts and rankings of a session that is over.

A log shows what somebody chose to look at, so these results are types of their own beside those
of a live hunt: what the log does not tell is None and said to be unknown, never a zero.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kdleak.logged.contents import LogContents, contents_of_log
    from kdleak.logged.hits import LoggedHit
    from kdleak.logged.hunt import LoggedHunt, LoggedSite, hunt_of_log, hunts_of_log
    from kdleak.logged.logged_snapshot import LoggedSnapshot
    from kdleak.logged.moment import Moment, seconds_between
    from kdleak.logged.rank import LoggedRank, rank_of_snapshots
    from kdleak.logged.snapshots import snapshots_of_log
    from kdleak.logged.tag_value import LoggedTagValue, TagState

__all__ = [
    "LogContents",
    "LoggedHit",
    "LoggedHunt",
    "LoggedRank",
    "LoggedSite",
    "LoggedSnapshot",
    "LoggedTagValue",
    "Moment",
    "TagState",
    "contents_of_log",
    "hunt_of_log",
    "hunts_of_log",
    "rank_of_snapshots",
    "seconds_between",
    "snapshots_of_log",
]

_HOME = {
    "LogContents": "contents",
    "LoggedHit": "hits",
    "LoggedHunt": "hunt",
    "LoggedRank": "rank",
    "LoggedSite": "hunt",
    "LoggedSnapshot": "logged_snapshot",
    "LoggedTagValue": "tag_value",
    "Moment": "moment",
    "TagState": "tag_value",
    "contents_of_log": "contents",
    "hunt_of_log": "hunt",
    "hunts_of_log": "hunt",
    "rank_of_snapshots": "rank",
    "seconds_between": "moment",
    "snapshots_of_log": "snapshots",
}


def __getattr__(name: str) -> object:
    """Each name when it is asked for: crash dumps need a few, and no reader of logs."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
