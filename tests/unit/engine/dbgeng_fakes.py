"""A debugger that answers in DbgEng's words, over a small target in memory.

The layouts of its answers are those of recorded sessions (tests/transcripts) and of the rig.
"""

from __future__ import annotations

import re
import struct
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Dict, List, Optional, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "nt"))

from image_builder import image

from kdleak.engine.channels.base import LIVE_KERNEL, Resumed
from kdleak.errors import LinkLost, MemoryUnreadable

NT = 0xFFFFF80181200000
DRIVER = 0xFFFFF801C1F10000
HIT_TAG = NT + 0x5020
BREAK_IN = NT + 0x1500
ALLOC_BREAK = NT + 0x1118
FREE_BREAK = NT + 0x1318
STACK_PAGE = 0xFFFFFE8751022000
BANNER = "Break instruction exception - code 80000003 (first chance)\n"

_ALLOC_0X28 = bytes([0x01, 0x04, 0x01, 0x00, 0x04, 0x42, 0x00, 0x00])
_REGISTERS = (
    "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rip", "rsp", "rbp",
    "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
)  # fmt: skip
_FUNCTIONS = ((0x1100, 0x1200), (0x1200, 0x1300), (0x1300, 0x1400), (0x1400, 0x1500))
_NAMES = {
    NT + 0x1100: "nt!ExAllocateHeapPool",
    NT + 0x1200: "nt!ExAllocatePool2",
    NT + 0x1300: "nt!ExFreeHeapPool",
    NT + 0x1400: "nt!ExFreePoolWithTag",
    BREAK_IN: "nt!DbgBreakPointWithStatus",
    HIT_TAG: "nt!PoolHitTag",
    DRIVER + 0x1100: "leakdrv!TrackRequest",
    DRIVER + 0x1200: "leakdrv!HandleRequest",
    DRIVER + 0x1300: "leakdrv!FinishRequest",
    DRIVER + 0x1400: "leakdrv!Worker",
}


def _wide(address: int) -> str:
    """An address as a debugger prints it for a 64-bit target."""
    return f"{address >> 32:08x}`{address & 0xFFFFFFFF:08x}"


@dataclass
class Halt:
    """One stop: the instruction, the frames (return addresses), registers, what is printed."""

    rip: int
    returns: Sequence[int] = ()
    registers: Dict[str, int] = field(default_factory=dict)
    text: str = BANNER
    processor: int = 0
    depth: int = 0  # how much deeper in its stack

    @property
    def rsp(self) -> int:
        return STACK_PAGE + 0xE00 - 0x30 * len(self.returns) - self.depth


def hit(*returns: int, alloc: bool = True, **more: object) -> Halt:
    """A hit with these return addresses, which end in zero."""
    return Halt(ALLOC_BREAK if alloc else FREE_BREAK, (*returns, 0), **more)  # type: ignore[arg-type]


TRACK = (NT + 0x1240, DRIVER + 0x1130, DRIVER + 0x1250, DRIVER + 0x1444)
FINISH = (NT + 0x1440, DRIVER + 0x1350, DRIVER + 0x1250, DRIVER + 0x1444)


class Quick:
    """The binding's own way to memory and registers."""

    def __init__(self, debugger: FakeDebugger) -> None:
        self._debugger = debugger
        self.reads: List[Tuple[int, int]] = []

    def read(self, address: int, size: int) -> bytes:
        self.reads.append((address, size))
        data = self._debugger.bytes_at(address, size)
        if data is None or None in data:
            raise MemoryUnreadable(address, size)
        return bytes(data)  # type: ignore[arg-type]

    def registers(self) -> Dict[str, int]:
        return self._debugger.registers()


def poolused(*rows: Tuple[str, int, int, int]) -> str:
    """The answer to ``!poolused 3``: nonpaged (tag, allocs, frees, bytes), none paged."""
    form = "{:<5}{:>12}{:>12}{:>10}{:>13}{:>13}{:>12}{:>10}{:>13}"
    head = (
        "....\n Sorting by NonPaged Pool Consumed\n\n"
        "               NonPaged                                         Paged\n"
        " Tag       Allocs       Frees      Diff         Used       Allocs       Frees      Diff"
        "         Used\n\n"
    )
    lines = [
        form.format(f" {tag}", allocs, frees, allocs - frees, used, 0, 0, 0, 0)
        + "\tUNKNOWN pooltag, please update pooltag.txt\n"
        for tag, allocs, frees, used in rows
    ]
    allocs, frees, used = (sum(row[index] for row in rows) for index in (1, 2, 3))
    total = form.format("TOTAL", allocs, frees, allocs - frees, used, 0, 0, 0, 0) + "\n"
    return head + "".join(lines) + total


class FakeDebugger:
    """A Channel. ``halts`` come one after the other; ``asked`` logs the commands."""

    name = "fake"
    where = "net:port=50000"
    session = LIVE_KERNEL

    def __init__(self, *halts: Halt, quick: bool = False, uptime: float = 100.0) -> None:
        self.pages: Dict[int, bytearray] = {}
        self.quick: Optional[Quick] = Quick(self) if quick else None
        self.running = False
        self.halt = Halt(BREAK_IN, registers={"rcx": 1})
        self.halts = list(halts)
        self.asked: List[str] = []
        self.answers: Dict[str, str] = {}
        self.on_resume: Optional[Callable[[Optional[float]], Optional[Resumed]]] = None
        self.closed: Optional[bool] = None
        self.uptime = uptime
        self.base = NT
        self.link_down = False
        self.evaluator = "MASM"
        self.noise = ""
        self.driver = "leakdrv"
        self.silent_event = "Load module C:\\late.sys at fffff801`c3000000"
        rows = tuple((begin, end, 0x4800) for begin, end in _FUNCTIONS)
        for base in (NT, DRIVER):
            self.put(base, image(functions=rows, unwind={0x4800: _ALLOC_0X28}))
        self.put(HIT_TAG, bytes.fromhex("0fffffff"))
        self._lay_stack()

    # -- the target

    def put(self, address: int, data: bytes) -> None:
        for offset, byte in enumerate(data):
            at = address + offset
            self.pages.setdefault(at >> 12, bytearray(0x1000))[at & 0xFFF] = byte

    def bytes_at(self, address: int, size: int) -> Sequence[Optional[int]]:
        found: List[Optional[int]] = []
        for at in range(address, address + size):
            page = self.pages.get(at >> 12)
            found.append(page[at & 0xFFF] if page is not None else None)
        return found

    def registers(self) -> Dict[str, int]:
        names = [
            "rax",
            "rbx",
            "rcx",
            "rdx",
            "rsi",
            "rdi",
            "rip",
            "rsp",
            "rbp",
            "r8",
            "r9",
            "r10",
            "r11",
            "r12",
            "r13",
            "r14",
            "r15",
        ]
        values = dict.fromkeys(names, 0)
        values.update(self.halt.registers, rip=self.halt.rip, rsp=self.halt.rsp)
        return values

    def _lay_stack(self) -> None:
        self.pages[STACK_PAGE >> 12] = bytearray(0x1000)
        for index, value in enumerate(self.halt.returns):
            self.put(self.halt.rsp + 0x28 + 0x30 * index, struct.pack("<Q", value))

    # -- the channel

    def execute(self, command: str, timeout: Optional[float] = None) -> str:
        del timeout
        if self.link_down:
            raise LinkLost(f"running {command}", "no answer", "look at the link")
        assert not self.running, command
        self.asked.append(command)
        if command in self.answers:
            return self.answers[command]
        verb, _, rest = command.partition(" ")
        answer = getattr(self, "_do_" + re.sub(r"\W", "_", verb), None)
        if answer is None:
            return f"       ^ Syntax error in '{command}'\n"
        return str(answer(rest))

    def resume(self, timeout: Optional[float]) -> Resumed:
        if self.link_down:
            raise LinkLost("waiting for the target", "the connection is lost", "look at the link")
        self.running = True
        if self.on_resume is not None:
            told = self.on_resume(timeout)
            if told is not None:
                return told
        if not self.halts:
            return Resumed(running=True)
        return self._stop_at(self.halts.pop(0))

    def interrupt(self, timeout: float) -> Resumed:
        del timeout
        if self.link_down:
            raise LinkLost("stopping the target", "it did not stop", "look at the link")
        return self._stop_at(Halt(BREAK_IN, registers={"rcx": 1}))

    def _stop_at(self, halt: Halt) -> Resumed:
        self.running = False
        self.halt = halt
        self._lay_stack()
        return Resumed(text=halt.text, processor=halt.processor)

    def close(self, leave_stopped: bool = False) -> None:
        self.closed = leave_stopped

    # -- its words

    def _name(self, address: int) -> str:
        start = max((at for at in _NAMES if at <= address), default=0)
        if not start or address - start > 0x1000:
            return _wide(address)
        name = _NAMES[start].replace("leakdrv", self.driver)
        return name + (f"+0x{address - start:x}" if address > start else "")

    def _do_vertarget(self, rest: str) -> str:
        return (
            "Windows 10 Kernel Version 22621 MP (2 procs) Free x64\n"
            "Built by: 22621.1.amd64fre.fake\nMachine Name:\n"
            f"Kernel base = 0x{_wide(self.base)} PsLoadedModuleList = "
            f"0x{_wide(self.base + 0x6268)}\n"
            f"System Uptime: 0 days 0:{int(self.uptime) // 60:02}:{self.uptime % 60:06.3f}\n"
        )

    def _do__lastevent(self, rest: str) -> str:
        said = self.halt.text.strip().rpartition("\n")[2]
        found = re.fullmatch("Breakpoint ([0-9]+) hit", said)
        said = f"Hit breakpoint {found[1]}" if found else said or self.silent_event
        return f"Last event: {said}\n  debugger time: Mon Nov 30 22:56:29.407 2026\n"

    def _do__reload(self, rest: str) -> str:
        return "Connected to Windows 10 22621 x64 target\nLoading Kernel Symbols\n....\n"

    def _do_lm(self, rest: str) -> str:
        rows = [
            f"{_wide(base)} {_wide(base + 0x8000)}   {name:<10} (pdb symbols)"
            f"          C:\\symbols\\{name}.pdb\n"
            for base, name in ((NT, "nt"), (DRIVER, self.driver))
        ]
        return "start             end                 module name\n" + "".join(rows)

    def _do__(self, rest: str) -> str:  # "?"
        found = re.fullmatch(r"@@masm\((.*)\)", rest)
        name = found[1] if found else rest
        for address, known in _NAMES.items():
            if known.lower() == name.lower():
                return f"Evaluate expression: {address - (1 << 64)} = {_wide(address)}\n"
        return f"Couldn't resolve error at '{name}'\n"

    def _do__expr(self, rest: str) -> str:
        kinds = {"MASM": "Microsoft Assembler expressions", "C++": "C++ source expressions"}
        return f"Current expression evaluator: {self.evaluator} - {kinds[self.evaluator]}\n"

    def _do_ln(self, rest: str) -> str:
        address = int(rest, 16)
        start = max(at for at in _NAMES if at <= address)
        return f"({_wide(start)})   {self._name(address)}   |  ({_wide(start + 0x100)})   nt!Next\n"

    def _do_r(self, rest: str) -> str:
        values = self.registers()
        cells = [f"{name:>3}={value:016x}" for name, value in values.items()]
        rows = [" ".join(cells[i : i + 3]) for i in range(0, len(cells), 3)]
        return "\n".join(rows) + f"\n{self._name(self.halt.rip)}:\n"

    def _do_db(self, rest: str) -> str:
        return self._dump(rest, 1)

    def _do_dq(self, rest: str) -> str:
        return self._dump(rest, 8)

    def _dump(self, rest: str, width: int) -> str:
        where, count = rest.split()
        address, size = int(where, 16), int(count[1:], 16) * width
        data = self.bytes_at(address, size)
        rows = []
        for start in range(0, size, 16):
            cells = []
            for at in range(start, min(start + 16, size), width):
                part = data[at : at + width]
                text = "??" * width if None in part else bytes(part)[::-1].hex()  # type: ignore[arg-type]
                cells.append(f"{text[:8]}`{text[8:]}" if width == 8 else text)
            rows.append(f"{_wide(address + start)}  {' '.join(cells)}\n")
        return "".join(rows)

    def _do_ed(self, rest: str) -> str:
        place, value = rest.split()
        if place == "nt!PoolHitTag" and self.evaluator == "MASM":
            address = HIT_TAG
        elif place == "nt!PoolHitTag":  # what it points to
            address = struct.unpack("<I", bytes(self.bytes_at(HIT_TAG, 4)))[0]  # type: ignore[arg-type]
        else:
            address = int(place, 16)
        self.put(address, struct.pack("<I", int(value, 16)))
        return self.noise

    def _do_kn(self, rest: str) -> str:
        rows = [" # Child-SP          RetAddr           Call Site\n"]
        addresses = [self.halt.rip, *self.halt.returns]
        for index, (here, back) in enumerate(zip(addresses, addresses[1:])):
            pointer = self.halt.rsp + 0x30 * index
            rows.append(f"{index:02x} {_wide(pointer)} {_wide(back)} {self._name(here)}\n")
        return "".join(rows)

    def _do_kb(self, rest: str) -> str:
        nothing = " ".join(["00000000`00000000"] * 4)
        rows = ["RetAddr           : Args to Child" + " " * 59 + ": Call Site\n"]
        addresses = [self.halt.rip, *self.halt.returns]
        rows += [
            f"{_wide(back)} : {nothing} : {self._name(here)}\n"
            for here, back in zip(addresses, addresses[1:])
        ]
        return "".join(rows)

    def _do__poolused(self, rest: str) -> str:
        return (
            "The call to LoadLibrary(ext) failed, Win32 error 0n2\n"
            '    "File not found."\n'
            "Please check your debugger configuration and/or network access.\n"
            "No export poolused found\n"
        )
