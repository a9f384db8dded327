"""Tag lists: ``pooltag.txt`` and ``localtag.txt``.

A line is ``Tag - driver - description``. The tag is the first four characters, blanks included;
``?`` in it stands for one character and ``*`` for the rest.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

from kdleak.dialect.prompt import is_prompt
from kdleak.dialect.source import Line, Source, Unparsed, lines_of
from kdleak.dialect.tag_text import padded

_END_OF_FILE = "\x1a"
_MARK = "\N{ZERO WIDTH NO-BREAK SPACE}"
_LONGEST = 1000

_COMMENT = re.compile(r"\s*(?://|(?:rem|REM)(?=\s|\Z))")

# A hyphen with a blank on either side of it, or at the end of the line.
_ENTRY = re.compile(r"(?P<tag>[^\t]{3}(?:[^\t\s](?=\s*-)| ))(?:\s*-(?=\s|\Z)|(?<=\s)-|\s+-)")
_SHORT_ENTRY = re.compile(r"(?P<tag>\S[^\t]{0,2}?)\s+-(?=\s|\Z)")
_SECOND_HYPHEN = re.compile(r"(?<=\s)-")
_GLUED_HYPHEN = re.compile(r"(?P<binary>\s*(?:<unknown>|\S{1,80}\.\w{2,4}|\w{1,40}!\S{1,40}))-\s")
_DRIVER = re.compile(
    r"(?:<unknown>|\S{1,80}\.(?:sys|dll|exe|lib|drv|ocx|efi)|\w{1,40}!\S{1,40})(?=\s|\Z)", re.I
)

_LOOK_AHEAD = 8
_ENTRIES_TO_BEGIN = 3


@dataclass(frozen=True)
class PoolTagEntry:
    """One line of a tag list.

    Attributes:
        tag: four characters, wildcards included.
        binary: driver as written (``<unknown>``, ``nt!part``, several names); None when the line
            has none or leaves open where it ends.
        description: None when it is empty or open.
        line: number of the line, 1 for the first.
    """

    tag: str
    binary: Optional[str] = None
    description: Optional[str] = None
    line: int = 0

    @property
    def wildcard(self) -> bool:
        """Whether the entry stands for more than one tag."""
        return "?" in self.tag or "*" in self.tag

    def matches(self, tag: str) -> bool:
        """Whether the entry is about a tag of four characters. Case matters."""
        if not self.wildcard:
            return self.tag == tag
        pattern, star, _ = self.tag.partition("*")
        if len(tag) < len(pattern) or (not star and len(tag) != len(pattern)):
            return False
        return all(sign in ("?", char) for sign, char in zip(pattern, tag))


@dataclass(frozen=True)
class PoolTagList:
    """A tag list.

    Attributes:
        entries: in file order; repeated tags are all kept.
        ignored_lines: number of lines that are neither entry, comment nor blank.
        comment_lines: number of ``//`` and ``rem`` lines.
        blank_lines: number of empty lines.
        unparsed: the ignored lines, and entries whose fields are open.
    """

    entries: Tuple[PoolTagEntry, ...] = ()
    ignored_lines: int = 0
    comment_lines: int = 0
    blank_lines: int = 0
    unparsed: Tuple[Unparsed, ...] = ()

    def find(self, tag: str) -> Tuple[PoolTagEntry, ...]:
        """Entries about a tag, in file order.

        An exact line wins over a wildcard, and of the wildcards those with most fixed characters,
        whatever their order.

        Args:
            tag: up to four characters; missing blanks at the end are added.
        """
        tag = padded(tag)
        exact, wildcards = self._index
        if tag in exact:
            return exact[tag]
        found = [entry for entry in wildcards if entry.matches(tag)]
        if not found:
            return ()
        best = max(map(_fixed_characters, found))
        return tuple(entry for entry in found if _fixed_characters(entry) == best)

    @functools.cached_property
    def _index(self) -> Tuple[Dict[str, Tuple[PoolTagEntry, ...]], Tuple[PoolTagEntry, ...]]:
        exact: Dict[str, List[PoolTagEntry]] = {}
        wildcards: List[PoolTagEntry] = []
        for entry in self.entries:
            if entry.wildcard:
                wildcards.append(entry)
            else:
                exact.setdefault(entry.tag, []).append(entry)
        return {tag: tuple(entries) for tag, entries in exact.items()}, tuple(wildcards)


def parse_pooltag(source: Source) -> PoolTagList:
    """Read a whole tag list. Never raises for bad text; linear in its length.

    The source must not be undecorated: ``//`` in front of a line is a part of the format.
    """
    return _read(lines_of(source))


def starts_pooltag(lines: Sequence[Line], index: int) -> bool:
    """Whether a piece of a tag list begins at this line: an entry, with more of them below."""
    if not _is_full_entry(lines[index]):
        return False
    below = lines[index : index + _LOOK_AHEAD]
    return sum(map(_is_full_entry, below)) >= _ENTRIES_TO_BEGIN


def take_pooltag(lines: Sequence[Line], index: int) -> Tuple[PoolTagList, int]:
    """Read the piece of a tag list that begins at this line.

    Returns:
        The list and the index of the first line that is not its own.
    """
    end = index + 1
    at = end
    while at < len(lines):
        text = lines[at].text
        if is_prompt(text):
            break
        own = _is_full_entry(lines[at]) or _COMMENT.match(text) is not None
        if own:
            end = at + 1
        elif at - end >= _LOOK_AHEAD:
            break
        at += 1
    return _read(lines[index:end]), end


def _is_full_entry(line: Line) -> bool:
    if _COMMENT.match(line.text):
        return False
    entry, why = _read_entry(line)
    return entry is not None and entry.binary is not None and not why


def _fixed_characters(entry: PoolTagEntry) -> int:
    return sum(sign != "?" for sign in entry.tag.partition("*")[0])


def _read(lines: Sequence[Line]) -> PoolTagList:
    entries: List[PoolTagEntry] = []
    unparsed: List[Unparsed] = []
    ignored = comments = blanks = 0
    for line in lines:
        text = line.text
        if not text.strip(" \t\r\f\v\xa0" + _END_OF_FILE + _MARK):
            # The byte 0x1A ends a file of old editors; it is no line.
            blanks += _END_OF_FILE not in text
            continue
        if _COMMENT.match(text.lstrip(_MARK)):
            comments += 1
            continue
        entry, why = _read_entry(line)
        if entry is None:
            ignored += 1
        else:
            entries.append(entry)
        if why:
            unparsed.append(Unparsed(line.number, text, why))
    return PoolTagList(tuple(entries), ignored, comments, blanks, tuple(unparsed))


def _read_entry(line: Line) -> Tuple[Optional[PoolTagEntry], str]:
    """One line as an entry (None when it is none), and what is wrong with it."""
    text = line.text.lstrip(_MARK).rstrip(_END_OF_FILE)[:_LONGEST]
    found = _ENTRY.match(text) or _SHORT_ENTRY.match(text)
    if found is None or not found["tag"].strip():
        return None, "no tag with a hyphen behind it"
    tag = padded(found["tag"])
    rest = text[found.end() :]
    second = _SECOND_HYPHEN.search(rest)
    if second is not None:
        binary, description = rest[: second.start()], rest[second.end() :]
    else:
        glued = _GLUED_HYPHEN.match(rest)
        if glued is None:
            return _two_fields(tag, rest.strip(), line.number)
        binary, description = glued["binary"], rest[glued.end() :]
    return PoolTagEntry(tag, binary.strip() or None, description.strip() or None, line.number), ""


def _two_fields(tag: str, rest: str, line: int) -> Tuple[PoolTagEntry, str]:
    """An entry without a second hyphen: a description, a driver, or both with no sign between."""
    driver = _DRIVER.match(rest)
    if driver is None:
        return PoolTagEntry(tag, None, rest or None, line), "" if rest else "nothing but a tag"
    if driver.end() == len(rest):
        return PoolTagEntry(tag, rest, None, line), ""
    return PoolTagEntry(tag, None, None, line), "no hyphen behind the driver, where it ends is open"
