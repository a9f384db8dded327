"""The version resource of a loaded image, read from target memory.

Formats: Microsoft's "PE Format" page (the .rsrc section) and its pages on VS_VERSIONINFO and
VS_FIXEDFILEINFO. Resources are pageable, and drivers may discard them: what is not in memory is
not there to be read, which is an answer, not an error. Standard library only: runs in WinDbg.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Dict, Iterator, List, Optional, Tuple

from kdleak.errors import MemoryUnreadable
from kdleak.nt.memory import PAGE_SIZE, MemoryReader
from kdleak.nt.pe import Image, read_image

_DIRECTORY_RESOURCE = 2
_RT_VERSION = 16
_ENGLISH = 0x409
_HEADERS = 0x400
_RESOURCES = 0x400
"""Bytes read first: one request of every link, and nearly always all that is needed."""
_MOST_ENTRIES = 512
_LARGEST_VERSION = 0x1000
_LONGEST_TEXT = 256
_MOST_STRINGS = 64
_SIGNATURE = 0xFEEF04BD

NO_HEADERS = "the headers of its image are not in memory"
NO_RESOURCE = "its image has no version resource"
NOT_THERE = "its resources are not in memory: paged out, or discarded after it was loaded"
DAMAGED = "its version resource makes no sense"


@dataclass(frozen=True)
class ImageVersion:
    """What an image says about itself. All text comes from the target: untrusted.

    Attributes:
        file_version: four numbers with dots, "" where unknown.
        company: CompanyName, "" where there is none.
        description: FileDescription.
        product: ProductName.
        unknown: why nothing is known, "" when something is.
    """

    file_version: str = ""
    company: str = ""
    description: str = ""
    product: str = ""
    unknown: str = ""


def read_image_version(memory: MemoryReader, base: int) -> ImageVersion:
    """Read the version resource of the image at ``base``: three or four reads of 1 kB, rarely more.

    Errors other than unreadable memory pass through.
    """
    headers = _Window(memory, base, _HEADERS)
    image = read_image(headers, base) if headers.data else None
    if image is None:
        return ImageVersion(unknown=NO_HEADERS)
    rva, size = image.directory(_DIRECTORY_RESOURCE)
    if not size:
        return ImageVersion(unknown=NO_RESOURCE)
    try:
        return _read_resources(memory, image, rva, size)
    except MemoryUnreadable:
        return ImageVersion(unknown=NOT_THERE)


def _read_resources(memory: MemoryReader, image: Image, rva: int, size: int) -> ImageVersion:
    start = image.base + rva
    window = _Window(memory, start, min(size, _RESOURCES))
    if not window.data:
        return ImageVersion(unknown=NOT_THERE)
    place = _find_version(window, start, size)
    if place is None:
        return ImageVersion(unknown=NO_RESOURCE)
    data_rva, data_size = place
    if not 0 < data_rva < image.size or not data_size:
        return ImageVersion(unknown=DAMAGED)
    data_size = min(data_size, _LARGEST_VERSION, image.size - data_rva)
    return parse_version(window.read(image.base + data_rva, data_size))


class _Window:
    """Memory of which one stretch was read at once; the rest costs a read each.

    Attributes:
        data: what is there of the stretch, from its start.
    """

    def __init__(self, memory: MemoryReader, start: int, size: int) -> None:
        self._memory = memory
        self._start = start
        self.data = _as_much_as_there_is(memory, start, size)

    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes."""
        at = address - self._start
        if at >= 0 and at + size <= len(self.data):
            return self.data[at : at + size]
        return self._memory.read(address, size)


def _as_much_as_there_is(memory: MemoryReader, address: int, size: int) -> bytes:
    """The whole stretch, or what of it lies on the first page, or nothing."""
    try:
        return memory.read(address, size)
    except MemoryUnreadable:
        on_page = PAGE_SIZE - address % PAGE_SIZE
    try:
        return memory.read(address, on_page) if on_page < size else b""
    except MemoryUnreadable:
        return b""


def _find_version(memory: MemoryReader, start: int, size: int) -> Optional[Tuple[int, int]]:
    """(RVA, size) of the version resource, None without one: type, then name, then language.

    Raises:
        MemoryUnreadable: a directory on the way is not there.
    """
    offset = 0
    for level, wanted in enumerate((_RT_VERSION, 1, _ENGLISH)):
        entries = _directory(memory, start, offset, size)
        chosen = [target for number, target in entries if number == wanted]
        if not chosen and level:
            chosen = [target for _, target in entries]
        if not chosen:
            return None
        is_directory = bool(chosen[0] & 0x80000000)
        offset = chosen[0] & 0x7FFFFFFF
        if is_directory != (level < 2):
            return None
    if offset + 16 > size:
        return None
    place: Tuple[int, int] = struct.unpack("<II", memory.read(start + offset, 8))
    return place


def _directory(memory: MemoryReader, start: int, offset: int, size: int) -> List[Tuple[int, int]]:
    """(identifier, target) of the entries of a directory; names count as -1."""
    if offset + 16 > size:
        return []
    named, numbered = struct.unpack("<HH", memory.read(start + offset + 12, 4))
    count = min(named + numbered, _MOST_ENTRIES, (size - offset - 16) // 8)
    if not count:
        return []
    raw = memory.read(start + offset + 16, 8 * count)
    return [
        (-1 if number & 0x80000000 else number, target)
        for number, target in struct.iter_unpack("<II", raw)
    ]


@dataclass(frozen=True)
class _Block:
    """One block of the tree of VS_VERSIONINFO: a name, a value, further blocks."""

    key: str
    value: bytes
    children: bytes


def parse_version(raw: bytes) -> ImageVersion:
    """What a VS_VERSIONINFO says; it may be cut off or damaged."""
    root = next(_blocks(raw), None)
    if root is None or root.key != "VS_VERSION_INFO":
        return ImageVersion(unknown=DAMAGED)
    number = ""
    if len(root.value) >= 16:
        signature, _, high, low = struct.unpack_from("<4I", root.value)
        if signature == _SIGNATURE:
            number = f"{high >> 16}.{high & 0xFFFF}.{low >> 16}.{low & 0xFFFF}"
    texts: Dict[str, str] = {}
    for info in _blocks(root.children):
        if info.key != "StringFileInfo":
            continue
        for table in _blocks(info.children):
            for entry in _blocks(table.children):
                text = _text(entry.value)
                if text:
                    texts.setdefault(entry.key, text)
    version = ImageVersion(
        number,
        texts.get("CompanyName", ""),
        texts.get("FileDescription", ""),
        texts.get("ProductName", ""),
    )
    return version if version != ImageVersion() else ImageVersion(unknown=DAMAGED)


def _blocks(raw: bytes) -> Iterator[_Block]:
    """The blocks that stand one after the other; ends where they make no sense."""
    at = 0
    for _ in range(_MOST_STRINGS):
        if at + 8 > len(raw):
            return
        length, value_length, is_text = struct.unpack_from("<HHH", raw, at)
        if length < 8:
            return
        body = raw[at : at + length]
        key_end = _end_of_text(body, 6)
        if key_end < 0:
            return
        key = body[6:key_end].decode("utf-16-le", "replace")
        value_at = _aligned(key_end + 2)
        # Some resource compilers count the length of a text in bytes, others in characters: a
        # text ends at its NUL anyway, and no block follows it.
        value_end = len(body) if is_text and value_length else value_at + value_length
        yield _Block(key, body[value_at:value_end], body[_aligned(value_end) :])
        at += _aligned(length)


def _aligned(offset: int) -> int:
    return offset + 3 & ~3


def _end_of_text(raw: bytes, start: int) -> int:
    """Offset of the 16-bit NUL, -1 without one within reach."""
    for at in range(start, min(len(raw) - 1, start + 2 * _LONGEST_TEXT), 2):
        if not raw[at] and not raw[at + 1]:
            return at
    return -1


def _text(raw: bytes) -> str:
    end = _end_of_text(raw, 0)
    cut = raw[: end if end >= 0 else min(len(raw) & ~1, 2 * _LONGEST_TEXT)]
    return " ".join(cut.decode("utf-16-le", "replace").split())
