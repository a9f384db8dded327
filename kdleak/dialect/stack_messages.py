"""Lines the debugger prints between the rows of a stack: warnings, symbol trouble, progress.

They never end a stack. Warnings are kept; progress and rules are stepped over. A message can be
glued to the end of a row, and a mail program can break it in two.
"""

from __future__ import annotations

import re
from typing import Optional, Sequence, Tuple

from kdleak.dialect.source import Line

_KEPT = ("WARNING:", "*** ERROR", "*** WARNING", "Unable to load image", "DBGHELP:")
_STEPPED_OVER = (
    "Loading symbols for",
    "*** Stack trace for last set context",
    "SYMSRV:",
    "ModLoad:",
    "*** Resetting default scope",
)
_GLUED = re.compile(
    r"(?:WARNING: Stack|WARNING: Frame|\*\*\* (?:ERROR|WARNING)|"
    r"Unable to load image |DBGHELP: )"
)
_SENTENCES = (
    "WARNING: Stack unwind information not available. Following frames may be wrong.",
    "WARNING: Frame IP not in any known module. Following frames may be wrong.",
    "*** ERROR: Module load completed but symbols could not be loaded for ",
    "*** ERROR: Symbol file could not be found.  Defaulted to export symbols for ",
    "*** WARNING: Unable to verify timestamp for ",
    "*** WARNING: Unable to verify checksum for ",
    "*** WARNING: symbols checksum is wrong ",
    "*** WARNING: symbols timestamp is wrong ",
)
_BARE_SENTENCES = tuple("".join(sentence.split()) for sentence in _SENTENCES)
_DOUBT = "Followingframesmaybewrong"
_MOST_PARTS = 4
_FILE_NAME = re.compile(r"[\w.\\$:~-]{1,256}\Z")

_GAP = re.compile(
    r"\s*(?:\.{2,}|\[[A-Za-z][^\[\]@]{1,200}\]|-{3,} ?[^-]{1,60}-{3,}|"
    r"\[\s*\.{2,}\s*\]|\N{HORIZONTAL ELLIPSIS}|<\s*snip\s*>)\s*\Z"
)
_RULE = re.compile(r"\s*(?:[_=~*-]\s*){4,}\Z")
_REGISTERS = re.compile(
    r"\s*(?:[a-z]{2,4}[0-9]{0,2}|[rx][0-9]{1,2}|r[0-9]{1,2}d?)=[0-9a-fA-F?`]+\s?"
)


def is_message(text: str) -> bool:
    """Whether a line is a message of the debugger that may stand in a stack."""
    stripped = text.lstrip()
    return stripped.startswith(_KEPT) or stripped.startswith(_STEPPED_OVER)


def is_gap(text: str) -> bool:
    """Whether a line is the author's ``...``, rule or bracketed remark: rows were left out."""
    return _GAP.match(text) is not None


def is_interlude(text: str) -> bool:
    """Whether a line is a rule or a line of registers (``!for_each_frame``, ``.frame /c``)."""
    return _RULE.match(text) is not None or _REGISTERS.match(text) is not None


def glued_message(text: str) -> int:
    """Where a message begins that was printed in the middle of a row; -1 when there is none."""
    if not any(word in text for word in ("***", "Unable to", "WARNING", "DBGHELP")):
        return -1
    found = _GLUED.search(text)
    return found.start() if found and found.start() else -1


def take_message(lines: Sequence[Line], index: int, text: str = "") -> Tuple[Optional[str], int]:
    """Read a message that begins in a line, with the lines it was broken into.

    Args:
        lines: the log.
        index: the line it begins in.
        text: the message alone when it is glued to something.

    Returns:
        The message without blanks at its ends (None when it is only progress), and the index of
        the first line that is not its own.
    """
    text = (text or lines[index].text).strip()
    index += 1
    if not text.startswith(_KEPT):
        return None, index
    bare = "".join(text.split())
    last = min(len(lines), index + _MOST_PARTS)
    while index < last and _is_cut(bare):
        part = lines[index].text.strip()
        joined = bare + "".join(part.split())
        if not part or not _goes_on(joined, part):
            break
        bare = joined
        text = f"{text} {part}"
        index += 1
    for sentence, squeezed in zip(_SENTENCES, _BARE_SENTENCES):
        if bare == squeezed and sentence.endswith("."):
            # Joined again, a word broken by a terminal has no blank inside.
            return sentence, index
    return text, index


def _is_cut(bare: str) -> bool:
    """The text so far is the beginning of a known sentence, with its last words missing."""
    return any(
        sentence.startswith(bare) and (len(bare) < len(sentence) or not sentence.endswith("."))
        for sentence in _BARE_SENTENCES
    )


def _goes_on(joined: str, part: str) -> bool:
    """The next line is the rest of the sentence, or begins with it and ends in the file's name."""
    if any(sentence.startswith(joined) for sentence in _BARE_SENTENCES):
        return True
    return any(
        joined.startswith(sentence)
        and not sentence.endswith(".")
        and _FILE_NAME.match(part.rsplit(None, 1)[-1]) is not None
        for sentence in _BARE_SENTENCES
    )


def casts_doubt(message: str) -> bool:
    """Whether the frames below this message may be wrong."""
    return _DOUBT in "".join(message.split())
