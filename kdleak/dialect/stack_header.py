"""Headers of stack listings, and what they promise about the columns below.

A header is only a hint: words of 64-bit listings stand above 32-bit rows in logs of old machines,
and pages drop colons and blanks. Rows are read one by one; the header decides only what a row
alone cannot tell.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Optional


class HeaderKind(enum.Enum):
    """What stands above the rows."""

    NONE = "none"
    """Nothing: ``kc`` of old debuggers, a piece of a list."""
    STACK_TEXT = "STACK_TEXT"
    """The line ``STACK_TEXT:`` of ``!analyze -v``."""
    CALL_SITE = "kc"
    """``Call Site`` alone: no addresses."""
    CHILD_EBP = "ChildEBP"
    """32-bit: frame and return address, arguments with ``kb`` and ``kv``."""
    FRAME_POINTER = "FramePtr"
    """The oldest 32-bit form."""
    CHILD_SP = "Child-SP"
    """64-bit: stack pointer and return address, arguments between colons with ``kv``."""
    RETURN_ADDRESS = "RetAddr"
    """64-bit ``kb``: return address and arguments, no stack pointer."""
    ITANIUM = "Child-BSP"
    """Itanium: stack pointer, backing store pointer, return address."""
    ADDRESS_ONLY = "address and symbol"
    """Logs that print each frame's own address and its symbol, and no header."""


@dataclass(frozen=True)
class StackHeader:
    """One header line.

    Attributes:
        kind: which form.
        numbered: the first column is the frame number.
        memory: ``kf``: a column with the bytes between two frames stands before the addresses.
        without_modules: the form of old debuggers whose symbols have no module in front.
    """

    kind: HeaderKind
    numbered: bool = False
    memory: bool = False
    without_modules: bool = False


NO_HEADER = StackHeader(HeaderKind.NONE)

_WORDS = (
    r"ChildEBP|Child-SP|Child-BSP|FramePtr|RetAddr|Return(?: Address)?|Args to Child|Call Site|"
    r"Memory|Param[1-4]|Function Name"
)
_HEADER = re.compile(
    rf"\s*(?P<number>\\?#)?\s*(?P<words>(?:{_WORDS})(?:[\s:]+(?:{_WORDS}))*)"
    r"[\s:.]*\Z"
)
_FRONT = re.compile(r"[^:#]{1,40}:(?=\s)")
_STACK_TEXT = re.compile(r"\s*STACK_TEXT:\s*\Z")
_LONGEST = 200


def read_header(text: str) -> Optional[StackHeader]:
    """The header in a line, or None.

    ``Call stack:`` or other words that end in a colon may stand in front.
    """
    if "RetAddr" not in text and "Call Site" not in text and "Child-SP" not in text:
        if "STACK_TEXT:" in text and _STACK_TEXT.match(text):
            return StackHeader(HeaderKind.STACK_TEXT)
        return None
    if len(text) > _LONGEST:
        return None
    found = _HEADER.match(text)
    if found is None:
        front = _FRONT.match(text)
        found = _HEADER.match(text, front.end()) if front else None
    if found is None:
        return None
    words = found.group("words")
    kind = _kind(words)
    if kind is None:
        return None
    return StackHeader(
        kind,
        numbered=found.group("number") is not None,
        memory="Memory" in words,
        without_modules=kind is HeaderKind.FRAME_POINTER or "ChildEBP RetAddr Args" in words,
    )


def _kind(words: str) -> Optional[HeaderKind]:
    kinds = (
        ("Child-BSP", HeaderKind.ITANIUM),
        ("ChildEBP", HeaderKind.CHILD_EBP),
        ("FramePtr", HeaderKind.FRAME_POINTER),
        ("Child-SP", HeaderKind.CHILD_SP),
    )
    for word, kind in kinds:
        if word in words:
            return kind if "Ret" in words else None
    if "RetAddr" in words:
        return HeaderKind.RETURN_ADDRESS if " " in words.strip() else None
    return HeaderKind.CALL_SITE if words.strip() == "Call Site" else None
