"""PoolMon: its screen (with deltas in brackets) and its snapshot files (without them)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

from kdleak.dialect.fields import is_gap
from kdleak.dialect.poolmon_row import (
    PoolMonRow,
    Titles,
    UnreadableRow,
    is_cut,
    read_row,
    read_titles,
)
from kdleak.dialect.prompt import is_prompt
from kdleak.dialect.source import Line, Source, Unparsed, lines_of
from kdleak.dialect.tag_text import certain_tag
from kdleak.model import Pool, PoolCounters, TagUsage
from kdleak.tags import PoolTag

__all__ = [
    "PoolMonHeader",
    "PoolMonLog",
    "PoolMonRow",
    "PoolMonScreen",
    "parse_poolmon",
    "starts_poolmon",
    "take_poolmon",
]

_LOOK_AHEAD = 8
"""Lines behind one that fits nothing in which the screen may go on."""

_LONGEST_HEADER = 400

_FIELDS = (
    ("memory_kb", re.compile(r"\bMemory:\s*([0-9]{1,20})\s?K?\b")),
    ("avail_kb", re.compile(r"\bAvail:\s*([0-9]{1,20})\s?K?\b")),
    ("page_faults", re.compile(r"\bPageFlts:\s*([0-9]{1,20})\b")),
    ("inram_krnl_kb", re.compile(r"\bInRam\s+Krnl:\s*([0-9]{1,20})\s?K?\b")),
    ("inram_paged_kb", re.compile(r"\bInRam\s+Krnl:\s*[0-9]*\s?K?\s*P:\s*([0-9]{1,20})\s?K?\b")),
    ("commit_kb", re.compile(r"\bCommit:\s*([0-9]{1,20})\s?K?\b")),
    ("limit_kb", re.compile(r"\bLimit:\s*([0-9]{1,20})\s?K?\b")),
    ("peak_kb", re.compile(r"\bPeak:\s*([0-9]{1,20})\s?K?\b")),
    ("pool_nonpaged_kb", re.compile(r"\bPool\s+N:\s*([0-9]{1,20})\s?K?\b")),
    ("pool_paged_kb", re.compile(r"\bPool\s+N:\s*[0-9]*\s?K?\s*P:\s*([0-9]{1,20})\s?K?\b")),
)
_MEMORY = re.compile(r"[\s#*>|]{0,32}Memory:\s*[0-9]+\s?K?\s*Avail:")
_COMMIT = re.compile(r"[\s#*>|]{0,32}Commit:\s*[0-9]+\s?K?\s*Limit:")
_SCOPE = re.compile(
    r"\s*(?P<scope>(?:System|All sessions|Session\s+[0-9]{1,10})\s+pool\s+information)\s*\Z",
    re.IGNORECASE,
)
_MESSAGE = re.compile(r"\s*(?P<message>PoolMon: \S.{0,300})", re.IGNORECASE)
_COMMAND = re.compile(
    r"\s*(?:[A-Za-z]:\\?[^<>|]{0,200}>|[$#>])?\s*"
    r"(?P<command>(?:[^\s<>|]{0,200}[\\/])?poolmon(?:\.exe)?(?:\s+[-/\w.:\\?]{1,80}){0,12})\s*\Z",
    re.IGNORECASE,
)
_TITLES_OF_ANOTHER = re.compile(r"[\s#*|]{0,64}Tag\s{1,40}Type\s")
_RULE = re.compile(r"[-=_+|][-=_+| ]{3,240}\Z")


@dataclass(frozen=True)
class PoolMonHeader:
    """The lines above the columns; None where a field is missing.

    Attributes:
        memory_kb: physical memory in KB, as all sizes here.
        avail_kb: available memory.
        page_faults: page faults since the last screen, since boot in a snapshot file.
        inram_krnl_kb: kernel code and data in memory.
        inram_paged_kb: paged pool in memory.
        commit_kb: committed memory.
        limit_kb: commit limit.
        peak_kb: highest commit.
        pool_nonpaged_kb: nonpaged pool.
        pool_paged_kb: paged pool.
        scope: "System pool information" and its kind, as printed.
    """

    memory_kb: Optional[int] = None
    avail_kb: Optional[int] = None
    page_faults: Optional[int] = None
    inram_krnl_kb: Optional[int] = None
    inram_paged_kb: Optional[int] = None
    commit_kb: Optional[int] = None
    limit_kb: Optional[int] = None
    peak_kb: Optional[int] = None
    pool_nonpaged_kb: Optional[int] = None
    pool_paged_kb: Optional[int] = None
    scope: Optional[str] = None


@dataclass(frozen=True)
class PoolMonScreen:
    """One screen, or one snapshot.

    Attributes:
        header: None when neither memory lines nor a scope line stand above the rows.
        rows: in the order printed; a tag has one row for each pool.
        command: PoolMon's command line when it stands above, else None.
        messages: what PoolMon says about its tag file.
        line: number of its first line.
        unparsed: lines inside that were not understood.
    """

    header: Optional[PoolMonHeader]
    rows: Tuple[PoolMonRow, ...] = ()
    command: Optional[str] = None
    messages: Tuple[str, ...] = ()
    line: int = 0
    unparsed: Tuple[Unparsed, ...] = ()

    @property
    def ambiguous_rows(self) -> Tuple[PoolMonRow, ...]:
        """Rows whose displayed tag may be one of several; ``snapshot_rows`` leaves them out."""
        return tuple(row for row in self.rows if row.pool_tag is None)

    def snapshot_rows(self) -> Tuple[TagUsage, ...]:
        """The rows as a snapshot's, ordered by tag value: real allocations and frees since boot.

        Rows whose tag is ambiguous are left out; figures of one tag and pool are added.
        """
        found: Dict[PoolTag, Dict[Pool, PoolCounters]] = {}
        for row in self.rows:
            tag = certain_tag(row.tag)
            if tag is None:
                continue
            pools = found.setdefault(tag, {})
            sum_ = pools.get(row.type, PoolCounters())
            pools[row.type] = PoolCounters(
                sum_.allocs + row.allocs, sum_.frees + row.frees, sum_.bytes + row.bytes
            )
        none = PoolCounters()
        return tuple(
            TagUsage(tag, pools.get(Pool.NONPAGED, none), pools.get(Pool.PAGED, none))
            for tag, pools in sorted(found.items(), key=lambda item: item[0].value)
        )


@dataclass(frozen=True)
class PoolMonLog:
    """Every screen of a text.

    Attributes:
        screens: in the order of the text.
        unparsed: lines that belong to no screen, and those of all screens.
    """

    screens: Tuple[PoolMonScreen, ...] = ()
    unparsed: Tuple[Unparsed, ...] = ()


def parse_poolmon(source: Source) -> PoolMonLog:
    """Every screen of a text. Never raises for bad text; linear in its length."""
    lines = lines_of(source)
    screens: List[PoolMonScreen] = []
    unparsed: List[Unparsed] = []
    index = 0
    while index < len(lines):
        if starts_poolmon(lines, index):
            screen, index = take_poolmon(lines, index)
            screens.append(screen)
            unparsed += screen.unparsed
            continue
        line = lines[index]
        bare = line.text.strip()
        if bare and not is_gap(bare) and not bare.startswith(("```", "~~~")):
            unparsed.append(Unparsed(line.number, line.text, "belongs to no PoolMon screen"))
        index += 1
    return PoolMonLog(tuple(screens), tuple(unparsed))


def starts_poolmon(lines: Sequence[Line], index: int) -> bool:
    """Whether a screen begins at this line: its command, message, memory line or titles."""
    text = lines[index].text
    if _opens(text):
        return True
    if len(text) > _LONGEST_HEADER or not (_is_message(text) or _COMMAND.match(text)):
        return False
    return any(_opens(line.text) for line in lines[index + 1 : index + 1 + _LOOK_AHEAD])


def take_poolmon(lines: Sequence[Line], index: int) -> Tuple[PoolMonScreen, int]:
    """Read the screen that begins at this line.

    Returns:
        The screen and the index of the first line that is not its own.
    """
    return _Reader(lines, index).take()


def _opens(text: str) -> bool:
    if len(text) > _LONGEST_HEADER:
        return False
    return (
        _MEMORY.match(text) is not None
        or _COMMIT.match(text) is not None
        or _SCOPE.match(text) is not None
        or read_titles(text) is not None
    )


def _is_message(text: str) -> bool:
    return _MESSAGE.match(text) is not None


class _Reader:
    """Reads one screen: what stands above the columns, then the rows."""

    def __init__(self, lines: Sequence[Line], index: int) -> None:
        self._lines = lines
        self._first = index
        self._end = index
        self._fields: Dict[str, int] = {}
        self._scope: Optional[str] = None
        self._command: Optional[str] = None
        self._messages: List[str] = []
        self._titles: Optional[Titles] = None
        self._rows: List[PoolMonRow] = []
        self._unparsed: List[Unparsed] = []

    def take(self) -> Tuple[PoolMonScreen, int]:
        index = self._first
        while index < len(self._lines):
            line = self._lines[index]
            if line.text.strip():
                own = self._read_row(line) if self._titles else self._read_above(line)
                if not own and not self._goes_on(index):
                    break
                if not own:
                    self._note(line, "no row" if self._titles else "not known above the columns")
                self._end = index + 1
            index += 1
        header = None
        if self._fields or self._scope:
            header = PoolMonHeader(scope=self._scope, **self._fields)
        screen = PoolMonScreen(
            header,
            tuple(self._rows),
            self._command,
            tuple(self._messages),
            self._lines[self._first].number,
            tuple(self._unparsed),
        )
        return screen, max(self._end, self._first + 1)

    def _read_above(self, line: Line) -> bool:
        text = line.text
        if len(text) > _LONGEST_HEADER:
            return False
        titles = read_titles(text)
        scope = _SCOPE.match(text)
        if titles is not None:
            self._titles = titles
        elif scope is not None and self._scope is None:
            self._scope = " ".join(scope["scope"].split())
        elif _MEMORY.match(text) or _COMMIT.match(text):
            return self._read_fields(line)
        elif _is_message(text):
            self._messages.append(text.strip())
        elif _RULE.match(text.strip()) is None:
            command = _COMMAND.match(text)
            if command is None or self._command is not None or self._fields:
                return False
            self._command = command["command"].strip()
        return True

    def _read_fields(self, line: Line) -> bool:
        """One of the two memory lines; False when it begins another screen."""
        found = {name: hit for name, hit in ((n, p.search(line.text)) for n, p in _FIELDS) if hit}
        if any(name in self._fields for name in found):
            return False
        self._fields.update({name: int(hit[1]) for name, hit in found.items()})
        rest = line.text
        for hit in sorted(found.values(), key=lambda hit: -hit.start()):
            rest = rest[: hit.start()] + rest[max(hit.end(), hit.start()) :]
        if rest.strip(" \t#*>|PK:0123456789\"'`"):
            self._note(line, f"unknown field in the memory lines: {rest.strip()[:40]}")
        return True

    def _read_row(self, line: Line) -> bool:
        if self._titles is None:
            return False
        row = read_row(line, self._titles)
        if isinstance(row, PoolMonRow) and is_cut(row):
            self._note(line, "cut inside the last number")
            return True
        if isinstance(row, PoolMonRow):
            self._rows.append(row)
            if row.junk:
                self._note(line, f"signs behind the last number: {row.junk[:40]}")
            return True
        if isinstance(row, UnreadableRow):
            self._note(line, row.why)
            return True
        bare = line.text.strip()
        return is_gap(bare) or _RULE.match(bare) is not None or bare.startswith(("```", "~~~"))

    def _goes_on(self, index: int) -> bool:
        """Whether a line of this screen follows one that fits nothing."""
        if self._begins_next(self._lines[index].text):
            return False
        for line in self._lines[index + 1 : index + 1 + _LOOK_AHEAD]:
            text = line.text
            if self._begins_next(text):
                return False
            if self._titles is None:
                if _opens(text):
                    return True
            elif read_row(line, self._titles) is not None:
                return True
        return False

    def _begins_next(self, text: str) -> bool:
        if is_prompt(text):
            return True
        if self._titles is None:
            return _MEMORY.match(text[:_LONGEST_HEADER]) is not None and bool(self._fields)
        return (
            _opens(text)
            or _is_message(text)
            or _TITLES_OF_ANOTHER.match(text) is not None
            or _COMMAND.match(text[:_LONGEST_HEADER]) is not None
        )

    def _note(self, line: Line, why: str) -> None:
        self._unparsed.append(Unparsed(line.number, line.text, why))
