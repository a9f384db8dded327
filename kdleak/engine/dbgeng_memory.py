"""Target memory through a debugger: its interface where the channel has one, else its text."""

from __future__ import annotations

from typing import Callable, List, Optional

from kdleak.dialect.memory_dump import parse_memory_dump
from kdleak.engine.channels.base import Channel
from kdleak.errors import MemoryNotWritten, MemoryUnreadable, format_address

_TEXT_CHUNK = 0x4000
"""Bytes asked for with one ``dq``: about 50 kB of text."""
_SMALL = 16


class DebuggerMemory:
    """A ``MemoryReader`` over a channel.

    Args:
        channel: the debugger.
        stopped: whether the target is stopped; a running one cannot be read.

    Attributes:
        pointer_size: bytes, 4 or 8, once it is known.
    """

    def __init__(self, channel: Channel, stopped: Callable[[], bool]) -> None:
        self._channel = channel
        self._stopped = stopped
        self._masm: Optional[bool] = None
        self.pointer_size = 8

    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes.

        Raises:
            MemoryUnreadable: any of them is not there, or the target is running.
            LinkLost: the debugger does not answer.
        """
        if not self._stopped():
            raise MemoryUnreadable(address, size, "the target is running", "interrupt it first")
        if size <= 0:
            return b""
        quick = self._channel.quick
        if quick is not None:
            return quick.read(address, size)
        parts: List[bytes] = []
        at, left = address, size
        while left > 0:
            data = self._by_text(at, min(left, _TEXT_CHUNK))
            parts.append(data)
            at += len(data)
            left -= len(data)
        return b"".join(parts)

    def read_some(self, address: int, size: int) -> bytes:
        """As many of ``size`` bytes as are there from the start, in one command; b"" for none."""
        quick = self._channel.quick
        if quick is None:
            return self._prefix(address, size)
        try:
            return quick.read(address, size)
        except MemoryUnreadable:
            return b""

    def write(self, name: str, address: int, data: bytes) -> None:
        """Write bytes with ``ed`` (four of them) or ``eb``.

        A debugger may say something although it wrote (``!sym noisy``, a warning about symbols):
        what it says counts only when the bytes are not there afterwards.

        Args:
            name: the symbol at the address, as a user would write it; "" for none.
            address: where to write.
            data: what to write.

        Raises:
            MemoryNotWritten: the debugger complained, and the bytes are not there.
        """
        if len(data) == 4:
            verb, values = "ed", f"0x{int.from_bytes(data, 'little'):08x}"
        else:
            verb, values = "eb", " ".join(f"0x{byte:02x}" for byte in data)
        number = f"0x{address:x}"
        answer = ""
        for place in [name, number] if name and self._takes_names() else [number]:
            answer = self._channel.execute(f"{verb} {place} {values}").strip()
            if not answer or self._holds(address, data):
                return
        raise MemoryNotWritten(
            f"writing {len(data)} bytes at {format_address(address)}",
            f"the debugger answered: {_one_line(answer)}",
            "check that this is a live kernel session and that the address is right",
        )

    def _takes_names(self) -> bool:
        """Whether a name in a command means an address.

        To the C++ evaluator (``.expr /s c++``) a name means what is stored there: ``ed`` would
        write wherever nt!PoolHitTag, taken for a pointer, points to.
        """
        if self._masm is None:
            self._masm = "masm" in self._channel.execute(".expr").lower()
        return self._masm

    def _holds(self, address: int, data: bytes) -> bool:
        try:
            return self.read(address, len(data)) == data
        except MemoryUnreadable:
            return False

    def _by_text(self, address: int, size: int) -> bytes:
        data = self._prefix(address, size)
        if len(data) < size:
            raise MemoryUnreadable(address + len(data), size)
        return data

    def _prefix(self, address: int, size: int) -> bytes:
        if size <= _SMALL:
            command, start, end = f"db 0x{address:x} L0x{size:x}", address, address + size
        else:
            start = address & ~7
            end = (address + size + 7) & ~7
            command = f"dq 0x{start:x} L0x{(end - start) // 8:x}"
        dump = parse_memory_dump(self._channel.execute(command))
        if self.pointer_size == 4:  # printed as 32 bits
            wide = start - (start & 0xFFFFFFFF)
            address, start, end = address - wide, start - wide, end - wide
        data = dump.bytes_at(start, end - start)
        if data is None:
            data = _readable_prefix(dump.bytes_at, start, end)
        return data[address - start : address - start + size]


def _readable_prefix(bytes_at: Callable[[int, int], bytes | None], start: int, end: int) -> bytes:
    """The bytes from ``start`` up to the first one that was not printed; halves the range."""
    low, high = 0, end - start  # low bytes are there, high are not
    while high - low > 1:
        middle = (low + high) // 2
        if bytes_at(start, middle) is None:
            high = middle
        else:
            low = middle
    return (bytes_at(start, low) or b"") if low else b""


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]
