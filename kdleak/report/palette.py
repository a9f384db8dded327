"""Optional colour for text reports: a palette is handed in, plain unless asked for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Palette:
    """SGR parameters of each role; an empty one leaves the text as it is.

    Attributes:
        heading: section titles.
        bad: accusations and an unconfirmed disarm.
        good: a confirmed disarm, cleared call sites.
        warn: suspicions, gaps.
        quiet: what is there for completeness.
    """

    heading: str = ""
    bad: str = ""
    good: str = ""
    warn: str = ""
    quiet: str = ""

    def paint(self, role: str, text: str) -> str:
        """The text in the colour of a role. Width is that of ``text``: pad before painting."""
        code = getattr(self, role)
        return f"\x1b[{code}m{text}\x1b[0m" if code and text else text


PLAIN = Palette()
"""No escape sequences at all: pipes, files, NO_COLOR."""

ANSI = Palette(heading="1", bad="1;31", good="32", warn="33", quiet="2")
"""For terminals."""
