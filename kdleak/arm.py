"""Arming and disarming nt!PoolHitTag: the only code that writes to a target."""

from __future__ import annotations

from typing import Callable, Optional

from kdleak.engine.base import Engine
from kdleak.journal import Journal
from kdleak.result import RestoreResult


def restore(
    engine: Engine,
    journal: Journal,
    *,
    force_value: Optional[int] = None,
    narrate: Callable[[str], None] = lambda _: None,
) -> RestoreResult:
    """Undo what an earlier kdleak left in this target (``kdleak restore``)."""
    raise NotImplementedError
