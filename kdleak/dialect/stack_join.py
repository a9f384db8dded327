"""A row and the next line: are they one?

Mail programs break rows at a blank, terminals at their last column, wherever that is. Two texts
are joined only where the result is a better row than the first one was.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Optional

from kdleak.dialect.stack_frame import Missing, Row, Where
from kdleak.dialect.stack_header import StackHeader
from kdleak.dialect.stack_row import read_call_site, read_row
from kdleak.dialect.symbol import blanks_belong, parse_symbol

TERMINAL_WIDTHS = frozenset({80, 100, 120, 132, 160})
"""Columns of usual terminals."""

_OFFSET_TAIL = re.compile(r"\+0x[0-9a-fA-F]+(?:\s|\Z)")
_CUT_OFFSET = re.compile(r"\+(?:0x?)?\Z")
_HEX_TAIL = re.compile(r"[x0-9a-fA-F]+(?:\s|\Z)")
_SUFFIX = re.compile(r"\s*(?:\[+[^\[\]]* @ [0-9]+\]\s*\Z|\((?:FPO|CONV|TrapFrame|Inline|!))")


class Open(NamedTuple):
    """The row read last; more of it may follow.

    Attributes:
        text: the row so far.
        physical: the last line it came from, as it was.
        row: what it was read as.
        parts: lines it was joined from.
    """

    text: str
    physical: str
    row: Row
    parts: int = 1

    @property
    def where(self) -> Where:
        """Marks for the joined frame."""
        frame = self.row.frame
        return Where(frame.line, frame.uncertain, True, frame.after_gap)


class Joined(NamedTuple):
    """A row joined from two lines."""

    text: str
    row: Row
    wrapped_at: int = 0
    """Width of the terminal that broke it, 0 where something else did."""


def join_row(above: Open, below: str, header: StackHeader, known_width: int) -> Optional[Joined]:
    """Join a row with the line below it.

    Args:
        above: the row.
        below: the next line with text.
        header: the header above the rows.
        known_width: terminal width seen in this stack, 0 if none.

    Returns:
        The joined row, or None when the line is none of its parts.
    """
    tail = below.rstrip()
    if breaks_at(above.physical, known_width):
        # What a terminal cut off begins where it begins, behind the indentation of the block.
        indent = len(above.text) - len(above.text.lstrip())
        tail = tail[indent:] if not tail[:indent].strip() else tail.lstrip()
    else:
        tail = tail.lstrip()
    if above.row.missing is Missing.ARGUMENTS:
        return _complete_columns(above, tail, header)
    if above.row.missing is Missing.SYMBOL:
        return _add_symbol(above, tail, header)
    if above.row.missing is Missing.BRACKET:
        return _close_bracket(above, tail, header)
    return _lengthen(above, tail, header, known_width)


def _read(text: str, header: StackHeader, where: Where) -> Optional[Row]:
    return read_row(text, header, where) or read_call_site(text, where)


def breaks_at(physical: str, known_width: int = 0) -> int:
    """The terminal width at which a line was broken, 0 when it ends elsewhere."""
    length = len(physical)
    if length in TERMINAL_WIDTHS or (known_width and length == known_width):
        return length
    unindented = len(physical.lstrip())
    return length if unindented in TERMINAL_WIDTHS else 0


def _complete_columns(above: Open, tail: str, header: StackHeader) -> Optional[Joined]:
    have = len(above.row.frame.args or ())
    width = breaks_at(above.physical)
    for glue in ("", " ") if width else (" ",):
        candidate = f"{above.text.rstrip()} {tail.lstrip()}" if glue else above.text + tail
        joined = read_row(candidate, header, above.where)
        if joined is None:
            continue
        args = len(joined.frame.args or ())
        if joined.missing is not Missing.ARGUMENTS or args > have:
            return Joined(candidate, joined, 0 if glue else width)
    return None


def _add_symbol(above: Open, tail: str, header: StackHeader) -> Optional[Joined]:
    if tail.endswith(":"):
        return None  # the label of a break
    tail = tail.lstrip()
    expression = parse_symbol(tail)
    if expression is None or not (expression.certain or expression.open):
        return None
    candidate = f"{above.text.rstrip()} {tail}"
    joined = read_row(candidate, header, above.where)
    return None if joined is None else Joined(candidate, joined)


def _close_bracket(above: Open, tail: str, header: StackHeader) -> Optional[Joined]:
    """Parameter lists of ``kP`` have one line each; paths break at blanks or anywhere."""
    width = breaks_at(above.physical)
    head = above.text if width else above.text.rstrip()
    glue = "" if width or head.endswith("(") else " "
    candidate = head + glue + tail
    joined = _read(candidate, header, above.where)
    return None if joined is None else Joined(candidate, joined, width)


def _lengthen(above: Open, tail: str, header: StackHeader, known_width: int) -> Optional[Joined]:
    """The row has a call site already: its tail, or a suffix, may stand alone below it."""
    width = breaks_at(above.physical, known_width)
    bare = above.text if width else above.text.rstrip()
    if _SUFFIX.match(tail):
        joined = _read(f"{bare} {tail}", header, above.where)
        return None if joined is None or joined.rest else Joined(f"{bare} {tail}", joined)
    frame = above.row.frame
    certain = (frame.offset is None and _OFFSET_TAIL.match(tail) is not None) or (
        _CUT_OFFSET.search(bare) is not None and _HEX_TAIL.match(tail) is not None
    )
    if not certain and not (width and _may_be_tail(bare, tail, has_source=bool(frame.source))):
        return None
    joined = _read(bare + tail, header, above.where)
    if joined is None or joined.missing is not Missing.NOTHING or joined.rest:
        return None
    if not joined.frame.certain_symbol:
        return None
    return Joined(bare + tail, joined, len(above.physical))


def _may_be_tail(text: str, tail: str, *, has_source: bool) -> bool:
    """A line that a terminal may have cut off: no words of its own, no label, no other symbol."""
    if tail.endswith(":") or has_source:
        return False
    first = tail.split(None, 1)[0]
    if "!" in first and "!" in text and not first.startswith("!"):
        return False
    rest = tail[len(first) :].strip()
    return not rest or rest[0] in "[(" or blanks_belong((text + tail).rpartition("!")[2])
