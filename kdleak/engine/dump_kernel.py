"""Finding nt in a dump's memory: its headers, its debugger data block, its list of modules.

The dump's header names these places; where it does not, or names something else, the kernel is
searched for below the addresses of its variables that are known.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kdleak.errors import MemoryUnreadable, SymbolNotFound
from kdleak.model import Module
from kdleak.nt.kdbg import (
    OWNER_TAG,
    DebuggerData,
    EncodingKeys,
    decode_debugger_data,
    find_debugger_data,
)
from kdleak.nt.memory import PAGE_SIZE, MemoryReader, read_pointer
from kdleak.nt.modules import read_module_list
from kdleak.nt.pe import Image, read_image, read_pdb_identity
from kdleak.nt.places.image_data import ImageData

if TYPE_CHECKING:
    from kdleak.dump.header import DumpHeader

_LARGEST_KERNEL = 32 << 20  # bytes searched below an address that lies in nt
_KERNEL_PDB = re.compile(r"nt(?:kr|os)", re.IGNORECASE)
_LAB_LENGTH = 0x80


@dataclass(frozen=True)
class DumpKernel:
    """What was found of nt.

    Attributes:
        image: its headers; None where they are not in the dump.
        base: its load address, 0 where unknown.
        debugger_data: KDBG, decoded; None where it was not found.
        module_list: address of nt!PsLoadedModuleList, 0 where unknown.
        modules: loaded images in load order; nt alone where the list is not readable.
        gaps: what ``modules`` lacks, one sentence each.
    """

    image: Image | None
    base: int
    debugger_data: DebuggerData | None
    module_list: int
    modules: tuple[Module, ...]
    gaps: tuple[str, ...] = ()


def find_kernel(
    memory: MemoryReader,
    header: DumpHeader,
    inside: Iterable[int],
    remark: Callable[[str], None],
) -> DumpKernel:
    """Find nt and its modules.

    Args:
        memory: reads the target.
        header: of the dump; it says where some of it is, truly or not.
        inside: addresses that probably lie in nt.
        remark: takes one sentence for everything worth knowing.
    """
    size = header.pointer_size
    block = find_debugger_data(memory, header.debugger_data)
    image = _kernel_at(memory, block.field("KernBase"), header.machine) if block else None
    if block is not None and image is None and not _unreadable(memory, block.field("KernBase")):
        remark("the debugger data block names no kernel: not believed")
        block = None
    if image is None:
        image = _first_of_list(memory, header)
    if image is None:
        known = (header.debugger_data, header.module_list, header.process_list, *inside)
        image = _search_kernel(memory, known, header.machine)
    if block is None and image is not None:
        block = _debugger_data_among(memory, ImageData(memory, image, size), image.base)
    base = image.base if image is not None else block.field("KernBase") if block else 0
    heads = (header.module_list, block.field("PsLoadedModuleList") if block else 0)
    head, modules, gaps = _modules(memory, heads, size, base)
    if not modules:
        only = "only nt is" if image is not None else "no module is"
        gaps = (f"the list of loaded modules is not in the dump: {only} known",)
    for sentence in gaps:
        remark(sentence)
    if image is not None and not any(module.base == base for module in modules):
        modules = (Module("nt", base, image.size, "ntoskrnl.exe", image.timestamp), *modules)
    return DumpKernel(image, base, block, head, modules, gaps)


def _first_of_list(memory: MemoryReader, header: DumpHeader) -> Image | None:
    """The kernel as the first of the header's module list."""
    modules, _ = read_modules(memory, header.module_list, header.pointer_size, 0)
    return _kernel_at(memory, modules[0].base, header.machine) if modules else None


def _modules(
    memory: MemoryReader, heads: Iterable[int], pointer_size: int, base: int
) -> tuple[int, tuple[Module, ...], tuple[str, ...]]:
    """The first list that names the kernel (any list, where its base is not known)."""
    for head in heads:
        modules, said = read_modules(memory, head, pointer_size, base)
        if modules and (not base or any(module.base == base for module in modules)):
            return head, modules, said
    return 0, (), ()


def read_modules(
    memory: MemoryReader, head: int, pointer_size: int, base: int
) -> tuple[tuple[Module, ...], tuple[str, ...]]:
    """The module list, and remarks about it; empty where its head is not known."""
    if not head:
        return (), ()
    return read_module_list(memory, head, pointer_size, base)


def _kernel_at(memory: MemoryReader, base: int, machine: int) -> Image | None:
    if not base or base % PAGE_SIZE:
        return None
    image = read_image(memory, base)
    return image if image is not None and image.machine == machine else None


def _unreadable(memory: MemoryReader, address: int) -> bool:
    try:
        memory.read(address, 2)
    except MemoryUnreadable:
        return True
    return False


def _search_kernel(memory: MemoryReader, addresses: Iterable[int], machine: int) -> Image | None:
    """The kernel's image below one of some addresses, told from other images by its names."""
    tried: list[tuple[int, int]] = []
    for address in addresses:
        start = address & ~(PAGE_SIZE - 1)
        stop = max(start - _LARGEST_KERNEL, 0)
        if not address or any(low <= start <= high for low, high in tried):
            continue
        tried.append((stop, start))
        for at in range(start, stop, -PAGE_SIZE):
            try:
                if memory.read(at, 2) != b"MZ":
                    continue
            except MemoryUnreadable:
                continue
            image = _kernel_at(memory, at, machine)
            if image is not None and at + image.size > address and _is_kernel(memory, image):
                return image
    return None


def _is_kernel(memory: MemoryReader, image: Image) -> bool:
    if _export_name(memory, image).lower() == "ntoskrnl.exe":
        return True
    identity = read_pdb_identity(memory, image)
    return identity is not None and _KERNEL_PDB.match(identity.file_name) is not None


def _export_name(memory: MemoryReader, image: Image) -> str:
    """The name an image exports under, from IMAGE_EXPORT_DIRECTORY; "" when not there."""
    rva, size = image.directory(0)
    if size < 0x28:
        return ""
    try:
        name = struct.unpack("<I", memory.read(image.base + rva + 0xC, 4))[0]
        raw = memory.read(image.base + name, 0x10) if 0 < name < image.size else b""
    except MemoryUnreadable:
        return ""
    return raw.split(b"\0")[0].decode("latin-1")


def _debugger_data_among(
    memory: MemoryReader, data: ImageData, kernel_base: int
) -> DebuggerData | None:
    """The debugger data block in nt's variables, told by its tag and by the kernel's address."""
    tag = struct.pack("<I", OWNER_TAG)
    for start, raw in data.runs:
        at = raw.find(tag)
        while at >= 0:
            block = find_debugger_data(memory, start + at - 0x10) if at >= 0x10 else None
            if block is not None and block.field("KernBase") == kernel_base:
                return block
            at = raw.find(tag, at + 1)
    return None


def decode_by_symbols(
    memory: MemoryReader, address: int, symbol: Callable[[str], int]
) -> DebuggerData | None:
    """The debugger data block of an x64 system that keeps it encoded.

    Args:
        memory: reads the target.
        address: where the dump's header says it is, 0 where it does not.
        symbol: address of a symbol of nt, from its PDB.

    Returns:
        None when the symbols are not known, or do not decode it.
    """
    try:
        keys = EncodingKeys(
            wait_never=read_pointer(memory, symbol("nt!KiWaitNever"), 8),
            wait_always=read_pointer(memory, symbol("nt!KiWaitAlways"), 8),
            encoded_flag=symbol("nt!KdpDataBlockEncoded"),
        )
        address = address or symbol("nt!KdDebuggerDataBlock")
    except (MemoryUnreadable, SymbolNotFound):
        return None
    return decode_debugger_data(memory, address, keys)


def read_build_lab(memory: MemoryReader, data: DebuggerData | None) -> str:
    """nt!NtBuildLab ("19041.1.amd64fre.vb_release.191206-1406"); "" when it cannot be read."""
    address = data.field("NtBuildLab") if data is not None else 0
    try:
        raw = memory.read(address, _LAB_LENGTH).split(b"\0")[0] if address else b""
    except MemoryUnreadable:
        return ""
    text = raw.decode("ascii", "replace")
    return text if re.fullmatch(r"[\w.()-]{4,}", text) else ""
