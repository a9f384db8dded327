"""``!pool``: oddities beyond the samples."""

from __future__ import annotations

import pytest

from kdleak.dialect.pool import BlockState, parse_pool, starts_pool, take_pool
from kdleak.dialect.source import split_lines
from kdleak.tags import PoolTag


def only_block(text):
    pool = parse_pool(text)
    assert [entry.text for entry in pool.unparsed] == []
    (page,) = pool.pages
    (block,) = page.blocks
    return block


@pytest.mark.parametrize(
    ("row", "tag"),
    [
        (" f40e0000 size:   30 previous size:    0  (Allocated)  BiXQ", "BiXQ"),
        (" f40e0000 size:   30 previous size:    0  (Allocated)  Bi", "Bi  "),
        (" f40e0000 size:   30 previous size:    0  (Allocated)   BiX", " BiX"),
        (" f40e0000 size:   30 previous size:    0  (Allocated)  *BiX", "*BiX"),
        (" f40e0000 size:   30 previous size:    0  (Free)       Rk 3", "Rk 3"),
        (" f40e0000 size:   30 previous size:    0  (Free )  Rk 3", "Rk 3"),
        (" f40e0000 size:   30 previous size:    0  (Free )       Rk 3", "Rk 3"),
        ("f40e0000 size: 30 previous size: 0 (Free) BiXQ", "BiXQ"),
        ("f40e0000 size: 30 previous size: 0 (Allocated) BiXQ", "BiXQ"),
    ],
)
def test_where_the_tag_stands(row, tag):
    block = only_block(row)
    assert block.tag == tag
    assert (block.size, block.previous_size, block.current) == (0x30, 0, False)


@pytest.mark.parametrize(
    "row",
    [
        "*f40e0000 size:   30 previous size:    0  (Allocated) *BiXQ",
        "*f40e0000 size:   30 previous size:    0  (Free)      *BiXQ",
        "*f40e0000 size:   30 previous size:    0  (Free ) *BiXQ",
        "*f40e0000 size: 30 previous size: 0 (Free) *BiXQ",
        " f40e0000 size:   30 previous size:    0  (Allocated) *BiXQ",
    ],
)
def test_marked(row):
    block = only_block(row)
    assert (block.tag, block.current) == ("BiXQ", True)


@pytest.mark.parametrize("gap", [" ", "  ", "     "])
def test_protected_and_charged(gap):
    row = f" f40e0000 size:   30 previous size:   20  (Allocated)  Bi{gap}(Protected)"
    assert (only_block(row).tag, only_block(row).protected) == ("Bi  ", True)
    row += " Process: 8f3e9fcc"
    assert (only_block(row).tag, only_block(row).process) == ("Bi  ", 0x8F3E9FCC)
    row = " f40e0000 size:   30 previous size:   20  (Allocated)  BiXQ Process: ffffe001`8f3e9fcc"
    assert (only_block(row).protected, only_block(row).process) == (False, 0xFFFFE0018F3E9FCC)


def test_four_characters_that_look_like_a_number_are_a_tag():
    block = only_block(" f40e0000 size:   30 previous size:    0  (Allocated)  0x1f")
    assert block.pool_tag == PoolTag.from_bytes(b"0x1f")


@pytest.mark.parametrize("word", ["tag", "Tag"])
def test_large_page(word):
    block = only_block(
        f"*ffff8287ad34f000 : large page allocation, {word} is Ab c, size is 0x1000 bytes"
    )
    assert (block.address, block.size, block.tag) == (0xFFFF8287AD34F000, 0x1000, "Ab c")
    assert (block.large, block.current, block.previous_size) == (True, True, None)
    block = only_block("*8287a000 :free  large page allocation, Tag is Ab, size is 0x1000 bytes")
    assert (block.state, block.tag) == (BlockState.FREE, "Ab  ")


def test_special_pool():
    text = (
        "0: kd> !pool ffffb98851f06b10\n"
        "Pool page ffffb98851f06b10 region is Special pool\n"
        "*ffffb98851f06000 size:  4f0 data: ffffb98851f06b10 (NonPaged) *Wcbf\n"
        "\t\tPooltag Wcbf : Winch tags, Binary : winch.sys\n"
    )
    (page,) = parse_pool(text).pages
    (block,) = page.blocks
    assert (block.data, block.pool, block.size) == (0xFFFFB98851F06B10, "NonPaged", 0x4F0)
    assert (block.tag, block.current) == ("Wcbf", True)
    note = page.pooltag
    assert (note.tag, note.description, note.binary) == ("Wcbf", "Winch tags", "winch.sys")
    assert parse_pool(text).unparsed == ()


def test_owning_component():
    text = (
        "*f40e0000 size:   30 previous size:    0  (Allocated) *BiXQ\n"
        "\t\tOwning component : Unknown (update pooltag.txt)\n"
    )
    (page,) = parse_pool(text).pages
    assert (page.owning_component, page.pooltag) == ("Unknown (update pooltag.txt)", None)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (" f40e0000 size:   3O previous size:    0  (Allocated)  BiXQ", "looks like the row"),
        (" f40e0000 size:   30 previous size:    0  (Allocated", "looks like the row"),
        (" f40e0000 size:   30 previous size:    0  (Allocated)  BiXQ  <- mine", "words behind"),
        (" f40e0000 size:   30 previous size:    0  (Allocated)  BiXQmine", "more than four"),
        (" f40e0000 size:   30 previous size:    0  (Allocated)", "no tag"),
    ],
)
def test_what_is_not_certain_is_reported(row, why):
    pool = parse_pool("kd> !pool f40e0000\n" + row)
    assert [(entry.line, entry.why[: len(why)]) for entry in pool.unparsed] == [(2, why)]
    for page in pool.pages:
        assert all(block.tag in (None, "BiXQ") for block in page.blocks)


def test_two_commands_on_one_line_and_an_author_between_the_rows():
    text = (
        "0: kd> .reload;!kdexts.pool f40e0000   // look here\n"
        " f40e0000 size:   30 previous size:    0  (Allocated)  BiXQ\n"
        "mind the next one:\n"
        "*f40e0030 size:   10 previous size:   30  (Allocated) *Wd  \n"
        "and that was it\n"
        "thank you\n"
    )
    pool = parse_pool(text)
    (page,) = pool.pages
    assert page.command == ".reload;!kdexts.pool f40e0000"
    assert [block.tag for block in page.blocks] == ["BiXQ", "Wd  "]
    assert [entry.line for entry in pool.unparsed] == [3, 5, 6]


def test_a_reader_of_a_whole_log_may_start_behind_the_prompt():
    lines = split_lines("0: kd> !pool @rbx\n\nFailed to read heap key\n0: kd> k\n# Call Site\n")
    assert [starts_pool(lines, index) for index in range(len(lines))] == [
        True,
        False,
        True,
        False,
        False,
    ]
    pool, end = take_pool(lines, 2)
    assert (pool.pages[0].command, end) == ("!pool @rbx", 3)
    assert take_pool(lines, 0) == (pool, 3)


@pytest.mark.parametrize("command", ["!poolused 2", "!poolfind Ab", "!poolval f40e0000", "pool"])
def test_other_commands_are_none_of_ours(command):
    lines = split_lines(f"0: kd> {command}\nFailed to read heap key\n")
    assert [starts_pool(lines, index) for index in (0, 1)] == [False, False]


def test_an_empty_answer_is_no_page():
    assert parse_pool("kd> !pool f40e0000\nkd> !pool f40e1000\n").pages == ()
