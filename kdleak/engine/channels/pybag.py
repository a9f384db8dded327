"""The channel over pybag's ``KernelDbg``, standalone only.

Of pybag only its objects for DbgEng's interfaces and its worker thread are used, since its own
``attach``, ``go``, ``wait`` and ``cmd`` have traps (seen with 2.2.16): the worker swallows every
exception, so that a refused attach looks like success and then hangs; a time limit is handed to
DbgEng, which refuses one for a live kernel, and the wait ends at once as if the target had
stopped; the attach replaces the engine's options; a byte that is no UTF-8 raises inside a COM
callback. DbgEng wants its waits on the thread that attached: that is the worker.
"""

from __future__ import annotations

import contextlib
import importlib
import locale
import time
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Tuple

from kdleak.engine.channels.base import CHECK_DUMP, DUMP, LIVE_KERNEL, QuickAccess, Resumed
from kdleak.engine.channels.deadline import Deadline
from kdleak.engine.channels.kd_text import says_lost
from kdleak.engine.channels.pybag_worker import PybagWorker
from kdleak.engine.channels.register_names import PROGRAM_COUNTERS, REGISTERS, width_mask
from kdleak.engine.channels.running_text import RunningText
from kdleak.engine.channels.secrecy import where_of, without_key
from kdleak.errors import (
    LinkLost,
    MemoryUnreadable,
    MissingDependency,
    NoTarget,
    NotLive,
    TargetError,
)

_BREAK, _NO_DEBUGGEE, _GO = 6, 7, 1  # DEBUG_STATUS_*
_INITIAL_BREAK = 0x20  # DEBUG_ENGOPT_INITIAL_BREAK
_MASK = 0x3F7  # DEBUG_OUTPUT_*: all but VERBOSE; of prompts there are none in Execute's output

_INSTALL = (
    "`py -m pip install pybag` (Windows only), and set WINDBG_DIR to the folder with WinDbg's "
    "dbgeng.dll if it is not found"
)


class Output:
    """Where DbgEng's output goes: to the command that runs, else to what is printed meanwhile.

    Args:
        meanwhile: takes what no command asked for.
    """

    def __init__(self, meanwhile: RunningText) -> None:
        self.meanwhile = meanwhile
        self.command: Optional[RunningText] = None

    def write(self, text: str) -> None:
        """Called by DbgEng's callback, on whichever thread."""
        command = self.command
        (self.meanwhile if command is None else command).write(text)
        if command is not None and says_lost(text):
            self.meanwhile.write(text)  # the command may never come to its end


class PybagChannel:
    """A DbgEng session through pybag.

    Args:
        debugger: a KernelDbg that is attached and stopped.
        worker: its worker thread.
        output: where its text goes.
        where: the target, without secrets.
        session: ``LIVE_KERNEL`` or ``DUMP``.
        connection: whose key must not show in any text.
        clock: seconds, monotonic.
    """

    name = "pybag"

    def __init__(
        self,
        debugger: Any,
        worker: PybagWorker,
        output: Output,
        where: str,
        session: str,
        *,
        connection: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._debugger = debugger
        self._worker = worker
        self._output = output
        self.where = where
        self.session = session
        self._connection = connection
        self._clock = clock
        self._quick = PybagAccess(debugger)

    @property
    def quick(self) -> QuickAccess:
        """Memory and registers: pybag always has them."""
        return self._quick

    @property
    def running(self) -> bool:
        """Whether the worker still waits for the target to stop."""
        return self._worker.busy

    def execute(self, command: str, timeout: Optional[float] = None) -> str:
        """Run one command line; see ``Channel.execute``."""
        doing = f"running `{without_key(command, self._connection)}` on {self.where}"
        if self._worker.busy:
            raise TargetError(doing, "the target runs", "stop it first")
        control = self._debugger._control
        answer = RunningText(limit=1 << 28)
        failure = ""
        self._output.command = answer
        try:
            with Deadline(timeout, control.SetInterrupt) as limit:
                try:
                    control.Execute(command.encode("utf-8"))
                except OSError as error:  # pybag's kinds derive from it
                    failure = " ".join(str(error).split()) or type(error).__name__
        finally:
            self._output.command = None
        if limit.fired:
            self._forget_interrupt()
            raise LinkLost(
                doing,
                f"no answer within {timeout:.0f} s, then it was interrupted",
                "check that the link to the target still works",
            )
        text = without_key(answer.take(), self._connection)
        return text if text.strip() or not failure else f"{text}command failed: {failure}\n"

    def resume(self, timeout: Optional[float]) -> Resumed:
        """Let it run and wait; see ``Channel.resume``. The target runs on when the time is over."""
        if self.session != LIVE_KERNEL:
            raise NotLive(f"letting {self.where} run", f"it is a {self.session}")
        if not self._worker.busy:
            control = self._debugger._control
            try:
                self._forget_interrupt()
                control.SetExecutionStatus(_GO)
            except OSError as error:
                raise self._lost("letting it run", error) from None
            self._worker.post("WaitForEvent")
        return self._wait(timeout)

    def break_in(self) -> None:
        """Ask for a stop, from any thread, and return at once."""
        self._debugger._control.SetInterrupt()

    def interrupt(self, timeout: float) -> Resumed:
        """Stop a running target; see ``Channel.interrupt``."""
        if not self._worker.busy:
            return self._stopped()
        try:
            self.break_in()
        except OSError as error:
            raise self._lost("stopping it", error) from None
        resumed = self._wait(timeout)
        if resumed.running:
            # What was printed belongs to whoever asks next.
            self._output.meanwhile.write(resumed.text)
            raise LinkLost(
                f"stopping {self.where} over pybag",
                f"it did not stop within {timeout:.0f} s",
                "check the target and its link",
            )
        return resumed

    def close(self, leave_stopped: bool = False) -> None:
        """Leave the session; see ``Channel.close``. While it waits nothing can be done but end."""
        if self._worker.busy:
            return
        if not leave_stopped:
            with contextlib.suppress(TargetError):
                self.execute("q" if self.session == DUMP else "qd", timeout=10.0)
        self._worker.quit()

    def _wait(self, timeout: Optional[float]) -> Resumed:
        control = self._debugger._control
        until = None if timeout is None else self._clock() + timeout
        while True:
            left = None if until is None else max(0.0, until - self._clock())
            if not self._worker.wait(left):
                return Resumed(text=self._meanwhile(), running=True)
            try:
                if self._worker.error is not None:
                    raise self._worker.error
                status = control.GetExecutionStatus()
            except OSError as error:
                raise self._lost("waiting for it to stop", error) from None
            if status == _BREAK:
                return self._stopped()
            if status == _NO_DEBUGGEE:
                raise self._lost("waiting for it to stop", "the debugger has no target any more")
            self._worker.post("WaitForEvent")

    def _stopped(self) -> Resumed:
        processor: Optional[int]
        try:
            processor = int(self._debugger._systems.GetEventThread())
        except OSError:
            processor = None
        return Resumed(text=self._meanwhile(), processor=processor)

    def _meanwhile(self) -> str:
        return without_key(self._output.meanwhile.take(), self._connection)

    def _forget_interrupt(self) -> None:
        """A request for a stop that came too late would end the next command instead."""
        with contextlib.suppress(OSError):
            self._debugger._control.GetInterrupt()

    def _lost(self, doing: str, why: object) -> LinkLost:
        reason = " ".join(str(why).split()) or type(why).__name__
        return LinkLost(
            f"{doing}: {self.where} over pybag",
            without_key(reason, self._connection),
            "check the target and its link; attach again and run `kdleak restore`",
        )


class PybagAccess:
    """Memory and registers through pybag. Registers cost the target no request, memory one.

    Args:
        debugger: a KernelDbg.
    """

    def __init__(self, debugger: Any) -> None:
        self._debugger = debugger
        self._indexes: Dict[str, int] = {}
        self._mask = 0

    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes; see ``QuickAccess``."""
        at = address
        if self._mask == 0xFFFFFFFF and 0x80000000 <= address <= 0xFFFFFFFF:
            at |= 0xFFFFFFFF00000000  # DbgEng's form of a 32-bit kernel address
        try:
            data = bytes(self._debugger.read(at, size))
        except OSError as error:
            reason = " ".join(str(error).split())
            raise MemoryUnreadable(address, size, f"the debugger says {reason}") from None
        if len(data) != size:
            raise MemoryUnreadable(address + len(data), size)
        return data

    def registers(self) -> Dict[str, int]:
        """Integer registers of the processor that stopped.

        Raises:
            TargetError: there are none (the target runs, or its processor cannot be read).
        """
        if not self._indexes:
            self._learn()
        register = self._debugger._registers
        try:
            return {
                name: int(register.GetValue(index)) & self._mask
                for name, index in self._indexes.items()
            }
        except (OSError, TypeError, ValueError) as error:
            raise TargetError("reading registers", " ".join(str(error).split())) from None

    def _learn(self) -> None:
        register = self._debugger._registers
        machine = next(
            (one for one, name in PROGRAM_COUNTERS.items() if _index(register, name) is not None),
            None,
        )
        # The 64-bit registers of x64 come first, so eip is not taken for x86.
        if machine is None:
            raise TargetError("reading registers", "the debugger knows no program counter")
        found = {name: _index(register, name) for name in REGISTERS[machine]}
        self._mask = width_mask(machine)
        self._indexes = {name: index for name, index in found.items() if index is not None}


def attach_pybag(
    connection: str,
    symbol_path: str = "",
    *,
    dump: bool = False,
    timeout: Optional[float] = None,
    text: Optional[RunningText] = None,
    attaching: Callable[[], None] = lambda: None,
) -> PybagChannel:
    """Attach in this process.

    Args:
        connection: WinDbg's ``-k`` string, or the path of a dump.
        symbol_path: WinDbg's ``-y``; "" for the engine's own.
        dump: whether ``connection`` is a dump's path.
        timeout: seconds for the target to stop; the engine goes on trying in this process
            afterwards, so that it must end.
        text: takes what is printed while it attaches and runs.
        attaching: called when pybag is loaded and the waiting begins.

    Raises:
        MissingDependency: no pybag, or no DbgEng for it.
        NoTarget: refused, or no answer.
        TargetError: it is no dump that the debugger can read.
    """
    output = Output(text if text is not None else RunningText())
    where = Path(connection).name if dump else where_of(connection)
    debugger, worker = _load(output)
    session = DUMP if dump else LIVE_KERNEL
    secret = "" if dump else connection
    channel = PybagChannel(debugger, worker, output, where, session, connection=secret)
    doing = f"opening {where} with pybag"
    try:
        debugger.set_output_mask(_MASK)
        if symbol_path:
            channel.execute(f".sympath {symbol_path}")
        attaching()
        if dump:
            worker.post_call(lambda: _open_dump(debugger, connection))
        else:
            debugger._control.AddEngineOptions(_INITIAL_BREAK)
            worker.post("AttachKernel", (connection,))
        worker.wait(None)
        if worker.error is not None:
            raise worker.error
        worker.post("WaitForEvent")
        resumed = channel._wait(timeout)
    except (OSError, LinkLost) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        if dump:
            raise TargetError(doing, said, CHECK_DUMP) from None
        raise NoTarget(
            doing,
            without_key(said, secret),
            "check the connection string, and that no other debugger uses the port",
        ) from None
    if resumed.running:
        raise NoTarget(
            doing,
            f"no answer within {timeout:.0f} s",
            "check that the target is up with kernel debugging on, the port and the key",
        )
    output.meanwhile.write(resumed.text)
    return channel


def _load(output: Output) -> Tuple[Any, PybagWorker]:
    try:
        pybag = importlib.import_module("pybag")
        callbacks = importlib.import_module("pybag.dbgeng.callbacks")
        work_item = importlib.import_module("pybag.pydbg").WorkItem
        debugger = pybag.KernelDbg()
        debugger.callbacks = _callbacks(callbacks.DbgEngCallbacks, debugger.events, output)
        client = debugger._client
        client.SetOutputCallbacks(debugger.callbacks)
        client.SetEventCallbacks(debugger.callbacks)
        return debugger, PybagWorker(debugger, work_item)
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise MissingDependency("loading pybag", reason, _INSTALL) from None


def _callbacks(base: Any, events: Any, output: Output) -> Any:
    """DbgEng's callbacks as pybag has them, but for text in any encoding.

    comtypes looks methods up when the object is made, so a class of our own is needed.
    """
    fallback = locale.getpreferredencoding(False)

    class Callbacks(base):  # type: ignore[misc]
        def IDebugOutputCallbacks_Output(self, _mask: int, text: bytes) -> None:  # noqa: N802
            output.write(_decoded(text, fallback))

    return Callbacks(events, output)


def _decoded(text: bytes, fallback: str) -> str:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        return text.decode(fallback, "replace")


def _open_dump(debugger: Any, path: str) -> None:
    """OpenDumpFile by the COM interface: pybag's own method is not implemented."""
    result = debugger._client._cli.OpenDumpFile(path.encode())
    if result:
        raise OSError(f"IDebugClient::OpenDumpFile answered 0x{result & 0xFFFFFFFF:08x}")


def _index(register: Any, name: str) -> Optional[int]:
    try:
        return int(register.GetIndexByName(name))
    except OSError:
        return None
