"""A KdHost made of a script: memory, a list of events to come, and a log of what was asked."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any, Callable

from kdleak.errors import LinkLost
from kdleak.kd.packets import ControlReport, ExceptionRecord, LoadSymbols, NewState, StateChange
from kdleak.kd.structures import Version

KERNEL = 0xFFFFF80010000000
DRIVER = 0xFFFFF80020000000
DATA = 0xFFFFF80040000000
HEAD = DATA
KDBG = DATA + 0x100
LIST = DATA + 0x1000
BREAK_IN = KERNEL + 0x5000
BUGCHECK = DATA + 0x3000
STACK = 0xFFFFFA8000002000  # top of the stack; the page above is absent
THREAD = 0xFFFFFA8000900000
BREAKPOINT = 0x80000003


def exception(pc: int, code: int = BREAKPOINT, *, stream: bytes = b"\xcc\xc3", **more: Any):
    address = more.pop("address", pc)
    first = more.pop("first_chance", True)
    return StateChange(
        new_state=NewState.EXCEPTION,
        level=6,
        processor=more.pop("processor", 0),
        processors=2,
        thread=THREAD,
        program_counter=pc,
        exception=ExceptionRecord(code=code, address=address, first_chance=first),
        control_report=ControlReport(
            instruction_stream=stream.ljust(16, b"\x90") if stream else b""
        ),
    )


def break_in():
    return exception(BREAK_IN)


def unicode_entry(next_: int, base: int, size: int, name: str, at: int) -> bytes:
    text = name.encode("utf-16-le")
    raw = bytearray(0xA0)
    struct.pack_into("<Q", raw, 0, next_)
    struct.pack_into("<Q", raw, 0x30, base)
    struct.pack_into("<I", raw, 0x40, size)
    struct.pack_into("<HHxxxxQ", raw, 0x58, len(text), len(text), at + 0xA0)
    return bytes(raw) + text


class ScriptedHost:
    """Memory is a dict of pages; ``script`` holds what ends each wait.

    Script items: a StateChange (the target stops), a number (that many seconds without news),
    LoadSymbols (an image comes or goes), an exception (raised), or a function (called).
    """

    max_read = 0x400
    break_in_pending = False
    state = None

    def __init__(self, *script: Any, version: Version | None = None) -> None:
        self.script = list(script)
        self.version = version or windows()
        self.memory: dict[int, bytearray] = {}
        self.requests = 0
        self.log: list[str] = []
        self.module_events: list[LoadSymbols] = []
        self.stopped = False
        self.closed = 0
        self.now = 1000.0
        self.context = bytearray(0x4D0)
        self.contexts_set: list[bytes] = []
        self.resumed_with: list[int] = []
        self.during: Callable[[str], None] = lambda _: None
        self.write_limit = 1 << 30
        self.whole_reads_only = False
        self.register("rsp", STACK - 0x800)
        self.fill(KERNEL + 0x5000, b"\xcc\xc3")
        self.fill(HEAD, struct.pack("<QQ", KDBG, KDBG))
        block = bytearray(0x360)
        struct.pack_into("<QQII", block, 0, HEAD, HEAD, 0x4742444B, 0x360)
        struct.pack_into("<Q", block, 0x18, KERNEL)
        struct.pack_into("<Q", block, 0x20, BREAK_IN)
        struct.pack_into("<Q", block, 0x48, LIST)
        struct.pack_into("<Q", block, 0x88, BUGCHECK)
        self.fill(KDBG, bytes(block))
        self.fill(LIST, struct.pack("<QQ", LIST + 0x100, 0))
        self.fill(
            LIST + 0x100,
            unicode_entry(LIST + 0x300, KERNEL, 0x100000, "ntoskrnl.exe", LIST + 0x100),
        )
        self.fill(LIST + 0x300, unicode_entry(LIST, DRIVER, 0x8000, "leak-drv.sys", LIST + 0x300))
        self.fill(BUGCHECK, bytes(40))
        self.fill(STACK - 0x1000, bytes(0x1000))

    # -- the target

    def fill(self, address: int, data: bytes) -> None:
        for offset, value in enumerate(data):
            page = self.memory.setdefault((address + offset) >> 12, bytearray(0x1000))
            page[(address + offset) & 0xFFF] = value

    def peek(self, address: int, size: int) -> bytes:
        found = bytearray()
        for at in range(address, address + size):
            page = self.memory.get(at >> 12)
            if page is None:
                break
            found.append(page[at & 0xFFF])
        if self.whole_reads_only and len(found) < size:
            return b""
        return bytes(found)

    def register(self, name: str, value: int) -> None:
        names = (
            "rax",
            "rcx",
            "rdx",
            "rbx",
            "rsp",
            "rbp",
            "rsi",
            "rdi",
            *(f"r{number}" for number in range(8, 16)),
            "rip",
        )
        struct.pack_into("<Q", self.context, 0x78 + 8 * names.index(name), value)

    # -- KdHost

    def _ask(self, what: str) -> None:
        assert self.stopped, f"{what} of a running target"
        self.requests += 1
        self.log.append(what)
        self.now += 0.001
        self.during(what)

    def _next_stop(self, timeout: float | None):
        while self.script:
            item = self.script.pop(0)
            if isinstance(item, StateChange):
                self.now += 0.01
                self.stopped = True
                struct.pack_into("<Q", self.context, 0xF8, item.program_counter)
                return item
            if isinstance(item, BaseException):
                raise item
            if isinstance(item, LoadSymbols):
                self.module_events.append(item)
            elif isinstance(item, float):
                if timeout is None:
                    timeout = item
                self.now += min(item, timeout)
                if item > timeout:
                    self.script.insert(0, item - timeout)
                timeout -= min(item, timeout)
                if not timeout:
                    return None
            else:
                item()
        self.now += timeout or 0.0
        return None

    def attach(self, timeout: float):
        self.during("attach")
        change = self._next_stop(timeout)
        assert change is not None
        return change

    def break_in(self, timeout: float):
        self.log.append("break in")
        change = self._next_stop(timeout)
        if change is None:
            raise LinkLost("breaking in", "nothing came")
        return change

    def wait(self, timeout: float | None):
        self.during("wait")
        return self._next_stop(timeout)

    def get_version(self) -> Version:
        self._ask("version")
        return self.version

    def read_virtual(self, address: int, size: int, processor: int | None = None) -> bytes:
        found = b""
        while len(found) < size:
            data = self.read_virtual_once(
                address + len(found), min(size - len(found), self.max_read)
            )
            found += data
            if len(data) < min(size, self.max_read):
                break
        return found[:size]

    def read_virtual_once(self, address: int, size: int) -> bytes:
        self._ask("read")
        return self.peek(address, size)

    def write_virtual(self, address: int, data: bytes) -> int:
        self._ask("write")
        data = data[: self.write_limit]
        self.fill(address, data)
        return len(data)

    def get_context(self, processor: int) -> bytes:
        self._ask("get context")
        return bytes(self.context)

    def set_context(self, processor: int, context: bytes) -> None:
        self._ask("set context")
        self.contexts_set.append(context)
        self.context = bytearray(context)

    def restore_breakpoints(self) -> None:
        self._ask("restore breakpoints")

    def resume(self, status: int = 0x10002, trace: bool = False, dr7: int = 0x400) -> None:
        self._ask("resume")
        self.resumed_with.append(status)
        self.stopped = False

    def detach(self) -> None:
        self.log.append("detach")
        self.resume()
        self.close()

    def close(self) -> None:
        self.closed += 1


def windows(**more: Any) -> Version:
    version = Version(
        major=0xF, minor=19045, protocol=6, secondary=2, flags=7, machine=0x8664,
        max_packet_type=0xC, max_state_change=3, max_manipulate=0x31, simulation=0,
        kernel_base=KERNEL, loaded_module_list=LIST, debugger_data_list=HEAD,
    )  # fmt: skip
    return replace(version, **more)
