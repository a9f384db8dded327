"""Windows CPython 3.9 in the rig: the core's tests, and pykd and pybag on a live target."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rig.conftest import Practice
from tests.rig.places import ROOT, windows_path
from tests.rig.rig import Rig

StartPractice = Callable[..., Practice]

WINDOWS_TESTS_SECONDS = 900


def test_it_is_windows_python(rig: Rig) -> None:
    code = "import sys, os; print(sys.platform, os.name, sys.version_info[:2], os.sep)"
    done = rig.python("-c", code)
    assert done.out == "win32 nt (3, 9) \\\n"
    assert done.err == ""


@pytest.mark.slow
def test_the_core_passes_its_tests(rig: Rig, tmp_path: Path) -> None:
    """What ``make test39`` runs, on the Python that is in WinDbg and on its operating system."""
    tests = runpy.run_path(str(ROOT / "scripts" / "make.py"))["CORE_TESTS"]
    environment = {**rig.environment(), "KDLEAK_STATE_DIR": windows_path(tmp_path)}
    done = rig.python(
        *("-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"),
        "--hypothesis-profile=ci",
        *tests,
        environment=environment,
        timeout=WINDOWS_TESTS_SECONDS,
    )
    assert done.returncode == 0, done.out[-8000:] + done.err[-2000:]
    passed = re.search(r"(\d+) passed", done.out)
    assert passed is not None
    assert int(passed.group(1)) > 1500, done.out[-2000:]


def run_live(rig: Rig, practice: Practice, code: str) -> str:
    """Run a program that attaches to the target; what it printed."""
    environment = rig.environment(symbols=practice.symbols)
    done = rig.python("-c", code, practice.connection, environment=environment, timeout=60)
    assert done.returncode == 0, done.out + done.err
    return done.out


# How an interpreter with a debugger engine in it shuts down is not what is tested: it sometimes
# does not come to an end.
PYKD = r"""
import os, sys, pykd
pykd.attachKernel(sys.argv[1])
print(pykd.isKernelDebugging(), pykd.getCPUMode(), pykd.getSystemVersion().buildNumber)
print(pykd.dbgCommand(".reload"))
print(pykd.dbgCommand("x nt!PoolHitTag"))
print(pykd.dbgCommand("!poolused 2 Leak"))
print(pykd.dbgCommand("ed nt!PoolHitTag 'kaeL'"))
print(pykd.go() == pykd.executionStatus.Break, hex(pykd.getLastException().exceptionCode))
print(pykd.dbgCommand("kb"))
pykd.dbgCommand("ed nt!PoolHitTag ffffff0f")
pykd.dbgCommand("qd")
sys.stdout.flush()
os._exit(0)
"""

PYBAG = r"""
import os, sys
from pybag import KernelDbg
debugger = KernelDbg()
debugger.attach(sys.argv[1], initial_break=True)
print(debugger.cmd(".reload"))
print(debugger.cmd("x nt!PoolHitTag"))
print(debugger.cmd("!poolused 2 Leak"))
debugger.cmd("ed nt!PoolHitTag 'kaeL'")
print(debugger.go())
print(debugger.cmd("kb"))
debugger.cmd("ed nt!PoolHitTag ffffff0f")
debugger.cmd("qd")
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize("host", ["pykd", "pybag"])
def test_a_hit_in(host: str, rig: Rig, practice_over_kdnet: StartPractice) -> None:
    practice = practice_over_kdnet()
    out = run_live(rig, practice, PYKD if host == "pykd" else PYBAG)
    if host == "pykd":
        assert out.startswith("True AMD64 22621\n")
        assert "True 0x80000003\n" in out
    assert "nt!PoolHitTag = 0xffffff0f" in out
    assert re.search(r"^ Leak +\d+ +\d+ +\d+ +\d+\tUNKNOWN pooltag 'Leak'", out, re.MULTILINE)
    assert re.search(r": leakydrv!\w+\+0x", out)
    statistics = practice.statistics
    assert statistics["hits_alloc"] + statistics["hits_free"] == 1
    assert statistics["pool_hit_tag"] == 0xFFFFFF0F
