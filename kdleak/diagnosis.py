"""Why no hits came: the checklist of possible reasons, each with what was verified.

No hits is an answer too. The kernel's own counters tell most of it: they count every allocation
of the tag, whether or not a break came for it.
"""

from __future__ import annotations

from typing import List, Optional, Tuple

from kdleak.model import Pool, SymbolKind
from kdleak.pool_hit_tag import SYMBOL, edit_command
from kdleak.result import Check, CheckStatus, RankResult, TagGrowth
from kdleak.tags import PoolTag


def checklist(
    tag: PoolTag,
    *,
    symbol_kind: SymbolKind,
    growth: Optional[TagGrowth],
    read_back: bool,
    engine: str,
    rank: Optional[RankResult] = None,
) -> Tuple[Check, ...]:
    """Possible reasons for seeing no hit, in the order to look into them.

    Args:
        tag: the tag that was armed.
        symbol_kind: what the address of nt!PoolHitTag rests on.
        growth: how the tag's counters moved; None when they could not be read.
        read_back: whether the armed value was read back from the target.
        engine: name of the engine.
        rank: the ranking that picked the tag, if any.
    """
    checks = [
        Check(
            "the tag was written in the wrong byte order or without its blanks",
            CheckStatus.RULED_OUT if read_back else CheckStatus.POSSIBLE,
            f"the 4 bytes written are those of blocks: {_hex(tag)} ({edit_command(tag)})",
        ),
        Check(
            "the value did not arrive in the target",
            CheckStatus.RULED_OUT if read_back else CheckStatus.LIKELY,
            f"{SYMBOL} was read back after the write"
            if read_back
            else f"{SYMBOL} could not be read back; check with: dd {SYMBOL} L1",
        ),
        _symbols(symbol_kind),
        *_counters(tag, growth),
        Check(
            "a driver re-uses blocks of a lookaside list of its own",
            CheckStatus.POSSIBLE,
            "such re-use does not enter the pool allocator and cannot break",
        ),
        Check(
            "references are leaked, not allocations: old objects stay alive",
            CheckStatus.POSSIBLE,
            "look at handle and reference counts of the tag's objects",
        ),
        Check(
            "the memory does not come from pool (MDL pages, contiguous memory, system PTEs)",
            CheckStatus.POSSIBLE,
            "compare the pool totals with what is missing",
        ),
        Check(
            "a local kernel session cannot break in",
            CheckStatus.RULED_OUT,
            "the target is another machine",
        ),
        _filter(engine),
        _other_pool(tag, growth, rank),
        Check(
            "bit 31 is set in the value",
            CheckStatus.RULED_OUT,
            "it is stripped before the tag is written",
        ),
    ]
    order = {CheckStatus.LIKELY: 0, CheckStatus.POSSIBLE: 1, CheckStatus.RULED_OUT: 2}
    return tuple(sorted(checks, key=lambda check: order[check.status]))


def _hex(tag: PoolTag) -> str:
    return " ".join(f"{byte:02x}" for byte in tag.raw)


def _symbols(kind: SymbolKind) -> Check:
    question = "the symbols of nt are wrong or only its exports, so the address is"
    if kind is SymbolKind.PDB:
        return Check(question, CheckStatus.RULED_OUT, f"{SYMBOL} comes from the PDB of nt")
    return Check(
        question,
        CheckStatus.LIKELY,
        f"{SYMBOL} rests on {kind.value}; load the PDB that belongs to this kernel",
    )


def _counters(tag: PoolTag, growth: Optional[TagGrowth]) -> List[Check]:
    quiet = "the leak is not happening now: nothing allocates or frees the tag"
    unseen = f"this kernel does not compare every block with {SYMBOL}"
    if growth is None:
        return [
            Check(
                quiet,
                CheckStatus.POSSIBLE,
                f"the tag's counters could not be read; see !poolused 0 {tag}",
            )
        ]
    moved = growth.allocs + growth.frees
    if moved == 0:
        return [
            Check(
                quiet,
                CheckStatus.LIKELY,
                f"the kernel counted no allocation and no free of '{tag}' in "
                f"{growth.seconds:.0f} s; make the leak happen and hunt again",
            )
        ]
    seen = f"the kernel counted {growth.allocs:,} allocations and {growth.frees:,} frees of '{tag}'"
    return [
        Check(quiet, CheckStatus.RULED_OUT, seen),
        Check(
            unseen,
            CheckStatus.LIKELY,
            f"{seen} between the two readings, yet no break arrived while the tag was armed",
        ),
    ]


def _filter(engine: str) -> Check:
    question = "an exception filter of the debugger swallows the break (sxd bpe, sxi bpe)"
    if engine == "native":
        return Check(question, CheckStatus.RULED_OUT, "the native engine has no filters")
    return Check(question, CheckStatus.POSSIBLE, "look with sx; put it back with: sxe bpe")


def _other_pool(tag: PoolTag, growth: Optional[TagGrowth], rank: Optional[RankResult]) -> Check:
    question = "the tag grows elsewhere: in the other pool, or in session pool"
    parts = []
    if growth is not None:
        parts = [
            f"{pool.value}: {growth.after.of(pool).outstanding:,} blocks outstanding"
            for pool in Pool
        ]
    if rank is not None and rank.suspect is not None and rank.suspect.tag == tag:
        parts.append(f"the ranking saw it grow in {rank.suspect.pool.value} pool")
    parts.append(
        "breaks come for both pools and for session pool, but these tables do not count the latter"
    )
    return Check(question, CheckStatus.POSSIBLE, "; ".join(parts))
