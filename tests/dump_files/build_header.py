"""Dump headers field by field, with offsets of their own: nothing here comes from kdleak."""

from __future__ import annotations

import struct

HEADER_SIZES = {4: 0x1000, 8: 0x2000}

# name: (offset in a 32-bit header, its format, offset in a 64-bit header, its format)
FIELDS: dict[str, tuple[int, str, int, str]] = {
    "major": (0x008, "I", 0x0008, "I"),
    "build": (0x00C, "I", 0x000C, "I"),
    "directory_table_base": (0x010, "I", 0x0010, "Q"),
    "pfn_database": (0x014, "I", 0x0018, "Q"),
    "module_list": (0x018, "I", 0x0020, "Q"),
    "process_list": (0x01C, "I", 0x0028, "Q"),
    "machine": (0x020, "I", 0x0030, "I"),
    "processors": (0x024, "I", 0x0034, "I"),
    "bug_check_code": (0x028, "I", 0x0038, "I"),
    "bug_check_parameters": (0x02C, "4I", 0x0040, "4Q"),
    "version_user": (0x03C, "32s", 0x0060, "32s"),
    "kd_secondary_version": (0x05D, "B", 0x104D, "B"),
    "debugger_data": (0x060, "I", 0x0080, "Q"),
    "number_of_runs": (0x064, "I", 0x0088, "I"),
    "number_of_pages": (0x068, "I", 0x0090, "Q"),
    "context": (0x320, "1200s", 0x0348, "3000s"),
    "exception_code": (0x7D0, "I", 0x0F00, "I"),
    "exception_flags": (0x7D4, "I", 0x0F04, "I"),
    "exception_record": (0x7D8, "I", 0x0F08, "Q"),
    "exception_address": (0x7DC, "I", 0x0F10, "Q"),
    "exception_count": (0x7E0, "I", 0x0F18, "I"),
    "exception_parameters": (0x7E4, "15I", 0x0F20, "15Q"),
    "comment": (0x820, "128s", 0x0FB0, "128s"),
    "attributes": (0x8A0, "I", 0x1050, "I"),
    "boot_id": (0x8A4, "I", 0x1054, "I"),
    "dump_type": (0xF88, "I", 0x0F98, "I"),
    "mini_dump_fields": (0xF8C, "I", 0x1038, "I"),
    "secondary_data_state": (0xF90, "I", 0x103C, "I"),
    "product_type": (0xF94, "I", 0x1040, "I"),
    "suite_mask": (0xF98, "I", 0x1044, "I"),
    "writer_status": (0xF9C, "I", 0x1048, "I"),
    "required_space": (0xFA0, "Q", 0x0FA0, "Q"),
    "uptime": (0xFB8, "Q", 0x1030, "Q"),
    "system_time": (0xFC0, "Q", 0x0FA8, "Q"),
}
_PAE_AT = 0x05C
_RUNS_AT = {4: (0x06C, "<II"), 8: (0x098, "<QQ")}
_MACHINES = {4: 0x014C, 8: 0x8664}


def place(header: bytearray, pointer_size: int, name: str, value: object) -> None:
    """Sets one field by name."""
    at32, format32, at64, format64 = FIELDS[name]
    at, form = (at32, format32) if pointer_size == 4 else (at64, format64)
    values = value if isinstance(value, tuple) else (value,)
    struct.pack_into("<" + form, header, at, *values)


def place_runs(
    header: bytearray,
    pointer_size: int,
    runs: list[tuple[int, int]],
    number: int | None = None,
    pages: int | None = None,
) -> None:
    """The physical memory block; ``number`` and ``pages`` may lie."""
    place(header, pointer_size, "number_of_runs", len(runs) if number is None else number)
    total = sum(count for _, count in runs) if pages is None else pages
    place(header, pointer_size, "number_of_pages", total)
    at, form = _RUNS_AT[pointer_size]
    for index, run in enumerate(runs):
        struct.pack_into(form, header, at + index * struct.calcsize(form), *run)


def usual_context(pointer_size: int) -> bytes:
    """A register context, not empty; MXCSR stands in it twice, and readers compare the two."""
    context = bytearray(range(1, 101)).ljust(1200 if pointer_size == 4 else 3000, b"\0")
    for at in (0x34, 0x118):
        struct.pack_into("<I", context, at, 0x1F80)
    return bytes(context)


def build_header(
    pointer_size: int, dump_type: int, *, pae: int | None = None, **fields: object
) -> bytearray:
    """A header; what is not given stays filled with ``PAGE``."""
    header = bytearray(b"PAGE" * (HEADER_SIZES[pointer_size] // 4))
    header[0:8] = b"PAGEDUMP" if pointer_size == 4 else b"PAGEDU64"
    usual: dict[str, object] = {
        "major": 0xF,
        "build": 19041 if pointer_size == 8 else 2600,
        "machine": _MACHINES[pointer_size],
        "processors": 2,
        "directory_table_base": 0x1AA000 if pointer_size == 8 else 0x39000,
        "dump_type": dump_type,
        "bug_check_code": 0xE2,
        "bug_check_parameters": (0, 0, 0, 0),
        "context": usual_context(pointer_size),
        "attributes": 0,
    }
    for name, value in {**usual, **fields}.items():
        place(header, pointer_size, name, value)
    if pae is not None:
        header[_PAE_AT] = pae
    return header
