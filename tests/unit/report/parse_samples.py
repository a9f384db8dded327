"""Logs for the report tests: a recorded session, samples of debugger text, and two logs apart."""

from __future__ import annotations

from pathlib import Path
from typing import Dict

from kdleak.dialect.log import parse_log
from kdleak.dialect.source import decode
from kdleak.logged import (
    LogContents,
    LoggedRank,
    contents_of_log,
    rank_of_snapshots,
    snapshots_of_log,
)

TESTS = Path(__file__).parents[2]


def read(name: str) -> str:
    (path,) = [*TESTS.glob(f"corpus/{name}*.txt"), *TESTS.glob(f"transcripts/{name}*.txt")]
    return decode(path.read_bytes())


def contents(name: str, *samples: str) -> LogContents:
    return contents_of_log(parse_log("\n".join(map(read, samples))), name)


MAIL = """Hi,
this is what we see. The KDNET string was net:port=50000,key=s3cr3tp4rt1.k2.k3.k4 by the way.

"""


def mail() -> LogContents:
    text = MAIL + read("45-") + "\n" + read("12-") + "\n" + read("68-")
    return contents_of_log(parse_log(text), "mail.txt")


LIST = """0: kd> vertarget
Windows 10 Kernel Version 19041 MP (4 procs) Free x64
System Uptime: 0 days {hours}:00:00.000
0: kd> !poolused 2
   Sorting by NonPaged Pool Consumed

               NonPaged                  Paged
 Tag     Allocs         Used     Allocs         Used

 Leak {blocks:>9} {bytes:>12}          0            0\tUNKNOWN pooltag 'Leak', please update \
pooltag.txt
 Good        50        90000          2           64\tgood things , Binary: good.sys
TOTAL {all_blocks:>8} {all_bytes:>12}          2           64
0: kd> g
"""


def log_of_list(hours: int, blocks: int) -> str:
    return LIST.format(
        hours=hours,
        blocks=blocks,
        bytes=blocks * 96,
        all_blocks=blocks + 50,
        all_bytes=blocks * 96 + 90000,
    )


def growth(*texts: str) -> LoggedRank:
    return rank_of_snapshots(
        [
            one
            for text, name in zip(texts, ("before.txt", "after.txt"))
            for one in snapshots_of_log(parse_log(text), name)
        ]
    )


PARSED: Dict[str, LogContents] = {
    "session": contents("session.log", "dbgeng-poolhittag-i386"),
    "mail": mail(),
    "lists": contents("lists.txt", "03-", "57-", "61-", "66-", "70-", "72-", "81-"),
    "nothing": contents_of_log(parse_log("nothing\nin here\n"), "nothing.txt"),
}
LOGRANKS: Dict[str, LoggedRank] = {
    "growth": growth(log_of_list(1, 10), log_of_list(3, 4010)),
    "no_time": growth(
        *(log_of_list(1, count).replace("System Uptime", "System U.") for count in (10, 4010))
    ),
    "restarted": growth(log_of_list(3, 10), log_of_list(1, 4010)),
}
