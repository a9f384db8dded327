"""Four characters as a debugger or PoolMon displays them: a pool tag, or not certainly one.

Bytes that do not print show as dots (or as whatever the code page held), so a displayed dot may be
a dot or any of some 160 other bytes. Such text is kept for people and never turned into a tag.
"""

from __future__ import annotations

import re
from typing import Optional

from kdleak.tags import PoolTag

_CERTAIN = re.compile(r"[ -\-/-~]{4}\Z")  # printable ASCII without the dot
_NO_BREAK_BLANK = "\N{NO-BREAK SPACE}"


def padded(text: str) -> str:
    """Four characters again, where an editor or a page cut off the blanks at the end.

    Args:
        text: a tag as displayed, up to four characters.
    """
    return text.replace(_NO_BREAK_BLANK, " ").ljust(4)


def certain_tag(text: str) -> Optional[PoolTag]:
    """The tag behind four displayed characters; None when another tag may look the same.

    Args:
        text: four characters; missing blanks at the end are added.

    Returns:
        None for a text with a dot or a character that is not printable ASCII, for more than four
        characters and for blanks only.
    """
    whole = text if len(text) == 4 else padded(text)
    if _CERTAIN.match(whole) is None or whole == "    ":
        return None
    # Not PoolTag.parse, which reads "0x1f" as a value.
    return PoolTag.from_bytes(whole.encode("ascii"))
