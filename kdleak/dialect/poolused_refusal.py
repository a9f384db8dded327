"""Column titles that are not those of ``!poolused``, and why a table below them is refused.

Other programs print usage by tag too, some with sentences of the debugger in it, and authors write
from memory what they think the debugger prints. Their columns mean other things.
"""

from __future__ import annotations

import re

from kdleak.dialect.poolused_columns import read_header

_LONGEST = 240
_TITLE = re.compile(
    r"#*|(?:Pool)?Tags?|Pool|Used|Usage|Type|Count|Size|Bytes|Kb|KB|MB|Mb|Allocs?|Allocations?|Frees?|Diff|"
    r"Total|Peak|Current|Per|Driver|Binary|Module|Owner|Description|Name|Address|Blocks|"
    r"Outstanding|Delta|Leaked|(?:Non)?-?[Pp]aged?\w*|Mapped_?Driver|\(\w+\)|[%|:]|/s",
    re.IGNORECASE,
)
_COUNTERS = re.compile(
    r"Used|Usage|Count|Size|\w*Bytes|Allocs?|Allocations?|Frees?|Diff|Blocks|Total|Outstanding",
    re.IGNORECASE,
)
_UNIT = re.compile(r"\(\w{1,12}\)\Z")
_POOLMON = re.compile(r"\bTag\s+Type\s+Allocs\s+Frees\s+Diff\b")
_VERIFIER = re.compile(r"\bAddress\s+Length\s+Tag\b")


def why_foreign(text: str, *, poolmon_too: bool = False) -> str:
    """Why a table below this line is no ``!poolused``; "" when the line holds no titles.

    Args:
        text: one line.
        poolmon_too: PoolMon's titles count as well. A log may hold both, and another reader takes
            those.
    """
    if len(text) > _LONGEST or "ag" not in text.lower():
        return ""
    words = [_UNIT.sub("", word) or word for word in text.replace("|", " ").split()]
    if len(words) < 3 or not any(word.lower() in ("tag", "tags", "pooltag") for word in words):
        return ""
    if _POOLMON.search(text):
        return "the columns are those of PoolMon" if poolmon_too else ""
    if _VERIFIER.search(text) or read_header(text) is not None:
        return ""
    known = sum(_TITLE.fullmatch(word) is not None for word in words)
    counters = sum(_COUNTERS.fullmatch(word) is not None for word in words)
    if known < 3 or counters < 1 or len(words) - known > len(words) // 4:
        return ""
    titles = " ".join(words)[:80]
    return f"the columns ({titles}) are not those of !poolused"
