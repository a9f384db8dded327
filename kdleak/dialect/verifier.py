"""Text of ``!verifier 3`` and ``!verifier 0xf``: Driver Verifier's settings and what leaks.

Three generations: ``Verify Level 8bb ... enabled options are:`` with one table per driver,
``Verify Flags Level 0x0002018b`` with a list of ``[X]`` and a table below each ``MODULE:``, and the
wide 64-bit table without a module. Format: Microsoft, "!verifier", and debugger logs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Optional, Sequence, Tuple

from kdleak.dialect.extension_walk import walk_outputs, walk_rows
from kdleak.dialect.fields import (
    LOOK_AHEAD,
    find_opening,
    is_failure,
    is_gap,
    opening_of,
)
from kdleak.dialect.prompt import is_prompt
from kdleak.dialect.source import Line, Source, Unparsed, lines_of
from kdleak.dialect.verifier_log import VerifierFrame, is_pool_log, read_frame
from kdleak.dialect.verifier_rows import (
    ModuleRow,
    VerifierAllocation,
    VerifierFlag,
    VerifierStatistic,
    is_known_line,
    read_allocation,
    read_contiguous,
    read_flag,
    read_level,
    read_module,
    read_pair,
    read_statistic,
    read_trace_field,
)

_LONGEST_LINE = 400

_HEADINGS = (
    "summary of all verifier statistics",
    "driver verification list",
    "pool allocation statistics:",
    "standard flags:",
)


@dataclass(frozen=True)
class VerifierDriver:
    """One verified driver. Pairs are nonpaged, paged.

    Attributes:
        name: file name as printed; None in the wide table, which names none.
        entry: address of the verifier's entry.
        state: as printed ("Loaded"); "" if the text does not show it.
        nonpaged_bytes: old layout; else None.
        paged_bytes: old layout; else None.
        current_allocations: blocks not freed.
        current_bytes: bytes in them.
        peak_allocations: most blocks at one time.
        peak_bytes: most bytes at one time.
        contiguous_bytes: bytes of contiguous memory.
        peak_contiguous_bytes: most of them at one time.
        allocations: the rows of its table.
        cut: the author left out rows (``...``).
    """

    name: Optional[str] = None
    entry: Optional[int] = None
    state: str = ""
    nonpaged_bytes: Optional[int] = None
    paged_bytes: Optional[int] = None
    current_allocations: Optional[Tuple[int, int]] = None
    current_bytes: Optional[Tuple[int, int]] = None
    peak_allocations: Optional[Tuple[int, int]] = None
    peak_bytes: Optional[Tuple[int, int]] = None
    contiguous_bytes: Optional[int] = None
    peak_contiguous_bytes: Optional[int] = None
    allocations: Tuple[VerifierAllocation, ...] = ()
    cut: bool = False


@dataclass(frozen=True)
class VerifierTrace:
    """One entry of the IRQL log or of the fault injection log.

    Attributes:
        thread: address of the thread.
        old_irql: IRQL before; None in other logs.
        new_irql: IRQL after; None in other logs.
        processor: its number.
        time_stamp: as printed, without a unit.
        frames: the newest first.
    """

    thread: int
    old_irql: Optional[int] = None
    new_irql: Optional[int] = None
    processor: Optional[int] = None
    time_stamp: Optional[int] = None
    frames: Tuple[VerifierFrame, ...] = ()


@dataclass(frozen=True)
class VerifierReport:
    """The answer to one ``!verifier``.

    Attributes:
        command: as typed; None if the text does not show it.
        level: the flags that are on, as a number; None if the text does not show it.
        flags: the list of ``[X]`` and ``[ ]``, in the order of the text.
        options: names of the enabled options, old layout.
        statistics: the summary of all drivers.
        drivers: in the order of the text.
        irql_log: newest entries of the IRQL log.
        fault_log: newest entries of the fault injection log.
        messages: what the debugger said besides.
    """

    command: Optional[str] = None
    level: Optional[int] = None
    flags: Tuple[VerifierFlag, ...] = ()
    options: Tuple[str, ...] = ()
    statistics: Tuple[VerifierStatistic, ...] = ()
    drivers: Tuple[VerifierDriver, ...] = ()
    irql_log: Tuple[VerifierTrace, ...] = ()
    fault_log: Tuple[VerifierTrace, ...] = ()
    messages: Tuple[str, ...] = ()

    @property
    def allocations(self) -> Tuple[VerifierAllocation, ...]:
        """The blocks of all drivers."""
        return tuple(row for driver in self.drivers for row in driver.allocations)


@dataclass(frozen=True)
class Verifier:
    """All ``!verifier`` outputs of a text but the pool log, and what was not understood."""

    reports: Tuple[VerifierReport, ...]
    unparsed: Tuple[Unparsed, ...]


@dataclass
class _Driver:
    """The driver under construction."""

    row: Optional[ModuleRow] = None
    pairs: Dict[str, Tuple[int, int]] = field(default_factory=dict)
    contiguous: Dict[bool, int] = field(default_factory=dict)
    allocations: List[VerifierAllocation] = field(default_factory=list)
    cut: bool = False

    def build(self) -> VerifierDriver:
        return VerifierDriver(
            name=self.row.name if self.row else None,
            entry=self.row.entry if self.row else None,
            state=self.row.state if self.row else "",
            nonpaged_bytes=self.row.nonpaged_bytes if self.row else None,
            paged_bytes=self.row.paged_bytes if self.row else None,
            current_allocations=self.pairs.get("current_allocations"),
            current_bytes=self.pairs.get("current_bytes"),
            peak_allocations=self.pairs.get("peak_allocations"),
            peak_bytes=self.pairs.get("peak_bytes"),
            contiguous_bytes=self.contiguous.get(False),
            peak_contiguous_bytes=self.contiguous.get(True),
            allocations=tuple(self.allocations),
            cut=self.cut,
        )


@dataclass
class _Trace:
    """The log entry under construction."""

    thread: int
    fault: bool
    values: Dict[str, int] = field(default_factory=dict)
    frames: List[VerifierFrame] = field(default_factory=list)

    def build(self) -> VerifierTrace:
        return VerifierTrace(
            self.thread,
            self.values.get("old_irql"),
            self.values.get("new_irql"),
            self.values.get("processor"),
            self.values.get("time_stamp"),
            tuple(self.frames),
        )


class _Reader:
    """Takes in the lines of one ``!verifier``."""

    def __init__(self, command: Optional[str]) -> None:
        self.command = command
        self.level: Optional[int] = None
        self.flags: List[VerifierFlag] = []
        self.options: List[str] = []
        self.statistics: List[VerifierStatistic] = []
        self.drivers: List[_Driver] = []
        self.traces: List[_Trace] = []
        self.messages: List[str] = []
        self.unparsed: List[Unparsed] = []
        self.empty = True
        self._in_options = False
        self._in_faults = False

    def begins_anew(self, text: str) -> bool:
        """Whether a line is the first one of another output."""
        return not self.empty and read_level(text) is not None

    def take(self, line: Line) -> bool:
        """Take a line in; False if it is none of this output."""
        text = line.text[:_LONGEST_LINE].strip()
        taken = (
            self._take_settings(text)
            or self._take_driver(line, text)
            or self._take_trace(line, text)
            or self._take_words(line, text)
        )
        self.empty = self.empty and not taken
        return taken

    def _take_settings(self, text: str) -> bool:
        level = read_level(text)
        if level is not None:
            self.level = level
            self._in_options = text.endswith(":")
            return True
        flag = read_flag(text)
        if flag:
            self.flags.append(flag)
            return True
        statistic = read_statistic(text)
        if statistic:
            self.statistics.append(statistic)
        return statistic is not None

    def _driver(self) -> _Driver:
        if not self.drivers:
            self.drivers.append(_Driver())
        return self.drivers[-1]

    def _take_driver(self, line: Line, text: str) -> bool:
        module = read_module(text)
        if module:
            self.drivers.append(_Driver(module))
            return True
        pair = read_pair(text)
        if pair:
            self._driver().pairs[pair.field] = pair.pair
            return True
        contiguous = read_contiguous(text)
        if contiguous:
            self._driver().contiguous[contiguous.peak] = contiguous.size
            return True
        row = read_allocation(line)
        if isinstance(row, VerifierAllocation):
            self._driver().allocations.append(row)
        elif row is not None:
            self.unparsed.append(row)
        return row is not None

    def _take_trace(self, line: Line, text: str) -> bool:
        value = read_trace_field(text)
        if value and value.name == "thread":
            self.traces.append(_Trace(value.value, self._in_faults))
            return True
        if not self.traces:
            return False
        if value:
            self.traces[-1].values[value.name] = value.value
            return True
        frame = read_frame(line)
        if frame:
            self.traces[-1].frames.append(frame[0])
            self.unparsed.extend(frame[1])
        return frame is not None

    def _take_words(self, line: Line, text: str) -> bool:
        if is_known_line(text):
            self._in_options = False
            if "trace log" in text.lower():
                self._in_faults = text.lower().startswith("fault")
            return True
        if is_gap(line.text):
            if self.drivers and self.drivers[-1].allocations and not self.traces:
                self.drivers[-1].cut = True
            return True
        if self._in_options and line.text[:1] in " \t":
            self.options.append(text)
            return True
        if not is_failure(line.text):
            return False
        self.messages.append(text)
        return True

    def build(self) -> Verifier:
        """The output as a value."""
        if self.empty:
            return Verifier((), tuple(self.unparsed))
        report = VerifierReport(
            self.command,
            self.level,
            tuple(self.flags),
            tuple(self.options),
            tuple(self.statistics),
            tuple(driver.build() for driver in self.drivers),
            tuple(trace.build() for trace in self.traces if not trace.fault),
            tuple(trace.build() for trace in self.traces if trace.fault),
            tuple(self.messages),
        )
        return Verifier((report,), tuple(self.unparsed))


def _is_report(command: str) -> bool:
    return not is_pool_log(command)


def _is_row(line: Line) -> bool:
    text = line.text[:_LONGEST_LINE].strip()
    return bool(
        read_flag(text)
        or read_pair(text)
        or read_module(text)
        or isinstance(read_allocation(line), VerifierAllocation)
        or read_trace_field(text)
    )


def starts_verifier(lines: Sequence[Line], index: int) -> bool:
    """Whether an output of ``!verifier`` other than the pool log begins at a line."""
    if find_opening(lines, index, "verifier", _is_report):
        return True
    text = lines[index].text[:_LONGEST_LINE].strip()
    if read_level(text) is not None:
        return True
    return text.lstrip("# ").lower().startswith(_HEADINGS) or text.startswith("MODULE: 0x")


def _own_line_follows(lines: Sequence[Line], index: int) -> bool:
    for line in lines[index : index + LOOK_AHEAD]:
        if is_prompt(line.text) or read_level(line.text[:_LONGEST_LINE].strip()) is not None:
            return False
        if _is_row(line):
            return True
    return False


def take_verifier(lines: Sequence[Line], index: int) -> Tuple[Verifier, int]:
    """Read the output of one ``!verifier``; the second value is the first line behind it."""
    opening = opening_of(lines, index, "verifier", _is_report)
    reader = _Reader(opening.command)

    def anew(at: int) -> bool:
        return reader.begins_anew(lines[at].text[:_LONGEST_LINE].strip())

    end = walk_rows(
        lines,
        opening.first,
        take=lambda at: not anew(at) and reader.take(lines[at]),
        ends=lambda at: anew(at) or not _own_line_follows(lines, at + 1),
        note=lambda line: reader.unparsed.append(
            Unparsed(line.number, line.text, "inside !verifier")
        ),
    )
    return reader.build(), max(end, index + 1)


def parse_verifier(source: Source) -> Verifier:
    """Read every ``!verifier`` of a text but the pool log; other lines are not understood."""
    parts, unparsed = walk_outputs(lines_of(source), starts_verifier, take_verifier, "!verifier")
    return Verifier(tuple(report for part in parts for report in part.reports), unparsed)
