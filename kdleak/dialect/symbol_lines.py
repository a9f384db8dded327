"""Symbols and values: rows of ``x``, answers of ``ln``, ``?`` and ``.formats``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

from kdleak.dialect.addresses import ADDRESS, NamedPlace, parse_address, parse_place
from kdleak.dialect.source import Line, Source, Unparsed, lines_of

_ROW = re.compile(
    rf"[ \t]*(?P<address>{ADDRESS})[ ]+(?P<name>[\w$.@]{{1,64}}!\S[^=(\[]*?)"
    r"(?:[ ]+(?P<rest>[=(\[].*))?\Z"
)
_NEAR = re.compile(
    rf"[ \t]*\((?P<address>{ADDRESS})\)[ ]+(?P<name>[^\s|][^|]*?)[ ]*"
    rf"(?:\|[ ]*(?:\((?P<next_address>{ADDRESS})\)[ ]+(?P<next_name>\S.*?))?[ ]*)?\Z"
)
_EXACT = re.compile(r"[ \t]*Exact matches:[ \t]*\Z")
_EXACT_NAME = re.compile(r"[ ]{2,}(?P<name>[\w$.@]{1,64}!\S[^=]*?)(?:[ ]+(?P<rest>[=(].*))?\Z")
_EVALUATED = re.compile(
    rf"[ \t]*Evaluate expression: (?P<decimal>-?[0-9]{{1,20}}) = (?P<value>{ADDRESS})[ \t]*\Z"
)
_FORMATS = re.compile(r"[ \t]*Evaluate expression:[ \t]*\Z")
_FORMAT = re.compile(
    r"[ \t]+(?P<label>Hex|Decimal|Octal|Binary|Chars|Time|Float|Double):[ ]{1,4}(?P<value>.*)\Z"
)


@dataclass(frozen=True)
class SymbolRow:
    """One row of ``x``, or one exact match of ``ln``.

    Attributes:
        address: of the symbol.
        name: module, name and offset.
        detail: what stands behind it ("= <no type information>", "(void)"), "" if nothing.
        line: number of the line.
    """

    address: int
    name: NamedPlace
    detail: str = ""
    line: int = 0


@dataclass(frozen=True)
class NearSymbols:
    """What ``ln`` prints: the symbol at or below an address, and the one above it.

    Attributes:
        below: with the offset of the address asked about; its address is the symbol's own.
        above: None where none is printed.
        exact: whether the address is the symbol's own.
        line: number of the line.
    """

    below: SymbolRow
    above: Optional[SymbolRow] = None
    exact: bool = False
    line: int = 0


@dataclass(frozen=True)
class Evaluated:
    """What ``?`` or ``.formats`` prints.

    Attributes:
        value: as an unsigned number.
        chars: the ``Chars`` line of ``.formats``: the bytes from the highest to the lowest, dots
            for those that do not print; None for ``?``.
        line: number of the line.
    """

    value: int
    chars: Optional[str] = None
    line: int = 0


@dataclass(frozen=True)
class SymbolLines:
    """All of them in a text."""

    rows: Tuple[SymbolRow, ...] = ()
    near: Tuple[NearSymbols, ...] = ()
    values: Tuple[Evaluated, ...] = ()
    unparsed: Tuple[Unparsed, ...] = ()

    def address_of(self, name: str) -> Optional[int]:
        """Address of ``module!name``, whatever its case; None if no row has it."""
        wanted = name.lower()
        return next((row.address for row in self.rows if str(row.name).lower() == wanted), None)


def parse_symbol_lines(source: Source) -> SymbolLines:
    """Every symbol row and value of a text."""
    lines = lines_of(source)
    rows: List[SymbolRow] = []
    near: List[NearSymbols] = []
    values: List[Evaluated] = []
    index = 0
    while index < len(lines):
        if not starts_symbol_lines(lines, index):
            index += 1
            continue
        found, index = take_symbol_lines(lines, index)
        rows.extend(found.rows)
        near.extend(found.near)
        values.extend(found.values)
    return SymbolLines(tuple(rows), tuple(near), tuple(values))


def starts_symbol_lines(lines: Sequence[Line], index: int) -> bool:
    """Whether the line is a row of ``x``, an answer of ``ln`` or of ``?``."""
    text = lines[index].text
    if "Evaluate expression:" in text:
        return _EVALUATED.match(text) is not None or _FORMATS.match(text) is not None
    return _symbol_row(lines[index]) is not None or (
        "(" in text and "|" in text and _NEAR.match(text.rstrip()) is not None
    )


def take_symbol_lines(lines: Sequence[Line], index: int) -> Tuple[SymbolLines, int]:
    """Read what begins at a line for which ``starts_symbol_lines`` holds."""
    line = lines[index]
    if "Evaluate expression:" in line.text:
        return _take_value(lines, index)
    if _symbol_row(line) is None:
        return _take_near(lines, index)
    rows: List[SymbolRow] = []
    while index < len(lines):
        row = _symbol_row(lines[index])
        if row is None:
            break
        rows.append(row)
        index += 1
    return SymbolLines(tuple(rows)), index


def _symbol_row(line: Line) -> Optional[SymbolRow]:
    if "!" not in line.text:
        return None
    found = _ROW.match(line.text.rstrip())
    if found is None:
        return None
    name = parse_place(found["name"].rstrip())
    if name.offset is not None:  # a row of a stack
        return None
    return SymbolRow(parse_address(found["address"]), name, found["rest"] or "", line.number)


def _take_near(lines: Sequence[Line], index: int) -> Tuple[SymbolLines, int]:
    line = lines[index]
    found = _NEAR.match(line.text.rstrip())
    if found is None:
        return SymbolLines(), index + 1
    below = SymbolRow(parse_address(found["address"]), parse_place(found["name"]), line=line.number)
    above = None
    if found["next_address"]:
        name = parse_place(found["next_name"])
        above = SymbolRow(parse_address(found["next_address"]), name, line=line.number)
    index += 1
    exact = False
    rows: List[SymbolRow] = []
    while index < len(lines):
        text = lines[index].text.rstrip()
        matched = _EXACT_NAME.match(text) if exact else None
        if matched:
            name = parse_place(matched["name"].rstrip())
            rows.append(SymbolRow(below.address, name, matched["rest"] or "", lines[index].number))
        elif _EXACT.match(text) and not exact:
            exact = True
        else:
            break
        index += 1
    return SymbolLines(tuple(rows), (NearSymbols(below, above, exact, line.number),)), index


def _take_value(lines: Sequence[Line], index: int) -> Tuple[SymbolLines, int]:
    line = lines[index]
    found = _EVALUATED.match(line.text)
    if found:
        value = Evaluated(parse_address(found["value"]), None, line.number)
        return SymbolLines(values=(value,)), index + 1
    index += 1
    formats: Dict[str, str] = {}
    while index < len(lines):
        text = lines[index].text
        found = _FORMAT.match(text)
        if found:
            formats[found["label"]] = found["value"]
        elif text.strip() or not _format_follows(lines, index):
            break
        index += 1
    digits = formats.get("Hex", "").strip().replace("`", "")
    if not re.fullmatch(r"[0-9a-f]{8}|[0-9a-f]{16}", digits):
        unparsed = Unparsed(line.number, line.text, "no hexadecimal value below it")
        return SymbolLines(unparsed=(unparsed,)), index
    chars = formats.get("Chars")
    width = len(digits) // 2
    shown = chars[:width] if chars is not None and len(chars) >= width else chars
    return SymbolLines(values=(Evaluated(int(digits, 16), shown, line.number),)), index


def _format_follows(lines: Sequence[Line], index: int) -> bool:
    return index + 1 < len(lines) and _FORMAT.match(lines[index + 1].text) is not None
