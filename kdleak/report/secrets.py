"""Keeping KDNET keys out of what is said: a second safeguard behind never printing them.

A key in the wrong place of a command line comes back in what is said about that place. The
letters that stand for a key in our own advice are no secret.
"""

from __future__ import annotations

import re

_SAMPLE = r"(?!a\.b\.c\.d\b|W\.X\.Y\.Z\b)"
_KEY = r"[0-9a-z]{1,13}(?:\.[0-9a-z]{1,13}){3}"
_BARE_KEY = re.compile(rf"(?<![0-9a-z.]){_SAMPLE}{_KEY}(?![0-9a-z.])", re.IGNORECASE)
_NAMED_KEY = re.compile(
    rf"((?:key|password)\s*=\s*){_SAMPLE}(?:{_KEY}|(?<==)[^\s,;'\")]+)", re.IGNORECASE
)


def without_secrets(text: str) -> str:
    """The text with the value of everything called a key blanked."""
    return _NAMED_KEY.sub(r"\1...", text)


def without_keys(text: str) -> str:
    """The text with everything blanked that reads like a key, whether it is called one or not."""
    return _BARE_KEY.sub("...", without_secrets(text))
