"""The tag tables: whatever the processors counted, the sums are theirs."""

from __future__ import annotations

import contextlib
import random

from hypothesis import given, settings
from hypothesis import strategies as st
from nt_fakes import FakeMemory, FakePool, FakeSymbols

from kdleak.errors import KdleakError
from kdleak.model import PoolCounters
from kdleak.nt.layouts import TRACKER_LAYOUTS, parse_pool_header
from kdleak.nt.pool import PoolTagTables, read_pool_usage, tag_hash
from kdleak.nt.tag_sums import normalised
from kdleak.nt.tag_table import layout_fits, spans, tag_slot
from kdleak.tags import PoolTag

TAGS = st.integers(0x20202020, 0x7E7E7E7E)
COUNTS = st.integers(0, 1 << 20)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(TRACKER_LAYOUTS),
    st.sets(TAGS, min_size=8, max_size=60),
    st.integers(1, 3),
    st.integers(0, 1 << 32),
    st.sampled_from([None, 0x40, 0x400, 0x800]),
)
def test_sums_equal_a_plain_model(layout, tags, processors, seed, request_bytes):
    rng = random.Random(seed)
    pool = FakePool(layout, processors)
    model = {}
    for tag in tags:
        total = [0] * 6
        for processor in rng.sample(range(processors), rng.randint(1, processors)):
            allocs, frees = rng.randrange(1000), rng.randrange(1000)
            row = (allocs, frees, (allocs - frees) * 48, frees, allocs, (frees - allocs) * 32)
            pool.write(processor, tag, row)
            total = [one + other for one, other in zip(total, row)]
        model[PoolTag(tag)] = total
    tables = PoolTagTables(
        pool.memory, pool.symbols, layout.first_build, layout.pointer_size,
        processors=processors, request_bytes=request_bytes,
    )  # fmt: skip
    snapshot = tables.usage()
    assert snapshot.gaps == ()
    assert {row.tag for row in snapshot.rows} == set(model)
    for tag, total in model.items():
        row = snapshot.find(tag)
        for counters, (allocs, frees, used) in ((row.nonpaged, total[:3]), (row.paged, total[3:])):
            if allocs > frees:
                assert counters == PoolCounters(allocs, frees, used)
            else:
                assert counters == PoolCounters(frees, frees, 0)
        assert tables.usage(tag).rows == (row,)


@given(st.integers(0, 0xFFFFFFFF))
def test_hash_is_the_kernels(tag):
    product = 40543 * (tag & 0x7FFFFFFF)
    assert tag_hash(tag) == (product % (1 << 32)) ^ (product >> 32)


@given(st.sets(TAGS, min_size=20, max_size=200), st.integers(0, 1 << 32))
def test_only_the_right_mask_and_order_fit(tags, seed):
    keys = [0] * 0x801
    for tag in tags:
        slot = tag_slot(tag, 0x7FF)
        while keys[slot]:
            slot = (slot + 1) & 0x7FF
        keys[slot] = tag
    assert layout_fits(keys, 0x7FF) == 1.0
    shuffled = list(keys)
    random.Random(seed).shuffle(shuffled)
    assert layout_fits(shuffled, 0x7FF) < 0.5


@given(
    st.sets(st.integers(0, 3000), max_size=200),
    st.sampled_from([0x28, 0x38, 0x50]),
    st.one_of(st.none(), st.integers(1, 4000)),
)
def test_requests_cover_all_rows_and_no_more_than_needed(rows, size, request_bytes):
    wanted = sorted(rows)
    cut = list(spans(wanted, size, request_bytes))
    covered = {row for first, last in cut for row in range(first, last + 1)}
    assert rows <= covered
    assert all(first in rows and last in rows for first, last in cut)
    if request_bytes is not None:
        most = max(request_bytes // size, 1)
        assert all(last - first < most for first, last in cut)
        assert all(after[0] - first[0] >= most for first, after in zip(cut, cut[1:]))


@given(
    st.sampled_from(TRACKER_LAYOUTS),
    st.lists(st.integers(0, (1 << 64) - 1), min_size=6, max_size=6),
)
def test_normalised_figures_are_sane(layout, values):
    total = tuple(v & ((1 << 8 * w) - 1) for v, w in zip(values, layout.widths))
    row = normalised(0x6B61654C, total, layout)
    for counters in (row.nonpaged, row.paged):
        assert counters.outstanding >= 0
        assert (counters.outstanding == 0) == (counters.bytes == 0)
        assert counters.bytes >= 0


@settings(max_examples=40, deadline=None)
@given(st.binary(min_size=64, max_size=256), st.sampled_from([4, 8]), st.booleans())
def test_any_bytes_as_tables(noise, pointer_size, one_tag):
    """Whatever lies where the tables should be: an error of ours or a snapshot with gaps."""
    memory = FakeMemory()
    memory.put(0x1000, noise)
    names = ("PoolTrackTable", "PoolTrackTableSize", "PoolTrackTableMask", "ExPoolTagTables")
    symbols = FakeSymbols(**{name: 0x1000 + 8 * n for n, name in enumerate(names)})
    with contextlib.suppress(KdleakError):
        read_pool_usage(
            memory,
            symbols,
            19045,
            pointer_size,
            PoolTag(0x6B61654C) if one_tag else None,
            processors=2,
        )
    assert len(memory.reads) < 5000


@given(st.binary(min_size=8, max_size=16), st.sampled_from([4, 8]))
def test_any_pool_header(raw, pointer_size):
    header = parse_pool_header(raw, pointer_size)
    assert header.block_size % (2 * pointer_size) == 0
    assert 0 <= header.block_size <= 0x1000
    assert header.tag < 0x80000000
