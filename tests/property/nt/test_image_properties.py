"""Damaged images, lists and unwind data: bounded, and never an error of Python's own."""

from __future__ import annotations

import contextlib
import struct
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from image_builder import BASE, image, loaded, module_list
from nt_fakes import FakeMemory

import kdleak.practice.images as practice_images
from kdleak.model import Module, StackEnd
from kdleak.nt.kdbg import find_debugger_data
from kdleak.nt.memory import CachedMemory
from kdleak.nt.modules import MAXIMUM_MODULES, read_module_list
from kdleak.nt.names import undecorated
from kdleak.nt.pdb import PdbUnreadableError, read_pdb
from kdleak.nt.pe import read_exports, read_image, read_pdb_identity
from kdleak.nt.symbol_path import parse_symbol_path
from kdleak.nt.symbols import SymbolLoader, Symbols
from kdleak.nt.unwind import REGISTERS, unwind
from kdleak.nt.unwind_data import FunctionTable, UnwindDataError, parse_unwind_info

HEAD = 0xFFFFF80000200000
STACK = 0xFFFFFA8000001000
WORDS = st.integers(0, (1 << 64) - 1)
MUTATIONS = st.lists(st.tuples(st.integers(0, 0x27FF), st.integers(0, 255)), max_size=40)
GOOD = image(
    exports={f"Export{n}": 0x1000 + 0x10 * n for n in range(20)},
    functions=[(0x1000 + 0x40 * n, 0x1030 + 0x40 * n, 0x3000) for n in range(30)],
    unwind={0x3000: b"\x01\x04\x01\x00\x04\x32\x00\x00"},
)


def mutated(mutations):
    raw = bytearray(GOOD)
    for at, value in mutations:
        raw[at] = value
    return bytes(raw)


@settings(max_examples=200, deadline=None)
@given(MUTATIONS)
def test_any_image(mutations):
    memory = loaded(mutated(mutations))
    found = read_image(memory, BASE)
    if found is not None:
        read_pdb_identity(memory, found)
        for rva, name in read_exports(memory, found):
            assert 0 < rva < found.size
            assert name
    symbols = Symbols(SymbolLoader(memory, (), 8))
    symbols.set_modules((Module("x", BASE, 0x8000, "x.sys"),))
    assert symbols.nearest(BASE + 0x1234).module == "x"
    assert len(memory.reads) < 500


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 0x6F), st.integers(0, 255)), max_size=30)
)
def test_any_module_list(mutations):
    memory = FakeMemory()
    entries = module_list(
        memory, HEAD, [(BASE + 0x10000 * n, 0x8000, f"module{n}.sys") for n in range(6)]
    )
    for index, at, value in mutations:
        memory.put(entries[index] + at, bytes([value]))
    modules, _ = read_module_list(memory, HEAD, 8, BASE)
    names = [module.name.lower() for module in modules]
    assert len(set(names)) == len(names)
    assert all(names)
    assert len(memory.reads) < 100


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 63), min_size=64, max_size=64), st.sampled_from([4, 8]))
def test_links_in_any_order(links, width):
    memory = FakeMemory()
    base = HEAD if width == 8 else 0xFFFFFFFF80200000
    raw = bytearray(64 * 0x100)
    mask = (1 << 8 * width) - 1
    for index, to in enumerate(links):
        raw[index * 0x100 : index * 0x100 + width] = (base + to * 0x100 & mask).to_bytes(
            width, "little"
        )
    memory.put(base, bytes(raw))
    read_module_list(memory, base, width)
    assert len(memory.reads) <= MAXIMUM_MODULES
    find_debugger_data(memory, base)


@given(st.binary(max_size=600))
def test_any_unwind_info(raw):
    try:
        found = parse_unwind_info(raw)
    except UnwindDataError:
        return
    assert len(found.codes) <= 255
    assert all(0 <= code.offset < 256 for code in found.codes)


@settings(max_examples=300, deadline=None)
@given(
    st.binary(min_size=1, max_size=64),
    st.lists(st.tuples(st.integers(0, 0x60), st.integers(0, 0x60), st.integers(0, 0x40)),
             min_size=1, max_size=30),
    st.binary(max_size=64),
    st.dictionaries(st.sampled_from(REGISTERS), WORDS),
    st.lists(
        st.one_of(WORDS, st.integers(BASE, BASE + 0x2000), st.integers(STACK, STACK + 0x800)),
        max_size=200,
    ),
    st.integers(0, 0x60),
)  # fmt: skip
def test_walk_over_anything_is_bounded(code, rows, infos, registers, words, at):
    raw = bytearray(0x2000)
    raw[: len(code)] = code
    table = b"".join(struct.pack("<III", *row) for row in rows)
    raw[0x1000 : 0x1000 + len(table)] = table
    raw[0x20 : 0x20 + len(infos)] = infos
    memory = FakeMemory()
    memory.put(BASE, bytes(raw))
    functions = FunctionTable(CachedMemory(memory).constant, BASE, 0x2000, 0x1000, len(table))
    stack = FakeMemory()
    stack.put(STACK, struct.pack(f"<{len(words)}Q", *words))
    registers = {"rsp": STACK, **registers, "rip": BASE + at}
    found = unwind(
        registers, lambda a: functions if BASE <= a < BASE + 0x2000 else None, stack, memory, 40
    )
    assert 1 <= len(found.frames) <= 40
    assert len(set(found.frames)) == len(found.frames)
    assert isinstance(found.end, StackEnd)
    # A machine frame may lead anywhere, so no more than: reads are bounded by the frames.
    assert len(stack.reads) <= 40 * 300


PDB = (Path(practice_images.__file__).parent / "leakydrv.pdb").read_bytes()


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, len(PDB) - 4), st.integers(0, 0xFFFFFFFF)), min_size=1, max_size=20
    ),
    st.one_of(st.just(len(PDB)), st.integers(0, len(PDB))),
)
def test_any_pdb(mutations, length):
    raw = bytearray(PDB)
    for at, value in mutations:
        struct.pack_into("<I", raw, at, value)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.pdb")
        path.write_bytes(raw[:length])
        with contextlib.suppress(PdbUnreadableError):
            assert all(symbol.rva > 0 for symbol in read_pdb(path, 8).symbols)


@given(st.text(max_size=200))
def test_any_symbol_path(text):
    for place in parse_symbol_path(text):
        assert place.location == place.location.strip()


@given(st.text(max_size=80), st.sampled_from([4, 8]))
def test_any_name(name, width):
    assert isinstance(undecorated(name, width), str)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 0x3FFF), st.integers(1, 0x600)), max_size=30),
    st.sets(st.integers(0, 3)),
    st.sampled_from([0x40, 0x100, 0x1000]),
)
def test_cache_answers_as_the_target_would(reads, holes, line):
    from kdleak.errors import MemoryUnreadable

    memory = FakeMemory()
    memory.put(BASE, bytes((n * 7 + n // 256) & 0xFF for n in range(0x4000)))
    memory.holes = {(BASE >> 12) + page for page in holes}
    cache = CachedMemory(memory, line=line, limit=0x1000)

    def answer(reader, address, size):
        try:
            return reader(address, size)
        except MemoryUnreadable:
            return None

    for offset, size in reads:
        wanted = answer(memory.peek, BASE + offset, size)
        assert answer(cache.read, BASE + offset, size) == wanted
        assert answer(cache.constant.read, BASE + offset, size) == wanted
