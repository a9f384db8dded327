"""What is made of crash dumps: an overview of one, and what grew between several."""

from __future__ import annotations

from kdleak.dumped.compare import DumpComparison, DumpMoment, compare_dumps, moment_of

__all__ = ["DumpComparison", "DumpMoment", "compare_dumps", "moment_of"]
