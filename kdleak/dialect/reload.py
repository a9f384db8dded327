"""Output of ``.reload`` and of the first start: dots, and which symbols could not be loaded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Sequence, Tuple

from kdleak.dialect.prompt import is_prompt
from kdleak.dialect.source import Line, Source, Unparsed, lines_of

_STAGE = re.compile(r"[ \t]*Loading (?P<what>Kernel Symbols|User Symbols|unloaded module list)")
_DOTS = re.compile(r"[ \t]*(?P<dots>\.{1,})(?P<rest>\S?.*)\Z")
_UNABLE = re.compile(r"[ \t]*(?P<text>Unable to .*\S)[ \t]*\Z")
_DEFAULTED = re.compile(
    r"[ \t]*\*\*\* ERROR: Symbol file could not be found\.[ ]+"
    r"Defaulted to export symbols for (?P<file>.+?) -[ \t]*\Z"
)
_NOT_LOADED = re.compile(
    r"[ \t]*\*\*\* ERROR: (?:Module load completed but symbols could not be loaded|"
    r"Symbols could not be loaded) for (?P<file>.*\S)[ \t]*\Z"
)
_WARNING = re.compile(r"[ \t]*\*\*\* (?:WARNING|ERROR): .*? for (?P<file>.*\S)[ \t]*\Z")
_SUMMARY = re.compile(r"[ \t]*\*+ Symbol Loading Error Summary \*+[ \t]*\Z")
_SUMMARY_HEAD = re.compile(r"[ \t]*Module name[ ]+Error[ \t]*\Z")
_SUMMARY_ROW = re.compile(r"[ \t]*(?P<module>\S{1,64})[ ]{2,}(?P<text>\S(?:.*\S)?)[ \t]*\Z")
_ADVICE = re.compile(
    r"[ \t]*(?:You can troubleshoot most symbol related issues|"
    r"You should also verify that your symbol search path|Connected to |Press ctrl-c |"
    r"Run !sym noisy before|(?:Loading symbols for|ModLoad:) |DBGHELP: |SYMSRV: )"
)


@dataclass(frozen=True)
class SymbolError:
    """Symbols of one module that could not be loaded.

    Attributes:
        module: name or file of the module as printed.
        text: what the debugger says about it.
        exports: whether names of its export table stand in for the missing symbols.
        line: number of the line.
    """

    module: str
    text: str
    exports: bool = False
    line: int = 0


@dataclass(frozen=True)
class ReloadOutput:
    """One run of ``.reload``.

    Attributes:
        dots: one per module looked at.
        stages: "Kernel Symbols", "User Symbols", "unloaded module list", as far as they came.
        symbol_errors: modules without symbols of their own.
        failures: ``Unable to ...`` sentences.
        unparsed: lines in between that were not understood.
    """

    dots: int = 0
    stages: Tuple[str, ...] = ()
    symbol_errors: Tuple[SymbolError, ...] = ()
    failures: Tuple[str, ...] = ()
    unparsed: Tuple[Unparsed, ...] = ()


def parse_reload(source: Source) -> ReloadOutput:
    """Everything ``.reload`` printed in a text, joined."""
    lines = lines_of(source)
    reader = _ReloadReader()
    index = 0
    while index < len(lines):
        if starts_reload(lines, index):
            index = _take(lines, index, reader)
        else:
            index += 1
    return reader.output()


def starts_reload(lines: Sequence[Line], index: int) -> bool:
    """Whether output of ``.reload`` begins here."""
    text = lines[index].text
    return (
        _STAGE.match(text) is not None
        or _SUMMARY.match(text) is not None
        or _symbol_error(lines[index]) is not None
    )


def take_reload(lines: Sequence[Line], index: int) -> Tuple[ReloadOutput, int]:
    """Read the output from a line for which ``starts_reload`` holds."""
    reader = _ReloadReader()
    end = _take(lines, index, reader)
    return reader.output(), end


def _take(lines: Sequence[Line], index: int, reader: _ReloadReader) -> int:
    end = index
    while index < len(lines):
        text = lines[index].text
        if not text.strip():
            if index - end > 1:
                break
        elif is_prompt(text) or not reader.take(lines[index]):
            break
        else:
            end = index + 1
        index += 1
    return end


def _symbol_error(line: Line) -> SymbolError | None:
    text = line.text
    if "*** " not in text:
        return None
    found = _DEFAULTED.match(text)
    if found:
        return SymbolError(found["file"], text.strip(), True, line.number)
    found = _NOT_LOADED.match(text) or _WARNING.match(text)
    return SymbolError(found["file"], text.strip(), False, line.number) if found else None


class _ReloadReader:
    """Takes the lines of one output, as long as they belong to it."""

    def __init__(self) -> None:
        self._dots = 0
        self._stages: List[str] = []
        self._errors: List[SymbolError] = []
        self._failures: List[str] = []
        self._in_summary = False

    def take(self, line: Line) -> bool:
        """Whether a line that is not blank belongs to the output."""
        text = line.text
        stage = _STAGE.match(text)
        if stage:
            self._stages.append(stage["what"])
            return True
        error = _symbol_error(line)
        if error:
            self._errors.append(error)
            return True
        if _SUMMARY.match(text) or _SUMMARY_HEAD.match(text):
            self._in_summary = True
            return True
        if _ADVICE.match(text):
            self._in_summary = False
            return True
        return self._take_dots(text) or self._take_summary_row(line)

    def _take_dots(self, text: str) -> bool:
        dots = _DOTS.match(text)
        if dots:
            self._dots += len(dots["dots"])
            if dots["rest"].strip():
                self._failures.append(dots["rest"].strip())
            return True
        unable = _UNABLE.match(text)
        if unable:
            self._failures.append(unable["text"])
        return unable is not None

    def _take_summary_row(self, line: Line) -> bool:
        row = _SUMMARY_ROW.match(line.text) if self._in_summary else None
        if row:
            self._errors.append(SymbolError(row["module"], row["text"], False, line.number))
        return row is not None

    def output(self) -> ReloadOutput:
        """What was read."""
        return ReloadOutput(
            self._dots, tuple(self._stages), tuple(self._errors), tuple(self._failures)
        )
