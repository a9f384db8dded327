"""Dumps with physical pages, of every type: runs, both bitmaps, range lists."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from tests.dump_files.build_header import HEADER_SIZES, build_header, place_runs

PAGE = 0x1000


def page_of(frame: int) -> bytes:
    """Contents of a frame, different for each."""
    return struct.pack("<QQ", frame, ~frame & 0xFFFFFFFFFFFFFFFF) * (PAGE // 16)


def pages_of(frames: Iterable[int]) -> bytes:
    return b"".join(map(page_of, frames))


def frames_of(runs: Iterable[tuple[int, int]]) -> list[int]:
    return [frame for first, count in runs for frame in range(first, first + count)]


def full_dump(pointer_size: int, runs: list[tuple[int, int]], **fields: object) -> bytes:
    """Type 1: pages in the order of the header's runs."""
    header = build_header(pointer_size, 1, **fields)
    place_runs(header, pointer_size, runs)
    return bytes(header) + pages_of(frames_of(runs))


def bits_of(frames: Iterable[int], bits: int) -> bytes:
    """A bitmap, least significant bit first."""
    bitmap = bytearray((bits + 7) // 8)
    for frame in frames:
        bitmap[frame // 8] |= 1 << frame % 8
    return bytes(bitmap)


def bitmap_sub_header(
    signature: bytes, first_page: int, pages: int, bits: int, bitmap: bytes
) -> bytes:
    """What follows the header in types 5, 6 and 7."""
    return signature + b"DUMP" + bytes(0x18) + struct.pack("<QQQ", first_page, pages, bits) + bitmap


def bitmap_dump(
    pointer_size: int,
    frames: Sequence[int],
    *,
    dump_type: int = 5,
    bits: int | None = None,
    **fields: object,
) -> bytes:
    """Types 5, 6 and 7: pages in ascending order behind a bitmap."""
    bits = frames[-1] + 1 if bits is None else bits
    bitmap = bits_of(frames, bits)
    header = build_header(pointer_size, dump_type, **fields)
    first_page = -(-(len(header) + 0x38 + len(bitmap)) // PAGE) * PAGE
    signature = b"FDMP" if dump_type == 5 else b"SDMP"
    sub = bitmap_sub_header(signature, first_page, len(frames), bits, bitmap)
    return (bytes(header) + sub).ljust(first_page, b"\0") + pages_of(frames)


def summary_dump(
    pointer_size: int, frames: Sequence[int], *, bits: int | None = None, **fields: object
) -> bytes:
    """Type 2: 32-bit counters, and the bits behind a pointer that meant something once."""
    bits = frames[-1] + 1 if bits is None else bits
    bitmap = bits_of(frames, bits)
    header = build_header(pointer_size, 2, **fields)
    at = 0x20 if pointer_size == 4 else 0x28
    first_page = -(-(len(header) + at + len(bitmap)) // PAGE) * PAGE
    sub = b"SDMPDUMP" + struct.pack("<5I", 1, first_page, bits, len(frames), bits)
    sub = sub.ljust(at, b"\xcc") + bitmap
    return (bytes(header) + sub).ljust(first_page, b"\0") + pages_of(frames)


def ranges_dump(dump_type: int, ranges: Sequence[tuple[int, int]], **fields: object) -> bytes:
    """Types 8, 9 and 10: range lists of ``.dump`` on a live session; 64-bit only."""
    header = build_header(8, dump_type, **fields)
    table = b"".join(struct.pack("<QQ", *entry) for entry in [*ranges, (0, 0)])
    table = table.ljust(-(-len(table) // 0x1000) * 0x1000 - 0x30, b"\0")
    first_page = HEADER_SIZES[8] + 0x30 + len(table)
    total = sum(count for _, count in ranges)
    sub = struct.pack("<I", 0x40) + b"RDMPDUMP" + bytes(4)
    sub += struct.pack("<QQ", first_page - 0x2040 + 0x20, first_page)
    sub += struct.pack("<QQ", len(ranges), total) if dump_type == 10 else bytes(16)
    return bytes(header) + sub + table + pages_of(frames_of(ranges))
