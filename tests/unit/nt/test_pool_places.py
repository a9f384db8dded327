"""nt's pool variables found by what they hold, on memory built from the published layouts."""

from __future__ import annotations

import random

import pytest

from kdleak.errors import KdleakError, SymbolNotFound
from kdleak.nt.kdbg import FIELDS, DebuggerData
from kdleak.nt.memory import read_pointer
from kdleak.nt.places.pool_places import PoolPlaces, Way
from kdleak.nt.pool import PoolTagTables
from kdleak.tags import PoolTag
from tests.dump_files.built_kernel import PAGE, VERSIONS, BuiltKernel

ALL = pytest.mark.parametrize("name", list(VERSIONS))


def kdbg(kernel, address):
    raw = bytearray(0x340)
    raw[FIELDS["PoolTrackTable"] : FIELDS["PoolTrackTable"] + 8] = (
        address & 0xFFFF_FFFF_FFFF_FFFF
    ).to_bytes(8, "little")
    return DebuggerData(kernel.base + 0x3000, bytes(raw))


def places(kernel, **more):
    more.setdefault("processors", kernel.processors)
    more.setdefault("build", kernel.windows.build)
    return PoolPlaces(
        kernel.memory, kernel.image, pointer_size=kernel.windows.width, **more
    )  # fmt: skip


def snapshot(kernel, found):
    return PoolTagTables(
        kernel.memory,
        found.symbol,
        kernel.windows.build,
        kernel.windows.width,
        lambda: 0.0,
        processors=found.processors,
    ).usage()


def as_sums(rows):
    return {
        row.tag.text: [
            row.nonpaged.allocs, row.nonpaged.frees, row.nonpaged.bytes,
            row.paged.allocs, row.paged.frees, row.paged.bytes,
        ]
        for row in rows
    }  # fmt: skip


@ALL
@pytest.mark.parametrize("processors", [1, 2, 5])
def test_every_variable_is_found_by_contents(name, processors):
    kernel = BuiltKernel(VERSIONS[name], processors)
    found = places(kernel)
    for variable, address in kernel.at.items():
        assert found.symbol(f"nt!{variable}") == address, variable
        assert found.how(f"nt!{variable}") is Way.CONTENTS
    result = snapshot(kernel, found)
    assert as_sums(result.rows) == kernel.sums
    if name != "xp-x86" or processors == 1:
        assert result.gaps == ()


@ALL
def test_the_debugger_data_block_is_used_and_checked(name):
    kernel = BuiltKernel(VERSIONS[name])
    found = places(kernel, debugger_data=kdbg(kernel, kernel.at["PoolTrackTable"]))
    assert found.symbol("nt!PoolTrackTable") == kernel.at["PoolTrackTable"]
    assert found.how("nt!PoolTrackTable") is Way.DEBUGGER_DATA
    assert as_sums(snapshot(kernel, found).rows) == kernel.sums
    # One that leads elsewhere is not believed.
    for wrong in (kernel.at["PoolBigPageTable"], 0x1234):
        found = places(kernel, debugger_data=kdbg(kernel, wrong))
        assert found.symbol("nt!PoolTrackTable") == kernel.at["PoolTrackTable"]
        assert found.how("nt!PoolTrackTable") is Way.CONTENTS
        assert any("debugger data block" in remark for remark in found.remarks)


def test_symbols_come_first_and_names_in_any_case():
    kernel = BuiltKernel(VERSIONS["win11-x64"])
    known = {"nt!PoolTrackTable": 0x123, "nt!Other": 0x456}

    def symbol(name):
        if name not in known:
            raise SymbolNotFound(name)
        return known[name]

    found = places(kernel, symbol=symbol)
    assert found.symbol("nt!pooltracktable") == 0x123
    assert found.how("NT!PoolTrackTable") is Way.SYMBOL
    assert found.symbol("nt!Other") == 0x456
    assert found.symbol("nt!poolbigpagetable") == kernel.at["PoolBigPageTable"]
    with pytest.raises(SymbolNotFound):
        found.symbol("nt!PoolTrackTableExpansion")
    assert found.find("nt!PoolTrackTableExpansion") is None


def test_the_first_of_the_list_stands_in_for_an_absent_variable():
    kernel = BuiltKernel(VERSIONS["win10-x64"])
    kernel.memory.drop(kernel.at["PoolTrackTable"])
    by_symbol = places(kernel, symbol=lambda name: kernel.at[name[3:]])
    assert by_symbol.symbol("nt!PoolTrackTable") == kernel.at["ExPoolTagTables"]
    by_contents = places(kernel)
    assert by_contents.symbol("nt!PoolTrackTable") == kernel.at["ExPoolTagTables"]
    assert as_sums(snapshot(kernel, by_contents).rows) == kernel.sums


@ALL
def test_a_stale_copy_of_a_table_is_no_table_of_the_kernel(name):
    kernel = BuiltKernel(VERSIONS[name], processors=3)
    size = (kernel.mask + 2) * kernel.windows.row_size
    copy = kernel.allocate(kernel.memory.read(kernel.tables[0], size))
    kernel.word(kernel.base + kernel.DATA + 0x80, copy)
    found = places(kernel)
    if name == "xp-x86":
        # There, nothing tells the two apart.
        assert found.find("nt!PoolTrackTable") is None
        assert any("2 tag tables" in remark for remark in found.remarks)
        assert places(kernel, debugger_data=kdbg(kernel, kernel.at["PoolTrackTable"])).symbol(
            "nt!PoolTrackTable"
        )
        return
    assert found.symbol("nt!PoolTrackTable") == kernel.at["PoolTrackTable"]
    assert found.symbol("nt!ExPoolTagTables") == kernel.at["ExPoolTagTables"]
    assert as_sums(snapshot(kernel, found).rows) == kernel.sums


def test_two_lists_that_fit_equally_well_are_both_refused():
    kernel = BuiltKernel(VERSIONS["win11-x64"], processors=3)
    size = (kernel.mask + 2) * kernel.windows.row_size
    for slot, table in enumerate(kernel.tables):
        copy = kernel.allocate(kernel.memory.read(table, size))
        kernel.word(kernel.base + kernel.DATA + 0x80 + 8 * slot, copy)
    found = places(kernel)
    with pytest.raises(SymbolNotFound):
        found.symbol("nt!PoolTrackTable")
    assert any("equally well" in remark for remark in found.remarks)
    # The debugger data block decides.
    found = places(kernel, debugger_data=kdbg(kernel, kernel.at["PoolTrackTable"]))
    assert found.symbol("nt!ExPoolTagTables") == kernel.at["ExPoolTagTables"]


def test_two_big_page_tables_are_both_refused():
    kernel = BuiltKernel(VERSIONS["win10-x64"])
    size = kernel.big_rows * kernel.windows.big_size
    copy = kernel.allocate(kernel.memory.read(kernel.big_table, size))
    kernel.word(kernel.base + kernel.DATA + 0x80, copy)
    found = places(kernel)
    assert found.find("nt!PoolBigPageTable") is None
    assert any("equally well" in remark for remark in found.remarks)
    # Where the table's own symbol is known, only its size is looked for.
    known = {"nt!PoolBigPageTable": kernel.at["PoolBigPageTable"]}

    def symbol(name):
        if name in known:
            return known[name]
        raise SymbolNotFound(name)

    found = places(kernel, symbol=symbol)
    assert found.symbol("nt!PoolBigPageTable") == kernel.at["PoolBigPageTable"]
    assert found.symbol("nt!PoolBigPageTableSize") == kernel.at["PoolBigPageTableSize"]


def test_big_page_table_known_by_symbol_and_size_asked_first():
    kernel = BuiltKernel(VERSIONS["win10-x64"])

    def symbol(name):
        if name == "nt!PoolBigPageTable":
            return kernel.at["PoolBigPageTable"]
        raise SymbolNotFound(name)

    found = places(kernel, symbol=symbol)
    assert found.symbol("nt!PoolBigPageTableSize") == kernel.at["PoolBigPageTableSize"]
    assert found.how("nt!PoolBigPageTable") is Way.SYMBOL


@pytest.mark.parametrize("mask", [0xFF, 0x3FF, 0xFFF, 0x3FFF])
def test_sizes_of_tables(mask):
    kernel = BuiltKernel(VERSIONS["win11-x64"], mask=mask, tags=min(mask // 2, 1200))
    found = places(kernel)
    assert found.symbol("nt!PoolTrackTableMask") == kernel.at["PoolTrackTableMask"]
    assert as_sums(snapshot(kernel, found).rows) == kernel.sums


@pytest.mark.parametrize("rows", [0x200, 0x1000, 0x8000])
def test_sizes_of_the_big_page_table(rows):
    kernel = BuiltKernel(VERSIONS["win11-24h2-arm64"], big_rows=rows)
    found = places(kernel)
    assert found.symbol("nt!PoolBigPageTable") == kernel.at["PoolBigPageTable"]
    size = found.symbol("nt!PoolBigPageTableSize")
    assert read_pointer(kernel.memory, size, 8) == rows


def test_more_tables_than_the_header_counts_processors():
    kernel = BuiltKernel(VERSIONS["win10-x64"], processors=6)
    for said in (0, 2, 6):
        found = places(kernel, processors=said)
        assert found.processors == 6
        assert as_sums(snapshot(kernel, found).rows) == kernel.sums


def test_a_processor_without_a_table():
    kernel = BuiltKernel(VERSIONS["win10-x64"], processors=4)
    kernel.set("ExPoolTagTables", 0, slot=3)
    found = places(kernel)
    assert found.symbol("nt!ExPoolTagTables") == kernel.at["ExPoolTagTables"]


def test_nothing_to_search():
    kernel = BuiltKernel(VERSIONS["win10-x64"])
    nothing = PoolPlaces(kernel.memory, None, build=19045, pointer_size=8)
    assert nothing.find("nt!PoolTrackTable") is None
    assert nothing.find("nt!PoolBigPageTable") is None
    assert nothing.processors == 0
    for page in range(
        kernel.base + kernel.DATA, kernel.base + kernel.DATA + kernel.DATA_SIZE, PAGE
    ):
        kernel.memory.drop(page)
    found = places(kernel)
    assert found.find("nt!ExPoolTagTables") is None
    assert found.find("nt!PoolBigPageTableSize") is None
    assert any("not in the" in remark for remark in found.remarks)
    # The debugger data block alone still leads to the first table.
    kernel = BuiltKernel(VERSIONS["win10-x64"])
    found = PoolPlaces(
        kernel.memory, None, build=19045, pointer_size=8, processors=3,
        debugger_data=kdbg(kernel, kernel.at["PoolTrackTable"]),
    )  # fmt: skip
    assert found.symbol("nt!PoolTrackTable") == kernel.at["PoolTrackTable"]
    assert any("ExPoolTagTables" in gap for gap in snapshot(kernel, found).gaps)


def test_a_kernel_full_of_pointers_is_searched_in_bounded_time():
    kernel = BuiltKernel(VERSIONS["win11-x64"])
    rng = random.Random(5)
    kernel.memory.put(
        kernel.base + kernel.DATA + 0x4000,
        b"".join(
            (0xFFFF_C80A_4000_0000 + PAGE * rng.randrange(0x10000)).to_bytes(8, "little")
            for _ in range(0x600)
        ),
    )
    kernel.memory.reads = 0
    assert places(kernel).symbol("nt!PoolTrackTable") == kernel.at["PoolTrackTable"]
    assert kernel.memory.reads < 20_000


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", ["win7-x86", "win10-1703-x64", "win10-x64", "win11-x64"])
def test_missing_pages_never_give_a_wrong_sum_silently(name, seed):
    kernel = BuiltKernel(VERSIONS[name], seed=seed, big_rows=0x200)
    rng = random.Random(seed)
    share = rng.choice((0.02, 0.1, 0.4, 0.8))
    for number in sorted(kernel.memory.pages):
        if (
            rng.random() < share
            and number != (kernel.base & ((1 << 8 * kernel.windows.width) - 1)) // PAGE
        ):
            del kernel.memory.pages[number]
    block = kdbg(kernel, kernel.at["PoolTrackTable"]) if rng.random() < 0.5 else None
    try:
        result = snapshot(kernel, places(kernel, debugger_data=block))
    except KdleakError:
        return  # said in words
    if as_sums(result.rows) == kernel.sums:
        return
    assert result.gaps
    for row in result.rows:
        full = kernel.sums[row.tag.text]
        assert all(
            part <= whole for part, whole in zip(as_sums([row])[row.tag.text], full, strict=True)
        )


@pytest.mark.parametrize("seed", range(15))
def test_missing_pages_never_give_a_wrong_size_of_the_big_page_table(seed):
    kernel = BuiltKernel(VERSIONS["win10-x64"], seed=seed, big_rows=0x1000)
    rng = random.Random(seed)
    start = kernel.big_table // PAGE
    for page in range(start, start + 24):
        if rng.random() < 0.5:
            kernel.memory.pages.pop(page, None)
    found = places(kernel)
    size = found.find("nt!PoolBigPageTableSize")
    if size is not None:
        assert read_pointer(kernel.memory, size, 8) == kernel.big_rows
        assert found.symbol("nt!PoolBigPageTable") == kernel.at["PoolBigPageTable"]


def test_zeroed_pages_in_the_tables_do_not_mislead():
    kernel = BuiltKernel(VERSIONS["win11-x64"])
    for table in kernel.tables:
        kernel.memory.put(table, bytes(PAGE))
    found = places(kernel)
    assert found.symbol("nt!PoolTrackTable") == kernel.at["PoolTrackTable"]
    assert found.symbol("nt!ExPoolTagTables") == kernel.at["ExPoolTagTables"]


def test_one_tag_at_a_time_agrees():
    kernel = BuiltKernel(VERSIONS["win11-x64"])
    found = places(kernel)
    tables = PoolTagTables(
        kernel.memory, found.symbol, kernel.windows.build, 8, lambda: 0.0, processors=3
    )
    for text in list(kernel.sums)[:20]:
        one = tables.usage(PoolTag.parse(text))
        assert as_sums(one.rows) == {text: kernel.sums[text]}


@pytest.mark.parametrize("name", ["win7-x86", "win11-x64"])
def test_pointers_into_the_middle_of_tables_are_no_tables(name):
    kernel = BuiltKernel(VERSIONS[name], processors=3)
    size = kernel.mask * kernel.windows.row_size
    inside = [
        start + offset
        for start, length in (
            *((table, size) for table in kernel.tables),
            (kernel.big_table, kernel.big_rows * kernel.windows.big_size),
        )
        for offset in range(PAGE, length - PAGE, PAGE)
    ]
    for index, value in enumerate(inside[:0x180]):
        kernel.word(kernel.base + kernel.DATA + 0x4400 + index * kernel.windows.width, value)
    found = places(kernel)
    for variable, address in kernel.at.items():
        assert found.symbol(f"nt!{variable}") == address, variable


def test_a_list_whose_first_table_is_not_there_is_no_list():
    kernel = BuiltKernel(VERSIONS["win11-x64"], processors=4)
    rows = (kernel.mask + 2) * kernel.windows.row_size
    for page in range(kernel.tables[0], kernel.tables[0] + rows, PAGE):
        kernel.memory.drop(page)
    # Whatever the header says of processors, three tables of four are not taken for all.
    for said in (0, 2, 3, 4):
        found = places(kernel, processors=said)
        assert found.find("nt!ExPoolTagTables") is None, said
        assert found.find("nt!PoolTrackTable") is None, said
