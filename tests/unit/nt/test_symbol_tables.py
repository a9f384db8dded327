"""Symbol paths, PDB files, exports, and names by address."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from image_builder import BASE, image, loaded

from kdleak.errors import SymbolNotFound
from kdleak.model import Module, SymbolKind
from kdleak.nt import pdb as pdb_module
from kdleak.nt.names import undecorated
from kdleak.nt.pdb import PdbSymbol, PdbUnreadableError, read_pdb
from kdleak.nt.pe import PdbIdentity, read_image, read_pdb_identity
from kdleak.nt.symbol_path import Place, PlaceKind, find_pdb_files, parse_symbol_path
from kdleak.nt.symbols import SymbolLoader, Symbols, build_table

PRACTICE = Path(__file__).parents[3] / "kdleak" / "practice" / "images"
FOLDER, STORE, WEB = PlaceKind.FOLDER, PlaceKind.STORE, PlaceKind.WEB


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("", []),
        ("C:\\Symbols", [(FOLDER, "C:\\Symbols")]),
        ("/a;;/b", [(FOLDER, "/a"), (FOLDER, "/b")]),
        ('"/with blank" ; /b', [(FOLDER, "/with blank"), (FOLDER, "/b")]),
        (
            "SRV*C:\\cache*https://msdl.microsoft.com/download/symbols",
            [(STORE, "C:\\cache"), (WEB, "https://msdl.microsoft.com/download/symbols")],
        ),
        ("srv**http://x/y", [(WEB, "http://x/y")]),
        ("srv*", []),
        ("cache*/c;srv*/d*/e", [(STORE, "/c"), (STORE, "/d"), (STORE, "/e")]),
        ("symsrv*symsrv.dll*/d*https://x", [(STORE, "/d"), (WEB, "https://x")]),
        ("odd*name", [(FOLDER, "odd*name")]),
        ("/a;/a", [(FOLDER, "/a")]),
        ("https://x/plain", [(WEB, "https://x/plain")]),
    ],
)
def test_symbol_path(text, places):
    assert parse_symbol_path(text) == tuple(Place(*place) for place in places)


IDENTITY = PdbIdentity("0123456789ABCDEF0123456789ABCDEF", 2, "d:\\x\\Driver.pdb")


@pytest.mark.parametrize(
    ("where", "kind", "keyed"),
    [
        ("Driver.pdb/0123456789ABCDEF0123456789ABCDEF2/Driver.pdb", STORE, True),
        ("driver.pdb/0123456789abcdef0123456789abcdef2/DRIVER.PDB", STORE, True),
        ("Dr/driver.pdb/0123456789ABCDEF0123456789ABCDEF2/driver.pdb", STORE, True),
        ("driver.pdb/0123456789ABCDEF0123456789ABCDEF2/driver.pdb", FOLDER, True),
        ("symbols/sys/driver.pdb", FOLDER, False),
        ("sys/driver.pdb", FOLDER, False),
        ("driver.pdb", FOLDER, False),
    ],
)
def test_where_a_pdb_is_looked_for(tmp_path, where, kind, keyed):
    path = tmp_path / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    found = list(find_pdb_files((Place(kind, str(tmp_path)),), IDENTITY, "sys"))
    assert [(item.path, item.keyed) for item in found] == [(path, keyed)]


def test_flat_files_are_not_in_stores_and_odd_places_are_passed_over(tmp_path):
    (tmp_path / "driver.pdb").write_bytes(b"x")
    places = (Place(STORE, str(tmp_path)), Place(FOLDER, str(tmp_path / "nowhere")),
              Place(FOLDER, str(tmp_path / "driver.pdb")), Place(WEB, "https://x"))  # fmt: skip
    assert list(find_pdb_files(places, IDENTITY, "sys")) == []
    dotdot = PdbIdentity("0" * 32, 1, "..")
    assert list(find_pdb_files((Place(FOLDER, str(tmp_path)),), dotdot, "sys")) == []


def practice(name: str, file_name: str, base: int = BASE):
    import struct

    raw = (PRACTICE / file_name).read_bytes()
    header = struct.unpack_from("<I", raw, 0x3C)[0]
    count, optional = struct.unpack_from("<6xH12xH", raw, header)
    size, headers = struct.unpack_from("<II", raw, header + 24 + 0x38)
    data = bytearray(size)
    data[:headers] = raw[:headers]
    for index in range(count):
        at = header + 24 + optional + 40 * index
        virtual, rva, length, offset = struct.unpack_from("<IIII", raw, at + 8)
        length = min(length, virtual)
        data[rva : rva + length] = raw[offset : offset + length]
    return loaded(bytes(data), base), Module(name, base, size, file_name)


def symbols_of(memory, module, path):
    found = Symbols(SymbolLoader(memory, parse_symbol_path(path), 8))
    found.set_modules((module,))
    return found


def test_names_of_a_pdb():
    memory, module = practice("nt", "ntkrnlmp.exe")
    symbols = symbols_of(memory, module, str(PRACTICE))
    start = symbols.address("NT!exallocatePool2")
    found = symbols.nearest(start + 3)
    assert (found.module, found.name, found.offset, found.kind) == (
        "nt", "ExAllocatePool2", 3, SymbolKind.PDB,
    )  # fmt: skip
    assert symbols.address("PoolHitTag") == symbols.address("nt!PoolHitTag")
    assert symbols.remarks == []
    with pytest.raises(SymbolNotFound, match=r"not in .*ntkrnlmp\.pdb"):
        symbols.address("nt!NoSuchThing")


def test_private_functions_are_named_too():
    memory, module = practice("leakydrv", "leakydrv.sys")
    symbols = symbols_of(memory, module, str(PRACTICE))
    assert symbols.nearest(symbols.address("leakydrv!CloneHeader")).name == "CloneHeader"


def test_exports_where_there_is_no_pdb():
    memory, module = practice("nt", "ntkrnlmp.exe")
    symbols = symbols_of(memory, module, "")
    found = symbols.nearest(symbols.address("nt!ExAllocatePool2") + 1)
    assert (found.name, found.kind) == ("ExAllocatePool2", SymbolKind.EXPORT)
    assert any("no symbol path" in remark for remark in symbols.remarks)
    with pytest.raises(SymbolNotFound, match="no symbol path was given"):
        symbols.address("nt!PoolHitTag")


def test_module_without_any_names():
    memory = loaded(image(pdb=""))
    module = Module("x", BASE, 0x8000, "x.sys")
    symbols = symbols_of(memory, module, "https://symbols")
    assert str(symbols.nearest(BASE + 0x1234)) == "x+0x1234"
    assert symbols.nearest(BASE - 1).kind is SymbolKind.NONE
    assert any("which PDB" in remark for remark in symbols.remarks)


def test_pdb_of_another_build_is_never_used(tmp_path):
    memory, module = practice("nt", "ntkrnlmp.exe")
    identity = read_pdb_identity(memory, read_image(memory, BASE))
    shutil.copy(PRACTICE / "26100" / "ntkrnlmp.pdb", tmp_path / "ntkrnlmp.pdb")
    keyed = tmp_path / "ntkrnlmp.pdb.d" / identity.key
    keyed.mkdir(parents=True)
    symbols = symbols_of(memory, module, f"{tmp_path};srv*{tmp_path}*https://x.test/y")
    assert symbols.nearest(BASE + 0x1100).kind is SymbolKind.EXPORT
    assert any("another build" in remark for remark in symbols.remarks)


def test_damaged_and_empty_pdbs_lead_to_the_exports(tmp_path):
    memory, module = practice("nt", "ntkrnlmp.exe")
    good = (PRACTICE / "ntkrnlmp.pdb").read_bytes()
    for damaged in (b"", b"MZ", good[:3000], good[:4096] + bytes(len(good) - 4096)):
        (tmp_path / "ntkrnlmp.pdb").write_bytes(damaged)
        symbols = symbols_of(memory, module, str(tmp_path))
        assert symbols.nearest(BASE + 0x1100).kind is SymbolKind.EXPORT
        assert any("cannot be used" in remark for remark in symbols.remarks)


def test_web_stores_are_named_as_not_asked():
    memory, module = practice("nt", "ntkrnlmp.exe")
    symbols = symbols_of(memory, module, "srv*/nowhere*https://symbols.test/x")
    symbols.nearest(BASE + 0x1100)
    assert any("https://symbols.test/x" in remark and "/nowhere" in remark
               for remark in symbols.remarks)  # fmt: skip


def test_missing_package_is_a_remark(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "purepdb", None)
    memory, module = practice("nt", "ntkrnlmp.exe")
    symbols = symbols_of(memory, module, str(PRACTICE))
    assert symbols.nearest(BASE + 0x1100).kind is SymbolKind.EXPORT
    assert any("purepdb is not installed" in remark for remark in symbols.remarks)


def test_pdb_reader_limits(monkeypatch, tmp_path):
    monkeypatch.setattr(pdb_module, "_MAXIMUM_SYMBOLS", 10)
    assert len(read_pdb(PRACTICE / "ntkrnlmp.pdb", 8).symbols) == 10
    monkeypatch.setattr(pdb_module, "_MAXIMUM_FILE", 10)
    with pytest.raises(PdbUnreadableError, match="larger"):
        read_pdb(PRACTICE / "ntkrnlmp.pdb", 8)
    with pytest.raises(PdbUnreadableError):
        read_pdb(tmp_path / "none.pdb", 8)


def test_names_are_not_read_where_the_identity_differs():
    assert read_pdb(PRACTICE / "ntkrnlmp.pdb", 8, ("0" * 32, 1)).symbols == ()


@pytest.mark.parametrize(
    ("name", "width", "shown"),
    [
        ("ExAllocatePool2", 8, "ExAllocatePool2"),
        ("?Read@Queue@io@@QEAAHXZ", 8, "io::Queue::Read"),
        ("?Free@@YAXXZ", 8, "Free"),
        ("?$Vector@H@@", 8, "?$Vector@H@@"),
        ("_PoolHitTag", 4, "PoolHitTag"),
        ("_ExAllocatePoolWithTag@12", 4, "ExAllocatePoolWithTag"),
        ("@ExfInterlockedPopEntryList@8", 4, "ExfInterlockedPopEntryList"),
        ("_DllMain", 8, "_DllMain"),
    ],
)
def test_undecorated(name, width, shown):
    assert undecorated(name, width) == shown


def test_choice_among_aliases():
    def symbol(name, rva=0x1000, *, function=True, private=False):
        return PdbSymbol(rva, undecorated(name, 8), function, private, name)

    def shown(*symbols):
        both = {build_table(SymbolKind.PDB, "", order).names[0]
                for order in (symbols, symbols[::-1])}  # fmt: skip
        assert len(both) == 1
        return both.pop()

    assert shown(symbol("??_C@_03x@abc@", function=False), symbol("Real")) == "Real"
    assert shown(symbol("__imp_Foo", function=False), symbol("Bar")) == "Bar"
    assert shown(symbol("LongerName"), symbol("Short")) == "Short"
    assert shown(symbol("aaa"), symbol("zzzzzz", private=True)) == "zzzzzz"
    assert shown(symbol("bbb"), symbol("aaa")) == "aaa"
    assert shown(symbol("data", function=False), symbol("function")) == "function"
    table = build_table(SymbolKind.PDB, "", [symbol("A"), symbol("B")])
    assert table.by_name == {"a": 0x1000, "b": 0x1000}
    assert table.nearest(0xFFF) is None


def test_new_module_list_keeps_tables_of_what_stays():
    memory, module = practice("nt", "ntkrnlmp.exe")
    symbols = symbols_of(memory, module, str(PRACTICE))
    symbols.address("nt!PoolHitTag")
    reads = len(memory.reads)
    symbols.set_modules((module, Module("x", BASE + 0x10000000, 0x1000, "x.sys")))
    symbols.address("nt!PoolHitTag")
    assert len(memory.reads) == reads
    symbols.set_modules((Module("other", BASE, module.size, "other.sys"),))
    assert not symbols.is_loaded(module)
    symbols.forget_tables()
    assert symbols.remarks == []
