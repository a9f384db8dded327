"""Single lines of ``!verifier``: flags, statistics, drivers, pairs, allocations, trace fields.

Each function reads one line and answers None if it is not of its kind. Numbers are hexadecimal
everywhere, with or without ``0x``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional, Tuple, Union

from kdleak.dialect.addresses import parse_address
from kdleak.dialect.fields import ADDRESS, read_address
from kdleak.dialect.source import Line, Unparsed
from kdleak.dialect.tag_text import certain_tag, padded
from kdleak.tags import PoolTag

_HEX = r"(?:0x)?([0-9a-fA-F]{1,16})"

_LEVEL = re.compile(
    r"Verify (?:Flags )?Level (?:0x)?([0-9a-fA-F]{1,16})(?:\s{0,9}\.\.\. enabled options are:)?\Z",
    re.IGNORECASE,
)
_FLAG = re.compile(r"\[(X?|[ \t]{1,3})\][ \t]{0,9}\(0x([0-9a-fA-F]{1,16})\)(.*)\Z", re.I | re.S)
_PAIR = re.compile(
    r"(Current|Peak) Pool (Allocations|Bytes):?[ \t]*"
    rf"(?:\([ \t]*{_HEX}[ \t]*/[ \t]*{_HEX}[ \t]*\)|{_HEX}[ \t]+{_HEX})\Z",
    re.IGNORECASE,
)
_CONTIGUOUS = re.compile(rf"(Peak )?Contiguous Memory Bytes:[ \t]*{_HEX}\Z", re.IGNORECASE)
_MODULE = re.compile(rf"MODULE:[ \t]*({ADDRESS})[ \t]+(.*)\Z", re.DOTALL)
_STATISTIC = re.compile(r"[A-Z][A-Za-z/ ]{2,60}\Z")
_ALLOCATION = re.compile(rf"({ADDRESS})([ \t]+)0x([0-9a-fA-F]{{1,16}})(?=[ \t])")
_CALLER = re.compile(rf"[ \t]({ADDRESS})(?=[ \t]|\Z)")
_TRACE = re.compile(
    rf"(?:Thread:[ \t]*(?P<thread>{ADDRESS})|"
    rf"(?P<name>Old irql|New irql|Processor|Time stamp):[ \t]*(?P<value>{_HEX}))\Z",
    re.IGNORECASE,
)
_KNOWN = re.compile(
    r"(?:STANDARD|ADDITIONAL|RESERVED|[A-Z]{4,20}) FLAGS:\Z|"
    r"\[X\] Indicates flag is enabled|Summary of All Verifier Statistics|"
    r"(?:## )?Driver Verification List|Entry +State +NonPagedPool +PagedPool +Module|"
    r"Pool Allocation Statistics:|Pool Allocations:\Z|PoolAddress +SizeInBytes +Tag +CallersAddr|"
    r"Address +Length +Tag +Caller|-[- ]*\Z|Fault injection trace log|Track irql trace log|"
    r"Driver Verifier didn't inject any faults|There are up to 0x[0-9a-fA-F]{1,16} entries|"
    r"Displaying (?:the )?most recent 0x[0-9a-fA-F]{1,16} entries from",
    re.IGNORECASE,
)
_STATES = frozenset({"loaded", "unloaded", "loading"})

_OLD_GAP, _NEW_GAP = 5, 2


@dataclass(frozen=True)
class VerifierFlag:
    """One line of the list of flags.

    Attributes:
        value: the flag's bit; 0 for the automatic checks.
        enabled: an X stands in the brackets.
        name: as printed.
    """

    value: int
    enabled: bool
    name: str


@dataclass(frozen=True)
class VerifierStatistic:
    """One line of the summary.

    Attributes:
        name: as printed, single blanks ("Pool Allocations Attempted").
        count: the number behind it.
        size: bytes, where the line goes on with "for ... bytes"; else None.
    """

    name: str
    count: int
    size: Optional[int]


@dataclass(frozen=True)
class VerifierAllocation:
    """One block that a verified driver has not freed.

    Attributes:
        address: of the block.
        length: bytes.
        tag: four characters as printed; None if they are not certain.
        caller: address of the code that asked for it.
        symbol: what stands behind the caller, as printed; None if nothing does.
        line: number of the line.
    """

    address: int
    length: int
    tag: Optional[str]
    caller: int
    symbol: Optional[str]
    line: int = 0

    @property
    def pool_tag(self) -> Optional[PoolTag]:
        """The tag, where the printed characters say for certain which four bytes it has."""
        return certain_tag(self.tag) if self.tag is not None else None


@dataclass(frozen=True)
class ModuleRow:
    """The line that begins a driver.

    Attributes:
        entry: address of the verifier's entry of it.
        state: as printed ("Loaded").
        name: file name as printed.
        nonpaged_bytes: old layout; else None.
        paged_bytes: old layout; else None.
    """

    entry: int
    state: str
    name: str
    nonpaged_bytes: Optional[int] = None
    paged_bytes: Optional[int] = None


@dataclass(frozen=True)
class PairRow:
    """A nonpaged and a paged number of one driver.

    Attributes:
        field: ``current_allocations``, ``current_bytes``, ``peak_allocations``, ``peak_bytes``.
        pair: nonpaged, paged.
    """

    field: str
    pair: Tuple[int, int]


@dataclass(frozen=True)
class ContiguousRow:
    """Bytes of contiguous memory of one driver, now or at its peak."""

    peak: bool
    size: int


@dataclass(frozen=True)
class TraceField:
    """A line of an IRQL or fault injection log entry.

    Attributes:
        name: ``thread`` (which begins an entry), ``old_irql``, ``new_irql``, ``processor``,
            ``time_stamp``.
        value: the number behind it.
    """

    name: str
    value: int


def read_level(text: str) -> Optional[int]:
    """The level of a ``Verify Level`` or ``Verify Flags Level`` line."""
    found = _LEVEL.match(text)
    return int(found[1], 16) if found else None


def read_flag(text: str) -> Optional[VerifierFlag]:
    """A line such as ``[X] (0x00000001) Special pool``."""
    found = _FLAG.match(text)
    if found is None:
        return None
    return VerifierFlag(int(found[2], 16), bool(found[1].strip()), found[3].strip())


def read_pair(text: str) -> Optional[PairRow]:
    """A line such as ``Current Pool Bytes: ( 0x000096e0 / 0x00000000 )``, in both layouts."""
    found = _PAIR.match(text)
    if found is None:
        return None
    nonpaged, paged = (found[3], found[4]) if found[3] else (found[5], found[6])
    field = f"{found[1]}_{found[2]}".lower()
    return PairRow(field, (int(nonpaged, 16), int(paged, 16)))


def read_contiguous(text: str) -> Optional[ContiguousRow]:
    """A line such as ``Peak Contiguous Memory Bytes:  0x00000000``."""
    found = _CONTIGUOUS.match(text)
    return ContiguousRow(bool(found[1]), int(found[2], 16)) if found else None


def read_module(text: str) -> Optional[ModuleRow]:
    """The line that begins a driver, in both layouts."""
    found = _MODULE.match(text)
    if found:
        name, bracket, state = found[2].strip().rpartition("(")
        if not bracket or not state.endswith(")"):
            return ModuleRow(parse_address(found[1]), "", found[2].strip())
        return ModuleRow(parse_address(found[1]), state[:-1].strip(), name.strip())
    words = text.split(None, 4)
    if len(words) < 5 or words[1].lower() not in _STATES:
        return None
    entry = read_address(words[0])
    sizes = [_number(word) for word in words[2:4]]
    if entry is None or sizes[0] is None or sizes[1] is None:
        return None
    return ModuleRow(entry, words[1], words[4], sizes[0], sizes[1])


def _number(word: str) -> Optional[int]:
    return int(word, 16) if re.match(r"(?:0x)?[0-9a-fA-F]{1,16}\Z", word) else None


def read_statistic(text: str) -> Optional[VerifierStatistic]:
    """A line of the summary: ``Trims    0x0`` or ``Peak ...   0x1f for 000009F5 bytes``."""
    words = text.split()
    size: Optional[int] = None
    if len(words) > 4 and words[-1] == "bytes" and words[-3] == "for":
        size = _number(words[-2])
        words = words[:-3]
        if size is None:
            return None
    if len(words) < 2 or not words[-1].startswith("0x"):
        return None
    count = _number(words[-1])
    name = " ".join(words[:-1])
    if count is None or not _STATISTIC.match(name):
        return None
    return VerifierStatistic(name, count, size)


def read_allocation(line: Line) -> Optional[Union[VerifierAllocation, Unparsed]]:
    """A row of the table of allocations, in all layouts.

    Returns:
        An ``Unparsed`` for a row whose tag or caller cannot be told; None for other lines.
    """
    text = line.text[:2000].strip()
    found = _ALLOCATION.match(text)
    if found is None:
        return None
    caller = _CALLER.search(text, found.end() + 1)
    if caller is None:
        return Unparsed(line.number, line.text, "an allocation without its caller")
    if _digits(caller[1]) < _digits(found[1]):
        return Unparsed(line.number, line.text, "the caller has fewer digits than the address")
    tag = _tag_between(
        text[found.end() : caller.start()],
        _NEW_GAP if found[1].startswith("0x") else _OLD_GAP,
    )
    if tag is None:
        return Unparsed(line.number, line.text, "no four characters where the tag belongs")
    return VerifierAllocation(
        address=parse_address(found[1]),
        length=int(found[3], 16),
        tag=tag,
        caller=parse_address(caller[1]),
        symbol=text[caller.end() :].strip() or None,
        line=line.number,
    )


def _digits(address: str) -> int:
    return len(address.replace("0x", "", 1).replace("`", ""))


def _tag_between(text: str, gap: int) -> Optional[str]:
    # the tag may hold blanks at both ends; the columns tell them from the gap
    whole = text[gap : gap + 4]
    if len(whole) == 4 and not text[:gap].strip() and not text[gap + 4 :].strip() and whole.strip():
        return whole
    bare = text.strip()
    return padded(bare) if 1 <= len(bare) <= 4 else None


def read_trace_field(text: str) -> Optional[TraceField]:
    """A line above a stack of the IRQL log or of the fault injection log."""
    found = _TRACE.match(text)
    if found is None:
        return None
    if found["thread"]:
        return TraceField("thread", parse_address(found["thread"]))
    return TraceField(found["name"].lower().replace(" ", "_"), int(found["value"], 16))


def is_known_line(text: str) -> bool:
    """Whether a line is a heading or a sentence that carries no values of its own."""
    return _KNOWN.match(text) is not None
