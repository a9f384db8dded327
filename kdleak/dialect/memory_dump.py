"""Memory as ``db dw dd dc dq dp da du`` print it: rows of an address and values.

Values are little-endian numbers of 1, 2, 4 or 8 bytes; ``??`` stands for each byte that could not
be read. A column of characters may follow; it says nothing that the values do not say.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Sequence, Tuple

from kdleak.dialect.addresses import ADDRESS, parse_address
from kdleak.dialect.source import Line, Source, Unparsed, lines_of

_HEAD = re.compile(
    rf"[ \t]*(?:[0-9a-f]{{4}}:)?(?P<address>{ADDRESS}|(?<=:)[0-9a-f]{{4}})(?P<gap>[ ]{{1,3}})"
)
_QUAD = r"(?:[0-9a-f]{8}`[0-9a-f]{8}|\?{8}`\?{8})"
_WIDE = re.compile(rf"{_QUAD}(?:[ ]{_QUAD}){{0,3}}")
_ELEMENTS = {
    8: re.compile(r"(?:[0-9a-f]{16}|\?{16})(?:[ ](?:[0-9a-f]{16}|\?{16})){0,3}(?=[ ]|\Z)"),
    4: re.compile(r"(?:[0-9a-f]{8}|\?{8})(?:[ ](?:[0-9a-f]{8}|\?{8})){0,7}(?=[ ]|\Z)"),
    2: re.compile(r"(?:[0-9a-f]{4}|\?{4})(?:[ ](?:[0-9a-f]{4}|\?{4})){0,15}(?=[ ]|\Z)"),
    1: re.compile(r"(?:[0-9a-f]{2}|\?\?)(?:[ -](?:[0-9a-f]{2}|\?\?)){0,31}(?=[ ]|\Z)"),
}
_PACKED = {1: "B", 2: "H", 4: "I", 8: "Q"}
_TEXT = re.compile(r"\"(?P<text>.*)\"[ ]*\Z")
_AFTER = re.compile(r"[ ]*\Z|[ ]{2,}(?P<characters>\S.{0,80})\Z")
_NEAR_ROW = re.compile(rf"[ \t]*{ADDRESS}[ ]{{2}}[0-9a-f?]")
_DUMP_COMMAND = re.compile(r"!?d[abcdpquw](?:\s|\Z)", re.IGNORECASE)


@dataclass(frozen=True)
class MemoryRow:
    """One row.

    Attributes:
        address: of the first byte.
        data: the bytes in memory order; 0 where a byte could not be read.
        unreadable: offsets of the bytes printed as ``??``.
        width: bytes per printed value; 0 for the strings of ``da`` and ``du``.
        text: the string of ``da`` or ``du``, None for values.
        line: number of the line.
    """

    address: int
    data: bytes
    unreadable: Tuple[int, ...] = ()
    width: int = 1
    text: Optional[str] = None
    line: int = 0


@dataclass(frozen=True)
class MemoryDump:
    """The rows of one or more dumps.

    Attributes:
        rows: in the order of the text.
        unparsed: rows with values that were not understood.
    """

    rows: Tuple[MemoryRow, ...]
    unparsed: Tuple[Unparsed, ...] = ()
    _segments: Dict[int, bytes] = field(default_factory=dict, repr=False, compare=False)
    _starts: List[int] = field(default_factory=list, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Join the rows: lookups go over runs of bytes, a later row over an earlier one."""
        end: Optional[int] = None
        start = 0
        pieces: List[bytes] = []
        for row in self.rows:
            for address, data in _known(row):
                if address != end and pieces:
                    self._add(start, b"".join(pieces))
                    pieces = []
                if not pieces:
                    start = address
                pieces.append(data)
                end = address + len(data)
        if pieces:
            self._add(start, b"".join(pieces))
        self._starts.extend(sorted(self._segments))

    def _add(self, start: int, data: bytes) -> None:
        older = self._segments.get(start, b"")
        self._segments[start] = data + older[len(data) :]

    def bytes_at(self, address: int, size: int) -> Optional[bytes]:
        """``size`` bytes of the target at an address; None unless every one was printed."""
        pieces: List[bytes] = []
        while size > 0:
            position = bisect_right(self._starts, address)
            if not position:
                return None
            start = self._starts[position - 1]
            piece = self._segments[start][address - start : address - start + size]
            if not piece:
                return None
            pieces.append(piece)
            address += len(piece)
            size -= len(piece)
        return b"".join(pieces)

    def number_at(self, address: int, size: int) -> Optional[int]:
        """The little-endian number of ``size`` bytes at an address; None unless printed."""
        data = self.bytes_at(address, size)
        return None if data is None else int.from_bytes(data, "little")


def _known(row: MemoryRow) -> List[Tuple[int, bytes]]:
    """The readable runs of a row."""
    if not row.unreadable:
        return [(row.address, row.data)] if row.data else []
    lost = set(row.unreadable)
    runs: List[Tuple[int, bytes]] = []
    start = 0
    for offset in range(len(row.data) + 1):
        if offset == len(row.data) or offset in lost:
            if offset > start:
                runs.append((row.address + start, row.data[start:offset]))
            start = offset + 1
    return runs


def parse_memory_dump(source: Source) -> MemoryDump:
    """Every row of memory in a text."""
    rows: List[MemoryRow] = []
    unparsed: List[Unparsed] = []
    for line in lines_of(source):
        row = read_memory_row(line)
        if row:
            rows.append(row)
        elif _NEAR_ROW.match(line.text):
            unparsed.append(Unparsed(line.number, line.text, "no values of one width"))
    return MemoryDump(tuple(rows), tuple(unparsed))


def is_dump_command(command: str) -> bool:
    """Whether a command prints rows of memory."""
    return _DUMP_COMMAND.match(command) is not None


def take_memory_dump(
    lines: Sequence[Line], index: int, one_blank: bool = False
) -> Tuple[MemoryDump, int]:
    """Read the rows from a line that ``read_memory_row`` reads.

    Args:
        lines: of the log.
        index: of the first row.
        one_blank: accept rows with one blank behind the address, where a command says that these
            are rows of memory; stacks and module lists look alike otherwise.
    """
    rows: List[MemoryRow] = []
    while index < len(lines):
        row = read_memory_row(lines[index], one_blank)
        if row is None:
            # A blank line doubles the spacing when another row stands behind it.
            doubled = (
                not lines[index].text.strip()
                and index + 1 < len(lines)
                and read_memory_row(lines[index + 1], one_blank) is not None
            )
            if rows and doubled:
                index += 1
                continue
            break
        rows.append(row)
        index += 1
    return MemoryDump(tuple(rows)), index


def read_memory_row(line: Line, one_blank: bool = False) -> Optional[MemoryRow]:
    """One row of memory; None if the line is none.

    Args:
        line: of the log.
        one_blank: see ``take_memory_dump``.
    """
    text = line.text
    head = _HEAD.match(text)
    if head is None or (len(head["gap"]) < 2 and not one_blank):
        return None
    position = head.end()
    address = parse_address(head["address"])
    if text[position : position + 1] == '"':
        found = _TEXT.match(text, position)
        return MemoryRow(address, b"", (), 0, found["text"], line.number) if found else None
    if text[position + 8 : position + 9] == "`":
        return _row_of(line, address, 8, _WIDE.match(text, position))
    for width, pattern in _ELEMENTS.items():
        found = pattern.match(text, position)
        if found:
            return _row_of(line, address, width, found)
    return None


def _row_of(
    line: Line, address: int, width: int, found: Optional[re.Match[str]]
) -> Optional[MemoryRow]:
    after = _AFTER.match(line.text, found.end()) if found else None
    if found is None or after is None:
        return None
    values = found.group()
    # One character for each byte at most: a longer text behind the values is none of them.
    if len((after["characters"] or "").rstrip()) > (len(values) + 1) // (2 if width > 1 else 3):
        return None
    if "?" not in values:
        data = _little_endian(values, width)
        return MemoryRow(address, data, (), width, None, line.number)
    unreadable: List[int] = []
    offset = 0
    for value in re.split("[ -]", values):
        if "?" in value:
            unreadable.extend(range(offset, offset + width))
        offset += width
    data = _little_endian(values.replace("?", "0"), width)
    return MemoryRow(address, data, tuple(unreadable), width, None, line.number)


def _little_endian(values: str, width: int) -> bytes:
    if width == 1:
        return bytes.fromhex(values.replace("-", " "))
    data = bytes.fromhex(values.replace("`", ""))
    count = len(data) // width
    code = _PACKED[width]
    return struct.pack(f"<{count}{code}", *struct.unpack(f">{count}{code}", data))
