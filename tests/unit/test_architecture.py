"""The rules of the house that no type checker knows."""

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "kdleak"

WINDBG_PATH = [
    "kdleak.hunt",
    "kdleak.rank",
    "kdleak.arm",
    "kdleak.journal",
    "kdleak.callsites",
    "kdleak.report.text",
    "kdleak.report.json_report",
    "kdleak.nt.pool",
    "kdleak.nt.block",
    "kdleak.nt.layouts",
    "kdleak.engine.base",
    "kdleak.engine.blocks",
    "kdleak.engine.channels.base",
    "kdleak.windbg",
    "kdleak.windbg.hunt_entry",
    "kdleak.windbg.rank_entry",
    "kdleak.windbg.restore_entry",
]


def test_floors():
    """Import direction, by import-linter's contracts in pyproject.toml."""
    program = Path(sysconfig.get_path("scripts")) / "lint-imports"
    done = subprocess.run(
        [program, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("module", WINDBG_PATH)
def test_windbg_path_is_standard_library_only(module):
    """What a fresh interpreter really loads, with third-party packages out of reach."""
    root = f"import sys; sys.path.insert(0, {str(ROOT)!r})"
    code = (
        "before = set(sys.modules)\n"
        f"import {module}\n"
        "print('\\n'.join(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"{root}\n{code}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    tops = {name.split(".")[0] for name in done.stdout.split()}
    assert tops - {"kdleak"} <= set(sys.stdlib_module_names)


def test_only_arm_writes_target_memory():
    """One place writes to the target, so one place has to undo it."""
    # The engine's own `write` and the KD host's are defined below floor 4; calls are what counts.
    calls = re.compile(r"\b(?:engine|self\._engine|_engine)\.write\(")
    guilty = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if calls.search(path.read_text(encoding="utf-8"))
    }
    assert guilty == {"arm.py"}


def _project_texts():
    for folder in ("kdleak", "tests", "scripts", "benchmarks", "samples", ".ci"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path.suffix in {
                ".py",
                ".md",
                ".toml",
                ".json",
                ".c",
                ".h",
                ".S",
                ".def",
                ".txt",
                "",
            }:
                yield path
    yield from ROOT.glob("*.md")
    yield from ROOT.glob("*.toml")


# Spelled in two halves so that this file does not contain what it looks for.
_FORBIDDEN = [
    r"/wor" + r"k/main",
    r"/ro" + r"ot/",
    r"pyp" + r"i\.org",
    r"deb\.deb" + r"ian",
    r"TO" + r"DO",
    r"FIX" + r"ME",
]


@pytest.mark.parametrize("pattern", _FORBIDDEN)
def test_no_machine_paths_and_no_loose_ends(pattern):
    found = [
        str(path.relative_to(ROOT))
        for path in _project_texts()
        if path != Path(__file__).resolve()
        and re.search(pattern, path.read_text(encoding="utf-8", errors="replace"))
    ]
    assert found == []


def test_every_error_has_an_exit_code():
    from kdleak import errors

    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.KdleakError):
            assert isinstance(value.exit_code, errors.ExitCode), name


def test_help_answers_without_heavy_imports():
    """`kdleak --help` must not pay for the engine: nothing but click and our own small files."""
    code = (
        "import sys\n"
        "from kdleak.cli.entry import run\n"
        "run(['--help'])\n"
        "print('LOADED', *sorted({m.split('.')[0] for m in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.rsplit("LOADED", 1)[1].split())
    assert not loaded & {"construct", "cryptography", "purepdb", "unicorn", "rich", "numpy"}
