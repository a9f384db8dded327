"""Small PE images as they lie in memory, and module lists that name them."""

from __future__ import annotations

import struct
import uuid
from typing import Dict, List, Sequence, Tuple

from nt_fakes import FakeMemory

BASE = 0xFFFFF80010000000
GUID = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")


def image(
    *,
    exports: Dict[str, int] = {},  # noqa: B006 - never changed
    functions: Sequence[Tuple[int, int, int]] = (),
    unwind: Dict[int, bytes] = {},  # noqa: B006
    pdb: str = "driver.pdb",
    age: int = 2,
    size: int = 0x8000,
    plus: bool = True,
) -> bytes:
    """An image with an export directory at 0x2000, pdata at 0x4000, RSDS at 0x1800."""
    raw = bytearray(size)
    struct.pack_into("<2s58xI", raw, 0, b"MZ", 0x80)
    struct.pack_into("<4sHHIIIHH", raw, 0x80, b"PE\0\0", 0x8664 if plus else 0x14C, 2, 0x5EADBEEF,
                     0, 0, 0xF0 if plus else 0xE0, 0x2022)  # fmt: skip
    optional = 0x98
    struct.pack_into("<H", raw, optional, 0x20B if plus else 0x10B)
    struct.pack_into("<I", raw, optional + 0x38, size)
    directories = optional + (0x70 if plus else 0x60)
    struct.pack_into("<I", raw, directories - 4, 16)
    section = optional + (0xF0 if plus else 0xE0)
    struct.pack_into("<8sIIIIIIHHI", raw, section, b".text", 0x1000, 0x1000, 0, 0, 0, 0, 0, 0,
                     0x60000020)  # fmt: skip
    struct.pack_into("<8sIIIIIIHHI", raw, section + 40, b".data", 0x800, 0x5000, 0, 0, 0, 0, 0, 0,
                     0xC0000040)  # fmt: skip
    if exports:
        _put_exports(raw, directories, exports)
    if functions:
        table = b"".join(struct.pack("<III", *row) for row in functions)
        raw[0x4000 : 0x4000 + len(table)] = table
        struct.pack_into("<II", raw, directories + 3 * 8, 0x4000, len(table))
    for rva, data in unwind.items():
        raw[rva : rva + len(data)] = data
    if pdb:
        record = b"RSDS" + GUID.bytes_le + struct.pack("<I", age) + pdb.encode() + b"\0"
        raw[0x1800 : 0x1800 + len(record)] = record
        struct.pack_into("<II", raw, directories + 6 * 8, 0x1700, 28)
        struct.pack_into("<12xIII4x", raw, 0x1700, 2, len(record), 0x1800)
    return bytes(raw)


def _put_exports(raw: bytearray, directories: int, exports: Dict[str, int]) -> None:
    names = sorted(exports)
    count = len(names)
    functions, pointers, ordinals, text = 0x2028, 0x2028 + 4 * count, 0x2028 + 8 * count, 0
    text = ordinals + 2 * count
    struct.pack_into("<II", raw, 0x2014, count, count)
    struct.pack_into("<III", raw, 0x201C, functions, pointers, ordinals)
    for index, name in enumerate(names):
        struct.pack_into("<I", raw, functions + 4 * index, exports[name])
        struct.pack_into("<I", raw, pointers + 4 * index, text)
        struct.pack_into("<H", raw, ordinals + 2 * index, index)
        raw[text : text + len(name) + 1] = name.encode() + b"\0"
        text += len(name) + 1
    struct.pack_into("<II", raw, directories, 0x2000, text - 0x2000)


def loaded(data: bytes, base: int = BASE) -> FakeMemory:
    memory = FakeMemory()
    memory.put(base, data)
    return memory


def module_list(
    memory: FakeMemory, head: int, modules: Sequence[Tuple[int, int, str]], width: int = 8
) -> List[int]:
    """Put a list of (base, size, name) into memory; returns the addresses of its entries."""
    entries = [head + 0x1000 * (index + 1) for index in range(len(modules))]
    links = [head, *entries, head]
    mask = (1 << 8 * width) - 1
    memory.put(head, (links[1] & mask).to_bytes(width, "little") * 2)
    at = (0x30, 0x40, 0x48, 0x58, 8) if width == 8 else (0x18, 0x20, 0x24, 0x2C, 4)
    for index, (base, size, name) in enumerate(modules):
        raw = bytearray(0x100)
        raw[:width] = (links[index + 2] & mask).to_bytes(width, "little")
        raw[at[0] : at[0] + width] = (base & mask).to_bytes(width, "little")
        struct.pack_into("<I", raw, at[1], size)
        path = "\\SystemRoot\\System32\\" + name
        for offset, text, where in ((at[2], path, 0x400), (at[3], name, 0x200)):
            encoded = text.encode("utf-16-le")
            struct.pack_into("<HH", raw, offset, len(encoded), len(encoded))
            pointer = (entries[index] + where) & mask
            raw[offset + at[4] : offset + at[4] + width] = pointer.to_bytes(width, "little")
            memory.put(entries[index] + where, encoded)
        memory.put(entries[index], bytes(raw))
    return entries
