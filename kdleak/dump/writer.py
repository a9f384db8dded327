"""Writes crash dumps of x64 machines: complete (runs) and bitmap dumps, page by page.

Layout: DUMP_HEADER64 (0x2000 bytes) and, for bitmap dumps, the sub-header with the signature
``FDMP`` or ``SDMP`` behind it, as Microsoft's ntiodump.h and public readers describe them. What
the writer does not know stays filled with the text ``PAGE``, as Windows leaves it.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Union

from kdleak.dump.kind import DumpKind
from kdleak.errors import TargetError, UsageError

PAGE_SIZE = 0x1000
HEADER_SIZE = 0x2000
_BITMAP_AT = HEADER_SIZE + 0x38
_ZERO_PAGE = bytes(PAGE_SIZE)
_CONTEXT_ROOM = 3000
_BUFFER = 1 << 20
_MAXIMUM_RUNS = 43
_MACHINE_AMD64 = 0x8664
_SIGNATURES = {DumpKind.BITMAP_FULL: b"FDMPDUMP", DumpKind.BITMAP_KERNEL: b"SDMPDUMP"}
_TYPES = {DumpKind.FULL: 1, DumpKind.BITMAP_FULL: 5, DumpKind.BITMAP_KERNEL: 6}


@dataclass(frozen=True)
class WriterHeader:
    """What a writer knows about the machine.

    Attributes:
        build: Windows build number.
        directory_table_base: CR3 of the crashing process.
        module_list: address of nt!PsLoadedModuleList.
        process_list: address of nt!PsActiveProcessHead.
        debugger_data: address of nt!KdDebuggerDataBlock, 0 for none.
        runs: physical memory of the machine: first frame and count of each run, ascending.
        pfn_database: address of the PFN database.
        processors: how many.
        major: 0xF free build, 0xC checked build.
        machine: IMAGE_FILE_MACHINE_*.
        secondary_version: KdSecondaryVersion.
        bug_check_code: 0 for none.
        bug_check_parameters: four.
        context: CONTEXT of the processor that crashed.
        exception_code: NTSTATUS.
        exception_flags: 1 for not continuable.
        exception_address: of the instruction.
        exception_parameters: up to 15.
        comment: ASCII, up to 127 characters.
        system_time: FILETIME of the crash.
        uptime: since boot, 100 ns units.
        product_type: 1 workstation, 2 domain controller, 3 server.
        suite_mask: product suites.
        attributes: dump attributes, all clear for a plain crash.
    """

    build: int
    directory_table_base: int
    module_list: int
    process_list: int
    debugger_data: int
    runs: tuple[tuple[int, int], ...]
    pfn_database: int = 0
    processors: int = 1
    major: int = 0xF
    machine: int = _MACHINE_AMD64
    secondary_version: int = 0
    bug_check_code: int = 0
    bug_check_parameters: tuple[int, ...] = (0, 0, 0, 0)
    context: bytes = b""
    exception_code: int = 0
    exception_flags: int = 0
    exception_address: int = 0
    exception_parameters: tuple[int, ...] = ()
    comment: str = ""
    system_time: int = 0
    uptime: int = 0
    product_type: int = 1
    suite_mask: int = 0
    attributes: int = 0


def header_bytes(kind: DumpKind, header: WriterHeader, required_space: int) -> bytes:
    """DUMP_HEADER64.

    Args:
        kind: one of the kinds :func:`write_dump` writes.
        header: the values.
        required_space: bytes of the whole file.

    Raises:
        UsageError: a value has no room in the header, or this kind cannot be written.
    """
    _check(kind, header)
    record = bytearray(b"PAGE" * (HEADER_SIZE // 4))
    pack = struct.pack_into
    pack("<4s2I4Q", record, 0x04, b"DU64", header.major, header.build,
         header.directory_table_base, header.pfn_database, header.module_list,
         header.process_list)  # fmt: skip
    pack("<4I4Q", record, 0x30, header.machine, header.processors, header.bug_check_code, 0,
         *header.bug_check_parameters)  # fmt: skip
    record[0x60] = 0  # VersionUser: an empty text
    pack("<Q", record, 0x80, header.debugger_data)
    pages = sum(count for _, count in header.runs)
    pack("<IIQ", record, 0x88, len(header.runs), 0, pages)
    for index, run in enumerate(header.runs):
        pack("<QQ", record, 0x98 + 16 * index, *run)
    record[0x348 : 0x348 + len(header.context)] = header.context
    parameters = header.exception_parameters
    pack("<IIQQII15Q", record, 0xF00, header.exception_code, header.exception_flags, 0,
         header.exception_address, len(parameters), 0,
         *parameters, *[0] * (15 - len(parameters)))  # fmt: skip
    pack("<IIQQ", record, 0xF98, _TYPES[kind], 0, required_space, header.system_time)
    if header.comment:
        text = header.comment.encode("ascii")
        record[0xFB0:0x1030] = text + bytes(128 - len(text))
    pack("<QIIIII", record, 0x1030, header.uptime, 0, 0, header.product_type,
         header.suite_mask, 0)  # fmt: skip
    pack("<BBH", record, 0x104C, 0, header.secondary_version, 0)
    pack("<II", record, 0x1050, header.attributes, 0)
    return bytes(record)


def write_dump(
    path: Union[Path, str],
    kind: DumpKind,
    header: WriterHeader,
    pages: Iterable[tuple[int, bytes]],
    *,
    force: bool = False,
) -> int:
    """Write a dump; nothing is at ``path`` before it is complete.

    One page is in memory at a time, and the bitmap. Pages of zeros take no room on disk where the
    file system knows sparse files.

    Args:
        path: the file.
        kind: FULL, BITMAP_FULL or BITMAP_KERNEL.
        header: values of the header.
        pages: frame number and 4096 bytes of every page, ascending, each inside
            ``header.runs``. A full dump holds zeros for the pages of its runs that are not given.
        force: replace a file that is there.

    Returns:
        Pages written (of a full dump: all pages of its runs).

    Raises:
        UsageError: the file is there already, values without room in the header, or pages out of
            order or outside the runs.
        TargetError: the file cannot be written; says why.
    """
    _check(kind, header)
    with _new_file(Path(path), force=force) as file:
        if kind is DumpKind.FULL:
            return _write_full(file, header, pages)
        return _write_bitmap(file, kind, header, pages)


def _check(kind: DumpKind, header: WriterHeader) -> None:
    if kind not in _TYPES:
        raise UsageError(f"writing a {kind.title}", "only complete and bitmap dumps are written")
    ends = [0, *(first + count for first, count in header.runs)]
    ordered = all(count > 0 and first >= end for (first, count), end in zip(header.runs, ends[:-1]))
    if not header.runs or len(header.runs) > _MAXIMUM_RUNS or not ordered:
        raise UsageError(
            f"writing a dump with {len(header.runs)} runs of physical memory",
            f"a header holds 1 to {_MAXIMUM_RUNS}, ascending and not empty",
        )
    if (
        len(header.context) > _CONTEXT_ROOM
        or len(header.bug_check_parameters) != 4
        or len(header.exception_parameters) > 15
        or len(header.comment) > 127
        or not header.comment.isascii()
    ):
        raise UsageError("writing a dump header", "a value does not fit into it")


def _write_full(file: BinaryIO, header: WriterHeader, pages: Iterable[tuple[int, bytes]]) -> int:
    total = sum(count for _, count in header.runs)
    size = HEADER_SIZE + total * PAGE_SIZE
    file.write(header_bytes(DumpKind.FULL, header, size))
    at = HEADER_SIZE
    for frame, place, page in _placed(header, pages):
        if page == _ZERO_PAGE:
            continue
        wanted = HEADER_SIZE + place * PAGE_SIZE
        if wanted != at:
            file.seek(wanted)
        file.write(page)
        at = wanted + PAGE_SIZE
        del frame
    file.truncate(size)
    return total


def _write_bitmap(
    file: BinaryIO, kind: DumpKind, header: WriterHeader, pages: Iterable[tuple[int, bytes]]
) -> int:
    bits = header.runs[-1][0] + header.runs[-1][1]
    bitmap = bytearray((bits + 7) // 8)
    first_page = (_BITMAP_AT + len(bitmap) + PAGE_SIZE - 1) // PAGE_SIZE * PAGE_SIZE
    file.seek(first_page)
    count, at = 0, first_page
    for frame, _, page in _placed(header, pages):
        bitmap[frame >> 3] |= 1 << (frame & 7)
        wanted = first_page + count * PAGE_SIZE
        count += 1
        if page == _ZERO_PAGE:
            continue
        if wanted != at:
            file.seek(wanted)
        file.write(page)
        at = wanted + PAGE_SIZE
    size = first_page + count * PAGE_SIZE
    file.truncate(size)
    file.seek(0)
    file.write(header_bytes(kind, header, size))
    file.write(struct.pack("<8s24x3Q", _SIGNATURES[kind], first_page, count, bits))
    file.write(bitmap)
    return count


def _placed(
    header: WriterHeader, pages: Iterable[tuple[int, bytes]]
) -> Iterator[tuple[int, int, bytes]]:
    """Frame, its number among all pages of the runs, and contents; checks order and size."""
    runs = iter(header.runs)
    first, count = next(runs)
    before, last = 0, -1
    for frame, page in pages:
        if frame <= last or len(page) != PAGE_SIZE:
            raise UsageError(
                f"writing page frame 0x{frame:x} after 0x{last:x}",
                f"{len(page)} bytes; frames ascend and have {PAGE_SIZE} bytes",
            )
        last = frame
        while frame >= first + count:
            before += count
            first, count = next(runs, (frame + 1, 0))
            if not count:
                break
        if not first <= frame < first + count:
            raise UsageError(
                f"writing page frame 0x{frame:x}", "it is in no run of the machine's memory"
            )
        yield frame, before + frame - first, page


@contextmanager
def _new_file(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """A file under a temporary name beside ``path``, renamed to it when the body ends well."""
    tried = f"writing {path.name or path}"
    goal = Path(os.path.realpath(path))  # a link stays a link: what it names is replaced
    _refuse_existing(goal, tried, force=force)
    temporary = goal.with_name(f".{goal.name}.{secrets.token_hex(4)}.part")
    try:
        with temporary.open("xb", buffering=_BUFFER) as file:
            yield file
        _refuse_existing(goal, tried, force=force)
        temporary.replace(goal)
    except OSError as error:
        came_back = error.strerror or type(error).__name__
        next_step = "choose another place"
        if error.errno == errno.ENOSPC:
            next_step = "make room on the disk, or choose another place"
        elif error.errno == errno.ENOENT:
            came_back, next_step = "its folder is not there", "make the folder first"
        raise TargetError(tried, came_back, next_step) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def _refuse_existing(goal: Path, tried: str, *, force: bool) -> None:
    try:
        mode = goal.stat().st_mode
    except OSError:
        return  # not there; what else is wrong shows when the file is made
    if not stat.S_ISREG(mode):
        raise UsageError(tried, "there is something of that name that is no file", "another name")
    if not force:
        raise UsageError(tried, "the file is there already", "another name, or --force")
