"""Places in code where the bytes of a tag stand, and where their instruction begins."""

from __future__ import annotations

import bisect
import struct
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from kdleak.errors import MemoryUnreadable
from kdleak.model import Architecture
from kdleak.nt.memory import MemoryReader
from kdleak.nt.pe import Image
from kdleak.nt.sites.code_step import Flow, Step
from kdleak.nt.sites.image_bytes import ImageCode, SectionBytes
from kdleak.nt.unwind_data import FunctionTable, UnwindDataError
from kdleak.tags import PROTECTED_POOL, PoolTag

MAXIMUM_HITS = 4000
"""Of one image; a tag of ordinary bytes (0x00000001) is not worth more."""

_BEFORE = 48  # bytes in front of a hit from where decoding falls into step
_MOST_IN_FRONT = 11  # bytes of an instruction before its immediate
_ARM64_NEAR = 8  # instructions between the two halves of a constant
_ARM64_LITERAL = 0x1000  # bytes between a literal and its load, each way
_MAXIMUM_TABLE = 8 << 20


def find_tag(data: bytes, tag: PoolTag) -> Iterator[int]:
    """Offsets of the tag's bytes, with or without the bit of protected pool, ascending each."""
    for value in (tag.value, tag.value | PROTECTED_POOL):
        raw = value.to_bytes(4, "little")
        at = data.find(raw)
        while at >= 0:
            yield at
            at = data.find(raw, at + 1)


def code_hits(section: SectionBytes, tag: PoolTag, architecture: Architecture) -> list[int]:
    """Addresses that deserve a look.

    x86 and x64: of the four bytes. ARM64: of the instruction that completes the constant, or
    loads it from a literal; the four bytes where nothing does.
    """
    found: set[int] = set()
    for start, data in section.runs:
        for at in find_tag(data, tag):
            found.update(_literal_loads(data, start, at) if _is_arm(architecture) else [start + at])
            if len(found) >= MAXIMUM_HITS:
                break
        if _is_arm(architecture):
            found.update(start + at for at in _arm64_constants(data, start, tag))
    return sorted(found)[:MAXIMUM_HITS]


def _is_arm(architecture: Architecture) -> bool:
    return architecture is Architecture.ARM64


def _literal_loads(data: bytes, start: int, at: int) -> list[int]:
    """Loads of a literal; the literal's own address when there are none."""
    loads = []
    if (start + at) % 4 == 0:
        low = max(-start % 4, at - _ARM64_LITERAL)
        for place in range(low, min(len(data) - 3, at + _ARM64_LITERAL), 4):
            word = struct.unpack_from("<I", data, place)[0]
            if (
                word & 0xBF000000 == 0x18000000
                and word >> 5 & 0x7FFFF == (at - place) >> 2 & 0x7FFFF
            ):
                loads.append(start + place)
    return loads or [start + at]


def _arm64_constants(data: bytes, start: int, tag: PoolTag) -> Iterator[int]:
    """Offsets of the second of two moves that build the tag in one register."""
    high, low = tag.value >> 16, tag.value & 0xFFFF
    for upper in (high, high | 0x8000):
        for shift, half, other_shift, other in ((1, upper, 0, low), (0, low, 1, upper)):
            # MOVK of one half, 32 or 64 bits wide; MOVZ of the other one stands before it.
            for wide in (0x72800000, 0xF2800000):
                word = wide | shift << 21 | half << 5
                for at in _find_words(data, start, word):
                    register = data[at] & 31
                    if _moved_before(data, at, other_shift << 21 | other << 5 | register):
                        yield at


def _find_words(data: bytes, start: int, word: int) -> Iterator[int]:
    """Offsets of instructions that are ``word`` but for the register in the lowest five bits."""
    raw = word.to_bytes(4, "little")
    at = data.find(raw[1:])
    while at >= 0:
        if at and (start + at - 1) % 4 == 0 and data[at - 1] & 0xE0 == raw[0] & 0xE0:
            yield at - 1
        at = data.find(raw[1:], at + 1)


def _moved_before(data: bytes, at: int, fields: int) -> bool:
    """Whether a MOVZ with these fields stands a little before an offset."""
    for place in range(at - 4, max(-1, at - 4 * _ARM64_NEAR - 1), -4):
        word = struct.unpack_from("<I", data, place)[0]
        if word & 0x7FFFFFFF == 0x52800000 | fields:
            return True
    return False


class FunctionStarts:
    """Where the functions of an image begin, by its exception directory (x64, ARM64)."""

    def __init__(self, memory: MemoryReader, image: Image, architecture: Architecture) -> None:
        self._memory = memory
        self._image = image
        rva, size = image.exception_directory
        self._rva, self._size = rva, min(size, _MAXIMUM_TABLE)
        self._table: FunctionTable | None = None
        self._begins: list[int] | None = None
        if architecture is Architecture.X64:
            self._table = FunctionTable(memory, image.base, image.size, rva, size)
        elif architecture is not Architecture.ARM64:
            self._begins = []

    def before(self, address: int) -> int:
        """Start of the function an address lies in; 0 where nothing tells."""
        rva = address - self._image.base
        if self._table is not None:
            try:
                row = self._table.find(rva)
                return 0 if row is None else self._image.base + self._table.primary(row).begin
            except (MemoryUnreadable, UnwindDataError):
                return 0
        if self._begins is None:
            self._begins = self._read_arm64()
        index = bisect.bisect_right(self._begins, rva) - 1
        return self._image.base + self._begins[index] if index >= 0 else 0

    def _read_arm64(self) -> list[int]:
        """Begins of the rows of 8 bytes; [] when the table is not there as a whole."""
        if not self._rva:
            return []
        try:
            raw = self._memory.read(self._image.base + self._rva, self._size // 8 * 8)
        except MemoryUnreadable:
            return []
        return sorted(row[0] for row in struct.iter_unpack("<II", raw))


class Stepper(Protocol):
    """Decodes instructions; see ``code_flow.CodeWalk.step``."""

    def step(self, address: int) -> Step | None:
        """The instruction at an address."""


def instruction_at(walker: Stepper, code: ImageCode, hit: int) -> tuple[int, int]:
    """The instruction whose immediate the four bytes at ``hit`` are, by falling into step.

    x86 code decoded from a wrong byte meets the right instructions after a few: of several
    starting points in front of the hit most agree.

    Returns:
        (its address, a start of straight code in front of it); zeros when no decoding gives an
        instruction with the tag there.
    """
    votes: Counter[int] = Counter()
    starts: dict[int, int] = {}
    for start in range(hit - _BEFORE, hit):
        if not code.at(start, 1):
            continue
        at = straight = start
        while at < hit:
            step = walker.step(at)
            if step is None:
                break
            if at + step.size >= hit + 4 and step.loads and hit - at <= _MOST_IN_FRONT:
                votes[at] += 2 if start < at else 1
                starts.setdefault(at, straight)
                break
            at += step.size
            if step.flow in (Flow.STOP, Flow.JUMP):
                straight = at
    if not votes:
        return 0, 0
    # Of equals the longer one: a start behind the prefix of an instruction loses.
    best = max(votes, key=lambda address: (votes[address], -address))
    return best, starts[best]


def preceding_arm64(walker: Stepper, code: ImageCode, hit: int) -> tuple[int, int]:
    """As ``instruction_at``, for ARM64: the hit is the instruction if it is one of those."""
    step = walker.step(hit) if hit % 4 == 0 and code.at(hit, 4) else None
    if step is None or not step.loads:
        return 0, 0
    # From well before it: the pointer that is called may have been loaded there.
    straight = hit
    for address in range(hit - 4, hit - _BEFORE, -4):
        step = walker.step(address)
        if step is None or step.flow in (Flow.STOP, Flow.JUMP):
            break
        straight = address
    return hit, straight
