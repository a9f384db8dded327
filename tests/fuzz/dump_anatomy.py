"""Where in a sample dump the structures lie that readers trust, found by walking it.

The walks are those of the published formats, done here with ``struct`` on what the undamaged dump
holds; kdleak's reader is only asked for the undamaged dump's own places.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from kdleak.cli.target_options import practice_symbols
from kdleak.engine.dump import DumpEngine, open_dump_engine
from kdleak.found import BlockState
from kdleak.model import TagUsage
from kdleak.nt.blocks.search import search_blocks
from kdleak.nt.kdbg import FIELDS as KDBG_FIELDS
from kdleak.tags import PoolTag
from tests.dump_files.build_header import FIELDS as HEADER_FIELDS

PAGE = 0x1000
BITMAP_AT = 0x2000
"""The summary header of a bitmap dump lies right behind the header."""

LEAK = PoolTag.parse("Leak")
PRACTICE_SYMBOLS = ";".join(practice_symbols())
"""A symbol path with the practice kernels' PDBs of all builds; GUIDs tell them apart."""

_ENTRY_FRAME = 0x000F_FFFF_FFFF_F000
_VARIABLES = (
    "PoolTrackTable",
    "PoolTrackTableSize",
    "PoolTrackTableMask",
    "ExPoolTagTables",
    "PoolBigPageTable",
    "PoolBigPageTableSize",
    "PsLoadedModuleList",
    "NtBuildLab",
)


class Spot(NamedTuple):
    """Bytes of the file that mean something."""

    at: int
    size: int


@dataclass
class Anatomy:
    """One sample dump, taken apart.

    Attributes:
        name: of the file.
        raw: its bytes.
        dump_type: as the header says.
        spots: kind of structure -> where its parts lie in the file.
        addresses: kind -> target addresses, for pointers that lead somewhere.
        truth: the tags of the undamaged dump.
        pages: kind -> (frame, file offset) of every page that a part lies in.
    """

    name: str
    raw: bytes
    dump_type: int
    spots: dict[str, list[Spot]] = field(default_factory=dict)
    addresses: dict[str, list[int]] = field(default_factory=dict)
    truth: tuple[TagUsage, ...] = ()
    pages: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def add(self, kind: str, at: int, size: int) -> None:
        """Note where a part of a structure lies."""
        self.spots.setdefault(kind, []).append(Spot(at, size))


class _Walk:
    def __init__(self, engine: DumpEngine, anatomy: Anatomy) -> None:
        self.engine = engine
        self.found = anatomy
        memory = engine.memory
        assert memory is not None
        self.memory = memory

    def place(self, address: int) -> int | None:
        """Offset in the file of a target address."""
        physical = self.memory.translate(address)
        if physical is None:
            return None
        at = self.engine.dump.pages.offset(physical // PAGE)
        return None if at is None else at + physical % PAGE

    def note(self, kind: str, address: int, size: int) -> None:
        """Note a structure, cut where its page ends."""
        while size > 0:
            here = min(size, PAGE - address % PAGE)
            at = self.place(address)
            if at is not None:
                self.found.add(kind, at, here)
                self.found.addresses.setdefault(kind, []).append(address)
                physical = self.memory.translate(address)
                assert physical is not None
                page = (physical // PAGE, at & ~(PAGE - 1))
                if page not in self.found.pages.setdefault(kind, []):
                    self.found.pages[kind].append(page)
            address, size = address + here, size - here

    def header(self) -> None:
        for name, (_, _, at, form) in HEADER_FIELDS.items():
            self.found.add("header", at, struct.calcsize("<" + form))
            if name in ("directory_table_base", "module_list", "debugger_data", "dump_type"):
                self.found.add("header", at, 8 if name != "dump_type" else 4)
        self.found.add("runs", 0x88, 0x100)
        if self.found.dump_type in (5, 6):
            for at in range(BITMAP_AT, BITMAP_AT + 0x38, 8):
                self.found.add("bitmap header", at, 8)
            self.found.add("bitmap", BITMAP_AT + 0x38, 0x200)

    def tables(self) -> None:
        seen: set[int] = set()
        level = [self.memory.root // PAGE]
        for depth in range(4):
            below: list[int] = []
            for frame in level:
                at = self.engine.dump.pages.offset(frame)
                if frame in seen or at is None:
                    continue
                seen.add(frame)
                entries = struct.unpack_from("<512Q", self.found.raw, at)
                for index, entry in enumerate(entries):
                    if entry & 1:
                        self.found.add(f"page table {depth}", at + 8 * index, 8)
                        if not (entry & 0x80 and depth):
                            below.append((entry & _ENTRY_FRAME) // PAGE)
            level = below

    def modules(self) -> None:
        width = 8
        head = self.engine.symbol("nt!PsLoadedModuleList")
        self.note("module list head", head, 16)
        link = struct.unpack("<Q", self.engine.read(head, 8))[0]
        while link != head:
            self.note("module entry", link, 0x70)
            raw = self.engine.read(link, 0x70)
            for at in (0x48, 0x58):
                length = struct.unpack_from("<H", raw, at)[0]
                address = struct.unpack_from("<Q", raw, at + width)[0]
                self.note("module name", address, length)
            link = struct.unpack_from("<Q", raw)[0]

    def images(self) -> None:
        for module in self.engine.modules():
            base = module.base
            start = self.engine.read(base, 0x400)
            self.note("PE header", base, 0x400)
            pe = struct.unpack_from("<I", start, 0x3C)[0]
            kinds = {0: "exports", 1: "imports", 3: "unwind", 6: "debug", 12: "IAT"}
            for index, kind in kinds.items():
                rva, size = struct.unpack_from("<II", start, pe + 24 + 112 + 8 * index)
                if not rva or rva + size > module.size:
                    continue
                self.note(kind, base + rva, size)
                if kind == "unwind":
                    for at in range(0, min(size, 12 * 40), 12):
                        _, _, info = struct.unpack("<III", self.engine.read(base + rva + at, 12))
                        self.note("unwind codes", base + info, 8)
                if kind == "debug":
                    for at in range(0, size, 28):
                        row = self.engine.read(base + rva + at, 28)
                        length, record = struct.unpack_from("<II", row, 16)
                        self.note("RSDS", base + record, length)
            sections = pe + 24 + struct.unpack_from("<H", start, pe + 20)[0]
            for at in range(sections, 0x3D8, 40):
                size, rva = struct.unpack_from("<II", start, at + 8)
                flags = struct.unpack_from("<I", start, at + 36)[0]
                if rva and flags & 0x20000000 and rva + size <= module.size:
                    self.note("code", base + rva, size)
                elif rva and flags & 0x80000000 and rva + size <= module.size:
                    self.note("data", base + rva, size)

    def pool(self) -> None:
        for name in _VARIABLES:
            self.note("variable", self.engine.symbol(f"nt!{name}"), 8)
        snapshot = self.engine.pool_usage()
        self.found.truth = snapshot.rows
        size = struct.unpack("<Q", self.engine.read(self.engine.symbol("nt!PoolTrackTableSize"), 8))
        row = 0x28 if self.engine.target.build < 16299 else 0x50
        tables = self.engine.symbol("nt!ExPoolTagTables")
        for slot in range(2):
            table = struct.unpack("<Q", self.engine.read(tables + 8 * slot, 8))[0]
            self.note("tag tables", table, row * size[0])
        big = self.engine.symbol("nt!PoolBigPageTable")
        rows = struct.unpack("<Q", self.engine.read(big, 8))[0]
        self.note("big pages", rows, 0x2000)
        found = search_blocks(
            LEAK,
            memory=self.memory,
            modules=self.engine.modules(),
            symbol=self.engine.symbol,
            nearest=self.engine.nearest,
            build=self.engine.target.build,
            pointer_size=8,
            limit=1000,
            counters=snapshot.find(LEAK),
        )
        for block in found.blocks:
            kind = "freed block" if block.state is BlockState.FREE else "pool block"
            self.note("pool header" if kind == "pool block" else kind, block.address - 16, 16)
            self.note(kind, block.address, min(block.size - 16, 0x100))
        assert found.complete, "the undamaged sample is not searched completely"

    def debugger_data(self) -> None:
        at = self.engine.dump.header.debugger_data
        if not at or self.place(at) is None:
            return
        self.note("KDBG", at, 0x380)
        for offset in (0, 0x10, 0x14, *KDBG_FIELDS.values()):
            self.note("KDBG field", at + offset, 8)


def take_apart(path: Path) -> Anatomy:
    """The anatomy of one sample dump."""
    with open_dump_engine(path, PRACTICE_SYMBOLS) as engine:
        found = Anatomy(path.name, path.read_bytes(), engine.dump.header.dump_type or 0)
        walk = _Walk(engine, found)
        walk.header()
        walk.tables()
        walk.modules()
        walk.images()
        walk.pool()
        walk.debugger_data()
    return found
