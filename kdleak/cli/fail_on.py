r"""``--fail-on``: conditions under which a comparison makes the process return 1, to gate a build.

One grammar for hunts and crash dumps, conditions separated by commas:

- ``leak``: a call site leaks in the later hunt; a tag grew between the dumps.
- ``worse``: hunts only: a call site leaks more than before, or did not before.
- ``new``: hunts only: a call site leaks that did not before.
- ``unknown``: it cannot be told.
- ``growth:SIZE``: a call site holds more than SIZE at the end of the later hunt; a tag grew by more
  than SIZE between the dumps.
- ``growth:SIZE/h``: the same per hour.

SIZE is a number with an optional unit, B, KB, MB, GB (powers of 1024).
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import List, Sequence, Tuple

from kdleak.dumped import DumpComparison
from kdleak.errors import UsageError
from kdleak.logged.rank import LoggedRank
from kdleak.report.html_data import size
from kdleak.report.hunt_diff import LEAKING, HuntComparison, Outcome
from kdleak.result import RankBy

_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)(b|kb|mb|gb|kib|mib|gib)?(/h)?", re.IGNORECASE)
_FACTORS = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class ConditionKind(enum.Enum):
    """What is looked at."""

    LEAK = "leak"
    WORSE = "worse"
    NEW = "new"
    UNKNOWN = "unknown"
    GROWTH = "growth"


HUNTS_ONLY = (ConditionKind.WORSE, ConditionKind.NEW)
"""Conditions that mean nothing between crash dumps."""


@dataclass(frozen=True)
class Condition:
    """One condition.

    Attributes:
        kind: what is looked at.
        limit: bytes, of GROWTH.
        per_hour: the limit is bytes per hour.
    """

    kind: ConditionKind
    limit: float = 0.0
    per_hour: bool = False

    def __str__(self) -> str:
        if self.kind is not ConditionKind.GROWTH:
            return str(self.kind.value)
        return f"growth of more than {size(self.limit)}{' per hour' if self.per_hour else ''}"


def parse_conditions(texts: Sequence[str]) -> Tuple[Condition, ...]:
    """Read the values of ``--fail-on``.

    Raises:
        UsageError: one of them is none.
    """
    words = [word.strip() for text in texts for word in text.split(",")]
    return tuple(_condition(word) for word in words)


def _condition(word: str) -> Condition:
    name, colon, value = word.lower().partition(":")
    known = {kind.value: kind for kind in ConditionKind}
    if name == ConditionKind.GROWTH.value:
        match = _SIZE.fullmatch(value)
        if match:
            factor = _FACTORS[(match[2] or "b")[0]]
            return Condition(ConditionKind.GROWTH, float(match[1]) * factor, bool(match[3]))
    elif name in known and not colon:
        return Condition(known[name])
    raise UsageError(
        f"--fail-on {word[:60]}",
        "it is no condition",
        "write leak, worse, new, unknown, growth:SIZE or growth:SIZE/h, such as growth:1MB",
    )


def refuse_for_dumps(conditions: Sequence[Condition]) -> None:
    """Refuse what only hunts can show.

    Raises:
        UsageError: there is such a condition.
    """
    for condition in conditions:
        if condition.kind in HUNTS_ONLY:
            raise UsageError(
                f"--fail-on {condition.kind.value}",
                "crash dumps do not show it, only two hunts do",
                "use leak or growth:SIZE",
            )


def met_by_hunts(
    conditions: Sequence[Condition], comparison: HuntComparison
) -> List[Tuple[Condition, str]]:
    """The conditions that two hunts meet, each with what meets it."""
    kinds = {
        ConditionKind.LEAK: LEAKING,
        ConditionKind.WORSE: (Outcome.WORSE, Outcome.NEW),
        ConditionKind.NEW: (Outcome.NEW,),
    }
    met = []
    for condition in conditions:
        if condition.kind is ConditionKind.UNKNOWN:
            if comparison.outcome is Outcome.CANNOT_TELL:
                met.append((condition, comparison.sentence))
            continue
        for change in comparison.sites:
            after = change.pair.after
            if condition.kind is ConditionKind.GROWTH:
                if after is None:
                    continue
                held = after.bytes_per_hour if condition.per_hour else after.outstanding_bytes
                if held > condition.limit and after.stayed:
                    met.append((condition, f"{change.pair.name}: {size(held)}"))
                    break
            elif change.outcome in kinds[condition.kind]:
                met.append((condition, f"{change.pair.name} {change.outcome.value}"))
                break
    return met


def met_by_dumps(
    conditions: Sequence[Condition], comparison: DumpComparison
) -> List[Tuple[Condition, str]]:
    """The conditions that crash dumps meet, each with what meets it."""
    met = []
    for condition in conditions:
        what = _met_by_rank(condition, comparison.rank)
        if what:
            met.append((condition, what))
    return met


def _met_by_rank(condition: Condition, rank: LoggedRank) -> str:
    measured = rank.by is RankBy.GROWTH
    if condition.kind is ConditionKind.UNKNOWN:
        return "" if measured else rank.reason
    if not measured:
        return ""
    if condition.kind is ConditionKind.LEAK:
        return rank.reason if rank.suspect is not None else ""
    for row in rank.rows:
        grown = row.bytes_per_hour if condition.per_hour else row.growth_bytes
        if grown is not None and grown > condition.limit:
            return f"'{row.tag}' {row.pool.value}: {size(grown)}"
    return ""
