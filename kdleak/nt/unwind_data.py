"""x64 unwind data of loaded images: RUNTIME_FUNCTION tables and UNWIND_INFO.

Format: Microsoft, "x64 exception handling". Both are constant while the image is loaded, so the
memory reader given here should keep what it has read for the session.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

from kdleak.errors import MemoryUnreadable
from kdleak.nt.memory import MemoryReader
from kdleak.nt.pe import read_image

ENTRY_SIZE = 12
_BLOCK_ENTRIES = 64  # entries fetched around a probe: 768 bytes, one request on every link
_WHOLE_TABLE = 4 * _BLOCK_ENTRIES  # tables up to this size are searched without interpolation
_MAXIMUM_TABLE = 64 << 20


class Op(enum.IntEnum):
    """Unwind operation codes."""

    PUSH_NONVOL = 0
    ALLOC_LARGE = 1
    ALLOC_SMALL = 2
    SET_FPREG = 3
    SAVE_NONVOL = 4
    SAVE_NONVOL_FAR = 5
    EPILOG = 6
    SPARE = 7
    SAVE_XMM128 = 8
    SAVE_XMM128_FAR = 9
    PUSH_MACHFRAME = 10


@dataclass(frozen=True)
class RuntimeFunction:
    """One row of the exception directory; all are RVAs."""

    begin: int
    end: int
    unwind: int


@dataclass(frozen=True)
class Code:
    """One unwind code.

    Attributes:
        offset: of the end of its instruction, from the start of the function.
        op: what the instruction did.
        info: a register number, or a small operand.
        operand: bytes allocated, or offset of the saved register; 0 where there is none.
    """

    offset: int
    op: Op
    info: int
    operand: int = 0


@dataclass(frozen=True)
class UnwindInfo:
    """A parsed UNWIND_INFO.

    Attributes:
        prolog_size: bytes of the prolog.
        frame_register: number of the frame register, 0 where none is used.
        frame_offset: bytes from the established stack pointer to the frame register's value.
        codes: in the order they lie, which undoes the prolog backwards.
        parent: the function this part belongs to, when it is chained.
    """

    prolog_size: int
    frame_register: int
    frame_offset: int
    codes: tuple[Code, ...]
    parent: RuntimeFunction | None


class UnwindDataError(ValueError):
    """Unwind data that follows no known rule; the stack ends there."""


def parse_unwind_info(raw: bytes) -> UnwindInfo:
    """Read an UNWIND_INFO.

    Raises:
        UnwindDataError: unknown version or operation, or it is cut off.
    """
    if len(raw) < 4:
        raise UnwindDataError("cut off")
    version, flags = raw[0] & 7, raw[0] >> 3
    if version not in (1, 2):
        raise UnwindDataError(f"version {version}")
    count = raw[2]
    if len(raw) < 4 + 2 * count:
        raise UnwindDataError("cut off")
    slots = struct.unpack_from(f"<{count}H", raw, 4)
    parent = None
    if flags & 4:
        at = 4 + 2 * (count + (count & 1))
        if len(raw) < at + ENTRY_SIZE:
            raise UnwindDataError("cut off")
        parent = RuntimeFunction(*struct.unpack_from("<III", raw, at))
    return UnwindInfo(
        prolog_size=raw[1],
        frame_register=raw[3] & 0xF,
        frame_offset=16 * (raw[3] >> 4),
        codes=tuple(_parse_codes(slots, _epilog_slots(slots) if version == 2 else 0)),
        parent=parent,
    )


def unwind_info_size(raw: bytes) -> int:
    """Bytes of an UNWIND_INFO, from its first four; a handler's data is not counted."""
    count = raw[2]
    return 4 + 2 * (count + (count & 1)) + (ENTRY_SIZE if raw[0] >> 3 & 4 else 0)


def _epilog_slots(slots: tuple[int, ...]) -> int:
    """Slots at the start that describe epilogs (version 2).

    Epilogs are recognised by their instructions, so the descriptions are passed over, with the
    empty slot that may round them up to a pair.
    """
    count = 0
    while count < len(slots) and slots[count] >> 8 & 0xF == Op.EPILOG:
        count += 1
    if count & 1 and count < len(slots) and slots[count] == 0:
        count += 1
    return count


def _parse_codes(slots: tuple[int, ...], index: int) -> list[Code]:
    codes: list[Code] = []
    while index < len(slots):
        slot = slots[index]
        offset, number, info = slot & 0xFF, slot >> 8 & 0xF, slot >> 12
        if number > Op.PUSH_MACHFRAME:
            raise UnwindDataError(f"operation {number}")
        op = Op(number)
        extra = _extra_slots(op, info)
        if index + extra >= len(slots):
            raise UnwindDataError("cut off")
        near = slots[index + 1] if extra else 0
        far = near | slots[index + 2] << 16 if extra == 2 else near
        if op is Op.ALLOC_LARGE:
            codes.append(Code(offset, op, info, far if info else 8 * near))
        elif op is Op.ALLOC_SMALL:
            codes.append(Code(offset, op, info, 8 * info + 8))
        elif op is Op.SAVE_NONVOL:
            codes.append(Code(offset, op, info, 8 * near))
        elif op is Op.SAVE_NONVOL_FAR:
            codes.append(Code(offset, op, info, far))
        elif op in (Op.PUSH_NONVOL, Op.SET_FPREG, Op.PUSH_MACHFRAME):
            codes.append(Code(offset, op, info))
        index += 1 + extra
    return codes


def _extra_slots(op: Op, info: int) -> int:
    if op is Op.ALLOC_LARGE:
        return 2 if info else 1
    if op in (Op.SAVE_NONVOL, Op.SAVE_XMM128, Op.EPILOG):
        return 1
    if op in (Op.SAVE_NONVOL_FAR, Op.SAVE_XMM128_FAR, Op.SPARE):
        return 2
    return 0


class FunctionTable:
    """The exception directory of one image, searched with few reads.

    The table of nt has tens of thousands of rows: reading all of it costs hundreds of round
    trips, a plain binary search a dozen per function. Code is spread evenly enough that
    interpolating between the rows already known finds a new function in two or three reads.

    Args:
        memory: reads the target and keeps what it read.
        base: load address of the image.
        image_size: bytes of the image.
        rva: start of the exception directory; 0 when the image has none.
        size: bytes of it.
        known: False when the headers could not be read, so that nothing is known about it.
    """

    def __init__(
        self,
        memory: MemoryReader,
        base: int,
        image_size: int,
        rva: int,
        size: int,
        *,
        known: bool = True,
    ) -> None:
        self.base = base
        self.image_size = image_size
        self._memory = memory
        self._address = base + rva
        self._count = min(size, _MAXIMUM_TABLE) // ENTRY_SIZE if rva else 0
        self._known = known
        self._blocks: dict[int, tuple[RuntimeFunction, ...]] = {}
        self._infos: dict[int, UnwindInfo] = {}

    def find(self, rva: int) -> RuntimeFunction | None:
        """The function an RVA lies in; None when the table has none (a leaf function).

        Raises:
            MemoryUnreadable: the part of the table that would tell is not there.
        """
        if not self._known:
            raise MemoryUnreadable(self.base, 0x400)
        low, high = 0, self._count  # the last row that begins at or below rva is in [low, high)
        low_rva, high_rva = 0, self.image_size
        turn = 0
        while low < high:
            middle = self._guess(rva, (low, high), (low_rva, high_rva), turn)
            number = middle // _BLOCK_ENTRIES
            block = self._block(number)
            first = number * _BLOCK_ENTRIES
            if rva < block[0].begin:
                high, high_rva = min(high, first), block[0].begin
            elif rva >= block[-1].end and first + len(block) < high:
                low, low_rva = max(low, first + len(block)), block[-1].end
            else:
                # The last match: some linkers put a chained part's row inside its parent's.
                return next((row for row in reversed(block) if row.begin <= rva < row.end), None)
            turn += 1
        return None

    @staticmethod
    def _guess(rva: int, rows: tuple[int, int], bounds: tuple[int, int], turn: int) -> int:
        (low, high), (low_rva, high_rva) = rows, bounds
        # Every third probe halves the range, so uneven or damaged tables stay bounded.
        if high - low <= _WHOLE_TABLE or turn % 3 == 2 or not low_rva <= rva < high_rva:
            return (low + high) // 2
        return low + (high - low) * (rva - low_rva) // (high_rva - low_rva)

    def _block(self, number: int) -> tuple[RuntimeFunction, ...]:
        block = self._blocks.get(number)
        if block is None:
            first = number * _BLOCK_ENTRIES
            count = min(_BLOCK_ENTRIES, self._count - first)
            raw = self._memory.read(self._address + first * ENTRY_SIZE, count * ENTRY_SIZE)
            block = tuple(RuntimeFunction(*row) for row in struct.iter_unpack("<III", raw))
            self._blocks[number] = block
        return block

    def info(self, function: RuntimeFunction) -> UnwindInfo:
        """The UNWIND_INFO of a function.

        Raises:
            UnwindDataError, MemoryUnreadable.
        """
        if function.unwind & 1:
            # Refers to the row of the function this moved part belongs to. It has no prolog of
            # its own: that function's ran long ago, as for a chained part without codes.
            rva = function.unwind & ~1
            if not self._inside(rva, ENTRY_SIZE):
                raise UnwindDataError("an indirect row leads nowhere")
            raw = self._memory.read(self.base + rva, ENTRY_SIZE)
            return UnwindInfo(0, 0, 0, (), RuntimeFunction(*struct.unpack("<III", raw)))
        info = self._infos.get(function.unwind)
        if info is None:
            if not self._inside(function.unwind, 4):
                raise UnwindDataError("outside the image")
            address = self.base + function.unwind
            size = unwind_info_size(self._memory.read(address, 4))
            info = parse_unwind_info(self._memory.read(address, size))
            self._infos[function.unwind] = info
        return info

    def primary(self, function: RuntimeFunction) -> RuntimeFunction:
        """The function that a chained part belongs to; the function itself otherwise.

        Raises:
            UnwindDataError, MemoryUnreadable.
        """
        for _ in range(32):
            parent = self.info(function).parent
            if parent is None:
                return function
            function = parent
        raise UnwindDataError("chained without end")

    def _inside(self, rva: int, size: int) -> bool:
        return rva > 0 and rva + size <= self.image_size


def read_function_table(memory: MemoryReader, base: int, size: int) -> FunctionTable:
    """The unwind data of the image at ``base``, by its headers.

    Args:
        memory: reads the target and keeps what it read.
        base: load address of the image.
        size: bytes of it as the list of modules has them, for when the headers are not there;
            then every search raises ``MemoryUnreadable``.
    """
    image = read_image(memory, base)
    if image is None:
        return FunctionTable(memory, base, size, 0, 0, known=False)
    rva, table_size = image.exception_directory
    return FunctionTable(memory, base, image.size, rva, table_size)
