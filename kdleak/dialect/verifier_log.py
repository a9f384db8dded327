"""Text of ``!verifier 0x80``: the log of pool allocations and frees, with their stacks.

Format: Microsoft, "!verifier" (bit 7, kernel pool allocate/free log). A stack has no header and
prints return addresses only.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

from kdleak.dialect.addresses import parse_address
from kdleak.dialect.extension_walk import walk_outputs, walk_rows
from kdleak.dialect.fields import (
    ADDRESS,
    LOOK_AHEAD,
    find_opening,
    is_failure,
    is_gap,
    opening_of,
)
from kdleak.dialect.prompt import is_prompt
from kdleak.dialect.source import Line, Source, Unparsed, lines_of
from kdleak.dialect.symbol import parse_symbol

POOL_LOG = 0x80
"""The flag of ``!verifier`` that prints this log, alone or with an address or a quantity."""

_BLOCK = re.compile(
    rf"Pool block ({ADDRESS}), Size (?:0x)?([0-9a-fA-F]{{1,16}}), Thread ({ADDRESS})[ \t]*\Z",
    re.IGNORECASE,
)
_PARSING = re.compile(
    r"Parsing (?:0x)?([0-9a-fA-F]{1,16}) (?:log|array) entries"
    rf"(?:, searching for address ({ADDRESS}))?",
    re.IGNORECASE,
)
_KNOWN = re.compile(
    r"Log of recent kernel pool|There are up to (?:0x)?[0-9a-fA-F]+ entries in the log|[#=]+\Z|"
    r"[#=][#=. ]*\Z",
    re.IGNORECASE,
)
_FRAME = re.compile(rf"({ADDRESS})(?:[ \t]+(\S.*))?\Z", re.DOTALL)
_GLUED_OFFSET = re.compile(r"![^+]{1,512}[0-9A-Za-z_]0x[0-9a-fA-F]{1,8}\Z")
_LONGEST_FRAME = 2000

_POOL_ROUTINE = re.compile(r"(?:Ex|Ve|Vf|Vi|Verifier)\w*?(Allocate|Free)Pool")
_VERIFIER_MODULES = frozenset(
    {"nt", "ntoskrnl", "ntkrnlpa", "ntkrnlmp", "ntkrpamp", "verifierext", "vfbasics"}
)


class PoolOperation(enum.Enum):
    """What an entry of the log tells about."""

    ALLOC = "alloc"
    FREE = "free"


@dataclass(frozen=True)
class VerifierFrame:
    """One frame of a stack that prints return addresses only.

    Attributes:
        return_address: as printed in front.
        module: None if no symbol was printed.
        symbol: name without module and offset; None if there is none or it is not certain.
        offset: bytes from the symbol, or from the module's start without a symbol.
        text: what stands behind the address, as printed.
        line: number of the line.
    """

    return_address: int
    module: Optional[str]
    symbol: Optional[str]
    offset: Optional[int]
    text: str
    line: int = 0


@dataclass(frozen=True)
class VerifierOperation:
    """One entry of the log.

    Attributes:
        block: address of the pool block.
        size: bytes.
        thread: address of the thread that asked.
        frames: the newest first.
        line: number of the line.
    """

    block: int
    size: int
    thread: int
    frames: Tuple[VerifierFrame, ...]
    line: int = 0

    @property
    def operation(self) -> Optional[PoolOperation]:
        """Whether it was an allocation or a free; None if the top frames name no pool routine.

        The entry itself does not say it. Only the kernel's and Driver Verifier's own frames above
        the first driver count.
        """
        for frame in self.frames:
            if frame.module is None or frame.module.lower() not in _VERIFIER_MODULES:
                return None
            found = _POOL_ROUTINE.match((frame.symbol or "").lstrip("_"))
            if found:
                return PoolOperation.ALLOC if found[1] == "Allocate" else PoolOperation.FREE
        return None


@dataclass(frozen=True)
class VerifierSearch:
    """The answer to one ``!verifier 0x80``.

    Attributes:
        command: as typed; None if the text does not show it.
        address: the address looked for; None if the whole log was printed.
        entries: number of log entries gone through; None if the text does not show it.
        operations: in the order of the text: the newest first.
        messages: what the debugger said besides.
    """

    command: Optional[str]
    address: Optional[int]
    entries: Optional[int]
    operations: Tuple[VerifierOperation, ...]
    messages: Tuple[str, ...]


@dataclass(frozen=True)
class VerifierLog:
    """All ``!verifier 0x80`` outputs of a text, and the lines that were not understood."""

    searches: Tuple[VerifierSearch, ...]
    unparsed: Tuple[Unparsed, ...]


def read_frame(line: Line) -> Optional[Tuple[VerifierFrame, Tuple[Unparsed, ...]]]:
    """A line of an address and a symbol; None if it is none.

    A symbol whose ``+`` is missing is kept as text only: where its name ends is not certain.
    """
    found = _FRAME.match(line.text[:_LONGEST_FRAME].strip())
    if found is None:
        return None
    address, text = parse_address(found[1]), (found[2] or "").strip()
    expression = parse_symbol(text)
    if expression is None or not (expression.certain or not text):
        return None
    module, symbol, offset = expression.module, expression.symbol, expression.offset
    why = "words behind a symbol" if expression.rest or expression.open else ""
    if symbol and not text.endswith(f"+0x{offset or 0:x}") and _GLUED_OFFSET.search(text):
        symbol = offset = None
        why = "no + before the offset of a symbol"
    unparsed = (Unparsed(line.number, line.text, why),) if why else ()
    return VerifierFrame(address, module, symbol, offset, text, line.number), unparsed


def is_pool_log(command: str) -> bool:
    """Whether a command line prints this log: ``!verifier`` with flag 0x80 and nothing else."""
    words = command[command.lower().find("verifier") :].split()
    digits = words[1].lower() if len(words) > 1 else ""
    digits = digits[2:] if digits.startswith("0x") else digits
    return digits.lstrip("0") == f"{POOL_LOG:x}"


def _is_own(line: Line) -> bool:
    text = line.text[:400].strip()
    return bool(_BLOCK.match(text) or _PARSING.match(text) or text.startswith("Log of recent ker"))


def starts_verifier_log(lines: Sequence[Line], index: int) -> bool:
    """Whether an output of ``!verifier 0x80`` begins at a line."""
    return find_opening(lines, index, "verifier", is_pool_log) is not None or _is_own(lines[index])


@dataclass
class _Entry:
    block: int
    size: int
    thread: int
    line: int


class _Reader:
    """Takes in the lines of one ``!verifier 0x80``."""

    def __init__(self, command: Optional[str]) -> None:
        self.command = command
        self.address: Optional[int] = None
        self.entries: Optional[int] = None
        self.operations: List[VerifierOperation] = []
        self.messages: List[str] = []
        self.unparsed: List[Unparsed] = []
        self.empty = True
        self._entry: Optional[_Entry] = None
        self._frames: List[VerifierFrame] = []

    def take(self, line: Line) -> bool:
        """Take a line in; False if it is none of this output."""
        text = line.text[:400].strip()
        taken = self._take_header(text) or self._take_row(line, text) or is_gap(line.text)
        if not taken and is_failure(line.text):
            self.messages.append(text)
            taken = True
        self.empty = self.empty and not taken
        return taken

    def _take_header(self, text: str) -> bool:
        parsing = _PARSING.match(text)
        if parsing:
            if self.operations or self._entry or self.entries is not None:
                return False
            self.entries = int(parsing[1], 16)
            self.address = parse_address(parsing[2]) if parsing[2] else None
            return True
        if text.startswith("Log of recent") and not self.empty:
            return False
        return _KNOWN.match(text) is not None

    def _take_row(self, line: Line, text: str) -> bool:
        block = _BLOCK.match(text)
        if block:
            self._close_entry()
            self._entry = _Entry(
                parse_address(block[1]), int(block[2], 16), parse_address(block[3]), line.number
            )
            return True
        frame = read_frame(line) if self._entry else None
        if frame:
            self._frames.append(frame[0])
            self.unparsed.extend(frame[1])
        return frame is not None

    def _close_entry(self) -> None:
        if self._entry:
            entry = self._entry
            self.operations.append(
                VerifierOperation(
                    entry.block, entry.size, entry.thread, tuple(self._frames), entry.line
                )
            )
        self._entry = None
        self._frames = []

    def build(self) -> VerifierLog:
        """The output as a value."""
        self._close_entry()
        search = VerifierSearch(
            self.command, self.address, self.entries, tuple(self.operations), tuple(self.messages)
        )
        return VerifierLog(() if self.empty else (search,), tuple(self.unparsed))


def _own_line_follows(lines: Sequence[Line], index: int) -> bool:
    for line in lines[index : index + LOOK_AHEAD]:
        text = line.text[:400].strip()
        if is_prompt(line.text) or text.startswith("Log of recent"):
            return False
        if _BLOCK.match(text):
            return True
        frame = read_frame(line)
        if frame and frame[0].module:
            return True
    return False


def take_verifier_log(lines: Sequence[Line], index: int) -> Tuple[VerifierLog, int]:
    """Read the output of one ``!verifier 0x80``; then the index of the first line behind it."""
    opening = opening_of(lines, index, "verifier", is_pool_log)
    reader = _Reader(opening.command)
    end = walk_rows(
        lines,
        opening.first,
        take=lambda at: reader.take(lines[at]),
        ends=lambda at: _is_own(lines[at]) or not _own_line_follows(lines, at + 1),
        note=lambda line: reader.unparsed.append(
            Unparsed(line.number, line.text, "inside a verifier log")
        ),
    )
    return reader.build(), max(end, index + 1)


def parse_verifier_log(source: Source) -> VerifierLog:
    """Read every ``!verifier 0x80`` of a text; other lines are reported as not understood."""
    parts, unparsed = walk_outputs(
        lines_of(source), starts_verifier_log, take_verifier_log, "!verifier 0x80"
    )
    return VerifierLog(tuple(search for part in parts for search in part.searches), unparsed)
