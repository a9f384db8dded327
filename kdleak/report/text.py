"""Reports for people: pure functions from results to text."""

from __future__ import annotations

from kdleak.report.palette import PLAIN, Palette
from kdleak.result import HuntResult, RankResult, RestoreResult


def render_hunt(
    result: HuntResult, *, width: int = 100, style: Palette = PLAIN, top: int = 10
) -> str:
    """A hunt as text; the safety line is the last one. Ends with a newline."""
    raise NotImplementedError


def render_rank(
    result: RankResult, *, width: int = 100, style: Palette = PLAIN, top: int = 20
) -> str:
    """A ranking as a table like PoolMon's. Ends with a newline."""
    raise NotImplementedError


def render_restore(result: RestoreResult, *, width: int = 100, style: Palette = PLAIN) -> str:
    """What ``kdleak restore`` found and did. Ends with a newline."""
    raise NotImplementedError
