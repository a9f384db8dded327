"""nt!PoolHitTag as a value: what it may hold, how it is written in WinDbg's language.

The kernel compares all 4 bytes of a block's tag with it on allocation and on free and executes
a break instruction when they are equal. Its value on an idle system is not 0 everywhere
(0xffffff0f is documented for Windows 7), so it is always saved and put back.
"""

from __future__ import annotations

from typing import Tuple

from kdleak.tags import PROTECTED_POOL, PoolTag

SYMBOL = "nt!PoolHitTag"
SIZE = 4


def as_number(raw: bytes) -> int:
    """The 32-bit value of the 4 bytes as they lie in memory."""
    return int.from_bytes(raw, "little")


def looks_armed(raw: bytes) -> bool:
    """Whether the value reads like a pool tag, so that somebody may have armed it.

    Four printable characters without bit 31. Idle values seen (0, 0xffffff0f) are neither.
    """
    return all(0x20 <= byte < 0x7F for byte in raw)


def describe(raw: bytes) -> str:
    """The value for people: ``0x6b61654c ('Leak')``."""
    text = f"0x{as_number(raw):08x}"
    return f"{text} ('{PoolTag.from_bytes(raw).text}')" if looks_armed(raw) else text


def edit_command(tag: PoolTag) -> str:
    """The WinDbg command that arms a tag.

    ``ed`` takes four characters from the highest byte to the lowest, so a tag is typed
    backwards, its blanks included. A tag that does not print is given as a number.
    """
    if all(0x20 <= byte < 0x7F and byte not in b"'\"\\;" for byte in tag.raw):
        return f"ed {SYMBOL} '{tag.reversed_text}'"
    return f"ed {SYMBOL} 0x{tag.value & ~PROTECTED_POOL:08x}"


def repair_commands(original: bytes) -> Tuple[str, ...]:
    """What a person does when a disarm could not be confirmed: WinDbg commands, then ours."""
    value = as_number(original)
    return (
        f"ed {SYMBOL} 0x{value:08x}",
        f"dd {SYMBOL} L1    (must show {value:08x})",
        "kdleak restore -k <the same connection>    (does both, from the journal)",
    )
