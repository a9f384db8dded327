"""Adding up the tag tables, for every layout and for everything that can be missing."""

from __future__ import annotations

import struct

import pytest
from nt_fakes import FakePool, tag_value

from kdleak.errors import MemoryUnreadable, SymbolNotFound, UnsupportedTarget
from kdleak.model import PoolCounters
from kdleak.nt.layouts import TRACKER_LAYOUTS, tracker_candidates
from kdleak.nt.pool import OVERFLOW_KEY, PoolTagTables, read_pool_usage, tag_hash, tag_slot
from kdleak.tags import PoolTag

LEAK, BUSY = tag_value("Leak"), tag_value("Busy")
COMMON = [tag_value(text) for text in ("Proc", "Thre", "File", "Irp", "Pool", "MmSt", "CM31")]
LAYOUTS = pytest.mark.parametrize("layout", TRACKER_LAYOUTS, ids=lambda item: hex(item.row_size))


def filled(layout, processors=2):
    pool = FakePool(layout, processors)
    for tag in COMMON:
        pool.write(0, tag, (10, 4, 600, 3, 3, 0))
    for processor in range(processors):
        pool.write(processor, LEAK, (100, 40, 6000, 7, 2, 500))
    return pool


def usage(pool, tag=None, **more):
    more.setdefault("processors", len(pool.tables))
    return read_pool_usage(
        pool.memory, pool.symbols, pool.layout.first_build, pool.layout.pointer_size, tag,
        lambda: 5.0, **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected", "slot"),
    [
        ("Pool", 0x040DEDA5, 0x5A5),
        ("Proc", 0xAEE8F633, 0x633),
        ("File", 0x8C347A44, 0x244),
        ("None", 0xCCAD4F4D, 0x74D),
        ("MmSt", 0xA86B5265, 0x265),
    ],
)
def test_tag_hash(text, expected, slot):
    assert tag_hash(tag_value(text)) == expected
    assert tag_slot(tag_value(text), 0x7FF) == slot
    assert tag_hash(tag_value(text) | 0x80000000) == expected


@LAYOUTS
def test_sums_over_processors(layout):
    snapshot = usage(filled(layout))
    row = snapshot.find(PoolTag(LEAK))
    assert row.nonpaged == PoolCounters(200, 80, 12000)
    assert row.paged == PoolCounters(14, 4, 1000)
    assert len(snapshot.rows) == len(COMMON) + 1
    assert [r.tag for r in snapshot.rows] == sorted(r.tag for r in snapshot.rows)
    assert snapshot.gaps == ()
    assert snapshot.source == "tag tables of 2 processors"
    assert snapshot.taken_at == 5.0


@LAYOUTS
def test_one_tag_agrees_with_all_and_reads_little(layout):
    pool = filled(layout)
    whole = usage(pool).find(PoolTag(LEAK))
    pool.memory.reads.clear()
    tables = PoolTagTables(
        pool.memory, pool.symbols, layout.first_build, layout.pointer_size, processors=2
    )
    assert tables.usage(PoolTag(LEAK)).rows == (whole,)
    assert len(pool.memory.reads) == 8
    pool.memory.reads.clear()
    assert tables.usage(PoolTag(LEAK)).rows == (whole,)
    assert len(pool.memory.reads) == 3  # one row per processor, and the expansion's size


@LAYOUTS
def test_layout_is_corrected_by_the_hash(layout):
    pool = filled(layout)
    wrong = next(
        item for item in TRACKER_LAYOUTS
        if item.pointer_size == layout.pointer_size and item is not layout
    )  # fmt: skip
    for tag in (None, PoolTag(LEAK)):
        snapshot = read_pool_usage(
            pool.memory, pool.symbols, wrong.first_build, layout.pointer_size, tag, processors=2
        )
        row = snapshot.find(PoolTag(LEAK))
        assert row.nonpaged == PoolCounters(200, 80, 12000)
        if tag is None:
            assert any("fit the tag hash" in gap for gap in snapshot.gaps)


def test_first_candidate_is_the_builds_own():
    for build, size, row in (
        (7601, 8, 0x28), (15063, 8, 0x28), (16299, 8, 0x38), (19045, 8, 0x38), (20348, 8, 0x50),
        (22631, 8, 0x50), (26100, 8, 0x50), (28000, 8, 0x50), (2600, 4, 0x1C), (7601, 4, 0x1C),
        (19045, 4, 0x30), (21292, 4, 0x40),
    ):  # fmt: skip
        assert tracker_candidates(build, size)[0].row_size == row


def test_nothing_fits():
    pool = FakePool(TRACKER_LAYOUTS[1])
    for slot in range(40):  # keys where no hash would put them
        pool.write(0, 0x41414141 + slot, (1, 0, 16, 0, 0, 0), slot=(slot * 37 + 100) & 0x7FF)
    with pytest.raises(UnsupportedTarget, match="no known row layout"):
        usage(pool)
    with pytest.raises(UnsupportedTarget, match="no known row layout"):
        usage(pool, PoolTag(LEAK))


def test_absent_tag_has_no_row():
    assert usage(filled(TRACKER_LAYOUTS[2]), PoolTag(BUSY)).rows == ()


def test_processor_that_only_frees():
    pool = filled(TRACKER_LAYOUTS[2])
    pool.write(0, BUSY, (50, 0, 5000, 0, 0, 0))
    pool.write(1, BUSY, (0, 30, -3000, 0, 0, 0))
    assert usage(pool).find(PoolTag(BUSY)).nonpaged == PoolCounters(50, 30, 2000)


def test_counters_that_wrap():
    pool = filled(TRACKER_LAYOUTS[0])
    pool.write(0, BUSY, (0xFFFFFFF0, 0xFFFFFFE0, 1600, 0, 0, 0))
    pool.write(1, BUSY, (0x20, 0x18, 800, 0, 0, 0))
    counters = usage(pool).find(PoolTag(BUSY)).nonpaged
    assert counters.outstanding == 0x18
    assert counters.bytes == 2400


def test_normalisation_as_the_kernel_reports():
    pool = filled(TRACKER_LAYOUTS[2])
    pool.write(0, BUSY, (5, 9, 64, 7, 2, -16))
    row = usage(pool).find(PoolTag(BUSY))
    assert row.nonpaged == PoolCounters(9, 9, 0)
    assert row.paged == PoolCounters(7, 7, 0)


def test_expansion_rows_are_taken_as_they_stand_and_merged():
    pool = filled(TRACKER_LAYOUTS[2])
    pool.expand([(BUSY, (3, 5, -32, 0, 0, 0)), (LEAK, (1, 0, 16, 0, 0, 0)), (0, (0,) * 6)])
    snapshot = usage(pool)
    assert snapshot.find(PoolTag(BUSY)).nonpaged == PoolCounters(3, 5, -32)
    assert snapshot.find(PoolTag(LEAK)).nonpaged == PoolCounters(201, 80, 12016)
    assert usage(pool, PoolTag(BUSY)).find(PoolTag(BUSY)).nonpaged == PoolCounters(3, 5, -32)


def test_overflow_row_counts_as_a_tag():
    pool = filled(TRACKER_LAYOUTS[2])
    pool.write(1, OVERFLOW_KEY, (9, 1, 800, 0, 0, 0), slot=pool.rows - 1)
    assert usage(pool).find(PoolTag(OVERFLOW_KEY)).nonpaged == PoolCounters(9, 1, 800)
    one = usage(pool, PoolTag(OVERFLOW_KEY))
    assert one.find(PoolTag(OVERFLOW_KEY)).nonpaged == PoolCounters(9, 1, 800)


def test_tags_whose_slots_collide_and_wrap():
    pool = filled(TRACKER_LAYOUTS[2])
    last = [tag for tag in range(0x20202020, 0x20212020) if tag_slot(tag, 0x7FF) == 0x7FF][:3]
    for tag in last:
        pool.write(1, tag, (2, 1, 48, 0, 0, 0))
    assert pool.slot(last[0]) == 0x7FF
    for tag in last:
        assert usage(pool, PoolTag(tag)).find(PoolTag(tag)).nonpaged == PoolCounters(2, 1, 48)
        assert usage(pool).find(PoolTag(tag)).nonpaged == PoolCounters(2, 1, 48)


def test_the_same_table_twice_is_added_once():
    pool = filled(TRACKER_LAYOUTS[2])
    pool.set("ExPoolTagTables", pool.tables[0], 8)
    assert usage(pool).find(PoolTag(LEAK)).nonpaged == PoolCounters(100, 40, 6000)


def test_processor_without_a_table():
    pool = filled(TRACKER_LAYOUTS[2], processors=3)
    pool.set("ExPoolTagTables", 0, 8)
    snapshot = usage(pool)
    assert snapshot.source == "tag tables of 2 processors"
    assert snapshot.find(PoolTag(LEAK)).nonpaged == PoolCounters(200, 80, 12000)


def test_processors_unknown_stops_at_the_first_null():
    pool = filled(TRACKER_LAYOUTS[2], processors=3)
    snapshot = usage(pool, processors=0)
    assert snapshot.find(PoolTag(LEAK)).nonpaged == PoolCounters(300, 120, 18000)


def test_without_the_array_only_one_table_is_read_and_said_so():
    pool = filled(TRACKER_LAYOUTS[2])
    pool.symbols.forget("ExPoolTagTables")
    snapshot = usage(pool)
    assert snapshot.find(PoolTag(LEAK)).nonpaged == PoolCounters(100, 40, 6000)
    assert any("ExPoolTagTables" in gap for gap in snapshot.gaps)
    assert usage(pool, processors=1).gaps == ()


def test_size_found_by_the_hash_where_no_symbol_tells():
    pool = FakePool(TRACKER_LAYOUTS[2], 2, mask=0xFFF)
    for tag in [*COMMON, *range(0x30303030, 0x30303060)]:
        pool.write(1, tag, (10, 4, 600, 3, 3, 0))
    for name in ("PoolTrackTableSize", "PoolTrackTableMask", "PoolTrackTableExpansionSize"):
        pool.symbols.forget(name)
    for tag in (None, PoolTag(COMMON[0])):
        snapshot = usage(pool, tag)
        assert snapshot.find(PoolTag(COMMON[0])).nonpaged == PoolCounters(10, 4, 600)
        # The list that takes over from a full table cannot matter while it has unused rows.
        assert len(snapshot.gaps) == 1
        assert "0x1001 rows fit" in snapshot.gaps[0]


def full_pool():
    """A table without an unused row, and a tag that found no room in it."""
    pool = FakePool(TRACKER_LAYOUTS[2], 2, mask=0x3F)
    for tag in range(0x30303030, 0x30303030 + 0x40):
        pool.write(0, tag, (10, 4, 600, 3, 3, 0))
    pool.symbols.forget("PoolTrackTableExpansion")
    pool.set("PoolTrackTableExpansionSize", 1)
    return pool


def test_unknown_expansion_is_a_gap_once_the_table_is_full():
    pool = full_pool()
    assert any("Expansion" in gap for gap in usage(pool).gaps)
    # A tag that has its row in the table is nowhere else; one that has none may be in the list.
    assert usage(pool, PoolTag(0x30303031)).gaps == ()
    absent = usage(pool, PoolTag(LEAK))
    assert absent.rows == ()
    assert any("Expansion" in gap for gap in absent.gaps)


def test_unknown_expansion_is_a_gap_when_something_overflowed():
    pool = filled(TRACKER_LAYOUTS[2])
    pool.symbols.forget("PoolTrackTableExpansionSize")
    assert usage(pool).gaps == ()
    pool.put_row(pool.tables[1] + (pool.rows - 1) * 0x50, OVERFLOW_KEY, (3, 1, 64, 0, 0, 0))
    assert any("Expansion" in gap for gap in usage(pool).gaps)


def test_unreadable_list_of_tables():
    pool = filled(TRACKER_LAYOUTS[2])
    pool.memory.holes.add(pool.symbols("nt!ExPoolTagTables") >> 12)
    snapshot = usage(pool)
    assert snapshot.find(PoolTag(LEAK)).nonpaged == PoolCounters(100, 40, 6000)
    assert any("2 of 2 entries" in gap for gap in snapshot.gaps)


def test_unreadable_part_of_a_table_is_said_with_the_tags_it_concerns():
    pool = filled(TRACKER_LAYOUTS[2])
    row = pool.tables[1] + pool.slot(LEAK) * 0x50
    pool.memory.holes.add(row >> 12)
    snapshot = usage(pool)
    assert any("Leak" in gap and "table 1" in gap for gap in snapshot.gaps)
    assert snapshot.find(PoolTag(COMMON[0])) is not None
    one = usage(pool, PoolTag(LEAK))
    assert any("Leak" in gap for gap in one.gaps)


def test_unreadable_part_of_the_leading_table():
    pool = filled(TRACKER_LAYOUTS[2])
    pool.memory.holes.add((pool.tables[0] + pool.slot(LEAK) * 0x50) >> 12)
    snapshot = usage(pool)
    assert any("first table" in gap for gap in snapshot.gaps)
    # The row of the other processor has its key, so the tag is there, if incomplete.
    assert snapshot.find(PoolTag(LEAK)).nonpaged == PoolCounters(100, 40, 6000)
    with pytest.raises(MemoryUnreadable):
        usage(pool, PoolTag(LEAK))


def test_leading_table_gone():
    pool = filled(TRACKER_LAYOUTS[2])
    pool.memory.holes.update(range(pool.tables[0] >> 12, (pool.tables[0] >> 12) + 50))
    with pytest.raises(MemoryUnreadable):
        usage(pool)


def test_row_that_names_another_tag_is_left_out():
    pool = filled(TRACKER_LAYOUTS[2])
    pool.memory.put(pool.tables[1] + pool.slot(LEAK) * 0x50, struct.pack("<I", BUSY))
    for tag in (None, PoolTag(LEAK)):
        snapshot = usage(pool, tag)
        assert snapshot.find(PoolTag(LEAK)).nonpaged == PoolCounters(100, 40, 6000)
        assert any("another tag" in gap for gap in snapshot.gaps)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("PoolTrackTableSize", 1 << 40, "PoolTrackTableSize"),
        ("PoolTrackTableMask", 0x7FE, "mask|Mask"),
        ("PoolTrackTable", 0, "is 0"),
    ],
)
def test_senseless_variables(name, value, text):
    pool = filled(TRACKER_LAYOUTS[2])
    pool.set(name, value)
    with pytest.raises(UnsupportedTarget, match=text):
        usage(pool)


@pytest.mark.parametrize(
    ("name", "value"),
    [("PoolTrackTableSize", 0x40801), ("PoolTrackTableSize", 0x1234), ("PoolTrackTableMask", 0xFF)],
)
def test_size_and_mask_that_do_not_go_together(name, value):
    pool = filled(TRACKER_LAYOUTS[2])
    whole = usage(pool)
    pool.set(name, value)
    found = usage(pool)
    assert found.rows == whole.rows
    assert any("do not go together" in gap for gap in found.gaps)


def test_senseless_expansion_is_a_gap():
    pool = filled(TRACKER_LAYOUTS[2])
    pool.set("PoolTrackTableExpansion", 0xFFFF800000000000)
    pool.set("PoolTrackTableExpansionSize", 1 << 40)
    assert any("not read" in gap for gap in usage(pool).gaps)
    pool.set("PoolTrackTableExpansionSize", 3)
    assert any("3 rows" in gap for gap in usage(pool).gaps)


def test_no_symbols_at_all():
    pool = filled(TRACKER_LAYOUTS[2])
    pool.symbols.forget("PoolTrackTable")
    with pytest.raises(SymbolNotFound):
        usage(pool)


def test_other_processors_tables_are_read_in_few_requests():
    pool = filled(TRACKER_LAYOUTS[2])
    usage(pool, request_bytes=0x400)
    inside = [
        (at, size) for at, size in pool.memory.reads
        if pool.tables[1] <= at < pool.tables[1] + pool.rows * 0x50
    ]  # fmt: skip
    assert all(size <= 0x400 for _, size in inside)
    # 8 tags spread over the table, and the overflow row.
    assert len(inside) <= 9
