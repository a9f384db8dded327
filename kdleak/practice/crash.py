"""Lets the practice machine crash as Windows does and writes the crash dump.

The machine runs without any debugger. At the end somebody presses the keys for a manual crash
(bug check 0xE2), unless the workload has brought the machine down before that.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Union

from kdleak.dump.kind import DumpKind
from kdleak.dump.writer import WriterHeader, write_dump
from kdleak.errors import UsageError
from kdleak.practice.images import DEFAULT_BUILD
from kdleak.practice.ledger import CallSite, truth_as_json
from kdleak.practice.loader import LoadedImage
from kdleak.practice.machine import DEFAULT_MEMORY, MachineStop, PracticeMachine
from kdleak.practice.paging import PAGE_SIZE
from kdleak.practice.processor import STATUS_BREAKPOINT
from kdleak.practice.workload import Workload

DEFAULT_TICKS = 2000
DEFAULT_WORKLOAD = Workload(leak_requests=20)
"""With :data:`DEFAULT_TICKS` the leak comes second among all tags."""
KMODE_EXCEPTION_NOT_HANDLED = 0x1E
FIRST_FRAME = 0x100
"""Page frames below are the firmware's and in no dump."""

_CONTEXT_IN_PRCB = 0x130
_BLOCK_SIZE = 0x3A0
_MASK = (1 << 64) - 1
_SIGN = 0xFFFFFFFF_00000000
_EXCEPTION_NONCONTINUABLE = 1


class DataBlock(enum.Enum):
    """What becomes of nt!KdDebuggerDataBlock in a dump."""

    PLAIN = "plain"
    ENCODED = "encoded"
    """As a machine that was booted without debugging holds it, and as tools that take memory
    images from outside find it; the header still names it."""
    ABSENT = "absent"
    """The header names none and the block is blank."""


@dataclass(frozen=True)
class BugCheck:
    """Why the machine stopped.

    Attributes:
        code: bug check code.
        parameters: its four parameters.
        processor: number of the processor that called nt!KeBugCheckEx.
        context: its CONTEXT at the call: rip is nt!KeBugCheckEx, the return address is on top of
            the stack.
    """

    code: int
    parameters: tuple[int, ...]
    processor: int
    context: bytes


@dataclass(frozen=True)
class CrashDump:
    """A dump that was written, and the truth about what is in it.

    Attributes:
        path: the file.
        kind: of dump.
        build: Windows build the machine claims.
        pages: pages in it.
        size: bytes of the file.
        ticks: complete ticks the machine ran before the crash.
        bug_check: what was written as the reason.
        modules: the images that were loaded, in load order.
        ground_truth: every call site of the allocator, from the ledger.
    """

    path: Path
    kind: DumpKind
    build: int
    pages: int
    size: int
    ticks: int
    bug_check: BugCheck
    modules: tuple[LoadedImage, ...]
    ground_truth: tuple[CallSite, ...]

    def as_json(self) -> dict[str, object]:
        """Plain values, for other programs."""
        return {
            "dump": {
                "kind": self.kind.name.lower(),
                "build": self.build,
                "pages": self.pages,
                "size": self.size,
                "ticks": self.ticks,
                "bug_check": [self.bug_check.code, *self.bug_check.parameters],
            },
            "modules": [
                {"name": image.file_name, "base": image.base, "size": image.size}
                for image in self.modules
            ],
            "ground_truth": truth_as_json(self.ground_truth),
        }


def write_crash_dump(
    path: Union[Path, str],
    *,
    kind: DumpKind = DumpKind.BITMAP_FULL,
    seed: int = 1,
    build: int = DEFAULT_BUILD,
    processors: int = 2,
    memory: int = DEFAULT_MEMORY,
    ticks: int = DEFAULT_TICKS,
    workload: Workload = DEFAULT_WORKLOAD,
    data_block: DataBlock = DataBlock.PLAIN,
    force: bool = False,
) -> CrashDump:
    """Boot a machine, run it, crash it and write the dump.

    Args:
        path: the file.
        kind: FULL holds all RAM, BITMAP_FULL and BITMAP_KERNEL the pages in use.
        seed: chooses addresses and all random behaviour.
        build: Windows build it claims.
        processors: 1 or 2.
        memory: bytes of RAM.
        ticks: how long it runs before the manual crash.
        workload: what it does meanwhile.
        data_block: what becomes of KDBG.
        force: replace a file that is there.

    Raises:
        UsageError: a parameter outside its range, or the file is there already.
        TargetError: the file cannot be written.
    """
    with booted(
        seed=seed, build=build, processors=processors, memory=memory, workload=workload
    ) as machine:
        bug_check = run_until_crash(machine, ticks)
        return dump_machine(machine, bug_check, path, kind=kind, data_block=data_block, force=force)


def booted(
    *, seed: int, build: int, processors: int, memory: int, workload: Workload | None
) -> PracticeMachine:
    """A machine that is up.

    Raises:
        UsageError: a parameter outside its range, or too little memory to boot.
    """
    if memory % PAGE_SIZE or memory > 1 << 32:
        raise UsageError(
            f"making a practice machine with {memory} bytes of memory",
            "memory comes in whole pages, up to 4 GB",
        )
    tried = f"booting a practice machine with {memory:,} bytes of memory"
    try:
        machine = PracticeMachine(
            seed=seed, build=build, processors=processors, memory=memory, workload=workload
        )
    except (MemoryError, RuntimeError) as error:
        raise UsageError(tried, str(error), "give it more memory") from error
    if not machine.read_u64("MmAvailablePages"):
        machine.close()
        raise UsageError(tried, "nothing is left after the boot", "give it more memory")
    return machine


def run_until_crash(machine: PracticeMachine, ticks: int) -> BugCheck:
    """Run the machine for ``ticks`` ticks or until it crashes by itself, and crash it.

    Afterwards its processors' registers are saved in their KPRCBs, as a crash leaves them, the
    ledger is out of its page tables, and it cannot run any more.
    """
    for _ in range(ticks):
        stop = _run_tick(machine)
        if stop is not None:
            return _bug_check(machine, stop)
    machine.write_virtual(machine.symbol("KiCrashRequested"), b"\x01")
    return run_until_crash(machine, 1)


def _run_tick(machine: PracticeMachine) -> MachineStop | None:
    stop = machine.tick()
    while stop is not None and stop.loaded is not None:
        stop = machine.tick()  # nobody listens to image loads
    return stop


def _bug_check(machine: PracticeMachine, stop: MachineStop) -> BugCheck:
    """The bug check that a stop is when there is no debugger."""
    if not _bug_check_data(machine)[0]:
        machine.raise_unhandled(
            stop.processor, KMODE_EXCEPTION_NOT_HANDLED, stop.code | _SIGN, stop.address
        )
    code, *parameters = _bug_check_data(machine)
    crashed = machine.processors[stop.processor]
    context = bytearray(crashed.context())
    # The integer registers are those at the call of nt!KeBugCheckEx, which has kept them.
    kept = machine.read_virtual(crashed.prcb + _CONTEXT_IN_PRCB, len(context))
    context[0x44:0x48] = kept[0x44:0x48]
    context[0x78:0x100] = kept[0x78:0x100]
    for processor in machine.processors:
        processor.save_state()
    machine.write_virtual(crashed.prcb + _CONTEXT_IN_PRCB, bytes(context))
    machine.hide_ledger()
    return BugCheck(code, tuple(parameters), stop.processor, bytes(context))


def _bug_check_data(machine: PracticeMachine) -> tuple[int, ...]:
    raw = machine.read_virtual(machine.symbol("KiBugCheckData"), 40)
    return struct.unpack("<5Q", raw)


def dump_machine(
    machine: PracticeMachine,
    bug_check: BugCheck,
    path: Union[Path, str],
    *,
    kind: DumpKind,
    data_block: DataBlock = DataBlock.PLAIN,
    force: bool = False,
) -> CrashDump:
    """Write the dump of a machine that has crashed."""
    if data_block is not DataBlock.PLAIN:
        _hide_data_block(machine, data_block)
    header = dump_header(machine, bug_check, data_block)
    pages = write_dump(path, kind, header, machine.used_pages(), force=force)
    file = Path(path)
    return CrashDump(
        path=file,
        kind=kind,
        build=machine.build,
        pages=pages,
        size=file.stat().st_size,
        ticks=machine.ticks,
        bug_check=bug_check,
        modules=machine.loaded_images(),
        ground_truth=machine.ground_truth(),
    )


def dump_header(
    machine: PracticeMachine, bug_check: BugCheck, data_block: DataBlock = DataBlock.PLAIN
) -> WriterHeader:
    """What the header of a machine's dump says."""
    pages = machine.memory.size // PAGE_SIZE
    (address,) = struct.unpack_from("<Q", bug_check.context, 0xF8)
    uptime, system_time = machine.times()
    block = machine.symbol("KdDebuggerDataBlock")
    return WriterHeader(
        build=machine.build,
        directory_table_base=machine.directory_table_base,
        pfn_database=machine.symbol("MmPfnDatabase"),
        module_list=machine.symbol("PsLoadedModuleList"),
        process_list=machine.symbol("PsActiveProcessHead"),
        debugger_data=0 if data_block is DataBlock.ABSENT else block,
        runs=((FIRST_FRAME, pages - FIRST_FRAME),),
        processors=len(machine.processors),
        secondary_version=2,  # contexts are AMD64's own
        bug_check_code=bug_check.code,
        bug_check_parameters=bug_check.parameters,
        context=bug_check.context,
        exception_code=STATUS_BREAKPOINT,
        exception_flags=_EXCEPTION_NONCONTINUABLE,
        exception_address=address,
        comment=f"kdleak practice: seed {machine.seed}, {machine.ticks} ticks",
        system_time=system_time,
        uptime=uptime,
        suite_mask=0x110,
    )


def _hide_data_block(machine: PracticeMachine, data_block: DataBlock) -> None:
    """Blank or encode nt!KdDebuggerDataBlock."""
    block = machine.symbol("KdDebuggerDataBlock")
    if data_block is DataBlock.ABSENT:
        machine.write_virtual(block, bytes(_BLOCK_SIZE))
        return
    never, always = machine.read_u64("KiWaitNever"), machine.read_u64("KiWaitAlways")
    flag = machine.symbol("KdpDataBlockEncoded")
    words = struct.unpack(f"<{_BLOCK_SIZE // 8}Q", machine.read_virtual(block, _BLOCK_SIZE))
    encoded = [_encode(word, never, always, flag) for word in words]
    machine.write_virtual(block, struct.pack(f"<{len(words)}Q", *encoded))
    machine.write_virtual(flag, b"\x01")
    machine.write_virtual(machine.symbol("KdpBootedNodebug"), b"\x01")


def _encode(word: int, never: int, always: int, flag: int) -> int:
    """One word as nt!KdEncodeDataBlock leaves it."""
    value = int.from_bytes((word ^ always).to_bytes(8, "little"), "big") ^ flag
    turn = never & 0x3F
    return ((value >> turn | value << (64 - turn)) & _MASK) ^ never
