"""ntoseye, a debugger we did not write, opens every sample and counts the same."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import struct
import subprocess
import sys

import pytest

from kdleak.engine.dump import open_dump_engine
from kdleak.practice.images import image_files

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        importlib.util.find_spec("ntoseye") is None, reason="ntoseye is not installed"
    ),
]

SCRIPT = """
import json, sys
import ntoseye
with ntoseye.attach(backend="dmp", connect=sys.argv[1]) as debugger:
    usage = debugger.inspect.pool_usage("*")
    found = {
        "modules": [[m.name, m.base] for m in debugger.modules],
        "processes": [p.name for p in debugger.processes],
        "kind": debugger.stop.kind,
        "stack": [f.symbol for f in debugger.cpus[0].backtrace()],
        "source": usage.tracker_status,
        "usage": {
            r.tag_name: [r.nonpaged_allocs, r.nonpaged_frees, r.nonpaged_bytes,
                         r.paged_allocs, r.paged_frees, r.paged_bytes]
            for r in usage.rows
        },
    }
print("RESULT" + json.dumps(found))
"""


def pdb_key(image) -> str:
    raw = image.read_bytes()
    at = raw.index(b"RSDS") + 4
    first, second, third = struct.unpack_from("<IHH", raw, at)
    (age,) = struct.unpack_from("<I", raw, at + 16)
    return f"{first:08X}{second:04X}{third:04X}{raw[at + 8 : at + 16].hex().upper()}{age:X}"


@pytest.fixture
def seen(sample, truth, tmp_path) -> dict:
    for image in image_files(truth["build"]):
        pdb = image.with_suffix(".pdb")
        folder = tmp_path / ".ntoseye" / "symbols" / pdb.name / pdb_key(image)
        folder.mkdir(parents=True)
        shutil.copyfile(pdb, folder / pdb.name)
    environment = {**os.environ, "HOME": str(tmp_path)}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(sample)],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        cwd=tmp_path,
        check=False,
    )
    assert "RESULT" in done.stdout, done.stdout + done.stderr
    return json.loads(done.stdout.split("RESULT", 1)[1])


def test_ntoseye_agrees(sample, truth, seen):
    expected_modules = [[module["name"], module["base"]] for module in truth["modules"]]
    assert seen["modules"] == expected_modules
    assert seen["processes"] == ["System"]
    assert seen["kind"] == "bugcheck"
    functions = [symbol.split("+")[0] for symbol in seen["stack"]]
    if sample.name == "encoded.dmp":
        assert functions == [
            "nt!KeBugCheckEx", "leakydrv!CheckScheduledEvents", "leakydrv!RequestWorker",
            "nt!PspSystemThreadStartup", "nt!KiStartSystemThread",
        ]  # fmt: skip
    else:
        assert functions[:3] == [
            "nt!KeBugCheckEx", "nt!KiProcessCrashRequest", "nt!KiCallInterruptServiceRoutine",
        ]  # fmt: skip
        assert functions[-1] == "nt!KiSystemStartup"

    # Three sources for each tag: the other debugger, the machine's own ledger, and ours.
    theirs = {tag: [value or 0 for value in row] for tag, row in seen["usage"].items()}
    ledger = {
        tag: [*pools.get("nonpaged", [0, 0, 0]), *pools.get("paged", [0, 0, 0])]
        for tag, pools in truth["tags"].items()
    }
    with open_dump_engine(sample) as engine:
        snapshot = engine.pool_usage()
        modules = [[module.file_name, module.base] for module in engine.modules()]
    ours = {
        row.tag.text: [
            row.nonpaged.allocs, row.nonpaged.frees, row.nonpaged.bytes,
            row.paged.allocs, row.paged.frees, row.paged.bytes,
        ]
        for row in snapshot.rows
    }  # fmt: skip
    assert modules == expected_modules
    assert snapshot.gaps == ()
    assert "2 tables" in seen["source"]
    # The tables of the kernel itself are charged to "Pool" without a call of the allocator.
    own_tables = {"Pool"}
    assert {t: row for t, row in theirs.items() if t not in own_tables and any(row)} == {
        t: row for t, row in ledger.items() if t not in own_tables and any(row)
    }
    assert {t: row for t, row in ours.items() if any(row)} == {
        t: row for t, row in theirs.items() if any(row)
    }
    assert len(theirs) > 100
