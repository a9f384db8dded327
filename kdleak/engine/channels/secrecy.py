"""Keeps a KDNET key out of what kdleak shows, records or raises.

DbgEng prints the key itself: ``||`` answers with the whole connection string, key included.
"""

from __future__ import annotations

import re

_KEY = re.compile(r"(\bkey=)[^\s,;}\])\"']+", re.IGNORECASE)
HIDDEN = "..."


def key_of(connection: str) -> str:
    """The key in a connection string, "" where it has none."""
    found = _KEY.search(connection)
    return found.group()[len(found.group(1)) :] if found else ""


def without_key(text: str, connection: str = "") -> str:
    """A text with every ``key=...`` blotted out.

    Args:
        text: anything.
        connection: the connection string whose key must not show, however it is written.
    """
    key = key_of(connection)
    if key and key != HIDDEN:
        text = text.replace(key, HIDDEN)
    return _KEY.sub(rf"\g<1>{HIDDEN}", text)


def where_of(connection: str) -> str:
    """A connection string as it may be shown: without its key."""
    kept = [one for one in connection.split(",") if not one.strip().lower().startswith("key=")]
    return without_key(",".join(kept), connection)
