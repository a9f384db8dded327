"""Nothing but the standard library and our own code on the path inside WinDbg."""

from __future__ import annotations

import pytest
from python39 import ROOT, run_in_39

MODULES = [
    "kdleak.hunt",
    "kdleak.rank",
    "kdleak.restore",
    "kdleak.windbg",
    "kdleak.windbg.hunt_entry",
    "kdleak.windbg.rank_entry",
    "kdleak.windbg.restore_entry",
    "kdleak.engine.dbgeng",
    "kdleak.engine.channels.base",
    "kdleak.engine.channels.pykd",
]

_CODE = """
import os, sys, sysconfig
sys.path.insert(0, sys.argv[1])
import importlib
for name in sys.argv[2:]:
    importlib.import_module(name)
homes = [sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib")]
if os.name == "nt":
    homes.append(sys.base_prefix)  # the binary modules lie beside Lib
homes = tuple(map(os.path.normcase, homes))
for name, module in sorted(sys.modules.items()):
    file = getattr(module, "__file__", None)
    ours = name.split(".")[0] in ("kdleak", "__main__")
    if ours or file is None:
        continue
    if os.path.normcase(file).startswith(homes) and "site-packages" not in file:
        continue
    print("FOREIGN", name, file)
print("LOADED", *sorted(name for name in sys.modules if name.startswith("kdleak")))
print("DECIMAL" if "_decimal" in sys.modules else "")  # not made for subinterpreters
"""


@pytest.mark.parametrize("modules", [*([name] for name in MODULES), MODULES], ids=" ".join)
def test_standard_library_only(modules):
    said = run_in_39(_CODE, ROOT, *modules)
    assert "FOREIGN" not in said
    assert "DECIMAL" not in said
    assert set(modules) <= set(said.split("LOADED")[1].split())


def test_the_command_line_and_the_native_engine_are_not_loaded():
    loaded = run_in_39(_CODE, ROOT, *MODULES).split("LOADED")[1].split()
    assert not [name for name in loaded if name.startswith(("kdleak.cli", "kdleak.kd"))]
    assert "kdleak.engine.native" not in loaded


_SCRIPT = """
import runpy, sys
sys.argv = sys.argv[1:]
try:
    exec(compile(open(sys.argv[0]).read(), "<string>", "exec"), {"__name__": "__main__"})
except SystemExit as end:
    print("EXIT", end.code)
"""


def test_the_script_for_py_without_m():
    """pykd-ext runs its text without a ``__file__``, with its path in ``sys.argv[0]``."""
    script = ROOT / "scripts" / "kdleak.hunt"
    said = run_in_39(_SCRIPT, script, "--tag", "Leak", "--explain")
    assert "ed nt!PoolHitTag 'kaeL'" in said
    assert said.endswith("EXIT 0\n")


def test_the_script_names_the_python_that_pykd_has_wheels_for():
    first = (ROOT / "scripts" / "kdleak.hunt").read_text(encoding="ascii").splitlines()[0]
    assert first == "#! python3.9"


@pytest.mark.parametrize("command", ["hunt", "rank", "restore"])
def test_as_py_m_runs_them(command):
    code = (
        "import runpy, sys; sys.path.insert(0, sys.argv[1]); sys.argv = ['', '--help']\n"
        "for _ in range(2):\n"
        "    try:\n"
        f"        runpy.run_module('kdleak.{command}', run_name='__main__', alter_sys=True)\n"
        "    except SystemExit as end:\n"
        "        print('EXIT', end.code)\n"
    )
    said = run_in_39(code, ROOT)
    assert said.count("EXIT 0") == 2
    assert said.count(f"kdleak.{command}") >= 2
