"""RAM with page tables put into it entry by entry, and a slow walk of each kind of them.

The walks are written from the processors' manuals (Intel SDM 3A chapter 4, Arm ARM D8) and
Windows' MMPTE types, one plain function per mode, so that they share nothing with what they test.
"""

from __future__ import annotations

import struct
from types import SimpleNamespace

import numpy as np

from kdleak.errors import MemoryUnreadable
from kdleak.nt.space.paging import PagingMode

PAGE = 0x1000
ZERO = "zeros"


class Ram:
    """Some page frames in one buffer, in any order; looks like a dump file.

    Attributes:
        pages: itself, as its page map.
    """

    def __init__(self, frames, *, end=None, lead=0, header=None):
        self.order = {frame: index for index, frame in enumerate(frames)}
        self.lead = lead
        self._bytes = bytearray(lead + PAGE * len(self.order))
        self.data = memoryview(self._bytes)
        self.claimed = len(self.order)
        self.end = end or max(self.order, default=0) + 1
        self.machine_end = 1 << 28
        self.where = "ram"
        self.header = header
        outer = self

        class Map:
            pages = outer.claimed
            end = outer.end

            @staticmethod
            def offsets(numbers):
                places = [outer.place(number) for number in numbers.tolist()]
                return np.array([-1 if at is None else at for at in places], dtype=np.int64)

            @staticmethod
            def runs():
                for frame in sorted(outer.order):
                    yield frame, 1, outer.place(frame)

        self.pages = Map()

    def place(self, frame):
        index = self.order.get(frame)
        return None if index is None else self.lead + index * PAGE

    def page(self, frame):
        at = self.place(frame)
        return None if at is None else self.data[at : at + PAGE]

    def read_physical(self, address, size):
        parts = []
        while size > 0:
            page = self.page(address // PAGE)
            if page is None:
                raise MemoryUnreadable(address, size)
            part = page[address % PAGE : address % PAGE + size]
            parts.append(bytes(part))
            address, size = address + len(part), size - len(part)
        return b"".join(parts)

    def put(self, address, data):
        at = self.place(address // PAGE)
        assert at is not None, f"no frame for {address:#x}"
        at += address % PAGE
        self._bytes[at : at + len(data)] = data

    def q(self, table, index, entry):
        """Entry of 64 bits into the table at a physical address."""
        self.put(table + 8 * index, struct.pack("<Q", entry))

    def d(self, table, index, entry):
        """Entry of 32 bits into the table at a physical address."""
        self.put(table + 4 * index, struct.pack("<I", entry))

    def stamp(self):
        """Every frame begins with its number where it is still blank."""
        for frame in self.order:
            if not any(self.page(frame)):
                self.put(frame * PAGE, struct.pack("<Q", frame) * 512)

    def entry(self, address, size=8):
        try:
            return int.from_bytes(self.read_physical(address, size), "little")
        except MemoryUnreadable:
            return 0


def bits(value, high, low):
    return value >> low & ((1 << (high - low + 1)) - 1)


def walk(ram, mode, root, va):
    """Physical address of ``va``, None, or ``ZERO``."""
    return {
        PagingMode.X86: walk_32bit,
        PagingMode.X86_PAE: walk_pae,
        PagingMode.X64: walk_4level,
        PagingMode.X64_LA57: walk_5level,
        PagingMode.ARM64: walk_arm64,
    }[mode](ram, root, va, True)


def walk_32bit(ram, cr3, va, follow):
    if va >> 32 not in (0, 0xFFFFFFFF):
        return None
    pde = ram.entry((bits(cr3, 31, 12) << 12) + 4 * bits(va, 31, 22), 4)
    if not pde & 1:
        return None
    if pde & 0x80:
        if bits(pde, 21, 17):
            return None
        return bits(pde, 16, 13) << 32 | bits(pde, 31, 22) << 22 | bits(va, 21, 0)
    pte = ram.entry((bits(pde, 31, 12) << 12) + 4 * bits(va, 21, 12), 4)
    if pte & 1 or (bits(pte, 11, 11) and not bits(pte, 10, 10)):
        return bits(pte, 31, 12) << 12 | bits(va, 11, 0)
    if pte and not bits(pte, 11, 10) and bits(pte, 9, 5) and not bits(pte, 4, 1):
        return None if bits(pte, 31, 12) else ZERO
    return None


def walk_pae(ram, cr3, va, follow):
    if va >> 32 not in (0, 0xFFFFFFFF):
        return None
    pdpte = ram.entry((bits(cr3, 31, 5) << 5) + 8 * bits(va, 31, 30))
    if not pdpte & 1 or pdpte & 0x80:
        return None
    return _directory(ram, bits(pdpte, 47, 12) << 12, va, follow, walk_pae, cr3, 37, 32)


def walk_4level(ram, cr3, va, follow):
    top = bits(va, 63, 47)
    if top not in (0, 0x1FFFF):
        return None
    return _four(ram, bits(cr3, 51, 12) << 12, va, follow, walk_4level, cr3)


def walk_5level(ram, cr3, va, follow):
    if bits(va, 63, 56) not in (0, 0xFF):
        return None
    pml5e = ram.entry((bits(cr3, 51, 12) << 12) + 8 * bits(va, 56, 48))
    if not pml5e & 1 or pml5e & 0x80:
        return None
    return _four(ram, bits(pml5e, 47, 12) << 12, va, follow, walk_5level, cr3)


def _four(ram, pml4, va, follow, again, cr3):
    pml4e = ram.entry(pml4 + 8 * bits(va, 47, 39))
    if not pml4e & 1 or pml4e & 0x80:
        return None
    pdpte = ram.entry((bits(pml4e, 47, 12) << 12) + 8 * bits(va, 38, 30))
    if not pdpte & 1:
        return None
    if pdpte & 0x80:
        return bits(pdpte, 47, 30) << 30 | bits(va, 29, 0)
    return _directory(ram, bits(pdpte, 47, 12) << 12, va, follow, again, cr3, 47, 16)


def _directory(ram, pd, va, follow, again, cr3, transition_top, prototype_low):
    pde = ram.entry(pd + 8 * bits(va, 29, 21))
    if not pde & 1:
        return None
    if pde & 0x80:
        return bits(pde, 47, 21) << 21 | bits(va, 20, 0)
    pte = ram.entry((bits(pde, 47, 12) << 12) + 8 * bits(va, 20, 12))
    if pte & 1:
        return bits(pte, 47, 12) << 12 | bits(va, 11, 0)
    return _software(ram, pte, va, follow, again, cr3, transition_top, prototype_low)


def _software(ram, pte, va, follow, again, cr3, transition_top, prototype_low):
    if bits(pte, 10, 10):
        if not follow:
            return None
        at = pte >> prototype_low
        if prototype_low == 16 and at >> 47:
            at |= 0xFFFF << 48
        where = again(ram, cr3, at, False)
        if where in (None, ZERO) or at % 8 or where // PAGE not in ram.order:
            return None
        pte = ram.entry(where)
        leaf = 3 if again is walk_arm64 else 1
        if pte & leaf == leaf:
            return bits(pte, 47, 12) << 12 | bits(va, 11, 0)
        if pte & 1 or bits(pte, 10, 10):
            return None
    if bits(pte, 11, 11):
        frame = bits(pte, transition_top, 12)
        if not bits(pte, 4, 4) and frame >= ram.machine_end:
            frame %= 1 << (ram.machine_end - 1).bit_length()
        return frame << 12 | bits(va, 11, 0)
    if bits(pte, 9, 5) and not bits(pte, 3, 1) and not bits(pte, 15, 12) and not pte >> 32:
        return ZERO
    return None


def walk_arm64(ram, ttbr, va, follow):
    if bits(va, 63, 47) not in (0, 0x1FFFF):
        return None
    table = bits(ttbr, 47, 12) << 12
    for level, (high, low) in enumerate([(47, 39), (38, 30), (29, 21), (20, 12)]):
        descriptor = ram.entry(table + 8 * bits(va, high, low))
        kind = descriptor & 3
        if level == 3:
            if kind == 3:
                return bits(descriptor, 47, 12) << 12 | bits(va, 11, 0)
            if kind == 1:
                return None
            return _software(ram, descriptor, va, follow, walk_arm64, ttbr, 47, 16)
        if kind == 1 and level in (1, 2):
            return bits(descriptor, 47, low) << low | bits(va, low - 1, 0)
        if kind != 3:
            return None
        table = bits(descriptor, 47, 12) << 12
    return None


def frames_of(scan):
    """address -> first eight bytes of each page of a scan, which must ascend."""
    found, last = {}, -1
    for batch in scan:
        assert batch.data.shape == (len(batch.addresses), PAGE)
        assert not batch.data.flags.writeable
        for address, row in zip(batch.addresses.tolist(), batch.data, strict=True):
            assert address > last
            last = address
            found[address] = row[:8].tobytes()
    return found


def header_of(**values):
    """Dump header values with everything absent that is not given."""
    plain = {"pointer_size": 8, "machine": 0x8664, "pae": None, "module_list": 0,
             "debugger_data": 0, "runs": (), "directory_table_base": 0}  # fmt: skip
    return SimpleNamespace(**{**plain, **values})
