"""Stops of the target as the debugger announces them.

A banner (``Break instruction exception``, ``Breakpoint 1 hit``, another exception), above it
perhaps the values of a bug check, below it perhaps the CTRL+C box, and at the end the label and
the instruction at which the target stands. A stop without a banner is the last two alone.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, replace
from typing import List, Optional, Sequence, Tuple

from kdleak.dialect.addresses import NamedPlace, parse_place
from kdleak.dialect.place import Place, is_instruction, next_filled, take_place
from kdleak.dialect.prompt import is_prompt
from kdleak.dialect.registers import RegisterBlock, starts_registers, take_registers
from kdleak.dialect.source import Line, Source, Unparsed, lines_of

_FATAL = re.compile(r"\*\*\* Fatal System Error: 0x(?P<code>[0-9a-fA-F]{1,8})")
_FATAL_ARGUMENTS = re.compile(r"[ \t]*\((0x[0-9a-fA-F]{1,16}(?:,[ ]?0x[0-9a-fA-F]{1,16}){3})\)")
_EXCEPTION = re.compile(
    r"(?:\((?P<process>[0-9a-f]{1,8})\.(?P<thread>[0-9a-f]{1,8})\): )?"
    r"(?P<name>[A-Z][A-Za-z][\w /-]{2,60}?) - code (?P<code>[0-9a-fA-F]{8})"
    r"(?P<chance> \((?:first chance|!!! second chance !!!|first/second chance not available)\))?"
)
_BREAKPOINT = re.compile(r"Breakpoint (?P<number>[0-9]{1,5}) hit[ \t]*\Z")
_LONE_LABEL = re.compile(
    r"[ \t]*(?P<symbol>[\w.$]{1,64}![\w.$@:~?]{1,256}(?:\+0x[0-9a-f]+)?):?[ \t]*\Z"
)
"""A label whose instruction is missing: the log is cut there, or its author left it out."""

_BOX = "You are seeing this message because you pressed either"

_MESSAGES = 40
"""Lines between a banner and its label that are read over: prints, errors of symbols."""


class BreakReason(enum.Enum):
    """What the debugger says made the target stop."""

    EXCEPTION = "exception"
    BREAKPOINT = "breakpoint"
    BUG_CHECK = "bugcheck"
    """The values of a bug check without an exception behind them."""
    UNSAID = "unsaid"
    """No banner: a module load, a step, or a breakpoint with a command of its own."""


@dataclass(frozen=True)
class BugCheck:
    """``*** Fatal System Error``: the code and its four arguments (() where not printed)."""

    code: int
    args: Tuple[int, ...] = ()


@dataclass(frozen=True)
class Break:
    """One stop.

    Attributes:
        line: number of its first line.
        reason: see BreakReason.
        code: NTSTATUS of the exception, None where there is none.
        exception: the words in front of the code ("Break instruction exception").
        first_chance: None where not said.
        number: of the breakpoint.
        ctrl_c: whether the box that names CTRL+C was printed: the user's own break-in.
        process: user-mode process id in front of the banner, None where there is none.
        thread: user-mode thread id in front of the banner.
        bug_check: values of a bug check just above.
        place: label and instruction, None where the text shows none.
        registers: printed between the banner and the label; None if they are not.
        messages: other lines between the banner and the label, the box left out.
        lone_label: the label where no instruction stands below it, "" otherwise.
    """

    line: int
    reason: BreakReason
    code: Optional[int] = None
    exception: str = ""
    first_chance: Optional[bool] = None
    number: Optional[int] = None
    ctrl_c: bool = False
    process: Optional[int] = None
    thread: Optional[int] = None
    bug_check: Optional[BugCheck] = None
    place: Optional[Place] = None
    registers: Optional[RegisterBlock] = None
    messages: Tuple[Line, ...] = ()
    lone_label: str = ""

    @property
    def symbol(self) -> Optional[str]:
        """Label of the stop."""
        return self.place.symbol if self.place else self.lone_label or None

    @property
    def label(self) -> Optional[NamedPlace]:
        """The label, taken apart; None where there is none, or no name."""
        return parse_place(self.symbol) if self.symbol else None

    @property
    def address(self) -> Optional[int]:
        """Address of the stop."""
        return self.place.address if self.place else None

    @property
    def break_instruction(self) -> bool:
        """Whether a break instruction of the target's own code was hit (STATUS_BREAKPOINT)."""
        return self.code in {0x80000003, 0x4000001F}


@dataclass(frozen=True)
class Breaks:
    """All stops of a text."""

    breaks: Tuple[Break, ...]
    unparsed: Tuple[Unparsed, ...] = ()


def parse_breaks(source: Source) -> Breaks:
    """Every stop announced in a text."""
    lines = lines_of(source)
    breaks: List[Break] = []
    index = 0
    while index < len(lines):
        if starts_break(lines, index):
            found, index = take_break(lines, index)
            breaks.append(found)
        elif starts_registers(lines, index):
            index = take_registers(lines, index)[1]
        else:
            index += 1
    return Breaks(tuple(breaks))


def starts_break(lines: Sequence[Line], index: int) -> bool:
    """Whether a banner, or a label with one instruction below it, begins here."""
    return _starts_banner(lines[index].text) or _starts_bare_place(lines, index)


def _starts_banner(text: str) -> bool:
    if " - code " in text:
        # .lastevent repeats the words of an older stop.
        return "Last event:" not in text and _EXCEPTION.search(text) is not None
    if " hit" in text:
        return _BREAKPOINT.search(text) is not None
    return "*** Fatal System Error: 0x" in text and _FATAL.search(text) is not None


def _starts_bare_place(lines: Sequence[Line], index: int) -> bool:
    text = lines[index].text
    if "!" not in text or not text.rstrip().endswith(":"):
        return False
    found = take_place(lines, index)
    if found is None:
        return False
    following = next_filled(lines, found[1])
    return following is None or not is_instruction(lines[following].text)


def take_break(lines: Sequence[Line], index: int) -> Tuple[Break, int]:
    """Read the stop that begins at a line for which ``starts_break`` holds."""
    first = lines[index].number
    fatal = _FATAL.search(lines[index].text)
    if fatal is None and not _starts_banner(lines[index].text):
        place = take_place(lines, index)
        if place is None:
            return Break(first, BreakReason.UNSAID), index + 1
        return Break(first, BreakReason.UNSAID, place=place[0]), place[1]
    bug_check = None
    end = index + 1
    if fatal:
        bug_check, end = _take_bug_check(lines, index, int(fatal["code"], 16))
        banner = _banner_after_bug_check(lines, end)
        if banner is None:
            return Break(first, BreakReason.BUG_CHECK, bug_check=bug_check), end
        index, end = banner, banner + 1
    announced = _announced(lines[index].text, first, bug_check)
    return _take_rest(lines, end, announced)


def _announced(text: str, line: int, bug_check: Optional[BugCheck]) -> Break:
    """What the banner alone says."""
    found = _EXCEPTION.search(text)
    if found is None:
        number = _BREAKPOINT.search(text)
        return Break(
            line,
            BreakReason.BREAKPOINT,
            number=int(number["number"]) if number else None,
            bug_check=bug_check,
        )
    chance = found["chance"] or ""
    return Break(
        line,
        BreakReason.EXCEPTION,
        code=int(found["code"], 16),
        exception=found["name"],
        first_chance=None if not chance or "not available" in chance else "(first" in chance,
        process=int(found["process"], 16) if found["process"] else None,
        thread=int(found["thread"], 16) if found["thread"] else None,
        bug_check=bug_check,
    )


def _take_bug_check(lines: Sequence[Line], index: int, code: int) -> Tuple[BugCheck, int]:
    following = next_filled(lines, index + 1)
    found = _FATAL_ARGUMENTS.match(lines[following].text) if following is not None else None
    if found is None or following is None:
        return BugCheck(code), index + 1
    return BugCheck(code, tuple(int(item, 16) for item in found[1].split(","))), following + 1


def _banner_after_bug_check(lines: Sequence[Line], index: int) -> Optional[int]:
    for position in range(index, min(index + 8, len(lines))):
        text = lines[position].text
        if is_prompt(text) or _FATAL.search(text):
            return None
        if " - code " in text and _EXCEPTION.search(text):
            return position
    return None


def _take_rest(lines: Sequence[Line], index: int, announced: Break) -> Tuple[Break, int]:
    """What stands between a banner and its label, and the label.

    Without a label only the box belongs to the banner; the other lines are left to be read.
    """
    messages: List[Line] = []
    registers: Optional[RegisterBlock] = None
    ctrl_c = False
    end = position = index
    while position < len(lines) and len(messages) < _MESSAGES:
        text = lines[position].text
        if is_prompt(text) or _starts_banner(text):
            break
        found = take_place(lines, position)
        if found:
            place, end = found
            known = replace(announced, place=place, ctrl_c=ctrl_c, registers=registers)
            return replace(known, messages=tuple(messages)), end
        label = _LONE_LABEL.match(text) if "!" in text else None
        if label and _ends_below(lines, position):
            known = replace(announced, lone_label=label["symbol"].rstrip(":"), ctrl_c=ctrl_c)
            return replace(known, registers=registers, messages=tuple(messages)), position + 1
        if starts_registers(lines, position):
            registers, position = take_registers(lines, position)
            if registers.place:
                known = replace(announced, place=registers.place, ctrl_c=ctrl_c)
                return replace(known, registers=registers, messages=tuple(messages)), position
            continue
        if text.lstrip().startswith("*") and not text.lstrip().startswith("*** "):
            ctrl_c = ctrl_c or _BOX in text
            if not messages and registers is None:
                end = position + 1
        elif text.strip():
            messages.append(lines[position])
        position += 1
    return replace(announced, ctrl_c=ctrl_c), end


def _ends_below(lines: Sequence[Line], index: int) -> bool:
    """Whether nothing but a prompt, or the end of the log, stands below a line."""
    following = next_filled(lines, index + 1)
    if following is None:
        return index + 3 >= len(lines)
    return is_prompt(lines[following].text)
