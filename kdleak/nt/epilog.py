"""Recognising the rest of an x64 epilog from its instructions.

Epilogs are not described by unwind data (version 1); Microsoft's ABI makes them recognisable
instead: at most one stack pointer adjustment, pops of nonvolatile registers, then a return or a
jump out of the function.
"""

from __future__ import annotations

from dataclasses import dataclass

from kdleak.errors import MemoryUnreadable
from kdleak.nt.memory import MemoryReader
from kdleak.nt.unwind_data import FunctionTable, RuntimeFunction

_RSP = 4
_LONGEST = 64  # bytes of instructions looked at


@dataclass(frozen=True)
class Epilog:
    """What an epilog still has to do before the return address is on top of the stack.

    Attributes:
        base: register from which rsp is set first, None where rsp stays.
        adjust: bytes added to it.
        pops: registers popped, in order.
    """

    base: int | None
    adjust: int
    pops: tuple[int, ...]


def find_epilog(
    code: MemoryReader,
    address: int,
    table: FunctionTable,
    function: RuntimeFunction,
    frame_register: int,
) -> Epilog | None:
    """The epilog that goes on at ``address``; None when other code is there.

    Raises:
        UnwindDataError: a jump leads into a function with damaged unwind data.
        MemoryUnreadable: the instruction at ``address`` is not there.
    """
    stream = _Stream(code, address)
    base, adjust = _adjustment(stream, frame_register)
    pops = _pops(stream)
    if _is_return(stream) or _is_tail_jump(stream, table, function, bool(pops or base is not None)):
        return Epilog(base, adjust, pops)
    return None


class _Stream:
    """Instruction bytes, read as far as they are looked at."""

    def __init__(self, code: MemoryReader, address: int) -> None:
        self._code = code
        self.address = address
        self._start = address
        self._bytes = code.read(address, 1)

    def peek(self, count: int) -> bytes:
        """The next bytes; fewer, padded with int3, where no more can be read."""
        offset = self.address - self._start
        while len(self._bytes) < offset + count:
            if offset + count > _LONGEST:
                return self._bytes[offset:].ljust(count, b"\xcc")
            try:
                self._bytes += self._code.read(self._start + len(self._bytes), 1)
            except MemoryUnreadable:
                return self._bytes[offset:].ljust(count, b"\xcc")
        return self._bytes[offset : offset + count]

    def skip(self, count: int) -> None:
        self.address += count

    def signed(self, offset: int, size: int) -> int:
        """A signed operand ``offset`` bytes ahead."""
        return int.from_bytes(self.peek(offset + size)[offset:], "little", signed=True)


def _adjustment(stream: _Stream, frame_register: int) -> tuple[int | None, int]:
    first = stream.peek(1)[0]
    if first & 0xF8 != 0x48:
        return None, 0
    second, third = stream.peek(3)[1:]
    if first == 0x48 and third == 0xC4 and second in (0x83, 0x81):  # add rsp, imm
        size = 1 if second == 0x83 else 4
        amount = stream.signed(3, size)
        stream.skip(3 + size)
        return _RSP, amount
    if second == 0x8D and frame_register and third >> 3 & 7 == _RSP:  # lea rsp, [frame + disp]
        register = third & 7 | (8 if first & 1 else 0)
        mode = third >> 6
        length = 3
        if third & 7 == _RSP:  # r12 needs a SIB byte
            length += 1
        if register != frame_register or mode == 3 or first & 6:
            return None, 0
        size = {0: 0, 1: 1, 2: 4}[mode]
        amount = stream.signed(length, size) if size else 0
        stream.skip(length + size)
        return register, amount
    return None, 0


def _pops(stream: _Stream) -> tuple[int, ...]:
    found: list[int] = []
    while len(found) < 16:
        first = stream.peek(1)[0]
        if first & 0xF8 == 0x58:
            found.append(first & 7)
            stream.skip(1)
        elif first & 0xF0 == 0x40 and stream.peek(2)[1] & 0xF8 == 0x58:
            found.append(stream.peek(2)[1] & 7 | (8 if first & 1 else 0))
            stream.skip(2)
        else:
            break
    return tuple(found)


def _is_return(stream: _Stream) -> bool:
    first = stream.peek(1)[0]
    return first in (0xC3, 0xC2) or (first == 0xF3 and stream.peek(2)[1] == 0xC3)


def _is_tail_jump(
    stream: _Stream, table: FunctionTable, function: RuntimeFunction, began: bool
) -> bool:
    first = stream.peek(1)[0]
    if first == 0xEB:
        return _leaves(stream.address + 2 + stream.signed(1, 1), table, function, began)
    if first == 0xE9:
        return _leaves(stream.address + 5 + stream.signed(1, 4), table, function, began)
    if first & 0xF8 == 0x48 and stream.peek(2)[1] == 0xFF:  # rex.w jmp reg or [mem]: tail only
        return stream.peek(3)[2] >> 3 & 7 == 4
    return first == 0xFF and stream.peek(2)[1] == 0x25  # jmp [rip + disp32]


def _leaves(target: int, table: FunctionTable, function: RuntimeFunction, began: bool) -> bool:
    """Whether a direct jump leaves the function instead of staying within one of its parts."""
    rva = target - table.base
    if function.begin <= rva < function.end:
        return began and rva == function.begin  # tail recursion
    other = table.find(rva) if 0 <= rva < table.image_size else None
    if other is None:
        return True
    return table.primary(other) != table.primary(function)
