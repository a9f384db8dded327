"""The sections of a loaded image, read in big pieces around the pages that are not there."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kdleak.errors import MemoryUnreadable
from kdleak.nt.memory import PAGE_SIZE, MemoryReader
from kdleak.nt.pe import Image, Section

_CHUNK = 0x40000
_MAXIMUM_BYTES = 128 << 20  # of one image
_MAXIMUM_MISSING = 0x400  # pages of one section; what follows is taken to be missing, too
_DISCARDED = 8  # pages in a row: the section was given back
DISCARDABLE = 0x02000000
"""IMAGE_SCN_MEM_DISCARDABLE: Windows gives the section back when the driver has started."""


@dataclass(frozen=True)
class SectionBytes:
    """What is there of one section.

    Attributes:
        name: of the section.
        pages: pages it has.
        missing: pages that cannot be read.
        runs: (address, bytes) of what can be, ascending.
        discardable: it is meant to go away.
    """

    name: str
    pages: int
    missing: int
    runs: tuple[tuple[int, bytes], ...]
    discardable: bool


def wanted_sections(image: Image, *, code: bool) -> list[Section]:
    """The sections with code, or the others, in order; clipped so that none overlaps another.

    Headers are not trusted: what lies outside the image or beyond a sane size is left out.
    """
    found: list[Section] = []
    end = PAGE_SIZE
    room = _MAXIMUM_BYTES
    for section in sorted(image.sections, key=lambda item: item.rva):
        start = max(end, section.rva)
        stop = min(section.rva + section.size, image.size)
        if stop <= start:
            continue
        end = stop
        if section.executable is code and room > 0:
            size = min(stop - start, room)
            room -= size
            found.append(Section(section.name, start, size, section.characteristics))
    return found


def read_section(
    memory: MemoryReader,
    image: Image,
    section: Section,
    progress: Callable[[int], None] | None = None,
) -> SectionBytes:
    """Read a section as far as it is there.

    Args:
        memory: reads the target.
        image: the image.
        section: one of ``wanted_sections``.
        progress: called with the number of bytes that were just dealt with.
    """
    discardable = bool(section.characteristics & DISCARDABLE)
    start = image.base + section.rva
    runs: list[tuple[int, list[bytes]]] = []
    missing = in_a_row = 0
    pages = _pages(start, start + section.size)
    end = start + section.size
    at = start
    for address, size, data in _pieces(memory, start, end):
        if progress is not None:
            progress(size)
        at = address + size
        if data:
            in_a_row = 0
            if runs and runs[-1][0] + sum(map(len, runs[-1][1])) == address:
                runs[-1][1].append(data)
            else:
                runs.append((address, [data]))
            continue
        missing += 1
        in_a_row += 1
        if missing >= _MAXIMUM_MISSING or (discardable and in_a_row >= _DISCARDED):
            missing += _pages(at, end)
            break
    joined = tuple((address, b"".join(parts)) for address, parts in runs)
    return SectionBytes(section.name, pages, missing, joined, discardable)


def _pages(start: int, end: int) -> int:
    return (end - 1) // PAGE_SIZE - start // PAGE_SIZE + 1 if end > start else 0


def _pieces(memory: MemoryReader, start: int, end: int) -> Iterator[tuple[int, int, bytes]]:
    """(address, size, bytes) in order; b"" for a page, or the part of one, that is not there."""
    at = start
    known_end = start  # up to here a smaller piece is asked for than usual
    while at < end:
        size = min(_CHUNK, end - at)
        if at < known_end:
            size = min(size, known_end - at)
        try:
            yield at, size, memory.read(at, size)
        except MemoryUnreadable as error:
            page_end = min((at // PAGE_SIZE + 1) * PAGE_SIZE, end)
            bad = error.address & ~(PAGE_SIZE - 1)
            if at < bad < at + size:
                known_end = bad
                continue
            if size > page_end - at:
                # The first page is missing, or the reader does not say which one is.
                known_end = page_end
                continue
            yield at, size, b""
        at += size


class ImageCode:
    """The code of one image by address."""

    def __init__(self, sections: Sequence[SectionBytes]) -> None:
        self._runs = sorted(run for section in sections for run in section.runs)
        self._starts = [address for address, _ in self._runs]

    def at(self, address: int, size: int) -> bytes:
        """Up to ``size`` bytes; b"" outside the code that could be read."""
        index = bisect.bisect_right(self._starts, address) - 1
        if index < 0:
            return b""
        start, data = self._runs[index]
        return data[address - start : address - start + size]
