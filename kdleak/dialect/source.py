"""Text as it reached us: bytes to numbered lines, with the decoration of mails and pages removed.

Every parser of this package takes a ``Source`` and reports what it did not understand as
``Unparsed`` entries that carry the line number in the text the user has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence, Tuple, Union

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class Line:
    """One line of a log.

    Attributes:
        number: 1 for the first line of the text the user has.
        text: without its line end; blanks and TABs as they were.
    """

    number: int
    text: str


@dataclass(frozen=True)
class Unparsed:
    """A line (or the part of one) that no parser understood, or that must not be guessed.

    Attributes:
        line: number of the line, 1 for the first.
        text: the line as it was read.
        why: one clause: "letter inside a number", "no closing bracket".
    """

    line: int
    text: str
    why: str


Source = Union[str, Sequence[Line]]
"""What every parser takes: a whole text, or lines that were cut out of one."""


def decode(data: bytes) -> str:
    """Bytes of a log file to text: UTF-8 or UTF-16LE (WinDbg's own logs), with or without a mark.

    Bytes that are no text become U+FFFD; only half a UTF-16 character at the end of a log that
    was cut is dropped. Nothing raises.
    """
    if data.startswith(b"\xff\xfe"):
        return _utf_16(data[2:], "utf-16-le")
    if data.startswith(b"\xfe\xff"):
        return _utf_16(data[2:], "utf-16-be")
    if data.startswith(b"\xef\xbb\xbf"):
        data = data[3:]
    head = data[:4096].rstrip(b"\0")  # a crash can leave zeros behind the text
    if len(head) >= 4 and head[1::2].count(0) * 4 >= len(head[1::2]) * 3:
        return _utf_16(data, "utf-16-le")
    return data.decode("utf-8", errors="replace")


def _utf_16(data: bytes, order: str) -> str:
    return data[: len(data) // 2 * 2].decode(order, errors="replace")


def split_lines(text: str) -> Tuple[Line, ...]:
    """Number the lines; CR LF, LF and a lone CR end a line, no other character does."""
    rows = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if rows and not rows[-1]:
        rows.pop()
    return tuple(Line(number, row) for number, row in enumerate(rows, start=1))


def lines_of(source: Source) -> Sequence[Line]:
    """The lines of a source, numbered from 1 when it is a text."""
    return split_lines(source) if isinstance(source, str) else source
