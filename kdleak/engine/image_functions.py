"""Functions of loaded images as their unwind data bounds them, and the frames named after them."""

from __future__ import annotations

from collections.abc import Callable

from kdleak.errors import MemoryUnreadable
from kdleak.model import Frame, Module, Stack, StackEnd, Symbolized
from kdleak.nt.memory import MemoryReader
from kdleak.nt.symbols import Symbols
from kdleak.nt.unwind import UnwoundStack
from kdleak.nt.unwind_data import FunctionTable, UnwindDataError, read_function_table


class ImageFunctions:
    """The function tables of a target's images, each read when first needed.

    Args:
        memory: reads the target and keeps what it read.
        symbols: names of the same images.
    """

    def __init__(self, memory: MemoryReader, symbols: Symbols) -> None:
        self._memory = memory
        self._symbols = symbols
        self._tables: dict[int, FunctionTable] = {}

    def forget(self) -> None:
        """Read all tables again when they are next needed."""
        self._tables.clear()

    def drop(self, base: int) -> None:
        """Forget the image at an address: it was unloaded."""
        self._tables.pop(base, None)

    def table_at(self, address: int) -> FunctionTable | None:
        """Unwind data of the image an address lies in; None when it lies in none."""
        module = self._symbols.module_at(address)
        if module is None:
            return None
        table = self._tables.get(module.base)
        if table is None:
            table = read_function_table(self._memory, module.base, module.size)
            self._tables[module.base] = table
        return table

    def _start_of_part(self, module: Module, address: int) -> int | None:
        """RVA of the function that an address is a moved part of; None where it is none.

        Only what the unwinder has read is asked, so that a name costs the target nothing.
        """
        table = self._tables.get(module.base)
        if table is None:
            return None
        try:
            part = table.find(address - module.base)
            if part is None or table.info(part).parent is None:
                return None
            return table.primary(part).begin
        except (MemoryUnreadable, UnwindDataError):
            return None

    def frame_symbol(self, plain: Symbolized, *, returns: bool) -> Symbolized:
        """The name of a frame whose function the unwinder has looked at.

        Compilers move rarely executed parts of a function (a break instruction's, for one) far
        away, behind other functions' names. Unwind data says whose part it is, and WinDbg too
        shows such an address as an offset from its function.

        Args:
            plain: the instruction, or the return address, by the nearest symbol.
            returns: it is a return address, so the call in front of it counts.
        """
        address = plain.address
        inside = address - 1 if returns else address
        module = self._symbols.module_at(inside)
        start = self._start_of_part(module, inside) if module is not None else None
        if module is None or start is None:
            return plain
        symbols = self._symbols.table(module)
        name = symbols.exactly_at(start)
        if name is None or address < module.base + start:
            return plain
        return Symbolized(address, module.name, name, address - module.base - start, symbols.kind)

    def named(self, walked: UnwoundStack, nearest: Callable[[int], Symbolized]) -> Stack:
        """A walked stack with its frames named.

        Args:
            walked: what the unwinder found.
            nearest: the nearest symbol at or below an address.
        """
        # Where the walk ended for its depth, it has not looked at the last frame's function.
        looked_at = len(walked.frames) - (walked.end is StackEnd.DEPTH)
        frames = []
        for index, (address, pointer) in enumerate(walked.frames):
            symbol = nearest(address)
            if index < looked_at:
                symbol = self.frame_symbol(symbol, returns=index > 0)
            frames.append(Frame(address, pointer, symbol))
        return Stack(tuple(frames), walked.end)
