"""Results of the procedure as plain values: what a hunt, a ranking and a disarm came to.

Everything a report needs is in here; a report never asks the target again. Sizes are bytes,
times are seconds, addresses are target virtual addresses.
"""

from __future__ import annotations

from kdleak.model import NO_STACK
from kdleak.result.disarm import (
    REPLAYED,
    DisarmState,
    DisarmStatus,
    RestoreItem,
    RestoreResult,
    TargetChange,
)
from kdleak.result.hunt import (
    Budgets,
    Check,
    CheckStatus,
    Completeness,
    HuntResult,
    StopReason,
    TagGrowth,
)
from kdleak.result.progress import (
    HuntPhase,
    HuntProgress,
    SiteProgress,
)
from kdleak.result.ranking import (
    PoolLimit,
    RankBy,
    RankResult,
    RankRow,
    Trend,
    TrendFit,
)
from kdleak.result.sites import (
    CallSite,
    Interval,
    Judgement,
    Pairing,
    Scaled,
    Scaling,
    SeriesPoint,
    SiteGrowth,
    StackUse,
)

__all__ = [
    "Budgets",
    "CallSite",
    "Check",
    "CheckStatus",
    "Completeness",
    "DisarmState",
    "DisarmStatus",
    "HuntPhase",
    "HuntProgress",
    "HuntResult",
    "Interval",
    "Judgement",
    "NO_STACK",
    "Pairing",
    "PoolLimit",
    "REPLAYED",
    "RankBy",
    "RankResult",
    "RankRow",
    "RestoreItem",
    "RestoreResult",
    "Scaled",
    "Scaling",
    "SeriesPoint",
    "SiteGrowth",
    "SiteProgress",
    "StackUse",
    "StopReason",
    "TagGrowth",
    "TargetChange",
    "Trend",
    "TrendFit",
]
