"""Commands on dumps: what is loaded for them, and files that are not as they should be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LATER = ROOT / "samples" / "dumps" / "later.dmp"
LONG = "a" * 300


def kdleak(*words):
    return subprocess.run(
        [sys.executable, "-m", "kdleak", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
    )


@pytest.mark.parametrize(
    ("words", "unwanted"),
    [
        (("rank", "-z"), {"numpy", "capstone", "requests", "kdleak.dialect.log", "kdleak.hunt"}),
        (("dump",), {"requests", "kdleak.dialect.log", "kdleak.hunt"}),
        (("find", "Leak", "-z"), {"capstone", "requests", "kdleak.dialect.log", "kdleak.hunt"}),
        (("sites", "Leak", "-z"), {"requests", "kdleak.dialect.log", "kdleak.hunt"}),
    ],
)
def test_nothing_is_loaded_that_is_not_needed(words, unwanted):
    code = (
        "import sys; from kdleak.cli.entry import run; "
        f"code = run([*{words!r}, {str(LATER)!r}]); "
        f"print('loaded:', sorted({unwanted!r} & set(sys.modules)), code, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
    )
    assert done.stderr.splitlines()[-1] == "loaded: [] 0"


@pytest.mark.parametrize(
    "words",
    [
        ("dump", LONG),
        ("rank", "-z", LONG),
        ("diff", LONG, LATER),
        ("rank", "-z", LATER, "-o", LONG),
        ("sites", "Leak", "-z", LATER, "--pooltag", LONG),
        ("rank", "--replay", LONG),
    ],
)
def test_names_that_no_file_can_have(words):
    done = kdleak(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("kdleak: ")]
    assert "Next: " in line


@pytest.mark.skipif(os.name == "nt", reason="Windows has no named pipes in folders")
def test_a_pipe_is_not_waited_for(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for words in (("dump", pipe), ("rank", "-z", pipe), ("diff", LATER, pipe)):
        done = kdleak(*words)
        assert done.returncode == 3
        assert "no regular file" in done.stderr


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may read everything")
def test_a_dump_that_may_not_be_read(tmp_path):
    path = tmp_path / "closed.dmp"
    path.write_bytes(LATER.read_bytes())
    path.chmod(0)
    for words in (("dump", path), ("rank", "-z", path), ("diff", LATER, path)):
        done = kdleak(*words)
        assert done.returncode == 3
        assert "Windows lets only administrators read" in done.stderr


def test_sites_of_a_dump_without_its_modules(tmp_path):
    path = tmp_path / "cut.dmp"
    path.write_bytes(LATER.read_bytes()[:0x40000])
    done = kdleak("sites", "Leak", "-z", path)
    assert done.returncode == 4
    assert "missing: the list of loaded modules is not in the dump" in done.stdout


@pytest.mark.skipif(os.name == "nt", reason="Windows has no named pipes in folders")
def test_force_does_not_replace_a_device(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    done = kdleak("rank", "-z", LATER, "-o", pipe, "--force")
    assert done.returncode == 2
    assert "no regular file" in done.stderr
    assert pipe.is_fifo()
