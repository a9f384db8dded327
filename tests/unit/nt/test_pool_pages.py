"""Headers found in bulk, and pages that are one chain of them."""

from __future__ import annotations

import numpy as np
import pytest
from pool_fakes import NONPAGED, PAGE, TAG, chain_page, header

from kdleak.nt.blocks.pool_pages import (
    chained_pages as chained_rows,
)
from kdleak.nt.blocks.pool_pages import (
    find_headers,
    inside_page,
    is_paged,
    looks_in_use,
)

OTHER = 0x6C6F6F50


def pages_of(*pages: bytes) -> np.ndarray:
    return np.frombuffer(b"".join(pages), dtype=np.uint8).reshape(-1, PAGE)


def chained_pages(pages: np.ndarray, pointer_size: int):
    return chained_rows(pages, np.arange(len(pages)), pointer_size)


def addresses_of(count: int) -> np.ndarray:
    return np.uint64(NONPAGED) + np.arange(count, dtype=np.uint64) * np.uint64(PAGE)


def blocks(pointer_size: int) -> list:
    unit = 2 * pointer_size
    rest = PAGE - 8 * unit - 20 * unit - 2 * unit
    return [(8 * unit, 2, TAG), (20 * unit, 3, OTHER), (2 * unit, 3, TAG), (rest, 0, TAG)]


@pytest.mark.parametrize("pointer_size", [8, 4])
class TestHeaders:
    def test_fields(self, pointer_size):
        unit = 2 * pointer_size
        if pointer_size == 4:
            page = chain_page(blocks(pointer_size), pointer_size=pointer_size)
        else:
            page = chain_page(blocks(pointer_size))
        hits = find_headers(addresses_of(1), pages_of(page), TAG, pointer_size)
        assert hits.offsets.tolist() == [0, 28 * unit, 30 * unit]
        assert hits.addresses.tolist() == [
            NONPAGED + offset for offset in (0, 28 * unit, 30 * unit)
        ]
        assert hits.sizes.tolist() == [8 * unit, 2 * unit, PAGE - 30 * unit]
        assert hits.previous.tolist() == [0, 20 * unit, 2 * unit]
        assert hits.types.tolist() == [2, 3, 0]

    def test_protected_blocks_are_found(self, pointer_size):
        page = header(0x40, 2, TAG | 0x80000000, pointer_size=pointer_size).ljust(PAGE, b"\0")
        hits = find_headers(addresses_of(1), pages_of(page), TAG, pointer_size)
        assert hits.sizes.tolist() == [0x40]

    def test_off_the_grid_is_no_header(self, pointer_size):
        page = bytes(4) + header(0x40, 2, pointer_size=pointer_size)
        assert not len(
            find_headers(addresses_of(1), pages_of(page.ljust(PAGE, b"\0")), TAG, pointer_size)
        )

    def test_a_header_alone_is_no_block(self, pointer_size):
        unit = 2 * pointer_size
        page = (
            header(unit, 2, pointer_size=pointer_size)
            + bytes(unit)
            + header(0, 2, pointer_size=pointer_size)
        )
        assert not len(
            find_headers(addresses_of(1), pages_of(page.ljust(PAGE, b"\0")), TAG, pointer_size)
        )

    def test_blocks_that_leave_their_page(self, pointer_size):
        page = bytearray(PAGE)
        page[0xF80 : 0xF80 + 8] = header(0x80, 2, pointer_size=pointer_size)[:8]
        page[0xFC0 : 0xFC0 + 8] = header(0x80, 2, pointer_size=pointer_size)[:8]
        hits = find_headers(addresses_of(1), pages_of(bytes(page)), TAG, pointer_size)
        assert hits.offsets.tolist() == [0xF80, 0xFC0]
        assert inside_page(hits).tolist() == [True, False]

    def test_no_block_begins_in_front_of_its_page(self, pointer_size):
        page = bytearray(PAGE)
        page[0x40:0x48] = header(0x80, 2, previous=0x80, pointer_size=pointer_size)[:8]
        page[0x80:0x88] = header(0x80, 2, previous=0x80, pointer_size=pointer_size)[:8]
        hits = find_headers(addresses_of(1), pages_of(bytes(page)), TAG, pointer_size)
        assert inside_page(hits).tolist() == [False, True]


@pytest.mark.parametrize("pointer_size", [8, 4])
class TestChains:
    def test_a_chain_that_covers_its_page(self, pointer_size):
        unit = 2 * pointer_size
        page = chain_page(blocks(pointer_size), pointer_size=pointer_size)
        fits, starts = chained_pages(pages_of(bytes(PAGE), page), pointer_size)
        assert fits.tolist() == [False, True]
        assert np.flatnonzero(starts[1]).tolist() == [0, 8, 28, 30]
        assert starts.shape == (2, PAGE // unit)

    def test_one_wrong_link_breaks_it(self, pointer_size):
        unit = 2 * pointer_size
        page = bytearray(chain_page(blocks(pointer_size), pointer_size=pointer_size))
        page[28 * unit] += 1
        assert not chained_pages(pages_of(bytes(page)), pointer_size)[0].any()

    def test_one_that_leaves_the_page_breaks_it(self, pointer_size):
        unit = 2 * pointer_size
        page = bytearray(chain_page(blocks(pointer_size), pointer_size=pointer_size))
        page[30 * unit + 2] += 1
        assert not chained_pages(pages_of(bytes(page)), pointer_size)[0].any()

    def test_random_pages_are_no_chains(self, pointer_size):
        rng = np.random.default_rng(5)
        pages = rng.integers(0, 256, size=(256, PAGE), dtype=np.uint8)
        assert not chained_pages(pages, pointer_size)[0].any()


def test_pool_type_by_version():
    types = np.array([5, 6, 2, 3, 0x0B], dtype=np.uint8)
    assert looks_in_use(types, 2600).tolist() == [True, True, False, False, False]
    assert is_paged(types, 2600)[:2].tolist() == [False, True]
    assert looks_in_use(types, 7601).tolist() == [False, True, True, True, True]
    assert is_paged(types, 7601)[2:].tolist() == [False, True, True]
