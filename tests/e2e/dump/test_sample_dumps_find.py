"""The blocks of every tag in the sample dumps, against the ledger of the machine they are of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kdleak.cli.target_options import practice_symbols
from kdleak.engine.dump import open_dump_engine
from kdleak.nt.blocks.search import search_blocks
from kdleak.tags import PoolTag

SAMPLES = Path(__file__).parents[3] / "samples" / "dumps"
TRUTH = json.loads((SAMPLES / "truth.json").read_text(encoding="utf-8"))
UNRECORDED = "Pool"  # the kernel's own tables: pages without a header and without a row


@pytest.mark.e2e
@pytest.mark.parametrize("symbols", [True, False], ids=["with symbols", "without"])
@pytest.mark.parametrize("name", TRUTH)
def test_every_block_of_every_tag(name, symbols):
    engine = open_dump_engine(SAMPLES / name, ";".join(practice_symbols()) if symbols else "")
    try:
        usage = {row.tag: row for row in engine.pool_usage().rows}
        tags = {text for text in TRUTH[name]["tags"] if "." not in text}
        assert {"Leak", "Busy"} <= tags
        complete = 0
        for text in sorted(tags - {UNRECORDED}):
            tag = PoolTag.parse(text)
            found = search_blocks(
                tag,
                memory=engine.memory,
                modules=engine.modules(),
                symbol=engine.symbol,
                nearest=engine.nearest,
                build=engine.target.build,
                pointer_size=engine.target.pointer_size,
                limit=1,
                counters=usage[tag],
            )
            pools = TRUTH[name]["tags"][text].values()
            blocks = sum(allocs - frees for allocs, frees, _ in pools)
            size = sum(one[2] for one in pools)
            complete += found.complete
            if found.complete:
                assert found.allocated == (blocks, size), text
            else:
                # So small a big page table is not recognised without symbols, which is said.
                assert not symbols, text
                assert found.allocated[0] < blocks, text
                assert any("PoolBigPageTable" in gap for gap in found.gaps)
        assert complete > len(tags) // 2
    finally:
        engine.close()
