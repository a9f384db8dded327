"""Unwind data: every code, every way to end, tables of any size with few reads."""

from __future__ import annotations

import struct

import pytest
from image_builder import BASE, image, loaded
from nt_fakes import FakeMemory

from kdleak.errors import MemoryUnreadable
from kdleak.model import StackEnd
from kdleak.nt.memory import CachedMemory
from kdleak.nt.stack_memory import StackMemory
from kdleak.nt.unwind import unwind
from kdleak.nt.unwind_data import (
    Code,
    FunctionTable,
    Op,
    RuntimeFunction,
    UnwindDataError,
    parse_unwind_info,
    unwind_info_size,
)

STACK = 0xFFFFFA8000001000
FUNCTION = RuntimeFunction(0x1000, 0x1100, 0x3000)
BODY = BASE + 0x1080


def slots(*values):
    return struct.pack(f"<{len(values)}H", *values)


def info(codes: bytes, *, version=1, flags=0, prolog=0x10, frame=0, extra=b"") -> bytes:
    count = len(codes) // 2
    return (
        bytes([version | flags << 3, prolog, count, frame])
        + codes
        + (bytes(2) if count & 1 else b"")
        + extra
    )


def code(offset, op, operand=0):
    return offset | op << 8 | operand << 12


class World:
    """One image with functions, a stack, and a walk over it."""

    def __init__(self, *functions, unwind_data, code_bytes=b"\x90" * 0x1000):
        data = bytearray(image(functions=[(f.begin, f.end, f.unwind) for f in functions],
                               unwind=unwind_data))  # fmt: skip
        data[0x1000 : 0x1000 + len(code_bytes)] = code_bytes
        self.memory = loaded(bytes(data))
        self.table = FunctionTable(self.memory, BASE, 0x8000, 0x4000, 12 * len(functions))
        self.stack = FakeMemory()
        self.stack.put(STACK, bytes(0x1000))

    def words(self, *values, at=STACK):
        self.stack.put(at, struct.pack(f"<{len(values)}Q", *values))

    def walk(self, rip=BODY, depth=32, **registers):
        registers.setdefault("rsp", STACK)
        registers["rip"] = rip
        return unwind(
            registers,
            lambda address: self.table if BASE <= address < BASE + 0x8000 else None,
            self.stack,
            self.memory,
            depth,
        )


def caller(world, *words, rip=BODY, **registers):
    """The first caller's (address, stack pointer)."""
    world.words(*words)
    found = world.walk(rip, **registers)
    return found.frames[1] if len(found.frames) > 1 else found.end


CALLER = BASE + 0x1050


@pytest.mark.parametrize(
    ("codes", "size"),
    [
        (slots(code(4, Op.ALLOC_SMALL, 3)), 0x20),
        (slots(code(7, Op.ALLOC_LARGE, 0), 0x300 // 8), 0x300),
        (slots(code(7, Op.ALLOC_LARGE, 1), 0x400, 0), 0x400),
        (slots(code(1, Op.PUSH_NONVOL, 3)), 8),
        (slots(code(8, Op.ALLOC_SMALL, 1), code(4, Op.PUSH_NONVOL, 5)), 0x18),
        (slots(code(9, Op.SAVE_XMM128, 6), 2, code(4, Op.ALLOC_SMALL, 7)), 0x40),
        (slots(code(9, Op.SAVE_XMM128_FAR, 6), 2, 0, code(4, Op.ALLOC_SMALL, 7)), 0x40),
        (slots(code(9, Op.SPARE, 0), 0, 0, code(4, Op.ALLOC_SMALL, 7)), 0x40),
        (b"", 0),
    ],
)
def test_frame_sizes(codes, size):
    world = World(FUNCTION, unwind_data={0x3000: info(codes)})
    words = [0] * (size // 8) + [CALLER]
    assert caller(world, *words) == (CALLER, STACK + size + 8)


def test_partial_prolog_undoes_only_what_was_done():
    data = info(slots(code(8, Op.ALLOC_SMALL, 3), code(4, Op.PUSH_NONVOL, 5)), prolog=8)
    world = World(FUNCTION, unwind_data={0x3000: data})
    assert caller(world, CALLER, rip=BASE + 0x1000) == (CALLER, STACK + 8)
    assert caller(world, 0, CALLER, rip=BASE + 0x1004) == (CALLER, STACK + 16)
    assert caller(world, *[0] * 5, CALLER, rip=BASE + 0x1008) == (CALLER, STACK + 0x30)


def test_frame_register_and_saved_registers():
    """rbp is the frame register of the caller, saved by the callee at a fixed place."""
    inner = info(slots(code(12, Op.SAVE_NONVOL, 5), 2, code(4, Op.ALLOC_SMALL, 4)), prolog=12)
    outer = info(
        slots(code(12, Op.SET_FPREG), code(8, Op.ALLOC_SMALL, 7), code(2, Op.PUSH_NONVOL, 5)),
        prolog=12, frame=5 | 2 << 4,
    )  # fmt: skip
    world = World(
        FUNCTION, RuntimeFunction(0x1200, 0x1300, 0x3100),
        unwind_data={0x3000: inner, 0x3100: outer},
    )  # fmt: skip
    frame = STACK + 0x200
    world.words(0, 0, frame + 0x20, 0, 0, BASE + 0x1250)
    world.words(*[0] * 8, 0x1234, BASE + 0x1090, at=frame)
    found = world.walk()
    assert found.frames[1] == (BASE + 0x1250, STACK + 0x30)
    assert found.frames[2] == (BASE + 0x1090, frame + 0x50)


def test_save_far():
    data = info(slots(code(12, Op.SAVE_NONVOL_FAR, 3), 0x10, 0, code(4, Op.ALLOC_SMALL, 4)),
                prolog=12)  # fmt: skip
    world = World(FUNCTION, unwind_data={0x3000: data})
    assert caller(world, *[0] * 5, CALLER) == (CALLER, STACK + 0x30)


@pytest.mark.parametrize("error_code", [0, 1])
def test_machine_frame(error_code):
    data = info(slots(code(4, Op.ALLOC_SMALL, 0), code(0, Op.PUSH_MACHFRAME, error_code)))
    world = World(FUNCTION, unwind_data={0x3000: data})
    words = [0] * (1 + error_code) + [CALLER, 0x10, 0x246, STACK + 0x800, 0x18]
    assert caller(world, *words) == (CALLER, STACK + 0x800)


def test_interrupted_code_after_a_machine_frame_may_be_a_leaf():
    data = info(slots(code(0, Op.PUSH_MACHFRAME)))
    world = World(FUNCTION, unwind_data={0x3000: data})
    world.words(BASE + 0x1800, 0x10, 0x246, STACK + 0x800, 0x18)
    world.words(CALLER, at=STACK + 0x800)
    assert [ip for ip, _ in world.walk().frames][:3] == [BODY, BASE + 0x1800, CALLER]


def test_chained_part():
    parent = info(slots(code(4, Op.ALLOC_SMALL, 3)))
    part = info(slots(code(5, Op.SAVE_NONVOL, 3), 1), flags=4,
                extra=struct.pack("<III", 0x1000, 0x1100, 0x3000))  # fmt: skip
    world = World(
        FUNCTION, RuntimeFunction(0x1400, 0x1500, 0x3100),
        unwind_data={0x3000: parent, 0x3100: part},
    )  # fmt: skip
    assert caller(world, 0, 0, 0, 0, CALLER, rip=BASE + 0x1480) == (CALLER, STACK + 0x28)


def test_chain_without_end():
    endless = info(b"", flags=4, extra=struct.pack("<III", 0x1000, 0x1100, 0x3000))
    world = World(FUNCTION, unwind_data={0x3000: endless})
    assert caller(world, CALLER) is StackEnd.NO_UNWIND_DATA


def test_row_that_refers_to_another():
    world = World(
        RuntimeFunction(0x1000, 0x1100, 0x3021), unwind_data={
            0x3000: info(slots(code(4, Op.ALLOC_SMALL, 3))),
            0x3020: struct.pack("<III", 0x1000, 0x1100, 0x3000),
        },
    )  # fmt: skip
    assert caller(world, 0, 0, 0, 0, CALLER) == (CALLER, STACK + 0x28)


@pytest.mark.parametrize("rip", [0x1400, 0x1404, 0x14F0])
def test_moved_part_that_refers_to_its_function_undoes_all_of_it(rip):
    """A break in the first bytes of a cold block: the function's prolog ran long ago."""
    world = World(
        FUNCTION, RuntimeFunction(0x1400, 0x1500, 0x3021), unwind_data={
            0x3000: info(slots(code(8, Op.ALLOC_SMALL, 3), code(4, Op.PUSH_NONVOL, 3))),
            0x3020: struct.pack("<III", 0x1000, 0x1100, 0x3000),
        },
    )  # fmt: skip
    assert caller(world, 0, 0, 0, 0, 0, CALLER, rip=BASE + rip) == (CALLER, STACK + 0x30)
    assert world.table.primary(RuntimeFunction(0x1400, 0x1500, 0x3021)) == FUNCTION


def test_walk_with_five_level_paging():
    world = World(FUNCTION, unwind_data={0x3000: info(slots(code(4, Op.ALLOC_SMALL, 3)))})
    stack = 0xFF11000000001000
    world.stack.put(stack, bytes(0x1000))
    world.words(0, 0, 0, 0, CALLER, at=stack)
    found = world.walk(BODY, rsp=stack)
    assert found.frames[1] == (CALLER, stack + 0x28)


def test_version_2_epilog_descriptions_are_passed_over():
    described = slots(code(5, Op.EPILOG, 1), code(0, Op.EPILOG), code(4, Op.ALLOC_SMALL, 3))
    padded = slots(code(5, Op.EPILOG, 1), 0, code(4, Op.ALLOC_SMALL, 3))
    alone = slots(code(5, Op.EPILOG, 1), code(4, Op.ALLOC_SMALL, 3))
    for codes in (described, padded, alone):
        found = parse_unwind_info(info(codes, version=2))
        assert found.codes == (Code(4, Op.ALLOC_SMALL, 3, 0x20),)


EPILOGS = [
    (b"\x48\x83\xc4\x20\x5d\x5b\xc3", [*[0] * 4, 1, 2], 0x38),  # add rsp, pops, ret
    (b"\x48\x81\xc4\x20\x00\x00\x00\xc3", [0] * 4, 0x28),
    (b"\x5d\x41\x5c\xc3", [1, 2], 0x18),
    (b"\xc3", [], 8),
    (b"\xf3\xc3", [], 8),
    (b"\xc2\x08\x00", [], 8),
    (b"\x5b\xff\x25\x00\x00\x00\x00", [1], 0x10),  # jmp [import]
    (b"\x5b\x48\xff\xe0", [1], 0x10),  # jmp rax
    (b"\x5b\xe9\x00\x10\x00\x00", [1], 0x10),  # jmp out of the function
    (b"\x5b\xeb\x7d", [1], 0x10),
]


@pytest.mark.parametrize(("epilog", "words", "distance"), EPILOGS)
def test_epilogs(epilog, words, distance):
    code_bytes = bytearray(b"\x90" * 0x1000)
    code_bytes[0x80 : 0x80 + len(epilog)] = epilog
    data = info(slots(code(4, Op.ALLOC_LARGE, 0), 0x200))
    world = World(FUNCTION, unwind_data={0x3000: data}, code_bytes=bytes(code_bytes))
    assert caller(world, *words, CALLER) == (CALLER, STACK + distance)


def test_epilog_by_the_frame_register():
    code_bytes = bytearray(b"\x90" * 0x1000)
    code_bytes[0x80:0x87] = b"\x48\x8d\x65\x10\x5d\xc3\x90"  # lea rsp, [rbp+0x10]
    data = info(slots(code(4, Op.SET_FPREG)), frame=5)
    world = World(FUNCTION, unwind_data={0x3000: data}, code_bytes=bytes(code_bytes))
    world.words(7, CALLER, at=STACK + 0x310)
    found = world.walk(rbp=STACK + 0x300)
    assert found.frames[1] == (CALLER, STACK + 0x320)


@pytest.mark.parametrize(
    "other",
    [
        b"\xcc", b"\xe9\x10\x00\x00\x00", b"\xeb\x10", b"\x48\x83\xc4\x20\x90", b"\x5b\x90",
        b"\x48\x8d\x64\x24\x20\xc3", b"\xeb\x7e\x00", b"\x48\xff\xc0",
    ],
)  # fmt: skip
def test_what_only_looks_like_an_epilog(other):
    code_bytes = bytearray(b"\x90" * 0x1000)
    code_bytes[0x80 : 0x80 + len(other)] = other
    data = info(slots(code(4, Op.ALLOC_SMALL, 3)))
    part = info(b"", flags=4, extra=struct.pack("<III", 0x1000, 0x1100, 0x3000))
    world = World(
        FUNCTION, RuntimeFunction(0x1100, 0x1110, 0x3100),
        unwind_data={0x3000: data, 0x3100: part}, code_bytes=bytes(code_bytes),
    )  # fmt: skip
    assert caller(world, 0, 0, 0, 0, CALLER) == (CALLER, STACK + 0x28)


# -- ends


def test_ends():
    world = World(FUNCTION, unwind_data={0x3000: info(slots(code(4, Op.ALLOC_SMALL, 0)))})

    def end(*words, **registers):
        world.words(*words)
        return world.walk(**registers)

    assert end(0, 0).end is StackEnd.COMPLETE
    assert end(0, 0x7FF612345678).end is StackEnd.USER_MODE
    assert end(0, 0x1234567812345678).end is StackEnd.IMPLAUSIBLE
    assert end(0, 0, rsp=STACK + 4).end is StackEnd.IMPLAUSIBLE
    assert end(0, 0, rsp=0x1000).end is StackEnd.IMPLAUSIBLE
    assert end(0, 0, rsp=STACK + 0x2000).end is StackEnd.UNREADABLE
    foreign = end(0, 0xFFFFF80099999999)
    assert foreign.end is StackEnd.NO_UNWIND_DATA
    assert foreign.frames[1][0] == 0xFFFFF80099999999
    assert end(0, BASE + 0x1900).end is StackEnd.NO_UNWIND_DATA  # a caller is no leaf
    assert len(end(0, CALLER, 0, CALLER, 0, CALLER, depth=2).frames) == 2
    assert end(0, CALLER, depth=1).end is StackEnd.DEPTH
    assert world.walk(depth=0).frames == ()


def test_no_progress_is_noticed():
    data = info(slots(code(0, Op.PUSH_MACHFRAME)))
    world = World(FUNCTION, unwind_data={0x3000: data})
    world.words(BODY, 0x10, 0x246, STACK, 0x18)
    assert world.walk().end is StackEnd.IMPLAUSIBLE


def test_leaf_function_needs_no_data():
    world = World(FUNCTION, unwind_data={0x3000: info(slots(code(4, Op.ALLOC_SMALL, 0)))})
    world.words(CALLER, 0, 0)
    assert [ip for ip, _ in world.walk(BASE + 0x1900).frames] == [BASE + 0x1900, CALLER]


def test_call_as_last_instruction():
    """The return address is the next function's first byte; its caller is still found."""
    world = World(
        FUNCTION, RuntimeFunction(0x1100, 0x1200, 0x3100), RuntimeFunction(0x1200, 0x1300, 0x3100),
        unwind_data={
            0x3000: info(slots(code(4, Op.ALLOC_SMALL, 0))),
            0x3100: info(slots(code(4, Op.ALLOC_SMALL, 1))),
        },
    )  # fmt: skip
    world.words(0, BASE + 0x1200, 0, 0, CALLER)
    assert world.walk().frames[2] == (CALLER, STACK + 0x28)


@pytest.mark.parametrize(
    "bad",
    [
        info(b"", version=3), info(b"", version=0), info(slots(code(0, 11))),
        info(slots(code(4, Op.ALLOC_LARGE, 1), 1)),
    ],
)  # fmt: skip
def test_damaged_data_ends_the_walk(bad):
    world = World(FUNCTION, unwind_data={0x3000: bad})
    assert caller(world, CALLER) is StackEnd.NO_UNWIND_DATA


def test_damaged_data_is_refused():
    for bad in (b"", b"\x01\x00\x05\x00", b"\x21\x00\x00\x00"):
        with pytest.raises(UnwindDataError):
            parse_unwind_info(bad)


def test_paged_out_unwind_data_ends_the_walk():
    world = World(FUNCTION, unwind_data={0x3000: info(b"")})
    world.memory.holes.add((BASE + 0x3000) >> 12)
    assert caller(world, CALLER) is StackEnd.NO_UNWIND_DATA
    world.memory.holes = {(BASE + 0x4000) >> 12}
    world.table = FunctionTable(world.memory, BASE, 0x8000, 0x4000, 12)
    assert caller(world, CALLER) is StackEnd.NO_UNWIND_DATA
    unknown = FunctionTable(world.memory, BASE, 0x8000, 0, 0, known=False)
    with pytest.raises(MemoryUnreadable):
        unknown.find(0x1000)


def test_size_of_unwind_info():
    assert unwind_info_size(info(slots(1))[:4]) == 8
    chained = info(slots(1, 2), flags=4, extra=bytes(12))
    assert unwind_info_size(chained[:4]) == len(chained)


# -- the table


def big_table(count, step=0x40):
    rows = [
        (0x1000 + index * step, 0x1000 + index * step + step - 8, 0x10) for index in range(count)
    ]
    memory = FakeMemory()
    memory.put(BASE, b"".join(struct.pack("<III", *row) for row in rows))
    size = 0x1000 + count * step
    return memory, FunctionTable(CachedMemory(memory).constant, BASE, size, 0, 0), rows, size


def test_search_in_a_table_as_large_as_the_kernels():
    memory, _, rows, size = big_table(40000)
    table = FunctionTable(memory, BASE - 0x10, size, 0x10, 12 * len(rows))
    costs = []
    for index in range(0, 40000, 997):
        memory.reads.clear()
        begin, end, _ = rows[index]
        assert table.find(begin).begin == begin
        assert table.find(end - 1).begin == begin
        assert table.find(end) is None  # between two functions
        costs.append(len(memory.reads))
    assert max(costs) <= 3
    assert all(size <= 768 for _, size in memory.reads)
    assert table.find(0xFFF) is None
    assert table.find(size + 1) is None


def test_search_in_an_uneven_table_is_bounded():
    memory = FakeMemory()
    rows = [(0x1000 + index, 0x1001 + index, 0x10) for index in range(20000)]
    rows += [
        (0x10000000 + 0x1000 * index, 0x10000800 + 0x1000 * index, 0x10) for index in range(64)
    ]
    memory.put(BASE, b"".join(struct.pack("<III", *row) for row in rows))
    table = FunctionTable(memory, BASE - 0x10, 0x11000000, 0x10, 12 * len(rows))
    for begin, _, _ in rows[::701] + rows[-10:]:
        assert table.find(begin).begin == begin
    assert len(memory.reads) < 200


# -- stack memory


def test_stack_is_asked_for_only_where_it_runs_out():
    asked = []

    def fetch(address, size):
        asked.append((address, size))
        return bytes(0x40) if address < STACK + 0x200 else b""

    memory = StackMemory(STACK, bytes(0x100), fetch, 0x80)
    memory.read(STACK + 0xF8, 8)
    assert (asked, memory.used) == ([], 0x100)
    memory.read(STACK + 0x100, 8)
    memory.read(STACK + 0x138, 8)
    assert (asked, memory.used) == ([(STACK + 0x100, 0x80)], 0x140)
    with pytest.raises(MemoryUnreadable):
        memory.read(STACK + 0x200, 8)
    memory.read(STACK - 0x100000, 8)
    assert memory.used == 0x140
