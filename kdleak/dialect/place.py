"""Where the target stands: a label, and below it one instruction.

The debugger prints the two at every stop and below every full set of registers. The label may be
missing or have lost its colon, the column of bytes may be missing, and the address may be an
offset in a segment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional, Sequence, Tuple

from kdleak.dialect.addresses import ADDRESS, NamedPlace, cut_source, parse_address, parse_place
from kdleak.dialect.source import Line

_LABEL = re.compile(r"[ \t]*(?P<symbol>[\w.$@]{1,64}(?:!|\+0x)\S.*?):?\Z")
_INSTRUCTION = re.compile(
    rf"[ \t]*(?:(?P<segment>[0-9a-f]{{4}}):)?(?P<address>{ADDRESS}|(?<=:)[0-9a-f]{{4}})[ \t]+"
    r"(?:(?P<bytes>(?!fadd[ ])(?:[0-9a-f]{2}){1,16})[ \t]+)?"
    r"(?P<instruction>(?!(?:[0-9a-f]{8}){1,2}(?:[` ]|\Z))[a-z_][a-z0-9._]{1,15}(?:[ \t].*)?"
    r"|\?{2,}.*)\Z"
)


@dataclass(frozen=True)
class Place:
    """Where the target stands.

    Attributes:
        symbol: label as printed, without its colon and source; None where there is none.
        address: of the instruction (the offset in its segment, where one is printed).
        bytes: the instruction's bytes as printed ("cc"); None where the column is missing.
        instruction: with single blanks ("int 3").
        segment: selector in front of the address, None where not printed.
    """

    symbol: Optional[str]
    address: int
    bytes: Optional[str]
    instruction: str
    segment: Optional[int] = None

    @property
    def place(self) -> Optional[NamedPlace]:
        """The label, taken apart."""
        return parse_place(self.symbol) if self.symbol else None


def take_place(lines: Sequence[Line], index: int) -> Optional[Tuple[Place, int]]:
    """A label with the instruction below it, or the instruction alone; and the index behind it.

    One blank line may stand between the two, as in logs with double spacing.
    """
    text = lines[index].text
    alone = _INSTRUCTION.match(text)
    if alone:
        return _place(None, alone), index + 1
    if "!" not in text and "+0x" not in text:
        return None
    label = _LABEL.match(text.rstrip())
    following = next_filled(lines, index + 1) if label else None
    if label is None or following is None:
        return None
    found = _INSTRUCTION.match(lines[following].text)
    if found is None:
        return None
    return _place(cut_source(label["symbol"]).rstrip(), found), following + 1


def _place(symbol: Optional[str], found: re.Match[str]) -> Place:
    return Place(
        symbol,
        parse_address(found["address"]),
        found["bytes"],
        " ".join(found["instruction"].split()),
        int(found["segment"], 16) if found["segment"] else None,
    )


def next_filled(lines: Sequence[Line], index: int) -> Optional[int]:
    """The first line with text, at most two blank ones further."""
    for position in range(index, min(index + 3, len(lines))):
        if lines[position].text.strip():
            return position
    return None


def is_instruction(text: str) -> bool:
    """Whether a line is an instruction with its address, as at a stop and in a disassembly."""
    return _INSTRUCTION.match(text) is not None
