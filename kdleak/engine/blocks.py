"""Finding the blocks of hits, on any engine."""

from __future__ import annotations

from kdleak.engine.base import Engine
from kdleak.nt.bigpages import BigPageTable
from kdleak.nt.block import BlockFinder
from kdleak.tags import PoolTag


def block_finder(engine: Engine, tag: PoolTag) -> BlockFinder:
    """What finds the blocks of a tag's hits on an attached engine."""
    target = engine.target
    big_pages = BigPageTable(engine, engine.symbol, target.build, target.pointer_size)
    return BlockFinder(engine, target.pointer_size, tag, big_pages, build=target.build)
