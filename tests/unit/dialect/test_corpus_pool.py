"""Every sample of ``!pool`` gives every expected value."""

from __future__ import annotations

import pytest
from corpus_sample import differences, load

from kdleak.dialect.pool import parse_pool


@pytest.mark.parametrize("number", [59, 60, 61, 62, 63, 64, 65])
def test_sample(number):
    lines, expected = load(number)
    pool = parse_pool(lines)
    assert differences(pool.pages, expected["pages"]) == []
    assert [entry.text for entry in pool.unparsed] == []


def test_blocks_join_up():
    lines, _ = load(62)
    (page,) = parse_pool(lines).pages
    for block, following in zip(page.blocks, page.blocks[1:]):
        assert block.address + block.size == following.address
        assert following.previous_size == block.size


def test_free_is_no_tag():
    lines, _ = load(62)
    (page,) = parse_pool(lines).pages
    tags = {block.tag: block.pool_tag for block in page.blocks}
    assert tags["Free"] is None
    assert str(tags["Rb  "]) == "Rb  "


def test_bytes_that_do_not_print_are_no_certain_tag():
    lines, _ = load(63)
    assert [page.blocks[-1].pool_tag for page in parse_pool(lines).pages] == [None, None]
