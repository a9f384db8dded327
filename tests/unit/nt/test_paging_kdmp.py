"""kdmp-parser, an independent reader, sees the same virtual memory in a practice dump."""

from __future__ import annotations

import random

import pytest
from paging_ram import Ram

from kdleak.dump.file import open_dump
from kdleak.dump.kind import DumpKind
from kdleak.dump.writer import WriterHeader, write_dump
from kdleak.nt.kdbg import EncodingKeys, decode_debugger_data, find_debugger_data
from kdleak.nt.space.kernel_space import choose_space
from kdleak.nt.space.paging import PagingMode
from kdleak.nt.space.virtual import VirtualMemory
from kdleak.practice.crash import DataBlock, dump_machine, run_until_crash
from kdleak.practice.machine import PracticeMachine

kdmp_parser = pytest.importorskip("kdmp_parser")

TICKS = 40


@pytest.fixture(scope="module", params=[DumpKind.FULL, DumpKind.BITMAP_FULL])
def crashed(request, tmp_path_factory):
    """A dump, as we and as they open it, and its machine."""
    path = tmp_path_factory.mktemp("paging") / "MEMORY.DMP"
    with PracticeMachine(memory=64 << 20) as machine:
        dump_machine(machine, run_until_crash(machine, TICKS), path, kind=request.param)
        with open_dump(path) as dump:
            memory = choose_space(dump)
            yield memory, kdmp_parser.KernelDumpParser(path), machine
            memory.close()


def addresses(memory):
    """Thousands: mapped, beside what is mapped, in tables, and nowhere."""
    rng = random.Random(7)
    mapped = [
        at for batch in memory.batches(*memory.kernel_half) for at in batch.addresses.tolist()
    ]
    assert len(mapped) > 3000
    yield from rng.sample(mapped, 2500)
    for at in rng.sample(mapped, 1500):
        yield at + rng.choice([-0x1000, 0x1000, 0x200000, 1 << 30, 1 << 39]) & (1 << 64) - 1
    for _ in range(1000):
        yield 0xFFFF8000_00000000 | rng.getrandbits(47)
        yield rng.getrandbits(47)


def test_translations_and_pages_are_the_same(crashed):
    memory, theirs, _ = crashed
    assert memory.mode is PagingMode.X64
    assert memory.root == theirs.directory_table_base & ~0xFFF
    present = absent = 0
    for start in addresses(memory):
        address = start & ~0xFFF | 0x123
        ours = memory.translate(address)
        assert ours == theirs.translate_virtual(address), hex(address)
        page = memory.page(address)
        their_page = theirs.read_virtual_page(address & ~0xFFF)
        if page is None:
            absent += 1
            assert their_page is None
        else:
            present += 1
            assert bytes(page) == bytes(their_page)
    assert present > 2500
    assert absent > 2000


def test_bulk_is_page_by_page(crashed):
    memory, _, machine = crashed
    start, end = memory.kernel_half
    count = 0
    for batch in memory.batches(start, end, 100):
        for address, row in zip(batch.addresses.tolist(), batch.data, strict=True):
            assert row.tobytes() == bytes(memory.page(address))
            assert machine.space.translate(address) == memory.translate(address)
            count += 1
    # Nothing was left out: what lies in the ranges of the images is all there.
    for image in machine.images:
        ours = sum(len(b.addresses) for b in memory.batches(image.base, image.base + image.size))
        slow = sum(
            memory.page(at) is not None for at in range(image.base, image.base + image.size, 0x1000)
        )
        assert ours == slow > 0
    assert memory.remarks == []
    assert count > 3000


def test_large_pages_are_the_same(tmp_path):
    rng = random.Random(11)
    ram = Ram(range(0x100, 0x180), end=1 << 20)
    pdpt, directories, tables = 0x101, range(0x102, 0x106), range(0x106, 0x116)
    ram.q(0x100000, 0x1F0, pdpt << 12 | 0x63)
    addresses = []
    for number, directory in enumerate(directories):
        ram.q(pdpt << 12, number, directory << 12 | 0x63)
        for index, table in enumerate(tables[4 * number : 4 * number + 4]):
            ram.q(directory << 12, 3 * index, table << 12 | 0x63)
            for _ in range(50):
                frame = rng.randrange(0x100, 0x1A0)
                ram.q(table << 12, rng.randrange(512), frame << 12 | rng.choice([0x63, 0x63, 0]))
            ram.q(directory << 12, 3 * index + 1, rng.choice([0, 0x20_0000, 0x4020_0000]) | 0xE3)
    ram.q(pdpt << 12, 5, 0xE3)
    ram.q(pdpt << 12, 6, 0x4000_00E3)
    ram.stamp()
    for _ in range(4000):
        page = rng.choice([rng.randrange(4) << 18, 5 << 18, 6 << 18, 7 << 18])
        page += rng.choice([rng.randrange(12 * 512), rng.randrange(0x100, 0x180)])
        addresses.append(0xFFFFF800_00000000 + page * 0x1000 + rng.randrange(0x1000))
    path = tmp_path / "large.dmp"
    header = WriterHeader(19045, 0x100000, 0, 0, 0, ((0x100, 0x80),))
    write_dump(path, DumpKind.FULL, header, [(f, bytes(ram.page(f))) for f in sorted(ram.order)])
    theirs = kdmp_parser.KernelDumpParser(path)
    with open_dump(path) as dump:
        memory = VirtualMemory(dump, PagingMode.X64, dump.header.directory_table_base, 8)
        present = 0
        for address in addresses:
            assert memory.translate(address) == theirs.translate_virtual(address), hex(address)
            page = memory.page(address)
            their_page = theirs.read_virtual_page(address & ~0xFFF)
            assert (page and bytes(page)) == (their_page and bytes(their_page))
            present += page is not None
        assert 500 < present < 3500
        memory.close()


def test_debugger_data_of_a_dump_plain_and_encoded(tmp_path):
    path = tmp_path / "encoded.dmp"
    with PracticeMachine(memory=64 << 20) as machine:
        crash = run_until_crash(machine, TICKS)
        dump_machine(machine, crash, tmp_path / "plain.dmp", kind=DumpKind.FULL)
        with open_dump(tmp_path / "plain.dmp") as dump:
            memory = choose_space(dump)
            plain = find_debugger_data(memory, dump.header.debugger_data)
            memory.close()
        dump_machine(
            machine, crash, path, kind=DumpKind.FULL, data_block=DataBlock.ENCODED, force=True
        )
        keys = EncodingKeys(
            machine.read_u64("KiWaitNever"),
            machine.read_u64("KiWaitAlways"),
            machine.symbol("KdpDataBlockEncoded"),
        )
        with open_dump(path) as dump:
            memory = choose_space(dump)
            assert find_debugger_data(memory, dump.header.debugger_data) is None
            found = decode_debugger_data(memory, dump.header.debugger_data, keys)
            memory.close()
        assert plain.field("KernBase") == machine.kernel.base
        assert found == plain
