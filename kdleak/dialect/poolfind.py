"""Text of ``!poolfind``: where in which pool the blocks of a tag are.

Two layouts: rows like those of ``!pool`` (old) and ``address : tag srlb, size     0x130,
Nonpaged pool`` (new). Format: Microsoft, "!poolfind", and rows seen in debugger logs.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from typing import List, Optional, Sequence, Tuple

from kdleak.dialect.addresses import parse_address
from kdleak.dialect.extension_walk import walk_outputs, walk_rows
from kdleak.dialect.fields import (
    ADDRESS,
    LOOK_AHEAD,
    find_opening,
    find_opening_above,
    is_failure,
    is_gap,
    is_preamble,
    opening_of,
    read_address,
)
from kdleak.dialect.pool import BlockState, read_block_row
from kdleak.dialect.prompt import is_prompt
from kdleak.dialect.source import Line, Source, Unparsed, lines_of
from kdleak.dialect.tag_text import certain_tag, padded
from kdleak.tags import PoolTag

_HEADER = re.compile(
    r"(?:Scanning (?P<large>large pool) allocation table|"
    rf"Searching (?P<area>[A-Za-z ]{{1,40}}?) pool \((?P<range>{ADDRESS} : {ADDRESS})\)) for tag",
    re.IGNORECASE,
)
_RANGE_BEHIND = re.compile(rf"[ \t]*\(({ADDRESS}) : ({ADDRESS})\)[ \t]*\Z")
_TAG_BY_VALUE = re.compile(r" 0x([0-9a-fA-F]{1,8}) \((.{1,4})\)[ \t]*\Z")
_TAG_QUOTED = re.compile(r" '(.{1,4})'[ \t]*\Z")
_TAG_PLAIN = re.compile(r": (.{1,4}?)[ \t]*\Z")
_ROW = re.compile(
    rf"\*?({ADDRESS})[ \t]*:[ \t]*tag (.{{1,4}}?), size[ \t]+(0x[0-9a-fA-F]{{1,16}}|0)"
    r"(?:,[ \t]*([A-Za-z][A-Za-z ]{0,40}?))?[ \t]*\Z",
    re.IGNORECASE,
)
_NEAR_ROW = re.compile(rf"\*?{ADDRESS}[ \t]*:[ \t]*tag ", re.IGNORECASE)
_STOPPED = re.compile(rf"\.\.\.[ \t]*terminating - searched pool to ({ADDRESS})", re.IGNORECASE)

_AREAS = {"nonpaged": "nonpaged", "paged": "paged"}


class SearchedArea(enum.Enum):
    """What one section of ``!poolfind`` went through."""

    LARGE = "large"
    NONPAGED = "nonpaged"
    PAGED = "paged"


@dataclass(frozen=True)
class FoundBlock:
    """One row of ``!poolfind``.

    Attributes:
        address: of the block: its header in the old layout, as printed in the new one.
        tag: four characters as printed; None if they are not certain.
        size: bytes.
        pool: kind of pool as printed, in lower case and without "pool" ("nonpaged"); new layout.
        previous_size: bytes of the block before; old layout.
        state: allocated or free; old layout.
        line: number of the line.
    """

    address: int
    tag: Optional[str]
    size: int
    pool: Optional[str] = None
    previous_size: Optional[int] = None
    state: Optional[BlockState] = None
    line: int = 0

    @property
    def pool_tag(self) -> Optional[PoolTag]:
        """The tag, where the printed characters say for certain which four bytes it has."""
        return certain_tag(self.tag) if self.tag is not None else None


@dataclass(frozen=True)
class PoolSearch:
    """One section: a header and the rows below it.

    Attributes:
        command: as typed; None if the text does not show it.
        tag: four characters; ``*   `` stands for every tag. None without a header.
        tag_value: the tag's u32, where the header prints it.
        area: what was searched; None if no header says so, or names another area.
        area_text: the area as printed ("NonPaged", "large"); "" without a header.
        start: first address searched (of the table for large pages); None without a header.
        end: where the search was to end.
        blocks: in the order of the text.
        interrupted_at: the address reached when the search was stopped; None if it was not.
    """

    command: Optional[str]
    tag: Optional[str] = None
    tag_value: Optional[int] = None
    area: Optional[SearchedArea] = None
    area_text: str = ""
    start: Optional[int] = None
    end: Optional[int] = None
    blocks: Tuple[FoundBlock, ...] = ()
    interrupted_at: Optional[int] = None

    @property
    def pool_tag(self) -> Optional[PoolTag]:
        """The tag that was looked for, if it is one tag and certain."""
        if self.tag is None or "*" in self.tag or "?" in self.tag:
            return None
        if self.tag_value:
            return PoolTag(self.tag_value)
        return certain_tag(self.tag)


@dataclass(frozen=True)
class PoolFind:
    """All ``!poolfind`` outputs of a text.

    Attributes:
        searches: the sections, in the order of the text.
        messages: what the debugger said besides ("unable to get large pool allocation table").
        unparsed: lines that were not understood.
    """

    searches: Tuple[PoolSearch, ...]
    messages: Tuple[str, ...]
    unparsed: Tuple[Unparsed, ...]


@dataclass
class _Section:
    """The section under construction."""

    command: Optional[str]
    tag: Optional[str] = None
    tag_value: Optional[int] = None
    area: Optional[SearchedArea] = None
    area_text: str = ""
    start: Optional[int] = None
    end: Optional[int] = None
    blocks: List[FoundBlock] = field(default_factory=list)
    interrupted_at: Optional[int] = None

    def build(self) -> PoolSearch:
        return PoolSearch(
            self.command,
            self.tag,
            self.tag_value,
            self.area,
            self.area_text,
            self.start,
            self.end,
            tuple(self.blocks),
            self.interrupted_at,
        )


def _read_header(line: Line, command: Optional[str]) -> Optional[_Section]:
    text = line.text[:400].strip()
    found = _HEADER.match(text)
    if found is None:
        return None
    section = _Section(command)
    rest = text[found.end() :]
    if found["large"]:
        section.area_text = "large"
        section.area = SearchedArea.LARGE
        behind = _RANGE_BEHIND.search(rest)
        if behind:
            section.start, section.end = read_address(behind.group(1)), read_address(behind[2])
            rest = rest[: behind.start()]
    else:
        section.area_text = found["area"]
        name = _AREAS.get(found["area"].lower())
        section.area = SearchedArea(name) if name else None
        start, end = found["range"].split(" : ")
        section.start, section.end = read_address(start), read_address(end)
    by_value = _TAG_BY_VALUE.match(rest)
    plain = _TAG_QUOTED.match(rest) or _TAG_PLAIN.match(rest)
    if by_value:
        section.tag_value, section.tag = int(by_value.group(1), 16), padded(by_value.group(2))
    elif plain:
        section.tag = padded(plain.group(1))
    return section


def _read_row(line: Line) -> Tuple[Optional[FoundBlock], Tuple[Unparsed, ...], bool]:
    # the block, what was not understood, and whether the line is meant to be a row
    text = line.text[:400].strip()
    found = _ROW.match(text)
    if found:
        address, tag, size, pool = found.groups()
        kind = pool.lower() if pool else None
        if kind and kind.endswith(" pool"):
            kind = kind[: -len(" pool")]
        row = FoundBlock(
            address=parse_address(address),
            tag=padded(tag),
            size=int(size, 16),
            pool=kind,
            line=line.number,
        )
        return row, (), True
    if _NEAR_ROW.match(text):
        return None, (Unparsed(line.number, line.text, "a row of !poolfind, cut or changed"),), True
    old = read_block_row(line, marked=False)
    if old is None:
        return None, (), False
    if isinstance(old, Unparsed):
        return None, (old,), True
    block = old.block
    row = FoundBlock(
        address=block.address,
        tag=block.tag,
        size=block.size,
        previous_size=block.previous_size,
        state=block.state,
        line=line.number,
    )
    return row, old.unparsed, True


def _own_line_follows(lines: Sequence[Line], index: int) -> bool:
    for line in lines[index : index + LOOK_AHEAD]:
        if is_prompt(line.text):
            return False
        if _read_header(line, None) or _read_row(line)[0] or _STOPPED.match(line.text.lstrip()):
            return True
    return False


def starts_poolfind(lines: Sequence[Line], index: int) -> bool:
    """Whether an output of ``!poolfind`` begins at a line: command, header, or a new-layout row.

    Rows of the old layout look like those of ``!pool`` and count only below a header.
    """
    if find_opening(lines, index, "poolfind"):
        return True
    line = lines[index]
    if _read_header(line, None) or _ROW.match(line.text[:400].strip()):
        return True
    if not (is_failure(line.text) or _STOPPED.match(line.text.lstrip())):
        return False
    return find_opening_above(lines, index, "poolfind") is not None


class _Reader:
    """Takes in the lines of one ``!poolfind``."""

    def __init__(self, command: Optional[str]) -> None:
        self.command = command
        self.sections: List[_Section] = []
        self.messages: List[str] = []
        self.unparsed: List[Unparsed] = []

    def _section(self) -> _Section:
        if not self.sections:
            self.sections.append(_Section(self.command))
        return self.sections[-1]

    def take(self, line: Line, last: bool) -> bool:
        """Take a line in, the last one of the text or not; False if it is none of this output."""
        header = _read_header(line, self.command)
        if header:
            self.sections.append(header)
            if header.tag is None or header.start is None:
                self.unparsed.append(
                    Unparsed(line.number, line.text, "a header without a certain tag or range")
                )
            return True
        stopped = _STOPPED.match(line.text.lstrip())
        if stopped:
            self._section().interrupted_at = read_address(stopped.group(1))
            return True
        row, unparsed, meant = _read_row(line)
        if meant:
            self.unparsed.extend(unparsed)
            if row and self._is_cut(row, line.text, last):
                self.unparsed.append(Unparsed(line.number, line.text, "cut within the row"))
            elif row:
                self._section().blocks.append(row)
            return True
        if is_preamble(line.text) or is_gap(line.text):
            return True
        if is_failure(line.text):
            self.messages.append(line.text.strip())
            return True
        return False

    def _is_cut(self, row: FoundBlock, text: str, last: bool) -> bool:
        """Whether the text ends within a row: all new ones end with their pool."""
        section = self._section()
        if row.state is None:
            others = section.blocks and section.blocks[-1].pool
            return not text.rstrip().lower().endswith(" pool") and bool(last or others)
        wanted = section.tag or "?"
        if row.tag in (None, wanted) or "?" in wanted or "*" in wanted:
            return False
        return wanted.startswith((row.tag or "").rstrip())


def take_poolfind(lines: Sequence[Line], index: int) -> Tuple[PoolFind, int]:
    """Read the output of one ``!poolfind``; the second value is the first line behind it."""
    opening = opening_of(lines, index, "poolfind")
    reader = _Reader(opening.command)
    end = walk_rows(
        lines,
        opening.first,
        take=lambda at: reader.take(lines[at], at + 1 == len(lines)),
        ends=lambda at: not _own_line_follows(lines, at + 1),
        note=lambda line: reader.unparsed.append(
            Unparsed(line.number, line.text, "between the rows of !poolfind")
        ),
    )
    searches = tuple(section.build() for section in reader.sections)
    result = PoolFind(searches, tuple(reader.messages), tuple(reader.unparsed))
    return result, max(end, index + 1)


def parse_poolfind(source: Source) -> PoolFind:
    """Read every ``!poolfind`` output of a text; other lines are reported as not understood."""
    parts, unparsed = walk_outputs(lines_of(source), starts_poolfind, take_poolfind, "!poolfind")
    return PoolFind(
        tuple(search for part in parts for search in part.searches),
        tuple(message for part in parts for message in part.messages),
        unparsed,
    )
