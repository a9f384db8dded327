"""Connection strings, and keeping the KDNET key in them out of what kdleak shows or records.

DbgEng prints the key itself: ``||`` answers with the whole connection string, key included.
"""

from __future__ import annotations

import re
from typing import Dict, Tuple

HIDDEN = "..."
"""What stands where a secret was."""

_VALUE = re.compile(r"\b(?:key|password)\s*=\s*([^,\s\"']+)", re.IGNORECASE)
_KEY = re.compile(r"(\bkey=)[^\s,;}\])\"']+", re.IGNORECASE)


def secrets_of(connection: str) -> Tuple[str, ...]:
    """Values in a connection string that must never be shown."""
    return tuple(dict.fromkeys(_VALUE.findall(connection)))


def without(hidden: Tuple[str, ...], text: str) -> str:
    """The text with every secret blotted out."""
    for secret in hidden:
        text = text.replace(secret, HIDDEN)
    return text


def without_key(text: str, connection: str = "") -> str:
    """A text with every ``key=...`` blotted out.

    Args:
        text: anything.
        connection: the connection string whose key must not show, however it is written.
    """
    hidden = tuple(secret for secret in secrets_of(connection) if secret != HIDDEN)
    return _KEY.sub(rf"\g<1>{HIDDEN}", without(hidden, text))


def parts_of(connection: str) -> Tuple[str, Dict[str, str]]:
    """Kind ("net", "com", ...) and options of a connection string, names in lower case."""
    kind, _, rest = connection.strip().strip("\"'").partition(":")
    pairs = (piece.partition("=") for piece in rest.split(",") if piece.strip())
    return kind.strip().lower(), {name.strip().lower(): value.strip() for name, _, value in pairs}


def where_of(connection: str) -> str:
    """A connection string without its secrets, as every engine shows it.

    The journal knows a target by it, so that what one engine left the next one finds.
    """
    kind, options = parts_of(connection)
    if kind == "net":
        options = {"port": options.get("port", "50000"), "target": options.get("target", "")}
        names = ["port"] + ["target"] * bool(options["target"])
    elif kind == "com":
        names = [name for name in ("pipe", "ipport", "port") if name in options]
    else:
        names = [name for name in options if name not in ("key", "password")]
    pieces = (f"{name}={options[name]}" if options[name] else name for name in names)
    return without_key(f"{kind}:" + ",".join(pieces)) if kind else ""
