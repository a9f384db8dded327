"""Target memory: the protocol every reader of this floor uses, and a cache over it.

On a live machine each read is a round trip during which the whole machine stands still, so
nothing here reads a byte twice that cannot have changed.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Protocol, Tuple

from kdleak.errors import MemoryUnreadable

PAGE_SIZE = 0x1000


class MemoryReader(Protocol):
    """Something that reads virtual memory of the target."""

    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes at ``address``.

        Raises:
            MemoryUnreadable: when any byte of it is not there.
        """


def sign_extend(value: int, pointer_size: int) -> int:
    """A pointer of the target as the 64-bit address KD uses (32-bit ones are sign-extended)."""
    if pointer_size == 4 and value & 0x80000000:
        return value | 0xFFFFFFFF00000000
    return value


def read_pointer(memory: MemoryReader, address: int, pointer_size: int) -> int:
    """A pointer of the target, sign-extended to 64 bits on 32-bit targets."""
    raw = memory.read(address, pointer_size)
    return sign_extend(int.from_bytes(raw, "little"), pointer_size)


class CachedMemory:
    """Lines of target memory kept as long as they cannot change.

    ``read`` serves what may change while the target runs and forgets it at ``invalidate``;
    ``constant`` is a second reader whose lines stay for the session: headers, code and unwind
    data of loaded images. A line never crosses a page, so one absent page spoils no neighbour.

    Args:
        reader: where misses go.
        line: bytes fetched around a miss; a power of two, at most a page.
        limit: most bytes kept by each of the two sets; the set is dropped when it is full.
    """

    def __init__(self, reader: MemoryReader, *, line: int = 0x100, limit: int = 32 << 20) -> None:
        if line & (line - 1) or not 0 < line <= PAGE_SIZE:
            raise ValueError("line must be a power of two, at most a page")
        self._volatile = _Lines(reader, line, limit)
        self._constant = _Lines(reader, line, limit)

    @property
    def constant(self) -> MemoryReader:
        """The reader for what does not change while its image stays loaded."""
        return self._constant

    def read(self, address: int, size: int) -> bytes:
        """Exactly ``size`` bytes; see ``MemoryReader``."""
        return self._volatile.read(address, size)

    def invalidate(self) -> None:
        """Forget everything that may have changed: the target has run."""
        self._volatile.clear()

    def forget(self, address: int, size: int) -> None:
        """Forget a range in both sets: it was written, or its image was unloaded."""
        self._volatile.drop(address, size)
        self._constant.drop(address, size)

    def clear(self) -> None:
        """Forget everything."""
        self._volatile.clear()
        self._constant.clear()


class _Lines:
    """One set of cached lines; an absent line is remembered as None."""

    def __init__(self, reader: MemoryReader, line: int, limit: int) -> None:
        self._reader = reader
        self._line = line
        self._most = max(limit // line, 1)
        self._lines: Dict[int, Optional[bytes]] = {}

    def clear(self) -> None:
        self._lines.clear()

    def drop(self, address: int, size: int) -> None:
        first = address // self._line
        last = (address + max(size, 1) - 1) // self._line
        if last - first > len(self._lines):
            for number in [n for n in self._lines if first <= n <= last]:
                del self._lines[number]
            return
        for number in range(first, last + 1):
            self._lines.pop(number, None)

    def read(self, address: int, size: int) -> bytes:
        if size <= 0:
            return b""
        line = self._line
        first = address // line
        last = (address + size - 1) // line
        if last - first >= self._most:
            return self._reader.read(address, size)  # larger than the cache: pass through
        if len(self._lines) + last - first >= self._most:
            self._lines.clear()
        for start, count in self._missing(first, last):
            self._fetch(start, count)
        parts: List[bytes] = []
        for number in range(first, last + 1):
            data = self._lines.get(number)
            if data is None:
                return self._exact(address, size, number)
            parts.append(data)
        joined = parts[0] if len(parts) == 1 else b"".join(parts)
        offset = address - first * line
        return joined[offset : offset + size]

    def _exact(self, address: int, size: int, number: int) -> bytes:
        # A line can fail although the bytes wanted from it are there (the last bytes of
        # device memory, a target that refuses larger reads): ask for exactly these once more.
        start = max(number * self._line, address)
        if number * self._line >= address and (number + 1) * self._line <= address + size:
            raise MemoryUnreadable(start, size)
        return self._reader.read(address, size)

    def _missing(self, first: int, last: int) -> List[Tuple[int, int]]:
        """Runs of lines that are not cached, as (first line, count)."""
        runs: List[Tuple[int, int]] = []
        for number in range(first, last + 1):
            if number in self._lines:
                continue
            if runs and runs[-1][0] + runs[-1][1] == number:
                runs[-1] = (runs[-1][0], runs[-1][1] + 1)
            else:
                runs.append((number, 1))
        return runs

    def _fetch(self, first: int, count: int) -> None:
        line = self._line
        try:
            data = self._reader.read(first * line, count * line)
        except MemoryUnreadable:
            if count == 1:
                self._lines[first] = None
                return
            # Halve until the absent part is found: few requests when little is absent.
            half = count // 2
            self._fetch(first, half)
            self._fetch(first + half, count - half)
            return
        for index in range(count):
            self._lines[first + index] = data[index * line : (index + 1) * line]
