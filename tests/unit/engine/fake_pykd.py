# ruff: noqa: N802 - the names of pykd and pybag
"""A module like pykd 0.3.4.15 with a target that a test scripts."""

from __future__ import annotations

import enum
import threading
import types
import weakref
from typing import Callable, Dict, List, Optional


class DbgException(Exception):
    pass


class MemoryException(DbgException):
    pass


class ExecutionStatus(enum.IntEnum):
    NoChange = 0
    Go = 1
    Break = 2
    NoDebuggee = 3


class EventType(enum.IntEnum):
    Breakpoint = 1
    Exception = 2
    SessionStatus = 3


FAILED = "Call IDebugControl::ExecuteWide failed\nHRESULT 0x80040205"
BREAK_IN_ADDRESS = 0xFFFFF801812035D0
HIT_ADDRESS = 0xFFFFF8018121D18B


class FakePykd(types.ModuleType):
    """See the attributes for what a test may set."""

    def __init__(self) -> None:
        super().__init__("pykd")
        self.DbgException = DbgException
        self.MemoryException = MemoryException
        self.executionStatus = ExecutionStatus
        self.eventType = EventType
        fake = self

        class EventHandler:
            def __init__(self) -> None:
                # pykd keeps no reference: a handler hears as long as Python keeps it.
                fake.handlers.add(self)

        self.eventHandler = EventHandler
        self.handlers: weakref.WeakSet[object] = weakref.WeakSet()
        self.answers: Dict[str, str] = {}
        self.failures: Dict[str, str] = {}
        self.commands: List[str] = []
        self.masks: List[int] = []
        self.inside = True
        self.kernel = True
        self.dump = False
        self.status = ExecutionStatus.Break
        self.machine = "AMD64"
        self.registers: Dict[str, int] = {"rip": HIT_ADDRESS, "rsp": 0x1000, "rax": -1}
        self.memory: Dict[int, bytes] = {}
        self.address = HIT_ADDRESS
        self.event = EventType.Exception
        self.printed = ""
        self.stops: List[Callable[[], None]] = []
        self.broken_in = threading.Event()
        self.initialized = 0
        self.attached: List[str] = []

    def isWindbgExt(self) -> bool:
        return self.inside

    def isKernelDebugging(self) -> bool:
        return self.kernel

    def isDumpAnalyzing(self) -> bool:
        return self.dump

    def getExecutionStatus(self) -> ExecutionStatus:
        return self.status

    def initialize(self) -> None:
        self.initialized += 1

    def attachKernel(self, options: str = "") -> None:
        if "refused" in options:
            raise DbgException(f"Call IDebugClient::AttachKernel failed ({options})")
        self.attached.append(options)
        self._print("Kernel base = 0xfffff801`81200000\nSystem Uptime: 0 days 0:00:03.510\n")

    def dbgCommand(self, command: str, suppress: bool = True, mask: int = 1) -> Optional[str]:
        assert suppress
        self.commands.append(command)
        self.masks.append(mask)
        if command in self.failures:
            raise DbgException(FAILED)
        if command.startswith(".catch {") and command.endswith("}"):
            return self.failures.get(command[8:-1])
        return self.answers.get(command)

    def _print(self, text: str) -> None:
        for handler in list(self.handlers):
            handler.onDebugOutput(text, 1)

    def go(self) -> ExecutionStatus:
        if self.stops:
            self.stops.pop(0)()
        else:
            assert self.broken_in.wait(10), "nobody breaks in"
            self.address = BREAK_IN_ADDRESS
        self.broken_in.clear()
        self._print(self.printed)
        return self.status

    def breakin(self) -> None:
        self.broken_in.set()

    def getLastEvent(self) -> types.SimpleNamespace:
        return types.SimpleNamespace(type=self.event)

    def getLastException(self) -> types.SimpleNamespace:
        return types.SimpleNamespace(
            exceptionCode=0x80000003, firstChance=True, exceptionAddress=self.address
        )

    def findSymbol(self, address: int) -> str:
        return "nt!DbgBreakPointWithStatus" if address == BREAK_IN_ADDRESS else "nt!ExAllocate+0x4b"

    def getCurrentThreadId(self) -> int:
        return 1

    def getCPUMode(self) -> str:
        return f"pykd.pykd.CPUType.{self.machine}"

    def reg(self, name: str) -> int:
        if name not in self.registers:
            raise DbgException(f"invalid register name {name}")
        return self.registers[name]

    def loadBytes(self, address: int, size: int) -> List[int]:
        if address not in self.memory:
            raise MemoryException(f"Memory exception at {address:#x} target virtual address")
        return list(self.memory[address][:size])
