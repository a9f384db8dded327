"""Modules and symbols as the debugger knows them: ``lm``, ``?``, ``ln`` and the rows of ``k``.

Names cost the target nothing once the debugger has loaded them, but every command does (see
``channels.base``), so each address is asked about once.
"""

from __future__ import annotations

from typing import Callable, Dict, List, Optional, Sequence, Tuple

from kdleak.dialect.engine_errors import find_engine_error
from kdleak.dialect.modules import ModuleRow, parse_modules
from kdleak.dialect.reload import parse_reload
from kdleak.dialect.symbol_lines import parse_symbol_lines
from kdleak.engine.channels.base import Channel
from kdleak.errors import SymbolNotFound
from kdleak.model import Module, Symbolized, SymbolKind
from kdleak.nt.memory import CachedMemory, sign_extend
from kdleak.nt.unwind_data import FunctionTable, read_function_table

_KINDS = (
    ("pdb", SymbolKind.PDB),
    ("private", SymbolKind.PDB),
    ("export", SymbolKind.EXPORT),
    ("coff", SymbolKind.PDB),
    ("no symbols", SymbolKind.MODULE),
)
_KERNEL_HALF = 1 << 63


class DebuggerSymbols:
    """What one target has loaded and what its addresses are called.

    Args:
        channel: the debugger.
        cache: reads the target; its constant part keeps images' unwind data.
        pointer_size: bytes, 4 or 8.

    Attributes:
        on_gone: told of every module that is no longer where it was, and of the one that lies
            there now.
    """

    def __init__(self, channel: Channel, cache: CachedMemory, pointer_size: int) -> None:
        self._channel = channel
        self._cache = cache
        self._pointer_size = pointer_size
        self._rows: Tuple[ModuleRow, ...] = ()
        self._modules: Tuple[Module, ...] = ()
        self._listed = False
        self.on_gone: Callable[[Module, Optional[Module]], None] = lambda _gone, _now: None
        self._addresses: Dict[str, int] = {}
        self._nearest: Dict[int, Symbolized] = {}
        self._functions: Dict[int, Tuple[int, FunctionTable]] = {}
        self._kinds: Dict[str, SymbolKind] = {}

    # -- the list

    def reload(self) -> Tuple[str, ...]:
        """``.reload``, and forget what was known; what it complained about."""
        text = self._channel.execute(".reload")
        self.forget()
        self._cache.clear()
        output = parse_reload(text)
        errors = [f"{error.module}: {error.text}" for error in output.symbol_errors]
        return tuple(dict.fromkeys([*errors, *output.failures]))

    def forget(self) -> None:
        """Know nothing any more: another target, or another load of it."""
        self._listed, self._rows, self._modules = False, (), ()
        self._addresses.clear()
        self._nearest.clear()
        self._functions.clear()
        self._kinds.clear()

    def list_again(self) -> None:
        """Read the module list anew when it is next needed."""
        self._listed = False

    def _list(self) -> Tuple[ModuleRow, ...]:
        if not self._listed:
            rows = parse_modules(self._channel.execute("lm")).modules
            self._listed = True
            if rows:
                before, self._rows = self._rows, rows
                self._modules = self._of_kernel(rows)
                self._forget_gone(before)
        return self._rows

    def _of_kernel(self, rows: Sequence[ModuleRow]) -> Tuple[Module, ...]:
        found: List[Module] = []
        for row in rows:
            base = sign_extend(row.start, self._pointer_size)
            if base < _KERNEL_HALF:
                continue  # an image of the current process
            end = sign_extend(row.end, self._pointer_size)
            module = Module(row.name, base, end - base, row.file or row.name)
            found.insert(0 if row.name.lower() == "nt" else len(found), module)
        return tuple(found)

    def _forget_gone(self, before: Sequence[ModuleRow]) -> None:
        """Forget what lay in modules that are not there any more: addresses get new owners."""
        now = {_place_of(row): row for row in self._rows}
        gone = [row for row in before if _came_anew(row, now.get(_place_of(row)))]
        for module in self._of_kernel(gone):
            self._kinds.pop(module.name.lower(), None)
            self._functions.pop(module.base, None)
            self._cache.forget(module.base, module.size)
            for address in [one for one in self._nearest if one in module]:
                del self._nearest[address]
            for name in [name for name, address in self._addresses.items() if address in module]:
                del self._addresses[name]
            self.on_gone(
                module, next((one for one in self._modules if _overlap(one, module)), None)
            )

    def modules(self) -> Tuple[Module, ...]:
        """Loaded kernel modules, by address as the debugger lists them, nt first."""
        self._list()
        return self._modules

    def _module_at(self, address: int) -> Optional[Module]:
        return next((module for module in self.modules() if address in module), None)

    def kind_of(self, module: str) -> SymbolKind:
        """What the names of a module rest on; UNKNOWN symbols count as the module alone."""
        known = self._kinds.get(module.lower())
        if known is None:
            # The debugger loads symbols when it first needs them: ask after a name was shown.
            self._listed = False
            state = next(
                (row.symbols or "" for row in self._list() if row.name.lower() == module.lower()),
                "",
            )
            known = next((kind for word, kind in _KINDS if word in state), SymbolKind.MODULE)
            if known is not SymbolKind.MODULE or "deferred" not in state:
                self._kinds[module.lower()] = known
        return known

    # -- names to addresses and back

    def address(self, name: str) -> int:
        """Address of ``module!name``.

        Raises:
            SymbolNotFound: with what the debugger said.
        """
        if "!" not in name:
            name = f"nt!{name}"
        known = self._addresses.get(name.lower())
        if known is not None:
            return known
        text = self._channel.execute(f"? @@masm({name})")
        values = parse_symbol_lines(text).values
        if not values:
            raise SymbolNotFound(
                f"looking up {name}",
                self._why(text),
                "check the symbol path (-y, or .sympath in WinDbg) and run .reload; !sym noisy "
                "shows what the debugger tries",
            )
        value = sign_extend(values[0].value, self._pointer_size)
        self._addresses[name.lower()] = value
        return value

    def knows(self, name: str) -> bool:
        """Whether an address is known without asking."""
        return name.lower() in self._addresses

    @staticmethod
    def _why(text: str) -> str:
        failure = find_engine_error(text)
        if failure is not None:
            return failure.sentence.replace(")'", "'")
        said = " ".join(text.replace(")'", "'").split())  # the bracket is that of @@masm()
        return f"the debugger answered: {said[:200] or 'nothing'}"

    def nearest(self, address: int) -> Symbolized:
        """The nearest symbol at or below an address."""
        known = self._nearest.get(address)
        if known is None:
            known = self._nearest[address] = self._ask_nearest(address)
        return known

    def _ask_nearest(self, address: int) -> Symbolized:
        near = parse_symbol_lines(self._channel.execute(f"ln 0x{address:x}")).near
        if near:
            place = near[0].below.name
            start = sign_extend(near[0].below.address, self._pointer_size)
            if place.module and place.name and start <= address:
                kind = self.kind_of(place.module)
                return Symbolized(address, place.module, place.name, address - start, kind)
        module = self._module_at(address)
        if module is None:
            return Symbolized(address)
        return Symbolized(address, module.name, "", address - module.base, SymbolKind.MODULE)

    # -- unwind data

    def function_table(self, address: int) -> Optional[FunctionTable]:
        """Unwind data of the image an address lies in; None when it lies in none."""
        module = self._module_at(address)
        if module is None:
            if address < _KERNEL_HALF:
                return None
            self._listed = False  # a driver that came after the list was read
            module = self._module_at(address)
            if module is None:
                return None
        known = self._functions.get(module.base)
        if known is not None and known[0] == module.size:
            return known[1]
        if known is not None:
            self._cache.forget(module.base, max(module.size, known[0]))  # another image now
        table = read_function_table(self._cache.constant, module.base, module.size)
        self._functions[module.base] = (module.size, table)
        return table


def _place_of(row: ModuleRow) -> Tuple[int, int, str]:
    return row.start, row.end, row.name


def _came_anew(before: ModuleRow, now: Optional[ModuleRow]) -> bool:
    """Whether a module is gone, or another load of it is there: its symbols are deferred again."""
    if now is None:
        return True
    return "deferred" in (now.symbols or "") and "deferred" not in (before.symbols or "deferred")


def _overlap(one: Module, other: Module) -> bool:
    return one.base < other.base + other.size and other.base < one.base + one.size
