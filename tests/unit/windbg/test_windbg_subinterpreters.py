"""The conditions inside WinDbg: a new sub-interpreter each time, and stdio that can do little.

pykd-ext makes a sub-interpreter for every ``!py``, sets a recursion limit of 500, and puts objects
with next to no methods in the place of stdout and stderr. Some C extensions load once and crash
the second time; so everything is done twice, in two of them, in one process.
"""

from __future__ import annotations

from python39 import ROOT, run_in_39

_RUN = """
import json, sys
import _xxsubinterpreters as interpreters
body = sys.argv[2]
for number in range(2):
    one = interpreters.create()
    interpreters.run_string(one, body.replace("@NUMBER@", str(number)))
    interpreters.destroy(one)
    with open(sys.argv[1] + str(number), encoding="ascii") as file:
        print(file.read())
"""

_BODY = """
import sys
sys.setrecursionlimit(500)

class Out:
    encoding = "ascii"
    def __init__(self, file):
        self.file = file
    def write(self, text):
        self.file.write(text)
    def flush(self):
        pass

file = open(@FILE@ + "@NUMBER@", "w", encoding="ascii", newline="\\n")
sys.stdin = None
sys.stdout = sys.stderr = Out(file)
sys.path[:0] = @PATHS@
try:
    @CODE@
except SystemExit as end:
    file.write("EXIT %s" % end.code)
finally:
    file.close()
"""

_AS_PY_M = (
    "sys.argv = ['', *@ARGUMENTS@]\n    import runpy\n"
    "    runpy.run_module('kdleak.hunt', run_name='__main__', alter_sys=True)"
)

_WHOLE_HUNT = (
    "from pathlib import Path\n"
    "    from windbg_fakes import Session\n"
    "    from kdleak.windbg.output import Output\n"
    "    session = Session(Path(@FOLDER@ + '@NUMBER@'))\n"
    "    session.job.output = Output.standard()\n"
    "    target = @FOLDER@ + '@NUMBER@.json'\n"
    "    code = session.run('--tag', 'Leak', '--hits', '40', '--json', target)\n"
    "    file.write('TAG %s EXIT %s' % (session.engine.hit_tag.hex(), code))"
)


def twice(folder, code: str, **values: object) -> list[str]:
    """What the code prints in each of two sub-interpreters of one CPython 3.9."""
    values |= {"FILE": str(folder / "said"), "FOLDER": str(folder / "run")}
    values["PATHS"] = [str(ROOT), str(ROOT / "tests" / "unit" / "windbg")]
    body = _BODY.replace("@CODE@", code)
    for name, value in values.items():
        body = body.replace(f"@{name}@", repr(value))
    run_in_39(_RUN, folder / "said", body)
    return [(folder / f"said{number}").read_text(encoding="ascii") for number in range(2)]


def test_help(tmp_path):
    for said in twice(tmp_path, _AS_PY_M, ARGUMENTS=["--help"]):
        assert "--hits" in said
        assert said.endswith("EXIT 0")


def test_a_hunt_that_is_refused(tmp_path):
    for said in twice(tmp_path, _AS_PY_M, ARGUMENTS=["--tag", "Le\u0142k"]):
        assert said.startswith("kdleak: ")
        assert "Traceback" not in said
        assert said.endswith("EXIT 2")


def test_a_hunt_without_pykd(tmp_path):
    for said in twice(tmp_path, _AS_PY_M, ARGUMENTS=["--tag", "Leak", "--hits", "50"]):
        assert "pykd is not installed" in said
        assert "!pip -3.9 install pykd" in said
        assert said.endswith("EXIT 2")


def test_a_whole_hunt(tmp_path):
    for said in twice(tmp_path, _WHOLE_HUNT):
        assert "leakdrv!Receive+0x31" in said
        assert "disarmed: nt!PoolHitTag is back at 0xffffff0f (read back)." in said
        assert "TAG 0fffffff" in said
    assert (tmp_path / "run1.json").exists()
