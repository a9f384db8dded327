"""The images loaded in a KD target: their list kept up to date, their symbols and unwind data."""

from __future__ import annotations

from collections.abc import Callable

from kdleak.engine.image_functions import ImageFunctions
from kdleak.engine.native_target import Identity
from kdleak.errors import SymbolNotFound
from kdleak.kd.host import KdHost
from kdleak.kd.packets import LoadSymbols
from kdleak.model import Module, Stack, Symbolized, SymbolKind
from kdleak.nt.memory import CachedMemory
from kdleak.nt.modules import base_name, read_module_list, windbg_name
from kdleak.nt.pe import PdbIdentity, read_image
from kdleak.nt.symbol_path import Place
from kdleak.nt.symbols import SymbolLoader, Symbols
from kdleak.nt.unwind import UnwoundStack
from kdleak.nt.unwind_data import FunctionTable

_KERNEL_HALF = 1 << 63


class LoadedImages:
    """Modules, symbols and function tables of one target.

    The list is read when something other than nt is first asked about; afterwards the target's
    own load and unload events keep it up to date, so that no driver that comes and goes costs a
    round trip.

    Args:
        cache: reads the target.
        identity: the target.
        places: the symbol path.
        host: whose ``module_events`` grow as the target reports images.
        stopped: tells whether the target is stopped; a running one cannot be read.
    """

    def __init__(
        self,
        cache: CachedMemory,
        identity: Identity,
        places: tuple[Place, ...],
        host: KdHost,
        stopped: Callable[[], bool],
    ) -> None:
        self._cache = cache
        self._identity = identity
        self._host = host
        self._stopped = stopped
        self._list_read = False
        self._list_remarks: tuple[str, ...] = ()
        self._seen: LoadSymbols | None = None
        self._modules: tuple[Module, ...] = ()
        self._symbols = Symbols(SymbolLoader(cache.constant, places, identity.info.pointer_size))
        self._functions = ImageFunctions(cache.constant, self._symbols)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What reading the list and loading symbols had to say so far."""
        return (*self._list_remarks, *self._symbols.remarks)

    def reload(self) -> tuple[str, ...]:
        """Read the list again, and nt's symbols; the others' when they are next needed."""
        self._symbols.forget_tables()
        self._functions.forget()
        self._read_list()
        kernel = self._symbols.module_named("nt")
        if kernel is not None:
            self._symbols.table(kernel)
        return self.remarks

    def _read_list(self) -> None:
        info = self._identity.info
        modules, self._list_remarks = read_module_list(
            self._cache, self._identity.module_list, info.pointer_size, info.kernel_base
        )
        if not any(module.name == "nt" for module in modules):
            kernel = self._kernel()
            modules = (kernel, *modules) if kernel is not None else modules
        self._fresh_events()
        self._list_read = True
        self._set(modules)

    def _kernel(self) -> Module | None:
        """The kernel from its headers, where the list does not name it."""
        base = self._identity.info.kernel_base
        image = read_image(self._cache.constant, base) if base else None
        if image is None:
            return None
        return Module("nt", base, image.size, "ntoskrnl.exe", image.timestamp)

    def _set(self, modules: tuple[Module, ...]) -> None:
        self._modules = modules
        self._symbols.set_modules(modules)

    def modules(self) -> tuple[Module, ...]:
        """In load order, up to the last event the target reported."""
        if not self._list_read and self._stopped():
            self._read_list()
        fresh = self._fresh_events()
        if fresh:
            modules = list(self._modules)
            for event in fresh:
                self._apply(modules, event)
            self._set(tuple(modules))
        return self._modules

    def _fresh_events(self) -> list[LoadSymbols]:
        """What the target reported since the last time; the host forgets the oldest itself."""
        events = self._host.module_events
        if not events or events[-1] is self._seen:
            return []
        start = next((i + 1 for i, event in enumerate(events) if event is self._seen), 0)
        self._seen = events[-1]
        return events[start:]

    def _apply(self, modules: list[Module], event: LoadSymbols) -> None:
        if event.unload and not event.path and event.base not in {m.base for m in modules}:
            return  # "unload everything" with a pseudo base: nothing of Windows is meant
        gone = [module for module in modules if module.base == event.base]
        for module in gone:
            modules.remove(module)
            self._functions.drop(module.base)
            self._cache.forget(module.base, module.size)
            self._symbols.drop(module.base)
        if event.unload or event.base < _KERNEL_HALF:
            return  # a user-mode image is none of ours
        size = event.size
        if not size:
            image = read_image(self._cache, event.base)
            if image is None:
                return
            size = image.size
        file_name = base_name(event.path)
        name = windbg_name(file_name)
        if event.base == self._identity.info.kernel_base:
            name = "nt"
        elif not name or name.lower() in {module.name.lower() for module in modules}:
            name = f"{name or 'image'}_{event.base & 0xFFFFFFFF:08x}"
        modules.append(Module(name, event.base, size, file_name, 0, event.path))

    def address(self, name: str) -> int:
        """Address of ``module!name``.

        Raises:
            SymbolNotFound: it is in no table, or the table cannot be loaded while the target
                runs.
        """
        wanted = name.partition("!")[0].strip() if "!" in name else "nt"
        if wanted.lower() == "nt" and not self._list_read and self._stopped():
            self._take_kernel()
        else:
            self.modules()
        module = self._symbols.module_named(wanted)
        if not self._stopped() and (module is None or not self._symbols.is_loaded(module)):
            raise SymbolNotFound(
                f"looking up {name}",
                "its symbols are not loaded yet and the target is running",
                "interrupt the target first",
            )
        return self._symbols.address(name)

    def missing_kernel_pdb(self) -> PdbIdentity | None:
        """Which PDB nt has, when no local place of the symbol path has it."""
        self._take_kernel()
        kernel = self._symbols.module_named("nt")
        return self._symbols.missing(kernel) if kernel is not None else None

    def _take_kernel(self) -> None:
        """Know nt alone, without walking the list for it."""
        if self._symbols.module_named("nt") is None:
            kernel = self._kernel()
            if kernel is None:
                self._read_list()
            else:
                self._set((kernel,))

    def nearest(self, address: int) -> Symbolized:
        """The nearest symbol at or below an address."""
        self.modules()
        module = self._symbols.module_at(address)
        if module is not None and not self._stopped() and not self._symbols.is_loaded(module):
            offset = address - module.base
            return Symbolized(address, module.name, "", offset, SymbolKind.MODULE)
        return self._symbols.nearest(address)

    def function_table(self, address: int) -> FunctionTable | None:
        """Unwind data of the image an address lies in; None when it lies in none."""
        self.modules()
        return self._functions.table_at(address)

    def named(self, walked: UnwoundStack) -> Stack:
        """A walked stack with its frames named; see ``ImageFunctions``."""
        return self._functions.named(walked, self.nearest)
