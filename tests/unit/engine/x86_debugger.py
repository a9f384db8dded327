"""A debugger attached to a 32-bit kernel, in the layouts of tests/transcripts."""

from __future__ import annotations

import struct
from typing import Dict, List, Optional

from kdleak.engine.channels.base import LIVE_KERNEL, Resumed

HIT_TAG = 0x8064035C
BREAK_IN = 0x8059CECE
USER_BREAK = 0x8059CEC8
ORIGINAL = 0xFFFFFF0F

_VERTARGET = """\
Windows Server 2003 Kernel Version 3790 (Service Pack 2) UP Checked x86 compatible
Built by: 20261130-7432f4e
Machine Name:
Kernel base = 0x80400000 PsLoadedModuleList = 0x806420a4
Debug session time: Mon Nov 30 17:42:09.278 2026 (UTC + 0:00)
System Uptime: 0 days 0:04:16.297 (checked kernels begin at 49 days)
"""
_LM = """\
start    end        module name
7c920000 7c9f3000   ntdll      (export symbols)       ntdll.dll
80400000 806a0000   nt         (pdb symbols)          C:\\symbols\\ntoskrnl.pdb
"""
_STACK = """\
ChildEBP RetAddr  Args to Child{blanks}
f7e7b92c 804bc671 656c6946 000000a8 00000000 nt!DbgUserBreakPoint
f7e7b974 8051f260 00000000 000000a0 656c6946 nt!ExAllocatePoolWithTag+0xa0e
f7e7b9b4 8051f712 b0f0d9c8 f7e7b9e4 b1436ac0 nt!ObpAllocateObject+0xf5
f7e7bd64 7c92f4ae badb0d00 0161fe5c 00000000 nt!KiFastCallEntry+0x93
WARNING: Stack unwind information not available. Following frames may be wrong.
f7e7bd68 badb0d00 0161fe5c 00000000 00000000 ntdll!KiFastSystemCallRet
""".format(blanks=" " * 14)
_SYMBOLS = {
    "nt!poolhittag": HIT_TAG,
    "nt!dbgbreakpointwithstatus": BREAK_IN - 2,
    "nt!rtlpbreakwithstatusinstruction": BREAK_IN,
}
_BANNER = "Break instruction exception - code 80000003 (first chance)\n"


class X86Debugger:
    """A Channel of text only; every resume ends with a hit unless ``surplus`` break-ins come."""

    name = "fake"
    where = "com:port=COM1"
    session = LIVE_KERNEL
    quick = None

    def __init__(self) -> None:
        self.running = False
        self.eip = BREAK_IN
        self.surplus = 0
        self.memory: Dict[int, bytes] = {HIT_TAG: struct.pack("<I", ORIGINAL)}
        self.asked: List[str] = []

    def execute(self, command: str, timeout: Optional[float] = None) -> str:
        del timeout
        self.asked.append(command)
        verb, _, rest = command.partition(" ")
        if verb == "?":
            address = _SYMBOLS[rest[len("@@masm(") : -1].lower()]
            return f"Evaluate expression: {address - (1 << 32)} = {address:08x}\n"
        if verb in ("db", "dq"):
            where, count = rest.split()
            return self._dump(int(where, 16), int(count[1:], 16), 8 if verb == "dq" else 1)
        if verb == "ed":
            place, value = rest.split()
            assert place == "nt!PoolHitTag"
            self.memory[HIT_TAG] = struct.pack("<I", int(value, 16))
            return ""
        return {
            "vertarget": _VERTARGET,
            ".expr": "Current expression evaluator: MASM - Microsoft Assembler expressions\n",
            ".lastevent": f"Last event: {_BANNER}  debugger time: Mon Nov 30 22:59:03.072 2026\n",
            "lm": _LM,
            "r": f"eax=00000001 ebx=00000000 ecx=656c6946 edx=00000000 esi=00000000 edi=00000000\n"
            f"eip={self.eip:08x} esp=f7e7b92c ebp=f7e7b974 iopl=0         nv up ei pl zr na pe nc\n"
            "cs=0008  ss=0010  ds=0023  es=0023  fs=0030  gs=0000             efl=00000246\n"
            f"nt!Somewhere:\n{self.eip:08x} cc              int     3\n",
            "kb 0x20": _STACK,
        }[command]

    def _dump(self, address: int, count: int, width: int) -> str:
        assert address >> 32 in (0, 0xFFFFFFFF)
        at = address & 0xFFFFFFFF
        known = {base + i: one for base, data in self.memory.items() for i, one in enumerate(data)}
        cells = []
        for start in range(at, at + count * width, width):
            values = [known.get(start + i) for i in range(width)]
            text = "".join("??" if one is None else f"{one:02x}" for one in reversed(values))
            cells.append(f"{text[:8]}`{text[8:]}" if width == 8 else text)
        per_row = 16 // width
        return "".join(
            f"{at + row * width:08x}  {' '.join(cells[row : row + per_row])}\n"
            for row in range(0, len(cells), per_row)
        )

    def resume(self, timeout: Optional[float]) -> Resumed:
        del timeout
        if self.surplus:
            self.surplus -= 1
            return self.interrupt(0.0)
        self.eip = USER_BREAK
        return Resumed(text=_BANNER + f"nt!DbgUserBreakPoint:\n{USER_BREAK:08x} cc   int     3\n")

    def interrupt(self, timeout: float) -> Resumed:
        del timeout
        self.eip = BREAK_IN
        return Resumed(text=_BANNER)

    def close(self, leave_stopped: bool = False) -> None:
        del leave_stopped
