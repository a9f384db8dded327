"""Text of ``!pool``: the blocks of one pool page, or why there are none.

Layouts: the old one without a ``Pool page`` line, the newer one, large page allocations and
special pool. Format: Microsoft, "!pool" (debugger commands), and rows seen in debugger logs.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field, replace
from typing import List, Optional, Sequence, Tuple, Union

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
from kdleak.dialect.prompt import is_prompt
from kdleak.dialect.source import Line, Source, Unparsed, lines_of
from kdleak.dialect.tag_text import certain_tag, padded
from kdleak.tags import PoolTag

_HEX = r"(?:0x)?([0-9a-fA-F]{1,16})(?![0-9a-zA-Z_])"
_ROW = re.compile(
    rf"(\*?)[ \t]*({ADDRESS})[ \t]+size:[ \t]*{_HEX}[ \t]+previous size:[ \t]*{_HEX}[ \t]+"
    r"\((Allocated|Free)( ?)\)",
    re.IGNORECASE,
)
_LARGE = re.compile(
    rf"(\*?)[ \t]*({ADDRESS})[ \t]*:[ \t]*(free )?[ \t]*large page allocation, "
    r"tag is (.{1,4}?), size is "
    rf"{_HEX} bytes",
    re.IGNORECASE,
)
_SPECIAL = re.compile(
    rf"(\*?)[ \t]*({ADDRESS})[ \t]+size:[ \t]*{_HEX}[ \t]+data:[ \t]*({ADDRESS})[ \t]+"
    r"\(([A-Za-z ]{1,20})\)",
    re.IGNORECASE,
)
_NEAR_ROW = re.compile(r"\bprevious size:|large page allocation,|\bsize:.{0,40}?\bdata:")
_PAGE = re.compile(rf"Pool page ({ADDRESS}) region is[ \t]+(.*)", re.IGNORECASE | re.DOTALL)
_POOLTAG = re.compile(r"Pooltag (.*)", re.DOTALL)
_OWNER = re.compile(r"Owning component[ \t]*:(.*)", re.IGNORECASE | re.DOTALL)
_PROCESS = re.compile(rf"Process(?:Billed)?:[ \t]*({ADDRESS})")
_CONTENT_WORD = re.compile(r"(?:[0-9a-fA-F?]{8}[`'-]?){1,2}\Z")

_TAG_COLUMN = {"allocated": 2, "free": 7, "free ": 2}
"""Characters between the bracket behind a state and the tag, the mark's column included."""


class BlockState(enum.Enum):
    """What a pool block is used for."""

    ALLOCATED = "allocated"
    FREE = "free"


@dataclass(frozen=True)
class PoolBlock:
    """One block, as ``!pool`` or ``!poolfind`` shows it.

    Attributes:
        address: of the block's header (of the page for large and special pool).
        size: bytes, header included.
        previous_size: bytes of the block before; None where the layout has no such column.
        state: allocated or free. ``(Free )`` with a blank (on a lookaside list) is free, too.
        tag: four characters as printed, dots for bytes that do not print; None if uncertain.
            A free block without a tag prints ``Free``.
        current: marked with a star: it holds the address that was asked for.
        protected: must be freed with its tag.
        process: address of the process that is charged for it.
        large: a large page allocation, which has no header.
        data: address of the caller's bytes, special pool only.
        pool: kind of pool as printed in special pool rows ("NonPaged").
        line: number of the line.
    """

    address: int
    size: int
    previous_size: Optional[int]
    state: BlockState
    tag: Optional[str]
    current: bool = False
    protected: bool = False
    process: Optional[int] = None
    large: bool = False
    data: Optional[int] = None
    pool: Optional[str] = None
    line: int = 0

    @property
    def pool_tag(self) -> Optional[PoolTag]:
        """The tag, where the printed characters say for certain which four bytes it has."""
        if self.state is BlockState.FREE and self.tag == "Free":
            return None
        return certain_tag(self.tag) if self.tag is not None else None


@dataclass(frozen=True)
class PooltagNote:
    """What pooltag.txt says about the tag of the marked block.

    Attributes:
        tag: four characters; may hold the wildcards of the list's entry.
        description: as printed.
        binary: the file or kernel part behind ``Binary :``; None if there is none.
    """

    tag: str
    description: str
    binary: Optional[str]


@dataclass(frozen=True)
class PoolPage:
    """The answer to one ``!pool``.

    Attributes:
        command: as typed; None if the text does not show it.
        address: of the ``Pool page`` line; None in the old layout.
        region: the kind of pool as printed ("Paged session pool"); None in the old layout.
        blocks: in the order of the text.
        pooltag: the list's entry for the marked block.
        owning_component: printed instead of it ("Unknown (update pooltag.txt)").
        messages: what the debugger said instead of, or between, the blocks.
    """

    command: Optional[str] = None
    address: Optional[int] = None
    region: Optional[str] = None
    blocks: Tuple[PoolBlock, ...] = ()
    pooltag: Optional[PooltagNote] = None
    owning_component: Optional[str] = None
    messages: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Pool:
    """All ``!pool`` outputs of a text, and the lines that were not understood."""

    pages: Tuple[PoolPage, ...]
    unparsed: Tuple[Unparsed, ...]


@dataclass(frozen=True)
class BlockRow:
    """A row of a block, and what about it was not certain."""

    block: PoolBlock
    unparsed: Tuple[Unparsed, ...]


def _split_tail(text: str) -> Tuple[str, bool, Optional[int], str]:
    # tag text, protected, process, what else stands behind the tag
    cut = len(text)
    protected = text.find("(Protected)")
    process = _PROCESS.search(text)
    if protected >= 0:
        cut = min(cut, protected)
    if process:
        cut = min(cut, process.start())
    tail = text[cut:]
    if process:
        tail = tail.replace(process.group(0), " ", 1)
    if protected >= 0:
        tail = tail.replace("(Protected)", " ", 1)
    address = read_address(process.group(1)) if process else None
    return text[:cut], protected >= 0, address, tail.strip()


def _read_tag(text: str) -> Tuple[Optional[str], str, str]:
    # tag, words behind it, why it is uncertain
    text = text.rstrip()
    if not text:
        return None, "", "no tag in the row"
    if len(text) <= 4:
        return padded(text), "", ""
    if text[4] in " \t":
        return text[:4], text[4:].strip(), ""
    return None, "", "more than four characters where the tag belongs"


def _cut_tag(rest: str, column: int) -> Tuple[bool, str]:
    # whether the block is marked, and the text from the tag's first character on
    lead = rest[:column]
    if len(lead) == column and not lead.strip(" *") and lead.count("*") <= lead.endswith("*"):
        text = rest[column:]
        bare = text.lstrip(" ")
        if text == bare or (text[:4].strip() and len(text.rstrip()) <= 4):
            return lead.endswith("*"), text
    bare = rest.lstrip(" \t")
    if bare.startswith("*"):
        return True, bare[1:]
    return False, bare


def read_block_row(line: Line, *, marked: bool = True) -> Optional[Union[BlockRow, Unparsed]]:
    """The block on a line.

    Args:
        line: the line.
        marked: the tag has a column for the star in front of it (``!pool``, not ``!poolfind``).

    Returns:
        The row; an ``Unparsed`` if the line is meant to be one but cannot be read; else None.
    """
    text = line.text.lstrip(" \t")
    if "size" not in text.lower():
        return None
    found = _ROW.match(text)
    if found:
        star, address, size, previous, state, blank = found.groups()
        column = _TAG_COLUMN[state.lower() + blank] - (0 if marked else 1)
        current, behind = _cut_tag(text[found.end() :], column)
        block = PoolBlock(
            address=parse_address(address),
            size=int(size, 16),
            previous_size=int(previous, 16),
            state=BlockState(state.lower()),
            tag=None,
            current=bool(star) or current,
            line=line.number,
        )
        return _with_tag(block, behind, line)
    found = _LARGE.match(text)
    if found:
        star, address, free, tag, size = found.groups()
        return BlockRow(
            PoolBlock(
                address=parse_address(address),
                size=int(size, 16),
                previous_size=None,
                state=BlockState.FREE if free else BlockState.ALLOCATED,
                tag=padded(tag),
                current=bool(star),
                large=True,
                line=line.number,
            ),
            (),
        )
    found = _SPECIAL.match(text)
    if found:
        star, address, size, data, pool = found.groups()
        current, behind = _cut_tag(text[found.end() :], 2)
        block = PoolBlock(
            address=parse_address(address),
            size=int(size, 16),
            previous_size=None,
            state=BlockState.ALLOCATED,
            tag=None,
            current=bool(star) or current,
            data=parse_address(data),
            pool=pool.strip(),
            line=line.number,
        )
        return _with_tag(block, behind, line)
    if _NEAR_ROW.search(text[:200]):
        return Unparsed(line.number, line.text, "looks like the row of a pool block, but is none")
    return None


def _with_tag(block: PoolBlock, behind: str, line: Line) -> BlockRow:
    tag_text, protected, process, tail = _split_tail(behind)
    tag, words, why = _read_tag(tag_text)
    unparsed = [Unparsed(line.number, line.text, why)] if why else []
    unparsed += [
        Unparsed(line.number, rest, "words behind the tag") for rest in (words, tail) if rest
    ]
    return BlockRow(replace(block, tag=tag, protected=protected, process=process), tuple(unparsed))


def starts_pool(lines: Sequence[Line], index: int) -> bool:
    """Whether an output of ``!pool`` begins at a line: its command, page line or a row."""
    if find_opening(lines, index, "pool"):
        return True
    line = lines[index]
    if _PAGE.match(line.text.lstrip()) or isinstance(read_block_row(line), BlockRow):
        return True
    return is_failure(line.text) and find_opening_above(lines, index, "pool") is not None


@dataclass
class _PageBuilder:
    """The page under construction."""

    command: Optional[str]
    address: Optional[int] = None
    region: Optional[str] = None
    blocks: List[PoolBlock] = field(default_factory=list)
    pooltag: Optional[PooltagNote] = None
    owning_component: Optional[str] = None
    messages: List[str] = field(default_factory=list)
    unparsed: List[Unparsed] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        return not (self.blocks or self.messages or self.address is not None)

    def take(self, line: Line) -> bool:
        """Take a line in; False if it is not one of this page."""
        page = _PAGE.match(line.text.lstrip())
        if page is None:
            return self._take_row(line) or self._take_note(line) or self._take_words(line)
        if not self.empty:
            return False
        self.address = parse_address(page.group(1))
        self.region = page.group(2).strip()
        return True

    def _take_row(self, line: Line) -> bool:
        row = read_block_row(line)
        if isinstance(row, BlockRow):
            self.blocks.append(row.block)
            self.unparsed.extend(row.unparsed)
        elif row is not None:
            self.unparsed.append(row)
        return row is not None

    def _take_note(self, line: Line) -> bool:
        text = line.text.strip()
        note = _POOLTAG.match(text)
        if note:
            entry = _read_note(note.group(1))
            if entry is None:
                self.unparsed.append(Unparsed(line.number, line.text, "no tag and description"))
            else:
                self.pooltag = entry
            return True
        owner = _OWNER.match(text)
        if owner:
            self.owning_component = owner.group(1).strip()
        return owner is not None

    def _take_words(self, line: Line) -> bool:
        if is_preamble(line.text) or is_gap(line.text) or self._is_contents(line.text):
            return True
        if not is_failure(line.text) or (self.command is None and self.empty):
            return False
        self.messages.append(line.text.strip())
        return True

    def _is_contents(self, text: str) -> bool:
        # flag 1 prints the first words of each block below its row
        if not self.blocks or len(text) > 200:
            return False
        words = text.split()
        address = read_address(words[0]) if len(words) > 1 else None
        if address is None or not -1 <= (address >> 12) - (self.blocks[-1].address >> 12) <= 1:
            return False
        return all(_CONTENT_WORD.match(word) for word in words[1:])

    def build(self) -> Tuple[PoolPage, ...]:
        if self.empty:
            return ()
        return (
            PoolPage(
                self.command,
                self.address,
                self.region,
                tuple(self.blocks),
                self.pooltag,
                self.owning_component,
                tuple(self.messages),
            ),
        )


def _read_note(text: str) -> Optional[PooltagNote]:
    # "Vjh  : text", "Proc : text, Binary : nt!ps"; the blank before the colon is no part of a tag
    colon = 4 if text[4:7] == " : " else text.find(" :")
    if not 0 < colon <= 5:
        return None
    description = text[colon + 2 :].strip()
    binary: Optional[str] = None
    cut = description.rfind("Binary :")
    if cut >= 0 and description[:cut].rstrip().endswith(","):
        binary = description[cut + len("Binary :") :].strip() or None
        description = description[:cut].rstrip()[:-1].rstrip()
    return PooltagNote(padded(text[:colon].rstrip()), description, binary)


def _own_row_follows(lines: Sequence[Line], index: int) -> bool:
    for line in lines[index : index + LOOK_AHEAD]:
        if is_prompt(line.text) or _PAGE.match(line.text.lstrip()):
            return False
        if isinstance(read_block_row(line), BlockRow):
            return True
    return False


def take_pool(lines: Sequence[Line], index: int) -> Tuple[Pool, int]:
    """Read the output of one ``!pool``; the second value is the first line behind it."""
    opening = opening_of(lines, index, "pool")
    page = _PageBuilder(opening.command)
    end = walk_rows(
        lines,
        opening.first,
        take=lambda at: page.take(lines[at]),
        ends=lambda at: (
            _PAGE.match(lines[at].text.lstrip()) is not None or not _own_row_follows(lines, at + 1)
        ),
        note=lambda line: page.unparsed.append(
            Unparsed(line.number, line.text, "between the rows of !pool")
        ),
    )
    return Pool(page.build(), tuple(page.unparsed)), max(end, index + 1)


def parse_pool(source: Source) -> Pool:
    """Read every ``!pool`` output of a text; other lines are reported as not understood."""
    parts, unparsed = walk_outputs(lines_of(source), starts_pool, take_pool, "!pool")
    return Pool(tuple(page for part in parts for page in part.pages), unparsed)
