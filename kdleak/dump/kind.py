"""The kinds of Windows crash dumps."""

from __future__ import annotations

import enum


class DumpKind(enum.Enum):
    """What a crash dump holds and how its pages are found; the value is what people call it."""

    FULL = "complete memory dump"
    KERNEL = "kernel memory dump (summary)"
    HEADER_ONLY = "header only"
    TRIAGE = "small memory dump (triage)"
    BITMAP_FULL = "complete or active memory dump (bitmap)"
    BITMAP_KERNEL = "kernel memory dump (bitmap)"
    KERNEL_RANGES = "kernel memory dump (.dump /k)"
    KERNEL_AND_USER_RANGES = "kernel and user memory dump (.dump /ka)"
    COMPLETE_RANGES = "complete memory dump (.dump /f)"

    @property
    def title(self) -> str:
        """The name for people. "Active memory" dumps have no number of their own: they are 5."""
        return self.value
