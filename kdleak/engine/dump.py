"""The engine for crash dumps: kdleak's own reader, without a debugger and without symbols.

Nothing is loaded before it is needed: a ranking touches the header, the page tables on the way
to the pool's tables, and these.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from kdleak.dump.file import DumpFile, open_dump
from kdleak.dump.kind import DumpKind
from kdleak.engine.dump_description import (
    describe_crash,
    describe_target,
    describe_times,
    uptime_seconds,
)
from kdleak.engine.dump_kernel import (
    DumpKernel,
    decode_by_symbols,
    find_kernel,
    read_build_lab,
    read_modules,
)
from kdleak.engine.dump_small import NoMemory, small_kernel
from kdleak.engine.image_symbols import ImageSymbols
from kdleak.engine.native_machine import MACHINES, MachineContext
from kdleak.engine.no_live_target import NoLiveTarget
from kdleak.errors import (
    MemoryUnreadable,
    SymbolNotFound,
    TargetError,
    UnsupportedTarget,
)
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
from kdleak.nt.kdbg import DebuggerData
from kdleak.nt.places.pool_places import PoolPlaces
from kdleak.nt.pool import PoolTagTables
from kdleak.nt.space.kernel_space import choose_space
from kdleak.nt.space.virtual import VirtualMemory
from kdleak.nt.symbol_path import parse_symbol_path
from kdleak.nt.symbols import PdbFetcher, SymbolLoader
from kdleak.tags import PoolTag

if TYPE_CHECKING:
    from typing import Self


class DumpEngine(NoLiveTarget):
    """An engine over one crash dump; implements ``kdleak.engine.base.Engine``.

    Args:
        dump: the open dump; closed with the engine.
        symbol_path: in the grammar of ``_NT_SYMBOL_PATH``; only local places are searched.
        fetch: gets PDBs that no local place has; None where nothing may be fetched.
        clock: seconds, monotonic.

    Attributes:
        remarks: what is worth telling the user, one sentence each.
        dump: the dump.
        memory: its virtual memory; None for dumps without physical pages.
        places: where the pool's variables are; None like ``memory``.
    """

    name = "dump"

    def __init__(
        self,
        dump: DumpFile,
        symbol_path: str = "",
        fetch: PdbFetcher | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.dump = dump
        self.where = dump.where
        self.remarks: list[str] = list(dump.remarks)
        self.places: PoolPlaces | None = None
        self._clock = clock
        self._header = dump.header
        self._fetch = fetch
        self._symbol_path = symbol_path
        self._told: set[str] = set(self.remarks)
        self._tables: PoolTagTables | None = None
        self._whole: PoolSnapshot | None = None
        self._closed = False
        self.memory = self._open_memory()
        self._reader = self.memory or dump.triage or NoMemory()
        self._kernel = self._find_kernel()
        self._images = self._new_images(self._kernel.modules)
        self._debugger_data = self._kernel.debugger_data or self._decode()
        lab = read_build_lab(self._reader, self._debugger_data)
        self._info = self._identify(lab)
        for sentence in (describe_crash(self._header), describe_times(self._header)):
            if sentence:
                self._tell(sentence)
        if self.memory is not None:
            self.places = PoolPlaces(
                self.memory,
                self._kernel.image,
                build=self._header.build,
                pointer_size=self._header.pointer_size,
                processors=self._header.processors,
                symbol=self._images.address,
                debugger_data=self._debugger_data,
            )

    # -- opening

    def _open_memory(self) -> VirtualMemory | None:
        """The kernel's address space; None where there are no physical pages."""
        if self._header.kind in (DumpKind.HEADER_ONLY, DumpKind.TRIAGE):
            return None
        memory = choose_space(self.dump)
        for sentence in memory.remarks:
            self._tell(sentence)
        return memory

    def _find_kernel(self) -> DumpKernel:
        header = self._header
        if self.memory is None:
            return small_kernel(self.dump, self._reader)
        machine = MACHINES.get(header.machine)
        inside = [header.exception_address]
        if machine is not None and header.context:
            inside.append(machine.parse(header.context).as_dict().get(machine.program_counter, 0))
        return find_kernel(self._reader, header, inside, self._tell)

    def _decode(self) -> DebuggerData | None:
        """The debugger data block decoded, where nt's PDB is at hand."""
        if self.memory is None:
            return None
        found = None
        if self._symbol_path or self._fetch is not None:
            at = self._header.debugger_data
            found = decode_by_symbols(self.memory, at, self._images.address)
        self._tell(
            "the kernel's debugger data block is encoded and was decoded with its symbols"
            if found is not None
            else "the kernel's debugger data block was not found (a system booted without "
            "debugging keeps it encoded)"
        )
        return found

    def _new_images(self, modules: tuple[Module, ...]) -> ImageSymbols:
        loader = SymbolLoader(
            self._reader,
            parse_symbol_path(self._symbol_path),
            self._header.pointer_size,
            self._fetch,
        )
        return ImageSymbols(self._reader, loader, modules)

    def _identify(self, lab: str) -> TargetInfo:
        header = self._header
        return TargetInfo(
            architecture=header.architecture,
            pointer_size=header.pointer_size,
            build=header.build,
            live=False,
            processors=header.processors,
            kernel_base=self._kernel.base,
            description=describe_target(header, header.kind.title, lab),
        )

    def _tell(self, sentence: str) -> None:
        if sentence not in self._told:
            self._told.add(sentence)
            self.remarks.append(sentence)

    # -- leaving

    def close(self) -> None:
        """Close the dump."""
        self.detach()

    def detach(self, leave_stopped: bool = False) -> None:
        """Close the dump; nothing else has to be left.

        Args:
            leave_stopped: means nothing here.
        """
        del leave_stopped
        if self._closed:
            return
        self._closed = True
        self._tell_missing_pages()
        if self.memory is not None:
            self.memory.close()
        self.dump.close()

    def _tell_missing_pages(self) -> None:
        if self.dump.missing:
            self._tell(
                f"{self.dump.missing:,} pages that were needed are beyond the end of the file: the "
                "dump is cut off"
            )

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
        """What the dump is of."""
        return self._info

    @property
    def walks_stacks(self) -> bool:
        """Whether ``stack`` works on this target: x64 only."""
        return self.target.architecture is Architecture.X64

    @property
    def stop(self) -> Stop:
        """The crash that the dump was written for."""
        header = self._header
        machine = MACHINES.get(header.machine)
        counter = 0
        if machine is not None and header.context:
            counter = machine.parse(header.context).as_dict().get(machine.program_counter, 0)
        return Stop(
            StopKind.BUG_CHECK,
            program_counter=counter or header.exception_address,
            code=header.exception_code,
            first_chance=False,
            detail=describe_crash(header),
        )

    # -- modules and symbols

    def reload(self) -> tuple[str, ...]:
        """Read the module list and nt's symbols again; the other images' when needed."""
        kernel = self._kernel
        modules, said = read_modules(
            self._reader, kernel.module_list, self.target.pointer_size, kernel.base
        )
        self._images = self._new_images(modules or kernel.modules)
        self._images.load("nt")
        return (*said, *self._images.remarks)

    def modules(self) -> tuple[Module, ...]:
        """Loaded modules in load order; nt alone where the list is not in the dump."""
        return self._images.modules

    def symbol(self, name: str) -> int:
        """Address of ``module!name``, in any case: by symbols, or found by other means.

        Raises:
            SymbolNotFound: with what was searched.
        """
        try:
            return self._images.address(name)
        except SymbolNotFound:
            if self.places is None:
                raise
            found = self.places.find(name)  # the first error says more than its own
            if found is None:
                raise
            return found

    @property
    def module_gaps(self) -> tuple[str, ...]:
        """What ``modules`` lacks, one sentence each: their code cannot be looked through."""
        return self._kernel.gaps

    @property
    def symbol_remarks(self) -> tuple[str, ...]:
        """What loading the symbols of modules had to say so far, one sentence each."""
        return self._images.remarks

    def nearest(self, address: int) -> Symbolized:
        """The nearest symbol at or below an address."""
        return self._images.nearest(address)

    # -- memory and pool

    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes.

        Raises:
            MemoryUnreadable: any of them is not in the dump.
        """
        return self._reader.read(address, size)

    def pool_usage(self, tag: PoolTag | None = None) -> PoolSnapshot:
        """Usage of all tags, or of one, from the kernel's tag tables.

        Raises:
            UnsupportedTarget: a dump without pool tables, or none that is known fits.
            SymbolNotFound: the tables could not be found.
            MemoryUnreadable: they are not in the dump.
        """
        self._require_pool("reading the pool tag tables")
        if self._tables is None:
            self._tables = self._new_tables()
        if tag is not None:
            try:
                return self._at_uptime(self._tables.usage(tag))
            except MemoryUnreadable:
                pass  # its row in the leading table is not there; all of the tables may tell more
        if self._whole is None:
            self._whole = self._at_uptime(self._read_whole(self._tables))
        if tag is None:
            return self._whole
        row = self._whole.find(tag)
        rows = (row,) if row is not None else ()
        return PoolSnapshot(self._whole.taken_at, rows, self._whole.source, self._whole.gaps)

    def _read_whole(self, tables: PoolTagTables) -> PoolSnapshot:
        try:
            return tables.usage()
        except MemoryUnreadable as error:
            raise MemoryUnreadable(
                error.address,
                error.size,
                "the pool tag tables are there, and these pages are not in the dump",
                "see whether the file was copied whole; if it was, have Windows write a kernel "
                "memory dump and wait for the next crash",
            ) from error

    def _new_tables(self) -> PoolTagTables:
        places = self.places
        if places is None or self.memory is None:
            self._refuse_pool("reading the pool tag tables")
        try:
            places.symbol("nt!PoolTrackTable")
            processors = places.processors
        finally:  # why nothing was found is told, too
            for sentence in (*self._images.remarks, *places.remarks):
                self._tell(sentence)
        return PoolTagTables(
            self.memory,
            places.symbol,
            self.target.build,
            self.target.pointer_size,
            self._clock,
            processors=processors,
        )

    def _at_uptime(self, snapshot: PoolSnapshot) -> PoolSnapshot:
        """The snapshot at the target's own time, where the header tells it."""
        uptime = uptime_seconds(self._header)
        at = snapshot.taken_at if uptime is None else uptime
        return PoolSnapshot(at, snapshot.rows, snapshot.source, snapshot.gaps)

    def _require_pool(self, tried: str) -> None:
        if self.memory is None:
            self._refuse_pool(tried)

    def _refuse_pool(self, tried: str) -> NoReturn:
        small = self._header.kind is DumpKind.TRIAGE
        raise UnsupportedTarget(
            f"{tried} of {self.where}",
            "a small memory dump holds no pool tables"
            if small
            else "the dump holds no memory, only its header",
            "have Windows write a kernel memory dump: System Properties, Advanced, Startup and "
            "Recovery (or CrashDumpEnabled = 2 in HKLM\\SYSTEM\\CurrentControlSet\\Control\\"
            "CrashControl), and wait for the next crash",
        )

    # -- the processor that crashed

    def _machine(self, tried: str) -> MachineContext:
        machine = MACHINES.get(self._header.machine)
        if machine is None or not self._header.context:
            raise TargetError(
                f"{tried} of {self.where}",
                "the dump's header has no CONTEXT",
                "rank its tags with kdleak rank -z, which needs none",
            )
        return machine

    def registers(self) -> Registers:
        """Registers of the processor that crashed, from the header.

        Raises:
            TargetError: the header has none.
        """
        return self._machine("reading the registers").parse(self._header.context)

    def stack(self, depth: int = 32) -> Stack:
        """Call stack of the processor that crashed.

        Raises:
            UnsupportedTarget: not an x64 target.
            TargetError: the header has no registers.
        """
        if not self.walks_stacks:
            raise UnsupportedTarget(
                f"walking the stack of {self.where}",
                f"kdleak walks x64 stacks only, this target is {self.target.architecture.value}",
                "open the dump in WinDbg for its stacks",
            )
        return self._images.walk(self.registers(), depth)

    def stack_memory(self) -> tuple[int, bytes]:
        """Nothing: a dump is read where it is needed."""
        return 0, b""


def open_dump_engine(
    path: Path | str,
    symbol_path: str = "",
    *,
    fetch: PdbFetcher | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> DumpEngine:
    """Open a crash dump.

    Args:
        path: the file.
        symbol_path: in the grammar of ``_NT_SYMBOL_PATH``.
        fetch: gets PDBs that no local place has.
        clock: seconds, monotonic.

    Raises:
        UnsupportedTarget: not a dump that kdleak reads (said by name), or another machine.
        TargetError: damaged, or not there.
    """
    dump = open_dump(path)
    try:
        return DumpEngine(dump, symbol_path, fetch, clock)
    except BaseException:
        dump.close()
        raise
