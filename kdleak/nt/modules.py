"""The list of loaded kernel modules, nt!PsLoadedModuleList."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from kdleak.errors import MemoryUnreadable
from kdleak.model import Module
from kdleak.nt.memory import MemoryReader, read_pointer, sign_extend

MAXIMUM_MODULES = 4096
_MAXIMUM_NAME = 0x400  # bytes of UTF-16
_MAXIMUM_IMAGE = 1 << 31


@dataclass(frozen=True)
class _EntryLayout:
    """Fields of KLDR_DATA_TABLE_ENTRY used here; unchanged from XP to Windows 11."""

    size: int
    base: int
    image_size: int
    full_name: int
    base_name: int
    buffer: int  # of UNICODE_STRING.Buffer in the string


_ENTRIES = {
    8: _EntryLayout(0x70, 0x30, 0x40, 0x48, 0x58, 8),
    4: _EntryLayout(0x38, 0x18, 0x20, 0x24, 0x2C, 4),
}


def read_module_list(
    memory: MemoryReader, head: int, pointer_size: int, kernel_base: int = 0
) -> tuple[tuple[Module, ...], tuple[str, ...]]:
    """Walk the list from its head.

    Args:
        memory: reads the target.
        head: address of nt!PsLoadedModuleList.
        pointer_size: 4 or 8.
        kernel_base: load address of nt; the module there is called "nt". 0: the first one is.

    Returns:
        The modules in load order, and a remark for everything that was not as it should be (a
        link that leads nowhere, a loop). The modules before the damage are kept.
    """
    layout = _ENTRIES[pointer_size]
    found: list[Module] = []
    remarks: list[str] = []
    seen = {head}
    try:
        link = read_pointer(memory, head, pointer_size)
    except MemoryUnreadable as error:
        return (), (f"the module list cannot be read: {error}",)
    while link != head:
        if link in seen or not link:
            remarks.append(f"the module list does not close after {len(found)} modules")
            break
        if len(seen) > MAXIMUM_MODULES:
            remarks.append(f"the module list was left after {MAXIMUM_MODULES} modules")
            break
        seen.add(link)
        try:
            raw = memory.read(link, layout.size)
        except MemoryUnreadable:
            remarks.append(f"the module list is unreadable after {len(found)} modules")
            break
        module = _parse_entry(memory, raw, layout, pointer_size)
        if module is not None:
            found.append(module)
        link = sign_extend(int.from_bytes(raw[:pointer_size], "little"), pointer_size)
    return tuple(_named(found, kernel_base)), tuple(remarks)


def _parse_entry(
    memory: MemoryReader, raw: bytes, layout: _EntryLayout, pointer_size: int
) -> Module | None:
    base = sign_extend(
        int.from_bytes(raw[layout.base : layout.base + pointer_size], "little"), pointer_size
    )
    size = struct.unpack_from("<I", raw, layout.image_size)[0]
    if not base or not 0 < size <= _MAXIMUM_IMAGE:
        return None
    # The full name lies elsewhere, one round trip per module: asked for only where needed.
    path = ""
    file_name = _read_string(memory, raw, layout.base_name, layout.buffer, pointer_size)
    if not file_name:
        path = _read_string(memory, raw, layout.full_name, layout.buffer, pointer_size)
        file_name = base_name(path)
    return Module(windbg_name(file_name), base, size, file_name, 0, path)


def _read_string(
    memory: MemoryReader, raw: bytes, offset: int, buffer: int, pointer_size: int
) -> str:
    """A UNICODE_STRING whose text may be paged out; "" then."""
    length = struct.unpack_from("<H", raw, offset)[0] & ~1
    at = offset + buffer
    address = sign_extend(int.from_bytes(raw[at : at + pointer_size], "little"), pointer_size)
    if not length or not address or length > _MAXIMUM_NAME:
        return ""
    try:
        text = memory.read(address, length).decode("utf-16-le", "replace")
    except MemoryUnreadable:
        return ""
    return text.split("\0")[0]


def base_name(path: str) -> str:
    """The last part of a path of the target."""
    return path.replace("\\", "/").rsplit("/", 1)[-1]


def windbg_name(file_name: str) -> str:
    """A module's name as WinDbg shows it: no folders, no extension, ``_`` for odd characters."""
    name = base_name(file_name)
    stem = name.rsplit(".", 1)[0] or name
    return re.sub(r"[^A-Za-z0-9_~@$?]", "_", stem)


def _named(modules: list[Module], kernel_base: int) -> list[Module]:
    """Call the kernel "nt", and give every module a name of its own.

    A name that is taken gets the load address behind it, as WinDbg does.
    """
    result: list[Module] = []
    taken: set[str] = set()
    for index, module in enumerate(modules):
        is_kernel = module.base == kernel_base if kernel_base else index == 0
        name = "nt" if is_kernel else module.name
        if not name or name.lower() in taken:
            name = f"{name or 'image'}_{module.base & 0xFFFFFFFF:08x}"
        taken.add(name.lower())
        result.append(
            Module(name, module.base, module.size, module.file_name, module.timestamp, module.path)
        )
    return result
