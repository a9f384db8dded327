"""What lies in a pool block: first bytes, texts, pointers into images and other blocks."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Callable, List, Optional, Protocol, Sequence, Tuple

from kdleak.errors import KdleakError, MemoryUnreadable
from kdleak.found import BlockPointer
from kdleak.model import Module, Symbolized
from kdleak.nt.bigpages import BigBlock
from kdleak.nt.layouts import parse_pool_header, pool_header_size
from kdleak.nt.memory import PAGE_SIZE, MemoryReader, sign_extend
from kdleak.tags import PoolTag

FIRST_BYTES = 64
EXAMINED = 4096
"""Bytes of a block that are looked at for strings and pointers."""
SHORTEST_STRING, LONGEST_STRING, MOST_STRINGS = 5, 96, 8
MOST_POINTERS = 16

_ASCII = re.compile(rb"[\x20-\x7e]{%d,}" % SHORTEST_STRING)
_UTF16 = re.compile(rb"(?:[\x20-\x7e\xa0-\xff]\x00){%d,}" % SHORTEST_STRING)
_KERNEL = 0xFF00000000000000
_KERNEL_X86 = 0xFFFFFFFF80000000


class BigPages(Protocol):
    """Looks page-aligned blocks up; ``nt.bigpages.BigPageTable`` is one."""

    def find_big_page(self, address: int, freed: bool = False) -> Optional[BigBlock]:
        """The block that starts at an address, or None."""


@dataclass(frozen=True)
class Contents:
    """What lies in a block; see ``found.PoolBlock`` for the fields."""

    first_bytes: bytes = b""
    strings: Tuple[str, ...] = ()
    pointers: Tuple[BlockPointer, ...] = ()


class ContentsReader:
    """Looks into blocks.

    Args:
        memory: reads the target.
        modules: loaded images.
        nearest: the nearest symbol below an address.
        pointer_size: 4 or 8.
        big_pages: looks up page-aligned blocks; None: pointers to them are not told.
    """

    def __init__(
        self,
        memory: MemoryReader,
        modules: Sequence[Module],
        nearest: Callable[[int], Symbolized],
        pointer_size: int,
        big_pages: Optional[BigPages] = None,
    ) -> None:
        self._memory = memory
        self._modules = tuple(modules)
        self._nearest = nearest
        self._pointer_size = pointer_size
        self._unit = pool_header_size(pointer_size)
        self._big_pages = big_pages

    def read(self, address: int, size: int) -> Contents:
        """What lies in the ``size`` bytes at ``address``, as far as it can be read."""
        body = self._leading(address, min(size, EXAMINED))
        return Contents(body[:FIRST_BYTES], strings_in(body), self._pointers(address, body))

    def _leading(self, address: int, size: int) -> bytes:
        """Bytes up to the first page that is not there."""
        parts: List[bytes] = []
        while size > 0:
            length = min(size, PAGE_SIZE - address % PAGE_SIZE)
            try:
                parts.append(self._memory.read(address, length))
            except MemoryUnreadable:
                break
            address, size = address + length, size - length
        return b"".join(parts)

    def _pointers(self, own: int, body: bytes) -> Tuple[BlockPointer, ...]:
        width = self._pointer_size
        lowest = _KERNEL if width == 8 else _KERNEL_X86
        count = len(body) // width
        found: List[BlockPointer] = []
        values = struct.unpack_from(f"<{count}{'Q' if width == 8 else 'I'}", body)
        for index, raw in enumerate(values):
            value = sign_extend(raw, width)
            if value < lowest or value >= (1 << 64) - PAGE_SIZE:
                continue
            pointer = self._pointer(index * width, value)
            if pointer is not None and pointer.block != own:
                found.append(pointer)
                if len(found) == MOST_POINTERS:
                    break
        return tuple(found)

    def _pointer(self, offset: int, value: int) -> Optional[BlockPointer]:
        if any(value in module for module in self._modules):
            return BlockPointer(offset, value, symbol=self._nearest(value))
        block = self._block_at(value)
        if block is None:
            return None
        return BlockPointer(offset, value, block=block[0], block_tag=block[1])

    def _block_at(self, value: int) -> Optional[Tuple[int, PoolTag]]:
        """The block whose body begins at an address: a header in front, or a big page row."""
        if value % PAGE_SIZE == 0:
            return self._big_block_at(value)
        if value % self._unit:
            return None
        start = value - self._unit
        try:
            header = parse_pool_header(self._memory.read(start, 8), self._pointer_size)
        except MemoryUnreadable:
            return None
        fits = header.block_size > self._unit
        fits = fits and start % PAGE_SIZE + header.block_size <= PAGE_SIZE
        tag = PoolTag(header.tag)
        # Nearly all tags print; that is what tells a header from other small numbers.
        if not fits or not header.pool_type or header.pool_type & 0x80 or "." in tag.text:
            return None
        return value, tag

    def _big_block_at(self, value: int) -> Optional[Tuple[int, PoolTag]]:
        if self._big_pages is None:
            return None
        try:
            row = self._big_pages.find_big_page(value)
        except KdleakError:
            return None
        return (row.address, row.tag) if row is not None else None


def strings_in(body: bytes) -> Tuple[str, ...]:
    """Texts in order of their place: ASCII and UTF-16 (Latin), cut to ``LONGEST_STRING``."""
    found = [(one.start(), one.group().decode("utf-16-le")) for one in _UTF16.finditer(body)]
    found += [(one.start(), one.group().decode("ascii")) for one in _ASCII.finditer(body)]
    found.sort()
    unique = dict.fromkeys(text[:LONGEST_STRING] for _, text in found if text.strip())
    return tuple(list(unique)[:MOST_STRINGS])
