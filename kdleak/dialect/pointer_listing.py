"""What ``dps``, ``dds``, ``dqs`` and ``kd`` print: memory as pointers, with the nearest symbols.

A second-best stack where the debugger cannot unwind: every value that lies in a module may be a
return address, and may be none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, NamedTuple, Optional, Sequence, Tuple

from kdleak.dialect.prompt import is_prompt
from kdleak.dialect.source import Line, Source, Unparsed, lines_of
from kdleak.dialect.stack_command import command_above, prompt_above
from kdleak.dialect.stack_messages import glued_message, is_gap, is_message, take_message
from kdleak.dialect.symbol import SymbolExpression, address_of, parse_symbol

_COMMAND = re.compile(r"(?:d[dpq]s|kd)\b", re.IGNORECASE)
_HALF = "[0-9a-fA-F]{8}"
_ROW = re.compile(
    rf"\s*({_HALF}(?:[`']?{_HALF})?)  ({_HALF}(?:[`']?{_HALF})?|[?]{{8}}(?:[`']?[?]{{8}})?)"
    r"(?=\s|\Z)(.*)\Z"
)
_STRIDES = (4, 8)
_LONGEST_ROW = 4096


@dataclass(frozen=True)
class PointerRow:
    """One pointer.

    Attributes:
        address: where it was read.
        value: what was read; None where the memory is not there.
        module: module the value lies in; None for data.
        symbol: nearest name below the value; None for ``module+0x...``.
        offset: bytes from the symbol, from the module base without one.
        source: ``path @ line``.
        line: number of the line.
    """

    address: int
    value: Optional[int]
    module: Optional[str] = None
    symbol: Optional[str] = None
    offset: Optional[int] = None
    source: Optional[str] = None
    line: int = 0


@dataclass(frozen=True)
class PointerListing:
    """One listing.

    Attributes:
        command: as typed, None where it is not in the text.
        rows: in their order.
        warnings: messages between the rows, as printed.
        line: number of the line it begins in.
        unparsed: text behind rows that is no symbol.
    """

    command: Optional[str]
    rows: Tuple[PointerRow, ...]
    warnings: Tuple[str, ...] = ()
    line: int = 0
    unparsed: Tuple[Unparsed, ...] = ()


class _Read(NamedTuple):
    address: int
    value: Optional[int]
    expression: Optional[SymbolExpression]
    rest: str


def starts_pointer_listing(lines: Sequence[Line], index: int) -> bool:
    """Whether a listing begins here: a row below its command, or rows one pointer apart."""
    first = _read(_without_message(lines[index].text))
    if first is None:
        return False
    above = prompt_above(lines, index, 4)
    if above is not None:
        return _COMMAND.match(above.command) is not None
    second = _read(_without_message(lines[index + 1].text)) if index + 1 < len(lines) else None
    return (
        second is not None
        and second.address - first.address in _STRIDES
        and any(row.expression is not None and row.expression.certain for row in (first, second))
    )


def take_pointer_listing(
    lines: Sequence[Line], index: int, command: Optional[str] = None
) -> Tuple[PointerListing, int]:
    """Read the listing that begins at a line; the second value is the first line behind it."""
    if command is None:
        command = command_above(lines, index)
    if command is not None and not _COMMAND.match(command):
        command = None
    reader = _Reader(lines, index)
    end = reader.read()
    listing = PointerListing(
        command,
        tuple(reader.rows),
        tuple(reader.warnings),
        lines[index].number,
        tuple(reader.unparsed),
    )
    return listing, end


class _Reader:
    """A listing while it is read."""

    def __init__(self, lines: Sequence[Line], index: int) -> None:
        self.rows: List[PointerRow] = []
        self.warnings: List[str] = []
        self.unparsed: List[Unparsed] = []
        self._lines = lines
        self._index = index

    def read(self) -> int:
        position = self._index
        end = position + 1
        blank = False
        while position < len(self._lines):
            text = self._lines[position].text
            if not text.strip():
                if blank:
                    break
                blank = True
                position += 1
                continue
            following = position + 1 if is_gap(text) else self._take(position)
            if following < 0:
                break
            blank = False
            position = following
            end = end if is_gap(text) else position
        return end

    def _take(self, position: int) -> int:
        line = self._lines[position]
        glued = glued_message(line.text)
        read = _read(line.text[:glued] if glued > 0 else line.text)
        if read is not None:
            self.rows.append(_row(read, line.number))
            if read.rest:
                self.unparsed.append(Unparsed(line.number, line.text, "text behind the value"))
            return self._message(position, line.text[glued:]) if glued > 0 else position + 1
        if is_message(line.text):
            return self._message(position, "")
        if self.rows and self.rows[-1].module is None:
            expression = _late_symbol(line)
            if expression is not None:
                last = self.rows[-1]
                self.rows[-1] = _row(_Read(last.address, last.value, expression, ""), last.line)
                return position + 1
        return -1

    def _message(self, position: int, text: str) -> int:
        message, following = take_message(self._lines, position, text)
        if message is not None:
            self.warnings.append(message)
        return following


def parse_pointer_listings(source: Source) -> Tuple[PointerListing, ...]:
    """Find and read every listing of a text."""
    lines = lines_of(source)
    found: List[PointerListing] = []
    index = 0
    while index < len(lines):
        if starts_pointer_listing(lines, index):
            listing, index = take_pointer_listing(lines, index)
            found.append(listing)
        else:
            index += 1
    return tuple(found)


def _without_message(text: str) -> str:
    glued = glued_message(text)
    return text[:glued] if glued > 0 else text


def _read(text: str) -> Optional[_Read]:
    if len(text) > _LONGEST_ROW:
        return None
    found = _ROW.match(text)
    if found is None:
        return None
    address, value, rest = found.groups()
    rest = rest.strip()
    expression = parse_symbol(rest) if rest else None
    if expression is not None and (expression.address is not None or not expression.certain):
        expression = None
    if rest and expression is None:
        return None  # a dump with more columns, not one of pointers
    return _Read(
        address_of(address),
        None if "?" in value else address_of(value),
        expression,
        expression.rest if expression else "",
    )


def _late_symbol(line: Line) -> Optional[SymbolExpression]:
    """The symbol of the row above, which a message pushed to a line of its own."""
    text = line.text.strip()
    if text.endswith(":") or is_prompt(line.text):
        return None
    expression = parse_symbol(text)
    if expression is None or not expression.certain or expression.address is not None:
        return None
    return expression


def _row(read: _Read, line: int) -> PointerRow:
    expression = read.expression or SymbolExpression()
    return PointerRow(
        read.address,
        read.value,
        expression.module,
        expression.symbol,
        expression.offset,
        expression.source,
        line,
    )
