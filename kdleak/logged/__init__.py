"""What the procedure makes of a log: hunts and rankings of a session that is over.

A log shows what somebody chose to look at, so these results are types of their own beside those
of a live hunt: what the log does not tell is None and said to be unknown, never a zero.
"""

from __future__ import annotations

from kdleak.logged.contents import LogContents, contents_of_log
from kdleak.logged.hits import LoggedHit
from kdleak.logged.hunt import LoggedHunt, LoggedSite, hunt_of_log, hunts_of_log
from kdleak.logged.moment import Moment, seconds_between
from kdleak.logged.rank import LoggedRank, rank_of_snapshots
from kdleak.logged.snapshots import LoggedSnapshot, snapshots_of_log
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
