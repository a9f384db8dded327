"""Other containers of memory, by name, with what to do next."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from kdleak.errors import TargetError, UnsupportedTarget


def refuse_container(path: Path, start: bytes, size: int) -> NoReturn:
    """Says what a file is that is no crash dump."""
    if not size:
        raise TargetError(f"opening the dump {path}", "the file is empty", "copy it again")
    raise UnsupportedTarget(
        f"opening the dump {path}", f"it begins with {start[:8]!r}, which no crash dump does"
    )
