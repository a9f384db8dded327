"""Reads the lines of one stack: rows, what stands between them, and rows broken in two.

A row is kept open until the next line is seen, because a terminal or a mail program may have
moved its end there. Each line is looked at once; a row is joined from a bounded number of lines.
"""

from __future__ import annotations

import re
from typing import List, Optional, Sequence

from kdleak.dialect.place import is_instruction
from kdleak.dialect.prompt import is_prompt
from kdleak.dialect.source import Line, Unparsed
from kdleak.dialect.stack_command import is_call_site_command
from kdleak.dialect.stack_frame import Missing, Row, StackFrame, Where
from kdleak.dialect.stack_header import NO_HEADER, HeaderKind, StackHeader, read_header
from kdleak.dialect.stack_join import Joined, Open, breaks_at, join_row
from kdleak.dialect.stack_messages import (
    casts_doubt,
    glued_message,
    is_gap,
    is_interlude,
    is_message,
    take_message,
)
from kdleak.dialect.stack_row import read_call_site, read_plain_row, read_row
from kdleak.dialect.stack_start import begins_without_header

_MOST_BLANK_LINES = 2
_MOST_LINES_STEPPED_OVER = 48
_LOOK_AHEAD = 3
_MOST_PARTS = 6
_MOST_PARAMETER_LINES = 64
_BREAK = re.compile(
    r"\s*(?:\(?[0-9a-f.]*\)?:?\s*Break instruction exception|Breakpoint \d+ hit|"
    r"\*\*\* Fatal System Error)"
)
_ADDRESS_LIKE = re.compile(
    r"\s*(?:\w{1,3}\s+)?(?:[0-9a-fA-F]{8}|(?=\w*[0-9])\w{8})(?:[`']?\w{8})?[\s:]"
)
"""The beginning of a row, even where letters stand for digits."""

_REMARKED_ROW = re.compile(r"[ \t]*#[ \t]{1,4}(?=[0-9a-f]{2,3}[ \t]|[0-9a-f]{8}|\(Inline)")
"""The author's ``#`` in front of one row."""

_HEADER_TAIL = re.compile(r"[ \t]*:?[ \t]*Call Site[ \t]*\Z")
"""What a terminal cuts off a header: its columns are wider than 80."""


class StackReader:
    """One stack while it is read.

    Attributes:
        header: the header above the rows, ``NO_HEADER`` where there is none.
        frames: rows read.
        warnings: messages read.
        unparsed: damaged rows, and text behind rows that is no part of them.
        width: bytes of the printed addresses, 0 where none is printed.
        address_only: rows print their own address and the symbol, and no return address.
        refused: a line that should have been a row was none.
    """

    def __init__(self, lines: Sequence[Line], index: int, command: str) -> None:
        self.header: StackHeader = NO_HEADER
        self.frames: List[StackFrame] = []
        self.warnings: List[str] = []
        self.unparsed: List[Unparsed] = []
        self.width = 0
        self.address_only = False
        self.refused = False
        self._lines = lines
        self._index = index
        self._call_sites = is_call_site_command(command)
        self._open: Optional[Open] = None
        self._uncertain = False
        self._gap = False
        self._blanks = 0
        self._stepped_over = 0
        self._wrap_width = 0
        self._end = index + 1

    def read(self) -> int:
        """Read to the end of the stack.

        Returns:
            The index of the first line that is not its own.
        """
        lines = self._lines
        position = self._index
        while position < len(lines):
            text = lines[position].text
            where = Where(lines[position].number, self._uncertain, False, self._gap)
            row = read_plain_row(text, where) if not self.header.memory else None
            if row is None or self._is_cut():
                following = self._read_line(position, text, where)
                if following < 0:
                    break
                position = following
                continue
            if self._begins_anew(row):
                break
            self._take_row(row, text, position)
            position += 1
        self._close()
        self.unparsed.sort(key=lambda entry: entry.line)
        return self._end

    def _is_cut(self) -> bool:
        return self._open is not None and self._open.row.missing is Missing.ARGUMENTS

    def _read_line(self, position: int, text: str, where: Where) -> int:
        """Read anything but a plain row. Returns the next line to look at, -1 at the end."""
        if not text or text.isspace():
            self._blanks += 1
            return position + 1 if self._blanks <= _MOST_BLANK_LINES else -1
        joined = self._join(position, text) if self._is_cut() else 0
        if joined:
            return joined
        if is_message(text):
            return self._take_message(position, "")
        remarked = _REMARKED_ROW.match(text) if self.frames or self._open else None
        text = text[remarked.end() :] if remarked else text
        glued = glued_message(text)
        row = read_row(text[:glued] if glued > 0 else text, self.header, where)
        if row is None:
            return self._read_other(position, self._lines[position].text, where)
        if self._begins_anew(row):
            return -1
        self._take_row(row, text[:glued] if glued > 0 else text, position)
        # The message was printed while the debugger looked for the row's symbol.
        return self._take_message(position, text[glued:]) if glued > 0 else position + 1

    def _read_other(self, position: int, text: str, where: Where) -> int:
        """Read a line that is no row with addresses."""
        header = read_header(text)
        if header is not None:
            return self._take_header(header, position)
        if is_prompt(text) or _BREAK.match(text):
            return -1
        joined = self._join(position, text) or self._take_halves(position, text, where)
        if joined:
            return joined
        row = read_call_site(text, where) if self._reads_call_sites() else None
        if row is not None and (row.frame.symbol or row.frame.address is not None or self._dense()):
            self._take_row(row, text, position)
            return position + 1
        return self._step_over(position, text)

    def _dense(self) -> bool:
        """No blank line stands above this one: a lone word may still be a module of ``kc``."""
        return not (self._blanks and (self.frames or self._open))

    def _reads_call_sites(self) -> bool:
        if self.header.kind is HeaderKind.CALL_SITE:
            return True
        return self._call_sites and self.header.kind is HeaderKind.NONE

    def _take_header(self, header: StackHeader, position: int) -> int:
        if self._is_header_tail(position):
            self._end = position + 1
            return position + 1
        if (
            self.frames
            or self._open
            or self.header.kind
            not in (
                HeaderKind.NONE,
                HeaderKind.STACK_TEXT,
            )
        ):
            return -1
        self.header = header
        self._blanks = 0
        self._end = position + 1
        return position + 1

    def _is_header_tail(self, position: int) -> bool:
        """Whether a terminal moved the end of the header above to this line."""
        return (
            position == self._index + 1
            and self.header.kind is not HeaderKind.CALL_SITE
            and breaks_at(self._lines[self._index].text) > 0
            and _HEADER_TAIL.match(self._lines[position].text) is not None
        )

    def _begins_anew(self, row: Row) -> bool:
        """Frame 0 below other frames is another stack."""
        return row.frame.number == 0 and (self._open is not None or bool(self.frames))

    def _take_row(self, row: Row, text: str, position: int) -> None:
        self._close()
        self._open = Open(text, text, row)
        self._gap = False
        self._blanks = 0
        self._stepped_over = 0
        self._end = position + 1
        if row.width:
            self.width = self.width or row.width
            if row.frame.frame_address is None and row.frame.args is None:
                self.address_only = self.header.kind is HeaderKind.NONE

    def _take_message(self, position: int, text: str) -> int:
        message, following = take_message(self._lines, position, text)
        if message is not None:
            self.warnings.append(message)
            self._uncertain = self._uncertain or casts_doubt(message)
        self._blanks = 0
        self._end = following
        return following

    def _join(self, position: int, text: str) -> int:
        """Take a line as the rest of the row above it; 0 when it is none."""
        above = self._open
        if above is None:
            return 0
        if above.row.missing is Missing.BRACKET:
            return self._join_to_bracket(above, position)
        if above.parts >= _MOST_PARTS or (self._blanks and above.row.missing is Missing.NOTHING):
            return 0
        joined = join_row(above, text, self.header, self._wrap_width)
        if joined is None:
            return 0
        self._keep(Open(joined.text, text, joined.row, above.parts + 1), joined)
        self._end = position + 1
        return position + 1

    def _join_to_bracket(self, above: Open, position: int) -> int:
        """Join lines until the bracket closes; 0 when it does not before another row."""
        parameters = above.text.count("(") > above.text.count(")")
        most = _MOST_PARAMETER_LINES if parameters else _MOST_PARTS
        for below in range(position, min(position + most, len(self._lines))):
            text = self._lines[below].text
            if not text.strip():
                continue
            if (below > position or self._reads_call_sites()) and self._is_own(text):
                return 0
            joined = join_row(above, text, self.header, self._wrap_width)
            if joined is None:
                return 0
            above = Open(joined.text, text, joined.row, above.parts + 1)
            if joined.row.missing is not Missing.BRACKET:
                self._keep(above, joined)
                self._end = below + 1
                return below + 1
        return 0

    def _is_own(self, text: str) -> bool:
        """Whether a line is something by itself, not the rest of a row."""
        return (
            read_row(text, self.header) is not None
            or is_message(text)
            or is_prompt(text)
            or read_header(text) is not None
            or ("!" in text and self._reads_call_sites() and read_call_site(text) is not None)
        )

    def _take_halves(self, position: int, text: str, where: Where) -> int:
        """Read a row that a terminal cut inside an address; 0 when it is none."""
        if not breaks_at(text, self._wrap_width) or not _ADDRESS_LIKE.match(text):
            return 0
        whole = text
        indent = len(text) - len(text.lstrip())
        for below in range(position + 1, min(position + _MOST_PARTS, len(self._lines))):
            # What a terminal cut off begins where it begins, behind the indentation of the block.
            part = self._lines[below].text
            whole += part[indent:] if not part[:indent].strip() else part
            row = read_row(whole, self.header, where._replace(wrapped=True))
            if row is not None and not self._begins_anew(row):
                self._wrap_width = len(text)
                self._take_row(row, whole, below)
                self._open = Open(whole, self._lines[below].text, row, below - position + 1)
                return below + 1
        return 0

    def _keep(self, row: Open, joined: Joined) -> None:
        if joined.wrapped_at:
            self._wrap_width = joined.wrapped_at
        self._open = row
        if joined.row.width:
            self.width = self.width or joined.row.width
        self._blanks = 0

    def _step_over(self, position: int, text: str) -> int:
        """Pass a line that is no part of the stack, if the stack goes on below it."""
        if is_gap(text):
            self._gap = True
            self._blanks = 0
            return position + 1
        self._stepped_over += 1
        if self._stepped_over > _MOST_LINES_STEPPED_OVER:
            return -1
        if is_interlude(text) or (self._stepped_over > 1 and _is_place(text)):
            self._blanks = 0
            return position + 1
        if not self._row_below(position):
            self.refused = not self.frames and self._open is None
            return -1
        line = self._lines[position]
        why = "a damaged row" if _ADDRESS_LIKE.match(text) else "no row of a stack"
        self.unparsed.append(Unparsed(line.number, line.text, why))
        self._gap = self._gap or why == "a damaged row"
        self._blanks = 0
        return position + 1

    def _row_below(self, position: int) -> bool:
        """Whether another row stands right below, so that one strange line ends nothing."""
        if not self.frames and self._open is None and self.header is NO_HEADER:
            return False
        last = min(position + 1 + _LOOK_AHEAD, len(self._lines))
        for below in range(position + 1, last):
            text = self._lines[below].text
            if text.strip():
                if is_prompt(text) or not begins_without_header(self._lines, below):
                    return False
                row = read_row(text, self.header)
                return row is not None and not self._begins_anew(row)
        return False

    def _close(self) -> None:
        """The open row is complete, or will never be."""
        above = self._open
        if above is None:
            return
        self._open = None
        row = above.row
        if row.missing is Missing.ARGUMENTS:
            self._report(above, "the row is cut between its arguments")
            self._gap = True
            return
        if row.missing is Missing.BRACKET:
            self._report(above, "no closing bracket")
        elif row.rest:
            self._report(above, "text behind the call site")
        self.frames.append(row.frame)

    def _report(self, above: Open, why: str) -> None:
        self.unparsed.append(Unparsed(above.row.frame.line, above.text, why))


def _is_place(text: str) -> bool:
    """The label and the instruction below a block of registers."""
    return is_instruction(text) or text.rstrip().endswith(":")
