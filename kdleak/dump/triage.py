"""Contents of a small memory dump (triage): read by address, for it has no physical pages."""

from __future__ import annotations

from kdleak.dump.header import DumpHeader


class TriageContents:
    """What a small memory dump holds."""


def read_triage(data: memoryview, header: DumpHeader, remarks: list[str]) -> TriageContents:  # noqa: ARG001
    """The contents."""
    return TriageContents()
