"""A typed extension command in a log: ``3: kd> !poolused 2 Wisp   // a remark``.

The prompt may be missing, repeated, reduced (``0 kd``) or behind a comment sign; a remark or the
stamp of a remote session may follow.
"""

from __future__ import annotations

import re
from typing import Optional

from kdleak.dialect.prompt import find_prompt, split_remark
from kdleak.dialect.source import Line

_LONGEST_PROMPT = 96
_LONGEST_COMMAND = 256


def typed_command(text: str, name: str) -> Optional[str]:
    """The command of one extension as it was typed, without prompt and remark.

    Args:
        text: one line.
        name: the extension in lower case without the sign: ``poolused``.

    Returns:
        ``!poolused 2 Wisp``, or None when the line holds no such command or holds it in a sentence.
    """
    sign = text.find("!", 0, _LONGEST_PROMPT)
    if sign < 0:
        return None
    rest = text[sign : sign + _LONGEST_COMMAND]
    if not re.match(rf"!(?:\w{{1,32}}\.)?{name}(?=\s|;|/|$)", rest, re.IGNORECASE):
        return None
    if not _only_prompts(text[:sign]):
        return None
    return split_remark(rest.strip())[0]


def _only_prompts(text: str) -> bool:
    """Whether nothing but prompts and comment signs stands in front of a command."""
    text = text.strip().lstrip("*#/: ")
    while text:
        found = find_prompt(Line(0, text))
        if found is None or len(found.command) >= len(text):
            return False
        text = found.command
    return True
