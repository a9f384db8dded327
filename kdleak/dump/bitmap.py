"""The page map of bitmap dumps: bit n set means frame n is in the file, in order of frames.

Source: the bitmap sub-headers ``SDMP`` and ``FDMP`` as Windows 8 and later, and with 32-bit
counters Windows 7 and earlier, write them: bits least significant first, pages one after another
from the first page's offset.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kdleak.dump.page_map import PAGE_SIZE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Bits are counted at open in large pieces, and inside a piece in small ones when first needed.
_LARGE = 0x8000
_SMALL = 64
_LARGE_BITS = 8 * _LARGE
_SMALL_BITS = 8 * _SMALL
_NONE = bytes(_LARGE)
_ALL = b"\xff" * _LARGE


class BitmapMap:
    """Pages of a bitmap dump.

    Args:
        bitmap: the bytes that hold the bits; a view of the mapped file.
        bits: frames that the bitmap speaks of; at most 8 per byte.
        base: file offset of the first page.
        size: bytes of the file.
    """

    def __init__(self, bitmap: memoryview, bits: int, base: int, size: int) -> None:
        length = (bits + 7) // 8
        self._bitmap = bitmap[:length]
        self._bits = bits
        self._base = base
        self._present = max(size - base, 0) // PAGE_SIZE  # pages that the file has room for
        # The last byte's bits beyond the last frame mean nothing.
        self._tail_mask = 0xFF >> (-bits % 8)
        self._before = array("Q", [0])  # pages before each large piece
        self._inside: dict[int, array[int]] = {}
        self._block_ranks: NDArray[np.int64] | None = None
        self.end = 0
        total = 0
        for start in range(0, length, _LARGE):
            count, end = self._measure(start)
            if count:
                self.end = 8 * start + end
            total += count
            self._before.append(total)
        self.pages = total
        self.cut_off = max(total - self._present, 0)

    def _piece(self, start: int, length: int) -> bytes:
        """Bytes of the bitmap, with the bits behind the last frame cleared."""
        piece = bytes(self._bitmap[start : start + length])
        if self._tail_mask != 0xFF and start + len(piece) == len(self._bitmap) and piece:
            return piece[:-1] + bytes([piece[-1] & self._tail_mask])
        return piece

    def _measure(self, start: int) -> tuple[int, int]:
        """(bits set, highest one + 1) of a large piece."""
        piece = self._piece(start, _LARGE)
        if piece == _ALL:
            return _LARGE_BITS, _LARGE_BITS
        if piece == _NONE:
            return 0, 0
        bits = int.from_bytes(piece, "little")
        return bits.bit_count(), bits.bit_length()

    def claims(self, frame: int) -> bool:
        """Whether the bit of this frame is set."""
        return 0 <= frame < self._bits and bool(self._bitmap[frame >> 3] >> (frame & 7) & 1)

    def offset(self, frame: int) -> int | None:
        """See PageMap."""
        if not self.claims(frame):
            return None
        piece = frame // _LARGE_BITS
        inside = self._inside.get(piece)
        if inside is None:
            inside = self._count_inside(piece)
        block, bit = divmod(frame, _SMALL_BITS)
        bits = int.from_bytes(self._bitmap[block * _SMALL : (block + 1) * _SMALL], "little")
        rank = inside[block % (_LARGE // _SMALL)] + (bits & ((1 << bit) - 1)).bit_count()
        return self._base + rank * PAGE_SIZE if rank < self._present else None

    def _count_inside(self, piece: int) -> array[int]:
        ranks = array("Q")
        rank = self._before[piece]
        data = self._piece(piece * _LARGE, _LARGE)
        for start in range(0, len(data), _SMALL):
            ranks.append(rank)
            rank += int.from_bytes(data[start : start + _SMALL], "little").bit_count()
        self._inside[piece] = ranks
        return ranks

    def offsets(self, frames: NDArray[np.uint64]) -> NDArray[np.int64]:
        """See PageMap."""
        import numpy as np  # noqa: PLC0415 - optional, and slow to load

        frames = np.asarray(frames, dtype=np.uint64)
        found = np.full(len(frames), -1, dtype=np.int64)
        view = np.frombuffer(self._bitmap, dtype=np.uint8)
        for start in range(0, len(frames), 0x4000):  # bounds the memory of what is gathered
            part = frames[start : start + 0x4000]
            known = np.flatnonzero(part < np.uint64(self._bits))
            frame = part[known].astype(np.int64)
            is_set = (view[frame >> 3] >> (frame & 7).astype(np.uint8)) & 1 == 1
            known, frame = known[is_set], frame[is_set]
            rank = self._ranks(view, frame)
            found[start + known] = np.where(rank < self._present, self._base + rank * PAGE_SIZE, -1)
        return found

    def _ranks(self, view: NDArray[np.uint8], frame: NDArray[np.int64]) -> NDArray[np.int64]:
        """Pages before each frame."""
        import numpy as np  # noqa: PLC0415 - optional, and slow to load

        block = frame // _SMALL_BITS
        before = self._block_ranks = (
            self._count_blocks() if self._block_ranks is None else self._block_ranks
        )
        whole = len(view) // _SMALL
        data = np.zeros((len(frame), _SMALL), dtype=np.uint8)
        inner = block < whole
        data[inner] = view[: whole * _SMALL].reshape(whole, _SMALL)[block[inner]]
        data[~inner, : len(view) - whole * _SMALL] = view[whole * _SMALL :]
        # 64 bytes as 8 words; the bits from the frame on are cut away.
        keep = np.clip((frame % _SMALL_BITS)[:, None] - 64 * np.arange(8), 0, 64)
        mask = np.where(
            keep == 64,
            np.uint64(0xFFFFFFFFFFFFFFFF),
            (np.uint64(1) << (keep % 64).astype(np.uint64)) - np.uint64(1),
        )
        inside = _popcount(data.view(np.uint64) & mask).sum(axis=1).astype(np.int64)
        ranks: NDArray[np.int64] = before[block] + inside
        return ranks

    def _count_blocks(self) -> NDArray[np.int64]:
        """Pages before each 64 bytes of the bitmap: 1 MB of memory for 256 GB of target."""
        import numpy as np  # noqa: PLC0415 - optional, and slow to load

        blocks = -(-len(self._bitmap) // _SMALL)
        counts = np.zeros(blocks + 1, dtype=np.int64)
        step = 1 << 20
        for start in range(0, len(self._bitmap), step):
            data = self._piece(start, step)
            data += bytes(-len(data) % _SMALL)
            words = np.frombuffer(data, dtype="<u8").reshape(-1, _SMALL // 8)
            first = start // _SMALL
            counts[first + 1 : first + 1 + len(words)] = _popcount(words).sum(axis=1)
        ranks: NDArray[np.int64] = np.cumsum(counts)
        return ranks

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """See PageMap."""
        position = 0
        for first, count in self._joined():
            here = min(count, self._present - position)
            if here <= 0:
                return
            yield first, here, self._base + position * PAGE_SIZE
            position += count

    def release(self) -> None:
        """See PageMap."""
        self._bitmap.release()

    def _joined(self) -> Iterator[tuple[int, int]]:
        first = count = 0
        for start, length in self._stretches():
            if count and start == first + count:
                count += length
                continue
            if count:
                yield first, count
            first, count = start, length
        if count:
            yield first, count

    def _stretches(self) -> Iterator[tuple[int, int]]:
        """(first frame, count) of set bits, ascending; one may continue the one before."""
        for start in range(0, len(self._bitmap), _LARGE):
            piece = self._piece(start, _LARGE)
            if piece == _NONE:
                continue
            if piece == _ALL:
                yield 8 * start, _LARGE_BITS
                continue
            for at in range(0, len(piece), _SMALL):
                bits = int.from_bytes(piece[at : at + _SMALL], "little")
                frame = 8 * (start + at)
                while bits:
                    zeros = (bits & -bits).bit_length() - 1
                    bits >>= zeros
                    ones = (~bits & (bits + 1)).bit_length() - 1
                    yield frame + zeros, ones
                    bits >>= ones
                    frame += zeros + ones


def _popcount(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Set bits of each word; numpy counts them itself only from 2.0 on."""
    import numpy as np  # noqa: PLC0415 - optional, and slow to load

    u = np.uint64
    words = words - ((words >> u(1)) & u(0x5555555555555555))
    words = (words & u(0x3333333333333333)) + ((words >> u(2)) & u(0x3333333333333333))
    words = (words + (words >> u(4))) & u(0x0F0F0F0F0F0F0F0F)
    return (words * u(0x0101010101010101)) >> u(56)
