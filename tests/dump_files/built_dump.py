"""A dump of a built kernel: page tables, module list, debugger data block and header by hand."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from tests.dump_files.build_header import build_header, place_runs
from tests.dump_files.built_kernel import PAGE, BuiltKernel

FIRST_FRAME = 1
LAB = b"19041.1.built.practice_release.240101-0000"


def add_module_list(kernel: BuiltKernel, drivers: Sequence[tuple[str, int, int]] = ()) -> int:
    """PsLoadedModuleList with nt and some drivers; returns the address of its head."""
    wide = kernel.windows.width == 8
    head = kernel.base + kernel.DATA + 0x1000
    images = [("ntoskrnl.exe", kernel.base, kernel.DATA + kernel.DATA_SIZE), *drivers]
    block = kernel.allocate(bytes(0x200 * len(images)))
    entries = [block + 0x200 * index for index in range(len(images))]
    ring = [head, *entries, head]
    pointer = kernel.windows.width
    kernel.word(head, ring[1])
    kernel.word(head + pointer, ring[-2])
    for index, (name, base, size) in enumerate(images, start=1):
        at = ring[index]
        text = name.encode("utf-16-le")
        kernel.word(at, ring[index + 1])
        kernel.word(at + pointer, ring[index - 1])
        kernel.word(at + (0x30 if wide else 0x18), base)
        kernel.memory.put(at + (0x40 if wide else 0x20), struct.pack("<I", size))
        string = at + (0x58 if wide else 0x2C)
        kernel.memory.put(string, struct.pack("<HH", len(text), len(text) + 2))
        kernel.word(string + pointer, at + 0x100)
        kernel.memory.put(at + 0x100, text)
    return head


def add_debugger_data(kernel: BuiltKernel, module_list: int) -> int:
    """KDDEBUGGER_DATA64 among nt's variables; returns its address."""
    block = kernel.base + kernel.DATA + 0x7800
    lab = kernel.base + kernel.DATA + 0x1100
    kernel.memory.put(lab, LAB + b"\0")
    raw = bytearray(0x340)
    struct.pack_into("<QQII", raw, 0, block, block, 0x4742444B, 0x340)
    for offset, value in (
        (0x18, kernel.base), (0x48, module_list), (0x208, lab),
        (0x1B8, kernel.at["PoolTrackTable"]),
    ):  # fmt: skip
        struct.pack_into("<Q", raw, offset, value)
    kernel.memory.put(block, bytes(raw))
    return block


def _map(
    frames: dict[int, int], lost: dict[int, int], width: int, machine: int
) -> tuple[int, dict[int, bytearray]]:
    """Page tables for virtual page -> frame; returns (root address, table frames)."""
    next_frame = FIRST_FRAME + len(frames)
    tables: dict[int, bytearray] = {}

    def new_table() -> int:
        nonlocal next_frame
        tables[next_frame] = bytearray(PAGE)
        next_frame += 1
        return next_frame - 1

    # Table and page entries of each machine: x64 and PAE present, writable, accessed, dirty.
    table_bits, page_bits = (0x3, 0x703) if machine == 0xAA64 else (0x63, 0x63)
    shifts = (27, 18, 9, 0) if width == 8 else (18, 9, 0)
    root = new_table()
    for page, frame in {**frames, **lost}.items():
        table = root
        for shift in shifts[:-1]:
            bits = 0x1 if width == 4 and shift == 18 else table_bits
            index = page >> shift & (3 if width == 4 and shift == 18 else 0x1FF)
            (entry,) = struct.unpack_from("<Q", tables[table], 8 * index)
            if not entry:
                entry = new_table() << 12 | bits
                struct.pack_into("<Q", tables[table], 8 * index, entry)
            table = entry >> 12
        struct.pack_into("<Q", tables[table], 8 * (page & 0x1FF), frame << 12 | page_bits)
    return root << 12, tables


def write_built_dump(
    path: Path, kernel: BuiltKernel, *, absent: Sequence[int] = (), **fields: object
) -> None:
    """A complete dump (type 1) of the kernel's memory.

    Args:
        path: the file.
        kernel: what is in it.
        absent: virtual addresses whose page is mapped, to a frame that the dump has not.
        fields: of the header, over the usual ones.
    """
    windows = kernel.windows
    mask = (1 << 8 * windows.width) - 1
    left_out = {(address & mask) // PAGE for address in absent}
    pages = [page for page in sorted(kernel.memory.pages) if page not in left_out]
    frames = {page: FIRST_FRAME + index for index, page in enumerate(pages)}
    # Absent ones get frames in a hole between two runs; one page more lies behind the hole.
    hole = FIRST_FRAME + 0x1000
    lost = {page: hole + index for index, page in enumerate(sorted(left_out))}
    root, tables = _map(frames, lost, windows.width, windows.machine)
    contents = {frame: bytes(kernel.memory.pages[page]) for page, frame in frames.items()}
    contents.update({frame: bytes(table) for frame, table in tables.items()})
    count = len(contents)
    assert sorted(contents) == list(range(FIRST_FRAME, FIRST_FRAME + count))
    assert count < 0x1000
    contents[hole + 0x1000] = bytes(PAGE)
    low = {
        name: value & mask if isinstance(value, int) else value for name, value in fields.items()
    }
    header = build_header(
        windows.width,
        1,
        **{
            "build": windows.build,
            "machine": windows.machine,
            "processors": kernel.processors,
            "directory_table_base": root,
            "context": b"",
            **low,
        },
        pae=1 if windows.width == 4 else None,
    )
    place_runs(header, windows.width, [(FIRST_FRAME, count), (hole + 0x1000, 1)])
    path.write_bytes(bytes(header) + b"".join(contents[frame] for frame in sorted(contents)))
