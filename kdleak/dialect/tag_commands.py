"""Commands that read and write ``nt!PoolHitTag``, and breakpoints that compare a tag."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Optional, Tuple

from kdleak.dialect.addresses import ADDRESS, parse_address
from kdleak.tags import PROTECTED_POOL, PoolTag

_TARGET = rf"(?:(?:nt|ntoskrnl|ntkrnlmp|ntkrnlpa)!)?PoolHitTag|(?:0x)?{ADDRESS}(?![0-9A-Za-z_])"
_WRITE = re.compile(
    rf"[ \t]*e(?P<width>[bwdqpa]|za)?[ \t]+(?P<target>{_TARGET})[ \t]+"
    r"(?P<value>\S(?:.*\S)?)[ \t]*\Z",
    re.IGNORECASE,
)
_READ = re.compile(
    rf"[ \t]*!?d[abcdpqw][ \t]+(?:/\w+[ \t]+)?(?P<target>{_TARGET})(?=[ \t]|\Z)", re.IGNORECASE
)
_QUOTED = re.compile(r"(?P<sign>['\"\N{RIGHT SINGLE QUOTATION MARK}])(?P<text>.{1,4})(?P=sign)\Z")
_CURLY = str.maketrans(
    "\N{LEFT SINGLE QUOTATION MARK}\N{ACUTE ACCENT}", "\N{RIGHT SINGLE QUOTATION MARK}" * 2
)
_NUMBER = re.compile(r"(?:(?P<decimal>0n[0-9]{1,10})|(?:0x)?(?P<hex>[0-9a-fA-F]{1,8})h?)\Z")
_BYTES = re.compile(r"(?:(?:'.'|(?:0x)?[0-9a-fA-F]{1,2})(?:[ \t]+|\Z)){1,4}\Z")
_CONDITION = re.compile(
    r"(?:[=!]?=)\s*(?:0x(?P<hex>[0-9a-fA-F]{7,8})|(?P<bare>[0-9a-fA-F]{8})|'(?P<text>.{1,4})')"
    r"(?![0-9a-zA-Z_`])"
)
_CONDITION_BEFORE = re.compile(
    r"(?:\b0x(?P<hex>[0-9a-fA-F]{7,8})|(?<![\w!@`])(?P<bare>[0-9a-fA-F]{8})|'(?P<text>[^']{1,4})')"
    r"\s{0,4}[=!]?=(?=\s{0,4}[(@p])"
)
_PLAIN_ADDRESS = re.compile(rf"(?:0x)?{ADDRESS}\Z")
_BREAKPOINT = re.compile(
    r"[ \t]*(?:b[pmu][0-9]{0,4}|ba[0-9]{0,4}[ \t]+e[ \t]*1)[ \t]+(?:/\w+[ \t]+)*"
    r"(?P<where>[\w!.$@+*`]{1,120})",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class TagWrite:
    """A write to PoolHitTag.

    Attributes:
        value: as a number; 0 disarms.
        line: number of the line.
    """

    value: int
    line: int

    @property
    def tag(self) -> Optional[PoolTag]:
        """The tag that was armed, None for 0."""
        value = self.value & ~PROTECTED_POOL
        return PoolTag(value) if value else None


def split_commands(text: str) -> Tuple[str, ...]:
    """The commands of a line; semicolons inside quotes and braces part nothing."""
    parts: List[str] = []
    start = 0
    depth = 0
    quote = ""
    for position, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign == '"' or (sign == "'" and text.find("'", position + 1) > 0):
            quote = sign
        elif sign in "{}":
            depth += 1 if sign == "{" else -1
        elif sign == ";" and depth <= 0:
            parts.append(text[start:position])
            start = position + 1
    parts.append(text[start:])
    return tuple(part.strip() for part in parts if part.strip())


def written_value(command: str, address: Optional[int]) -> Optional[int]:
    """The value that a command writes to PoolHitTag; None if it writes something else.

    Args:
        command: one command.
        address: of PoolHitTag, where an earlier line told it.
    """
    found = _WRITE.match(command)
    if found is None or not _is_pool_hit_tag(found["target"], address):
        return None
    width = (found["width"] or "d").lower()
    return _bytes_value(found["value"]) if width == "b" else _value(found["value"], width)


def reads_tag(command: str, address: Optional[int]) -> bool:
    """Whether a command shows PoolHitTag."""
    found = _READ.match(command)
    return found is not None and _is_pool_hit_tag(found["target"], address)


def _is_pool_hit_tag(target: str, address: Optional[int]) -> bool:
    if target.lower().endswith("poolhittag"):
        return True
    return address is not None and parse_address(target) == address


def _value(text: str, width: str) -> Optional[int]:
    text = text.translate(_CURLY)
    quoted = _QUOTED.match(text)
    if quoted:
        try:
            raw = quoted["text"].encode("latin-1")
        except UnicodeEncodeError:
            return None
        # 'kaeL' is a number whose first character is the highest byte; ea writes in order.
        return int.from_bytes(raw, "little" if width in {"a", "za"} else "big")
    number = _NUMBER.match(text)
    if number is None:
        return None
    value = int(number["decimal"][2:]) if number["decimal"] else int(number["hex"], 16)
    return value if value <= 0xFFFFFFFF else None


def _bytes_value(text: str) -> Optional[int]:
    if not _BYTES.match(text):
        return None
    items = re.findall(r"'(.)'|(?:0x)?([0-9a-fA-F]{1,2})(?=\s|\Z)", text)
    values = [ord(quoted) if quoted else int(digits, 16) for quoted, digits in items]
    if len(values) != 4 or any(value > 0xFF for value in values):
        return None
    return int.from_bytes(bytes(values), "little")


@dataclass(frozen=True)
class TagBreakpoint:
    """A breakpoint that stops for one tag only.

    Attributes:
        where: name of the function, as typed.
        tag: the tag that its condition compares.
        line: number of the line.
    """

    where: str
    tag: PoolTag
    line: int

    def stops_at(self, symbol: Optional[str], address: Optional[int]) -> bool:
        """Whether a stop is this breakpoint's: at its function, named with its module or not."""
        where = self.where.lower()
        if _PLAIN_ADDRESS.match(where):
            return parse_address(where) == address
        function = (symbol or "").partition("+")[0].lower()
        return function == where or ("!" not in where and function.endswith("!" + where))


def tag_breakpoint(command: str, line: int) -> Optional[TagBreakpoint]:
    """The breakpoint that a command sets, if its condition compares a pool tag."""
    found = _BREAKPOINT.match(command)
    if found is None:
        return None
    behind = found.end()
    condition = _CONDITION.search(command, behind) or _CONDITION_BEFORE.search(command, behind)
    if condition is None:
        return None
    if condition["hex"] or condition["bare"]:
        value = int(condition["hex"] or condition["bare"], 16)
    else:
        value = int.from_bytes(condition["text"].encode("latin-1", "replace"), "big")
    value &= ~PROTECTED_POOL
    if condition["bare"] and not all(0x20 <= byte < 0x7F for byte in PoolTag(value).raw):
        return None  # any number; a tag without 0x must at least read as one
    return TagBreakpoint(found["where"], PoolTag(value), line) if value else None
