"""Every stack in the two recorded sessions of Microsoft's engine."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, Tuple

import pytest

from kdleak.dialect.decoration import undecorate
from kdleak.dialect.source import decode, split_lines
from kdleak.dialect.stack import StackText, parse_stacks
from kdleak.dialect.stack_header import HeaderKind
from kdleak.dialect.stack_model import to_model
from kdleak.model import StackEnd, SymbolKind

TRANSCRIPTS = Path(__file__).parents[2] / "transcripts"
WARNING = "WARNING: Stack unwind information not available. Following frames may be wrong."
DOUBTFUL_ROWS = 3

ALLOC_32 = (
    "DbgUserBreakPoint ExAllocatePoolWithTag+135 ObpAllocateObject+f5 ObCreateObject+dd "
    "IopParseDevice+7eb ObpLookupObjectName+93d ObOpenObjectByName+122 IopCreateFile+287 "
    "IoCreateFile+86 NtOpenFile+74 KiSystemCallTrampoline+19 KiSystemServiceHandler+162 "
    "KiFastCallEntry+93"
)
PARSE_FREE_32 = (
    "DbgUserBreakPoint ExFreePoolWithTag+489 ObpDeallocateObject+157 ObpDeleteObject+395 "
    "ObfDereferenceObject+49 IopParseDevice+1253 ObpLookupObjectName+93d ObOpenObjectByName+122 "
    "IopCreateFile+287 IoCreateFile+86 NtOpenFile+74 KiSystemCallTrampoline+19 "
    "KiSystemServiceHandler+162 KiFastCallEntry+93"
)
CLOSE_32 = (
    "DbgUserBreakPoint ExFreePoolWithTag+489 ObpDeallocateObject+157 ObpDeleteObject+395 "
    "ObfDereferenceObject+49 ObpCloseHandleTableEntry+24c ObpCloseHandle+128 NtClose+21 "
    "KiSystemCallTrampoline+19 KiSystemServiceHandler+162 KiFastCallEntry+93"
)
ALLOC_64 = (
    "DbgBreakPoint ExpInsertPoolTracker+9b ExAllocatePoolWithTag+164 ObpAllocateObject+f9 "
    "ObCreateObject+ee IopParseDevice+929 ObpLookupObjectName+a9a ObOpenObjectByName+12b "
    "IopCreateFile+b3c IoCreateFile+b7 NtOpenFile+62 KiSystemCallEntry64+de ZwOpenFile+a"
)
PARSE_FREE_64 = (
    "DbgBreakPoint ExpRemovePoolTracker+69 ExFreePoolWithTag+449 ObpDeallocateObject+14e "
    "ObpDeleteObject+3a3 ObfDereferenceObject+4e IopParseDevice+13b8 ObpLookupObjectName+a9a "
    "ObOpenObjectByName+12b IopCreateFile+b3c IoCreateFile+b7 NtOpenFile+62 "
    "KiSystemCallEntry64+de ZwOpenFile+a"
)
CLOSE_64 = (
    "DbgBreakPoint ExpRemovePoolTracker+69 ExFreePoolWithTag+449 ObpDeallocateObject+14e "
    "ObpDeleteObject+3a3 ObfDereferenceObject+4e ObpCloseHandleTableEntry+204 ObpCloseHandle+dc "
    "NtClose+19 KiSystemCallEntry64+de NtClose+a"
)


def first(names: str, count: int) -> str:
    return " ".join(names.split()[:count])


def without_offsets(names: str) -> str:
    return " ".join(name.partition("+")[0] for name in names.split())


CREATE_32 = ALLOC_32.replace("NtOpenFile+74", "NtCreateFile+6f")
CREATE_64 = ALLOC_64.replace("NtOpenFile+62", "NtCreateFile+73").replace("ZwOpen", "NtCreate")
OTHER_ALLOC_32 = ALLOC_32.replace("PoolWithTag+135", "PoolWithTag+a0e")

EBP, SP = HeaderKind.CHILD_EBP, HeaderKind.CHILD_SP
RET, SITE, NONE = HeaderKind.RETURN_ADDRESS, HeaderKind.CALL_SITE, HeaderKind.NONE

I386 = [
    (194, "kb", EBP, ALLOC_32),
    (218, "k", EBP, PARSE_FREE_32),
    (243, "kn", EBP, CREATE_32),
    (267, "kv", EBP, CLOSE_32),
    (300, "kb 4", EBP, first(CLOSE_32, 4)),
    (312, "kc", NONE, without_offsets(ALLOC_32)),
    (335, "kp", EBP, CLOSE_32),
    (368, "kb", EBP, CLOSE_32),
    (390, "kb", EBP, ALLOC_32),
    (414, "kb", EBP, OTHER_ALLOC_32),
]
AMD64 = [
    (192, "kb", RET, ALLOC_64),
    (212, "k", SP, PARSE_FREE_64),
    (233, "kn", SP, CREATE_64),
    (253, "kv", SP, CLOSE_64),
    (287, "kb 4", RET, first(CLOSE_64, 4)),
    (298, "kc", SITE, without_offsets(ALLOC_64)),
    (318, "kp", SP, CLOSE_64),
    (347, "kb", RET, CLOSE_64),
    (365, "kb", RET, ALLOC_64),
    (385, "kb", RET, CLOSE_64),
]


def read(name: str) -> Tuple[Tuple[StackText, ...], Dict[int, str]]:
    text = decode((TRANSCRIPTS / f"dbgeng-poolhittag-{name}.txt").read_bytes())
    assert "\r\n" in text, "the transcripts keep their line ends"
    found = parse_stacks(undecorate(text))
    assert found.unparsed == ()
    assert found.listings == ()
    return found.stacks, {line.number: line.text for line in split_lines(text)}


def name_of(frame) -> str:
    return frame.symbol if frame.offset is None else f"{frame.symbol}+{frame.offset:x}"


@pytest.mark.parametrize(("name", "expected"), [("i386", I386), ("amd64", AMD64)])
def test_every_stack(name, expected):
    stacks, _ = read(name)
    found = []
    for stack in stacks:
        kernel = [frame for frame in stack.frames if not frame.uncertain]
        found.append((stack.line, stack.command, stack.header, " ".join(map(name_of, kernel))))
    assert found == expected


def printed(frame, stack: StackText) -> str:
    """The row that has these values."""
    wide = stack.pointer_size == 8

    def digits(value: int) -> str:
        return f"{value >> 32:08x}`{value & 0xFFFFFFFF:08x}" if wide else f"{value:08x}"

    columns = [digits(v) for v in (frame.frame_address, frame.return_address) if v is not None]
    if frame.number is not None:
        columns.insert(0, f"{frame.number:02x}")
    if frame.args is not None:
        columns += [":"] if wide else []
        columns += [digits(value) for value in frame.args]
        columns += [":"] if wide else []
    if frame.address is not None:
        columns.append(f"0x{frame.address:x}")
    else:
        offset = "" if frame.offset is None else f"+0x{frame.offset:x}"
        columns.append(f"{frame.module}!{frame.symbol}{offset}")
    if frame.trap_frame is not None:
        columns.append(f"(TrapFrame @ {digits(frame.trap_frame)})")
    return " ".join(columns)


@pytest.mark.parametrize("name", ["i386", "amd64"])
def test_every_value_of_every_row(name):
    """Printed again, each frame is its line of the transcript."""
    stacks, lines = read(name)
    for stack in stacks:
        assert [printed(frame, stack) for frame in stack.frames] == [
            lines[frame.line].rstrip() for frame in stack.frames
        ]


def test_rows_below_the_warning_of_32_bits():
    stacks, _ = read("i386")
    for stack in stacks:
        doubtful = [frame for frame in stack.frames if frame.uncertain]
        if stack.command == "kb 4":
            assert (stack.warnings, doubtful) == ((), [])
            continue
        assert stack.warnings == (WARNING,)
        assert len(doubtful) == DOUBTFUL_ROWS
        assert doubtful[0].module == "ntdll"
        assert doubtful[0].symbol == "KiFastSystemCallRet"
        assert doubtful[1].address == (0 if stack.command == "kc" else 0xBADB0D00)


def test_arguments_of_32_bits():
    stacks, _ = read("i386")
    assert stacks[0].frames[1].args == (0, 0xA0, 0x656C6946)
    assert stacks[0].frames[0].args == (0x656C6946, 0xA8, 0)
    assert stacks[3].frames[1].args == (0xB0ECB210, 0x656C6946, 0xC0)
    assert all(len(frame.args) == 3 for frame in stacks[7].frames)


def test_trap_frame_of_64_bits():
    stacks, _ = read("amd64")
    assert [frame.trap_frame for frame in stacks[3].frames if frame.trap_frame] == [
        0xFFFFF880046A6C70
    ]


def test_model_of_64_bits():
    stacks, _ = read("amd64")
    pointer = 0xFFFFF80000589A90
    by_command = {stack.command: to_model(stack, pointer, 8) for stack in stacks[:6]}
    kn = by_command["kn"]
    assert [frame.address for frame in kn.frames[:3]] == [
        pointer,
        0xFFFFF800004B3C90,
        0xFFFFF800004B4893,
    ]
    assert kn.frames[1].stack_pointer == 0xFFFFF880046A6490
    assert str(kn.frames[1].symbol) == "nt!ExpInsertPoolTracker+0x9b"
    assert kn.frames[1].symbol.kind is SymbolKind.PDB
    assert kn.end is StackEnd.COMPLETE
    assert by_command["kb"].end is StackEnd.COMPLETE
    assert by_command["kb"].frames[1].stack_pointer == 0
    assert by_command["kb 4"].end is StackEnd.DEPTH
    assert by_command["kc"].end is StackEnd.DEPTH
    assert {frame.address for frame in by_command["kc"].frames[1:]} == {0}


def test_model_of_32_bits():
    stacks, _ = read("i386")
    model = to_model(stacks[0], 0x8059CEC8, 4)
    assert [frame.address for frame in model.frames[:3]] == [0x8059CEC8, 0x804BBD98, 0x8051F260]
    assert [frame.address for frame in model.frames[-3:]] == [0x7C92F4AE, 0xBADB0D00, 0x225188]
    assert model.end is StackEnd.USER_MODE, "the kernel's part is certain"
