"""The memory cache: nothing twice, nothing stale."""

from __future__ import annotations

import pytest
from nt_fakes import FakeMemory

from kdleak.errors import MemoryUnreadable
from kdleak.nt.memory import CachedMemory, read_pointer, sign_extend

BASE = 0xFFFFF80000000000


@pytest.fixture
def memory() -> FakeMemory:
    memory = FakeMemory()
    memory.put(BASE, bytes(index & 0xFF for index in range(0x4000)))
    return memory


def test_second_read_of_the_same_line_costs_nothing(memory):
    cache = CachedMemory(memory)
    assert cache.read(BASE + 0x10, 8) == bytes(range(0x10, 0x18))
    assert cache.read(BASE + 0x20, 8) == bytes(range(0x20, 0x28))
    assert memory.reads == [(BASE, 0x100)]


def test_missing_lines_are_fetched_together(memory):
    cache = CachedMemory(memory)
    cache.read(BASE + 0x100, 1)
    memory.reads.clear()
    assert cache.read(BASE, 0x500) == memory.peek(BASE, 0x500)
    assert memory.reads == [(BASE, 0x100), (BASE + 0x200, 0x300)]


def test_invalidate_forgets_what_may_change_and_keeps_images(memory):
    cache = CachedMemory(memory)
    cache.read(BASE, 4)
    cache.constant.read(BASE, 4)
    memory.put(BASE, b"new!")
    assert cache.read(BASE, 4) != b"new!"
    cache.invalidate()
    assert cache.read(BASE, 4) == b"new!"
    assert cache.constant.read(BASE, 4) != b"new!"
    cache.forget(BASE, 1)
    assert cache.constant.read(BASE, 4) == b"new!"


def test_absent_page_spoils_no_neighbour(memory):
    memory.holes.add((BASE + 0x1000) >> 12)
    cache = CachedMemory(memory)
    with pytest.raises(MemoryUnreadable) as caught:
        cache.read(BASE + 0xF00, 0x200)
    assert caught.value.address == BASE + 0x1000
    assert cache.read(BASE + 0xF80, 0x80) == memory.peek(BASE + 0xF80, 0x80)


def test_bytes_before_the_end_of_a_piece_can_be_read_though_their_line_cannot():
    memory = FakeMemory()
    memory.put(BASE, b"abcdefgh")
    cache = CachedMemory(memory)
    assert cache.read(BASE + 2, 4) == b"cdef"
    with pytest.raises(MemoryUnreadable):
        cache.read(BASE + 6, 4)


def test_cache_stays_within_its_limit(memory):
    cache = CachedMemory(memory, limit=0x400)
    for offset in range(0, 0x3000, 0x100):
        assert cache.read(BASE + offset, 0x200) == memory.peek(BASE + offset, 0x200)
    memory.reads.clear()
    assert cache.read(BASE, 0x2000) == memory.peek(BASE, 0x2000)
    assert memory.reads == [(BASE, 0x2000)]


def test_pointers_of_32_bit_targets_are_sign_extended():
    memory = FakeMemory()
    memory.put(BASE, (0x80401234).to_bytes(4, "little"))
    assert read_pointer(memory, BASE, 4) == 0xFFFFFFFF80401234
    assert sign_extend(0x7FFFFFFF, 4) == 0x7FFFFFFF
    assert sign_extend(0x80401234, 8) == 0x80401234


def test_line_size_must_be_a_power_of_two():
    with pytest.raises(ValueError, match="power of two"):
        CachedMemory(FakeMemory(), line=0x180)
