"""What stands above the rows of a ``!poolused`` list: command, preamble, Sorting line, titles."""

from __future__ import annotations

import re
from typing import List, Optional, Sequence

from kdleak.dialect.fields import is_gap, is_preamble
from kdleak.dialect.poolused_columns import Header, is_cut_header, read_header
from kdleak.dialect.poolused_refusal import why_foreign
from kdleak.dialect.poolused_table import Sort
from kdleak.dialect.prompt import is_prompt
from kdleak.dialect.source import Line, Unparsed
from kdleak.dialect.typed_command import typed_command

_PREAMBLE_LINES = 60
"""Lines between a command and its header that are looked at; the longest seen has 14."""

NO_TABLE = "no table follows"

CUT = "cut inside the column titles"

_SORTING = re.compile(r"\s*Sorting by\s+(?P<by>\S.{0,60}?)\s*\Z")
_SORTS = {
    "tag": Sort.TAG,
    "nonpaged pool consumed": Sort.NONPAGED,
    "paged pool consumed": Sort.PAGED,
}
_POOL_USED = re.compile(r"\s*Pool Used\s*:\s*\Z")
_POOLS = re.compile(r"\s*NonPaged\s+Paged\s*\Z")
_ERROR = re.compile(
    r"\bunable to (?:get|read|find|resolve)\b|\bsymbols? (?:are |is )?(?:wrong|incorrect|bad)\b"
    r"|\b(?:correct|bad|wrong|incorrect) symbols?\b|\bpool ?tagging\b|\bPoolTrackTable\w*"
    r"|\bno export poolused\b|\bmemory read error\b|\bcould(?:n't| not) (?:read|resolve|find)\b",
    re.IGNORECASE,
)
_OWN_ERROR = re.compile(r"\bPoolTrackTable\w*|\bpool ?tagging\b|\bexport poolused\b", re.IGNORECASE)
_OTHER_PREAMBLE = re.compile(
    r"\s*(?:Using a machine size of [0-9]+ pages|Loading (?:Kernel|User|unloaded)|"
    r"\*{2,3} (?:WARNING|ERROR):)"
)
_FLAGS = re.compile(r"(?:0x)?[0-9a-fA-F]{1,8}\Z")


def is_sorting(text: str) -> bool:
    """Whether it is the line that says what the list is sorted by."""
    return _SORTING.match(text) is not None


def is_pool_used(text: str) -> bool:
    """Whether it is the title that only old debuggers print."""
    return _POOL_USED.match(text) is not None


def is_pools(text: str) -> bool:
    """Whether it is the upper line of the column titles."""
    return _POOLS.match(text) is not None


def is_error(text: str) -> bool:
    """Whether the extension reports here that it cannot read what it needs."""
    return _ERROR.search(text[:400]) is not None


def is_own_error(text: str) -> bool:
    """Whether no other command reports such an error."""
    return _OWN_ERROR.search(text[:400]) is not None


class Opening:
    """Everything from the command to the column titles.

    Attributes:
        lines: of the whole log.
        first: index of its first line.
        end: index behind its last line.
        command: as typed, None when there is none.
        sort: None without a Sorting line.
        header: None when there is no list to read.
        rejected: why not, "" when errors say it or when there is a header.
        errors: what the extension reported.
        unparsed: lines that were not understood.
    """

    def __init__(self, lines: Sequence[Line], index: int) -> None:
        self.lines = lines
        self.first = index
        self.end = index + 1
        self.command = typed_command(lines[index].text, "poolused")
        self.sort: Optional[Sort] = None
        self.header: Optional[Header] = None
        self.rejected = ""
        self.errors: List[str] = []
        self.unparsed: List[Unparsed] = []
        self._unknown: List[Unparsed] = []
        self._pool_used = self._sorting = False
        self._read(index + 1 if self.command is not None else index)

    def _read(self, index: int) -> None:
        for at in range(index, min(index + _PREAMBLE_LINES, len(self.lines))):
            text = self.lines[at].text
            if not text.strip():
                continue
            self.header = read_header(text, pool_used_above=self._pool_used)
            if at + 1 == len(self.lines) and is_cut_header(text):
                self.rejected, self.end = CUT, at + 1
                return
            self.rejected = "" if self.header else why_foreign(text)
            if self.header or self.rejected:
                self.end = at + 1
                self.unparsed += self._unknown
                return
            if is_prompt(text) or (at > self.first and self._begins_next(text)):
                break
            if self._read_line(self.lines[at]):
                self.end = at + 1
        # No header: lines that were not understood are left to other readers.
        if not self.errors:
            self.rejected = NO_TABLE
            if self._unknown:
                self.end = self.first + 1

    def _begins_next(self, text: str) -> bool:
        """Whether a line stands here for the second time: another list begins."""
        if typed_command(text, "poolused") is not None or (self._pool_used and is_pool_used(text)):
            return True
        return self._sorting and is_sorting(text)

    def _read_line(self, line: Line) -> bool:
        """A line above the titles; False when it was not understood."""
        text = line.text
        sorting = _SORTING.match(text)
        if sorting is not None:
            self._sorting = True
            self.sort = _SORTS.get(" ".join(sorting["by"].lower().split()))
            if self.sort is None:
                self._unknown.append(Unparsed(line.number, text, "unknown order"))
        elif is_pool_used(text):
            self._pool_used = True
        elif is_error(text):
            self.errors.append(text.strip())
        elif not is_known_above(text):
            self._unknown.append(Unparsed(line.number, text, "not known above a list"))
            return False
        return True


def filter_of(command: Optional[str]) -> Optional[str]:
    """The tag that a command asks for, as typed; None when it asks for all.

    The order is ``!poolused [/t Count] [Flags] [Tag]``; a tag may hold blanks and wildcards.
    """
    rest = "" if command is None else command.partition(" ")[2].strip()
    flags_seen = False
    while rest:
        word, _, behind = rest.partition(" ")
        if re.fullmatch(r"/[A-Za-z]\d{1,9}|/[A-SU-Za-su-z]", word):
            rest = behind.strip()
        elif word in ("/t", "/T"):
            rest = behind.strip().partition(" ")[2].strip()
        elif not flags_seen and _FLAGS.match(word):
            flags_seen, rest = True, behind.strip()
        else:
            break
    if len(rest) > 4:
        rest = rest.split(None, 1)[0]
    return rest or None


def is_known_above(text: str) -> bool:
    """Lines of the debugger that may stand above the rows and say nothing about them."""
    return (
        is_preamble(text)
        or is_gap(text)
        or is_pools(text)
        or _OTHER_PREAMBLE.match(text) is not None
    )
