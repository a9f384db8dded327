"""Command lines that a report proposes, fit for sh, cmd.exe and PowerShell alike."""

from __future__ import annotations

import re

from kdleak.tags import PoolTag

_PLAIN_TAG = re.compile(r"(?!0x)[A-Za-z0-9_.]{1,4}\Z")
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./\\:+-]+\Z")


def tag_word(tag: PoolTag) -> str:
    """A tag as it can be typed anywhere: itself, else its value.

    No quotes: cmd.exe hands single ones on, and shells expand what is between double ones.
    """
    text = tag.text.rstrip(" ")
    # A dot may stand for a byte that does not print.
    typed = _PLAIN_TAG.match(text) and PoolTag.parse(text) == tag
    return text if typed else f"0x{tag.value:x}"


def path_word(path: str) -> str:
    """A path as it can be typed, in double quotes where it needs some."""
    return path if _PLAIN_PATH.match(path) else f'"{path}"'
