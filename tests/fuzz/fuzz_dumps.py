"""Attack the dump reader: ``python -m tests.fuzz.fuzz_dumps [--count 10000] [--seed N]``.

Damages headers, sub-headers, bitmaps, range lists and contents of constructed dumps of every type.
Fails, with the number that makes the same dump again, on any exception other than ``KdleakError``,
on a read that takes too long, and on a promise not kept.
"""

from __future__ import annotations

import argparse
import itertools
import random
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from kdleak.dump.file import DumpFile, open_dump
from kdleak.errors import KdleakError, MemoryUnreadable
from tests.dump_files.build_header import FIELDS, HEADER_SIZES, build_header
from tests.dump_files.build_memory import bitmap_dump, full_dump, ranges_dump, summary_dump
from tests.dump_files.build_triage import triage_dump

SECONDS_PER_DUMP = 0.5
"""Many times what the slowest one takes, on a machine that does other things too."""

_RUNS = [(1, 2), (7, 1), (0x40, 3)]
_FRAMES = [1, 2, 7, 0x40, 0x41, 0x42, 0x1FFF]
_HIGH = 0xFFFFF80000000000
_BLOCKS = [(_HIGH, b"A" * 64), (_HIGH + 0x40, b"B" * 32), (0x7FFE0000, b"C" * 16)]
_DRIVERS = [("ntoskrnl.exe", 0x80400000, 0x200000), ("leak.sys", 0xF7000000, 0x4000)]

_VALUES = (
    *(0, 1, 2, 3, 0x10, 0x28, 0x38, 0xFFF, 0x1000, 0x2000, 0x2038, 0x3000, 0x45474150),
    *(0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF, 1 << 32, 1 << 40, 1 << 52),
    *((1 << 63) - 1, 1 << 63, (1 << 64) - 0x1000, (1 << 64) - 1, 0x4547415045474150),
)


def originals() -> dict[str, bytes]:
    """A small dump of every type and pointer size."""
    dumps = {f"full-{8 * width}": full_dump(width, _RUNS) for width in (4, 8)}
    for width in (4, 8):
        dumps[f"summary-{8 * width}"] = summary_dump(width, _FRAMES)
        dumps[f"bitmap-{8 * width}"] = bitmap_dump(width, _FRAMES, dump_type=11 - width // 4 * 3)
        dumps[f"header-{8 * width}"] = bytes(build_header(width, 3))
        dumps[f"triage-{8 * width}"] = triage_dump(
            width, blocks=_BLOCKS, drivers=_DRIVERS, stack_address=0x80009000
        )
    for dump_type in (8, 9, 10):
        dumps[f"ranges-{dump_type}"] = ranges_dump(dump_type, _RUNS)
    return dumps


def mutate(raw: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """A damaged copy: one to six wounds."""
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        _WOUNDS[rng.randrange(len(_WOUNDS))](data, others, rng)
    return bytes(data)


def _header_size(data: bytearray) -> int:
    return HEADER_SIZES[8 if data[4:8] == b"DU64" else 4]


def _set_field(data: bytearray, _: list[bytes], rng: random.Random) -> None:
    at32, _, at64, _form = rng.choice(list(FIELDS.values()))
    _put(data, at64 if _header_size(data) == HEADER_SIZES[8] else at32, rng)


def _set_sub_header(data: bytearray, _: list[bytes], rng: random.Random) -> None:
    _put(data, _header_size(data) + rng.randrange(0, 0x80, 4), rng)


def _set_run(data: bytearray, _: list[bytes], rng: random.Random) -> None:
    _put(data, (0x64 if _header_size(data) == 0x1000 else 0x88) + rng.randrange(0, 0x80, 4), rng)


def _put(data: bytearray, at: int, rng: random.Random) -> None:
    value = rng.choice((rng.choice(_VALUES), len(data), rng.getrandbits(rng.randrange(1, 65))))
    form = rng.choice(("<I", "<Q"))
    if at + struct.calcsize(form) <= len(data):
        struct.pack_into(form, data, at, value & ((1 << 8 * struct.calcsize(form)) - 1))


def _flip_bits(data: bytearray, _: list[bytes], rng: random.Random) -> None:
    for _index in range(rng.randrange(1, 9)):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _noise_behind_header(data: bytearray, _: list[bytes], rng: random.Random) -> None:
    start = _header_size(data) + rng.randrange(0x200)
    noise = rng.randbytes(rng.randrange(1, 0x100))
    if start < len(data):
        data[start : start + len(noise)] = noise


def _cut(data: bytearray, _: list[bytes], rng: random.Random) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _graft(data: bytearray, others: list[bytes], rng: random.Random) -> None:
    """Another dump's sub-header behind this header."""
    other = rng.choice(others)
    there = _header_size(bytearray(other[:8]))
    data[_header_size(data) :] = other[there:]


_WOUNDS: tuple[Callable[[bytearray, list[bytes], random.Random], None], ...] = (
    _set_field,
    _set_field,
    _set_sub_header,
    _set_sub_header,
    _set_run,
    _flip_bits,
    _noise_behind_header,
    _cut,
    _graft,
)


def mutated_dumps(seed: int, count: int) -> Iterator[tuple[str, bytes]]:
    """(what it was made from, damaged dump); the same for the same seed."""
    sources = originals()
    names = sorted(sources)
    others = [sources[name] for name in names]
    for number in range(count):
        rng = random.Random(f"{seed}/{number}")
        name = names[number % len(names)]
        yield f"{name} (seed {seed}, number {number})", mutate(sources[name], others, rng)


def read_all(dump: DumpFile) -> None:
    """Everything the reader offers, with its promises checked.

    Raises:
        AssertionError: a promise is not kept.
    """
    header, pages = dump.header, dump.pages
    assert header.context is not None
    assert 0 <= dump.promised_missing <= pages.pages
    previous = 0
    for first, count, at in itertools.islice(pages.runs(), 200):
        assert count > 0
        assert first >= previous, "runs are not ascending"
        assert first + count <= pages.end
        previous = first + count
        assert at + 0x1000 * count <= dump.size, "a run lies outside the file"
        for frame, place in ((first, at), (first + count - 1, at + 0x1000 * (count - 1))):
            assert pages.offset(frame) == place, "offset and runs disagree"
            page = dump.page(frame)
            assert page is not None
            assert len(page) == 0x1000
    for frame in (*_FRAMES, 0, pages.end, pages.end - 1, 1 << 40, (1 << 64) - 1):
        page = dump.page(frame)
        assert page is None or len(page) == 0x1000
    with suppress(MemoryUnreadable):
        assert len(dump.read_physical(0x1FF0, 0x20)) == 0x20
    if dump.triage is not None:
        for block in dump.triage.blocks[:100]:
            assert len(dump.triage.read(block.address, block.size)) == block.size
        repr(dump.triage.drivers)
    assert all(remark.endswith(".") for remark in dump.remarks)


def fuzz(seed: int, count: int, folder: Path) -> tuple[int, int]:
    """(dumps that opened, dumps that were refused); the last one stays in ``folder``.

    Raises:
        AssertionError: names the dump that does what none may do.
    """
    path = folder / "mutated.dmp"
    opened = refused = 0
    for name, raw in mutated_dumps(seed, count):
        path.write_bytes(raw)
        started = time.process_time()
        try:
            with open_dump(path) as dump:
                read_all(dump)
            opened += 1
        except KdleakError as error:
            if not (error.tried and error.came_back and error.next_step):
                raise AssertionError(f"{name}: an error without words: {error}") from error
            refused += 1
        except Exception as error:
            raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error
        took = time.process_time() - started
        assert took < SECONDS_PER_DUMP, f"{name}: {took:.2f} s"
    return opened, refused


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder where the failing dump stays")
    options = parser.parse_args()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        try:
            opened, refused = fuzz(options.seed, options.count, Path(folder))
        except AssertionError as error:
            print(f"FAILED {error}")
            if options.keep:
                options.keep.mkdir(parents=True, exist_ok=True)
                kept = options.keep / "mutated.dmp"
                kept.write_bytes((Path(folder) / "mutated.dmp").read_bytes())
                print(f"the dump: {kept}")
            return 1
    took = time.perf_counter() - started
    print(f"{options.count} damaged dumps in {took:.1f} s: {opened} read, {refused} refused")
    return 0


if __name__ == "__main__":
    sys.exit(main())
