"""Ranking of pool tags by growth over a measured interval, or by bytes outstanding."""

from __future__ import annotations

import time
from typing import Callable, Optional

from kdleak.engine.base import Engine
from kdleak.hunt_options import RankOptions
from kdleak.result import HuntProgress, RankResult


def rank(
    engine: Engine,
    options: RankOptions,
    *,
    clock: Callable[[], float] = time.monotonic,
    narrate: Callable[[str], None] = lambda _: None,
    progress: Optional[Callable[[HuntProgress], None]] = None,
) -> RankResult:
    """Rank all tags. A dump is ranked by bytes outstanding only."""
    raise NotImplementedError
