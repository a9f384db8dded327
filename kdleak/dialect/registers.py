"""Register blocks: what ``r``, ``.cxr``, ``.trap`` and ``r @eax`` print, for x86, x64 and ARM.

A block is lines of ``name=value`` pairs, the flags between them, and at the end mostly the label
and the instruction at which the context stands.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from kdleak.dialect.addresses import parse_address
from kdleak.dialect.place import Place, take_place
from kdleak.dialect.prompt import is_prompt
from kdleak.dialect.source import Line, Source, Unparsed, lines_of
from kdleak.model import Architecture
from kdleak.model import Registers as RegisterValues

_GENERAL = {"ax", "bx", "cx", "dx", "si", "di", "bp", "sp", "ip"}
_NAMES = frozenset(
    _GENERAL
    | {f"e{name}" for name in _GENERAL}
    | {f"r{name}" for name in _GENERAL}
    | {f"r{number}" for number in range(16)}
    | {f"r{number}{size}" for number in range(8, 16) for size in "dwb"}
    | {f"x{number}" for number in range(31)}
    | {f"w{number}" for number in range(31)}
    | {"al", "bl", "cl", "dl", "ah", "bh", "ch", "dh", "sil", "dil"}
    | {"cs", "ds", "es", "fs", "gs", "ss", "efl", "iopl", "fp", "lr", "pc", "psr", "cpsr"}
    | {f"cr{number}" for number in (0, 2, 3, 4, 8)}
    | {f"dr{number}" for number in (0, 1, 2, 3, 6, 7)}
)
_PAIR = re.compile(
    r"(?<![\w$!.:])([a-z][a-z0-9]{1,4})=([0-9a-f]{1,8}(?:[`']?[0-9a-f]{8})?)(?![\w.])"
)
_FLAGS = re.compile(r"\b(?:nv|ov|up|dn|ei|di|pl|ng|zr|nz|ac|na|pe|po|cy|nc)\b")
_OTHER_WORDS = frozenset({"", "vip", "vif", "tf"})
_ARM_FLAGS = re.compile(r"(?<=[ ])[N-][Z-][C-][V-](?:[Q-])?[ ]?(?:EL[0-3]|Thumb|ARM)?")


@dataclass(frozen=True)
class RegisterBlock:
    """One set of registers.

    Attributes:
        line: number of its first line.
        values: by the debugger's names, in their order; ``iopl`` and ``efl`` among them.
        flags: two-letter flags in their order, () where not printed.
        architecture: None where the names do not tell.
        place: label and instruction below the block, None if there is none.
        unparsed: pieces of the block that were not understood.
    """

    line: int
    values: Mapping[str, int]
    flags: Tuple[str, ...] = ()
    architecture: Optional[Architecture] = None
    place: Optional[Place] = None
    unparsed: Tuple[Unparsed, ...] = ()

    @property
    def registers(self) -> RegisterValues:
        """As the engines give them."""
        return RegisterValues(dict(self.values))


@dataclass(frozen=True)
class RegisterBlocks:
    """All register blocks of a text."""

    blocks: Tuple[RegisterBlock, ...]
    unparsed: Tuple[Unparsed, ...] = ()


def parse_registers(source: Source) -> RegisterBlocks:
    """Every register block of a text."""
    lines = lines_of(source)
    blocks: List[RegisterBlock] = []
    index = 0
    while index < len(lines):
        if starts_registers(lines, index):
            block, index = take_registers(lines, index)
            blocks.append(block)
        else:
            index += 1
    return RegisterBlocks(tuple(blocks), tuple(item for block in blocks for item in block.unparsed))


def starts_registers(lines: Sequence[Line], index: int) -> bool:
    """Whether the line begins with a register and its value."""
    return _is_row(lines[index].text)


def _is_row(text: str) -> bool:
    if "=" not in text[:24]:
        return False
    found = _PAIR.match(text.lstrip(" \t"))
    return found is not None and found[1] in _NAMES


def take_registers(lines: Sequence[Line], index: int) -> Tuple[RegisterBlock, int]:
    """Read the block that begins at a line for which ``starts_registers`` holds."""
    first = index
    values: Dict[str, int] = {}
    flags: List[str] = []
    unparsed: List[Unparsed] = []
    while index < len(lines):
        text = lines[index].text
        if not text.strip():
            if not _continues(lines, index):
                break
        elif _is_row(text) and not _repeats(text, values):
            _read_row(lines[index], values, flags, unparsed)
        else:
            break
        index += 1
    place = None
    following = _skip_messages(lines, index)
    if following < len(lines) and not is_prompt(lines[following].text) and _complete(values):
        found = take_place(lines, following)
        if found:
            place, index = found
    block = RegisterBlock(
        lines[first].number,
        values,
        tuple(flags),
        _architecture(values),
        place,
        tuple(unparsed),
    )
    return block, index


def _continues(lines: Sequence[Line], index: int) -> bool:
    """Whether a blank line only doubles the spacing of a block."""
    return index + 1 < len(lines) and _is_row(lines[index + 1].text)


def _repeats(text: str, values: Mapping[str, int]) -> bool:
    found = _PAIR.match(text.lstrip(" \t"))
    return found is not None and found[1] in values


def _read_row(
    line: Line, values: Dict[str, int], flags: List[str], unparsed: List[Unparsed]
) -> None:
    text = line.text
    for name, value in _PAIR.findall(text):
        if name in _NAMES:
            values[name] = parse_address(value)
    rest = _PAIR.sub("", text)
    if not rest.strip():
        return
    flags.extend(_FLAGS.findall(rest))
    rest = _ARM_FLAGS.sub("", _FLAGS.sub("", rest))
    if rest.strip(" \t") not in _OTHER_WORDS:
        unparsed.append(Unparsed(line.number, text, "more than registers and flags on the line"))


def _skip_messages(lines: Sequence[Line], index: int) -> int:
    """Lines that stand between registers and label: blank ones, notes about symbols."""
    end = min(index + 6, len(lines))
    while index < end:
        text = lines[index].text
        if text.strip() and not text.lstrip().startswith(("*** ", "ErrCode", "Unable to load")):
            break
        index += 1
    return index


def _complete(values: Mapping[str, int]) -> bool:
    return any(name in values for name in ("eip", "rip", "pc"))


def _architecture(values: Mapping[str, int]) -> Optional[Architecture]:
    if "rip" in values or "rax" in values:
        return Architecture.X64
    if "eip" in values:
        return Architecture.X86
    if "x0" in values or "fp" in values:
        return Architecture.ARM64
    return None
