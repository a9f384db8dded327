"""``kdleak find`` for people and for programs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Iterator

import pytest

import kdleak.report
from kdleak.found import (
    BlockPointer,
    BlockSearch,
    BlockSource,
    BlockState,
    GapKind,
    PoolBlock,
    SizeClass,
)
from kdleak.model import (
    Architecture,
    Pool,
    PoolCounters,
    Symbolized,
    SymbolKind,
    TagUsage,
    TargetInfo,
)
from kdleak.report.find_json import find_json
from kdleak.report.find_text import render_find
from kdleak.report.palette import ANSI
from kdleak.tags import PoolTag

jsonschema = pytest.importorskip("jsonschema")

LEAK = PoolTag.parse("Leak")
TARGET = TargetInfo(Architecture.X64, 8, 22621, False, 2, 0xFFFFF80001000000, "Windows 22621")
ENTRY = Symbolized(0xFFFFF80020000123, "leakydrv", "Entry", 0x13, SymbolKind.PDB)
BLOCKS = (
    PoolBlock(
        0xFFFF9A8000000010,
        0x140,
        LEAK,
        Pool.NONPAGED,
        BlockState.ALLOCATED,
        BlockSource.SEGMENT_HEAP,
        b"\x10\x20AB" + bytes(60),
        ("\\Device\\Leaky", "evil\x1b[2J\u202etext"),
        (
            BlockPointer(0, ENTRY.address, symbol=ENTRY),
            BlockPointer(16, 0xFFFF9A8000000150, block=0xFFFF9A8000000150, block_tag=LEAK),
        ),
    ),
    PoolBlock(0xFFFF9A8000003000, 0x3000, LEAK, None, BlockState.FREE, BlockSource.BIG_PAGES),
    PoolBlock(
        0xFFFF9A8000005010, 0x140, LEAK, Pool.PAGED, BlockState.UNKNOWN, BlockSource.HEADER, b"abc"
    ),
)
SEARCH = BlockSearch(
    LEAK,
    BLOCKS,
    (SizeClass(0x140, 1000, 2, 3), SizeClass(0x3000, 1, 7)),
    TagUsage(LEAK, PoolCounters(2000, 900, 400_000), PoolCounters(5, 4, 64)),
    ("4,096 rows of the big page table", "2,048 writable pages"),
    ("5 mapped pages are not in the dump",),
    2048 * 4096,
)
COMPLETE = replace(
    SEARCH,
    sizes=(SizeClass(0x140, 1250),),
    counters=TagUsage(LEAK, PoolCounters(1250, 0, 400_000)),
    complete=True,
)
EMPTY = BlockSearch(LEAK, (), (), None, (), ("nothing could be read",))
SEARCHES = {"partial": SEARCH, "complete": COMPLETE, "empty": EMPTY}


def text(search: BlockSearch = SEARCH, **more: Any) -> str:
    return render_find(search, where="MEMORY.DMP", target=TARGET, **more)


def document(search: BlockSearch = SEARCH, **more: Any) -> dict:
    return json.loads(find_json(search, where="MEMORY.DMP", target=TARGET, engine="dump", **more))


class TestText:
    def test_what_was_seen_beside_what_is_counted(self):
        shown = text()
        assert (
            "The tag tables count 1,101 blocks, 400,064 bytes; 1,001 blocks, 332,288 bytes" in shown
        )
        assert "Also seen: 9 freed blocks and 3 headers with the tag that may" in shown
        assert "missing: 5 mapped pages are not in the dump." in shown

    def test_that_less_was_seen_than_counted_is_said_once(self):
        words = "nonpaged pool: the others were not seen"
        shown = text(replace(SEARCH, gaps=(words,), gap_kinds=((words, GapKind.SHORTFALL),)))
        assert "What was not seen may be there all the same" in shown
        assert "missing: " not in shown
        other = words.replace("non", "", 1)
        both = (words, other)
        kinds = tuple((one, GapKind.SHORTFALL) for one in both)
        assert text(replace(SEARCH, gaps=both, gap_kinds=kinds)).count("missing: ") == 2

    def test_nothing_in_use_was_seen(self):
        shown = text(replace(SEARCH, sizes=(SizeClass(0x140, 0, 2, 3),)))
        assert "400,064 bytes; none seen in use." in shown

    def test_everything_was_seen(self):
        shown = text(COMPLETE)
        assert "count 1,250 blocks, 400,000 bytes; every one of them was seen." in shown
        assert "\nmissing:" not in shown
        assert "note, although no block is missing: 5 mapped pages" in shown

    def test_nothing_counted_and_nothing_seen(self):
        nothing = replace(COMPLETE, sizes=(), blocks=(), counters=TagUsage(LEAK))
        assert "The tag tables count no block of it." in text(nothing)

    def test_no_counters(self):
        assert "what the tag tables count is not known." in text(EMPTY)

    def test_one_pool(self):
        shown = text(pool=Pool.PAGED)
        assert "in MEMORY.DMP, paged pool" in shown
        assert "The tag tables count 1 block, 64 bytes" in shown

    def test_blocks(self):
        lines = text(width=120).splitlines()
        block = next(line for line in lines if "ffff9a80`00000010" in line)
        assert block.split()[1:6] == ["320", "nonpaged", "allocated", "segment", "heap"]
        assert "10 20 41 42 00" in block
        at = lines.index(block)
        assert lines[at + 1].strip() == "+0x000 fffff800`20000123 leakydrv!Entry+0x13"
        assert lines[at + 2].strip() == "+0x010 ffff9a80`00000150 block 'Leak'"
        assert lines[at + 3].strip() == '"\\Device\\Leaky"'
        assert any("ffff9a80`00003000" in line and line.rstrip().endswith("-") for line in lines)
        assert "... 1,010 more (--limit" in text()

    def test_sizes_stand_before_the_blocks(self):
        shown = text()
        assert shown.index("By size") < shown.index("Block by block") < shown.index("ffff9a80`")

    def test_what_is_alike_is_told_once(self):
        twice = replace(SEARCH, blocks=(BLOCKS[0], replace(BLOCKS[0], address=0xFFFF9A8000000150)))
        shown = text(twice)
        assert shown.count("leakydrv!Entry+0x13") == 1
        assert shown.count("the same pointers and texts") == 1

    def test_one_size(self):
        assert "those of 320 bytes" in text(size=320)
        assert "... 1,002 more" in text(size=320)
        assert "None of 321 bytes was seen." in text(replace(SEARCH, blocks=()), size=321)

    @pytest.mark.parametrize("width", range(77, 130))
    def test_first_bytes_are_not_cut(self, width):
        row = next(line for line in text(width=width).splitlines() if "00000010 " in line)
        assert "..." not in row.replace(". AB....", "")
        assert "10 20 41 42" in row
        assert (". AB" in row) == (width >= 99)

    def test_bars_are_as_long_as_the_bytes(self):
        rows = [line for line in text().splitlines() if line.endswith("#")]
        assert [row.count("#") for row in rows] == [40, 1]

    @pytest.mark.parametrize("name", SEARCHES)
    @pytest.mark.parametrize("width", [20, 40, 80, 200])
    def test_nothing_harmful_and_nothing_too_wide(self, name, width):
        shown = text(SEARCHES[name], width=width)
        assert all(line.isprintable() for line in shown.splitlines())
        assert max(len(line) for line in shown.splitlines()) <= max(width, 40)
        assert shown.endswith("\n")

    def test_colours_add_nothing_else(self):
        coloured = text(style=ANSI)
        for role in (ANSI.heading, ANSI.warn, ANSI.quiet):
            coloured = coloured.replace(f"\x1b[{role}m", "")
        assert coloured.replace("\x1b[0m", "") == text()

    def test_many_sizes_are_cut(self):
        many = replace(SEARCH, sizes=tuple(SizeClass(16 * n, n) for n in range(2, 100)))
        assert "... 82 more sizes" in text(many)
        assert any(line.split()[:2] == ["1,584", "99"] for line in text(many).splitlines())


def objects(value: Any) -> Iterator[dict]:
    if isinstance(value, dict):
        yield value
        for item in value.values():
            yield from objects(item)
    elif isinstance(value, list):
        for item in value:
            yield from objects(item)


class TestJson:
    @pytest.mark.parametrize("name", SEARCHES)
    def test_valid_against_the_shipped_schema(self, name):
        file = Path(kdleak.report.__file__).parent / "schema" / "find.schema.json"
        schema = json.loads(file.read_text(encoding="utf-8"))
        jsonschema.Draft202012Validator.check_schema(schema)
        checker = jsonschema.Draft202012Validator(schema)
        checker.validate(document(SEARCHES[name]))
        checker.validate(document(SEARCHES[name], pool=Pool.PAGED, size=0x140))

    @pytest.mark.parametrize("name", SEARCHES)
    def test_every_null_has_a_reason(self, name):
        for one in objects(document(SEARCHES[name])):
            nulls = {key for key, value in one.items() if value is None}
            assert nulls == set(one.get("absent", {}))

    def test_values(self):
        found = document(pool=Pool.NONPAGED, size=320)
        assert (found["format"], found["format_version"]) == ("kdleak.find", "1.0")
        assert found["seen"] == {
            "allocated": 1001,
            "allocated_bytes": 332_288,
            "free": 9,
            "unknown": 3,
        }
        assert (found["only_pool"], found["only_size"]) == ("nonpaged", 320)
        assert found["counters"]["nonpaged"]["outstanding"] == 1100
        first = found["blocks"][0]
        assert first["address"] == "0xffff9a8000000010"
        assert first["first_bytes"].startswith("10204142")
        assert first["pointers"][0]["symbol"] == "leakydrv!Entry+0x13"
        assert first["pointers"][1]["block_tag"]["text"] == "Leak"
        assert found["blocks"][1]["absent"] == {"pool": "nothing tells it"}

    def test_it_is_ascii(self):
        raw = find_json(SEARCH, where="M\xfc.dmp", target=TARGET, engine="dump")
        assert raw.isascii()
        assert raw.endswith("}\n")
