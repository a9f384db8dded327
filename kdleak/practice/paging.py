"""RAM of the practice machine and the x64 page tables in it (Intel SDM, 4-level paging)."""

from __future__ import annotations

import ctypes
import mmap

PAGE_SIZE = 0x1000
PAGE_MASK = PAGE_SIZE - 1
FRAME_MASK = 0x0000_FFFF_FFFF_F000

PRESENT = 1 << 0
WRITABLE = 1 << 1
ACCESSED = 1 << 5
DIRTY = 1 << 6
SOFTWARE_WRITE = 1 << 11
NO_EXECUTE = 1 << 63

TABLE_FLAGS = PRESENT | WRITABLE | ACCESSED | DIRTY | SOFTWARE_WRITE
READ_ONLY = PRESENT | ACCESSED | NO_EXECUTE
READ_WRITE = TABLE_FLAGS | NO_EXECUTE
EXECUTE = PRESENT | ACCESSED


def canonical(address: int) -> int:
    """An address sign-extended from bit 47, as an unsigned 64-bit number."""
    address &= (1 << 48) - 1
    return address | 0xFFFF_0000_0000_0000 if address >> 47 else address


class PhysicalMemory:
    """RAM as one anonymous mapping; the emulators and Python look at the same bytes.

    Args:
        size: bytes, a multiple of the page size.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._map = mmap.mmap(-1, size)
        self._anchor: ctypes.c_char | None = ctypes.c_char.from_buffer(self._map)
        self.address_in_host = ctypes.addressof(self._anchor)
        self.bytes = memoryview(self._map)
        self.words = self.bytes.cast("Q")

    def close(self) -> None:
        """Give the mapping back. No emulator may use it any more."""
        self.words.release()
        self.bytes.release()
        self._anchor = None
        self._map.close()

    def read(self, address: int, size: int) -> bytes:
        """Bytes of RAM; fewer than asked for where RAM ends."""
        if address < 0 or address >= self.size:
            return b""
        return bytes(self.bytes[address : min(address + size, self.size)])

    def write(self, address: int, data: bytes) -> int:
        """Write to RAM; returns the bytes written, fewer where RAM ends."""
        if address < 0 or address >= self.size:
            return 0
        count = min(len(data), self.size - address)
        self.bytes[address : address + count] = data[:count]
        return count


class AddressSpace:
    """One set of page tables.

    Args:
        memory: the RAM that holds the tables.
        first_frame: the first page frame number this class may take for tables and for
            :meth:`take_frame`; it hands them out in ascending order.
    """

    def __init__(self, memory: PhysicalMemory, first_frame: int) -> None:
        self.memory = memory
        self.next_frame = first_frame
        self.root = self.take_frame() * PAGE_SIZE
        self.pte_base = 0

    def take_frame(self) -> int:
        """A zeroed page frame that nobody uses yet."""
        frame = self.next_frame
        if (frame + 1) * PAGE_SIZE > self.memory.size:
            raise MemoryError("the practice machine has no RAM left")
        self.next_frame += 1
        return frame

    def map_self(self, slot: int) -> None:
        """Enter the root table into itself at PML4 ``slot``: Windows' self-map."""
        self.memory.words[self.root // 8 + slot] = self.root | READ_WRITE
        self.pte_base = canonical(slot << 39)

    def reserve(self, address: int, pages: int) -> None:
        """Build the tables for a range down to the last level, leaving its pages unmapped."""
        for start in range(address & ~0x1F_FFFF, address + pages * PAGE_SIZE, 0x20_0000):
            self._table_of(start)

    def map(self, address: int, frame: int, flags: int) -> None:
        """Map one page."""
        self.memory.words[self._table_of(address) // 8 + (address >> 12 & 0x1FF)] = (
            frame * PAGE_SIZE | flags
        )

    def map_new(self, address: int, size: int, flags: int) -> None:
        """Map fresh zeroed frames under ``size`` bytes at ``address`` (page aligned)."""
        for page in range(address, address + size, PAGE_SIZE):
            self.map(page, self.take_frame(), flags)

    def _table_of(self, address: int) -> int:
        table = self.root
        for shift in (39, 30, 21):
            index = table // 8 + (address >> shift & 0x1FF)
            entry = self.memory.words[index]
            if not entry & PRESENT:
                entry = self.take_frame() * PAGE_SIZE | TABLE_FLAGS
                self.memory.words[index] = entry
            table = entry & FRAME_MASK
        return table

    def entry(self, address: int) -> int:
        """The page table entry that maps ``address``, 0 where nothing does.

        No large page is ever made here, so a client that writes one into the tables does not
        get it honoured.
        """
        if canonical(address) != address:
            return 0
        words = self.memory.words
        entry = words[(self.root >> 3) + (address >> 39 & 0x1FF)]
        for shift in (30, 21, 12):
            if not entry & PRESENT:
                return 0
            index = ((entry & FRAME_MASK) >> 3) + (address >> shift & 0x1FF)
            if index >= len(words):
                return 0
            entry = words[index]
        return entry if entry & PRESENT else 0

    def translate(self, address: int) -> int | None:
        """Physical address, or None where the page is not present."""
        entry = self.entry(address)
        return (entry & FRAME_MASK) | (address & PAGE_MASK) if entry else None

    def read(self, address: int, size: int) -> bytes:
        """Read up to ``size`` bytes; stops at the first page that is not present RAM."""
        parts: list[bytes] = []
        while size > 0:
            physical = self.translate(address)
            if physical is None:
                break
            part = self.memory.read(physical, min(size, PAGE_SIZE - (address & PAGE_MASK)))
            if not part:
                break
            parts.append(part)
            address += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, address: int, data: bytes) -> int:
        """Write through page protection, as a debugger does; stops at a page not present."""
        done = 0
        while done < len(data):
            physical = self.translate(address + done)
            if physical is None:
                break
            room = PAGE_SIZE - ((address + done) & PAGE_MASK)
            count = self.memory.write(physical, data[done : done + room])
            if not count:
                break
            done += count
        return done
