"""The blocks of a pool tag for programs: a "kdleak.find" document.

The conventions of ``json_report`` hold; the schema is ``schema/find.schema.json``.
"""

from __future__ import annotations

from typing import Optional

from kdleak.found import BlockPointer, BlockSearch, PoolBlock, SizeClass
from kdleak.model import Pool, TargetInfo
from kdleak.report.json_values import (
    Absent,
    Document,
    counters_of,
    dump,
    head,
    hexadecimal,
    name_of,
    or_absent,
    tag_of,
    target_of,
    with_absent,
)


def find_json(
    search: BlockSearch,
    *,
    where: str,
    target: TargetInfo,
    engine: str,
    pool: Optional[Pool] = None,
    size: Optional[int] = None,
) -> str:
    """A search for blocks as text: ASCII, ends with a newline.

    Args:
        search: what was found.
        where: the dump as the user named it.
        target: what it is a dump of.
        engine: what read it.
        pool: the pool that the search was limited to.
        size: the size that the blocks told about were limited to.
    """
    everything = Absent("not limited")
    document = head("kdleak.find") | with_absent(
        target=target_of(target),
        engine=engine,
        where=where,
        tag=tag_of(search.tag),
        only_pool=name_of(pool) if pool else everything,
        only_size=everything if size is None else size,
        complete=search.complete,
        **search_fields(search),
    )
    return dump(document)


def search_fields(search: BlockSearch) -> Document:
    """What a document says about a search, without what was searched for."""
    usage = search.counters
    blocks, size = search.allocated
    return {
        "counters": Absent("the tag tables could not be read")
        if usage is None
        else {pool.value: counters_of(usage.of(pool)) for pool in Pool},
        "seen": {
            "allocated": blocks,
            "allocated_bytes": size,
            "free": sum(one.free for one in search.sizes),
            "unknown": sum(one.unknown for one in search.sizes),
        },
        "sizes": [_size(one) for one in search.sizes],
        "blocks": [block_document(block) for block in search.blocks],
        "searched": list(search.searched),
        "bytes_searched": search.bytes_searched,
        "gaps": list(search.gaps),
    }


def block_document(block: PoolBlock) -> Document:
    """One block."""
    return with_absent(
        address=hexadecimal(block.address),
        size=or_absent(block.size or None, "not known"),
        pool=name_of(block.pool) if block.pool else Absent("nothing tells it"),
        state=name_of(block.state),
        source=name_of(block.source),
        first_bytes=block.first_bytes.hex(),
        strings=list(block.strings),
        pointers=[_pointer(pointer) for pointer in block.pointers],
    )


def _size(one: SizeClass) -> Document:
    return {
        "size": one.size,
        "allocated": one.allocated,
        "free": one.free,
        "unknown": one.unknown,
    }


def _pointer(pointer: BlockPointer) -> Document:
    image = pointer.symbol is not None
    other = Absent("it points into an image" if image else "it points to a block")
    return with_absent(
        offset=pointer.offset,
        value=hexadecimal(pointer.value),
        symbol=str(pointer.symbol) if image else other,
        block=hexadecimal(pointer.block) if pointer.block else other,
        block_tag=tag_of(pointer.block_tag) if pointer.block_tag else other,
    )
