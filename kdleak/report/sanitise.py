"""Names from the target are untrusted text: what they could do to a terminal is made harmless.

A driver chooses its own module and symbol names. Control characters, escape sequences, line
ends, and characters that reorder or hide text are shown as visible escapes; everything else is
kept, whatever the language. (``str.isprintable`` is false for exactly those: Unicode's control,
format, surrogate, private, unassigned and separator characters, the blank excepted.)
"""

from __future__ import annotations


def sanitise(text: str) -> str:
    r"""The text on one line, with every harmful character as ``\x1b`` or ``\u202e``."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def fit(text: str, width: int) -> str:
    """The text cut to ``width`` characters, the end marked ``...``; at least three are kept."""
    width = max(3, width)
    return text if len(text) <= width else text[: width - 3] + "..."
