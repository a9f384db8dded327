"""Call stacks at a stop, with as few round trips as the debugger allows.

DbgEng's own walk reads code and unwind data of every frame from the target again at every
stop: fifteen to twenty-five requests. So the bytes of the stack are read once and walked here,
over unwind data that is kept for the session; ``kn`` is asked only about addresses that were
never seen, which names them exactly as the debugger does and checks this walk against its own.
Where the two differ, or the target is not x64, every stack is the debugger's (``kb``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, Dict, List, Mapping, Optional, Tuple

from kdleak.dialect.stack import parse_stacks
from kdleak.dialect.stack_model import to_model
from kdleak.engine.channels.base import Channel
from kdleak.engine.dbgeng_memory import DebuggerMemory
from kdleak.engine.dbgeng_symbols import DebuggerSymbols
from kdleak.engine.stack_reader import StackReader
from kdleak.errors import MemoryUnreadable, format_address
from kdleak.model import Architecture, Frame, Module, Stack, StackEnd, Symbolized, SymbolKind
from kdleak.nt.memory import MemoryReader, sign_extend
from kdleak.nt.stack_memory import StackMemory
from kdleak.nt.unwind import UnwoundStack, unwind

_MOST = 0x400
"""Bytes of one read: what DbgEng gets with one request over KDNET."""
_TRUSTED_ENDS = frozenset({StackEnd.COMPLETE, StackEnd.USER_MODE, StackEnd.DEPTH})


class StackWalker:
    """Takes the stack of each stop.

    Args:
        channel: the debugger.
        memory: reads the target.
        symbols: names and unwind data.
        code: reads instructions, kept for the session.
        architecture: of the target.
        use_kb: always ask the debugger.
        remark: takes a sentence worth showing.
    """

    def __init__(
        self,
        channel: Channel,
        memory: DebuggerMemory,
        symbols: DebuggerSymbols,
        code: MemoryReader,
        architecture: Architecture,
        *,
        use_kb: bool,
        remark: Callable[[str], None],
    ) -> None:
        self._channel = channel
        self._symbols = symbols
        self._code = code
        self._own = not use_kb and architecture is Architecture.X64
        self._pointer_size = 4 if architecture is Architecture.X86 else 8
        self._remark = remark
        self._reader = StackReader(memory.read_some, lambda: _MOST, cross=False)
        self._names: Dict[int, Symbolized] = {}
        self._memory: Optional[StackMemory] = None
        self._stack: Dict[int, Stack] = {}
        symbols.on_gone = self._forget_module

    def forget_stop(self) -> None:
        """The target runs: nothing of the last stop holds."""
        self._memory = None
        self._stack.clear()

    def forget_names(self) -> None:
        """Symbols were loaded again."""
        self._names.clear()

    def _forget_module(self, gone: Module, now: Optional[Module]) -> None:
        """A driver was unloaded: its addresses may be another's from now on."""
        names = [address for address in self._names if address in gone]
        for address in names:
            del self._names[address]
        if names and now is not None and now.name != gone.name:
            self._remark(
                f"{gone.name} was unloaded while this went on, and {now.name} lies where it was: "
                f"stacks of about that time may name {gone.name} for {now.name}"
            )

    def known_memory(self) -> Tuple[int, bytes]:
        """The stack bytes of this stop that are known; (0, b"") for none."""
        if self._memory is None:
            return 0, b""
        return self._memory.start, self._memory.data

    def stack(self, registers: Mapping[str, int], depth: int) -> Stack:
        """At most ``depth`` frames."""
        known = self._stack.get(depth)
        if known is None:
            known = self._stack[depth] = self._take(registers, depth)
        return known

    def _take(self, registers: Mapping[str, int], depth: int) -> Stack:
        if not self._own:
            return self._debuggers("kb", registers, depth)
        walked = self._walk(registers, depth)
        addresses = [address for address, _ in walked.frames]
        if walked.end in _TRUSTED_ENDS and all(address in self._names for address in addresses):
            return self._named(walked)
        theirs = self._debuggers("kn", registers, depth)
        if not theirs:
            return self._named(walked)
        shown = [frame.address for frame in theirs.frames]
        common = min(len(shown), len(addresses))
        if shown[:common] != addresses[:common] and walked.end in _TRUSTED_ENDS:
            self._own = False
            at = next(i for i in range(common) if shown[i] != addresses[i])
            self._remark(
                "kdleak's own walk of a stack differed from the debugger's behind "
                f"{format_address(addresses[max(at - 1, 0)])}; every stack is taken with kb from "
                "now on"
            )
            return theirs
        for frame in theirs.frames:
            self._names[frame.address] = frame.symbol
        if len(shown) >= len(addresses):
            return theirs
        return self._named(walked)

    # -- our walk

    def _walk(self, registers: Mapping[str, int], depth: int) -> UnwoundStack:
        pointer = registers.get("rsp", 0)
        self._memory = _FromReturnSlot(pointer, self._reader)
        walked = unwind(registers, self._symbols.function_table, self._memory, self._code, depth)
        self._reader.learn(self._memory.used)
        return walked

    def _named(self, walked: UnwoundStack) -> Stack:
        frames: List[Frame] = []
        for address, pointer in walked.frames:
            symbol = self._names.get(address)
            if symbol is None:
                symbol = self._names[address] = self._symbols.nearest(address)
            frames.append(Frame(address, pointer, symbol))
        return Stack(tuple(frames), walked.end)

    # -- the debugger's

    def _debuggers(self, command: str, registers: Mapping[str, int], depth: int) -> Stack:
        text = self._channel.execute(f"{command} 0x{depth:x}")
        stacks = parse_stacks(text).stacks
        if not stacks:
            return Stack((), StackEnd.UNREADABLE)
        here = registers.get("rip") or registers.get("eip") or registers.get("pc") or 0
        stack = to_model(stacks[0], here, self._pointer_size)
        frames = tuple(
            Frame(
                self._whole(frame.address),
                self._whole(frame.stack_pointer),
                self._with_kind(frame.symbol),
            )
            for frame in stack.frames[:depth]
        )
        return Stack(frames, stack.end)

    def _whole(self, address: int) -> int:
        return sign_extend(address, self._pointer_size)

    def _with_kind(self, symbol: Symbolized) -> Symbolized:
        address = self._whole(symbol.address)
        if not symbol.module or not symbol.name:
            return replace(symbol, address=address)
        kind = self._symbols.kind_of(symbol.module)
        if kind is SymbolKind.MODULE:
            kind = symbol.kind  # the debugger showed a name: it has something
        return replace(symbol, address=address, kind=kind)


class _FromReturnSlot(StackMemory):
    """Stack memory whose one read begins where the walk first looks.

    At a stop DbgEng has read 0x80 bytes from the return address on by itself, so a read that
    begins there costs one request, and one that begins at the stack pointer costs two.
    """

    def __init__(self, pointer: int, reader: StackReader) -> None:
        super().__init__(pointer, b"", reader.read, reader.size)
        self._reader = reader
        self._began = False

    def read(self, address: int, size: int) -> bytes:
        """See ``StackMemory``."""
        if not self._began:
            self._began = True
            wanted = max(self.start + self._reader.size - address, size)
            data = self._reader.read(address, wanted)
            if len(data) < size:
                raise MemoryUnreadable(address + len(data), size)
            self.start, self.data = address, data
            self._pieces[:] = [(address, data)]
        return super().read(address, size)
