"""Which page map a dump has: the sub-headers behind the header, checked and bounded.

Every number in them may be a lie. What can be read is read as far as it goes, with a remark that
says what is missing; what cannot is a TargetError. Nothing here costs more than the file is long.
"""

from __future__ import annotations

import sys
from array import array
from itertools import accumulate
from operator import add, gt

from construct import Bytes, Container, Int32ul, Int64ul, Pointer, Struct

from kdleak.dump.bitmap import BitmapMap
from kdleak.dump.header import FILL32, DumpAttributes, DumpHeader
from kdleak.dump.header_layout import MOST_RUNS_32, MOST_RUNS_64
from kdleak.dump.kind import DumpKind
from kdleak.dump.page_map import PAGE_SIZE, EmptyMap, PageMap, RunMap
from kdleak.errors import TargetError

# No physical address of x64 or ARM64 has more than 52 bits.
MOST_FRAMES = 1 << 40
# 32 TB of target memory: a gigabyte of bitmap, read once at open.
MOST_BITS = 1 << 33
# Beyond this a range list is no list of anything: 1 TB if every range were 1 MB.
MOST_RANGES = 1 << 20
# Lists that are out of order are put in order up to this length: no writer makes such.
_MOST_TO_SORT = 1 << 16

BITMAP = Struct(
    "signature" / Pointer(0x00, Bytes(4)),
    "valid" / Pointer(0x04, Bytes(4)),
    "first_page" / Pointer(0x20, Int64ul),
    "pages" / Pointer(0x28, Int64ul),
    "bits" / Pointer(0x30, Int64ul),
)
_BITMAP_AT = 0x38

SUMMARY = Struct(
    "signature" / Pointer(0x00, Bytes(4)),
    "valid" / Pointer(0x04, Bytes(4)),
    "first_page" / Pointer(0x0C, Int32ul),
    "bits" / Pointer(0x10, Int32ul),
    "pages" / Pointer(0x14, Int32ul),
)
# Behind a pointer-sized field that only meant something to the writer.
_SUMMARY_AT = {4: 0x20, 8: 0x28}

RANGES = Struct(
    "signature" / Pointer(0x04, Bytes(4)),
    "valid" / Pointer(0x08, Bytes(4)),
    "metadata_size" / Pointer(0x10, Int64ul),
    "first_page" / Pointer(0x18, Int64ul),
    "number_of_ranges" / Pointer(0x20, Int32ul),
    "total_pages" / Pointer(0x28, Int64ul),
)
_RANGES_AT = 0x30

_RANGE_KINDS = {
    DumpKind.KERNEL_RANGES,
    DumpKind.KERNEL_AND_USER_RANGES,
    DumpKind.COMPLETE_RANGES,
}


def read_page_map(data: memoryview, header: DumpHeader, remarks: list[str]) -> PageMap:
    """The page map of a dump.

    Args:
        data: the whole file.
        header: its header.
        remarks: gets a sentence for each thing that is odd or missing.

    Raises:
        TargetError: the map is damaged, or cut off before the first page.
    """
    if header.kind in {DumpKind.TRIAGE, DumpKind.HEADER_ONLY}:
        return EmptyMap()
    if header.kind is DumpKind.FULL:
        return _header_runs(data, header, remarks)
    if header.kind in _RANGE_KINDS:
        return _ranges(data, header, remarks)
    return _bitmap(data, header, remarks)


def _damaged(came_back: str, next_step: str = "") -> TargetError:
    return TargetError(
        "reading the dump's page map",
        came_back,
        next_step or "the file is damaged or was cut off: copy it again from the target",
    )


def _header_runs(data: memoryview, header: DumpHeader, remarks: list[str]) -> PageMap:
    room = MOST_RUNS_64 if header.pointer_size == 8 else MOST_RUNS_32
    claimed = header.number_of_runs
    if claimed is None:
        raise _damaged("the header has no list of physical memory runs")
    if claimed > room:
        remarks.append(
            f"The header claims {claimed} runs of physical memory and has room for {room}: "
            "the list was read as far as it makes sense."
        )
    runs = _plausible(header.runs, header, claimed > room)
    if not runs:
        raise _damaged("its list of physical memory runs is empty")
    firsts, counts = zip(*runs, strict=True)
    total = sum(counts)
    if header.number_of_pages is not None and header.number_of_pages != total:
        remarks.append(
            f"The header claims {header.number_of_pages} pages; its runs add up to {total}."
        )
    return _run_map(array("Q", firsts), array("Q", counts), header.size, len(data), remarks)


def _plausible(
    runs: tuple[tuple[int, int], ...], header: DumpHeader, doubtful: bool
) -> list[tuple[int, int]]:
    """Runs up to the first one that cannot be; with a doubtful count, up to the pages claimed."""
    found: list[tuple[int, int]] = []
    total = 0
    for first, count in runs:
        if first + count > MOST_FRAMES:
            break
        if doubtful and (not count or total >= (header.number_of_pages or 0)):
            break
        found.append((first, count))
        total += count
    return found


def _run_map(
    firsts: array[int], counts: array[int], base: int, size: int, remarks: list[str]
) -> RunMap:
    """A map of runs as listed; sorted and freed of overlaps where the list needs it."""
    in_order = 0 not in counts and not any(map(gt, map(add, firsts, counts), firsts[1:]))
    if not in_order and len(firsts) > _MOST_TO_SORT:
        remarks.append(
            f"The dump's page list is out of order: only its first {_MOST_TO_SORT} of "
            f"{len(firsts)} ranges were read."
        )
        firsts, counts = firsts[:_MOST_TO_SORT], counts[:_MOST_TO_SORT]
    positions = array("Q", accumulate(counts, initial=0))
    positions.pop()
    if in_order:
        return RunMap(firsts, counts, positions, base, size)
    # Out of order or overlapping: a frame that two runs claim stays with the run that begins first.
    pieces = sorted(zip(firsts, counts, positions, strict=True))
    clean: list[tuple[int, int, int]] = []
    lost = 0
    end = 0
    for first, count, position in pieces:
        skip = min(max(end - first, 0), count)
        lost += skip
        if count > skip:
            clean.append((first + skip, count - skip, position + skip))
            end = first + count
    if lost:
        remarks.append(
            f"Runs of physical memory overlap: {lost} pages are listed twice, "
            "and only one copy of each is read."
        )
    if not clean:
        raise _damaged("its list of physical memory runs has no page")
    columns = [array("Q", column) for column in zip(*clean, strict=True)]
    return RunMap(columns[0], columns[1], columns[2], base, size)


def _ranges(data: memoryview, header: DumpHeader, remarks: list[str]) -> PageMap:
    fields = _sub_header(RANGES, data, header, 0x30)
    if fields.signature != b"RDMP" or fields.valid != b"DUMP":
        raise _damaged("no list of page ranges (RDMP) follows its header")
    start = header.size + _RANGES_AT
    if not start <= fields.first_page <= len(data):
        raise _damaged(
            f"the first page should lie at 0x{fields.first_page:x}, the file has {len(data)} bytes"
        )
    if fields.metadata_size - 0x20 != fields.first_page - header.size - 0x40:
        remarks.append("The size of the range list and the place of the first page disagree.")
    most = min((fields.first_page - start) // 16, MOST_RANGES)
    # Only the newest kind says how many there are; the others end at a zero entry.
    total_pages = 0
    if header.kind is DumpKind.COMPLETE_RANGES:
        total_pages = fields.total_pages
        if 0 < fields.number_of_ranges < most:
            most = fields.number_of_ranges
    values = array("Q")
    values.frombytes(data[start : start + 16 * most])
    if sys.byteorder == "big":
        values.byteswap()
    firsts, counts = _cut_at_end(values[0::2], values[1::2], total_pages, remarks)
    if not firsts:
        raise _damaged("its list of page ranges is empty")
    return _run_map(firsts, counts, fields.first_page, len(data), remarks)


def _cut_at_end(
    firsts: array[int], counts: array[int], total_pages: int, remarks: list[str]
) -> tuple[array[int], array[int]]:
    """The list up to its zero entry, the pages it claims, or the first impossible range."""
    length = len(firsts)
    if 0 in firsts[1:]:
        length = firsts.index(0, 1)
    if length and not firsts[0] and not counts[0]:
        length = 0
    ended = length < len(firsts)
    firsts, counts = firsts[:length], counts[:length]
    if max(counts, default=0) > MOST_FRAMES or max(firsts, default=0) > MOST_FRAMES:
        for index, (first, count) in enumerate(zip(firsts, counts, strict=True)):
            if first + count > MOST_FRAMES:
                remarks.append(
                    f"Range {index} of the dump's page list is impossible (frame 0x{first:x}, "
                    f"{count} pages): the list was read up to there."
                )
                return firsts[:index], counts[:index]
    if total_pages:
        sums = array("Q", accumulate(counts))
        if sums and sums[-1] != total_pages:
            remarks.append(f"The dump claims {total_pages} pages; its ranges add up to {sums[-1]}.")
    elif not ended and length >= MOST_RANGES:
        remarks.append(f"The dump's page list was read for its first {length} ranges only.")
    return firsts, counts


def _bitmap(data: memoryview, header: DumpHeader, remarks: list[str]) -> PageMap:
    summary = header.kind is DumpKind.KERNEL
    fields = _sub_header(SUMMARY if summary else BITMAP, data, header, 0x38)
    if fields.signature not in {b"SDMP", b"FDMP"} or fields.valid != b"DUMP":
        raise _damaged("no page bitmap (SDMP or FDMP) follows its header")
    start = header.size + (_SUMMARY_AT[header.pointer_size] if summary else _BITMAP_AT)
    if not start < fields.first_page:
        raise _damaged(f"its first page should lie at 0x{fields.first_page:x}, inside the headers")
    if fields.first_page > len(data):
        raise _damaged(
            f"its first page should lie at 0x{fields.first_page:x}, behind the end of the file "
            f"({len(data)} bytes): no page of the target is in it"
        )
    bits = fields.bits
    room = 8 * (fields.first_page - start)
    if bits > room:
        remarks.append(
            f"The page bitmap claims {bits} frames and has room for {room}: "
            "the rest is taken as not in the dump."
        )
        bits = room
    if bits > MOST_BITS:
        raise _damaged(
            f"its bitmap claims {bits} frames of memory, which no machine has",
            "the header is damaged; if it is not, report this with the machine's memory size",
        )
    length = (bits + 7) // 8
    found = BitmapMap(data[start : start + length], bits, fields.first_page, len(data))
    if found.pages != fields.pages and not _fill(fields.pages):
        remarks.append(
            f"The dump claims {fields.pages} pages; its bitmap has {found.pages} bits set."
        )
    return found


def _fill(value: int) -> bool:
    return value & 0xFFFFFFFF == FILL32


def _sub_header(layout: Struct, data: memoryview, header: DumpHeader, size: int) -> Container:
    raw = bytes(data[header.size : header.size + size])
    if len(raw) < size:
        raise _damaged(f"the file ends behind its header ({len(data)} bytes)")
    return layout.parse(raw)


def describe_cut(pages: PageMap, header: DumpHeader, size: int, remarks: list[str]) -> None:
    """Says which pages are missing because the file is too short, and why, where it is known."""
    if pages.cut_off:
        remarks.append(
            f"The file ends too early: {pages.cut_off} of {pages.pages} pages "
            f"({pages.cut_off * PAGE_SIZE / (1 << 20):.1f} MB) are missing."
        )
    marked = header.attributes & DumpAttributes.INSUFFICIENT_DUMPFILE_SIZE
    wanted = header.required_space or 0
    # Whole dumps can be shorter than what was wanted too: their secondary data was left out.
    if wanted > size and (pages.cut_off or marked):
        remarks.append(f"Windows wanted {wanted} bytes for the dump; the file has {size}.")
