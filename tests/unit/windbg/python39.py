"""The Python that lives inside WinDbg: finding one here, and running code in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import List, Optional

import pytest

ROOT = Path(__file__).resolve().parents[3]

sys.path.insert(0, str(ROOT / "scripts"))

import make  # noqa: E402 - the Makefile's own way of finding a Python


def require_python39() -> List[str]:
    """The command of a CPython 3.9; skips the test where there is none."""
    command: Optional[List[str]] = make.find_python((3, 9), exact=True)
    if command is None:
        pytest.skip("no Python 3.9 on this machine, the one that runs inside WinDbg")
    return command


def run_in_39(code: str, *arguments: object, seconds: float = 60.0) -> str:
    """What the code prints in a CPython 3.9 without site-packages; fails the test if it fails."""
    done = subprocess.run(
        [*require_python39(), "-I", "-S", "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
