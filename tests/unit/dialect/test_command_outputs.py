"""Memory, symbols, module details, versions, failures, and commands on PoolHitTag."""

from __future__ import annotations

import time

import pytest

from kdleak.dialect.engine_errors import FailureKind, find_engine_error
from kdleak.dialect.memory_dump import parse_memory_dump
from kdleak.dialect.modules import parse_modules
from kdleak.dialect.registers import parse_registers
from kdleak.dialect.reload import parse_reload
from kdleak.dialect.symbol_lines import parse_symbol_lines
from kdleak.dialect.tag_commands import (
    reads_tag,
    split_commands,
    tag_breakpoint,
    written_value,
)
from kdleak.dialect.version import SessionKind, parse_version
from kdleak.model import Architecture


def test_rows_of_every_width():
    dump = parse_memory_dump(
        "fffff801`00000000  41 42 43 44 45 46 47 48-49 4a 4b 4c 4d 4e 4f 50  ABCDEFGHIJKLMNOP\n"
        "fffff801`00000010  4241 4443 4645 4847 4a49 4c4b 4e4d 504f\n"
        "fffff801`00000020  44434241 48474645 4c4b4a49 504f4e4d  ABCDEFGHIJKLMNOP\n"
        "fffff801`00000030  48474645`44434241 504f4e4d`4c4b4a49\n"
    )
    assert [row.width for row in dump.rows] == [1, 2, 4, 8]
    assert dump.bytes_at(0xFFFFF80100000000, 64) == b"ABCDEFGHIJKLMNOP" * 4
    assert dump.bytes_at(0xFFFFF8010000000E, 4) == b"OPAB"
    assert dump.bytes_at(0xFFFFF8010000003F, 2) is None


def test_unreadable_bytes_are_not_zero():
    dump = parse_memory_dump(
        "fffff801`00000000  00000000`00000001 ????????`????????\nfffff801`00000010  01 ?? 03 ??\n"
    )
    assert dump.bytes_at(0xFFFFF80100000000, 8) == b"\1\0\0\0\0\0\0\0"
    assert dump.bytes_at(0xFFFFF80100000000, 9) is None
    assert dump.bytes_at(0xFFFFF80100000010, 1) == b"\1"
    assert dump.bytes_at(0xFFFFF80100000011, 1) is None
    assert dump.rows[1].unreadable == (1, 3)


def test_a_later_dump_counts():
    dump = parse_memory_dump("84b3a774  00000000\n84b3a774  6e 6f 6b 76   nokv\n")
    assert dump.bytes_at(0x84B3A774, 4) == b"nokv"


def test_stack_and_module_rows_are_no_memory():
    text = (
        "f7d7e92c 804bbd98 656c6946 000000a8 00000000 nt!X\n"
        "b1ecf000 b1edd000   kotari.sys\n"
        "f7d7e92c  804bbd98   656c6946   000000a8   00000000   nt!X\n"
    )
    assert parse_memory_dump(text).rows == ()


def test_a_damaged_row_is_reported():
    dump = parse_memory_dump("84b3a774  766b6f6e 7zz\n")
    assert dump.rows == ()
    assert [entry.line for entry in dump.unparsed] == [1]


def test_three_hundred_kilobytes_of_quads():
    text = "\n".join(
        f"fffff801`{address:08x}  {address:08x}`{address:08x} 00000000`00000001"
        for address in range(0, 96_000, 16)
    )
    started = time.perf_counter()
    dump = parse_memory_dump(text)
    assert time.perf_counter() - started < 1
    assert len(dump.rows) == 6000
    assert dump.bytes_at(0xFFFFF80100000000, 96_000) is not None


def test_ln_below_above_and_exact():
    found = parse_symbol_lines(
        "(fffff800`004b3bf5)   nt!ExpInsertPoolTracker+0x9b   |  (fffff800`004b3cc0)   nt!Next\n"
        "Exact matches:\n"
        "    nt!PoolHitTag = <no type information>\n"
    )
    (near,) = found.near
    assert str(near.below.name) == "nt!ExpInsertPoolTracker+0x9b"
    assert near.above is not None
    assert (near.above.address, str(near.above.name)) == (0xFFFFF800004B3CC0, "nt!Next")
    assert near.exact
    assert found.rows[0].detail == "= <no type information>"


def test_expressions():
    found = parse_symbol_lines(
        "Evaluate expression: 1 = 00000000`00000001\nEvaluate expression: -16 = ffffffff`fffffff0\n"
        "Evaluate expression:\n  Hex:     766b6f6e\n  Chars:   vkon <--- a remark\n"
    )
    assert [value.value for value in found.values] == [1, 0xFFFFFFFFFFFFFFF0, 0x766B6F6E]
    assert found.values[2].chars == "vkon"


def test_module_details():
    (module,) = parse_modules(
        "Browse full module list\n"
        "start             end                 module name\n"
        "fffff803`10000000 fffff803`10010000   leakdrv  C (pdb symbols)  c:\\sym\\leakdrv.pdb\n"
        "    Loaded symbol image file: leakdrv.sys\n"
        "    Image path: \\SystemRoot\\System32\\drivers\\leakdrv.sys\n"
        "    Image name: leakdrv.sys\n"
        "    Browse all global symbols  functions  data\n"
        "    Timestamp:        Tue Mar 25 02:08:07 2003 (3E7FB6A7)\n"
        "    CheckSum:         0001D6AE\n"
        "    Translations:     0000.04b0 0000.04e4\n"
        "                      0409.04b0\n"
    ).modules
    assert module.name == "leakdrv"
    assert module.image_name == "leakdrv.sys"
    assert module.image_path.endswith("drivers\\leakdrv.sys")
    assert (module.timestamp, module.checksum) == (0x3E7FB6A7, 0x1D6AE)
    assert module.file == "c:\\sym\\leakdrv.pdb"


def test_arm64_registers():
    (block,) = parse_registers(
        " x0=0000000000000001   x1=fffff80312345678   x2=0000000000000000   x3=0000000000000000\n"
        " fp=ffffa80112345670   lr=fffff80312345678   sp=ffffa80112345600   pc=fffff80312340000\n"
        "psr=60000085 -ZC- EL1\n"
        "nt!DbgBreakPoint:\n"
        "fffff803`12340000 d43e0000 brk         #0xF000\n"
    ).blocks
    assert block.architecture is Architecture.ARM64
    assert block.values["pc"] == 0xFFFFF80312340000
    assert block.place is not None
    assert block.place.instruction == "brk #0xF000"
    assert block.unparsed == ()


def test_reload_with_a_failure_behind_the_dots():
    found = parse_reload(
        "Loading Kernel Symbols\n"
        "....Unable to read image header for x.sys at fffff801`10000000 - NTSTATUS 0xC0000001\n"
        "...\n"
        "Loading User Symbols\n"
        "Unable to enumerate user-mode unloaded modules, Win32 error 0n30\n"
    )
    assert found.dots == 7
    assert [text.split(",")[0][:22] for text in found.failures] == [
        "Unable to read image h",
        "Unable to enumerate us",
    ]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (".  0 Remote KD: KdSrv:Server=@{<Local>},Trans=@{COM:Port=x}", SessionKind.LIVE),
        (".  0 Local kernel debugging", SessionKind.LOCAL),
        (".  0 64-bit Full kernel dump: C:\\MEMORY.DMP", SessionKind.DUMP),
        ("Kernel Bitmap Dump File: Kernel address space is available", SessionKind.DUMP),
    ],
)
def test_kind_of_session(text, kind):
    assert parse_version(text).session is kind


@pytest.mark.parametrize(
    ("text", "kind", "word"),
    [
        ("Couldn't resolve error at 'nt!Nope 'abcd''", FailureKind.UNKNOWN_SYMBOL, "nt!Nope"),
        ("Memory access error at '...'", FailureKind.MEMORY, "memory"),
        ("No export poolused found", FailureKind.NO_EXPORT, "!poolused"),
        ("Unable to add extension DLL: kdexts", FailureKind.NO_EXTENSION, "kdexts"),
        ("The call to LoadLibrary(ext) failed, Win32 error 0n2", FailureKind.NO_EXTENSION, "ext"),
        ("unable to get PoolTrackTable - symbols are wrong", FailureKind.WRONG_SYMBOLS, ".reload"),
        (
            "*** ERROR: Symbol file could not be found.  Defaulted to export symbols for "
            "ntkrnlmp.exe - ",
            FailureKind.WRONG_SYMBOLS,
            "kernel",
        ),
        (
            "*** ERROR: Module load completed but symbols could not be loaded for polbus.sys",
            FailureKind.MODULE_SYMBOLS,
            "polbus.sys",
        ),
        ("Access is denied.", FailureKind.ACCESS_DENIED, "denied"),
        (
            "Operation not supported by current debuggee error in 'ed nt!PoolHitTag 1'",
            FailureKind.NOT_SUPPORTED,
            "dump",
        ),
        (
            "is not an operation supported in the current session/local kernel debugging",
            FailureKind.LOCAL_KERNEL,
            "local",
        ),
        ("No runnable debuggees error in 'g'", FailureKind.NOT_CONNECTED, "connected"),
        ("    ^ Syntax error in 'wtu'", FailureKind.SYNTAX, "understand"),
    ],
)
def test_failures(text, kind, word):
    found = find_engine_error("some line\n" + text + "\nanother")
    assert found is not None
    assert found.kind is kind
    assert word in found.sentence
    assert found.text == text.strip()


def test_no_failure():
    assert find_engine_error(" Leak  5  80  0  0\tUNKNOWN pooltag 'Leak', please update") is None
    assert find_engine_error("Loading Kernel Symbols\n.......") is None


def test_the_missing_command_comes_before_the_missing_library():
    text = "The call to LoadLibrary(ext) failed, Win32 error 0n2\nNo export poolused found\n"
    found = find_engine_error(text)
    assert found is not None
    assert found.kind is FailureKind.NO_EXPORT


@pytest.mark.parametrize(
    ("command", "value"),
    [
        ("ed nt!PoolHitTag 'vkon'", 0x766B6F6E),
        ("ed nt!poolhittag ' nrV'", 0x206E7256),
        ("ed nt!PoolHitTag 34626f52", 0x34626F52),
        ("ed PoolHitTag 0x34626f52", 0x34626F52),
        ("ed nt!PoolHitTag 0", 0),
        ("ed nt!PoolHitTag 0n16", 16),
        ("ed nt!PoolHitTag \u2018kaeL\u2019", 0x6B61654C),
        ("eb nt!PoolHitTag 4c 65 61 6b", 0x6B61654C),
        ("eb nt!PoolHitTag 'L' 'e' 'a' 'k'", 0x6B61654C),
        ('ea nt!PoolHitTag "Leak"', 0x6B61654C),
        ("ed 84b3a774 'kaeL'", 0x6B61654C),
        ("ed 84b3a778 'kaeL'", None),
        ("ed nt!PoolHitTag poi(x)", None),
        ("ed nt!PoolHitTagX 0", None),
        ("dd nt!PoolHitTag", None),
    ],
)  # fmt: skip
def test_writes(command, value):
    assert written_value(command, 0x84B3A774) == value


def test_reads():
    assert reads_tag("db nt!poolhittag L4", None)
    assert reads_tag("dc 84b3a774 l1", 0x84B3A774)
    assert not reads_tag("dc 84b3a774 l1", None)
    assert not reads_tag("dt nt!PoolHitTag", None)


def test_commands_of_a_line():
    assert split_commands("ed nt!PoolHitTag ';a;b'; g") == ("ed nt!PoolHitTag ';a;b'", "g")
    text = 'bp nt!X ".if (@r8d == 1) {k;g} .else {gc}"; g'
    assert split_commands(text) == (text[:-3], "g")


def test_breakpoints_for_a_tag():
    found = tag_breakpoint('bp nt!ExAllocatePool2 ".if (@r8d == 0x6b6c7553) {} .else {gc}"', 1)
    assert found is not None
    assert (str(found.tag), found.where) == ("Sulk", "nt!ExAllocatePool2")
    assert tag_breakpoint("bp nt!ExAllocatePool2", 1) is None
