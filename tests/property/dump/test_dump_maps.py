"""Page maps against the plainest possible ones, over made-up sets of frames and lists of runs."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdleak.dump.bitmap import BitmapMap
from kdleak.dump.file import open_dump
from kdleak.errors import KdleakError, TargetError
from tests.dump_files.build_header import build_header, place_runs
from tests.dump_files.build_memory import bits_of
from tests.fuzz.fuzz_dumps import fuzz, read_all

PAGE = 0x1000
FRAMES = st.sets(
    st.one_of(st.integers(0, 700), st.integers(260_000, 264_000)), min_size=1, max_size=80
)
RUNS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), min_size=1, max_size=12)


@given(FRAMES, st.integers(0, 70), st.integers(0, 90))
def test_bitmap_is_a_list_of_frames(frames: set[int], more: int, room: int) -> None:
    ordered = sorted(frames)
    bits = ordered[-1] + 1 + more
    # Set bits behind the last frame must not count.
    data = bytearray(bits_of(ordered, bits))
    data[-1] |= 0xFF & ~(0xFF >> (-bits % 8))
    base = 0x5000
    pages = BitmapMap(memoryview(data), bits, base, base + room * PAGE + 17)
    expected = {f: base + PAGE * i for i, f in enumerate(ordered) if i < room}
    assert (pages.pages, pages.end) == (len(ordered), ordered[-1] + 1)
    assert pages.cut_off == max(len(ordered) - room, 0)
    asked = sorted({*ordered, *(f + 1 for f in ordered), 0, bits, bits + 1, 1 << 50})
    assert {f: pages.offset(f) for f in asked if pages.offset(f) is not None} == expected
    assert {f for f in asked if pages.claims(f)} == frames
    found = pages.offsets(np.array(asked, dtype=np.uint64))
    assert found.tolist() == [expected.get(frame, -1) for frame in asked]
    walked = {first + i: at + PAGE * i for first, count, at in pages.runs() for i in range(count)}
    assert walked == expected


@settings(max_examples=60)
@given(RUNS, st.integers(0, 100))
def test_runs_as_a_reader_would_walk_them(runs: list[tuple[int, int]], room: int) -> None:
    """Each frame is found where some run of the list puts it, and only those are."""
    header = build_header(8, 1)
    place_runs(header, 8, runs)
    places: dict[int, set[int]] = {}
    skipped = 0
    for first, count in runs:
        for index in range(count):
            places.setdefault(first + index, set()).add(0x2000 + PAGE * (skipped + index))
        skipped += count
    size = 0x2000 + PAGE * room
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.dmp"
        with path.open("wb") as file:
            file.write(header)
            file.truncate(size)
        if not places:
            with pytest.raises(TargetError, match="no page"):
                open_dump(path)
            return
        with open_dump(path) as dump:
            assert dump.pages.pages == len(places)
            asked = np.arange(90, dtype=np.uint64)
            for frame, at in enumerate(dump.pages.offsets(asked).tolist()):
                assert at == (-1 if dump.pages.offset(frame) is None else dump.pages.offset(frame))
                assert dump.pages.claims(frame) == (frame in places)
                if at >= 0:
                    assert at in places[frame]
                    assert at + PAGE <= size
                elif frame in places:
                    assert any(place + PAGE > size for place in places[frame])
            walked = {
                first + i: at + PAGE * i
                for first, count, at in dump.pages.runs()
                for i in range(count)
            }
            one_by_one = {frame: dump.pages.offset(frame) for frame in range(90)}
            assert walked == {f: at for f, at in one_by_one.items() if at is not None}
            assert dump.promised_missing == len(places) - len(walked)


@settings(max_examples=60)
@given(st.binary(max_size=300), st.sampled_from([b"PAGEDUMP", b"PAGEDU64", b""]))
def test_random_bytes_are_an_error_in_words(noise: bytes, signature: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.dmp"
        path.write_bytes(signature + noise * 40)
        try:
            dump = open_dump(path)
        except KdleakError as error:
            said = error
        else:
            with dump:
                read_all(dump)
            return
        assert said.tried.endswith("m.dmp")
        assert said.came_back
        assert said.next_step


def test_damaged_dumps(tmp_path: Path) -> None:
    opened, refused = fuzz(seed=7, count=400, folder=tmp_path)
    assert opened > 100
    assert refused > 50
