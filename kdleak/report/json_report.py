"""Reports for programs: versioned JSON, one document per result."""

from __future__ import annotations

from kdleak.result import HuntResult, RankResult, RestoreResult

FORMAT_VERSION = "1.0"


def hunt_json(result: HuntResult) -> str:
    """A hunt as a "kdleak.hunt" document: UTF-8 safe ASCII, ends with a newline."""
    raise NotImplementedError


def rank_json(result: RankResult) -> str:
    """A ranking as a "kdleak.rank" document."""
    raise NotImplementedError


def restore_json(result: RestoreResult) -> str:
    """A restore as a "kdleak.restore" document."""
    raise NotImplementedError
