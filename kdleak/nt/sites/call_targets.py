"""What a call in an image leads to: through the import table, through thunks, or directly."""

from __future__ import annotations

import bisect
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kdleak.errors import MemoryUnreadable, SymbolNotFound
from kdleak.model import Architecture, Module, Symbolized
from kdleak.nt.memory import MemoryReader, read_pointer
from kdleak.nt.modules import windbg_name
from kdleak.nt.names import undecorated
from kdleak.nt.pe import Image, read_exports, read_image
from kdleak.nt.sites.allocators import (
    INTERNAL,
    PROVIDERS,
    ROUTINE_NAMES,
    Routine,
    like_allocator,
    routine_named,
)
from kdleak.nt.sites.image_bytes import ImageCode
from kdleak.nt.sites.imports import read_imports

_MAXIMUM_THUNKS = 4
_KERNEL_FILES = ("ntoskrnl", "ntkrnlmp", "ntkrnlpa", "ntkrpamp")


@dataclass(frozen=True)
class Called:
    """What is called.

    Attributes:
        name: "nt!ExAllocatePoolWithTag"; untrusted.
        routine: the routine that takes a tag, None for another one.
    """

    name: str
    routine: Routine | None = None

    @property
    def like_allocator(self) -> bool:
        """It is no routine known to take a tag, but its name reads like an allocator's."""
        return self.routine is None and like_allocator(self.name.rpartition("!")[2])


def called(module: str, name: str, pointer_size: int) -> Called:
    """What is called, by an exported or imported name."""
    return Called(f"{module}!{undecorated(name, pointer_size)}", routine_named(name))


class Exporters:
    """Names of routines by address, over all modules of the target; read when first needed.

    Args:
        memory: reads the target.
        modules: loaded images.
        symbol: address of ``module!name``; raises SymbolNotFound.
        nearest: the nearest name below an address.
        pointer_size: 4 or 8.
    """

    def __init__(
        self,
        memory: MemoryReader,
        modules: Sequence[Module],
        symbol: Callable[[str], int],
        nearest: Callable[[int], Symbolized],
        pointer_size: int,
    ) -> None:
        self.memory = memory
        self.pointer_size = pointer_size
        self._nearest = nearest
        self._symbol = symbol
        self._modules = sorted(modules, key=lambda module: module.base)
        self._starts = [module.base for module in self._modules]
        self._exports: dict[int, dict[int, str]] = {}
        self._named: dict[int, Called | None] = {}

    def module_at(self, address: int) -> Module | None:
        """The module an address lies in."""
        index = bisect.bisect_right(self._starts, address) - 1
        if index >= 0 and address in self._modules[index]:
            return self._modules[index]
        return None

    def exported(self, address: int) -> Called | None:
        """The routine that begins exactly at an address, by its module's exports alone."""
        module = self.module_at(address)
        name = self._names_of(module).get(address - module.base) if module is not None else None
        if module is None or name is None:
            return None
        return called(module.name, name, self.pointer_size)

    def named(self, address: int) -> Called | None:
        """The routine that begins exactly at an address, by exports or symbols."""
        if address not in self._named:
            found = self.exported(address)
            if found is None:
                symbol = self._nearest(address)
                if symbol.name and not symbol.offset:
                    found = called(symbol.module, symbol.name, self.pointer_size)
            self._named[address] = found
        return self._named[address]

    def _names_of(self, module: Module) -> dict[int, str]:
        names = self._exports.get(module.base)
        if names is None:
            names = {}
            image = read_image(self.memory, module.base)
            for rva, name in read_exports(self.memory, image) if image is not None else ():
                # Of several names for one address the one that takes a tag is of interest.
                if rva not in names or routine_named(name) is not None:
                    names[rva] = name
            self._add_symbols(module, names)
            self._exports[module.base] = names
        return names

    def _add_symbols(self, module: Module, names: dict[int, str]) -> None:
        """Routines that symbols alone know: those that are not exported, or all of them."""
        lower = module.name.lower()
        if lower not in PROVIDERS:
            return
        for name in ROUTINE_NAMES if not names else INTERNAL if lower == "nt" else ():
            try:
                address = self._symbol(f"{module.name}!{name}")
            except SymbolNotFound:
                continue
            names.setdefault(address - module.base, name)


class CallTargets:
    """What calls of one image lead to.

    Args:
        exporters: names over all modules.
        module: the image's module.
        image: its headers.
        code: its code.
        architecture: of the image.
    """

    def __init__(
        self,
        exporters: Exporters,
        module: Module,
        image: Image,
        code: ImageCode,
        architecture: Architecture,
    ) -> None:
        self._exporters = exporters
        self._module = module
        self._image = image
        self._code = code
        self._architecture = architecture
        self._imports: dict[int, tuple[str, str]] | None = None
        self._slots: dict[int, Called | None] = {}
        self._direct: dict[int, Called | None] = {}

    def slot(self, address: int) -> Called | None:
        """The routine whose address a pointer in memory holds."""
        if address not in self._slots:
            self._slots[address] = self._read_slot(address)
        return self._slots[address]

    def _read_slot(self, address: int) -> Called | None:
        if not self._module.base <= address < self._module.base + self._image.size:
            return None
        if self._imports is None:
            self._imports = read_imports(self._exporters.memory, self._image)
        entry = self._imports.get(address - self._module.base)
        if entry is not None:
            library, name = entry
            stem = windbg_name(library)
            shown = "nt" if stem.lower() in _KERNEL_FILES else stem
            return called(shown, name, self._exporters.pointer_size)
        try:
            value = read_pointer(self._exporters.memory, address, self._exporters.pointer_size)
        except MemoryUnreadable:
            return None
        if value in self._module and self._module.name != "nt":
            return None  # its own function pointers: a dispatcher of control flow guard, a table
        return self._exporters.named(value)

    def direct(self, address: int) -> Called | None:
        """The routine that a direct call leads to, thunks passed through."""
        if address not in self._direct:
            self._direct[address] = self._through_thunks(address)
        return self._direct[address]

    def _through_thunks(self, address: int) -> Called | None:
        first: Called | None = None
        for _ in range(_MAXIMUM_THUNKS):
            inside = address in self._module
            # Symbols are asked for only where exports cannot know: each may cost a round trip.
            look_up = self._exporters.exported if inside else self._exporters.named
            named = look_up(address)
            if named is not None and named.routine is not None:
                return named
            first = first or named
            slot, onward = self._thunk(address)
            if slot:
                return self.slot(slot) or first
            if not onward:
                return first
            address = onward
        return first

    def _thunk(self, address: int) -> tuple[int, int]:
        """(slot it jumps through, address it jumps to) of a thunk; zeros for anything else."""
        raw = self._code.at(address, 16)
        if self._architecture is Architecture.ARM64:
            return _arm64_thunk(address, raw)
        if raw[:4] in (b"\xf3\x0f\x1e\xfa", b"\xf3\x0f\x1e\xfb"):  # endbr
            address, raw = address + 4, raw[4:]
        if raw[:1] == b"\xe9" and len(raw) >= 5:
            return 0, address + 5 + int(struct.unpack_from("<i", raw, 1)[0])
        if self._architecture is Architecture.X86:
            if raw[:2] == b"\xff\x25" and len(raw) >= 6:
                return sign_extended_32(struct.unpack_from("<I", raw, 2)[0]), 0
            return 0, 0
        for head in (b"\xff\x25", b"\x48\xff\x25", b"\x4c\x8b\x15"):
            # The last one is a retpoline: mov r10, [slot]; jmp to the guard's thunk.
            size = len(head) + 4
            if raw.startswith(head) and len(raw) >= size:
                if head == b"\x4c\x8b\x15" and raw[size : size + 1] != b"\xe9":
                    continue
                disp = int(struct.unpack_from("<i", raw, len(head))[0])
                return address + size + disp, 0
        return 0, 0

    def is_dispatcher(self, address: int) -> bool:
        """Whether a function that is called directly passes the call on to rax (x64).

        Control flow guard's dispatcher does. Retpoline builds call a copy that Windows puts
        behind the image.
        """
        raw = self._code.at(address, 3)
        if raw[:2] == b"\xff\xe0" or raw == b"\x48\xff\xe0":
            return True
        if not raw and address not in self._module:
            return True
        named = self._exporters.named(address)
        return named is not None and "guard_" in named.name

    def named(self, address: int) -> Called | None:
        """The function at an address under the name that symbols give it."""
        return self._exporters.named(address)


def sign_extended_32(value: int) -> int:
    """A 32-bit address as the 64-bit one KD uses."""
    return value | 0xFFFFFFFF00000000 if value & 0x80000000 else value


def _arm64_thunk(address: int, raw: bytes) -> tuple[int, int]:
    if len(raw) < 4:
        return 0, 0
    words = struct.unpack_from(f"<{len(raw) // 4}I", raw)
    if words[0] >> 26 == 0b000101:  # b
        return 0, address + branch_offset(words[0], 0, 26)
    if len(words) < 3 or words[0] & 0x9F000000 != 0x90000000:  # adrp
        return 0, 0
    register = words[0] & 31
    page = adrp_page(address, words[0])
    # ldr x, [x, #offset]; br x
    loads = words[1] & 0xFFC00000 == 0xF9400000 and words[1] >> 5 & 31 == register
    if loads and words[2] == 0xD61F0000 | (words[1] & 31) << 5:
        return page + (words[1] >> 10 & 0xFFF) * 8, 0
    return 0, 0


def branch_offset(word: int, low: int, bits: int) -> int:
    """A signed word offset of an ARM64 branch, in bytes."""
    value = word >> low & ((1 << bits) - 1)
    return 4 * (value - (1 << bits) if value >> (bits - 1) else value)


def adrp_page(address: int, word: int) -> int:
    """The page that an ARM64 ADRP names."""
    value = (word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3
    if value >> 20:
        value -= 1 << 21
    return (address & ~0xFFF) + (value << 12) & 0xFFFFFFFFFFFFFFFF
