"""Import tables of loaded images: which slot of the import address table belongs to which routine.

Format: Microsoft, "PE Format", the .idata section. The descriptors and names often lie in INIT,
which Windows gives back after the driver has started: then only the slots' values remain.
"""

from __future__ import annotations

import struct

from kdleak.errors import MemoryUnreadable
from kdleak.nt.memory import MemoryReader
from kdleak.nt.pe import Image

_DIRECTORY_IMPORT = 1
_MAXIMUM_LIBRARIES = 256
_MAXIMUM_IMPORTS = 0x4000  # of all libraries together
_MAXIMUM_NAME = 0x100
_DESCRIPTOR = 20


def read_imports(memory: MemoryReader, image: Image) -> dict[int, tuple[str, str]]:
    """The slots of an image's imports by name.

    Returns:
        RVA of the slot -> (library, routine); what cannot be read or goes by number is left out.
    """
    found: dict[int, tuple[str, str]] = {}
    rva, size = image.directory(_DIRECTORY_IMPORT)
    if not rva:
        return found
    window = _ImageWindow(memory, image)
    for index in range(min(_MAXIMUM_LIBRARIES, max(1, size // _DESCRIPTOR))):
        raw = window.read(rva + index * _DESCRIPTOR, _DESCRIPTOR)
        if len(raw) < _DESCRIPTOR:
            break
        names, _, _, library_rva, slots = struct.unpack("<IIIII", raw)
        if not slots and not names:
            break
        library = window.text(library_rva)
        # Without a table of names the slots themselves held them, until the image was bound.
        if library and names and slots:
            _read_library(window, library, (names, slots), found)
        if len(found) >= _MAXIMUM_IMPORTS:
            break
    return found


def _read_library(
    window: _ImageWindow,
    library: str,
    tables: tuple[int, int],
    found: dict[int, tuple[str, str]],
) -> None:
    names, slots = tables
    width = window.image.pointer_size
    by_number = 1 << (8 * width - 1)
    for index in range(_MAXIMUM_IMPORTS - len(found)):
        raw = window.read(names + index * width, width)
        value = int.from_bytes(raw, "little") if len(raw) == width else 0
        if not value:
            return
        if value & by_number:
            continue
        name = window.text(value + 2) if value < window.image.size else ""
        if name:
            found[slots + index * width] = (library, name)


class _ImageWindow:
    """Small reads of an image, served page by page; b"" for what is not there."""

    def __init__(self, memory: MemoryReader, image: Image) -> None:
        self.image = image
        self._memory = memory
        self._pages: dict[int, bytes] = {}

    def _page(self, number: int) -> bytes:
        page = self._pages.get(number)
        if page is None:
            try:
                page = self._memory.read(self.image.base + number * 0x1000, 0x1000)
            except MemoryUnreadable:
                page = b""
            self._pages[number] = page
        return page

    def read(self, rva: int, size: int) -> bytes:
        """``size`` bytes, at most a page; fewer where one is not there."""
        if rva <= 0 or rva + size > self.image.size + 0xFFF:
            return b""
        number, offset = divmod(rva, 0x1000)
        part = self._page(number)[offset : offset + size]
        if len(part) < size and offset + size > 0x1000 and len(part) == 0x1000 - offset:
            part += self._page(number + 1)[: size - len(part)]
        return part

    def text(self, rva: int) -> str:
        """A NUL-terminated name; "" when it is cut off or no name."""
        raw, nul, _ = self.read(rva, _MAXIMUM_NAME).partition(b"\0")
        return raw.decode("latin-1") if nul and raw.isascii() else ""
