"""The journal: what we changed in a target and how to undo it, on disk before the change."""

from __future__ import annotations

from pathlib import Path
from typing import Mapping


def state_directory(environ: Mapping[str, str], platform: str) -> Path:
    """The folder journals live in: $KDLEAK_STATE_DIR, else the platform's place for state."""
    raise NotImplementedError


class Journal:
    """Journal files of one state directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @classmethod
    def default(cls) -> Journal:
        """The journal of this user."""
        raise NotImplementedError
