"""The address columns of a row: which is which.

Columns follow from the row itself: the width of its addresses, how many there are, and where
colons stand. The header decides only where two readings are possible.
"""

from __future__ import annotations

import re
from typing import List, NamedTuple, Optional, Tuple

from kdleak.dialect.stack_frame import Missing
from kdleak.dialect.stack_header import HeaderKind, StackHeader
from kdleak.dialect.symbol import address_of

_PART = r"[0-9a-fA-F]{8}"
_TOKEN = re.compile(
    rf"\s*(?:({_PART}(?:(?:\\?[`'\u2019\u00b4])?{_PART})?)(?=[\s:]|\Z)|(:)(?=[\s]|\Z))"
)
_MOST_ADDRESSES = 8


class Columns(NamedTuple):
    """The address columns of a row by their meaning."""

    frame_address: Optional[int]
    return_address: Optional[int]
    args: Optional[Tuple[int, ...]]
    backing_store: Optional[int] = None
    missing: Missing = Missing.NOTHING


class AddressTokens(NamedTuple):
    """The addresses at the start of a row."""

    values: List[int]
    colons: List[int]
    """How many addresses stand before each colon."""
    width: int
    """Bytes of an address."""
    end: int
    """Where the rest of the row begins."""


def read_addresses(text: str, position: int) -> Optional[AddressTokens]:
    """Read addresses and colons until something else comes; None where there is no address."""
    values: List[int] = []
    colons: List[int] = []
    width = 0
    while len(values) <= _MOST_ADDRESSES and len(colons) <= 2:
        found = _TOKEN.match(text, position)
        if found is None:
            break
        digits = found.group(1)
        if digits is None:
            colons.append(len(values))
        else:
            if len(colons) == 2:
                break  # behind the second colon stands the call site, even a bare address
            this = 4 if len(digits) == 8 else 8
            if width and width != this:
                return None
            width = this
            values.append(address_of(_backtick(digits)))
        position = found.end()
    if not values or not width or len(colons) > 2 or len(values) > _MOST_ADDRESSES:
        return None
    return AddressTokens(values, colons, width, position)


def _backtick(digits: str) -> str:
    return digits.replace("\u2019", "`").replace("\u00b4", "`") if len(digits) > 16 else digits


def columns_of(
    tokens: AddressTokens, header: StackHeader, *, has_symbol: bool
) -> Optional[Columns]:
    """Give the addresses of a row their meaning; None where no row has that many."""
    if tokens.colons:
        return _columns_by_colons(tokens.values, tokens.colons, has_symbol)
    if tokens.width == 4:
        return _columns_32(tokens.values, len(tokens.values), has_symbol)
    return _columns_64(tokens.values, len(tokens.values), header, has_symbol)


def _columns_by_colons(values: List[int], colons: List[int], has_symbol: bool) -> Optional[Columns]:
    """``[frame [backing store]] return : arguments : call site``."""
    head = values[: colons[0]]
    args = tuple(values[colons[0] :])
    if not 1 <= len(head) <= 3 or len(args) > 4:
        return None
    missing = Missing.NOTHING
    if len(args) < 4:
        if has_symbol or len(colons) == 2:
            return None
        missing = Missing.ARGUMENTS
    elif len(colons) == 1 and not has_symbol:
        missing = Missing.ARGUMENTS  # the second colon is still to come
    return _from_head(head, args, missing)


def _from_head(head: List[int], args: Optional[Tuple[int, ...]], missing: Missing) -> Columns:
    if len(head) == 1:
        return Columns(None, head[0], args, None, missing)
    if len(head) == 2:
        return Columns(head[0], head[1], args, None, missing)
    return Columns(head[0], head[2], args, head[1], missing)


def _columns_32(values: List[int], count: int, has_symbol: bool) -> Optional[Columns]:
    if count == 2:
        return Columns(values[0], values[1], None)
    if count == 5:
        return Columns(values[0], values[1], tuple(values[2:]))
    if count in (3, 4) and not has_symbol:
        return Columns(values[0], values[1], tuple(values[2:]), None, Missing.ARGUMENTS)
    if count == 1 and has_symbol:
        return Columns(None, values[0], None)
    return None


def _columns_64(
    values: List[int], count: int, header: StackHeader, has_symbol: bool
) -> Optional[Columns]:
    """Without colons: the number of addresses tells, with the header's help."""
    itanium = header.kind is HeaderKind.ITANIUM
    leading = 3 if itanium else 1 if header.kind is HeaderKind.RETURN_ADDRESS else 2
    if has_symbol:
        heads = {1: 1, 2: 2, 3: 3, 5: 1, 6: 2, 7: 3}
        if count not in heads:
            return None
        leading = heads[count]
        args = tuple(values[leading:]) if count > 3 else None
        return _from_head(values[:leading], args, Missing.NOTHING)
    if count == leading:
        return _from_head(values, None, Missing.NOTHING)
    if leading < count < leading + 4:
        return _from_head(values[:leading], tuple(values[leading:]), Missing.ARGUMENTS)
    if count == leading + 4:
        return _from_head(values[:leading], tuple(values[leading:]), Missing.NOTHING)
    return None
