"""Two recorded sessions of Microsoft's engine doing the procedure by hand: all of it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from kdleak.dialect.breaks import Break
from kdleak.dialect.engine_errors import FailureKind
from kdleak.dialect.log import DebuggerLog, parse_log
from kdleak.dialect.log_event import Disassembly
from kdleak.dialect.memory_dump import MemoryDump
from kdleak.dialect.modules import ModuleList
from kdleak.dialect.registers import RegisterBlock
from kdleak.dialect.reload import ReloadOutput
from kdleak.dialect.source import decode
from kdleak.dialect.symbol_lines import SymbolLines
from kdleak.dialect.version import SessionKind

TRANSCRIPTS = Path(__file__).parents[2] / "transcripts"
FILE = 0x656C6946
LOOKS = ["kb", "k", "kn", "kv", "r", "kb 4", "kc", "kp", "u @$ra L4", "kb", "kb", "kb"]


def read(name: str) -> DebuggerLog:
    return parse_log(decode((TRANSCRIPTS / f"dbgeng-poolhittag-{name}.txt").read_bytes()))


@pytest.fixture(scope="module")
def amd64():
    return read("amd64")


@pytest.fixture(scope="module")
def i386():
    return read("i386")


def kinds(log):
    return "".join(hit.kind.value[0] if hit.kind else "?" for hit in log.hits)


def frames(log):
    return [len(hit.stack.frames) if hit.stack else None for hit in log.hits]


def test_kinds_amd64(amd64):
    assert kinds(amd64) == "afaf?fafafaf?"
    assert [hit.evidence for hit in amd64.hits] == [
        *["stack"] * 4, "", *["stack"] * 3, "return address", *["stack"] * 3, "",
    ]  # fmt: skip


def test_kinds_i386(i386):
    assert kinds(i386) == "afaf?fafafaa?"
    assert i386.hits[8].evidence == "return address"


def test_frames(amd64, i386):
    assert frames(amd64) == [13, 14, 13, 11, None, 4, 13, 11, None, 11, 13, 11, None]
    assert frames(i386) == [16, 17, 16, 14, None, 4, 16, 14, None, 14, 16, 16, None]


def test_stops(amd64, i386):
    for log, symbol, address in (
        (amd64, "nt!DbgBreakPoint", 0xFFFFF80000589A90),
        (i386, "nt!DbgUserBreakPoint", 0x8059CEC8),
    ):
        assert {(hit.symbol, hit.address) for hit in log.hits} == {(symbol, address)}
        assert {hit.stop.place.bytes for hit in log.hits} == {"cc"}
        first = log.of(Break)[0]
        assert first.ctrl_c
        assert first.symbol == "nt!RtlpBreakWithStatusInstruction"
        assert len(log.of(Break)) == 14


def test_commands(amd64, i386):
    for log in (amd64, i386):
        assert list(log.commands[:10]) == [
            "vertarget",
            ".reload",
            "lm",
            "x nt!Pool*",
            "dd nt!PoolHitTag L1",
            "db nt!poolhittag L4",
            "!poolused 4",
            "ed nt!NoSuchSymbol 'abcd'",
            "db 0 L4",
            "ed nt!poolhittag 'eliF'",
        ]
        assert [hit.commands[0] for hit in log.hits[:12]] == LOOKS
        assert log.hits[12].commands == ("ed nt!poolhittag 0", "db nt!poolhittag L4", "g")
        assert len(log.commands) == 10 + 2 + 12 * 2 + 3


def test_pool_hit_tag(amd64, i386):
    for log, address in ((amd64, 0xFFFFF8000062F924), (i386, 0x8064035C)):
        use = log.pool_hit_tag
        assert (use.before, use.set, use.set_value, use.after) == (0, "File", FILE, FILE)
        assert [write.value for write in use.writes] == [FILE, 0]
        assert [value for _, value in use.reads] == [0, 0, FILE, 0]
        assert not use.left_armed
        assert str(log.tag) == "File"
        (symbols,) = log.of(SymbolLines)
        assert len(symbols.rows) == 8
        assert symbols.address_of("nt!poolhittag") == address
        assert {row.detail for row in symbols.rows} == {"= <no type information>"}


def test_memory(amd64, i386):
    dumps = amd64.of(MemoryDump)
    assert [dump.rows[0].width for dump in dumps] == [4, 1, 1, 1, 1]
    assert dumps[2].rows[0].unreadable == (0, 1, 2, 3)
    assert dumps[2].bytes_at(0, 1) is None
    assert dumps[3].bytes_at(0xFFFFF8000062F924, 4) == b"File"
    assert i386.of(MemoryDump)[2].bytes_at(0, 4) == b"\x53\xff\x00\xf0"
    assert i386.of(MemoryDump)[3].number_at(0x8064035C, 4) == FILE


def test_modules(amd64, i386):
    (modules,) = amd64.of(ModuleList)
    assert len(modules.modules) == 83
    kernel = modules.find("nt")
    assert (kernel.start, kernel.end) == (0xFFFFF80000400000, 0xFFFFF8000067F000)
    assert kernel.symbols == "pdb symbols"
    assert kernel.file.endswith("\\ntoskrnl.pdb")
    assert modules.find("ntdll").file == "ntdll.dll"
    assert modules.find("acpi").size == 0x59000
    (modules,) = i386.of(ModuleList)
    assert len(modules.modules) == 83
    assert modules.find("hal").symbols == "export symbols"
    assert modules.find("nt").start == i386.version.kernel_base


def test_version(amd64, i386):
    for log, name, base, uptime in (
        (amd64, "x64", 0xFFFFF80000400000, 177.562),
        (i386, "x86", 0x80400000, 256.297),
    ):
        version = log.version
        assert (version.build, version.processors, version.checked) == (3790, 1, True)
        assert version.product == "Windows Server 2003"
        assert version.session is SessionKind.LIVE
        assert version.kernel_base == base
        assert version.uptime == pytest.approx(uptime)
        assert log.architecture.value == name
    assert i386.version.loaded_module_list == 0x806420A4


def test_reload(amd64, i386):
    (reload,) = amd64.of(ReloadOutput)
    assert reload.dots == 82
    assert reload.stages == ("Kernel Symbols", "User Symbols")
    assert [error.module for error in reload.symbol_errors] == ["ntdll.dll", "ntdll"]
    (reload,) = i386.of(ReloadOutput)
    assert [error.exports for error in reload.symbol_errors] == [True, True, False, False]


def test_registers(amd64, i386):
    (block,) = amd64.of(RegisterBlock)
    assert block == amd64.hits[4].registers[0]
    assert len(block.values) == 25
    assert block.values["rbx"] == FILE
    assert block.values["r8"] == 0
    assert block.values["rip"] == amd64.hits[4].address
    assert block.flags == ("nv", "up", "ei", "pl", "zr", "na", "po", "nc")
    assert block.place == amd64.hits[4].stop.place
    (block,) = i386.of(RegisterBlock)
    assert block.values["eax"] == FILE
    assert block.values["efl"] == 0x246


def test_disassembly(amd64, i386):
    assert [(item.symbol, item.address) for item in amd64.of(Disassembly)] == [
        ("nt!ExpInsertPoolTracker+0x9b", 0xFFFFF800004B3C90)
    ]
    assert str(i386.hits[8].caller) == "nt!ExAllocatePoolWithTag+0x135"


def test_failures(amd64, i386):
    for log in (amd64, i386):
        assert [failure.kind for failure in log.failures] == [
            *[FailureKind.NO_EXTENSION] * 4,
            FailureKind.NO_EXPORT,
            FailureKind.UNKNOWN_SYMBOL,
        ]
        assert "!poolused" in log.failures[4].sentence


def test_drivers(amd64, i386):
    # The kernel's own opens and closes of files: the first frame outside is ntdll.
    for log in (amd64, i386):
        for hit in log.hits:
            if hit.driver_frame is not None:
                assert hit.stack.frames[hit.driver_frame].module == "ntdll"
    assert amd64.hits[5].driver_frame is None


def test_nothing_is_left_over(amd64, i386):
    assert [entry.text for entry in amd64.unparsed] == []
    assert [entry.text for entry in i386.unparsed] == []
