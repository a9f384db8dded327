"""What a recorded session has to keep so that its replay asks the same questions again.

The header of a recording holds the command, its options and the journal's entries of that
target; a replay takes them from there, whatever the command line says otherwise.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Mapping, Optional, Tuple

from kdleak.engine.base import Engine
from kdleak.errors import JournalError, UsageError
from kdleak.hunt_options import HuntOptions, RankOptions
from kdleak.journal import Journal
from kdleak.model import Pool
from kdleak.report.result_file import write_file
from kdleak.result import DisarmState, RankBy
from kdleak.tags import PoolTag

_LARGEST_ENTRY = 1 << 16
_MOST_ENTRIES = 64
_YEAR_9999 = 253_370_764_800


@dataclass(frozen=True)
class Memory:
    """What the command was asked to do.

    Attributes:
        command: "hunt", "rank" or "restore".
        hunt: how to hunt; None for another command.
        rank: how to rank; None for another command.
        value: of a restore.
        use_kb: stacks by ``kb``.
        started_at: wall clock of the recorded command, seconds since 1970; None when not known.
    """

    command: str
    hunt: Optional[HuntOptions] = None
    rank: Optional[RankOptions] = None
    value: Optional[int] = None
    use_kb: bool = False
    started_at: Optional[float] = None

    def document(self, journal: Journal, where: str) -> Dict[str, object]:
        """As JSON values, with the journal's open entries of the target."""
        return {
            "command": self.command,
            "hunt": _hunt_document(self.hunt) if self.hunt is not None else None,
            "rank": _rank_document(self.rank) if self.rank is not None else None,
            "value": self.value,
            "use_kb": self.use_kb,
            "started_at": self.started_at if self.started_at is not None else time.time(),
            "journal": _entries(journal, where),
        }


def recall(document: Mapping[str, object], command: str) -> Optional[Memory]:
    """What was asked when a session was recorded; None when the recording does not say.

    Raises:
        UsageError: it was another command, or what it says makes no sense.
    """
    recorded = document.get("command")
    if recorded is None:
        return None
    if recorded != command:
        raise UsageError(
            f"replaying a session for kdleak {command}",
            f"it was recorded by kdleak {str(recorded)[:20]}",
            "use that command",
        )
    hunt, rank, value = (document.get(name) for name in ("hunt", "rank", "value"))
    try:
        memory = Memory(
            command,
            hunt=_hunt(hunt) if isinstance(hunt, Mapping) else None,
            rank=_rank(rank) if isinstance(rank, Mapping) else None,
            value=value if isinstance(value, int) else None,
            use_kb=document.get("use_kb") is True,
            started_at=_wall_clock(document.get("started_at")),
        )
    except (TypeError, ValueError, KeyError) as error:
        raise UsageError(
            "replaying a session", "its options are damaged", "record it again"
        ) from error
    for options in (memory.hunt, memory.rank):
        if options is not None:
            options.check()
    return memory


def ignored_by_replay(options: Iterable[str]) -> Tuple[str, ...]:
    """A sentence about options that were given and make no difference to a replay; or none."""
    names = ", ".join(options)
    return (f"{names}: of no effect here, a replay does what was recorded.",) if names else ()


def as_replayed(state: DisarmState) -> DisarmState:
    """How the undoing ended, told of a recording.

    Remarks are left out: they are about the journal of the replay, which is gone by then.
    """
    return dataclasses.replace(state, replayed=True, remarks=())


def without_sleep(seconds: float) -> None:
    """What a replay waits for has happened long ago."""
    del seconds


def restore_journal(document: Mapping[str, object], folder: Path) -> Journal:
    """A journal of its own for a replay, with the entries that were there when it was recorded."""
    entries = document.get("journal")
    named = entries.items() if isinstance(entries, Mapping) else ()
    for name, text in list(named)[:_MOST_ENTRIES]:
        plain = Path(str(name)).name == name and str(name).endswith(".json")
        if plain and isinstance(text, str) and len(text) <= _LARGEST_ENTRY:
            write_file(text, folder / str(name))
    return Journal(folder)


def clock_of(engine: Engine) -> Callable[[], float]:
    """The clock that everything above an engine goes by.

    A recorded session has one of its own: it stands still between two events, so that a replay
    decides as the hunt did that was recorded.
    """
    clock: Optional[Callable[[], float]] = getattr(getattr(engine, "channel", None), "clock", None)
    return clock if clock is not None else time.perf_counter


def _wall_clock(value: object) -> Optional[float]:
    """A time that can be written as a date, else None."""
    if isinstance(value, (int, float)) and 0 <= value < _YEAR_9999:
        return float(value)
    return None


def _entries(journal: Journal, where: str) -> Dict[str, str]:
    try:
        files = journal.scan().files
    except JournalError:
        return {}  # the command itself will say so
    return {found.path.name: found.entry.to_json() for found in files if found.entry.where == where}


def _rank_document(options: RankOptions) -> Dict[str, object]:
    return {
        **dataclasses.asdict(options),
        "by": options.by.value,
        "pool": options.pool.value if options.pool is not None else None,
    }


def _hunt_document(options: HuntOptions) -> Dict[str, object]:
    return {
        **dataclasses.asdict(options),
        "tag": f"0x{options.tag.value:08x}" if options.tag is not None else None,
        "rank": _rank_document(options.rank),
    }


def _rank(document: Mapping[str, Any]) -> RankOptions:
    pool = document["pool"]
    return RankOptions(
        **{
            **_numbers(document, RankOptions()),
            "by": RankBy(document["by"]),
            "pool": Pool(pool) if pool is not None else None,
        }
    )


def _hunt(document: Mapping[str, Any]) -> HuntOptions:
    tag = document["tag"]
    return HuntOptions(
        **{
            # Sessions recorded before this was asked for hold no answers to it.
            "read_versions": False,
            **_numbers(document, HuntOptions()),
            "tag": PoolTag.parse(tag) if tag is not None else None,
            "rank": _rank(document["rank"]),
        }
    )


def _numbers(document: Mapping[str, Any], default: object) -> Dict[str, Any]:
    """The plain fields, which are numbers, true or false, or None; unknown ones are left out."""
    known = {field.name for field in dataclasses.fields(default)}  # type: ignore[arg-type]
    plain = {name: value for name, value in document.items() if name in known}
    for value in plain.values():
        if not (value is None or isinstance(value, (int, float, str, Mapping))):
            raise TypeError(value)
    return plain
