"""Names and unwind data of the images of a target that does not change: a dump."""

from __future__ import annotations

from kdleak.engine.image_functions import ImageFunctions
from kdleak.model import Module, Registers, Stack, Symbolized
from kdleak.nt.memory import MemoryReader
from kdleak.nt.symbols import SymbolLoader, Symbols
from kdleak.nt.unwind import unwind


class ImageSymbols:
    """Symbols and function tables of a list of modules, each loaded when first needed.

    Args:
        memory: reads the target.
        loader: finds and reads the symbols of an image.
        modules: in load order.
    """

    def __init__(
        self, memory: MemoryReader, loader: SymbolLoader, modules: tuple[Module, ...]
    ) -> None:
        self.modules = modules
        self._memory = memory
        self._symbols = Symbols(loader)
        self._symbols.set_modules(modules)
        self._functions = ImageFunctions(memory, self._symbols)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What loading symbols had to say so far, one sentence each."""
        return tuple(self._symbols.remarks)

    def load(self, name: str) -> None:
        """Load the symbols of one module now, if there is one of that name."""
        module = self._symbols.module_named(name)
        if module is not None:
            self._symbols.table(module)

    def address(self, name: str) -> int:
        """Address of ``module!name``.

        Raises:
            SymbolNotFound: with what was searched.
        """
        return self._symbols.address(name)

    def nearest(self, address: int) -> Symbolized:
        """The nearest symbol at or below an address."""
        return self._symbols.nearest(address)

    def module_at(self, address: int) -> Module | None:
        """The module an address lies in."""
        return self._symbols.module_at(address)

    def walk(self, registers: Registers, depth: int) -> Stack:
        """The x64 call stack that begins at some registers, innermost frame first."""
        memory = self._memory
        walked = unwind(registers.as_dict(), self._functions.table_at, memory, memory, depth)
        return self._functions.named(walked, self.nearest)
