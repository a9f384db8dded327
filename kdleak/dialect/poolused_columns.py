"""Columns of a ``!poolused`` table: the header, and one row read with its help.

The header's words end where the number columns end. A row is read by that, because a blank inside
a tag and a description glued to the last number leave nothing else to go by. Where the blanks were
lost (a web page reduced each run of them to one) words are counted instead.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import List, Optional, Tuple, Union

from kdleak.dialect.poolused_table import Layout, PoolUsedRow, PoolUsedTotal
from kdleak.dialect.tag_text import padded

_HEADER = re.compile(
    r"[\s#*|]{0,64}\b(?P<tag>Tag)\s+(?P<a>Allocs)\s+(?:(?P<f>Frees)\s+(?P<d>Diff)\s+)?(?P<u>Used)"
    r"\s+(?P<pa>Allocs)\s+(?:(?P<pf>Frees)\s+(?P<pd>Diff)\s+)?(?P<pu>Used)\s*\Z"
)
_LONGEST_HEADER = 240

_TITLES = (
    ["Tag", "Allocs", "Used", "Allocs"],
    ["Tag", "Allocs", "Frees", "Diff", "Used", "Allocs", "Frees", "Diff"],
)
"""Of both kinds of tables, without the last word."""

_OLD_WIDTH = 9
"""Width of the old layout's second number column; the new one's is 13."""

_COUNT, _SIGNED = r"([0-9]{1,20})", r"(-?[0-9]{1,20})"
_NUMBERS = {
    4: (_COUNT, _SIGNED, _COUNT, _SIGNED),
    8: (_COUNT, _COUNT, _SIGNED, _SIGNED, _COUNT, _COUNT, _SIGNED, _SIGNED),
}
_BLANK = "[ \t\N{NO-BREAK SPACE}]"

_BINARY = re.compile(r",\s{0,8}Binary\s{0,8}:")
_UNKNOWN = re.compile(r"UNKNOWN pooltag '(?P<quoted>.{0,4}?)'(?:,| please|\Z)")
_BROKEN_UNKNOWN = re.compile(
    r"UNKNOWN(?: pooltag(?: '[^']{0,4}'?)?)?,?(?: please)?(?: update)?(?: pooltag)?\.?(?:txt)?\Z"
)
_COMPLETE_UNKNOWN = "pooltag.txt"

_TOTAL = re.compile(r"\s*TOTAL(?=\s)")

_FIGURE = re.compile(r"[-+]?(?:0[xX])?[0-9A-Fa-fOoQDIilSsBZzGgq|.,`']{1,24}")
_LETTER_FIGURE = re.compile(r"[OoIl|]{1,8}\Z")
_DIGITS = re.compile(r"-?[0-9]+\Z")
_HEXADECIMAL = re.compile(r"0[xX][0-9a-fA-F]+|[0-9a-fA-F]*[a-fA-F][0-9a-fA-F]*\Z")

HEXADECIMAL = "hexadecimal number"
FRACTION = "fraction or separator inside a number"
LETTER = "letter inside a number"


@dataclass(frozen=True)
class Header:
    """The line of column titles.

    Attributes:
        layout: which table it is.
        tag_at: column of the tag, 0 for the first of the line.
        ends: column behind the last digit of each number.
        collapsed: runs of blanks were lost, columns mean nothing.
    """

    layout: Layout
    tag_at: int
    ends: Tuple[int, ...]
    collapsed: bool


@dataclass(frozen=True)
class Unreadable:
    """A line that is a row, but whose numbers must not be guessed.

    Attributes:
        tag: as displayed.
        why: one clause.
        cut: the row stops in the middle.
    """

    tag: str
    why: str
    cut: bool = False


def read_header(text: str, *, pool_used_above: bool = False) -> Optional[Header]:
    """The column titles of a ``!poolused`` table, None for any other line.

    Args:
        text: one line.
        pool_used_above: a line ``Pool Used:`` stood above it, as only old debuggers print.
    """
    if len(text) > _LONGEST_HEADER or "Allocs" not in text:
        return None
    found = _HEADER.match(text)
    if found is None or (found["f"] is None) != (found["pf"] is None):
        return None
    names = (
        ("a", "u", "pa", "pu")
        if found["f"] is None
        else ("a", "f", "d", "u", "pa", "pf", "pd", "pu")
    )
    ends = tuple(found.end(name) for name in names)
    collapsed = not re.search(r"\S\s\s+\S", text[found.start("tag") :])
    if len(ends) == 8:
        layout = Layout.VERBOSE
    elif pool_used_above or (not collapsed and ends[1] - ends[0] <= _OLD_WIDTH):
        layout = Layout.OLD
    else:
        layout = Layout.NEW
    return Header(layout, found.start("tag"), ends, collapsed)


def is_cut_header(text: str) -> bool:
    """Whether a line is the beginning of the titles; at the end of a text they were cut."""
    words = text[:_LONGEST_HEADER].split()
    return len(words) > 1 and any(words == titles[: len(words)] for titles in _TITLES)


class RowReader:
    """Reads the rows below one header."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self._count = len(header.ends)
        starts = (header.tag_at + 4, *header.ends[:-1])
        self._widths = tuple(end - start for start, end in zip(starts, header.ends))
        self._last_width = self._widths[-1]
        self._fast = _row_pattern(header.tag_at, self._count).match
        self._numbers = _number_pattern(self._count).match

    def read(self, text: str, line: int) -> Union[PoolUsedRow, Unreadable, None]:
        """One line as a row; None when it is none."""
        if not self._header.collapsed:
            found = self._fast(text)
            if found is not None:
                return self._row(text, found[1], found, 1, line)
        return self._read_slowly(text, line)

    def read_total(self, text: str) -> Union[PoolUsedTotal, Unreadable, None]:
        """The TOTAL line at any indentation; None when it is another line."""
        head = _TOTAL.match(text)
        if head is None:
            return None
        found = self._numbers(text, head.end())
        if found is None or text[found.end() :].strip():
            return Unreadable("TOTAL", "the numbers of the TOTAL line cannot be read")
        values = [int(value) for value in found.groups()]
        if self._count == 4:
            return PoolUsedTotal(*values)
        allocs, frees, diff, used, paged_allocs, paged_frees, paged_diff, paged_used = values
        return PoolUsedTotal(
            allocs, used, paged_allocs, paged_used, frees, diff, paged_frees, paged_diff
        )

    def _read_slowly(self, text: str, line: int) -> Union[PoolUsedRow, Unreadable, None]:
        start = len(text) - len(text.lstrip())
        if start == len(text) or _TOTAL.match(text):
            return None
        if self._header.collapsed:
            return self._read_collapsed(text, start, line)
        at = self._tag_column(text, start)
        found = self._numbers(text, at + 4)
        if found is not None and text[at : at + 4].strip():
            return self._row(text, text[at : at + 4], found, 0, line)
        return self._why_unreadable(text, at)

    def _tag_column(self, text: str, start: int) -> int:
        """Where the tag of an oddly indented row begins; a tag may begin with a blank."""
        column = self._header.tag_at
        if start <= column:
            return start
        # Moved as a whole, or in its place with a blank in front? The numbers tell.
        found = self._numbers(text, start + 4) if len(text) > start + 4 else None
        if found is not None and found.end(1) - self._header.ends[0] == start - column:
            return start
        in_place = self._numbers(text, column + 4) if start < column + 4 else None
        return column if in_place is not None else start

    def _read_collapsed(
        self, text: str, start: int, line: int
    ) -> Union[PoolUsedRow, Unreadable, None]:
        readings: List[Tuple[str, re.Match[str]]] = []
        for length in (4, 3, 2, 1):
            end = start + length
            tag = text[start:end]
            if len(tag) < length or tag[-1].isspace() or not text[end : end + 1].isspace():
                continue
            found = self._numbers(text, end)
            if found is not None:
                readings.append((tag, found))
        if not readings:
            return self._why_unreadable(text, start)
        wide = [reading for reading in readings if reading[1].start(1) - reading[1].start() > 1]
        if len(wide) == 1:  # only the header lost its blanks
            readings = wide
        # A number alone is no description, and the sentence about an unknown tag is complete.
        likely = [
            reading
            for reading in readings
            if not re.match(r"\s+[0-9]+\s*(?:UNKNOWN pooltag|\Z)", text[reading[1].end() :])
        ]
        if len(likely) > 1 and re.match(r"\s+[0-9]", text[likely[1][1].end() :]):
            return Unreadable(padded(likely[0][0]), "blanks were lost, it can be read in two ways")
        tag, found = (likely or readings)[0]
        return self._row(text, tag, found, 0, line)

    def _row(
        self, text: str, tag: str, found: re.Match[str], groups_before: int, line: int
    ) -> Union[PoolUsedRow, Unreadable]:
        last = groups_before + self._count
        end = found.end(last)
        values = found.groups()[groups_before:]
        if self._header.collapsed or end - found.end(last - 1) != self._last_width:
            exact = self._end_of_last(text, found, last)
            if isinstance(exact, str):
                return Unreadable(padded(tag), exact, cut=exact.startswith("cut"))
            end = exact
            values = (*values[:-1], text[found.start(last) : end])
            if not _DIGITS.match(values[-1]):
                return Unreadable(padded(tag), "the last number does not fit its column")
        description, binary, unknown, quoted = describe(text[end:], tag)
        if "\xa0" in tag or len(tag) < 4:
            tag = padded(tag)
        if self._count == 4:
            allocs, used, paged_allocs, paged_used = values
            return PoolUsedRow(
                tag, int(allocs), int(used), int(paged_allocs), int(paged_used),
                None, None, None, None, description, binary, unknown, quoted, line,
            )  # fmt: skip
        allocs, frees, diff, used, paged_allocs, paged_frees, paged_diff, paged_used = values
        return PoolUsedRow(
            tag, int(allocs), int(used), int(paged_allocs), int(paged_used),
            int(frees), int(diff), int(paged_frees), int(paged_diff),
            description, binary, unknown, quoted, line,
        )  # fmt: skip

    def _end_of_last(self, text: str, found: re.Match[str], last: int) -> Union[int, str]:
        """Where the last number ends when it does not end at its column, or why that is open."""
        begin, end, before = found.start(last), found.end(last), found.end(last - 1)
        limit = before + self._last_width
        if text[begin] == "0" and end > begin + 1:
            return begin + 1  # no number is printed with a leading zero: a description follows
        if self._header.collapsed or not self._in_columns(found, last):
            return end
        if end < limit:
            return "cut inside the last number" if end == len(text) else end
        if begin - before > 1:
            return limit if limit > begin else end
        # Wider than its column. A description that is glued to it and begins with digits cannot
        # be told from it; what may follow a number directly decides.
        rest = text[end : end + 8]
        if rest[:1].isspace() and rest.strip() and self._header.layout is Layout.OLD:
            return "digits behind the column of the last number, where it ends is open"
        return end

    def _in_columns(self, found: re.Match[str], last: int) -> bool:
        """Whether the numbers before the last stand in columns of the header's widths."""
        first = last - self._count + 1
        for group in range(first + 1, last):
            width = found.end(group) - found.end(group - 1)
            if width != self._widths[group - first]:
                blanks = found.start(group) - found.end(group - 1)
                old_gap = self._header.layout is Layout.OLD and group == first + 2
                if width < self._widths[group - first] or blanks > (2 if old_gap else 1):
                    return False
        return True

    def _why_unreadable(self, text: str, at: int) -> Optional[Unreadable]:
        """A row whose numbers are damaged or missing; None when the line is no row at all."""
        tag, rest = text[at : at + 4], text[at + 4 : at + 400]
        if not tag.strip() or not rest[:1].isspace():
            if not self._header.collapsed or " " not in tag:
                return None
            tag, _, _ = tag.partition(" ")
            rest = text[at + len(tag) : at + 400]
        tag = padded(tag)
        words = rest.split(None, self._count)[: self._count]
        if words and all(map(_DIGITS.match, words)):
            if len(words) < self._count and self._starts_in_column(text, at, words[0]):
                why = f"cut: {len(words)} of {self._count} numbers"
                return Unreadable(tag, why, cut=True)
            return None
        if len(words) < self._count:
            return None
        figures = [_figure(word) for word in words[:-1]]
        last = _FIGURE.match(words[-1])
        if last is None or not all(figures) or not any(map(_DIGITS.match, words)):
            return None
        return Unreadable(tag, _what_is_wrong([*words[:-1], last.group()]))

    def _starts_in_column(self, text: str, at: int, word: str) -> bool:
        if self._header.collapsed:
            return True
        begin = text.find(word, at + 4)
        return begin >= 0 and (begin > at + 5 or begin + len(word) == self._header.ends[0])


def _figure(word: str) -> bool:
    """A number, or what is left of one: it has a digit, or is a letter that looks like one."""
    found = _FIGURE.fullmatch(word)
    if found is None:
        return False
    return any(char.isdigit() for char in word) or _LETTER_FIGURE.match(word) is not None


def _what_is_wrong(words: List[str]) -> str:
    damaged = [word for word in words if not _DIGITS.match(word)]
    if any("." in word or "," in word for word in damaged):
        return FRACTION
    if any(_HEXADECIMAL.fullmatch(word) for word in damaged):
        return HEXADECIMAL
    return LETTER


def describe(text: str, tag: str) -> Tuple[Optional[str], Optional[str], bool, Optional[str]]:
    """What stands behind the numbers.

    Args:
        text: the rest of the row.
        tag: of the row, as displayed.

    Returns:
        description, binary, whether the tag list does not know the tag, and the tag quoted in
        that sentence when it differs.
    """
    text = text.strip()
    if not text:
        return None, None, False, None
    if text.startswith("UNKNOWN"):
        found = _UNKNOWN.match(text)
        if found is not None:
            quoted = found["quoted"]
            same = quoted == tag or quoted.rstrip() == tag.rstrip()
            return None, None, True, None if same else quoted
    if "Binary" in text:
        parts = _BINARY.split(text, maxsplit=1)
        if len(parts) == 2:
            return parts[0].strip() or None, parts[1].strip() or None, False, None
    return text, None, False, None


def is_broken_description(description: str) -> bool:
    """Whether a description was broken in a place where only the next line can complete it."""
    if description.startswith("UNKNOWN"):
        return _BROKEN_UNKNOWN.match(description) is not None
    return description.endswith((",", ", Binary", ", Binary:", ", Binary :"))


def is_rest_of_unknown(text: str) -> bool:
    """Whether a line is the end of the sentence about an unknown tag."""
    return text.endswith(_COMPLETE_UNKNOWN) and len(text) <= 48 and "UNKNOWN" not in text


@functools.lru_cache(maxsize=32)
def _row_pattern(tag_at: int, count: int) -> re.Pattern[str]:
    # One match per row: blanks, the tag in its column, the numbers.
    numbers = "".join(rf"{_BLANK}+{number}" for number in _NUMBERS[count])
    return re.compile(rf"{_BLANK}{{{tag_at}}}([^\s].{{3}}){numbers}")


@functools.lru_cache(maxsize=2)
def _number_pattern(count: int) -> re.Pattern[str]:
    return re.compile("".join(rf"{_BLANK}+{number}" for number in _NUMBERS[count]))
