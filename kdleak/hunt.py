"""The hunt: rank, arm, take a stack at every break, disarm, and say who holds the memory.

Runs on any engine, in any host; standard library only.
"""

from __future__ import annotations

import time
from typing import Callable, Optional, Protocol

from kdleak.engine.base import Engine
from kdleak.hunt_options import HuntOptions, RankOptions
from kdleak.journal import Journal
from kdleak.model import Block, HitKind, Registers
from kdleak.result import HuntProgress, HuntResult
from kdleak.tags import PoolTag

__all__ = ["BlockFinderLike", "HuntOptions", "RankOptions", "explain", "hunt"]


class BlockFinderLike(Protocol):
    """What finds the block of a hit; ``kdleak.nt.block.BlockFinder`` is one."""

    def find(
        self,
        registers: Registers,
        stack_address: int,
        stack_bytes: bytes,
        program_counter: int,
        kind: HitKind,
    ) -> Block:
        """The block the allocator is working on at this hit."""


def hunt(
    engine: Engine,
    options: HuntOptions,
    *,
    journal: Journal,
    block_finder_factory: Optional[Callable[[Engine, PoolTag], BlockFinderLike]] = None,
    clock: Callable[[], float] = time.monotonic,
    wall_clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
    narrate: Callable[[str], None] = lambda _: None,
    progress: Optional[Callable[[HuntProgress], None]] = None,
) -> HuntResult:
    """Hunt one tag; see design: rules of the procedure."""
    raise NotImplementedError


def explain(options: HuntOptions, *, original: Optional[int] = None) -> str:
    """The WinDbg commands that a hunt with these options amounts to."""
    raise NotImplementedError
