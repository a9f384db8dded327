"""The hunt in WinDbg's own words: the commands a person would type, printed instead of run."""

from __future__ import annotations

from typing import List, Optional

from kdleak.hunt_options import HuntOptions, RankOptions
from kdleak.model import Pool
from kdleak.pool_hit_tag import SYMBOL, edit_command
from kdleak.result import RankBy
from kdleak.tags import PoolTag

_USED_FLAGS = {Pool.PAGED: 4, Pool.NONPAGED: 2}
"""Flags of !poolused: 2 sorts by nonpaged, 4 by paged pool."""


def explain(options: HuntOptions, *, original: Optional[int] = None) -> str:
    """The WinDbg commands that a hunt with these options amounts to.

    Args:
        options: of the hunt; without a tag the choice is explained too.
        original: idle value of nt!PoolHitTag where it is known.

    Returns:
        One command per line with comments after ``$$`` (WinDbg's own comment token); ends with
        a newline.
    """
    lines: List[str] = [
        "$$ Load symbols.",
        ".reload",
    ]
    if options.tag is None:
        lines += _ranking(options.rank)
        arm = f"ed {SYMBOL} '....'"
        name = "the tag (typed backwards, blanks included)"
    else:
        lines += ["$$ Usage of the tag before.", *_usage(options.tag, options.rank.pool)]
        arm, name = edit_command(options.tag), f"'{options.tag}'"
    back = f"0x{original:08x}" if original is not None else "<the value dd showed>"
    lines += [
        "$$ Save the value that is there now: it must go back at the end.",
        f"dd {SYMBOL} L1",
        f"$$ Arm {name}: the target breaks at every allocation and free of it.",
        arm,
        f"db {SYMBOL} L4",
        (
            f"$$ At every break take the stack and go on, up to {options.max_hits} hits or "
            f"{options.max_seconds:g} s."
        ),
        "$$ A break outside nt!ExAllocate*/nt!ExFree* is not a hit: look at it yourself.",
        "g",
        f"kb {options.stack_depth}",
        "$$ ... g and kb again, then disarm with the original value and read it back:",
        f"ed {SYMBOL} {back}",
        f"dd {SYMBOL} L1",
        "$$ Usage afterwards.",
        *(_usage(options.tag, options.rank.pool) if options.tag else ["!poolused 4"]),
        "g",
    ]
    return "\n".join(lines) + "\n"


def explain_rank(options: RankOptions) -> str:
    """The WinDbg commands that a ranking with these options amounts to; ends with a newline."""
    return "\n".join(["$$ Load symbols.", ".reload", *_ranking(options)]) + "\n"


def _ranking(options: RankOptions) -> List[str]:
    pools = [Pool.PAGED, Pool.NONPAGED] if options.pool is None else [options.pool]
    used = [f"!poolused {_USED_FLAGS[pool]}" for pool in pools]
    if options.by is RankBy.USED:
        return ["$$ The biggest users of each pool.", *used]
    return [
        f"$$ Usage of all tags, {options.snapshots} times over {options.seconds:g} s; compare.",
        *used,
        "g",
        "$$ ... wait, break in (Ctrl+Break) ...",
        *used,
    ]


def _usage(tag: PoolTag, pool: Optional[Pool]) -> List[str]:
    name = tag.text.replace(" ", "?")  # a blank cannot be typed there; ? is any one character
    return [
        f"!poolused {flag} {name}"
        for which, flag in _USED_FLAGS.items()
        if pool is None or which is pool
    ]
