"""Names of symbol files and servers that come from outside: what is safe to use, fit to show.

The name of a PDB comes from an image, a server's answers from the network; neither is trusted.
Addresses of servers may hold credentials, and those are never shown.
"""

from __future__ import annotations

import os
import re
from urllib.parse import quote, urlsplit, urlunsplit

_MAXIMUM_NAME = 200  # bytes; file systems take 255, and temporary names must fit too
_FORBIDDEN = frozenset('<>:"/\\|?*')
_DEVICES = re.compile(
    r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9\u00b9\u00b2\u00b3])\s*(\..*)?", re.IGNORECASE
)
_WINDOWS_PATH = re.compile(r"[A-Za-z]:|.*\\")
_LONGEST_SHOWN = 200
_LONGEST_SEGMENT = 24  # longer parts of an address may be access tokens
_ADDRESS = re.compile(r"https?:\S+", re.IGNORECASE)
_NOT_SHOWN = "***"


def is_safe_file_name(name: str) -> bool:
    """Whether a name can be one file in one folder, on Windows and elsewhere, and nothing more."""
    try:
        length = len(name.encode("utf-8"))
    except UnicodeEncodeError:  # half a surrogate pair
        return False
    return (
        0 < length <= _MAXIMUM_NAME
        and name.isprintable()
        and not _FORBIDDEN & set(name)
        and name == name.strip()
        and not name.endswith(".")
        and _DEVICES.fullmatch(name) is None
    )


def is_foreign_path(location: str, system: str = os.name) -> bool:
    r"""Whether a folder is written as only Windows understands it, and this is not Windows.

    Elsewhere a folder called ``C:\symbols`` would be made below the current one.
    """
    return system != "nt" and _WINDOWS_PATH.match(location) is not None


def below(base: str, *names: str) -> str:
    """The address of a file below a web store; a query (an access token) stays at its end.

    Raises:
        ValueError: the base is no address.
    """
    parts = urlsplit(base)
    _ = parts.port  # raises where it is no number
    if parts.scheme.lower() not in ("http", "https") or not parts.hostname:
        raise ValueError("no web address")
    path = "/".join([parts.path.rstrip("/"), *(quote(name, safe="") for name in names)])
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def host_of(address: str) -> str:
    """Host and port of an address, fit to show: no user, no password."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname or "?", parts.port
    except ValueError:
        return "?"
    host = f"[{host}]" if ":" in host else host
    return printable(f"{host}:{port}" if port else host)


def masked(address: str) -> str:
    """A folder as it is; a web address without user, password, query or what may be a token."""
    if not address.lower().startswith(("http:", "https:")):
        return printable(address)
    try:
        parts = urlsplit(address)
    except ValueError:
        return f"{address.partition(':')[0].lower()}://{_NOT_SHOWN}"
    names = parts.path.split("/")
    path = "/".join(name if len(name) <= _LONGEST_SEGMENT else _NOT_SHOWN for name in names)
    query = f"?{_NOT_SHOWN}" if parts.query else ""
    return printable(f"{parts.scheme}://{host_of(address)}{path}{query}")


def without_addresses(text: str) -> str:
    """Text from outside with every web address in it masked, on one line and not long."""
    return printable(_ADDRESS.sub(lambda found: masked(found.group()), text))


def printable(text: str) -> str:
    """Text from outside on one line, without anything that could act on a terminal, not long."""
    shown = "".join(char if char.isprintable() else "?" for char in text[: 2 * _LONGEST_SHOWN])
    return shown if len(shown) <= _LONGEST_SHOWN else shown[: _LONGEST_SHOWN - 3] + "..."
