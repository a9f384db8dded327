"""Going through a dump must not make our memory as large as the dump."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from kdleak.dump.file import DumpFile, open_dump
from kdleak.errors import TargetError
from kdleak.nt.space.page_source import PageSource
from tests.dump_files.build_header import build_header, place_runs
from tests.dump_files.build_memory import full_dump, page_of

_SMALL = [(1, 40)]
_FRAMES = 60_000
"""234 MB in the file, of which nothing is written: it is a hole."""
_MOST = 130 << 20


@pytest.fixture
def large(tmp_path):
    path = tmp_path / "large.dmp"
    header = build_header(8, 1)
    place_runs(header, 8, [(1, _FRAMES)])
    with path.open("wb") as file:
        file.write(header)
        file.truncate(0x2000 + _FRAMES * 0x1000)
    with open_dump(path) as dump:
        yield dump


def _of_files() -> int:
    """Bytes of mapped files that count as our memory."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("RssFile"):
            return int(line.split()[1]) * 1024
    raise AssertionError("RssFile")


linux = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")


@linux
def test_page_by_page(large: DumpFile):
    before = most = _of_files()
    for frame in range(1, _FRAMES + 1):
        page = large.page(frame)
        assert page is not None
        assert page[0] == 0
        if frame % 1000 == 0:
            most = max(most, _of_files())
    assert most - before < _MOST


@linux
def test_many_at_once(large: DumpFile):
    source = PageSource(large, large.pages.end)
    before = most = _of_files()
    for first in range(1, _FRAMES + 1, 2000):
        places = source.places(np.arange(first, min(first + 2000, _FRAMES + 1), dtype=np.uint64))
        assert not source.rows(places).any()
        most = max(most, _of_files())
    assert most - before < _MOST


def test_views_stay_good(tmp_path):
    path = tmp_path / "small.dmp"
    path.write_bytes(full_dump(8, _SMALL))
    with open_dump(path) as dump:
        view = dump.page(3)
        assert view is not None
        assert bytes(view) == page_of(3)
        dump.forget_pages()
        assert bytes(view) == page_of(3)
        view.release()
    dump.forget_pages()  # closed: nothing to forget, and no error


def test_systems_without_such_advice(tmp_path, monkeypatch):
    monkeypatch.delattr(mmap, "MADV_DONTNEED", raising=False)
    path = tmp_path / "small.dmp"
    path.write_bytes(full_dump(8, _SMALL))
    with open_dump(path) as dump:
        dump.forget_pages()
        assert dump.page(3) == page_of(3)


def test_a_file_that_shrinks_is_told(tmp_path):
    path = tmp_path / "small.dmp"
    path.write_bytes(full_dump(8, _SMALL))
    with open_dump(path) as dump:
        with path.open("r+b") as file:
            file.truncate(0x3000)
        with pytest.raises(TargetError, match="shrank"):
            dump.forget_pages()
