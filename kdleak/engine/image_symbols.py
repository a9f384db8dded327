"""Names and unwind data of the images of a target that does not change: a dump."""

from __future__ import annotations

from kdleak.errors import MemoryUnreadable
from kdleak.model import Frame, Module, Registers, Stack, StackEnd, Symbolized
from kdleak.nt.memory import MemoryReader
from kdleak.nt.pe import read_image
from kdleak.nt.symbols import SymbolLoader, Symbols
from kdleak.nt.unwind import unwind
from kdleak.nt.unwind_data import FunctionTable, UnwindDataError


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
        self._functions: dict[int, FunctionTable] = {}

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

    def frame_symbol(self, address: int, *, returns: bool) -> Symbolized:
        """The name of a frame whose function the unwinder has looked at.

        A part of a function that the compiler moved away is named as an offset from the
        function's start, as WinDbg does it.

        Args:
            address: the instruction, or the return address.
            returns: it is a return address, so the call in front of it counts.
        """
        plain = self.nearest(address)
        inside = address - 1 if returns else address
        module = self.module_at(inside)
        table = self._functions.get(module.base) if module is not None else None
        if module is None or table is None:
            return plain
        try:
            part = table.find(inside - module.base)
            if part is None or table.info(part).parent is None:
                return plain
            start = table.primary(part).begin
        except (MemoryUnreadable, UnwindDataError):
            return plain
        symbols = self._symbols.table(module)
        name = symbols.exactly_at(start)
        if name is None or address < module.base + start:
            return plain
        return Symbolized(address, module.name, name, address - module.base - start, symbols.kind)

    def function_table(self, address: int) -> FunctionTable | None:
        """Unwind data of the image an address lies in; None when it lies in none."""
        module = self.module_at(address)
        if module is None:
            return None
        table = self._functions.get(module.base)
        if table is None:
            image = read_image(self._memory, module.base)
            if image is None:
                table = FunctionTable(self._memory, module.base, module.size, 0, 0, known=False)
            else:
                rva, size = image.exception_directory
                table = FunctionTable(self._memory, module.base, image.size, rva, size)
            self._functions[module.base] = table
        return table

    def walk(self, registers: Registers, depth: int) -> Stack:
        """The x64 call stack that begins at some registers, innermost frame first."""
        memory = self._memory
        found = unwind(registers.as_dict(), self.function_table, memory, memory, depth)
        looked_at = len(found.frames) - (found.end is StackEnd.DEPTH)
        frames = tuple(
            Frame(
                address,
                pointer,
                self.frame_symbol(address, returns=index > 0)
                if index < looked_at
                else self.nearest(address),
            )
            for index, (address, pointer) in enumerate(found.frames)
        )
        return Stack(frames, found.end)
