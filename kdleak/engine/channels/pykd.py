"""The channel over pykd: inside WinDbg (``!py``), and standalone for a child process of ours.

pykd hands commands to DbgEng and their text back, reads registers and memory through DbgEng's
interfaces, and waits inside ``go()`` with no time limit of its own: a thread that asks for a
break-in is the only way back. What of its behaviour matters here was read in its sources and
seen with pykd 0.3.4.15: ``dbgCommand`` gives None for no text and raises without the text when a
command fails; ``go()`` gives the GIL away; an ``eventHandler`` hears what is printed meanwhile.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

from kdleak.engine.channels.base import (
    CHECK_DUMP,
    DUMP,
    LIVE_KERNEL,
    LOCAL_KERNEL,
    QuickAccess,
    Resumed,
)
from kdleak.engine.channels.deadline import Deadline
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
    UnsupportedTarget,
)

_NORMAL, _ERROR, _WARNING, _EXTENSION_WARNING = 1, 2, 4, 0x40
MASK = _NORMAL | _ERROR | _WARNING | _EXTENSION_WARNING
"""DEBUG_OUTPUT_* bits of what a command's answer may consist of."""

_BREAK_IN_PLACES = ("dbgbreakpoint", "rtlpbreakwithstatusinstruction", "dbguserbreakpoint")

# Commands that must not be carried out a second time only to see why they failed.
_NOT_TWICE = re.compile(
    r"(?:^|;)\s*(?:~\S*\s*)?(?:"
    r"(?:g[chnu]?|p[acth]*|t[abcth]*|q[dq]?|z|\.(?:reboot|crash|restart|kill|detach|for|while)|!py)"
    r"(?:\s|;|\(|$)|r[mF]?\s[^;]*=)",
    re.IGNORECASE,
)
_BLOCK_SIGNS = re.compile(r"[{}\"]")

_INSTALL = (
    "install pykd 0.3.4.15 into CPython 3.9, the newest it works with: inside WinDbg "
    "`!pip -3.9 install pykd`, else `py -3.9 -m pip install pykd`"
)
_RUN = "run `!py -m kdleak.hunt` at the prompt of WinDbg, or name a connection with -k"


class PykdChannel:
    """A DbgEng session through pykd.

    Args:
        pykd: the module.
        where: the target, without secrets.
        session: ``LIVE_KERNEL``, ``LOCAL_KERNEL`` or ``DUMP``.
        inside: whether it is WinDbg's session (it stays then), not ours.
        text: takes what is printed while the target runs; None when it cannot be had, since
            inside WinDbg the user sees it anyway and a listener that outlives the sub-interpreter
            would end WinDbg.
        connection: whose key must not show in any text.
    """

    name = "pykd"

    def __init__(
        self,
        pykd: Any,
        where: str,
        session: str,
        *,
        inside: bool,
        text: Optional[RunningText] = None,
        connection: str = "",
    ) -> None:
        self._pykd = pykd
        self.where = where
        self.session = session
        self._inside = inside
        self._text = text
        self._connection = connection
        self._running = False
        self._break_in_owed = False
        self._quick = PykdAccess(pykd)

    @property
    def quick(self) -> QuickAccess:
        """Memory and registers: pykd always has them."""
        return self._quick

    @property
    def running(self) -> bool:
        """True only while ``resume`` waits: pykd gives control back at a stop, never before."""
        return self._running

    def execute(self, command: str, timeout: Optional[float] = None) -> str:
        """Run one command line; see ``Channel.execute``.

        A command that fails is run again inside ``.catch``, because pykd keeps its text to itself
        otherwise; unless that could change something a second time.
        """
        pykd = self._pykd
        with Deadline(timeout, pykd.breakin) as limit:
            try:
                text = self._command(command)
            except pykd.DbgException as failure:
                text = "" if limit.fired else self._why_it_failed(command, failure)
        if limit.fired:
            raise LinkLost(
                f"running `{without_key(command, self._connection)}` on {self.where}",
                f"no answer within {timeout:.0f} s, then it was interrupted",
                "check that the link to the target still works",
            )
        return text

    def _command(self, command: str) -> str:
        answer: Optional[str] = self._pykd.dbgCommand(command, True, MASK)
        return without_key((answer or "").replace("\r\n", "\n"), self._connection)

    def _why_it_failed(self, command: str, failure: Exception) -> str:
        if not _NOT_TWICE.search(command) and not _BLOCK_SIGNS.search(command):
            try:
                text = self._command(f".catch {{{command}}}")
            except self._pykd.DbgException:
                text = ""
            if text.strip():
                return text
        reason = without_key(" ".join(str(failure).split()), self._connection)
        return f"command failed: {reason}\n"

    def resume(self, timeout: Optional[float]) -> Resumed:
        """``go()``, with a break-in when the time is over; see ``Channel.resume``."""
        if self.session != LIVE_KERNEL:
            raise NotLive(f"letting {self.where} run", f"it is a {self.session}")
        pykd = self._pykd
        listener = self._listen()
        try:
            with Deadline(timeout, pykd.breakin) as limit:
                self._running = True
                status = pykd.go()
        except pykd.DbgException as error:
            raise self._lost("letting it run", str(error)) from None
        finally:
            self._running = False
            # It is heard no longer once nothing refers to it.
            del listener
        if status == pykd.executionStatus.NoDebuggee:
            raise self._lost("waiting for it to stop", "the debugger has no target any more")
        return self._stopped(fired=limit.fired)

    def break_in(self) -> None:
        """Ask for a stop, from any thread, and return at once."""
        self._pykd.breakin()

    def interrupt(self, timeout: float) -> Resumed:  # noqa: ARG002 - the contract's
        """The stop it is at: pykd never leaves a target running behind; see ``Channel``."""
        pykd = self._pykd
        try:
            status = pykd.getExecutionStatus()
        except pykd.DbgException as error:
            raise self._lost("stopping it", str(error)) from None
        if status != pykd.executionStatus.Break:
            raise self._lost("stopping it", f"the debugger's state is {status}")
        return self._stopped(fired=False)

    def close(self, leave_stopped: bool = False) -> None:
        """Leave the session. Inside WinDbg nothing happens: it is the user's."""
        if self._inside or leave_stopped:
            return
        try:
            self._command("q" if self.session == DUMP else "qd")
        except self._pykd.DbgException:
            return

    def _listen(self) -> Optional[object]:
        """An object that feeds what is printed into ``_text`` for as long as it lives."""
        if self._text is None:
            return None
        return _listener(self._pykd, self._text)

    def _stopped(self, *, fired: bool) -> Resumed:
        code, first_chance, address = self._last_exception()
        broke_in = fired
        if fired or self._break_in_owed:
            # The request for a break-in may have crossed another stop: it then comes up at the
            # next one, and is still ours.
            broke_in = self._is_break_in(address)
            self._break_in_owed = not broke_in
            broke_in = broke_in or fired
        text = self._text.take() if self._text is not None else ""
        return Resumed(
            text=without_key(text, self._connection),
            broke_in=broke_in,
            processor=self._processor(),
            code=code,
            first_chance=first_chance,
        )

    def _last_exception(self) -> Tuple[Optional[int], bool, int]:
        pykd = self._pykd
        try:
            if pykd.getLastEvent().type != pykd.eventType.Exception:
                return None, True, 0
            last = pykd.getLastException()
            return int(last.exceptionCode), bool(last.firstChance), int(last.exceptionAddress)
        except pykd.DbgException:
            return None, True, 0

    def _is_break_in(self, address: int) -> bool:
        try:
            symbol = str(self._pykd.findSymbol(address))
        except self._pykd.DbgException:
            return True
        return any(place in symbol.lower() for place in _BREAK_IN_PLACES)

    def _processor(self) -> Optional[int]:
        """In a kernel session DbgEng's threads are the processors."""
        try:
            return int(self._pykd.getCurrentThreadId())
        except self._pykd.DbgException:
            return None

    def _lost(self, doing: str, why: str) -> LinkLost:
        return LinkLost(
            f"{doing}: {self.where} over pykd",
            without_key(" ".join(why.split()), self._connection),
            "check the target and its link; attach again and run `kdleak restore`",
        )


class PykdAccess:
    """Memory and registers through pykd. Registers cost the target no request, memory one.

    Args:
        pykd: the module.
    """

    def __init__(self, pykd: Any) -> None:
        self._pykd = pykd
        self._names: Tuple[str, ...] = ()
        self._mask = 0

    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes; see ``QuickAccess``."""
        pykd = self._pykd
        try:
            data = bytes(pykd.loadBytes(address, size))
        except pykd.MemoryException:
            raise MemoryUnreadable(address, size) from None
        except pykd.DbgException as error:
            raise MemoryUnreadable(address, size, " ".join(str(error).split())) from None
        if len(data) != size:
            raise MemoryUnreadable(address + len(data), size, f"{len(data)} bytes came back")
        return data

    def registers(self) -> Dict[str, int]:
        """Integer registers of the processor that stopped.

        Raises:
            TargetError: there are none (the target runs, or its processor cannot be read).
        """
        pykd = self._pykd
        if not self._names:
            return self._learn()
        try:
            return {name: int(pykd.reg(name)) & self._mask for name in self._names}
        except (pykd.DbgException, TypeError) as error:
            raise _no_registers(error) from None

    def _learn(self) -> Dict[str, int]:
        """Read them for the first time: what this processor does not have is left out for good."""
        pykd = self._pykd
        try:
            machine = str(pykd.getCPUMode()).rpartition(".")[2]
        except pykd.DbgException as error:
            raise _no_registers(error) from None
        if machine not in REGISTERS:
            raise UnsupportedTarget("reading registers", f"the processor is a {machine}")
        values: Dict[str, int] = {}
        mask = width_mask(machine)
        trouble: List[Exception] = []
        for name in REGISTERS[machine]:
            try:
                values[name] = int(pykd.reg(name)) & mask
            except (pykd.DbgException, TypeError) as error:  # noqa: PERF203 - once a session
                trouble.append(error)
        if PROGRAM_COUNTERS[machine] not in values:
            raise _no_registers(trouble[0] if trouble else Exception("no program counter"))
        self._names, self._mask = tuple(values), mask
        return values


def pykd_inside() -> PykdChannel:
    """The session of the WinDbg that this Python runs in.

    Raises:
        MissingDependency: no pykd.
        NoTarget: not inside a debugger, or no target there.
        UnsupportedTarget: the target is no kernel.
    """
    pykd = load_pykd()
    doing = "looking for the debugger session around this Python"
    if not pykd.isWindbgExt():
        raise NoTarget(doing, "it does not run inside a debugger", _RUN)
    attach = "attach to a kernel or open a kernel dump first (File > Attach to kernel, -k, -z)"
    try:
        status = pykd.getExecutionStatus()
        if status == pykd.executionStatus.NoDebuggee:
            raise NoTarget(doing, "the debugger has no target", attach)
        if status != pykd.executionStatus.Break:
            raise NoTarget(doing, "the target runs", "stop it with Ctrl+Break first")
        if not pykd.isKernelDebugging():
            raise UnsupportedTarget(
                doing, "the target is a user-mode process; pool is the kernel's", attach
            )
        dump = bool(pykd.isDumpAnalyzing())
        systems = pykd.dbgCommand("||", True, MASK) or ""
    except pykd.DbgException as error:
        reason = without_key(" ".join(str(error).split()))
        raise NoTarget(doing, reason, attach) from None
    where, session = describe_session(systems, dump=dump)
    return PykdChannel(pykd, where, session, inside=True)


def attach_pykd(
    connection: str,
    symbol_path: str = "",
    *,
    dump: bool = False,
    text: Optional[RunningText] = None,
    attaching: Callable[[], None] = lambda: None,
) -> PykdChannel:
    """Attach in this process. Blocks for as long as the target does not answer.

    Args:
        connection: WinDbg's ``-k`` string, or the path of a dump.
        symbol_path: WinDbg's ``-y``; "" for the engine's own.
        dump: whether ``connection`` is a dump's path.
        text: takes what is printed while it attaches and runs.
        attaching: called when pykd is loaded and the waiting begins.

    Raises:
        MissingDependency: no pykd.
        NoTarget: refused.
        TargetError: it is no dump that the debugger can read.
    """
    pykd = load_pykd()
    text = text if text is not None else RunningText()
    where = Path(connection).name if dump else where_of(connection)
    try:
        pykd.initialize()
        listener = _listener(pykd, text)
        if symbol_path:
            pykd.dbgCommand(f".sympath {symbol_path}", True, MASK)
        attaching()
        if dump:
            pykd.loadDump(connection)
        else:
            pykd.attachKernel(connection)
        del listener
    except pykd.DbgException as error:
        if dump:
            reason = " ".join(str(error).split())
            raise TargetError(f"opening {where} with pykd", reason, CHECK_DUMP) from None
        reason = without_key(" ".join(str(error).split()), connection)
        raise NoTarget(
            f"opening {where} with pykd",
            reason,
            "check the connection string, and that no other debugger uses the port",
        ) from None
    session = DUMP if dump else LIVE_KERNEL
    return PykdChannel(
        pykd, where, session, inside=False, text=text, connection="" if dump else connection
    )


def load_pykd() -> Any:
    """The pykd module.

    Raises:
        MissingDependency: it is not installed for this Python, or its DLLs do not load.
    """
    try:
        return importlib.import_module("pykd")
    except (ImportError, OSError) as error:
        version = ".".join(str(part) for part in sys.version_info[:2])
        reason = f"{error} (this is CPython {version})"
        raise MissingDependency("loading pykd", reason, _INSTALL) from None


def describe_session(systems: str, *, dump: bool) -> Tuple[str, str]:
    """(where, session) from the answer to ``||``.

    Args:
        systems: for example ``.  0 Remote KD: KdSrv:Server=@{<Local>},Trans=@{NET:Port=50000,
            Key=...,Target}``.
        dump: whether the debugger says that it is a dump.
    """
    lines = [line.strip() for line in systems.splitlines() if line.strip()]
    current = next((line for line in lines if line.startswith(".")), lines[0] if lines else "")
    described = re.sub(r"^\.?\s*\d*\s*", "", current)
    kind, _, rest = described.partition(": ")
    transport = re.search(r"Trans=@\{([^}]*)\}", rest, re.IGNORECASE)
    named = where_of(transport.group(1)) if transport else without_key(rest)
    # As a user names a COM port, and the other engines with it.
    named = re.sub(r"(?<=port=)\\\\\.\\(com\d+)\Z", _upper, named, flags=re.IGNORECASE)
    if dump:
        return named or "a dump", DUMP
    # ``Remote KD`` is every kernel behind a cable; a local one has no transport.
    if "local" in kind.lower() or (not transport and "<local>" in rest.lower()):
        return "this machine's own kernel", LOCAL_KERNEL
    return named or "the debugger's target", LIVE_KERNEL


def _upper(found: re.Match[str]) -> str:
    return found[1].upper()


def _listener(pykd: Any, text: RunningText) -> object:
    """A pykd.eventHandler that hears the debugger's output until nothing refers to it."""

    class Listener(pykd.eventHandler):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.text = text

        def onDebugOutput(self, output: str, *_: object) -> None:  # noqa: N802 - pykd's name
            self.text.write(output)

    return Listener()


def _no_registers(error: Exception) -> TargetError:
    return TargetError("reading registers", " ".join(str(error).split()))
