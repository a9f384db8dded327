"""The native engine: kdleak's own kernel debugger over KD.

A hit costs four round trips: GetContext, one read of the stack, SetContext to step over the
break instruction, Continue2. Everything else comes from caches, since the whole machine stands
still during each.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from kdleak.engine.native_boot import await_windows
from kdleak.engine.native_memory import KdMemory
from kdleak.engine.native_modules import LoadedImages
from kdleak.engine.native_run import Landmarks, TargetRun
from kdleak.engine.native_signals import HoldSignals
from kdleak.engine.native_target import Identity, identify, machine_of
from kdleak.engine.stack_reader import StackReader
from kdleak.errors import (
    LinkError,
    MemoryNotWritten,
    SymbolNotFound,
    TargetError,
    UnsupportedTarget,
    format_address,
)
from kdleak.kd.connection import open_host, parse_connection
from kdleak.kd.host import KdHost
from kdleak.model import (
    Architecture,
    Module,
    PoolSnapshot,
    Registers,
    Stack,
    Stop,
    StopKind,
    Symbolized,
    TargetInfo,
)
from kdleak.nt.kdbg import find_debugger_data
from kdleak.nt.memory import CachedMemory
from kdleak.nt.pe import PdbIdentity
from kdleak.nt.pool import PoolTagTables
from kdleak.nt.stack_memory import StackMemory
from kdleak.nt.symbol_path import default_cache, parse_symbol_path
from kdleak.nt.unwind import unwind
from kdleak.tags import PoolTag

if TYPE_CHECKING:
    from typing import Self

_SHORTEST_REQUEST, _LONGEST_REQUEST = 2.0, 10.0  # seconds for one request and its reply
_SURPLUS_WAIT = 0.5  # seconds in which a surplus break-in stops a target that has just resumed
_BREAK_INS_LEFT = 8
_SETTLE = 1.0  # seconds in which a stop that was asked for still arrives


class NativeEngine:
    """An engine over one KD host; implements ``kdleak.engine.base.Engine``.

    Args:
        host: the debugger's role, not attached yet.
        where: the target as the user named it, without secrets.
        symbol_path: in the grammar of ``_NT_SYMBOL_PATH``; only local places are searched.
        clock: seconds, monotonic.

    Attributes:
        remarks: what is worth telling the user, one sentence each.
        host: the debugger's role, for its statistics.
    """

    name = "native"

    def __init__(
        self,
        host: KdHost,
        where: str,
        symbol_path: str = "",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.host = host
        self.where = where
        self.remarks: list[str] = []
        self._clock = clock
        self._hold = HoldSignals()
        self._run = TargetRun(host, self._hold, clock)
        self._memory = KdMemory(host, self._hold, lambda: self._run.stopped)
        self._cache = CachedMemory(self._memory)
        self._stacks = StackReader(self._read_once, lambda: host.max_read)
        self._places = parse_symbol_path(symbol_path, default_cache())
        self._identity: Identity | None = None
        self._images: LoadedImages | None = None
        self._tables: PoolTagTables | None = None
        self._stack: tuple[int, StackMemory] | None = None
        self._closed = False

    # -- attaching and leaving

    def attach(self, timeout: float) -> None:
        """Connect, stop the target and learn what it is.

        Raises:
            NoTarget, WrongKey, LinkLost, ProtocolError: from the link.
            UnsupportedTarget: no Windows kernel that kdleak knows.
        """
        deadline = self._clock() + timeout
        self._run.attach(timeout)
        version = await_windows(self.host, self._run, self._hold, self._clock, deadline)
        machine_of(version)
        data = find_debugger_data(self._cache, version.debugger_data_list)
        if data is None:
            self.remarks.append("the kernel's debugger data block was not found")
        self._identity = identify(self._cache, version, self._run.change, data)
        with self._hold:
            self.host.restore_breakpoints()
        self._images = LoadedImages(
            self._cache, self._identity, self._places, self.host, lambda: self._run.stopped
        )
        self._run.set_landmarks(
            Landmarks(
                machine=self._identity.machine,
                break_with_status=data.field("BreakpointWithStatus") if data else 0,
                bug_check_data=data.field("KiBugcheckData") if data else 0,
                pointer_size=self.target.pointer_size,
                symbol_name=self._break_symbol,
                memory=self._memory,
            )
        )

    def close(self) -> None:
        """Leave: a stopped target is stepped over its break instruction and runs on."""
        self.detach()

    def detach(self, leave_stopped: bool = False) -> None:
        """Leave the target. A lost link is no error here but a remark.

        Args:
            leave_stopped: leave a stopped target as it is, for whoever attaches next.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if leave_stopped:
                return
            if not self._run.stopped and (self.host.stopped or self._identity is None):
                self._abandon_attach()
            elif self._run.stopped:
                with self._hold:
                    self.host.restore_breakpoints()
                    self._run.go()
                    self._outwait_break_ins()
        except LinkError as error:
            self.remarks.append(f"the target could not be let run at the end: {error}")
        finally:
            self.host.close()

    def _outwait_break_ins(self) -> None:
        """Stay while a break-in request of ours may still stop the target.

        One that met a stopped target breaks in after the next resume; with nobody there, it
        would freeze the machine.
        """
        for _ in range(_BREAK_INS_LEFT):
            if not self.host.break_in_pending:
                return
            stop = self._run.resume(_SURPLUS_WAIT)
            if stop.kind is StopKind.STILL_RUNNING:
                return
            if stop.kind is not StopKind.BREAK_IN:
                self.remarks.append(
                    f"the target stopped again while kdleak was leaving ({stop.kind.value} at "
                    f"{format_address(stop.program_counter)}); it is left stopped"
                )
                return
            self._run.go()

    def _abandon_attach(self) -> None:
        """Attaching was cut off: a break-in may be on its way, and nobody would be there."""
        with self._hold:
            if self.host.stopped or self.host.wait(_SETTLE) is not None:
                self.host.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- identity

    @property
    def target(self) -> TargetInfo:
        """What is under the debugger."""
        return self._known.info

    @property
    def walks_stacks(self) -> bool:
        """Whether ``stack`` works on this target: x64 only."""
        return self.target.architecture is Architecture.X64

    @property
    def _known(self) -> Identity:
        if self._identity is None:
            raise TargetError("using the native engine", "it is not attached", "attach first")
        return self._identity

    @property
    def _loaded(self) -> LoadedImages:
        if self._images is None:
            raise TargetError("using the native engine", "it is not attached", "attach first")
        return self._images

    @property
    def stop(self) -> Stop:
        """Why the target is stopped; ``STILL_RUNNING`` while it runs."""
        return self._run.stop

    @property
    def requests(self) -> int:
        """Round trips to the target so far."""
        return self.host.requests

    @property
    def seconds_stopped(self) -> float:
        """Seconds the target has been stopped since we attached, as seen from here."""
        return self._run.seconds_stopped

    @property
    def break_ins_absorbed(self) -> int:
        """Stops by break-in requests of ours that came too late and were resumed unseen."""
        return self._run.surplus.absorbed

    # -- modules and symbols

    def reload(self) -> tuple[str, ...]:
        """Read the module list and nt's symbols again; the other images' when needed."""
        self._require_stopped("reading the module list")
        self._cache.clear()
        return self._loaded.reload()

    def modules(self) -> tuple[Module, ...]:
        """Loaded modules in load order."""
        return self._loaded.modules()

    def symbol(self, name: str) -> int:
        """Address of ``module!name``, in any case.

        Raises:
            SymbolNotFound: with what was searched.
        """
        return self._loaded.address(name)

    def nearest(self, address: int) -> Symbolized:
        """The nearest symbol at or below an address."""
        return self._loaded.nearest(address)

    @property
    def symbol_remarks(self) -> tuple[str, ...]:
        """What loading the symbols of modules had to say so far, one sentence each."""
        return self._loaded.remarks

    def missing_kernel_pdb(self) -> PdbIdentity | None:
        """Which PDB nt has, when no local place of the symbol path has it; None otherwise.

        A live target is no place to wait for a download, because it stands meanwhile: whoever
        wants the PDB fetched leaves the target, fetches it and attaches anew.
        """
        self._require_stopped("looking for nt's symbols")
        return self._loaded.missing_kernel_pdb()

    def _break_symbol(self, address: int) -> str:
        """Name of an nt symbol exactly at (or one byte before) an address."""
        found = self.nearest(address)
        return found.name if found.module == "nt" and found.offset <= 1 else ""

    # -- memory

    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes, always asked of the target.

        Raises:
            MemoryUnreadable: any of them is not there, or the target is running.
        """
        return self._memory.read(address, size)

    def write(self, address: int, data: bytes) -> None:
        """Write target memory.

        Raises:
            MemoryNotWritten: the target took fewer bytes, or none.
        """
        self._require_stopped(f"writing {len(data)} bytes at {format_address(address)}")
        self._cache.forget(address, len(data))
        with self._hold:
            written = self.host.write_virtual(address, data)
        if written != len(data):
            raise MemoryNotWritten(
                f"writing {len(data)} bytes at {format_address(address)}",
                f"the target wrote {written}",
                "check the address; write protection may forbid it",
            )

    def pool_usage(self, tag: PoolTag | None = None) -> PoolSnapshot:
        """Usage of all tags, or of one, from the kernel's tag tables.

        Raises:
            SymbolNotFound, MemoryUnreadable, UnsupportedTarget.
        """
        self._require_stopped("reading the pool tag tables")
        if self._tables is None:
            self._tables = PoolTagTables(
                self._memory,
                self._pool_symbol,
                self.target.build,
                self.target.pointer_size,
                self._clock,
                processors=self.target.processors,
                request_bytes=self.host.max_read,
            )
        return self._tables.usage(tag)

    def _pool_symbol(self, name: str) -> int:
        """As ``symbol``; KDBG names one of the variables where there are no symbols."""
        try:
            return self.symbol(name)
        except SymbolNotFound:
            data = self._known.debugger_data
            address = data.field("PoolTrackTable") if data is not None else 0
            if name != "nt!PoolTrackTable" or not address:
                raise
            return address

    # -- the stopped processor

    def registers(self) -> Registers:
        """Registers of the processor that stopped; one round trip at most per stop."""
        self._require_stopped("reading the registers")
        return self._run.registers()

    def stack(self, depth: int = 32) -> Stack:
        """Call stack of the processor that stopped; one round trip, more for deep stacks.

        Raises:
            UnsupportedTarget: not an x64 target.
        """
        if self.target.architecture is not Architecture.X64:
            raise UnsupportedTarget(
                f"walking a stack of {self.where}",
                f"the native engine walks x64 stacks only, this target is "
                f"{self.target.architecture.value}",
                "rank its tags with kdleak rank, or hunt from WinDbg",
            )
        registers = self.registers().as_dict()
        memory = self._stack_of_stop(registers["rsp"])
        code = self._run.code(self._cache)
        walked = unwind(registers, self._loaded.function_table, memory, code, depth)
        self._stacks.learn(memory.used)
        return self._loaded.named(walked)

    def _read_once(self, address: int, size: int) -> bytes:
        with self._hold:
            return self.host.read_virtual_once(address, size)

    def _stack_of_stop(self, pointer: int) -> StackMemory:
        if self._stack is None or self._stack[0] != self._run.number:
            data = self._stacks.read(pointer, self._stacks.size)
            memory = StackMemory(pointer, data, self._stacks.read, self.host.max_read)
            self._stack = (self._run.number, memory)
        return self._stack[1]

    def stack_memory(self) -> tuple[int, bytes]:
        """What ``stack`` read at this stop, without a round trip; (0, b"") before it."""
        if self._stack is None or self._stack[0] != self._run.number or not self._run.stopped:
            return 0, b""
        return self._stack[1].start, self._stack[1].data

    # -- running

    def resume(self, timeout: float | None) -> Stop:
        """Let the target run until it stops or ``timeout`` seconds are over.

        Raises:
            LinkLost, TargetRestarted: while waiting.
        """
        if self._run.stopped:
            self._cache.invalidate()
            self._stack = None
        return self._run.resume(timeout)

    def interrupt(self, timeout: float = 30.0) -> Stop:
        """Stop a running target; returns at once when it is stopped already.

        Raises:
            LinkLost: nothing answered in time.
        """
        return self._run.interrupt(timeout)

    def _require_stopped(self, tried: str) -> None:
        if not self._run.stopped:
            raise TargetError(tried, "the target is running", "interrupt it first")


def attach_native(
    connection: str,
    symbol_path: str = "",
    timeout: float = 30.0,
    *,
    on_print: Callable[[str], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> NativeEngine:
    """Attach to the target of a ``-k`` connection string and stop it.

    Args:
        connection: as WinDbg takes it, ``net:port=50000,key=a.b.c.d`` and so on.
        symbol_path: in the grammar of ``_NT_SYMBOL_PATH``.
        timeout: seconds to wait for the target.
        on_print: takes what the target prints.
        clock: seconds, monotonic.

    Raises:
        BadConnection, MissingDependency, PortInUse: before anything is sent.
        NoTarget, WrongKey, LinkLost, UnsupportedTarget: from attaching. The target is left
            running as far as it can be reached.
    """
    parsed = parse_connection(connection)
    with HoldSignals():  # so that what was opened is always closed
        link = open_host(parsed, clock)
        host = KdHost(
            link,
            clock=clock,
            on_print=on_print,
            request_timeout=max(_SHORTEST_REQUEST, min(timeout, _LONGEST_REQUEST)),
        )
        engine = NativeEngine(host, link.where, symbol_path, clock)
    try:
        engine.attach(timeout)
    except BaseException:
        engine.close()
        raise
    return engine
