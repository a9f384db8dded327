"""The unwinder against the truth: compiled functions run, every instruction is a stop.

A shadow stack, kept by watching calls and returns, says what each walk must find: in prologs,
bodies, epilogs, with dynamic frames, saved registers, chained parts and an interrupt's frame.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import capstone
import pytest
import unicorn
from unicorn import x86_const

from kdleak.errors import MemoryUnreadable
from kdleak.model import StackEnd
from kdleak.nt.memory import CachedMemory
from kdleak.nt.pe import read_exports, read_image
from kdleak.nt.unwind import REGISTERS, unwind
from kdleak.nt.unwind_data import FunctionTable

pytestmark = [
    pytest.mark.build,
    pytest.mark.skipif(
        not shutil.which("clang-19") or not shutil.which("lld-link-19"), reason="needs clang-19"
    ),
]

SOURCES = Path(__file__).parent / "unwind_sources"
BASE = 0xFFFFF80010000000
STACK = 0xFFFFFA8000000000
STACK_SIZE = 0x200000
TIMES = 3  # walks per instruction; loops would repeat the same ones

UNICORN_REGISTERS = [getattr(x86_const, f"UC_X86_REG_{name.upper()}") for name in REGISTERS]


class Pieces:
    def __init__(self, address, data):
        self.address, self.data = address, data

    def read(self, address, size):
        offset = address - self.address
        if offset < 0 or offset + size > len(self.data):
            raise MemoryUnreadable(address, size)
        return self.data[offset : offset + size]


def mapped(path: Path) -> bytes:
    """The image as the loader maps it."""
    raw = path.read_bytes()
    header = struct.unpack_from("<I", raw, 0x3C)[0]
    count, optional = struct.unpack_from("<6xH12xH", raw, header)
    size, headers = struct.unpack_from("<II", raw, header + 24 + 0x38)
    image = bytearray(size)
    image[:headers] = raw[:headers]
    for index in range(count):
        at = header + 24 + optional + 40 * index
        virtual, rva, length, offset = struct.unpack_from("<IIII", raw, at + 8)
        length = min(length, virtual)
        image[rva : rva + length] = raw[offset : offset + length]
    return bytes(image)


@pytest.fixture(scope="module", params=["O0", "O1", "O2", "Os"])
def image(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    target = "--target=x86_64-pc-windows-msvc"
    subprocess.run(
        ["clang-19", target, "-c", f"-{request.param}", "-ffreestanding",
         "-fasynchronous-unwind-tables",
         SOURCES / "frames.c", "-o", folder / "c.obj"], check=True)  # fmt: skip
    subprocess.run(
        ["clang-19", target, "-c", SOURCES / "frames_asm.s", "-o", folder / "s.obj"], check=True
    )
    subprocess.run(
        ["lld-link-19", "/dll", "/noentry", "/nodefaultlib", "/export:entry",
         "/export:asm_interrupted",
         f"/out:{folder / 'f.dll'}", folder / "c.obj", folder / "s.obj"], check=True)  # fmt: skip
    return mapped(folder / "f.dll")


class Execution:
    """Runs ``entry`` and compares the walk at every instruction with the shadow stack."""

    def __init__(self, image: bytes) -> None:
        self.emulator = unicorn.Uc(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
        self.emulator.ctl_set_tlb_mode(unicorn.UC_TLB_VIRTUAL)
        self.emulator.mem_map(BASE, (len(image) + 0xFFF) & ~0xFFF)
        self.emulator.mem_write(BASE, image)
        self.emulator.mem_map(STACK, STACK_SIZE)
        self.memory = CachedMemory(Pieces(BASE, image)).constant
        headers = read_image(self.memory, BASE)
        assert headers is not None
        self.size = headers.size
        self.table = FunctionTable(self.memory, BASE, headers.size, *headers.exception_directory)
        self.exports = {name: rva for rva, name in read_exports(self.memory, headers)}
        self.decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
        self.shadow: list[int] = []
        self.seen: dict[int, int] = {}
        self.wrong: list[str] = []
        self.walks = 0
        self.interrupted: int | None = None
        self._pending = None

    def read(self, address, size):
        return bytes(self.emulator.mem_read(address, size))

    def look_up(self, address):
        return self.table if BASE <= address < BASE + self.size else None

    def run(self) -> None:
        top = STACK + STACK_SIZE - 0x1000
        self.emulator.reg_write(x86_const.UC_X86_REG_RSP, top)
        self.emulator.mem_write(top, bytes(8))
        self.emulator.hook_add(unicorn.UC_HOOK_CODE, self._hook)
        self.emulator.emu_start(BASE + self.exports["entry"], 0, count=1_000_000)
        assert not self.shadow

    def _hook(self, emulator, address, size, _):
        if self._pending is not None:
            if self._pending:
                self.shadow.append(self._pending)
            elif self.shadow:
                self.shadow.pop()
            self._pending = None
        instruction = next(self.decoder.disasm(bytes(emulator.mem_read(address, size)), address))
        self.seen[address] = self.seen.get(address, 0) + 1
        if self.seen[address] <= TIMES:
            self._compare(address, instruction)
        if instruction.mnemonic == "call":
            self._pending = address + size
        elif instruction.mnemonic == "ret":
            self._pending = 0

    def _compare(self, address, instruction):
        values = [self.emulator.reg_read(number) for number in UNICORN_REGISTERS]
        registers = dict(zip(REGISTERS, values))
        registers["rip"] = address
        found = unwind(registers, self.look_up, self, self.memory, 64)
        self.walks += 1
        got = [ip for ip, _ in found.frames[1:]]
        wanted = self.shadow[::-1]
        # Between the pushes of the pretended interrupt and its end, the interrupted function
        # is one frame more than calls and returns tell; see asm_interrupted.
        if found.end is StackEnd.COMPLETE and (got == wanted or self._through_frame(got, wanted)):
            return
        text = f"{address - BASE:x} {instruction.mnemonic} {instruction.op_str}: {found.end} "
        self.wrong.append(
            text + f"{[hex(a - BASE) for a in got]} not {[hex(a - BASE) for a in wanted]}"
        )

    def _through_frame(self, got, wanted):
        for index, address in enumerate(got):
            if got[:index] + got[index + 1 :] == wanted:
                self.interrupted = address
                return address not in wanted
        return False


def test_every_instruction(image):
    execution = Execution(image)
    execution.run()
    # asm_interrupted pushes a machine frame by hand, and machine_frame behind it takes it down:
    # in between no unwind data can describe the stack.
    by_hand = execution.exports["asm_interrupted"]
    assert [line for line in execution.wrong if int(line.split()[0], 16) < by_hand] == []
    assert len(execution.wrong) <= 12
    assert execution.walks > 900
    assert execution.interrupted is not None
