"""The debugger data block: encoded, decoded, and found by its tag alone."""

from __future__ import annotations

import struct

import pytest
from nt_fakes import FakeMemory
from paging_ram import Ram

from kdleak.nt.kdbg import (
    FIELDS,
    EncodingKeys,
    decode_debugger_data,
    find_debugger_data,
    scan_debugger_data,
)
from kdleak.nt.space.paging import PagingMode
from kdleak.nt.space.virtual import VirtualMemory

KEYS = EncodingKeys(0x0123_4567_89AB_CDEF, 0xFEDC_BA98_7654_3210, 0xFFFFF803_1A2B3C40)
AT = 0xFFFFF803_1A2B0000
KERNEL = 0xFFFFF803_1A000000


def block(size=0x3A0, flags=0, link=KERNEL + 0x1000):
    raw = bytearray(size)
    struct.pack_into("<QQ4sIQ", raw, 0, link, link, b"KDBG", size, KERNEL)
    struct.pack_into("<H", raw, 0x36, flags)
    if size > 0x368:
        struct.pack_into("<Q", raw, 0x360, 0xFFFFF680_00000000)
    return bytes(raw)


def encoded(raw, keys=KEYS):
    words = struct.unpack(f"<{len(raw) // 8}Q", raw)
    return struct.pack(f"<{len(words)}Q", *map(keys.encode, words))


def test_one_word_by_hand():
    # never = 4: rotate by 4; always = 0; flag = 0: only the swap and the rotation are left.
    keys = EncodingKeys(4, 0, 0)
    # 1 swapped is 0100000000000000, rotated right by 4 is 0010000000000000, xor 4.
    assert keys.encode(1) == 0x0010_0000_0000_0004
    assert keys.decode(0x0010_0000_0000_0004) == 1
    # always first, then the swap, then the flag.
    keys = EncodingKeys(0, 0xFF, 0x1)
    assert keys.encode(0) == 0xFF00_0000_0000_0001
    assert keys.decode(0xFF00_0000_0000_0001) == 0
    # The count is the low six bits of never: 0x40 turns by nothing.
    assert EncodingKeys(0x40, 0, 0).encode(0) == 0x40


def test_decoding_undoes_encoding():
    for word in (0, 1, (1 << 64) - 1, 0x1234_5678_9ABC_DEF0):
        assert KEYS.decode(KEYS.encode(word)) == word


@pytest.mark.parametrize("size", [0x340, 0x360, 0x368, 0x380, 0x3A0])
def test_block_is_read_plain_or_encoded(size):
    for raw in (block(size), encoded(block(size))):
        memory = FakeMemory()
        memory.put(AT, raw)
        found = decode_debugger_data(memory, AT, KEYS)
        assert found.raw == block(size)
        assert found.address == AT
        assert found.field("KernBase") == KERNEL
        assert found.field("PteBase") == (0xFFFFF680_00000000 if size > 0x368 else 0)


def test_neither_plain_nor_these_keys():
    memory = FakeMemory()
    memory.put(AT, encoded(block()))
    wrong = EncodingKeys(KEYS.wait_never ^ 1, KEYS.wait_always, KEYS.encoded_flag)
    assert decode_debugger_data(memory, AT, wrong) is None
    assert decode_debugger_data(memory, AT + 0x10000, KEYS) is None
    assert find_debugger_data(memory, AT) is None
    cut = FakeMemory()
    cut.put(AT, encoded(block())[:0x100])
    assert decode_debugger_data(cut, AT, KEYS) is None
    for size in (0x100, 0x1008, 0xFFFFFFFF):
        bad = bytearray(block())
        struct.pack_into("<I", bad, 0x14, size)
        memory = FakeMemory()
        memory.put(AT, encoded(bytes(bad)))
        assert decode_debugger_data(memory, AT, KEYS) is None


def test_flags():
    for flags, pae, levels in ((0, False, 0), (1, True, 0), (0x10, False, 4), (0x17, True, 5)):
        memory = FakeMemory()
        memory.put(AT, block(flags=flags))
        found = find_debugger_data(memory, AT)
        assert (found.pae_enabled, found.paging_levels) == (pae, levels)


def test_fields_do_not_overlap():
    offsets = sorted(FIELDS.values())
    assert all(b - a >= 8 for a, b in zip(offsets, offsets[1:]))
    assert all(offset % 8 == 0 for offset in offsets)


# ---- scanning ----


def mapped(contents, address=KERNEL):
    """x64 memory with these bytes at ``address``, the page after every second one absent."""
    pages = -(-len(contents) // 0x1000)
    ram = Ram([1, 2, 3, 4, *range(0x10, 0x10 + pages)])
    ram.q(0x1000, address >> 39 & 0x1FF, 0x2063)
    ram.q(0x2000, address >> 30 & 0x1FF, 0x3063)
    ram.q(0x3000, address >> 21 & 0x1FF, 0x4063)
    for page in range(pages):
        ram.q(0x4000, (address >> 12 & 0x1FF) + page, (0x10 + page) << 12 | 0x63)
    ram.put(0x10000, contents)
    return VirtualMemory(ram, PagingMode.X64, 0x1000, 8)


def scan(memory, keys=None, ranges=((KERNEL - 0x10000, KERNEL + 0x10000),)):
    return scan_debugger_data(memory, ranges, 8, keys)


@pytest.mark.parametrize("at", [0, 0x20, 0xFF0, 0x1FE8, 0x2C60])
def test_found_by_its_tag_wherever_it_lies(at):
    contents = bytearray(0x4000)
    contents[0x3F00:0x3F08] = b"KDBGKDBG"  # text, not a block
    contents[at : at + 0x3A0] = block()
    found = scan(mapped(bytes(contents)))
    assert (found.address, found.raw) == (KERNEL + at, block())


@pytest.mark.parametrize("at", [0, 0xFE8, 0x1FF0])
def test_encoded_block_is_found_with_its_keys(at):
    contents = bytearray(0x4000)
    contents[at : at + 0x3A0] = encoded(block())
    memory = mapped(bytes(contents))
    assert scan(memory) is None
    found = scan(memory, KEYS)
    assert (found.address, found.raw) == (KERNEL + at, block())
    contents[at : at + 0x3A0] = block()
    assert scan(mapped(bytes(contents)), KEYS).raw == block()


def test_imitations_are_passed_over():
    contents = bytearray(0x4000)
    contents[0x100:0x4A0] = block(link=0x7FFE_0000_0000)  # links into the user's half
    contents[0x501:0x8A1] = block()  # not aligned
    odd = bytearray(block())
    struct.pack_into("<I", odd, 0x14, 0x20)
    contents[0x900:0xCA0] = odd
    contents[0x3FE0:] = block()[:0x20]  # runs out of memory
    memory = mapped(bytes(contents))
    assert scan(memory) is None
    contents[0x1000:0x13A0] = block()
    assert scan(mapped(bytes(contents))).address == KERNEL + 0x1000
    assert scan(mapped(bytes(contents)), ranges=[(KERNEL, KERNEL + 0x1000)]) is None
    assert scan(mapped(bytes(contents)), ranges=[]) is None


def test_links_of_32_bit_targets_are_sign_extended():
    link = 0xFFFFFFFF_80551000
    memory = mapped(block(0x340, link=link).ljust(0x1000, b"\0"))
    ranges = [(KERNEL, KERNEL + 0x1000)]
    assert scan_debugger_data(memory, ranges, 4).address == KERNEL
    memory = mapped(block(0x340, link=0x80551000).ljust(0x1000, b"\0"))
    assert scan_debugger_data(memory, ranges, 4) is None
