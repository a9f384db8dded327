"""``!poolused``: lists of pool usage by tag, from a log or from a live engine.

Three layouts (see ``Layout``), with or without command, Sorting line, preamble and TOTAL line.
What other programs print, or what authors made up, is refused with a reason.
"""

from __future__ import annotations

import re
from typing import List, Optional, Sequence, Tuple

from kdleak.dialect.fields import is_gap
from kdleak.dialect.pool import starts_pool
from kdleak.dialect.poolfind import starts_poolfind
from kdleak.dialect.poolmon import starts_poolmon
from kdleak.dialect.poolused_columns import (
    FRACTION,
    HEXADECIMAL,
    Header,
    RowReader,
    Unreadable,
    describe,
    is_broken_description,
    is_rest_of_unknown,
    read_header,
)
from kdleak.dialect.poolused_opening import (
    NO_TABLE,
    Opening,
    filter_of,
    is_error,
    is_known_above,
    is_own_error,
    is_pool_used,
    is_pools,
    is_sorting,
)
from kdleak.dialect.poolused_refusal import why_foreign
from kdleak.dialect.poolused_table import (
    Layout,
    PoolUsedLists,
    PoolUsedRow,
    PoolUsedTable,
    PoolUsedTotal,
    Sort,
)
from kdleak.dialect.prompt import is_prompt
from kdleak.dialect.source import Line, Source, Unparsed, lines_of
from kdleak.dialect.typed_command import typed_command

__all__ = [
    "Layout",
    "PoolUsedLists",
    "PoolUsedRow",
    "PoolUsedTable",
    "PoolUsedTotal",
    "Sort",
    "parse_poolused",
    "starts_poolused",
    "take_poolused",
]

_LOOK_AHEAD = 8
"""Lines behind one that fits nothing in which the list may go on."""

_LONGEST_DESCRIPTION = 400
"""Characters to which a description that was broken over lines is joined."""

_DASHES = re.compile(r"[-=_+|][-=_+| ]{3,240}\Z")
_REMARK = re.compile(r"\s*(?://|;|#|/\*|\*/|<!--)")


def parse_poolused(source: Source) -> PoolUsedLists:
    """Every list of a text.

    Never raises for bad text; linear in its length.
    """
    lines = lines_of(source)
    tables: List[PoolUsedTable] = []
    unparsed: List[Unparsed] = []
    index = 0
    while index < len(lines):
        if starts_poolused(lines, index) or is_own_error(lines[index].text):
            table, index = take_poolused(lines, index)
            tables.append(table)
            unparsed += table.unparsed
            continue
        line = lines[index]
        index += 1
        foreign = why_foreign(line.text, poolmon_too=True)
        if foreign:
            index = _end_of_foreign(lines, index)
            tables.append(PoolUsedTable(None, line=line.number, rejected=foreign))
        elif not _says_nothing(line.text) and not is_prompt(line.text):
            unparsed.append(Unparsed(line.number, line.text, "belongs to no !poolused list"))
    errors = [note for note in unparsed if is_error(note.text)]
    if errors and not tables:
        # What a live engine answered, without the command: all of it is an error.
        unparsed = [note for note in unparsed if not is_error(note.text)]
        texts = tuple(note.text.strip() for note in errors)
        tables.append(PoolUsedTable(None, line=errors[0].line, errors=texts))
    return PoolUsedLists(tuple(tables), tuple(unparsed))


def starts_poolused(lines: Sequence[Line], index: int) -> bool:
    """Whether a list, or a table that only looks like one, begins at this line."""
    text = lines[index].text
    if "Tag" in text:
        return read_header(text) is not None or is_sorting(text) or bool(why_foreign(text))
    if "Pool" in text:
        return is_pool_used(text) or is_sorting(text)
    if "Paged" in text:
        return is_pools(text) and any(
            read_header(line.text) for line in lines[index + 1 : index + 4]
        )
    return "!" in text and typed_command(text, "poolused") is not None


def take_poolused(lines: Sequence[Line], index: int) -> Tuple[PoolUsedTable, int]:
    """Read the list that begins at this line.

    Returns:
        The list and the index of the first line that is not its own.
    """
    opening = Opening(lines, index)
    if opening.header is None:
        return _without_rows(opening)
    return _Body(opening, opening.header).finish()


def _without_rows(opening: Opening) -> Tuple[PoolUsedTable, int]:
    """The table when there is nothing to read: an error, another program's table, or nothing."""
    end = opening.end
    if opening.rejected and opening.rejected != NO_TABLE:
        end = _end_of_foreign(opening.lines, end)
    table = PoolUsedTable(
        None,
        opening.command,
        opening.sort,
        filter_of(opening.command),
        line=opening.lines[opening.first].number,
        rejected=opening.rejected,
        errors=tuple(opening.errors),
        unparsed=tuple(opening.unparsed),
    )
    return table, end


class _Body:
    """The rows below a header, and the TOTAL line."""

    def __init__(self, opening: Opening, header: Header) -> None:
        self._opening = opening
        self._layout = header.layout
        self._lines = opening.lines
        self._reader = RowReader(header)
        self._end = opening.end
        self._rows: List[PoolUsedRow] = []
        self._total: Optional[PoolUsedTotal] = None
        self._unreadable: List[Unreadable] = []
        self._partial: Optional[str] = None
        self._read()

    def _read(self) -> None:
        lines, read, append = self._lines, self._reader.read, self._rows.append
        index = self._end
        while index < len(lines):
            line = lines[index]
            row = read(line.text, line.number)
            if isinstance(row, PoolUsedRow):
                append(row)
                self._end = index + 1
            elif isinstance(row, Unreadable):
                self._report(line, row)
                self._end = index + 1
            elif line.text.strip() and not self._read_other(index):
                return
            index += 1

    def _read_other(self, index: int) -> bool:
        """A line that is no row; False when the list ends before or with it."""
        line = self._lines[index]
        text = line.text
        total = self._reader.read_total(text)
        if total is not None:
            self._end = index + 1
            if isinstance(total, PoolUsedTotal):
                self._total = total
            else:
                self._note(line, total.why)
            return False
        if self._belongs_elsewhere(text):
            return False
        if text.lstrip().startswith(("```", "~~~")):
            self._end = index + 1
            return False
        if not self._read_within(index):
            return False
        self._end = index + 1
        return True

    def _read_within(self, index: int) -> bool:
        """A line between the rows; False when it fits nothing and no row follows."""
        line = self._lines[index]
        text = line.text
        if is_error(text):
            self._opening.errors.append(text.strip())
        elif self._continues(index):
            self._join(text)
        elif self._is_cut(index):
            self._report(line, Unreadable(text.strip().ljust(4), "cut: no numbers", cut=True))
        elif not is_gap(text) and not is_known_above(text) and not _DASHES.match(text.strip()):
            if not self._goes_on(index):
                return False
            if not _REMARK.match(text):
                self._note(line, "no row")
        return True

    def _belongs_elsewhere(self, text: str) -> bool:
        return (
            is_prompt(text)
            or typed_command(text, "poolused") is not None
            or read_header(text) is not None
            or is_sorting(text)
            or is_pool_used(text)
            or is_pools(text)
            or bool(why_foreign(text, poolmon_too=True))
        )

    def _goes_on(self, index: int) -> bool:
        """Whether a row of this list follows soon."""
        for at in range(index + 1, min(index + 1 + _LOOK_AHEAD, len(self._lines))):
            if self._is_row(at):
                return True
            if self._belongs_elsewhere(self._lines[at].text):
                return False
        return False

    def _continues(self, index: int) -> bool:
        """Whether this line is the rest of the description above it."""
        if not self._rows or self._rows[-1].line != self._lines[index - 1].number:
            return False
        last, text = self._rows[-1], self._lines[index].text.strip()
        if last.unknown:
            return is_rest_of_unknown(text)
        if last.description is None and last.binary is None:
            return False
        if len(last.description or "") + len(text) > _LONGEST_DESCRIPTION:
            return False
        if last.description is not None and is_broken_description(last.description):
            return True
        silent = is_gap(text) or _REMARK.match(text) is not None or is_known_above(text)
        return not silent and self._is_row(index + 1)

    def _is_row(self, index: int) -> bool:
        if index >= len(self._lines):
            return False
        text = self._lines[index].text
        return (
            isinstance(self._reader.read(text, 0), PoolUsedRow)
            or self._reader.read_total(text) is not None
        )

    def _join(self, text: str) -> None:
        last = self._rows[-1]
        if last.unknown:
            return
        whole = last.description or ""
        if last.binary is not None:
            whole += f" , Binary: {last.binary}"
        description, binary, unknown, quoted = describe(f"{whole} {text.strip()}", last.tag)
        self._rows[-1] = last._replace(
            description=description, binary=binary, unknown=unknown, quoted_tag=quoted
        )

    def _is_cut(self, index: int) -> bool:
        """Whether the text ends in the middle of a tag."""
        text = self._lines[index].text
        bare = text.strip()
        return (
            index + 1 == len(self._lines)
            and bool(self._rows)
            and self._rows[-1].line == self._lines[index - 1].number
            and 0 < len(bare) <= 4
            and " " not in bare
            and not is_gap(text)
            and text.startswith(" ")
        )

    def _report(self, line: Line, row: Unreadable) -> None:
        self._note(line, row.why)
        if row.cut:
            self._partial = row.tag
        else:
            self._unreadable.append(row)

    def _note(self, line: Line, why: str) -> None:
        self._opening.unparsed.append(Unparsed(line.number, line.text, why))

    def finish(self) -> Tuple[PoolUsedTable, int]:
        """The table, and the index behind its last line."""
        opening = self._opening
        made_up = [row for row in self._unreadable if row.why in (HEXADECIMAL, FRACTION)]
        rejected = ""
        if len(made_up) > len(self._rows):
            rejected = f"{made_up[0].why}: no debugger prints such a table"
        table = PoolUsedTable(
            None if rejected else self._layout,
            opening.command,
            opening.sort,
            filter_of(opening.command),
            () if rejected else tuple(self._rows),
            None if rejected else self._total,
            opening.lines[opening.first].number,
            rejected,
            tuple(opening.errors),
            tuple(opening.unparsed),
            tuple(row.tag for row in self._unreadable),
            self._partial,
        )
        return table, self._end


def _says_nothing(text: str) -> bool:
    bare = text.strip()
    return not bare or is_gap(bare) or bare.startswith(("```", "~~~", "//", "#"))


def _end_of_foreign(lines: Sequence[Line], index: int) -> int:
    """Behind the rows of a refused table: at a blank line, a prompt or what another reads."""
    while index < len(lines):
        text = lines[index].text
        if not text.strip() or is_prompt(text) or starts_poolused(lines, index):
            break
        if any(starts(lines, index) for starts in (starts_poolmon, starts_pool, starts_poolfind)):
            break
        index += 1
    return index
