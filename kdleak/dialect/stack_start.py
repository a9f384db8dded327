"""Where a stack begins that has no header: which rows cannot be anything else.

Memory dumps, symbol lists and module lists have rows that look nearly like those of a stack.
"""

from __future__ import annotations

import re
from typing import Optional, Sequence

from kdleak.dialect.source import Line
from kdleak.dialect.stack_command import is_stack_command, prompt_above
from kdleak.dialect.stack_frame import Missing, Row
from kdleak.dialect.stack_header import NO_HEADER
from kdleak.dialect.stack_row import read_row

_MAY_BE_ROW = re.compile(r"\s*(?:[0-9a-fA-F]{1,3}\s+)?(?:[0-9a-fA-F]{8}|\(Inline)")
_ADDRESS = r"[0-9a-fA-F]{8}(?:\\?[`'\u2019\u00b4]?[0-9a-fA-F]{8})?"
_TWO_WITH_ONE_BLANK = re.compile(rf"\s*(?:[0-9a-fA-F]{{1,3}}\s+)?{_ADDRESS} {_ADDRESS}\s")
_NUMBERED = re.compile(r"\s*[0-9a-fA-F]{2,3}\s")
_BETWEEN_COLONS = re.compile(rf"\s*(?:[0-9a-fA-F]{{1,3}}\s+)?(?:{_ADDRESS} +){{1,3}}: {_ADDRESS}\s")
_LOOK_AHEAD = 2


def begins_without_header(lines: Sequence[Line], index: int) -> bool:
    """Whether a line is the first row of a stack although no header stands above it."""
    text = lines[index].text
    if not _MAY_BE_ROW.match(text):
        return False
    row = read_row(text, NO_HEADER)
    whole = row is not None and row.missing in (Missing.NOTHING, Missing.BRACKET)
    if row is None or not (whole or _BETWEEN_COLONS.match(text)):
        return False
    if _is_certain(text, row):
        return True
    if _is_log_row(row):
        return row.frame.offset is not None and _log_row_below(lines, index)
    above = prompt_above(lines, index, 4)
    return above is not None and is_stack_command(above.command)


def _is_certain(text: str, row: Row) -> bool:
    """A row whose columns and call site no other output has."""
    frame = row.frame
    if frame.inline:
        return True
    if _BETWEEN_COLONS.match(text):
        return frame.args is not None and (row.missing is not Missing.NOTHING or _named(row))
    if frame.frame_address is None or not _named(row):
        return False
    return _TWO_WITH_ONE_BLANK.match(text) is not None or (
        frame.number is not None and _NUMBERED.match(text) is not None
    )


def _named(row: Row) -> bool:
    frame = row.frame
    if frame.address is not None or frame.offset is not None:
        return True
    return frame.module is not None and frame.symbol is not None


def _is_log_row(row: Row) -> bool:
    """One address and a symbol."""
    frame = row.frame
    return frame.return_address is not None and frame.frame_address is None and not frame.args


def _log_row_below(lines: Sequence[Line], index: int) -> bool:
    """Logs print address and symbol only: two such rows with offsets make a stack."""
    below: Optional[Row] = None
    for position in range(index + 1, min(index + 1 + _LOOK_AHEAD, len(lines))):
        if lines[position].text.strip():
            below = read_row(lines[position].text, NO_HEADER)
            break
    return (
        below is not None and below.frame.frame_address is None and below.frame.offset is not None
    )
