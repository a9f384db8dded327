"""PE images as they lie in target memory: headers, PDB identity, exports, exception directory.

Drivers are read as the loader mapped them, so every offset is an RVA. Any part may be paged out
or damaged; each reader here is bounded and answers with what it could get.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from kdleak.errors import MemoryUnreadable
from kdleak.nt.memory import MemoryReader

MACHINE_X86 = 0x14C
MACHINE_X64 = 0x8664
MACHINE_ARM64 = 0xAA64

_DIRECTORY_EXPORT = 0
_DIRECTORY_EXCEPTION = 3
_DIRECTORY_DEBUG = 6
_MAXIMUM_SECTIONS = 96  # the loader's own limit
_MAXIMUM_DEBUG_ENTRIES = 32
_MAXIMUM_EXPORTS = 0x10000
_MAXIMUM_EXPORT_BYTES = 4 << 20
_MAXIMUM_NAME = 0x200
_IMAGE_LIMIT = 1 << 31


@dataclass(frozen=True)
class Section:
    """One row of the section table.

    Attributes:
        name: up to 8 characters.
        rva: start, from the image base.
        size: bytes in memory.
        characteristics: IMAGE_SCN_ bits.
    """

    name: str
    rva: int
    size: int
    characteristics: int

    @property
    def executable(self) -> bool:
        """Holds code (IMAGE_SCN_MEM_EXECUTE)."""
        return bool(self.characteristics & 0x20000000)

    @property
    def writable(self) -> bool:
        """May change (IMAGE_SCN_MEM_WRITE)."""
        return bool(self.characteristics & 0x80000000)


@dataclass(frozen=True)
class PdbIdentity:
    """The CodeView record of an image: which PDB belongs to it.

    Attributes:
        guid: 32 upper-case hexadecimal digits in text order.
        age: the age of the PDB.
        path: the file name in the record, often with the build machine's folders.
    """

    guid: str
    age: int
    path: str

    @property
    def file_name(self) -> str:
        """The PDB's name without folders."""
        return self.path.replace("\\", "/").rsplit("/", 1)[-1]

    @property
    def key(self) -> str:
        """The folder of a symbol store that holds it: GUID, then the age in hexadecimal."""
        return f"{self.guid}{self.age:X}"


@dataclass(frozen=True)
class Image:
    """Headers of one mapped image.

    Attributes:
        base: load address.
        machine: IMAGE_FILE_MACHINE_.
        timestamp: TimeDateStamp.
        size: SizeOfImage, bytes.
        pointer_size: 4 for PE32, 8 for PE32+.
        sections: the section table, as far as it could be read.
        directories: (rva, size) of the data directories that the header has.
    """

    base: int
    machine: int
    timestamp: int
    size: int
    pointer_size: int
    sections: tuple[Section, ...]
    directories: tuple[tuple[int, int], ...]

    def directory(self, index: int) -> tuple[int, int]:
        """(rva, size) of a data directory that lies inside the image; (0, 0) if there is none."""
        if index >= len(self.directories):
            return 0, 0
        rva, size = self.directories[index]
        if not rva or not size or rva + size > self.size:
            return 0, 0
        return rva, size

    @property
    def exception_directory(self) -> tuple[int, int]:
        """(rva, size) of the RUNTIME_FUNCTION table, (0, 0) if there is none."""
        return self.directory(_DIRECTORY_EXCEPTION)


def read_image(memory: MemoryReader, base: int) -> Image | None:
    """The headers of the image at ``base``.

    Returns:
        None when no PE image is there, or its headers cannot be read.
    """
    try:
        dos = memory.read(base, 0x40)
        start = struct.unpack_from("<I", dos, 0x3C)[0]
        if dos[:2] != b"MZ" or not 4 <= start <= 0x1000:
            return None
        coff = memory.read(base + start, 0x18)
        if coff[:4] != b"PE\0\0":
            return None
        machine, section_count, timestamp = struct.unpack_from("<HHI", coff, 4)
        optional_size = struct.unpack_from("<H", coff, 0x14)[0]
        optional = memory.read(base + start + 0x18, min(max(optional_size, 0x40), 0x200))
    except MemoryUnreadable:
        return None
    magic = struct.unpack_from("<H", optional, 0)[0]
    if magic not in (0x10B, 0x20B):
        return None
    size = struct.unpack_from("<I", optional, 0x38)[0]
    if not size or size > _IMAGE_LIMIT:
        return None
    return Image(
        base=base,
        machine=machine,
        timestamp=timestamp,
        size=size,
        pointer_size=8 if magic == 0x20B else 4,
        sections=_sections(memory, base + start + 0x18 + optional_size, section_count),
        directories=_directories(optional, 0x70 if magic == 0x20B else 0x60),
    )


def _directories(optional: bytes, offset: int) -> tuple[tuple[int, int], ...]:
    if len(optional) < offset:
        return ()
    count = min(struct.unpack_from("<I", optional, offset - 4)[0], 16)
    room = (len(optional) - offset) // 8
    return tuple(
        struct.unpack_from("<II", optional, offset + 8 * index)
        for index in range(min(count, room))
    )  # fmt: skip


def _sections(memory: MemoryReader, address: int, count: int) -> tuple[Section, ...]:
    count = min(count, _MAXIMUM_SECTIONS)
    try:
        raw = memory.read(address, 40 * count)
    except MemoryUnreadable:
        return ()
    found = []
    for at in range(0, 40 * count, 40):
        size, rva = struct.unpack_from("<II", raw, at + 8)
        flags = struct.unpack_from("<I", raw, at + 36)[0]
        name = raw[at : at + 8].split(b"\0")[0].decode("latin-1")
        found.append(Section(name, rva, size, flags))
    return tuple(found)


def read_pdb_identity(memory: MemoryReader, image: Image) -> PdbIdentity | None:
    """The RSDS record of an image; None when it has none that can be read (it may be paged out)."""
    rva, size = image.directory(_DIRECTORY_DEBUG)
    count = min(size // 28, _MAXIMUM_DEBUG_ENTRIES)
    try:
        raw = memory.read(image.base + rva, 28 * count) if count else b""
    except MemoryUnreadable:
        return None
    for at in range(0, 28 * count, 28):
        kind, length, data_rva = struct.unpack_from("<III", raw, at + 12)
        if kind != 2 or length < 0x18 or not 0 < data_rva < image.size:
            continue
        length = min(length, 0x18 + _MAXIMUM_NAME)
        try:
            record = memory.read(image.base + data_rva, length)
        except MemoryUnreadable:
            continue
        found = parse_rsds(record)
        if found is not None:
            return found
    return None


def parse_rsds(record: bytes) -> PdbIdentity | None:
    """A CodeView record ``RSDS``, GUID, age, NUL-terminated name; None if it is something else."""
    if len(record) < 0x18 or record[:4] != b"RSDS":
        return None
    first, second, third = struct.unpack_from("<IHH", record, 4)
    age = struct.unpack_from("<I", record, 0x14)[0]
    guid = f"{first:08X}{second:04X}{third:04X}{record[12:20].hex().upper()}"
    path = record[0x18:].split(b"\0")[0].decode("utf-8", "replace")
    return PdbIdentity(guid, age, path)


def read_exports(memory: MemoryReader, image: Image) -> list[tuple[int, str]]:
    """Named exports as (rva, name), unordered; forwarders are left out.

    Returns:
        An empty list when there are none or they cannot be read.
    """
    rva, size = image.directory(_DIRECTORY_EXPORT)
    if size < 40:
        return []
    blob = _read_bounded(memory, image.base + rva, min(size, _MAXIMUM_EXPORT_BYTES))
    if len(blob) < 40:
        return []
    functions, names = struct.unpack_from("<II", blob, 0x14)
    function_table, name_table, ordinal_table = struct.unpack_from("<III", blob, 0x1C)
    functions, names = min(functions, _MAXIMUM_EXPORTS), min(names, _MAXIMUM_EXPORTS)
    if not functions or not names:
        return []
    view = _Window(memory, image, rva, blob)
    addresses = view.read(function_table, 4 * functions)
    pointers = view.read(name_table, 4 * names)
    ordinals = view.read(ordinal_table, 2 * names)
    found = []
    for index in range(min(len(pointers) // 4, len(ordinals) // 2)):
        ordinal = struct.unpack_from("<H", ordinals, 2 * index)[0]
        if 4 * ordinal + 4 > len(addresses):
            continue
        target = struct.unpack_from("<I", addresses, 4 * ordinal)[0]
        if not 0 < target < image.size or rva <= target < rva + size:
            continue  # unused, damaged, or the text of a forwarder
        name = view.text(struct.unpack_from("<I", pointers, 4 * index)[0])
        if name:
            found.append((target, name))
    return found


class _Window:
    """Parts of an image, served from the export directory's own bytes where they lie in it."""

    def __init__(self, memory: MemoryReader, image: Image, rva: int, blob: bytes) -> None:
        self._memory = memory
        self._image = image
        self._rva = rva
        self._blob = blob

    def read(self, rva: int, size: int) -> bytes:
        offset = rva - self._rva
        if offset >= 0 and offset + size <= len(self._blob):
            return self._blob[offset : offset + size]
        if rva <= 0 or rva + size > self._image.size:
            return b""
        try:
            return self._memory.read(self._image.base + rva, size)
        except MemoryUnreadable:
            return b""

    def text(self, rva: int) -> str:
        offset = rva - self._rva
        if not 0 <= offset < len(self._blob):
            return ""  # linkers keep the names inside the directory
        end = self._blob.find(b"\0", offset, offset + _MAXIMUM_NAME)
        if end < 0:
            return ""
        return self._blob[offset:end].decode("utf-8", "replace")


def _read_bounded(memory: MemoryReader, address: int, size: int) -> bytes:
    """As much of a range as can be read from its start, in steps of a page."""
    try:
        return memory.read(address, size)
    except MemoryUnreadable:
        pass
    parts = []
    end = address + size
    while address < end:
        step = min(0x1000 - address % 0x1000, end - address)
        try:
            parts.append(memory.read(address, step))
        except MemoryUnreadable:
            break
        address += step
    return b"".join(parts)
