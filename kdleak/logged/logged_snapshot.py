"""The pool usage at one moment, as a log or another file (a crash dump) shows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import FrozenSet, Mapping, Tuple

from kdleak.logged.moment import Moment
from kdleak.model import Pool, PoolSnapshot
from kdleak.tags import PoolTag

_Pair = Tuple[PoolTag, Pool]


@dataclass(frozen=True)
class LoggedSnapshot:
    """Usage of the tags at one moment of a log, or of another file (a crash dump).

    Attributes:
        snapshot: the figures; ``taken_at`` is the target's uptime where the log tells it.
        log: name of the log.
        lines: number of the first line of each list it was read from; () where the file is not
            one of lines.
        moment: times printed at that stop.
        known: tag and pool of every row that was printed and could be read.
        complete: a tag that is not in it had nothing; else it may only not be shown.
        unreadable: tags whose row is there and cannot be read.
        scope: "" for the system's pools, else as PoolMon prints it ("Session 1 pool information").
        descriptions: what the list says about a tag: words of pooltag.txt, names of drivers.
    """

    snapshot: PoolSnapshot
    log: str
    lines: Tuple[int, ...]
    moment: Moment
    known: FrozenSet[_Pair]
    complete: bool
    unreadable: FrozenSet[PoolTag] = frozenset()
    scope: str = ""
    descriptions: Mapping[PoolTag, str] = field(default_factory=dict)

    def tells(self, tag: PoolTag, pool: Pool) -> bool:
        """Whether the figures of a tag in one pool are known: as a row, or as nothing at all."""
        if tag in self.unreadable:
            return False
        return self.complete or (tag, pool) in self.known
