"""A page of text under construction: every line sanitised, wrapped to a width, then coloured."""

from __future__ import annotations

import textwrap
from typing import List, Sequence, Tuple

from kdleak.report.palette import Palette
from kdleak.report.sanitise import fit, sanitise

MIN_WIDTH = 40
"""Narrower terminals get this width anyway: tables would be unreadable."""


class Page:
    """Collects lines.

    Args:
        width: characters per line; not less than ``MIN_WIDTH``.
        style: colours, plain by default.
    """

    def __init__(self, width: int, style: Palette) -> None:
        self.width = max(MIN_WIDTH, width)
        self._style = style
        self._lines: List[str] = []

    def heading(self, text: str) -> None:
        """A section title with a blank line before it."""
        if self._lines:
            self._lines.append("")
        self.line(text, "heading")

    def line(self, text: str, role: str = "quiet", *, plain: bool = True) -> None:
        """One line as it is, cut to the width.

        Args:
            text: untrusted.
            role: colour role, used unless ``plain``.
            plain: leave the terminal's own colour.
        """
        shown = fit(sanitise(text), self.width)
        painted = role == "heading" or not plain
        self._lines.append(self._style.paint(role, shown) if painted else shown)

    def paragraph(self, text: str, *, indent: int = 2, hanging: int = 0, role: str = "") -> None:
        """Text wrapped to the width.

        Args:
            text: untrusted.
            indent: blanks before every line.
            hanging: further blanks before every line but the first.
            role: colour role, "" for none.
        """
        for shown in textwrap.wrap(
            sanitise(text),
            self.width,
            initial_indent=" " * indent,
            subsequent_indent=" " * (indent + hanging),
            break_on_hyphens=False,
        ):
            self._lines.append(self._style.paint(role, shown) if role else shown)

    def whole(self, text: str, role: str) -> None:
        """One line that must not be cut whatever the width: the safety line."""
        self._lines.append(self._style.paint(role, sanitise(text)))

    def row(self, cells: Sequence[str], widths: Sequence[int], rest: str, role: str = "") -> None:
        """One table row: right-aligned cells, then a left-aligned rest, cut to the width."""
        head = "  ".join(cell.rjust(width) for cell, width in zip(cells, widths))
        shown = fit(sanitise(f"  {head}  {rest}".rstrip()), self.width)
        self._lines.append(self._style.paint(role, shown) if role else shown)

    def text(self) -> str:
        """The page; ends with a newline."""
        return "\n".join(self._lines) + "\n"


def column_widths(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Tuple[int, ...]:
    """Width of each column: its longest cell or its title."""
    return tuple(
        max([len(title), *(len(row[index]) for row in rows)]) for index, title in enumerate(titles)
    )


def number(value: int) -> str:
    """A count or a size with separators: ``1,234,567``."""
    return f"{value:,}"


def signed(value: int) -> str:
    """A change with its sign: ``+1,024``."""
    return f"{value:+,}" if value else "0"


def unknown(value: int, missing: int) -> str:
    """A sum of which ``missing`` parts are not known: ``1,024+?``, ``?`` when all are."""
    if not missing:
        return number(value)
    return f"{number(value)}+?" if value else "?"


def duration(seconds: float) -> str:
    """A time for people: ``3.2 s``, ``60 s``."""
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
