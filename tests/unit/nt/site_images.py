"""Images for the search for tags: built by clang, or put together from bytes, and loaded."""

from __future__ import annotations

import bisect
import re
import shutil
import struct
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from kdleak.errors import MemoryUnreadable, SymbolNotFound
from kdleak.found import SiteSearch
from kdleak.model import Architecture, Module, Symbolized, SymbolKind
from kdleak.nt.sites.search import search_sites
from kdleak.tags import PoolTag

SOURCES = Path(__file__).parent / "site_sources"
TOOLS = ("clang-19", "lld-link-19", "llvm-objdump-19")
MISSING_TOOLS = [tool for tool in TOOLS if shutil.which(tool) is None]
LEAK = PoolTag.parse("Leak")

TRIPLES = {
    Architecture.X64: ("x86_64-pc-windows-msvc", "x64", 0x8664),
    Architecture.X86: ("i686-pc-windows-msvc", "x86", 0x14C),
    Architecture.ARM64: ("aarch64-pc-windows-msvc", "arm64", 0xAA64),
}


@dataclass
class Target:
    """Loaded images as a memory reader with symbols.

    Attributes:
        architecture: of all images.
        modules: loaded.
        symbols: "module!name" -> address.
        absent: addresses of pages that cannot be read.
        reads: bytes read so far.
    """

    architecture: Architecture
    modules: List[Module] = field(default_factory=list)
    symbols: Dict[str, int] = field(default_factory=dict)
    absent: set = field(default_factory=set)
    reads: int = 0
    _images: List[Tuple[int, bytearray]] = field(default_factory=list)

    @property
    def pointer_size(self) -> int:
        return 4 if self.architecture is Architecture.X86 else 8

    def add(self, name: str, base: int, image: bytes, symbols: Dict[str, int]) -> None:
        self.modules.append(Module(name, base, len(image), f"{name}.sys"))
        self._images.append((base, bytearray(image)))
        self.symbols.update({f"{name}!{key}": base + rva for key, rva in symbols.items()})

    def write(self, address: int, data: bytes) -> None:
        for base, image in self._images:
            if base <= address < base + len(image):
                image[address - base : address - base + len(data)] = data

    def read(self, address: int, size: int) -> bytes:
        for page in range(address & ~0xFFF, address + max(size, 1), 0x1000):
            if page in self.absent:
                raise MemoryUnreadable(max(page, address), size)
        for base, image in self._images:
            if base <= address and address + size <= base + len(image):
                self.reads += size
                return bytes(image[address - base : address - base + size])
        raise MemoryUnreadable(address, size)

    def symbol(self, name: str) -> int:
        if name not in self.symbols:
            raise SymbolNotFound(f"looking up {name}", "it is not there")
        return self.symbols[name]

    def nearest(self, address: int) -> Symbolized:
        ordered = sorted((at, name) for name, at in self.symbols.items())
        index = bisect.bisect_right(ordered, (address, "\xff")) - 1
        module = next((one for one in self.modules if address in one), None)
        if module is None or index < 0:
            return Symbolized(address)
        at, name = ordered[index]
        owner, _, symbol = name.partition("!")
        if owner != module.name:
            return Symbolized(address, module.name, "", address - module.base, SymbolKind.MODULE)
        return Symbolized(address, owner, symbol, address - at, SymbolKind.PDB)

    def search(self, tag: PoolTag = LEAK, **options: object) -> SiteSearch:
        (found,) = search_sites(
            (tag,),
            memory=self,
            modules=self.modules,
            symbol=self.symbol,
            nearest=self.nearest,
            pointer_size=self.pointer_size,
            architecture=self.architecture,
            **options,  # type: ignore[arg-type]
        )
        return found


# ---- images built by clang ----


def _run(folder: Path, *words: str) -> str:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


BASES = {
    Architecture.X64: (0x140000000, 0x150000000),
    Architecture.X86: (0x81000000, 0x82000000),
    Architecture.ARM64: (0x140000000, 0x150000000),
}


def build(folder: Path, architecture: Architecture, *, flags: Sequence[str] = ()) -> Target:
    """Build kernel.c and driver.c, and load them."""
    triple, machine, _ = TRIPLES[architecture]
    kernel_base, driver_base = BASES[architecture]
    common = ["-O2", "-ffreestanding", "-fno-builtin", "-fno-stack-protector", *flags]
    link = ["/nologo", f"/machine:{machine}", "/nodefaultlib", "/subsystem:native", "/fixed:no"]
    for unit in ("kernel", "driver"):
        source = str(SOURCES / f"{unit}.c")
        _run(folder, "clang-19", f"--target={triple}", *common, "-c", source, "-o", f"{unit}.obj")
    _run(
        folder, "lld-link-19", *link, "/dll", "/noentry", f"/base:{kernel_base:#x}",
        "/out:ntoskrnl.exe", "/implib:nt.lib", "/map:ntoskrnl.map", "kernel.obj",
    )  # fmt: skip
    _run(
        folder, "lld-link-19", *link, "/entry:DriverEntry", f"/base:{driver_base:#x}",
        "/out:driver.sys", "/map:driver.map", "driver.obj", "nt.lib",
    )  # fmt: skip
    target = Target(architecture)
    for name, file, base in (
        ("nt", "ntoskrnl.exe", kernel_base),
        ("driver", "driver.sys", driver_base),
    ):
        image = mapped(folder / file)
        wide = base | 0xFFFFFFFF00000000 if architecture is Architecture.X86 else base
        symbols = _map_symbols((folder / file).with_suffix(".map"), base)
        target.add(name, wide, image, symbols)
    bind(target, target.modules[1])
    return target


def _map_symbols(file: Path, base: int) -> Dict[str, int]:
    found = {}
    for line in file.read_text().splitlines():
        row = re.match(r"\s*[0-9a-f]{4}:[0-9a-f]{8}\s+(\S+)\s+([0-9a-f]{16})\s", line)
        if row:
            name = re.sub(r"@\d+\Z", "", row[1])
            name = name[1:] if name.startswith("_") and not name.startswith("__") else name
            found[name] = int(row[2], 16) - base
    return found


def mapped(file: Path) -> bytes:
    """An image file as the loader maps it, not relocated."""
    raw = file.read_bytes()
    start = struct.unpack_from("<I", raw, 0x3C)[0]
    sections, optional_size = (struct.unpack_from("<H", raw, start + at)[0] for at in (6, 0x14))
    optional = start + 0x18
    size, headers = struct.unpack_from("<I", raw, optional + 0x38)[0], 0x400
    image = bytearray(size)
    image[:headers] = raw[:headers]
    for index in range(sections):
        at = optional + optional_size + 40 * index
        length, rva, raw_size, raw_at = struct.unpack_from("<4I", raw, at + 8)
        count = min(length, raw_size)
        image[rva : rva + count] = raw[raw_at : raw_at + count]
    return bytes(image)


def import_slots(target: Target, module: Module) -> Dict[str, int]:
    """Address of the slot of each import, from the import directory."""
    width = target.pointer_size
    read = lambda rva, size: target.read(module.base + rva, size)  # noqa: E731
    start = struct.unpack("<I", read(0x3C, 4))[0]
    directories = start + 0x18 + (0x70 if width == 8 else 0x60)
    rva, _ = struct.unpack("<II", read(directories + 8, 8))
    slots = {}
    while True:
        names, _, _, library, table = struct.unpack("<IIIII", read(rva, 20))
        if not library:
            return slots
        index = 0
        while True:
            value = int.from_bytes(read(names + index * width, width), "little")
            if not value:
                break
            text = read(value + 2, 64).split(b"\0")[0].decode()
            slots[text] = module.base + table + index * width
            index += 1
        rva += 20


def bind(target: Target, module: Module) -> None:
    """Fill the import address table, as the loader does."""
    for name, slot in import_slots(target, module).items():
        plain = re.sub(r"@\d+\Z", "", name).lstrip("_")
        address = target.symbols[f"nt!{plain}"] & ((1 << 8 * target.pointer_size) - 1)
        target.write(slot, address.to_bytes(target.pointer_size, "little"))


def without_import_names(target: Target, module: Module) -> None:
    """Forget the import directory, as when INIT was given back: only the slots remain."""
    start = struct.unpack("<I", target.read(module.base + 0x3C, 4))[0]
    at = start + 0x18 + (0x70 if target.pointer_size == 8 else 0x60) + 8
    target.write(module.base + at, bytes(8))


# ---- images put together from bytes ----

CODE = 0x1000
TABLE = 0x3000  # import address table
DATA = 0x4000
PDATA = 0x6000


def image_of(
    code: bytes,
    *,
    architecture: Architecture = Architecture.X64,
    functions: Sequence[Tuple[int, int]] = (),
    data: bytes = b"",
    section_size: Optional[int] = None,
    size: int = 0x8000,
) -> bytes:
    """An image with .text at 0x1000, a table of pointers at 0x3000, .data at 0x4000."""
    plus = architecture is not Architecture.X86
    raw = bytearray(size)
    struct.pack_into("<2s58xI", raw, 0, b"MZ", 0x80)
    optional_size = 0xF0 if plus else 0xE0
    struct.pack_into("<4sHHIIIHH", raw, 0x80, b"PE\0\0", TRIPLES[architecture][2], 3, 1, 0, 0,
                     optional_size, 0x2022)  # fmt: skip
    optional = 0x98
    struct.pack_into("<H", raw, optional, 0x20B if plus else 0x10B)
    struct.pack_into("<I", raw, optional + 0x38, size)
    directories = optional + (0x70 if plus else 0x60)
    struct.pack_into("<I", raw, directories - 4, 16)
    if functions:
        # One UNWIND_INFO without codes serves all.
        unwind = PDATA + 0x800
        raw[unwind : unwind + 4] = b"\x01\0\0\0"
        rows = b"".join(struct.pack("<III", a, b, unwind) for a, b in functions)
        raw[PDATA : PDATA + len(rows)] = rows
        struct.pack_into("<II", raw, directories + 8 * 3, PDATA, len(rows))
    at = optional + optional_size
    for name, length, rva, flags in (
        (b".text", section_size or 0x1000, CODE, 0x60000020),
        (b".rdata", 0x800, TABLE, 0x40000040),
        (b".data", 0x1000, DATA, 0xC0000040),
    ):
        struct.pack_into("<8sIIIIIIHHI", raw, at, name, length, rva, 0, 0, 0, 0, 0, 0, flags)
        at += 40
    raw[CODE : CODE + len(code)] = code
    raw[DATA : DATA + len(data)] = data
    return bytes(raw)


KERNEL = {
    Architecture.X64: 0xFFFFF80010000000,
    Architecture.X86: 0xFFFFFFFF81000000,
    Architecture.ARM64: 0xFFFFF80010000000,
}
DRIVER = {
    Architecture.X64: 0xFFFFF80020000000,
    Architecture.X86: 0xFFFFFFFF82000000,
    Architecture.ARM64: 0xFFFFF80020000000,
}
ROUTINES = (
    "ExAllocatePoolWithTag",
    "ExAllocatePool2",
    "ExFreePoolWithTag",
    "ExInitializeLookasideListEx",
    "KeBugCheckEx",
    "NdisAllocateNetBufferListPool",
)


def slot(name: str, width: int = 8) -> int:
    """RVA of a routine's slot in the driver."""
    return TABLE + width * ROUTINES.index(name)


def by_hand(
    code: bytes, architecture: Architecture = Architecture.X64, **options: object
) -> Target:
    """A kernel whose routines have names only, and a driver with this code."""
    target = Target(architecture)
    routines = {name: CODE + 0x40 * index for index, name in enumerate(ROUTINES)}
    kernel = image_of(b"\xc3" * 0x200, architecture=architecture)
    target.add("nt", KERNEL[architecture], kernel, routines)
    driver = image_of(code, architecture=architecture, **options)  # type: ignore[arg-type]
    target.add("driver", DRIVER[architecture], driver, {"Function": CODE})
    width = target.pointer_size
    for name, rva in routines.items():
        address = (KERNEL[architecture] + rva) & ((1 << 8 * width) - 1)
        target.write(DRIVER[architecture] + slot(name, width), address.to_bytes(width, "little"))
    return target
