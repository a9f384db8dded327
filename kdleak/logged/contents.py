"""All that is in one log, ordered for a report: what was found, ranked, hunted, not understood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Tuple

from kdleak.dialect.breaks import Break
from kdleak.dialect.engine_errors import EngineFailure
from kdleak.dialect.log import DebuggerLog
from kdleak.dialect.log_event import Disassembly, Text, TextKind
from kdleak.dialect.memory_dump import MemoryDump
from kdleak.dialect.modules import ModuleList
from kdleak.dialect.pointer_listing import PointerListing
from kdleak.dialect.pool import Pool
from kdleak.dialect.poolfind import PoolFind
from kdleak.dialect.poolmon import PoolMonScreen
from kdleak.dialect.pooltag import PoolTagList
from kdleak.dialect.poolused_table import PoolUsedTable
from kdleak.dialect.prompt import Prompt
from kdleak.dialect.registers import RegisterBlock
from kdleak.dialect.reload import ReloadOutput
from kdleak.dialect.source import Unparsed
from kdleak.dialect.stack import StackText
from kdleak.dialect.stack_model import to_model
from kdleak.dialect.symbol_lines import SymbolLines
from kdleak.dialect.verifier import Verifier
from kdleak.dialect.verifier_log import VerifierLog
from kdleak.dialect.version import TargetVersion
from kdleak.dialect.vm import VmUsage
from kdleak.logged.hits import pointer_size_of
from kdleak.logged.hunt import LoggedHunt, hunts_of_log
from kdleak.logged.logged_snapshot import LoggedSnapshot
from kdleak.logged.rank import LoggedRank, rank_of_snapshots
from kdleak.logged.snapshots import snapshots_of_log
from kdleak.model import Stack

_KINDS: Tuple[Tuple[str, type], ...] = (
    ("!poolused", PoolUsedTable),
    ("PoolMon", PoolMonScreen),
    ("hits", Break),
    ("other stops", Break),
    ("stacks", StackText),
    ("addresses with names", PointerListing),
    ("!poolfind", PoolFind),
    ("!pool", Pool),
    ("!vm", VmUsage),
    ("!verifier", Verifier),
    ("!verifier 0x80", VerifierLog),
    ("registers", RegisterBlock),
    ("memory", MemoryDump),
    ("code", Disassembly),
    ("module lists", ModuleList),
    ("symbols", SymbolLines),
    (".reload", ReloadOutput),
    ("target's version", TargetVersion),
    ("tag lists", PoolTagList),
    ("failed commands", EngineFailure),
    ("prompts", Prompt),
)

_SAYS_SOMETHING = frozenset(name for name, _ in _KINDS) - {"prompts"}


@dataclass(frozen=True)
class FoundKind:
    """One kind of thing in a log.

    Attributes:
        name: for people, most often the command.
        lines: number of the first line of each.
    """

    name: str
    lines: Tuple[int, ...]


@dataclass(frozen=True)
class FoundStack:
    """One stack, and everywhere it stands.

    Attributes:
        stack: as the model's.
        lines: number of the first line of each print of it.
        command: the first one's; None where the log does not show it.
        at_hits: how many of them were printed at hits.
        doubts: what the debugger said against it ("Following frames may be wrong").
        cut: rows of it were not understood.
    """

    stack: Stack
    lines: Tuple[int, ...]
    command: Optional[str]
    at_hits: int
    doubts: Tuple[str, ...]
    cut: bool


@dataclass(frozen=True)
class LogContents:
    """What a log holds.

    Attributes:
        name: of the log, for people.
        log: as parsed.
        found: what was found, by kind, in the order of a report.
        snapshots: every moment that shows the pool usage.
        rank: the tags in order; None where no list of them was found.
        hunts: one for each tag hunted.
        stacks: every stack once, those printed most often first.
        refused: outputs that no debugger prints like this: number of the line, and why.
        not_understood: lines nothing is known about, and parts of outputs that are damaged.
        unread: lines below commands whose output is not read here.
    """

    name: str
    log: DebuggerLog
    found: Tuple[FoundKind, ...]
    snapshots: Tuple[LoggedSnapshot, ...]
    rank: Optional[LoggedRank]
    hunts: Tuple[LoggedHunt, ...]
    stacks: Tuple[FoundStack, ...]
    refused: Tuple[Tuple[int, str], ...]
    not_understood: Tuple[Unparsed, ...]
    unread: Tuple[Unparsed, ...]

    @property
    def empty(self) -> bool:
        """Nothing was found that tells anything, and nothing was refused either."""
        return not self.refused and not any(kind.name in _SAYS_SOMETHING for kind in self.found)

    @property
    def complete(self) -> bool:
        """All of it was understood, but for outputs of commands that are not read here."""
        return not self.not_understood and not self.refused


def contents_of_log(log: DebuggerLog, name: str = "") -> LogContents:
    """Put in order what a log holds.

    Args:
        log: as parsed.
        name: of the log, for people.
    """
    snapshots = snapshots_of_log(log, name)
    unread_lines = {text.line for text in log.of(Text) if text.kind is TextKind.OUTPUT}
    return LogContents(
        name,
        log,
        _found(log),
        snapshots,
        rank_of_snapshots(snapshots) if snapshots else None,
        hunts_of_log(log),
        _stacks(log),
        _refused(log),
        tuple(entry for entry in log.unparsed if entry.line not in unread_lines),
        tuple(entry for entry in log.unparsed if entry.line in unread_lines),
    )


def _found(log: DebuggerLog) -> Tuple[FoundKind, ...]:
    hits = {hit.line for hit in log.hits}
    wanted: Dict[str, Callable[[int], bool]] = {
        "hits": hits.__contains__,
        "other stops": lambda line: line not in hits,
    }
    lines: Dict[type, List[int]] = {}
    for event in log.events:
        if isinstance(event.value, PoolUsedTable) and not event.value.rows:
            continue  # refused, or the command failed: both are told apart from what was found
        lines.setdefault(type(event.value), []).append(event.line)
    found = []
    for name, kind in _KINDS:
        here = tuple(filter(wanted.get(name, lambda _: True), lines.get(kind, ())))
        if here:
            found.append(FoundKind(name, here))
    return tuple(found)


def _refused(log: DebuggerLog) -> Tuple[Tuple[int, str], ...]:
    refused = []
    for event in log.events:
        why = getattr(event.value, "rejected", "")
        if why:
            refused.append((event.line, str(why)))
    return tuple(refused)


def _stacks(log: DebuggerLog) -> Tuple[FoundStack, ...]:
    size = pointer_size_of(log)
    at_hits = {stack.line: hit for hit in log.hits for stack in hit.stacks}
    groups: Dict[Tuple[Tuple[int, str], ...], List[Tuple[StackText, Stack]]] = {}
    for text in log.of(StackText):
        if not text.frames or text.rejected:
            continue
        hit = at_hits.get(text.line)
        stack = to_model(text, hit.address if hit else None, size)
        # The first frame's address differs with what is known of the stop, its name does not.
        key = tuple(
            (frame.address if index else 0, str(frame.symbol) if frame.symbol.module else "")
            for index, frame in enumerate(stack.frames)
        )
        groups.setdefault(key, []).append((text, stack))
    found = [
        FoundStack(
            max((stack for _, stack in group), key=lambda stack: stack.frames[0].address)
            if group[0][1].frames
            else group[0][1],
            tuple(text.line for text, _ in group),
            group[0][0].command,
            sum(text.line in at_hits for text, _ in group),
            tuple(dict.fromkeys(doubt for text, _ in group for doubt in text.warnings)),
            any(text.unparsed for text, _ in group),
        )
        for group in groups.values()
    ]
    return tuple(sorted(found, key=lambda one: (-len(one.lines), one.lines)))
