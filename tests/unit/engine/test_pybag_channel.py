# ruff: noqa: N802 - the names of pykd and pybag
"""The channel over pybag, with modules that behave as pybag 2.2.16 does."""

from __future__ import annotations

import itertools
import queue
import sys
import threading
import types

import pytest

from kdleak.engine.channels.pybag import attach_pybag
from kdleak.engine.channels.running_text import RunningText
from kdleak.errors import LinkLost, MemoryUnreadable, MissingDependency, NoTarget, TargetError

BREAK, GO, NO_DEBUGGEE = 6, 1, 7
CONNECTION = "net:port=50000,key=9.8.7.6"
NAMES = ("rax", "rsp", "rip", "eip", "efl")


class DbgEngError(OSError):
    pass


class WorkItem:
    def __init__(self, task, timeout, args=None):
        self.task, self.timeout, self.args = task, timeout, args


class DbgEngCallbacks:
    def __init__(self, events, stdout):
        self._ev, self.stdout = events, stdout

    def IDebugOutputCallbacks_Output(self, mask, text):
        self.stdout.write(text.decode("utf-8"))


class Engine:
    """DbgEng as far as pybag's objects show it."""

    def __init__(self):
        self.options = 0x200
        self.status = NO_DEBUGGEE
        self.interrupted = threading.Event()
        self.stops = queue.Queue()
        self.callbacks = None
        self.refuse = None
        self.silent = False
        self.commands = []
        self.registers = {"rax": -1, "rsp": 0x1000, "rip": 0xFFFFF80181200000, "eip": 1, "efl": 2}
        self.memory = b"Leak"
        self.opened = None
        self.dump_result = 0

    def say(self, text):
        self.callbacks.IDebugOutputCallbacks_Output(1, text)

    # IDebugClient
    def AttachKernel(self, options, flags=0):
        if self.refuse:
            raise DbgEngError(self.refuse)
        self.say(b"Kernel base = 0xfffff801`81200000\r\n")
        self.status = GO

    def SetOutputCallbacks(self, callbacks):
        self.callbacks = callbacks

    SetEventCallbacks = SetOutputMask = lambda self, _: None

    # IDebugControl
    def WaitForEvent(self, timeout=0xFFFFFFFF):
        if timeout != 0xFFFFFFFF:
            raise DbgEngError("Not implemented")  # a live kernel
        if self.options & 0x20 and not self.silent:
            self.options &= ~0x20
            self.status = BREAK
            return
        for _ in itertools.count():
            if self.interrupted.wait(0.01) and not self.silent:
                self.interrupted.clear()
                self.say(b"You are seeing this message\n")
                self.status = BREAK
                return
            if not self.stops.empty():
                stop = self.stops.get()
                if isinstance(stop, Exception):
                    raise stop
                self.status = stop
                return

    def AddEngineOptions(self, options):
        self.options |= options

    def GetExecutionStatus(self):
        return self.status

    def SetExecutionStatus(self, status):
        self.status = status

    def SetInterrupt(self, flags=0):
        self.interrupted.set()

    def GetInterrupt(self):
        was = self.interrupted.is_set()
        self.interrupted.clear()
        return was

    def Execute(self, command):
        command = command.decode()
        self.commands.append(command)
        if command == "bogus":
            self.say(b"   ^ Syntax error in 'bogus'\r\n")
            raise DbgEngError(-2147220987)
        if command == "silent failure":
            raise DbgEngError(-2147220987)
        if command == "latin":
            self.say(b"caf\xe9\n")
        if command == "||":
            self.say(b"Trans=@{NET:Port=50000,Key=9.8.7.6,Target}\n")
        if command == "slow":
            assert self.interrupted.wait(10)
            raise DbgEngError("interrupted")

    # IDebugSystemObjects, IDebugRegisters
    def GetEventThread(self):
        return 1

    def GetIndexByName(self, name):
        if name not in NAMES:
            raise DbgEngError("The object searched for was not found")
        return NAMES.index(name)

    def GetValue(self, index):
        return self.registers[NAMES[index]]


@pytest.fixture
def engine(monkeypatch):
    engine = Engine()

    class KernelDbg:
        def __init__(self):
            self._client = types.SimpleNamespace(
                AttachKernel=engine.AttachKernel,
                SetOutputCallbacks=engine.SetOutputCallbacks,
                SetEventCallbacks=engine.SetEventCallbacks,
                _cli=types.SimpleNamespace(OpenDumpFile=self._open),
            )
            self._control = types.SimpleNamespace(
                **{
                    name: getattr(engine, name)
                    for name in [
                        "WaitForEvent",
                        "AddEngineOptions",
                        "GetExecutionStatus",
                        "SetExecutionStatus",
                        "SetInterrupt",
                        "GetInterrupt",
                        "Execute",
                    ]
                }
            )
            self._systems = self._registers = engine
            self.events = object()
            self._q = queue.Queue()
            self._ev = threading.Event()
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()

        def _open(self, path):
            engine.opened = path
            if engine.dump_result:
                return engine.dump_result
            engine.status = GO
            engine.stops.put(BREAK)
            return 0

        def _work(self):
            """As pybag's EventThread: whatever is raised is forgotten."""
            while True:
                item = self._q.get()
                try:
                    if item.task == "WaitForEvent":
                        self._control.WaitForEvent(item.timeout)
                    elif item.task == "AttachKernel":
                        self._client.AttachKernel(item.args[0])
                    elif item.task == "Quit":
                        return
                except Exception:  # noqa: BLE001, S110
                    pass
                self._ev.set()

        def set_output_mask(self, mask):
            engine.mask = mask

        def read(self, address, size):
            if address == 0:
                raise DbgEngError(-2147024866)
            return engine.memory[:size]

    package = types.ModuleType("pybag")
    package.KernelDbg = KernelDbg
    pydbg = types.ModuleType("pybag.pydbg")
    pydbg.WorkItem = WorkItem
    callbacks = types.ModuleType("pybag.dbgeng.callbacks")
    callbacks.DbgEngCallbacks = DbgEngCallbacks
    dbgeng = types.ModuleType("pybag.dbgeng")
    for module in (package, pydbg, callbacks, dbgeng):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    yield engine
    engine.stops.put(BREAK)


@pytest.fixture
def channel(engine):
    opened = attach_pybag(CONNECTION, timeout=5.0)
    yield opened
    engine.silent = False
    opened.close()


def test_attach(engine):
    text = RunningText()
    channel = attach_pybag(CONNECTION, "C:\\symbols", timeout=5.0, text=text)
    assert (channel.name, channel.session, channel.where) == (
        "pybag",
        "live kernel",
        "net:port=50000",
    )
    assert engine.options & 0x200, "options that were set are kept"
    assert engine.commands == [".sympath C:\\symbols"]
    assert "Kernel base" in text.take()
    assert not channel.running
    channel.close()
    assert engine.commands[-1] == "qd"


def test_refused_attach_is_no_success(engine):
    engine.refuse = f"0x80070057 {CONNECTION}"
    with pytest.raises(NoTarget, match="0x80070057") as raised:
        attach_pybag(CONNECTION, timeout=5.0)
    assert "9.8.7.6" not in str(raised.value)


def test_nobody_answers(engine):
    engine.silent = True
    with pytest.raises(NoTarget, match="no answer within"):
        attach_pybag(CONNECTION, timeout=0.3)


def test_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "pybag", None)
    with pytest.raises(MissingDependency) as raised:
        attach_pybag(CONNECTION)
    assert "WINDBG_DIR" in raised.value.next_step


def test_commands(channel):
    assert channel.execute("bogus") == "   ^ Syntax error in 'bogus'\n"
    assert channel.execute("silent failure") == "command failed: -2147220987\n"
    assert channel.execute("latin").startswith("caf")
    assert "9.8.7.6" not in channel.execute("||")
    with pytest.raises(LinkLost, match="interrupted"):
        channel.execute("slow", timeout=0.05)


def test_runs_on_until_interrupted(channel, engine):
    assert channel.resume(0.05).running
    assert channel.running
    with pytest.raises(TargetError, match="runs"):
        channel.execute("r")
    engine.say(b"DbgPrint\n")
    stop = channel.interrupt(5.0)
    assert stop.text == "DbgPrint\nYou are seeing this message\n"
    assert (stop.processor, channel.running) == (1, False)
    assert not channel.interrupt(0.1).running


def test_hits(channel, engine):
    for _ in range(20):
        engine.stops.put(BREAK)
        assert not channel.resume(5.0).running


def test_interrupt_that_came_too_late_is_forgotten(channel, engine):
    engine.interrupted.set()
    assert channel.resume(0.1).running
    channel.interrupt(5.0)


def test_interrupt_that_is_not_heard(channel, engine):
    assert channel.resume(0.05).running
    engine.silent = True
    for _ in range(2):
        with pytest.raises(LinkLost, match="did not stop"):
            channel.interrupt(0.1)
    engine.silent = False
    assert not channel.interrupt(5.0).running


def test_lost(channel, engine):
    engine.stops.put(DbgEngError("The target was not accessible"))
    with pytest.raises(LinkLost, match="not accessible"):
        channel.resume(5.0)
    engine.stops.put(NO_DEBUGGEE)
    with pytest.raises(LinkLost, match="no target"):
        channel.resume(5.0)


def test_registers_and_memory(channel, engine):
    assert channel.quick.registers() == {
        "rax": 0xFFFFFFFFFFFFFFFF,
        "rsp": 0x1000,
        "rip": 0xFFFFF80181200000,
        "efl": 2,
    }
    assert channel.quick.read(0x1000, 4) == b"Leak"
    with pytest.raises(MemoryUnreadable):
        channel.quick.read(0, 4)
    with pytest.raises(MemoryUnreadable) as raised:
        channel.quick.read(0x1000, 8)
    assert raised.value.address == 0x1004


def test_dump(engine):
    channel = attach_pybag("C:\\m.dmp", dump=True, timeout=5.0)
    assert engine.opened == b"C:\\m.dmp"
    assert (channel.session, channel.where) == ("dump", "C:\\m.dmp")
    channel.close()
    assert engine.commands[-1] == "q"


def test_what_is_no_dump(engine):
    engine.dump_result = -2147024809
    with pytest.raises(TargetError, match=r"0x80070057.*kernel crash dump") as raised:
        attach_pybag("C:\\notes.txt", dump=True, timeout=5.0)
    assert not isinstance(raised.value, NoTarget)
