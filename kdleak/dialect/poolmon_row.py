"""Columns of a PoolMon screen: the titles, and one row."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple, Optional, Tuple, Union

from kdleak.dialect.source import Line
from kdleak.dialect.tag_text import certain_tag, padded
from kdleak.model import Pool
from kdleak.tags import PoolTag

_TITLES = re.compile(
    r"[\s#*>|]{0,64}\bTag\s+(?P<type>Type)\s+Allocs\s+Frees\s+Diff\s+Bytes\s+Per\s+Alloc\b"
    r"(?P<driver>\s*Mapped_?\s?Driver)?"
)
_LONGEST_TITLES = 400
_LONGEST_ROW = 1000

_TYPE = re.compile(r"(?<=[\s])(?P<type>Nonp|Paged)(?=[\s0-9])")
_TYPES = {"Nonp": Pool.NONPAGED, "Paged": Pool.PAGED}

_N = r"\s{0,40}([-+]?[0-9]{1,20})"
_D = r"\s{0,40}\(\s{0,40}([-+]?[0-9]{1,20})\s{0,40}\)"
_SCREEN = re.compile(rf"{_N}{_D}{_N}{_D}{_N}(?=\s){_N}{_D}{_N}")
_SNAPSHOT = re.compile(rf"{_N}(?=\s){_N}(?=\s){_N}(?=\s){_N}(?=\s){_N}")
_BEGIN = re.compile(r"\s+[-+]?[0-9]")

_UNKNOWN_DRIVER = "Unknown Driver"
_NAMED = re.compile(r"\[\s{0,8}(?P<name>[^\[\]]{1,120}?)\s{1,8}-(?:\s|\Z)")
_ALONE = re.compile(r"\[\s{0,8}(?P<name>[^\[\]\s]{1,120})\s{0,8}\]\Z")
_FILE_NAME = re.compile(
    r"<unknown>\Z|[^\s]{0,100}(?:\.[A-Za-z0-9]{2,4}|![^\s]{1,60})\Z"
    r"|[^.!]{1,100}\.(?:sys|dll|exe|lib)\Z",  # names hold blanks, sentences end in no file type
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Titles:
    """The line of column titles.

    Attributes:
        tag_at: column of the tag, 0 for the first of the line.
        type_at: column of the pool type.
        driver: there is a Mapped_Driver column.
    """

    tag_at: int
    type_at: int
    driver: bool


class PoolMonRow(NamedTuple):
    """One tag in one pool. A named tuple because a log holds thousands of them.

    Attributes:
        tag: four characters as displayed, blanks included.
        type: which pool; a tag may have a row for each.
        allocs: allocations since boot.
        frees: frees since boot.
        diff: blocks outstanding as printed.
        bytes: bytes outstanding.
        per_alloc: bytes for each block outstanding, as printed.
        allocs_delta: change since the last screen; None in snapshot files.
        frees_delta: change since the last screen; None in snapshot files.
        bytes_delta: change since the last screen; None in snapshot files.
        driver_text: the Mapped_Driver column as printed, None when it is empty or absent.
        driver: the file name in it; None for an unknown driver and for a mere description.
        junk: signs behind the last number that PoolMon did not print, "" in most rows.
        line: number of the line, 1 for the first.
    """

    tag: str
    type: Pool
    allocs: int
    frees: int
    diff: int
    bytes: int
    per_alloc: int
    allocs_delta: Optional[int] = None
    frees_delta: Optional[int] = None
    bytes_delta: Optional[int] = None
    driver_text: Optional[str] = None
    driver: Optional[str] = None
    junk: str = ""
    line: int = 0

    @property
    def pool_tag(self) -> Optional[PoolTag]:
        """The tag, None when the displayed characters leave it open."""
        return certain_tag(self.tag)


@dataclass(frozen=True)
class UnreadableRow:
    """A row whose numbers must not be guessed."""

    tag: str
    why: str


def read_titles(text: str) -> Optional[Titles]:
    """The column titles at any indentation and distance; None for another line."""
    if len(text) > _LONGEST_TITLES or "Allocs" not in text:
        return None
    found = _TITLES.match(text)
    if found is None:
        return None
    return Titles(text.index("Tag"), found.start("type"), found["driver"] is not None)


def read_row(line: Line, titles: Titles) -> Union[PoolMonRow, UnreadableRow, None]:
    """One line as a row; None when it is none."""
    text = line.text[:_LONGEST_ROW]
    kind = _find_type(text)
    if kind is None:
        return None
    tag = _tag_of(text[: kind.start()], titles)
    if tag is None:
        return None
    found = _SCREEN.match(text, kind.end())
    deltas = found is not None
    found = found or _SNAPSHOT.match(text, kind.end())
    if found is None or (not deltas and text[found.end() :].lstrip().startswith("(")):
        if _BEGIN.match(text, kind.end()) is None:
            return None
        return UnreadableRow(tag, "the row is cut or its numbers are damaged")
    values = [int(value) for value in found.groups()]
    driver_text, junk = _split_rest(text[found.end() :], titles)
    driver = driver_of(driver_text)
    pool = _TYPES[kind["type"]]
    if not deltas:
        allocs, frees, diff, size, per_alloc = values
        return PoolMonRow(
            tag, pool, allocs, frees, diff, size, per_alloc,
            None, None, None, driver_text, driver, junk, line.number,
        )  # fmt: skip
    allocs, more, frees, more_frees, diff, size, more_bytes, per_alloc = values
    return PoolMonRow(
        tag, pool, allocs, frees, diff, size, per_alloc,
        more, more_frees, more_bytes, driver_text, driver, junk, line.number,
    )  # fmt: skip


def is_cut(row: PoolMonRow) -> bool:
    """Whether the last number lacks digits, as where a text was cut: bytes and blocks tell it."""
    if row.driver_text or row.junk or row.diff <= 0 or row.bytes < 0:
        return False
    whole, shown = str(row.bytes // row.diff), str(row.per_alloc)
    return whole != shown and whole.startswith(shown)


def _find_type(text: str) -> Optional[re.Match[str]]:
    """The pool type of a row; the tag itself may read "Nonp"."""
    found = _TYPE.search(text)
    if found is not None and not text[: found.start()].strip():
        return _TYPE.search(text, found.end())
    return found


def _tag_of(before: str, titles: Titles) -> Optional[str]:
    """The tag in what stands before the pool type; None when it is no tag."""
    bare = before.strip()
    at = titles.tag_at
    in_place = len(before) == titles.type_at and before[:at].strip() == ""
    if in_place and before[at : at + 4].strip() and not before[at + 4 :].strip():
        return padded(before[at : at + 4])
    bare = bare.lstrip("|*# ") if len(bare) > 4 else bare
    return padded(bare) if 0 < len(bare) <= 4 else None


def _split_rest(rest: str, titles: Titles) -> Tuple[Optional[str], str]:
    """The Mapped_Driver column, and signs that do not belong to PoolMon."""
    bare = rest.strip()
    if not bare:
        return None, ""
    column = rest[0].isspace() or bare[0] == "["
    if column and (titles.driver or bare[0] == "[" or bare.startswith(_UNKNOWN_DRIVER)):
        return bare, ""
    if column and bare[0].isalnum():
        return bare, ""
    return None, bare


def driver_of(text: Optional[str]) -> Optional[str]:
    """The file name in a Mapped_Driver column.

    ``[x.sys  -  text]`` and its cut form give ``x.sys``, and so does ``[x.sys]`` alone. A mere
    description, ``Unknown Driver`` and several brackets give None.
    """
    if not text or not text.startswith("[") or text.count("[") > 1:
        return None
    found = _NAMED.match(text) or _ALONE.match(text)
    if found is None or _FILE_NAME.match(found["name"].split(" or ")[0].strip()) is None:
        return None
    return found["name"].strip()
