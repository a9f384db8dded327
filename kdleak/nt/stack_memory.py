"""The stack of one stop: what one request brought, and more only where a frame lies beyond it."""

from __future__ import annotations

from collections.abc import Callable

from kdleak.errors import MemoryUnreadable


class StackMemory:
    """A ``MemoryReader`` over stack bytes of one stop.

    Args:
        start: address of the first byte, the stack pointer.
        data: what was read there.
        fetch: reads from an address up to a number of bytes with one request; may return fewer,
            b"" when nothing is there.
        chunk: bytes to ask for when ``data`` runs out.

    Attributes:
        start: see above.
        data: see above.
        used: bytes from ``start`` up to the furthest byte that was looked at.
    """

    def __init__(
        self, start: int, data: bytes, fetch: Callable[[int, int], bytes], chunk: int
    ) -> None:
        self.start = start
        self.data = data
        self.used = 0
        self._fetch = fetch
        self._chunk = chunk
        self._pieces = [(start, data)]

    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes; one more request when they are not known yet.

        Raises:
            MemoryUnreadable: they are not there.
        """
        found = self._known(address, size)
        if found is None:
            data = self._fetch(address, max(self._chunk, size))
            if len(data) < size:
                raise MemoryUnreadable(address + len(data), size)
            self._pieces.append((address, data))
            found = data[:size]
        distance = address + size - self.start
        # Another stack (an interrupt's) says nothing about how deep this one is.
        if 0 < distance <= 0x6000:
            self.used = max(self.used, distance)
        return found

    def _known(self, address: int, size: int) -> bytes | None:
        for start, data in self._pieces:
            if start <= address and address + size <= start + len(data):
                return data[address - start : address - start + size]
        return None
