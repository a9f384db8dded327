"""The benchmark of ``kdleak find`` runs, and what it compares agrees."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3]


@pytest.mark.e2e
def test_both_searches_agree():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.dumps_find", "--megabytes", "16"],
        capture_output=True,
        text=True,
        cwd=PROJECT,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    counts = re.findall(r"find, .* times; ([\d,]+) blocks seen", done.stdout)
    assert len(counts) == 2
    assert all(int(count.replace(",", "")) > 1000 for count in counts)
