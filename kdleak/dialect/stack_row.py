"""One row of a stack listing: its columns, whatever the machine and the command.

Which columns a row has follows from the row itself: how wide its addresses are, how many there
are, and whether colons part them. The header above decides only where two readings are possible.
"""

from __future__ import annotations

import re
from typing import Optional, Tuple

from kdleak.dialect.stack_columns import Columns, columns_of, read_addresses
from kdleak.dialect.stack_frame import NOWHERE, Missing, Row, StackFrame, Where
from kdleak.dialect.stack_header import StackHeader
from kdleak.dialect.symbol import LONG_WAY, SymbolExpression, address_of, parse_symbol

_HALF = "[0-9a-f]{8}"
_WIDE = f"{_HALF}`{_HALF}"
_CALL_SITE = (
    r"([\w.$]+)!([\w:$~@?.]+)(?:\+0x([0-9a-f]+))?(?: \[([^\[\]@]{1,260} @ [0-9]{1,7})\])? ?\Z"
)
_PLAIN_64 = re.compile(
    rf" ?(?:([0-9a-f]{{2,3}}) )?(?:({_WIDE}) )?({_WIDE})"
    rf"(?: {{1,5}}: ({_WIDE}) ({_WIDE}) ({_WIDE}) ({_WIDE}) : | {{1,5}})"
    rf"{_CALL_SITE}"
)
"""Rows as the debugger prints them with symbols on a 64-bit machine: the bulk of every hunt."""

_PLAIN_32 = re.compile(
    rf"(?:([0-9a-f]{{2,3}}) )?({_HALF}) ({_HALF}) (?:({_HALF}) ({_HALF}) ({_HALF}) )?"
    rf"{_CALL_SITE}"
)

_NUMBER = re.compile(r"\s*([0-9a-fA-F]{1,3})(?=\s)")
_MEMORY = re.compile(r"\s*([0-9a-fA-F]{1,7})(?=\s)")
_INLINE = re.compile(
    r"\s*(?:-[-`'\u2019]{4,}\s*)?(?::\s*)?\(Inline(?P<inside>[^()]{0,64})\)"
    r"(?:\s*(?:-[-`'\u2019\u2013\u2014]{4,}(?=\s|\Z)|:(?=\s|\Z)))*"
)
_AT = re.compile(r"@\s*([0-9a-fA-F]{8}(?:[`']?[0-9a-fA-F]{8})?)")
_IDENTIFIER = re.compile(r"[A-Za-z_][\w.$-]*\Z")
_LONGEST_ROW = 16384
_NO_COLUMNS = Columns(None, None, None)


def read_row(text: str, header: StackHeader, where: Where = NOWHERE) -> Optional[Row]:
    """Read one row with addresses (or an inline row).

    Args:
        text: the row, joined again if it was broken.
        header: the header above it.
        where: line number and the marks that the listing puts on the frame.

    Returns:
        The row, or None when the text is none.
    """
    plain = None if header.memory else read_plain_row(text, where)
    if plain is not None or len(text) > _LONGEST_ROW:
        return plain
    number, memory, position = _leading_numbers(text, header)
    inline = _INLINE.match(text, position)
    if inline:
        return _inline_row(text, inline, number, where)
    return _address_row(text, position, header, (number, memory), where)


def _address_row(
    text: str,
    position: int,
    header: StackHeader,
    numbers: Tuple[Optional[int], Optional[int]],
    where: Where,
) -> Optional[Row]:
    tokens = read_addresses(text, position)
    if tokens is None:
        return None
    rest = text[tokens.end :].strip()
    columns = columns_of(tokens, header, has_symbol=bool(rest))
    if columns is None or (columns.missing is not Missing.NOTHING and rest):
        return None
    expression = parse_symbol(rest)
    if expression is None:
        return None
    missing = columns.missing
    if missing is Missing.NOTHING and expression.open:
        missing = Missing.BRACKET
    elif missing is Missing.NOTHING and not rest:
        missing = Missing.SYMBOL
    number, memory = numbers
    frame = _frame(number, columns, expression, where, memory=memory)
    return Row(frame, missing, tokens.width, expression.rest)


def read_call_site(text: str, where: Where = NOWHERE) -> Optional[Row]:
    """Read one row of ``kc``: a call site, with a frame number or without.

    A name alone is the module: ``kc`` leaves the offset out, and that is all there is to print
    where a module has no symbols.
    """
    found = _NUMBER.match(text)
    inline = _INLINE.match(text, found.end() if found else 0)
    start = inline or found
    rest = text[start.end() :].strip() if start else text.strip()
    if not rest or rest.endswith(":") or len(rest) > _LONGEST_ROW:
        return None
    expression = parse_symbol(rest)
    if expression is None:
        return None
    if not expression.certain and _IDENTIFIER.match(rest):
        expression = SymbolExpression(module=rest)
    elif not expression.certain and not (found or expression.open):
        return None
    number = int(found.group(1), 16) if found else None
    frame = _frame(number, _NO_COLUMNS, expression, where, inline=inline is not None)
    return Row(frame, Missing.BRACKET if expression.open else Missing.NOTHING, 0, expression.rest)


def read_plain_row(text: str, where: Where = NOWHERE) -> Optional[Row]:
    """The common forms in one step each; None for everything that needs a closer look."""
    found = _PLAIN_64.match(text)
    if found:
        number, first, second, one, two, three, four, *names = found.groups()
        module, symbol, offset, source = names
        if (first is None and one is None) or LONG_WAY.search(symbol):
            return None
        args: Optional[Tuple[int, ...]] = None
        if one is not None:
            args = (
                int(one.replace("`", ""), 16),
                int(two.replace("`", ""), 16),
                int(three.replace("`", ""), 16),
                int(four.replace("`", ""), 16),
            )
        width = 8
        frame_address = None if first is None else int(first.replace("`", ""), 16)
        return_address = int(second.replace("`", ""), 16)
    else:
        found = _PLAIN_32.match(text)
        if found is None:
            return None
        number, first, second, one, two, three, *names = found.groups()
        module, symbol, offset, source = names
        if LONG_WAY.search(symbol):
            return None
        args = None if one is None else (int(one, 16), int(two, 16), int(three, 16))
        width = 4
        frame_address = int(first, 16)
        return_address = int(second, 16)
    line, uncertain, wrapped, after_gap = where
    frame = StackFrame(
        None if number is None else int(number, 16),
        frame_address,
        return_address,
        args,
        module,
        symbol,
        None if offset is None else int(offset, 16),
        source=source,
        uncertain=uncertain,
        wrapped=wrapped,
        line=line,
        after_gap=after_gap,
    )
    return Row(frame, Missing.NOTHING, width)


def _leading_numbers(text: str, header: StackHeader) -> Tuple[Optional[int], Optional[int], int]:
    """Frame number and ``kf``'s column of bytes, and where the addresses begin."""
    number: Optional[int] = None
    memory: Optional[int] = None
    position = 0
    if header.numbered or not header.memory:
        found = _NUMBER.match(text)
        if found:
            number = int(found.group(1), 16)
            position = found.end()
    if header.memory:
        found = _MEMORY.match(text, position)
        if found:
            memory = int(found.group(1), 16)
            position = found.end()
    return number, memory, position


def _inline_row(
    text: str, inline: re.Match[str], number: Optional[int], where: Where
) -> Optional[Row]:
    rest = text[inline.end() :].strip()
    expression = parse_symbol(rest)
    if expression is None or not (rest and (expression.certain or expression.symbol)):
        return None
    at_address = _AT.search(inline.group("inside"))
    frame = _frame(
        number,
        _NO_COLUMNS,
        expression,
        where,
        inline=True,
        inline_address=address_of(at_address.group(1)) if at_address else None,
    )
    missing = Missing.BRACKET if expression.open else Missing.NOTHING
    return Row(frame, missing, 0, expression.rest)


def _frame(
    number: Optional[int],
    columns: Columns,
    expression: SymbolExpression,
    where: Where,
    *,
    memory: Optional[int] = None,
    inline: bool = False,
    inline_address: Optional[int] = None,
) -> StackFrame:
    return StackFrame(
        number,
        columns.frame_address,
        columns.return_address,
        columns.args,
        expression.module,
        expression.symbol,
        expression.offset,
        inline or expression.inline_address is not None,
        expression.source,
        expression.parameters,
        expression.trap_frame,
        expression.address,
        where.uncertain,
        where.wrapped,
        where.line,
        expression.fpo,
        expression.convention,
        columns.backing_store,
        memory,
        where.after_gap,
        expression.inline_address if inline_address is None else inline_address,
    )
