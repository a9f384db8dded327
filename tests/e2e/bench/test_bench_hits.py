"""The benchmark runs, counts what the target counts, and a hit costs four requests."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.e2e


def test_four_requests_per_hit():
    done = subprocess.run(
        [sys.executable, "benchmarks/hits.py", "--hits", "150"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    plain = re.search(r"^stacks +([0-9.]+)", done.stdout, flags=re.MULTILINE)
    sized = re.search(r"^stacks, block address and size +([0-9.]+)", done.stdout, re.MULTILINE)
    assert float(plain.group(1)) == 4.0
    assert float(sized.group(1)) < 5.0
