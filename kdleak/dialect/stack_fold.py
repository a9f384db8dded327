"""A whole stack on one line, as some pages and chats print it: header and rows apart again."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Optional, Tuple

from kdleak.dialect.prompt import PROMPT_PATTERN, find_prompt
from kdleak.dialect.source import Line
from kdleak.dialect.stack_header import read_header

_HEADER = re.compile(
    r"(?:# *)?(?:ChildEBP|Child-SP|FramePtr|RetAddr)\b(?:[ :]+(?:Child-BSP|RetAddr|Args to Child|"
    r"Param[123]|Function Name|Call Site))*[ :]*"
)
_ADDRESS = re.compile(r"[0-9a-fA-F]{8}(?:\\?[`'\u2019\u00b4]?[0-9a-fA-F]{8})?\Z")
_NUMBER = re.compile(r"[0-9a-fA-F]{2,3}\Z")
_INLINE = re.compile(r"\(Inline\b")
_PROMPT = re.compile(rf"(?<=\s){PROMPT_PATTERN}")


@dataclass(frozen=True)
class Folded:
    """A stack that stood on one line.

    Attributes:
        command: the command in front of it; None where there is none.
        lines: header and rows, all with the number of that line.
    """

    command: Optional[str]
    lines: Tuple[Line, ...]


def unfold(line: Line) -> Optional[Folded]:
    """Part a line that holds a header and rows; None for every other line."""
    found = _HEADER.search(line.text)
    if found is None or found.end() == len(line.text):
        return None
    header = found.group().rstrip()
    if read_header(header) is None:
        return None
    front = line.text[: found.start()]
    command: Optional[str] = None
    if front.strip():
        prompt = find_prompt(Line(line.number, front))
        if prompt is None:
            return None
        command = prompt.command or None
    body = line.text[found.end() :]
    behind = _PROMPT.search(body)
    rows = _rows(body[: behind.start()] if behind else body, numbered=header.startswith("#"))
    if not rows:
        return None
    return Folded(command, tuple(Line(line.number, text) for text in (header, *rows)))


def _rows(body: str, *, numbered: bool) -> List[str]:
    """A row begins at an address that does not stand behind another one or a colon."""
    rows: List[List[str]] = []
    words = body.split(" ")
    in_columns = False
    for index, word in enumerate(words):
        address = _ADDRESS.match(word) is not None
        number = numbered and _NUMBER.match(word) is not None and _next_is_column(words, index)
        if not in_columns and (number or (address and not (numbered and rows))):
            rows.append([word])
            in_columns = True
            continue
        if not rows:
            if word:
                return []
            continue
        rows[-1].append(word)
        in_columns = address or word in ("", ":") if in_columns else False
    return [" ".join(row) for row in rows]


def _next_is_column(words: List[str], index: int) -> bool:
    following = words[index + 1] if index + 1 < len(words) else ""
    return _ADDRESS.match(following) is not None or _INLINE.match(following) is not None
