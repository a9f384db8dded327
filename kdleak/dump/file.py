"""A crash dump on disk, mapped, not copied: its header, its pages, and what is missing in it.

The file must not shrink while it is open: a mapped page that is gone ends the process with SIGBUS
on Unix (Windows does not allow it). ``DumpFile.check_unchanged`` says so in words where a caller
can ask between two long steps.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from kdleak.dump.containers import refuse_container
from kdleak.dump.header import (
    HEADER_SIZE_64,
    SIGNATURE_32,
    SIGNATURE_64,
    DumpAttributes,
    DumpHeader,
    parse_header,
)
from kdleak.dump.kind import DumpKind
from kdleak.dump.maps import describe_cut, read_page_map
from kdleak.dump.page_map import PAGE_SIZE, PageMap
from kdleak.dump.triage import TriageContents, read_triage
from kdleak.errors import MemoryUnreadable, TargetError, UnsupportedTarget

_SUB_HEADER = 0x40
_FORGOTTEN_AFTER = 1 << 11
"""Pages handed out one by one; with each the system may bring in its neighbours (16 on Linux)."""


class DumpFile:
    """An open dump; a context manager.

    Attributes:
        path: the file.
        where: its name, for people.
        header: what the header says.
        size: bytes of the file when it was opened.
        pages: where each physical page is.
        remarks: what is missing or odd, one sentence each.
        triage: contents of a small memory dump, None for other kinds.
        data: the whole file; slices are no copies. Let go of them before ``close``.
        missing: pages asked for so far that the map promises and the file does not have.
        promised_missing: all such pages of the dump.
    """

    def __init__(
        self,
        path: Path,
        header: DumpHeader,
        pages: PageMap,
        *,
        mapping: mmap.mmap,
        data: memoryview,
        descriptor: int,
        remarks: list[str],
        triage: TriageContents | None = None,
    ) -> None:
        self.path = path
        self.where = path.name
        self.header = header
        self.size = len(data)
        self.pages = pages
        self.remarks = remarks
        self.triage = triage
        self.data = data
        self.missing = 0
        self.promised_missing = pages.cut_off
        self._mapping = mapping
        self._descriptor = descriptor
        self._offset = pages.offset
        self._handed_out = 0

    def page(self, frame: int) -> memoryview | None:
        """The 4096 bytes of a physical page, no copy; None where the dump does not have it.

        Args:
            frame: physical address divided by 4096.
        """
        at = self._offset(frame)
        if at is None:
            if self.promised_missing and self.pages.claims(frame):
                self.missing += 1
            return None
        self._handed_out += 1
        if self._handed_out >= _FORGOTTEN_AFTER:
            self._handed_out = 0
            self.forget_pages()
        return self.data[at : at + PAGE_SIZE]

    def read_physical(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes at a physical address.

        Raises:
            MemoryUnreadable: a page of it is not in the dump; ``address`` is the first such byte.
        """
        parts: list[memoryview] = []
        at, left = address, size
        while left > 0:
            page = self.page(at // PAGE_SIZE) if at >= 0 else None
            if page is None:
                raise MemoryUnreadable(at, size, "this physical page is not in the dump")
            inside = at % PAGE_SIZE
            part = page[inside : inside + left]
            parts.append(part)
            at += len(part)
            left -= len(part)
        return b"".join(parts)

    def check_unchanged(self) -> None:
        """Call between long steps: the file must be as long as it was.

        Raises:
            TargetError: the file shrank while it was open; its pages must not be touched any more.
        """
        now = os.fstat(self._descriptor).st_size
        if now < self.size:
            raise TargetError(
                f"reading {self.where}",
                f"the file shrank from {self.size} to {now} bytes while it was open",
                "wait until whatever writes it is done, then open it again",
            )

    def forget_pages(self) -> None:
        """Call while going through much of the file: what was touched counts as our memory no more.

        Nothing is lost: views stay good, and what they show is read again when it is needed,
        mostly from the system's cache. Does nothing on systems without such advice (Windows trims
        by itself).

        Raises:
            TargetError: the file shrank (see ``check_unchanged``).
        """
        if self._descriptor < 0:
            return
        self.check_unchanged()
        advice = getattr(mmap, "MADV_DONTNEED", None)
        if advice is not None:
            with suppress(OSError, ValueError):
                self._mapping.madvise(advice)

    def close(self) -> None:
        """Lets the file go; safe to call twice."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        os.close(descriptor)
        self.pages.release()
        # Slices somebody still holds keep the mapping until they are gone: not an error.
        with suppress(BufferError):
            self.data.release()
        with suppress(BufferError):
            self._mapping.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<DumpFile {self.where}: {self.header.kind.title}>"


def open_dump(path: Path | str) -> DumpFile:
    """Opens a kernel crash dump of any type and of any target kdleak knows.

    Raises:
        UnsupportedTarget: another container (named), an encrypted dump, another machine.
        TargetError: the file cannot be opened, or is damaged; says what is wrong.
    """
    path = Path(path)
    descriptor = _open(path)
    try:
        return _read(path, descriptor)
    except BaseException:
        os.close(descriptor)
        raise


def _open(path: Path) -> int:
    tried = f"opening the dump {path}"
    try:
        # Asked first: to open a named pipe would wait for its writer.
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise TargetError(tried, "it is a directory", "name the file in it, such as MEMORY.DMP")
        if not stat.S_ISREG(mode):
            raise TargetError(tried, "it is no regular file", "copy the dump to a file first")
        return os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise TargetError(tried, _reason(error), _advice(error)) from error
    except ValueError as error:  # a name with a NUL in it
        raise TargetError(tried, "that is no file name", "check the name") from error


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _advice(error: OSError) -> str:
    if error.errno in {errno.ENOENT, errno.ENOTDIR}:
        return r"check the name; Windows writes dumps to C:\Windows\MEMORY.DMP"
    if error.errno in {errno.EACCES, errno.EPERM}:
        return (
            "run as a user who may read it, or copy it: Windows lets only administrators read "
            "MEMORY.DMP, and nobody while another program holds it open"
        )
    return "check that the disk or share it lies on works"


def _read(path: Path, descriptor: int) -> DumpFile:
    size = os.fstat(descriptor).st_size
    start = _first_bytes(descriptor, path)
    if start[:8] not in {SIGNATURE_32, SIGNATURE_64}:
        refuse_container(path, start, size)
    try:
        header = parse_header(start)
    except TargetError as error:
        raise type(error)(f"opening the dump {path}", error.came_back, error.next_step) from error
    _refuse_encrypted(path, header)
    mapping = _map(path, descriptor, size)
    data = memoryview(mapping)
    try:
        return _assemble(path, descriptor, header, mapping, data)
    except BaseException:
        with suppress(BufferError):
            data.release()
        with suppress(BufferError):
            mapping.close()
        raise


def _assemble(
    path: Path, descriptor: int, header: DumpHeader, mapping: mmap.mmap, data: memoryview
) -> DumpFile:
    remarks = _remarks(header)
    try:
        pages = read_page_map(data, header, remarks)
        triage = None
        if header.kind is DumpKind.TRIAGE:
            triage = read_triage(data, header, remarks)
    except TargetError as error:
        raise type(error)(f"opening the dump {path}", error.came_back, error.next_step) from error
    describe_cut(pages, header, len(data), remarks)
    return DumpFile(
        path,
        header,
        pages,
        mapping=mapping,
        data=data,
        descriptor=descriptor,
        remarks=remarks,
        triage=triage,
    )


def _first_bytes(descriptor: int, path: Path) -> bytes:
    parts: list[bytes] = []
    left = HEADER_SIZE_64 + _SUB_HEADER
    try:
        while left > 0:
            part = os.read(descriptor, left)
            if not part:
                break
            parts.append(part)
            left -= len(part)
    except OSError as error:
        raise TargetError(f"opening the dump {path}", _reason(error), _advice(error)) from error
    return b"".join(parts)


def _map(path: Path, descriptor: int, size: int) -> mmap.mmap:
    try:
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
    except (OSError, OverflowError, ValueError) as error:
        raise TargetError(
            f"opening the dump {path}",
            f"its {size} bytes cannot be mapped into memory ({error})",
            "a 64-bit Python and a file on a local disk are needed",
        ) from error


def _refuse_encrypted(path: Path, header: DumpHeader) -> None:
    if header.encrypted:
        raise UnsupportedTarget(
            f"opening the dump {path}",
            "it is encrypted (dump encryption was on when Windows wrote it)",
            "decrypt it with the private key that belongs to the target's dump encryption "
            "policy, then open the result",
        )


def _remarks(header: DumpHeader) -> list[str]:
    """What the header itself says is wrong with the dump."""
    remarks: list[str] = []
    if header.dump_type is None:
        remarks.append(f"The header does not say its dump type: read as {header.kind.title}.")
    if header.attributes & DumpAttributes.INSUFFICIENT_DUMPFILE_SIZE:
        remarks.append(
            "Windows marked the dump as incomplete: the page file or dump file was too small."
        )
    return remarks
