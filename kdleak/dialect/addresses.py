"""Addresses as the debugger prints them, and names with offsets.

32-bit ones have 8 digits; 64-bit ones 16, parted by a backtick, by an apostrophe where a page
changed it, or not at all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional

_MARKS = "`'\N{ACUTE ACCENT}\N{RIGHT SINGLE QUOTATION MARK}"

ADDRESS = rf"[0-9a-fA-F]{{8}}(?:[{_MARKS}]?[0-9a-fA-F]{{8}})?"
"""An address, for use inside other patterns."""

_PARTS = str.maketrans("", "", _MARKS + " ")
_OFFSET = re.compile(r"\+0x([0-9a-fA-F]{1,16})\Z")
_SOURCE = re.compile(r"[ ]*\[(?P<source>\[?[^\[\]]* @ [0-9]+)\][ ]*\Z")


def parse_address(text: str) -> int:
    """The value of an address that matched ``ADDRESS``, with or without ``0x`` in front."""
    return int(text.translate(_PARTS), 16)


@dataclass(frozen=True)
class NamedPlace:
    """``module!name+0x1a``, as printed in labels and symbol lists.

    Attributes:
        module: in front of the ``!``; the whole name for ``module+0x1a2``.
        name: behind it; "" when only the module is known.
        offset: bytes behind the name, None where none is printed.
    """

    module: str
    name: str
    offset: Optional[int] = None

    def __str__(self) -> str:
        head = f"{self.module}!{self.name}" if self.name else self.module
        return head if self.offset is None else f"{head}+0x{self.offset:x}"


def parse_place(text: str) -> NamedPlace:
    """Take ``module!name+0x1a`` apart; a name without module has the module ""."""
    found = _OFFSET.search(text)
    offset = int(found.group(1), 16) if found else None
    head = text[: found.start()] if found else text
    module, mark, name = head.partition("!")
    if mark:
        return NamedPlace(module, name, offset)
    return NamedPlace(head, "", offset) if found else NamedPlace("", head, offset)


def cut_source(text: str) -> str:
    """A label without the ``[path @ line]`` behind it."""
    return _SOURCE.sub("", text) if text.endswith(("]", "] ")) else text
