"""``kdleak find``: the blocks of a pool tag in a crash dump."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, List, Optional, cast

import click

from kdleak.cli import console
from kdleak.cli.session import attached
from kdleak.cli.shared_options import output_options, pool_option
from kdleak.cli.tag_argument import tag_argument
from kdleak.cli.target_options import DUMP, TargetOptions, choose_target, target_options
from kdleak.engine.base import Engine
from kdleak.errors import ExitCode, KdleakError, UnsupportedTarget, UsageError
from kdleak.model import Pool, PoolSnapshot, TagUsage
from kdleak.nt.blocks.search import DEFAULT_LIMIT, search_blocks
from kdleak.report.find_json import find_json
from kdleak.report.find_text import render_find
from kdleak.tags import PoolTag
from kdleak.windbg.recording import Memory

if TYPE_CHECKING:
    from kdleak.engine.dump import DumpEngine

_SIMILAR = 5
_LARGEST_LIMIT = 100_000
_NOT_FOR_DUMPS = (
    "connection", "engine", "kd", "python", "kb", "record", "replay", "timeout",
)  # fmt: skip
"""Options of a target that a search refuses or has no use for: its help leaves them out."""


@click.command("find")
@tag_argument
@target_options
@click.option(
    "--limit",
    type=click.IntRange(min=0, max=_LARGEST_LIMIT),
    default=DEFAULT_LIMIT,
    show_default=True,
    metavar="N",
    help="Most blocks to show one by one. All are counted.",
)
@pool_option
@click.option(
    "--size",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="Show only blocks of this size, header included, as in the table of sizes.",
)
@output_options
def command(
    tag: PoolTag,
    target: TargetOptions,
    limit: int,
    pool: Optional[Pool],
    size: Optional[int],
    as_json: bool,
    output: Optional[Path],
    force: bool,
) -> int:
    """Find the blocks of a pool tag in a crash dump.

    Shows address, size, pool and state of each block, its first bytes, the texts in it and what
    its pointers point to; counts all of them by size; and compares that with what the tag tables
    count. What was not seen may still be there: the result says what could not be looked at.

    Exit code 4: not all that the tag tables count was seen.

    \b
    Examples:
      kdleak find Leak -z MEMORY.DMP
      kdleak find Leak -z MEMORY.DMP --pool nonpaged --size 320 --limit 100
      kdleak find "Irp " -z MEMORY.DMP --json -o irps.json
    """
    _refuse_live(target)
    console.refuse_overwrite(output, force=force)
    choice = choose_target(target)
    with attached(choice, Memory("find"), console.narrate) as session:
        engine = _dump_engine(session.engine)
        snapshot = _usage(engine)
        counters = snapshot.find(tag) if snapshot is not None else None
        if snapshot is not None and counters is None:
            # Where rows are missing, that it is not in the others tells nothing.
            counters = None if snapshot.gaps else TagUsage(tag)
            _tell_similar(tag, snapshot)
        memory = engine.memory
        if memory is None:
            raise UnsupportedTarget(
                f"searching {engine.where} for pool blocks",
                "this kind of dump holds too little memory",
                "use a full, kernel or active memory dump",
            )
        found = search_blocks(
            tag,
            memory=memory,
            modules=engine.modules(),
            symbol=engine.symbol,
            nearest=engine.nearest,
            build=engine.target.build,
            pointer_size=engine.target.pointer_size,
            limit=limit,
            counters=counters,
            pool=pool,
            size=size,
        )
        if snapshot is not None:
            found = replace(found, gaps=(*found.gaps, *snapshot.gaps))
        where, about, name = engine.where, engine.target, engine.name
    text = (
        find_json(found, where=where, target=about, engine=name, pool=pool, size=size)
        if as_json
        else render_find(
            found,
            where=where,
            target=about,
            pool=pool,
            size=size,
            width=console.width(),
            style=console.palette(output),
        )
    )
    console.write_result(text, output, force=force)
    return ExitCode.DONE if found.complete else ExitCode.INCOMPLETE


for _parameter in command.params:
    if isinstance(_parameter, click.Option) and _parameter.name in _NOT_FOR_DUMPS:
        _parameter.hidden = True


def _refuse_live(given: TargetOptions) -> None:
    """Only our own reader of dumps can look through all memory.

    Raises:
        UsageError: no dump was named, or another engine.
    """
    if given.dump is None:
        raise UsageError(
            "finding blocks",
            "it works on crash dumps: looking through a live target's memory would freeze it for "
            "hours",
            "name a dump with -z FILE, or ask WinDbg for single blocks with !pool",
        )
    if given.engine not in (None, DUMP) or given.kd is not None:
        raise UsageError(
            "finding blocks with Microsoft's engine",
            "only our own reader of crash dumps can look through all memory",
            "leave --engine and --kd out",
        )


def _dump_engine(engine: Engine) -> DumpEngine:
    if not hasattr(engine, "dump"):
        raise UnsupportedTarget(
            f"searching {engine.where} for pool blocks",
            f"the engine {engine.name} cannot look through all memory",
            "open a dump with -z FILE and our own engine",
        )
    return cast("DumpEngine", engine)


def _usage(engine: DumpEngine) -> Optional[PoolSnapshot]:
    """What the tag tables count; None, and why, where they cannot be read."""
    try:
        return engine.pool_usage()
    except UnsupportedTarget:
        raise
    except KdleakError as error:
        console.narrate(f"The blocks cannot be compared with the tag tables: {error}")
        return None


def _tell_similar(tag: PoolTag, snapshot: PoolSnapshot) -> None:
    """Name the tags that a mistyped one may mean."""
    words = f"No tag {tag.text!r} is in the tag tables."
    similar = similar_tags(tag, snapshot)
    if similar:
        words += f" There is {', '.join(repr(one.text) for one in similar)}."
    console.narrate(words)


def similar_tags(tag: PoolTag, snapshot: PoolSnapshot) -> List[PoolTag]:
    """Tags that differ in case, order or one character, those that hold most first."""
    near = [row for row in snapshot.rows if _is_similar(tag.text, row.tag.text)]
    near.sort(key=lambda row: (-row.bytes, row.tag))
    return [row.tag for row in near[:_SIMILAR]]


def _is_similar(wanted: str, there: str) -> bool:
    wanted, there = wanted.lower(), there.lower()
    different = sum(one != other for one, other in zip(wanted, there))
    return different <= 1 or wanted == there[::-1]
