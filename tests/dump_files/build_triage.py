"""Small memory dumps, field by field."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from tests.dump_files.build_header import build_header

# name: offset in the sub-header; all u32 but the two marked ones
OFFSETS = {
    "service_pack_build": 0x00,
    "size_of_dump": 0x04,
    "valid": 0x08,
    "context": 0x0C,
    "exception": 0x10,
    "mm": 0x14,
    "unloaded_drivers": 0x18,
    "prcb": 0x1C,
    "process": 0x20,
    "thread": 0x24,
    "stack": 0x28,
    "stack_size": 0x2C,
    "drivers": 0x30,
    "driver_count": 0x34,
    "strings": 0x38,
    "strings_size": 0x3C,
    "broken_driver": 0x40,
    "options": 0x44,
}
AFTER = {
    4: {
        "top_of_stack": (0x48, "<I"),
        "data_page_address": (0x4C, "<I"),
        "data_page": (0x50, "<I"),
        "data_page_size": (0x54, "<I"),
        "debugger_data": (0x58, "<I"),
        "debugger_data_size": (0x5C, "<I"),
        "blocks": (0x60, "<I"),
        "block_count": (0x64, "<I"),
    },
    8: {
        "top_of_stack": (0x48, "<Q"),
        "data_page_address": (0x60, "<Q"),
        "data_page": (0x68, "<I"),
        "data_page_size": (0x6C, "<I"),
        "debugger_data": (0x70, "<I"),
        "debugger_data_size": (0x74, "<I"),
        "blocks": (0x78, "<I"),
        "block_count": (0x7C, "<I"),
    },
}
STACK = bytes(range(256)) * 4
KDBG = bytes(16) + b"KDBG" + bytes(range(200))


def driver_entry(
    pointer_size: int, stride: int, name_at: int, base: int, size: int, entry_point: int
) -> bytearray:
    """One entry of the driver list; the last 4 bytes are the time stamp in the newest layout."""
    entry = bytearray(stride)
    struct.pack_into("<I", entry, 0, name_at)
    if pointer_size == 8:
        struct.pack_into("<QQI", entry, 8 + 0x30, base, entry_point, size)
        if stride == 0xA8:
            struct.pack_into("<I", entry, 8 + 0x9C, 0x5F000000)
    else:
        struct.pack_into("<III", entry, 4 + 0x18, base, entry_point, size)
        if stride == 0x60:
            struct.pack_into("<I", entry, 4 + 0x58, 0x5F000000)
    return entry


def triage_dump(
    pointer_size: int,
    *,
    blocks: Sequence[tuple[int, bytes]] = (),
    drivers: Sequence[tuple[str, int, int]] = (),
    stride: int = 0,
    stack_address: int = 0,
    debugger_data: int = 0,
    length_in_bytes: bool = False,
    options: int = 0,
    **lies: int,
) -> bytes:
    """A small memory dump; ``lies`` overwrite fields of the sub-header."""
    stride = stride or (0xA8 if pointer_size == 8 else 0x60)
    fields: dict[str, object] = {"debugger_data": debugger_data} if debugger_data else {}
    data = build_header(pointer_size, 4, mini_dump_fields=0xFFF, **fields)
    sub = len(data)
    data += bytes(0x80)
    values: dict[str, int] = {"service_pack_build": 0, "options": options}

    def add(name: str, part: bytes) -> int:
        values[name] = len(data)
        data.extend(part)
        return values[name]

    add("prcb", b"PRCB" * 64)
    add("process", b"PROC" * 32)
    add("thread", b"THRD" * 32)
    add("stack", STACK)
    values["stack_size"] = len(STACK)
    values["top_of_stack"] = stack_address
    add("debugger_data", KDBG)
    values["debugger_data_size"] = len(KDBG)
    names: list[int] = []
    add("strings", b"")
    for name, _, _ in drivers:
        names.append(len(data))
        text = name.encode("utf-16-le")
        data.extend(struct.pack("<I", len(text) if length_in_bytes else len(name)))
        data.extend(text + b"\0\0")
        data.extend(bytes(-len(data) % 8))
    values["strings_size"] = len(data) - values["strings"]
    values["broken_driver"] = names[-1] if names else 0
    add("drivers", b"")
    values["driver_count"] = len(drivers)
    for at, (_, base, size) in zip(names, drivers, strict=True):
        data.extend(driver_entry(pointer_size, stride, at, base, size, base + 0x1000))
    places = []
    for address, contents in blocks:
        places.append((address, len(data), len(contents)))
        data.extend(contents)
    data.extend(bytes(-len(data) % 16))
    add("blocks", b"".join(struct.pack("<QII", *place) for place in places))
    values["block_count"] = len(blocks)
    add("valid", b"TRGD")
    values["size_of_dump"] = len(data)
    for name, value in {**values, **lies}.items():
        if name in OFFSETS:
            struct.pack_into("<I", data, sub + OFFSETS[name], value)
        else:
            at, form = AFTER[pointer_size][name]
            struct.pack_into(form, data, sub + at, value)
    return bytes(data)
