"""``!vm``: memory usage of the whole system, page files included.

Numbers are kept as printed. The debugger prints negative ones as unsigned 64-bit numbers; see
``VmValue.signed_pages``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

from kdleak.dialect.fields import is_gap, is_preamble
from kdleak.dialect.poolmon import starts_poolmon
from kdleak.dialect.prompt import is_prompt
from kdleak.dialect.source import Line, Source, Unparsed, lines_of
from kdleak.dialect.typed_command import typed_command

_LOOK_AHEAD = 8
"""Lines behind one that fits nothing in which the list may go on."""

_LONGEST = 300

_BANNER = re.compile(r"\s*\*{2,}\s*Virtual Memory Usage\s*\*{2,}\s*\Z", re.IGNORECASE)
_PAGE_FILE = re.compile(r"\s*Pag(?:e|ing) ?File:\s*(?P<name>\S.*?)\s*\Z", re.IGNORECASE)
_NO_NAME = re.compile(r"\s*(?:No Name for Paging File|Paging File Name paged out)\s*\Z", re.I)
_SIZES = re.compile(
    r"\b(?P<label>Current|Free Space|Minimum|Maximum)\s{0,8}:\s{0,40}"
    r"(?P<kb>[0-9]{1,20})\s{0,4}Kb\b",
    re.IGNORECASE,
)
_SIZE_FIELDS = {
    "current": "current_kb",
    "free space": "free_kb",
    "minimum": "minimum_kb",
    "maximum": "maximum_kb",
}
_VALUE = re.compile(
    r"\s*(?P<label>[A-Za-z0-9][^:*]{0,60}?)\s{0,8}:\s{0,40}(?P<pages>-?[0-9]{1,20})"
    r"\s{0,8}\(\s{0,40}(?P<kb>-?[0-9]{1,20})\s{0,4}Kb\s{0,4}\)(?P<behind>\s.*|)\Z",
    re.IGNORECASE,
)
_KB_ONLY = re.compile(
    r"\s*(?P<label>[A-Za-z0-9][^:*]{0,60}?)\s{0,8}:\s{0,40}(?P<kb>-?[0-9]{1,20})\s{0,4}Kb\s*\Z",
    re.IGNORECASE,
)
_PLAIN = re.compile(
    r"\s*(?P<label>[A-Za-z][A-Za-z ]{2,60}[A-Za-z])(?:\s{0,8}:)?\s{1,40}(?P<value>[0-9]{1,20})\s*\Z"
)
_SESSION = re.compile(r"\s*(?P<name>Session ID [0-9]{1,10}(?: @ [0-9a-fA-F`]{8,17})?):?\s*\Z")
_SESSIONS = re.compile(r"\s*Terminal Server Memory Usage By Session:?\s*\Z", re.IGNORECASE)
_PROCESS = re.compile(
    r"\s*(?P<pid>[0-9a-f]{1,8})\s{1,8}(?P<name>\S.{0,60}?)\s{1,40}(?P<pages>[0-9]{1,20})"
    r"\s{1,8}\(\s{0,40}(?P<kb>[0-9]{1,20})\s{0,4}Kb\s{0,4}\)\s*\Z"
)
_ALERT = re.compile(
    r"\s*(?P<head>\*{3,80})\s{0,8}(?P<text>[^\s*].{0,240}?)\s{0,8}(?P<tail>\*{0,80})\s*\Z"
)
_CERTAIN_STARS = 6
"""Stars in front that make an alert even where those behind were cut off."""

_DEBUGGER_NOTE = re.compile(r"\*{2,3} (?:ERROR|WARNING)\b")


@dataclass(frozen=True)
class PageFile:
    """One page file.

    Attributes:
        name: path in the target, None where the debugger had no name.
        current_kb: size in KB as all sizes here; None where it was not printed.
        free_kb: unused part.
        minimum_kb: configured minimum.
        maximum_kb: configured maximum.
        line: number of its first line.
    """

    name: Optional[str]
    current_kb: Optional[int] = None
    free_kb: Optional[int] = None
    minimum_kb: Optional[int] = None
    maximum_kb: Optional[int] = None
    line: int = 0


@dataclass(frozen=True)
class VmValue:
    """One labelled quantity.

    Attributes:
        label: as printed, without the colon.
        pages: None where only KB are printed.
        kb: as printed.
        line: number of the line.
        session: the session it belongs to, "" for the whole system.
    """

    label: str
    pages: Optional[int]
    kb: int
    line: int = 0
    session: str = ""

    @property
    def signed_pages(self) -> Optional[int]:
        """Pages with the sign that a 64-bit number printed as unsigned had lost."""
        return None if self.pages is None else _signed(self.pages)

    @property
    def signed_kb(self) -> int:
        """KB with the sign that a 64-bit number printed as unsigned had lost."""
        return _signed(self.kb)


@dataclass(frozen=True)
class VmProcess:
    """A process and what it has committed.

    Attributes:
        pid: process id.
        name: image name as printed.
        pages: committed pages.
        kb: the same in KB.
        line: number of the line.
    """

    pid: int
    name: str
    pages: int
    kb: int
    line: int = 0


@dataclass(frozen=True)
class VmUsage:
    """One ``!vm``.

    Attributes:
        command: as typed, None when the paste holds none.
        page_files: in the order printed.
        values: labelled quantities in the order printed.
        alerts: warnings of the extension, without their stars.
        plain: labels with a bare number: no colon, no unit.
        processes: committed memory of each process, largest first as printed.
        line: number of the first line.
        rejected: why nothing was read, "" when something was.
        unparsed: lines inside that were not understood.
    """

    command: Optional[str] = None
    page_files: Tuple[PageFile, ...] = ()
    values: Tuple[VmValue, ...] = ()
    alerts: Tuple[str, ...] = ()
    plain: Tuple[Tuple[str, int], ...] = ()
    processes: Tuple[VmProcess, ...] = ()
    line: int = 0
    rejected: str = ""
    unparsed: Tuple[Unparsed, ...] = ()

    def find_value(self, label: str) -> Optional[VmValue]:
        """The first quantity with this label, None when there is none."""
        return next((value for value in self.values if value.label == label), None)


@dataclass(frozen=True)
class VmLog:
    """Every ``!vm`` of a text.

    Attributes:
        usages: in the order of the text.
        unparsed: lines that belong to none, and those of all of them.
    """

    usages: Tuple[VmUsage, ...] = ()
    unparsed: Tuple[Unparsed, ...] = ()


def parse_vm(source: Source) -> VmLog:
    """Every ``!vm`` of a text. Never raises for bad text; linear in its length."""
    lines = lines_of(source)
    usages: List[VmUsage] = []
    unparsed: List[Unparsed] = []
    index = 0
    while index < len(lines):
        if starts_vm(lines, index):
            usage, index = take_vm(lines, index)
            usages.append(usage)
            unparsed += usage.unparsed
            continue
        line = lines[index]
        bare = line.text.strip()
        if bare and not is_gap(bare) and not is_prompt(bare) and not bare.startswith("```"):
            unparsed.append(Unparsed(line.number, line.text, "belongs to no !vm"))
        index += 1
    return VmLog(tuple(usages), tuple(unparsed))


def starts_vm(lines: Sequence[Line], index: int) -> bool:
    """Whether a ``!vm`` begins at this line: its command, its banner, or its first quantities."""
    text = lines[index].text
    if len(text) > _LONGEST:
        return False
    if "!" in text and typed_command(text, "vm") is not None:
        return True
    if _BANNER.match(text):
        return True
    # Without command and banner: a page file or memory line, and more of the kind below.
    if not (_PAGE_FILE.match(text) or _NO_NAME.match(text) or _VALUE.match(text)):
        return False
    below = lines[index + 1 : index + 1 + _LOOK_AHEAD]
    return any(_is_own(line.text) for line in below)


def take_vm(lines: Sequence[Line], index: int) -> Tuple[VmUsage, int]:
    """Read the ``!vm`` that begins at this line.

    Returns:
        The usage and the index of the first line that is not its own.
    """
    return _Reader(lines, index).take()


def _signed(value: int) -> int:
    return value - (1 << 64) if (1 << 63) <= value < (1 << 64) else value


def _is_own(text: str) -> bool:
    """Whether a line cannot be anything but a part of ``!vm``."""
    if len(text) > _LONGEST:
        return False
    return (
        _VALUE.match(text) is not None
        or _SIZES.search(text) is not None
        or _PAGE_FILE.match(text) is not None
        or _NO_NAME.match(text) is not None
        or _PROCESS.match(text) is not None
    )


class _Reader:
    """Reads one ``!vm`` line by line."""

    def __init__(self, lines: Sequence[Line], index: int) -> None:
        self._lines = lines
        self._first = index
        self._command = typed_command(lines[index].text, "vm")
        self._end = index + 1 if self._command is not None else index
        self._banner = False
        self._files: List[PageFile] = []
        self._sizes: Dict[str, int] = {}
        self._values: List[VmValue] = []
        self._alerts: List[str] = []
        self._plain: List[Tuple[str, int]] = []
        self._processes: List[VmProcess] = []
        self._session = ""
        self._unparsed: List[Unparsed] = []

    def take(self) -> Tuple[VmUsage, int]:
        index = self._end
        while index < len(self._lines):
            line = self._lines[index]
            if line.text.strip():
                if self._begins_next(line.text) or starts_poolmon(self._lines, index):
                    break
                own = len(line.text) <= _LONGEST and self._read(line)
                if not own and not self._goes_on(index):
                    break
                if not own:
                    self._note(line, _why(line.text))
                self._end = index + 1
            index += 1
        nothing = not (self._values or self._files or self._alerts or self._banner)
        usage = VmUsage(
            self._command,
            tuple(self._files),
            tuple(self._values),
            tuple(self._alerts),
            tuple(self._plain),
            tuple(self._processes),
            self._lines[self._first].number,
            "no memory usage follows" if nothing else "",
            tuple(self._unparsed),
        )
        return usage, max(self._end, self._first + 1)

    def _read(self, line: Line) -> bool:
        return (
            self._read_value(line)
            or self._read_page_file(line)
            or self._read_alert(line)
            or self._read_rest(line)
        )

    def _read_value(self, line: Line) -> bool:
        found = _VALUE.match(line.text)
        if found is not None:
            label, pages, kb = found["label"], int(found["pages"]), int(found["kb"])
            self._values.append(VmValue(label, pages, kb, line.number, self._session))
            if found["behind"].strip():
                self._note(line, "words behind the number")
            return True
        found = _PROCESS.match(line.text)
        if found is not None:
            self._processes.append(
                VmProcess(
                    int(found["pid"], 16),
                    found["name"],
                    int(found["pages"]),
                    int(found["kb"]),
                    line.number,
                )
            )
        return found is not None

    def _read_page_file(self, line: Line) -> bool:
        text = line.text
        found = _PAGE_FILE.match(text)
        if found is not None or _NO_NAME.match(text):
            self._files.append(PageFile(found["name"] if found else None, line=line.number))
            self._sizes = {}
            return True
        sizes = list(_SIZES.finditer(text))
        if not sizes:
            return False
        for size in sizes:
            name = _SIZE_FIELDS[size["label"].lower()]
            if not self._files or name in self._sizes:
                # Sizes whose name line is missing: a page file all the same.
                self._files.append(PageFile(None, line=line.number))
                self._sizes = {}
            self._sizes[name] = int(size["kb"])
            last = self._files[-1]
            self._files[-1] = PageFile(last.name, line=last.line, **self._sizes)
        if _SIZES.sub("", text).strip(" \t,;"):
            self._note(line, "more than sizes of a page file")
        return True

    def _read_alert(self, line: Line) -> bool:
        if _BANNER.match(line.text):
            self._banner = True
            return True
        found = _ALERT.match(line.text)
        if found is None or _DEBUGGER_NOTE.match(line.text.strip()):
            return False
        if len(found["tail"]) < 2 and len(found["head"]) < _CERTAIN_STARS:
            return False
        self._alerts.append(found["text"])
        return True

    def _read_rest(self, line: Line) -> bool:
        text = line.text
        session = _SESSION.match(text)
        if session is not None or _SESSIONS.match(text):
            self._session = session["name"] if session else ""
            return True
        found = _KB_ONLY.match(text)
        if found is not None:
            self._values.append(
                VmValue(found["label"], None, int(found["kb"]), line.number, self._session)
            )
            return True
        found = _PLAIN.match(text)
        if found is not None and self._values:
            self._plain.append((found["label"], int(found["value"])))
            return True
        return is_gap(text) or is_preamble(text)

    def _begins_next(self, text: str) -> bool:
        if is_prompt(text) or typed_command(text, "vm") is not None:
            return True
        return _BANNER.match(text[:_LONGEST]) is not None and bool(self._values or self._banner)

    def _goes_on(self, index: int) -> bool:
        """Whether a line of this output follows one that fits nothing."""
        for line in self._lines[index + 1 : index + 1 + _LOOK_AHEAD]:
            if self._begins_next(line.text):
                return False
            if _is_own(line.text) or _BANNER.match(line.text[:_LONGEST]):
                return True
        # The last lines: quantities with a damaged number still belong to the list.
        return _LABELLED.match(self._lines[index].text) is not None and bool(self._values)

    def _note(self, line: Line, why: str) -> None:
        self._unparsed.append(Unparsed(line.number, line.text, why))


_LABELLED = re.compile(r"\s*[A-Z][A-Za-z0-9 ]{2,60}\s{0,8}:\s{1,40}[0-9]")


def _why(text: str) -> str:
    return "neither pages nor KB" if _LABELLED.match(text) else "not known in !vm"
