"""A kdleak result read back from its JSON: what later reports and comparisons are made from.

A file may come from anybody and any version. What it is, is told by its content; a damaged one
is refused in one sentence that says where. Nothing is checked that nobody reads: fields are
checked when they are asked for, so a newer minor version with more fields is read as well.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Dict, Iterator, List, NoReturn, Optional, Tuple, Union

from kdleak.errors import UsageError

HUNT = "kdleak.hunt"
RANK = "kdleak.rank"

MAX_BYTES = 128 << 20
"""Largest file that is read: a hunt of 100,000 hits has about 60 MB."""

_BIGGEST = 1 << 70
# Counters of a target have 64 bits; sums of them stay well below this.

_LIMIT_WORDS = "a result of kdleak has less than {} MB"


class Node:
    """An object within a document, and where it stands; fields are checked when they are read.

    Args:
        fields: the JSON object.
        path: where it stands, for error messages ("call_sites[3].frame").
        name: of the file or the result, for error messages.
    """

    __slots__ = ("_fields", "name", "path")

    def __init__(self, fields: Dict[str, Any], path: str = "", name: str = "the result") -> None:
        self._fields = fields
        self.path = path
        self.name = name

    def has(self, key: str) -> bool:
        """Whether the field is there and not null."""
        return self._fields.get(key) is not None

    def text(self, key: str, default: Optional[str] = None) -> str:
        """A text; the default where it is absent.

        Raises:
            UsageError: it is no text, or absent without a default.
        """
        value = self._fields.get(key)
        if isinstance(value, str):
            return value
        return default if value is None and default is not None else self._refuse(key, "a text")

    def integer(self, key: str, default: Optional[int] = None) -> int:
        """A whole number; the default where it is absent.

        Raises:
            UsageError: it is none or impossibly large, or absent without a default.
        """
        value = self._fields.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _BIGGEST:
            return value
        return (
            default
            if value is None and default is not None
            else self._refuse(key, "a whole number")
        )

    def number(self, key: str, default: Optional[float] = None) -> float:
        """A number; the default where it is absent.

        Raises:
            UsageError: it is none, not finite, or absent without a default.
        """
        value = self._fields.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and _sane(value):
            return float(value)
        return default if value is None and default is not None else self._refuse(key, "a number")

    def flag(self, key: str, *, default: bool = False) -> bool:
        """A truth value.

        Raises:
            UsageError: it is something else.
        """
        value = self._fields.get(key)
        if isinstance(value, bool):
            return value
        return default if value is None else self._refuse(key, "true or false")

    def node(self, key: str) -> Node:
        """An object.

        Raises:
            UsageError: it is none.
        """
        return self._node(self._fields.get(key), key)

    def find_node(self, key: str) -> Optional[Node]:
        """An object, None where it is absent.

        Raises:
            UsageError: it is something else.
        """
        return self.node(key) if self.has(key) else None

    def nodes(self, key: str) -> List[Node]:
        """A list of objects; an absent one is empty.

        Raises:
            UsageError: it is something else.
        """
        return [self._node(value, f"{key}[{i}]") for i, value in enumerate(self._list(key))]

    def texts(self, key: str) -> Tuple[str, ...]:
        """A list of texts; an absent one is empty.

        Raises:
            UsageError: it is something else.
        """
        values = self._list(key)
        if not all(isinstance(value, str) for value in values):
            self._refuse(key, "a list of texts")
        return tuple(values)

    def numbers(self, key: str) -> Tuple[Union[int, float], ...]:
        """A list of numbers; an absent one is empty.

        Raises:
            UsageError: it is something else.
        """
        values = self._list(key)
        for value in values:
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not _sane(value):
                self._refuse(key, "a list of numbers")
        return tuple(values)

    def number_pairs(self, key: str) -> Tuple[Tuple[float, float], ...]:
        """A list of pairs of numbers, such as intervals; an absent one is empty.

        Raises:
            UsageError: it is something else.
        """
        pairs = []
        for value in self._list(key):
            if not isinstance(value, list) or len(value) != 2:
                self._refuse(key, "a list of pairs of numbers")
            first, second = Node({key: value}, self.path, self.name).numbers(key)
            pairs.append((float(first), float(second)))
        return tuple(pairs)

    def rows(self, key: str) -> Iterator[Dict[str, Any]]:
        """The objects of a long list, unwrapped; the caller checks what it takes from them."""
        for value in self._list(key):
            if not isinstance(value, dict):
                self._refuse(key, "a list of objects")
            yield value

    def refuse(self, key: str, what: str) -> NoReturn:
        """Say that a field is not what it must be.

        Raises:
            UsageError: always.
        """
        self._refuse(key, what)

    def _list(self, key: str) -> List[Any]:
        value = self._fields.get(key)
        if value is None:
            return []
        return value if isinstance(value, list) else self._refuse(key, "a list")

    def _node(self, value: object, key: str) -> Node:
        if not isinstance(value, dict):
            self._refuse(key, "an object")
        return Node(value, f"{self.path}.{key}" if self.path else key, self.name)

    def _refuse(self, key: str, what: str) -> NoReturn:
        place = f"{self.path}.{key}" if self.path else key
        raise UsageError(
            f"reading {self.name}",
            f"{place} is not {what}",
            "the file is damaged; take the one that kdleak wrote",
        )


def _sane(value: float) -> bool:
    if isinstance(value, int):
        return abs(value) < _BIGGEST
    return math.isfinite(value) and abs(value) < _BIGGEST


def read_result(file: Path, *, kinds: Tuple[str, ...], max_bytes: int = MAX_BYTES) -> Node:
    """Read the JSON of a result.

    Args:
        file: what ``--json -o FILE`` wrote.
        kinds: formats the caller can use.
        max_bytes: refuse a larger file.

    Raises:
        UsageError: there is no such file, it is too large, or is not such a result.
    """
    doing = f"reading {file}"
    try:
        with file.open("rb") as stream:
            data = stream.read(max_bytes + 1)
    except OSError as error:
        raise UsageError(doing, error.strerror or str(error), "check the name") from error
    if len(data) > max_bytes:
        limit = _LIMIT_WORDS.format(max_bytes >> 20)
        raise UsageError(doing, f"the file is too large; {limit}", "check that it is the right one")
    return parse_result(data, str(file), kinds=kinds)


def parse_result(data: bytes, name: str, *, kinds: Tuple[str, ...]) -> Node:
    """The JSON of a result as a checked document.

    Args:
        data: the file's bytes; a byte order mark (PowerShell's ``>`` writes one) is accepted.
        name: of the file.
        kinds: formats the caller can use.

    Raises:
        UsageError: it is not such a result.
    """
    doing, wrote = f"reading {name}", "name a file that kdleak hunt --json -o FILE wrote"
    try:
        # UTF-8, UTF-16 and UTF-32 are told apart by their first bytes.
        value = json.loads(data, parse_constant=_no_constant)
    except RecursionError as error:
        raise UsageError(
            doing, "it is nested too deeply to be a result of kdleak", wrote
        ) from error
    except ValueError as error:
        raise UsageError(doing, f"it is not JSON ({_where(error)})", wrote) from error
    if not isinstance(value, dict) or not isinstance(value.get("format"), str):
        raise UsageError(doing, "it is JSON, but not a result of kdleak", wrote)
    kind = value["format"]
    if kind not in kinds:
        shown = kind[:40] if kind.startswith("kdleak.") else "something else"
        raise UsageError(doing, f"it is {shown}, not {' or '.join(kinds)}", wrote)
    version = value.get("format_version")
    major = version.split(".")[0] if isinstance(version, str) else ""
    if major != "1":
        shown = version[:20] if isinstance(version, str) else "none"
        raise UsageError(
            doing,
            f"its format version is {shown}; this kdleak reads version 1",
            "use the kdleak that wrote it, or a newer one",
        )
    return Node(value, "", name)


def is_json_result(first_bytes: bytes) -> bool:
    """Whether a file that begins so is JSON text and not a crash dump."""
    text = first_bytes
    for mark in (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"):
        if text.startswith(mark):
            text = text[len(mark) :]
    return text.replace(b"\0", b"").lstrip()[:1] in (b"{", b"[")


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _where(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno}, column {error.colno}: {error.msg}"
    if isinstance(error, UnicodeDecodeError):
        return "its bytes are no text"
    return str(error)[:80]
