"""Loads PE images into the practice machine: sections, relocations, imports.

Formats: Microsoft's "PE Format" page. Only what lld writes for x64 images is understood.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kdleak.errors import ProtocolError
from kdleak.practice.images import load_symbols
from kdleak.practice.paging import (
    EXECUTE,
    PAGE_MASK,
    PAGE_SIZE,
    READ_ONLY,
    READ_WRITE,
    AddressSpace,
)

_SECTION_EXECUTE = 0x2000_0000
_SECTION_WRITE = 0x8000_0000
_RELOCATION_DIR64 = 10
_EXPORT, _IMPORT, _EXCEPTION, _RELOCATION = 0, 1, 3, 5


@dataclass(frozen=True)
class LoadedImage:
    """An image in the machine's memory.

    Attributes:
        name: as WinDbg shows it ("nt", "leakydrv").
        file_name: as the module list names it.
        path: full path in the target.
        base: load address.
        size: SizeOfImage, bytes.
        entry_point: address of the first instruction.
        timestamp: TimeDateStamp of the PE header.
        checksum: CheckSum of the PE header.
        exception_table: address and size in bytes of .pdata.
        exports: exported name to address.
        symbols: every name the linker placed, to address.
    """

    name: str
    file_name: str
    path: str
    base: int
    size: int
    entry_point: int
    timestamp: int
    checksum: int
    exception_table: tuple[int, int]
    exports: dict[str, int]
    symbols: dict[str, int]

    def __contains__(self, address: int) -> bool:
        return self.base <= address < self.base + self.size


class PeFile:
    """The headers of an image file, and its bytes as they lie in memory (before relocation)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        raw = path.read_bytes()
        if raw[:2] != b"MZ":
            raise ProtocolError(f"loading {path.name}", "it is no PE image", "build the images")
        header = self.u32(raw, 0x3C)
        optional = header + 0x18
        section_count = int(struct.unpack_from("<H", raw, header + 6)[0])
        optional_size = int(struct.unpack_from("<H", raw, header + 20)[0])
        self.timestamp = self.u32(raw, header + 8)
        self.entry_point = self.u32(raw, optional + 0x10)
        self.preferred_base = int(struct.unpack_from("<Q", raw, optional + 0x18)[0])
        self.size = self.u32(raw, optional + 0x38)
        self.headers_size = self.u32(raw, optional + 0x3C)
        self.checksum = self.u32(raw, optional + 0x40)
        self.directories = [
            struct.unpack_from("<II", raw, optional + 0x70 + 8 * index) for index in range(16)
        ]
        self.image = bytearray(self.size)
        self.image[: self.headers_size] = raw[: self.headers_size]
        self.sections: list[tuple[int, int, int]] = []
        for index in range(section_count):
            at = optional + optional_size + 40 * index
            size, address, raw_size, raw_at = struct.unpack_from("<4I", raw, at + 8)
            count = min(size, raw_size)
            self.image[address : address + count] = raw[raw_at : raw_at + count]
            self.sections.append((address, size, self.u32(raw, at + 36)))

    @staticmethod
    def u32(raw: bytes | bytearray, at: int) -> int:
        """Little-endian 32-bit number at an offset."""
        return int(struct.unpack_from("<I", raw, at)[0])

    def text(self, at: int) -> str:
        """NUL-terminated ASCII at an RVA."""
        return self.image[at : self.image.index(0, at)].decode("ascii")

    def exports(self) -> dict[str, int]:
        """Exported name to RVA."""
        at, size = self.directories[_EXPORT]
        if not size:
            return {}
        names = self.u32(self.image, at + 0x18)
        functions, name_table, ordinals = struct.unpack_from("<3I", self.image, at + 0x1C)
        found: dict[str, int] = {}
        for index in range(names):
            name = self.text(self.u32(self.image, name_table + 4 * index))
            (ordinal,) = struct.unpack_from("<H", self.image, ordinals + 2 * index)
            found[name] = self.u32(self.image, functions + 4 * ordinal)
        return found

    def relocate(self, base: int) -> None:
        """Apply the base relocations for a load address."""
        at, size = self.directories[_RELOCATION]
        end = at + size
        while at < end:
            page, block = struct.unpack_from("<II", self.image, at)
            for (entry,) in struct.iter_unpack("<H", self.image[at + 8 : at + block]):
                if entry >> 12 == _RELOCATION_DIR64:
                    spot = page + (entry & 0xFFF)
                    (value,) = struct.unpack_from("<Q", self.image, spot)
                    struct.pack_into("<Q", self.image, spot, value - self.preferred_base + base)
            at += block

    def bind(self, resolve: Callable[[str], int]) -> None:
        """Fill the import address tables with ``resolve(name)``."""
        at, size = self.directories[_IMPORT]
        if not size:
            return
        while True:
            names, _, _, _, addresses = struct.unpack_from("<5I", self.image, at)
            if not addresses:
                return
            index = 0
            while True:
                (entry,) = struct.unpack_from("<Q", self.image, names + 8 * index)
                if not entry:
                    break
                value = resolve(self.text(int(entry) + 2))
                struct.pack_into("<Q", self.image, addresses + 8 * index, value)
                index += 1
            at += 20


def load_image(
    space: AddressSpace, path: Path, base: int, *, name: str, exports: dict[str, int] | None = None
) -> LoadedImage:
    """Map an image at ``base``.

    Args:
        space: where to map it.
        path: the image file; its symbols lie beside it.
        base: load address, page aligned.
        name: module name.
        exports: the kernel's exports that a driver's imports are bound to.
    """
    pe = PeFile(path)
    pe.relocate(base)
    table = exports or {}
    pe.bind(lambda wanted: table[wanted])
    _map_image(space, pe, base)
    folder = "drivers\\" if path.suffix == ".sys" else ""
    file_name = "ntoskrnl.exe" if name == "nt" else path.name
    exception, exception_size = pe.directories[_EXCEPTION]
    return LoadedImage(
        name=name,
        file_name=file_name,
        path=f"\\SystemRoot\\system32\\{folder}{file_name}",
        base=base,
        size=pe.size,
        entry_point=base + pe.entry_point,
        timestamp=pe.timestamp,
        checksum=pe.checksum,
        exception_table=(base + exception, exception_size),
        exports={export: base + rva for export, rva in pe.exports().items()},
        symbols={symbol: base + rva for symbol, rva in load_symbols(path).items()},
    )


def _map_image(space: AddressSpace, pe: PeFile, base: int) -> None:
    protection = dict.fromkeys(range(0, pe.size, PAGE_SIZE), READ_ONLY)
    for address, size, flags in pe.sections:
        if flags & _SECTION_EXECUTE:
            kind = EXECUTE
        elif flags & _SECTION_WRITE:
            kind = READ_WRITE
        else:
            kind = READ_ONLY
        for page in range(address, address + size + PAGE_MASK & ~PAGE_MASK, PAGE_SIZE):
            protection[page] = kind
    for page, kind in protection.items():
        frame = space.take_frame()
        space.memory.write(frame * PAGE_SIZE, bytes(pe.image[page : page + PAGE_SIZE]))
        space.map(base + page, frame, kind)
