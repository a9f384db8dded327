"""The variables of a loaded image as one searchable whole: its data sections, as far as present.

Used where no symbols tell which variable is where: what a variable must hold is known, and this
finds the places that hold it. An image's data are a few megabytes, so all of it is kept.
"""

from __future__ import annotations

import bisect
import sys
from array import array
from collections.abc import Iterator

from kdleak.errors import MemoryUnreadable
from kdleak.nt.memory import PAGE_SIZE, MemoryReader, sign_extend
from kdleak.nt.pe import Image, Section

MAXIMUM_BYTES = 64 << 20
"""Most bytes kept of one image; nt's data sections hold a few megabytes."""

_PIECE = 0x40 * PAGE_SIZE
_KERNEL_SPACE_64 = 0xFF00000000000000  # with five-level paging; four levels begin at 0xffff8000...
_KERNEL_SPACE_32 = 0x80000000


class ImageData:
    """Data sections of an image.

    Args:
        memory: reads the target.
        image: headers of the image; None: nothing is there to search.
        pointer_size: 4 or 8; variables are looked for at multiples of it.
        writable: the sections that may change; False: the constant ones (of data, not code).

    Attributes:
        runs: (address, bytes) of what is present, ascending.
        missing: bytes that could not be read.
    """

    def __init__(
        self, memory: MemoryReader, image: Image | None, pointer_size: int, *, writable: bool = True
    ) -> None:
        self.runs: list[tuple[int, bytes]] = []
        self.missing = 0
        self._pointer_size = pointer_size
        if image is None:
            return
        left = MAXIMUM_BYTES
        for section in sorted(image.sections, key=lambda item: item.rva):
            if section.executable or section.writable != writable:
                continue
            size = min(_size_in(section, image), left)
            left -= size
            for offset in range(0, size, _PIECE):
                start = image.base + section.rva + offset
                self._take(memory, start, min(_PIECE, size - offset))

    def _take(self, memory: MemoryReader, address: int, size: int) -> None:
        """Read a range, halving where it fails until the absent pages are found."""
        try:
            data = memory.read(address, size)
        except MemoryUnreadable:
            half = size // 2 // PAGE_SIZE * PAGE_SIZE
            if not half:
                half = min((address // PAGE_SIZE + 1) * PAGE_SIZE - address, size)
                if half == size:
                    self.missing += size
                    return
            self._take(memory, address, half)
            self._take(memory, address + half, size - half)
            return
        self.runs.append((address, data))  # whole pages: no variable lies across two runs

    def places_of(self, value: int) -> list[int]:
        """Addresses of the aligned variables of pointer size that hold a value."""
        width = self._pointer_size
        wanted = (value & ((1 << 8 * width) - 1)).to_bytes(width, "little")
        found: list[int] = []
        for start, data in self.runs:
            at = data.find(wanted)
            while at >= 0:
                if (start + at) % width == 0:
                    found.append(start + at)
                at = data.find(wanted, at + 1)
        return found

    def page_pointers(self) -> list[int]:
        """Every different value that may point to the start of a page of kernel memory."""
        found: set[int] = set()
        low = _KERNEL_SPACE_32 if self._pointer_size == 4 else _KERNEL_SPACE_64
        for words in self._words():
            found.update(value for value in words if value >= low and not value & 0xFFF)
        return sorted(sign_extend(value, self._pointer_size) for value in found)

    def _words(self) -> Iterator[array[int]]:
        width = self._pointer_size
        for start, data in self.runs:
            skip = -start % width
            usable = (len(data) - skip) // width * width
            words = array("I" if width == 4 else "Q")
            words.frombytes(data[skip : skip + usable])
            if sys.byteorder == "big":
                words.byteswap()
            yield words

    def pointer_at(self, address: int) -> int | None:
        """The pointer at an address of the image's data, sign-extended; None when not present."""
        width = self._pointer_size
        index = bisect.bisect_right(self.runs, address, key=lambda run: run[0]) - 1
        if index < 0:
            return None
        start, data = self.runs[index]
        offset = address - start
        if offset + width > len(data):
            return None
        return sign_extend(int.from_bytes(data[offset : offset + width], "little"), width)


def _size_in(section: Section, image: Image) -> int:
    """Bytes of a section that lie inside its image."""
    return max(min(section.size, image.size - section.rva), 0)
