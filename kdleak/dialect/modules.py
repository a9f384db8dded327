"""Module lists: ``lm``, ``lm m``, ``lmv`` with its blocks, old ``x *!``, and unloaded modules."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from kdleak.dialect.addresses import ADDRESS, parse_address
from kdleak.dialect.prompt import is_prompt
from kdleak.dialect.source import Line, Source, Unparsed, lines_of

_HEADER = re.compile(r"[ \t]*start[ ]+end[ ]+module name[ \t]*\Z")
_UNLOADED = re.compile(r"[ \t]*Unloaded modules:[ \t]*\Z")
_BROWSE = re.compile(r"[ \t]*Browse (?:full module list|all global symbols)")
_ROW = re.compile(
    rf"[ \t]*(?P<start>{ADDRESS})[ ]+(?P<end>{ADDRESS})[ ]{{1,8}}(?P<name>[^\s()!+]+)"
    r"(?:[ ]+(?P<flag>[CTMP#])(?=[ ]+\())?(?P<rest>\Z|[ ]+.*\Z)"
)
_SYMBOLS = re.compile(
    r"[ ]*\((?P<symbols>deferred|no symbols|[a-z][\w /&-]{0,40} symbols|pdb symbols|coff symbols)\)"
    r"(?:[ ]+(?P<file>\S(?:.*\S)?))?[ ]*\Z"
)
_LOAD_DEFERRED = re.compile(r"[ ]*\(load from (?P<file>.+?) deferred\)[ ]*\Z")
_LOADED_OLD = re.compile(r"[ ]*\((?P<file>[^(),]+), (?P<symbol_file>[^()]+)\)[ ]*\Z")
_TIME = re.compile(
    r"[ ](?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} [ 0-9][0-9] [0-9:]{8} [0-9]{4}|"
    r"unavailable|\*\*\* Invalid) \([0-9A-Fa-f-]{8}\)\Z"
)
_DETAIL = re.compile(r"[ \t]+(?P<label>[A-Z][\w /]{1,28}):[ \t]*(?P<value>(?:.*\S)?)[ \t]*\Z")
_TIMESTAMP = re.compile(r"\(?(?P<value>[0-9A-Fa-f]{8})\)?(?: \(.*\))?\Z")
_DETAIL_REST = re.compile(r"[ \t]+\S")


@dataclass(frozen=True)
class ModuleRow:
    """One loaded module.

    Attributes:
        start: load address.
        end: address behind its last byte.
        name: as printed.
        symbols: the text in brackets ("deferred", "pdb symbols", ...), "loaded" for the old form
            with two files; None where there are no brackets.
        file: symbol file or image behind the brackets; None if there is none.
        symbol_file: second file of the old form; None in the new one.
        details: the ``label: value`` lines of ``lmv`` below it, by label.
        line: number of the line.
    """

    start: int
    end: int
    name: str
    symbols: Optional[str] = None
    file: Optional[str] = None
    symbol_file: Optional[str] = None
    details: Mapping[str, str] = field(default_factory=dict)
    line: int = 0

    @property
    def size(self) -> int:
        """Bytes of address space."""
        return self.end - self.start

    @property
    def image_name(self) -> str:
        """File name of the image as ``lmv`` prints it, "" where it does not."""
        return self.details.get("Image name", "")

    @property
    def image_path(self) -> str:
        """Path of the image in the target as ``lmv`` prints it, "" where it does not."""
        return self.details.get("Image path", "")

    @property
    def timestamp(self) -> Optional[int]:
        """TimeDateStamp of the image, None where not printed or not available."""
        text = self.details.get("Timestamp", "")
        found = _TIMESTAMP.search(text.split("(")[-1] if "(" in text else text)
        value = int(found["value"], 16) if found else 0
        return value or None

    @property
    def checksum(self) -> Optional[int]:
        """Checksum in the image's header, None where not printed."""
        text = self.details.get("CheckSum", "")
        return int(text, 16) if re.fullmatch(r"[0-9A-Fa-f]{1,8}", text) else None


@dataclass(frozen=True)
class UnloadedModule:
    """One module that was loaded once: addresses it had, its file name."""

    start: int
    end: int
    name: str
    line: int = 0


@dataclass(frozen=True)
class ModuleList:
    """One module list."""

    modules: Tuple[ModuleRow, ...] = ()
    unloaded: Tuple[UnloadedModule, ...] = ()
    unparsed: Tuple[Unparsed, ...] = ()

    def find(self, name: str) -> Optional[ModuleRow]:
        """The module of a name, whatever its case; None if the list has none."""
        wanted = name.lower()
        return next((row for row in self.modules if row.name.lower() == wanted), None)


def parse_modules(source: Source) -> ModuleList:
    """Every module list of a text, joined."""
    lines = lines_of(source)
    lists: List[ModuleList] = []
    index = 0
    while index < len(lines):
        if starts_modules(lines, index):
            found, index = take_modules(lines, index)
            lists.append(found)
        else:
            index += 1
    return ModuleList(
        tuple(row for found in lists for row in found.modules),
        tuple(row for found in lists for row in found.unloaded),
        tuple(row for found in lists for row in found.unparsed),
    )


def starts_modules(lines: Sequence[Line], index: int) -> bool:
    """Whether a module list begins here: its header, or a row that can be nothing else."""
    text = lines[index].text
    if _HEADER.match(text) or _UNLOADED.match(text):
        return True
    if "(" not in text:
        return False
    found = _ROW.match(text)
    return found is not None and _symbols_of(found["rest"]) is not None


def take_modules(lines: Sequence[Line], index: int) -> Tuple[ModuleList, int]:
    """Read the list from a line for which ``starts_modules`` holds."""
    reader = _ListReader()
    end = index
    while index < len(lines):
        text = lines[index].text
        if not text.strip() or _BROWSE.match(text):
            if index - end > 2:
                break
        elif reader.take(lines[index]):
            end = index + 1
        else:
            break
        index += 1
    found = ModuleList(tuple(reader.modules), tuple(reader.unloaded), tuple(reader.unparsed))
    return found, end


class _ListReader:
    """Takes the lines of one list, as long as they belong to it."""

    def __init__(self) -> None:
        self.modules: List[ModuleRow] = []
        self.unloaded: List[UnloadedModule] = []
        self.unparsed: List[Unparsed] = []
        self._details: Dict[str, str] = {}
        self._below_header = False
        self._in_unloaded = False

    def take(self, line: Line) -> bool:
        """Whether a line that is not blank belongs to the list."""
        text = line.text
        if _UNLOADED.match(text):
            self._in_unloaded = True
            return True
        if _HEADER.match(text):
            first = not self._below_header
            self._below_header = True
            return first
        found = None if is_prompt(text) else _ROW.match(text)
        if found is None:
            return _read_detail(text, self._details, bool(self.modules or self.unloaded))
        self._row(found, line)
        return True

    def _row(self, found: re.Match[str], line: Line) -> None:
        start, end = parse_address(found["start"]), parse_address(found["end"])
        name, rest = found["name"], found["rest"].rstrip()
        self._details = {}
        if self._in_unloaded:
            self.unloaded.append(UnloadedModule(start, end, name + rest, line.number))
            return
        state = _symbols_of(rest)
        symbols, file, symbol_file = state or (None, rest.strip() or None, None)
        time = _TIME.search(rest) if state is None else None
        if time:  # lm t
            file = rest[: time.start()].strip() or None
            self._details["Timestamp"] = time.group().strip()
        elif state is None and rest and "(" in rest:
            self.unparsed.append(Unparsed(line.number, line.text, "symbol state not known"))
        self.modules.append(
            ModuleRow(start, end, name, symbols, file, symbol_file, self._details, line.number)
        )


def _symbols_of(rest: str) -> Optional[Tuple[Optional[str], Optional[str], Optional[str]]]:
    """Symbol state, file and symbol file behind a name; None if there is no such state."""
    if "(" not in rest:
        return None
    found = _SYMBOLS.match(rest)
    if found:
        return found["symbols"], found["file"], None
    found = _LOAD_DEFERRED.match(rest)
    if found:
        return "deferred", found["file"], None
    found = _LOADED_OLD.match(rest)
    return ("loaded", found["file"], found["symbol_file"]) if found else None


def _read_detail(text: str, details: Dict[str, str], behind_row: bool) -> bool:
    """Take a line of an ``lmv`` block; False if it is none."""
    if not behind_row or text[:1] not in {" ", "\t"}:
        return False
    found = _DETAIL.match(text)
    if found:
        details[found["label"]] = found["value"]
        return True
    return bool(details) and _DETAIL_REST.match(text) is not None
