"""Crashes of the practice machine, and the dumps it writes."""

from __future__ import annotations

import json
import struct
from dataclasses import replace

import pytest
from click.testing import CliRunner

from kdleak.cli.practice import command
from kdleak.dump.file import open_dump
from kdleak.dump.kind import DumpKind
from kdleak.errors import UsageError
from kdleak.practice.boot import pool_pages
from kdleak.practice.crash import DataBlock, booted, dump_machine, run_until_crash, write_crash_dump
from kdleak.practice.paging import PhysicalMemory
from kdleak.practice.workload import Workload

SMALL = Workload(population=1, busy_operations=4, tracker_rows=513, big_page_rows=256)
MEMORY = 5 << 20
MASK = (1 << 64) - 1


def boot(workload: Workload = SMALL, **options):
    values = {"seed": 5, "build": 22621, "processors": 2, "memory": MEMORY, **options}
    return booted(workload=workload, **values)


def registers(context: bytes) -> dict[str, int]:
    names = (
        "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi",
        "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rip",
    )  # fmt: skip
    return dict(zip(names, struct.unpack_from("<17Q", context, 0x78)))


def caller(machine, context: bytes) -> str:
    (address,) = struct.unpack("<Q", machine.read_virtual(registers(context)["rsp"], 8))
    module, function, _ = machine.nearest(address)
    return f"{module}!{function}"


class TestBugCheck:
    def test_by_hand(self):
        with boot() as machine:
            bug_check = run_until_crash(machine, 30)
            assert machine.ticks == 30
            assert (bug_check.code, *bug_check.parameters) == (0xE2, 0, 0, 0, 0)
            assert bug_check.processor == 0
            found = registers(bug_check.context)
            assert found["rip"] == machine.symbol("KeBugCheckEx")
            assert found["rcx"] == 0xE2
            assert caller(machine, bug_check.context) == "nt!KiProcessCrashRequest"
            assert struct.unpack_from("<I", bug_check.context, 0x30) == (0x10001F,)
            assert struct.unpack_from("<H", bug_check.context, 0x38) == (0x10,)

    def test_of_a_driver(self):
        with boot(replace(SMALL, bug_check_at_tick=20)) as machine:
            bug_check = run_until_crash(machine, 1000)
            assert (bug_check.code, *bug_check.parameters) == (0xDEADDEAD, 1, 2, 3, 4)
            found = registers(bug_check.context)
            assert [found[name] for name in ("rcx", "rdx", "r8", "r9")] == [0xDEADDEAD, 1, 2, 3]
            assert caller(machine, bug_check.context) == "leakydrv!CheckScheduledEvents"
            assert machine.ticks == 19

    @pytest.mark.parametrize(
        ("event", "code", "function"),
        [
            ("break_at_tick", 0x80000003, "nt!DbgBreakPoint"),
            ("assert_at_tick", 0xC0000420, "leakydrv!CheckScheduledEvents"),
        ],
    )
    def test_of_an_exception_nobody_handles(self, event, code, function):
        with boot(replace(SMALL, **{event: 20})) as machine:
            bug_check = run_until_crash(machine, 1000)
            assert bug_check.code == 0x1E
            assert bug_check.parameters[0] == 0xFFFFFFFF_00000000 | code
            assert "!".join(machine.nearest(bug_check.parameters[1])[:2]) == function
            assert bug_check.parameters[2:] == (0, 0)
            assert caller(machine, bug_check.context) == "nt!KiExceptionDispatch"
            # Above KiExceptionDispatch's frame lies what the processor pushed: where it was.
            at = registers(bug_check.context)["rsp"] + 8 + 0x28
            assert struct.unpack("<Q", machine.read_virtual(at, 8))[0] == bug_check.parameters[1]

    def test_an_image_load_stops_nobody(self):
        with boot(replace(SMALL, late_driver_at_tick=10)) as machine:
            assert [image.name for image in machine.loaded_images()] == ["nt", "leakydrv"]
            assert run_until_crash(machine, 30).code == 0xE2
            assert [image.name for image in machine.loaded_images()] == [
                "nt", "leakydrv", "busydrv",
            ]  # fmt: skip

    def test_registers_are_where_debuggers_look(self):
        with boot() as machine:
            bug_check = run_until_crash(machine, 5)
            blocks = machine.read_virtual(machine.symbol("KiProcessorBlock"), 16)
            first, second = struct.unpack("<2Q", blocks)
            kdbg = machine.symbol("KdDebuggerDataBlock")
            (offset,) = struct.unpack("<H", machine.read_virtual(kdbg + 0x2BC, 2))
            assert machine.read_virtual(first + offset, 0x4D0) == bug_check.context
            other = registers(machine.read_virtual(second + offset, 0x4D0))
            assert machine.nearest(other["rip"])[:2] == ("nt", "PoIdle")
            (block,) = struct.unpack("<Q", machine.read_virtual(kdbg + 0x270, 8))
            (block,) = struct.unpack("<Q", machine.read_virtual(block, 8))
            runs = struct.unpack("<I4xQQQ", machine.read_virtual(block, 32))
            frames = MEMORY // 0x1000 - 0x100
            assert runs == (1, frames, 0x100, frames)

    def test_the_ledger_is_hidden_and_still_tells_the_truth(self):
        with boot() as machine:
            assert machine.space.entry(machine.addresses.ledger)
            run_until_crash(machine, 20)
            assert not machine.space.entry(machine.addresses.ledger)
            assert any(site.tag.text == "Leak" and site.bytes for site in machine.ground_truth())


class TestDump:
    def test_same_seed_same_bytes(self, tmp_path):
        files = [tmp_path / name for name in ("a.dmp", "b.dmp")]
        for file in files:
            write_crash_dump(file, seed=3, memory=MEMORY, ticks=20, workload=SMALL)
        assert files[0].read_bytes() == files[1].read_bytes()

    def test_header(self, tmp_path):
        path = tmp_path / "x.dmp"
        made = write_crash_dump(path, seed=3, memory=MEMORY, ticks=20, workload=SMALL)
        with open_dump(path) as dump:
            header = dump.header
            assert header.context[: len(made.bug_check.context)] == made.bug_check.context
            assert header.exception_code == 0x80000003
            assert header.uptime == 21 * 100_000  # the crash came in the 21st tick
            assert header.system_time == 133_800_000_000_000_000 + 21 * 100_000
            assert header.directory_table_base == 0x100 * 0x1000
            assert header.comment == "kdleak practice: seed 3, 20 ticks"
            assert made.pages == dump.pages.pages
            assert made.size == dump.size

    def test_encoded_block_decodes(self, tmp_path):
        with boot() as machine:
            bug_check = run_until_crash(machine, 2)
            block = machine.symbol("KdDebuggerDataBlock")
            plain = machine.read_virtual(block, 0x3A0)
            never, always = machine.read_u64("KiWaitNever"), machine.read_u64("KiWaitAlways")
            dump_machine(
                machine,
                bug_check,
                tmp_path / "x.dmp",
                kind=DumpKind.BITMAP_FULL,
                data_block=DataBlock.ENCODED,
            )
            encoded = machine.read_virtual(block, 0x3A0)
            flag = machine.symbol("KdpDataBlockEncoded")
            assert machine.read_virtual(flag, 1) == b"\x01"
        decoded = b""
        for (word,) in struct.iter_unpack("<Q", encoded):
            value = word ^ never
            turn = never & 0x3F
            value = (value << turn | value >> (64 - turn)) & MASK
            value ^= flag
            value = int.from_bytes(value.to_bytes(8, "big"), "little")
            decoded += (value ^ always).to_bytes(8, "little")
        assert decoded == plain
        assert plain[0x10:0x14] == b"KDBG"
        assert encoded[0x10:0x14] != b"KDBG"
        assert never & 0x3F != 0

    def test_absent_block_is_blank(self, tmp_path):
        path = tmp_path / "x.dmp"
        with boot() as machine:
            bug_check = run_until_crash(machine, 2)
            block = machine.symbol("KdDebuggerDataBlock")
            assert machine.read_virtual(block + 0x10, 4) == b"KDBG"
            dump_machine(
                machine,
                bug_check,
                path,
                kind=DumpKind.BITMAP_FULL,
                data_block=DataBlock.ABSENT,
            )
            assert machine.read_virtual(block, 0x3A0) == bytes(0x3A0)
        with open_dump(path) as dump:
            assert dump.header.debugger_data == 0

    @pytest.mark.parametrize("memory", [(1 << 20) + 1, 1 << 33, 1 << 20, 2 << 20])
    def test_too_little_or_odd_memory(self, memory, tmp_path):
        with pytest.raises(UsageError, match="memory"):
            write_crash_dump(tmp_path / "x.dmp", memory=memory, ticks=1)
        assert list(tmp_path.iterdir()) == []

    def test_small_machines_have_small_pools(self):
        memory = PhysicalMemory(MEMORY)
        try:
            assert pool_pages(memory) == (MEMORY // 0x1000,) * 2
        finally:
            memory.close()


class TestCommand:
    OPTIONS = ("--memory", "5", "--workload", "population=1", "--workload", "busy-operations=4")

    def run(self, *arguments: str):
        return CliRunner().invoke(command, [*arguments], standalone_mode=False)

    def test_writes_a_dump(self, tmp_path):
        path = tmp_path / "x.dmp"
        done = self.run("--dump", str(path), "--ticks", "30", *self.OPTIONS)
        assert done.exception is None
        assert "x.dmp: complete or active memory dump (bitmap)" in done.output
        assert "bug check 0xe2 after 30 ticks" in done.output
        assert "'Leak' leakydrv!TrackRequest+0x1d: 620 allocated" in done.output

    def test_json(self, tmp_path):
        path = tmp_path / "x.dmp"
        done = self.run(
            "--dump", str(path), "--ticks", "3", "--dump-kind", "full", "--json", *self.OPTIONS
        )
        said = json.loads(done.output)
        assert said["format"] == "kdleak.practice"
        assert said["dump"]["kind"] == "full"
        assert said["dump"]["size"] == path.stat().st_size == 0x2000 + MEMORY - (1 << 20)
        assert [module["name"] for module in said["modules"]] == [
            "ntoskrnl.exe", "leakydrv.sys", "busydrv.sys",
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--ticks", "3"], "belongs to a crash dump"),
            (["--serial", "tcp:4555", "--force"], "belongs to a crash dump"),
            (["--dump", "x.dmp", "--serial", "tcp:4555"], "without a debugger"),
            (["--dump", "x.dmp", "--no-kdbg", "--encoded-kdbg"], "exclude each other"),
            (["--dump", "x.dmp", "--workload", "leak=5"], "NAME=N"),
            (["--dump", "x.dmp", "--workload", "leak_requests=-5"], "NAME=N"),
            (["--dump", "x.dmp", "--workload", "leak_requests"], "NAME=N"),
        ],
    )
    def test_refused(self, arguments, words, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        done = self.run(*arguments)
        assert isinstance(done.exception, UsageError)
        assert words in str(done.exception)
        assert list(tmp_path.iterdir()) == []

    def test_keeps_a_file_that_is_there(self, tmp_path):
        path = tmp_path / "x.dmp"
        path.write_text("mine")
        done = self.run("--dump", str(path), "--ticks", "1", *self.OPTIONS)
        assert isinstance(done.exception, UsageError)
        assert "there already" in str(done.exception)
        assert path.read_text() == "mine"
