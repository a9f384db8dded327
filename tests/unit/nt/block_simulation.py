"""An allocator's break instruction as seen from outside: registers, stack, pool memory."""

from __future__ import annotations

import random
import struct
from typing import Dict, List, Optional, Tuple

from nt_fakes import BIG_X64, FakeBigPages, FakeMemory, tag_value

from kdleak.model import Block, HitKind, Pool, Registers
from kdleak.nt.bigpages import BigPageTable
from kdleak.nt.block import BlockFinder
from kdleak.tags import PoolTag

TAG = tag_value("Leak")
POOL = 0xFFFF8A0000000000
STACK = 0xFFFFFA8000001000
NAMES = ("rax", "rcx", "rdx", "rbx", "rbp", "rsi", "rdi", *(f"r{n}" for n in range(8, 16)))
PC = 0xFFFFF80000123456


class Simulation:
    """Blocks of one tag in fake memory, and the state of the machine at a hit.

    Args:
        holder: register that holds the block.
        body: it holds the address behind the header, not the header's.
        size_place: register name, or offset in the stack, or None: the size is nowhere.
        size_form: "bytes", "units", "body" or "request".
        noise: register name -> function(simulation) giving its value.
    """

    def __init__(
        self,
        holder: str = "rdi",
        *,
        body: bool = True,
        size_place: Optional[object] = "rsi",
        size_form: str = "units",
        noise: Optional[Dict[str, object]] = None,
        seed: int = 1,
    ) -> None:
        self.memory = FakeMemory()
        self.big = FakeBigPages(BIG_X64)
        self.rng = random.Random(seed)
        self.holder, self.body = holder, body
        self.size_place, self.size_form = size_place, size_form
        self.noise = noise or {}
        self.pool = bytearray(0x400000)
        self.memory.pieces.append((POOL, self.pool))
        self.next_page = 0x10
        self.live: List[Tuple[int, int]] = []
        self.last_size = 0
        self.finder = BlockFinder(
            self.memory, 8, PoolTag(TAG), BigPageTable(self.big.memory, self.big.symbols, 22631, 8),
            build=22631,
        )  # fmt: skip

    def allocate(self, request: int, tag: int = TAG, at: Optional[int] = None) -> Tuple[int, int]:
        """(address the driver gets, bytes charged)."""
        if request > 0xFE0:
            size = -(-request // 0x1000) * 0x1000
            address = POOL + self.next_page * 0x1000
            self.next_page += size // 0x1000
            self.big.add(address, tag, size, 0x20000)
            return address, size
        size = (request + 0x1F) & ~0xF
        offset = self.next_page * 0x1000 + 16 * self.rng.randrange((0x1000 - size) // 16 + 1)
        if at is not None:
            offset = self.next_page * 0x1000 + at
        self.next_page += 1
        struct.pack_into("<BBBBI", self.pool, offset, 0, 0, size // 16, 2, tag)
        return POOL + offset + 16, size

    def hit(
        self, address: int, size: int, request: int, kind: HitKind = HitKind.ALLOC, pc: int = PC
    ) -> Block:
        values = dict.fromkeys(NAMES, 0)
        for name, make in self.noise.items():
            values[name] = make(self) if callable(make) else make
        big = address % 0x1000 == 0
        values[self.holder] = address if self.body or big else address - 16
        stack = bytearray(self.rng.randbytes(0x100))
        value = {
            "bytes": size, "units": size // 16, "body": size if big else size - 16,
            "request": request,
        }[self.size_form]  # fmt: skip
        if isinstance(self.size_place, str):
            values[self.size_place] = value
        elif self.size_place is not None:
            struct.pack_into("<Q", stack, self.size_place, value)
        values.update(rip=pc, rsp=STACK, efl=0x246)
        block = self.finder.find(Registers(values), STACK, bytes(stack), pc, kind)
        self.last_size = size
        return block

    def alloc_hit(self, request: int, **more) -> Tuple[Block, int, int]:
        address, size = self.allocate(request, at=more.pop("at", None))
        self.live.append((address, size))
        return self.hit(address, size, request, **more), address, size

    @property
    def reads(self) -> int:
        return len(self.memory.reads) + len(self.big.memory.reads)


POOLS = (Pool.NONPAGED, Pool.PAGED, None)
