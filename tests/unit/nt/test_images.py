"""PE images in memory, the module list, the debugger data block."""

from __future__ import annotations

import struct

import pytest
from image_builder import BASE, image, loaded, module_list
from nt_fakes import FakeMemory

from kdleak.nt.kdbg import find_debugger_data
from kdleak.nt.modules import read_module_list, windbg_name
from kdleak.nt.pe import PdbIdentity, parse_rsds, read_exports, read_image, read_pdb_identity

HEAD = 0xFFFFF80000200000


@pytest.mark.parametrize("plus", [True, False])
def test_headers(plus):
    found = read_image(loaded(image(plus=plus, functions=[(0x1000, 0x1010, 0x3000)])), BASE)
    assert found.size == 0x8000
    assert found.timestamp == 0x5EADBEEF
    assert found.pointer_size == (8 if plus else 4)
    assert found.exception_directory == (0x4000, 12)
    text, data = found.sections
    assert (text.name, text.rva, text.executable, text.writable) == (".text", 0x1000, True, False)
    assert data.writable


@pytest.mark.parametrize(
    ("at", "data"),
    [
        (0, b"ZM"), (0x3C, struct.pack("<I", 0x7FFFFFFF)), (0x80, b"NE\0\0"),
        (0x98, b"\x07\x01"), (0x98 + 0x38, bytes(4)), (0x98 + 0x38, b"\xff" * 4),
    ],
)  # fmt: skip
def test_no_image(at, data):
    raw = bytearray(image())
    raw[at : at + len(data)] = data
    assert read_image(loaded(bytes(raw)), BASE) is None


def test_absent_image():
    assert read_image(FakeMemory(), BASE) is None


def test_directory_outside_the_image_is_none():
    raw = bytearray(image(exports={"a": 0x1000}))
    struct.pack_into("<I", raw, 0x98 + 0x70 + 4, 0x10000)
    memory = loaded(bytes(raw))
    found = read_image(memory, BASE)
    assert found.directory(0) == (0, 0)
    assert found.directory(99) == (0, 0)
    assert read_exports(memory, found) == []


def test_pdb_identity():
    memory = loaded(image(pdb="d:\\build\\driver.pdb", age=0x1B))
    found = read_pdb_identity(memory, read_image(memory, BASE))
    assert found.file_name == "driver.pdb"
    assert found.key == "0123456789ABCDEF0123456789ABCDEF1B"
    assert read_pdb_identity(loaded(image(pdb="")), read_image(memory, BASE)) is None
    memory.holes.add((BASE + 0x1000) >> 12)
    assert read_pdb_identity(memory, read_image(memory, BASE)) is None


def test_rsds_record():
    assert parse_rsds(b"NB10" + bytes(40)) is None
    assert parse_rsds(b"RSDS") is None
    assert parse_rsds(b"RSDS" + bytes(20) + b"x.pdb\0rest") == PdbIdentity("0" * 32, 0, "x.pdb")


def test_exports_without_forwarders():
    exports = {"ExAllocatePool2": 0x1100, "ExFreePool": 0x1200, "Forwarded": 0x2030}
    memory = loaded(image(exports=exports))
    found = read_exports(memory, read_image(memory, BASE))
    assert sorted(found) == [(0x1100, "ExAllocatePool2"), (0x1200, "ExFreePool")]


def test_exports_paged_out():
    memory = loaded(image(exports={"a": 0x1000}))
    memory.holes.add((BASE + 0x2000) >> 12)
    assert read_exports(memory, read_image(memory, BASE)) == []


@pytest.mark.parametrize("width", [8, 4])
def test_module_list(width):
    memory = FakeMemory()
    head = HEAD if width == 8 else 0xFFFFFFFF80200000
    first = BASE if width == 8 else 0xFFFFFFFF80400000
    module_list(memory, head, [
        (first, 0x100000, "ntoskrnl.exe"), (first + 0x200000, 0x8000, "hal.dll"),
        (first + 0x300000, 0x4000, "my-drv.v2.sys"), (first + 0x400000, 0x4000, "HAL.dll"),
    ], width)  # fmt: skip
    modules, remarks = read_module_list(memory, head, width, first)
    assert remarks == ()
    names = [module.name for module in modules]
    assert names[:3] == ["nt", "hal", "my_drv_v2"]
    assert names[3].startswith("HAL_")
    assert [module.base for module in modules][1] == first + 0x200000
    assert modules[2].file_name == "my-drv.v2.sys"
    assert read_module_list(memory, head, width)[0][0].name == "nt"


def test_module_names():
    assert windbg_name("\\SystemRoot\\System32\\drivers\\a-b c.sys") == "a_b_c"
    assert windbg_name("noext") == "noext"
    assert windbg_name(".sys") == "_sys"
    assert windbg_name("") == ""


def test_name_from_the_path_where_the_base_name_is_gone():
    memory = FakeMemory()
    entries = module_list(
        memory, HEAD, [(BASE, 0x1000, "ntoskrnl.exe"), (BASE * 2, 0x1000, "x.sys")]
    )
    memory.put(entries[1] + 0x58, bytes(2))
    module = read_module_list(memory, HEAD, 8, BASE)[0][1]
    assert (module.name, module.path) == ("x", "\\SystemRoot\\System32\\x.sys")


def test_unreadable_names_and_senseless_entries():
    memory = FakeMemory()
    entries = module_list(memory, HEAD, [(BASE, 0x1000, "a.sys"), (0, 0x1000, "b.sys"),
                                         (BASE + 0x1000, 0, "c.sys")])  # fmt: skip
    memory.put(entries[0] + 0x48, struct.pack("<HHxxxxQ", 8, 8, 0xDEAD0000))
    memory.put(entries[0] + 0x58, struct.pack("<HHxxxxQ", 0xFFFF, 8, 0xDEAD0000))
    modules, _ = read_module_list(memory, HEAD, 8, 1)
    assert [(module.name, module.file_name) for module in modules] == [("image_10000000", "")]


def test_list_that_loops_or_leads_nowhere():
    memory = FakeMemory()
    entries = module_list(memory, HEAD, [(BASE, 0x1000, "nt.exe"), (BASE * 2, 0x1000, "x.sys")])
    memory.put(entries[1], entries[0].to_bytes(8, "little"))
    modules, remarks = read_module_list(memory, HEAD, 8)
    assert len(modules) == 2
    assert "does not close" in remarks[0]
    memory.put(entries[1], (0xDEAD0000).to_bytes(8, "little"))
    modules, remarks = read_module_list(memory, HEAD, 8)
    assert len(modules) == 2
    assert "unreadable" in remarks[0]
    assert "cannot be read" in read_module_list(FakeMemory(), HEAD, 8)[1][0]


def block(memory, at, size=0x360, tag=0x4742444B):
    raw = bytearray(0x400)
    struct.pack_into("<QQII", raw, 0, HEAD, HEAD, tag, size)
    struct.pack_into("<Q", raw, 0x1B8, 0x1234)
    memory.put(at, bytes(raw))


def test_debugger_data_by_its_list_head_or_itself():
    memory = FakeMemory()
    memory.put(HEAD, struct.pack("<QQ", HEAD + 0x5000, HEAD + 0x5000) + bytes(0x20))
    block(memory, HEAD + 0x5000)
    for start in (HEAD, HEAD + 0x5000):
        found = find_debugger_data(memory, start)
        assert found.address == HEAD + 0x5000
        assert found.field("PoolTrackTable") == 0x1234
        assert found.field("MmUnloadedDrivers") == 0


def test_short_block_has_no_late_fields():
    memory = FakeMemory()
    block(memory, HEAD, size=0x210)
    assert find_debugger_data(memory, HEAD).field("KiProcessorBlock") == 0


@pytest.mark.parametrize("tag", [0, 0x12345678])
def test_no_debugger_data(tag):
    memory = FakeMemory()
    memory.put(HEAD, struct.pack("<QQ", HEAD + 0x5000, HEAD + 0x5000) + bytes(0x20))
    block(memory, HEAD + 0x5000, tag=tag)
    assert find_debugger_data(memory, HEAD) is None
    assert find_debugger_data(memory, 0) is None
    assert find_debugger_data(FakeMemory(), HEAD) is None


def test_debugger_data_list_that_never_ends():
    memory = FakeMemory()
    memory.put(HEAD, b"".join(struct.pack("<QQQ", HEAD + 0x18 * n, 0, 0) for n in range(1, 100)))
    assert find_debugger_data(memory, HEAD) is None
