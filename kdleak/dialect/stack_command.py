"""The command above a stack."""

from __future__ import annotations

import re
from typing import Optional, Sequence

from kdleak.dialect.prompt import Prompt, find_prompt
from kdleak.dialect.source import Line
from kdleak.dialect.stack_messages import is_message

_STACK_COMMAND = re.compile(r"(?:~\S{0,8}\s*)?k(?P<letters>[bcdflmnprstv]{0,6})(?=[\s;=]|\Z)", re.I)
_MOST_LINES_ABOVE = 64


def _letters(command: str) -> Optional[str]:
    found = _STACK_COMMAND.match(command)
    return found.group("letters").lower() if found else None


def is_stack_command(command: str) -> bool:
    """``k`` and its relatives that print stacks, in either case, with ``~*`` in front or not."""
    letters = _letters(command)
    return letters is not None and "d" not in letters


def is_call_site_command(command: str) -> bool:
    """``kc`` and ``kcn``: call sites without addresses."""
    letters = _letters(command)
    return letters is not None and "c" in letters and "d" not in letters


def prompt_above(lines: Sequence[Line], index: int, reach: int) -> Optional[Prompt]:
    """The prompt right above a line: nothing but blank lines and messages stand between."""
    for position in range(index - 1, max(index - 1 - reach, -1), -1):
        line = lines[position]
        if not line.text.strip() or is_message(line.text):
            continue
        return find_prompt(line)
    return None


def command_above(lines: Sequence[Line], index: int) -> Optional[str]:
    """The last command typed above a line, within 64 lines."""
    for position in range(index - 1, max(index - 1 - _MOST_LINES_ABOVE, -1), -1):
        prompt = find_prompt(lines[position])
        if prompt is not None:
            return prompt.command or None
    return None
