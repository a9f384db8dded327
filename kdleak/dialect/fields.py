"""Fields that the outputs of several extensions share: addresses, gaps, failure lines.

Also the way an output finds the command it answers: on its own first line, or on the prompt line
just above it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Callable, Optional, Sequence

from kdleak.dialect.addresses import ADDRESS as _ADDRESS
from kdleak.dialect.addresses import parse_address
from kdleak.dialect.prompt import find_prompt
from kdleak.dialect.source import Line
from kdleak.dialect.typed_command import typed_command

ADDRESS = rf"(?:0x)?{_ADDRESS}(?![0-9a-zA-Z_`'])"
"""An address as a whole word, with or without ``0x`` in front."""

LOOK_AHEAD = 4
"""Lines that a reader looks past one it does not know, for a row of its own."""

LOOK_BEHIND = 3
"""Lines that a reader looks up for the command of the output it stands in."""

_WHOLE_ADDRESS = re.compile(ADDRESS + r"\Z")

_PREAMBLE = re.compile(
    r"\*{3} CacheSize too low|Max cache size is\s{0,9}:|Total memory in cache\s{0,9}:|"
    r"Number of regions cached\s{0,9}:|[0-9]{1,12} full reads broken into|counts\s{0,9}: [0-9]|"
    r"bytes\s{0,9}: [0-9]|\*\* [A-Za-z]{1,20} PTEs are implicitly decoded"
)

_FAILURE = re.compile(
    r"\bis not (?:a )?valid\b|\bunable to\b|\bfailed to\b|\bcould not\b|\bcannot\b|\bcan't\b|"
    r"\bdoes(?:n't| not) look like\b|\bcorrupt|\bis invalid\b|\bchecking (?:for|to|large)\b|"
    r"\bnot (?:mapped|present|found|available)\b|\berror\b|\bwrong\b|\bheap key\b|\bno export\b",
    re.IGNORECASE,
)


_FAILURE_WORDS = (
    *("valid", "unable", "failed", "could", "cannot", "can't", "look like", "corrupt", "checking"),
    *("not mapped", "not present", "not found", "not available", "error", "wrong", "heap key"),
    "no export",
)
"""One of them is in every text that _FAILURE finds; looking for words is faster by far."""


@dataclass(frozen=True)
class Opening:
    """Where an output begins, and the command it answers.

    Attributes:
        command: as typed, without prompt and remarks; None if the text does not show it.
        first: index of the first line behind the command line.
    """

    command: Optional[str]
    first: int


def read_address(text: str) -> Optional[int]:
    """The address that a text consists of, None if it is none."""
    return parse_address(text) if _WHOLE_ADDRESS.match(text) else None


def is_gap(text: str) -> bool:
    """Whether an author left something out here: ``......``, ``[...]``, ``... many more``."""
    bare = text[:64].strip()
    return bare.startswith(("...", "[...", "<...", "\N{HORIZONTAL ELLIPSIS}")) or (
        bare != "" and not bare.strip(".") and len(text.strip(" .\t")) == 0
    )


def is_preamble(text: str) -> bool:
    """Whether the debugger talks about its cache here, as it does before long searches."""
    return _PREAMBLE.match(text[:200].lstrip()) is not None


def is_failure(text: str) -> bool:
    """Whether a line says, in the debugger's words, that something could not be done."""
    text = text[:400].lower()
    return any(word in text for word in _FAILURE_WORDS) and _FAILURE.search(text) is not None


def is_extension(command: str, name: str) -> bool:
    """Whether a command line calls an extension, such as ``!pool`` or ``.reload;!kdexts.pool``."""
    for part in command[:400].split(";"):
        word = part.split(None, 1)[0].lower() if part.strip() else ""
        if word.startswith("!") and word[1:].rpartition(".")[2] == name:
            return True
    return False


def find_opening(
    lines: Sequence[Line], index: int, name: str, accepts: Optional[Callable[[str], bool]] = None
) -> Optional[Opening]:
    """The command line at an index, if it is one whose output the caller reads.

    Args:
        lines: the log.
        index: of the line in question.
        name: the extension's name in lower case, without the sign.
        accepts: whether a command of this name is meant; all are if it is not given.
    """
    line = lines[index]
    if "!" not in line.text:
        return None
    prompt = find_prompt(line)
    command: Optional[str]
    if prompt is not None and is_extension(prompt.command, name):
        command = prompt.command
    else:
        command = typed_command(line.text, name)
    if command is None or (accepts is not None and not accepts(command)):
        return None
    return Opening(command, index + 1)


def find_opening_above(
    lines: Sequence[Line], index: int, name: str, accepts: Optional[Callable[[str], bool]] = None
) -> Optional[Opening]:
    """The command line just above an index, blank lines between them not counted."""
    for above in range(index - 1, max(index - 1 - LOOK_BEHIND, -1), -1):
        if lines[above].text.strip():
            found = find_opening(lines, above, name, accepts)
            return Opening(found.command, index) if found else None
    return None


def opening_of(
    lines: Sequence[Line], index: int, name: str, accepts: Optional[Callable[[str], bool]] = None
) -> Opening:
    """Where an output begins whose first line, or whose command line, stands at an index.

    See ``find_opening`` for the arguments; ``command`` is None where no command line is there.
    """
    return (
        find_opening(lines, index, name, accepts)
        or find_opening_above(lines, index, name, accepts)
        or Opening(None, index)
    )
