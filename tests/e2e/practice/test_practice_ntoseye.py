"""ntoseye, a debugger we did not write, attaches to the practice target.

It runs in a process of its own with a home folder of its own: its symbol cache lies there, and a
debugger that hangs cannot hang the tests.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import struct
import subprocess
import sys

import pytest

from kdleak.practice.images import image_files

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        importlib.util.find_spec("ntoseye") is None, reason="ntoseye is not installed"
    ),
    pytest.mark.skipif(sys.platform == "win32", reason="ntoseye wants a Unix socket"),
]

SCRIPT = """
import json, sys
import ntoseye
backend, connect = sys.argv[1:3]
key = sys.argv[3] if backend == "kdnet" else None
with ntoseye.attach(backend=backend, connect=connect, key=key) as debugger:
    found = {
        "modules": [[m.name, m.base] for m in debugger.modules],
        "hit_tag": debugger.symbols.get("nt!PoolHitTag"),
        "rip": debugger.stop.rip,
        "break_stack": [f.symbol for f in debugger.cpus[0].backtrace()],
        "processes": [p.name for p in debugger.processes],
    }
    usage = debugger.inspect.pool_usage("*")
    found["source"] = usage.tracker_status
    found["usage"] = {
        r.tag_name: [r.nonpaged_allocs, r.nonpaged_frees, r.nonpaged_bytes,
                     r.paged_allocs, r.paged_frees, r.paged_bytes]
        for r in usage.rows
    }
    debugger.memory.write(found["hit_tag"], b"Leak")
    debugger.run()
    debugger.wait(timeout=10)
    found["hit_stack"] = [f.symbol for f in debugger.cpus[0].backtrace()]
    debugger.memory.write(found["hit_tag"], bytes.fromhex("0fffffff"))
print("RESULT" + json.dumps(found))
"""


def pdb_key(image) -> str:
    raw = image.read_bytes()
    at = raw.index(b"RSDS") + 4
    first, second, third = struct.unpack_from("<IHH", raw, at)
    (age,) = struct.unpack_from("<I", raw, at + 16)
    return f"{first:08X}{second:04X}{third:04X}{raw[at + 8 : at + 16].hex().upper()}{age:X}"


@pytest.fixture
def home(tmp_path):
    for image in {*image_files(), *image_files(19045)}:
        pdb = image.with_suffix(".pdb")
        folder = tmp_path / ".ntoseye" / "symbols" / pdb.name / pdb_key(image)
        folder.mkdir(parents=True)
        shutil.copyfile(pdb, folder / pdb.name)
    return tmp_path


def ask_ntoseye(home, *arguments: str, script: str = SCRIPT) -> dict:
    environment = {**os.environ, "HOME": str(home), "NTOSEYE_KD_TIMEOUT": "10"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        cwd=home,
        check=False,
    )
    assert "RESULT" in done.stdout, done.stdout + done.stderr
    return json.loads(done.stdout.split("RESULT", 1)[1])


@pytest.mark.parametrize("medium", ["kdnet", "serial"])
def test_ntoseye_sees_a_windows_kernel(home, udp_port, start_target, medium):
    if medium == "kdnet":
        target = start_target(f"net:host=127.0.0.1,port={udp_port},key=1.2.3.4", "--seed", "3")
        arguments = ("kdnet", f"127.0.0.1:{udp_port}", "1.2.3.4")
    else:
        path = str(home / "kd.sock")
        if len(path) > 100 or not hasattr(socket, "AF_UNIX"):
            pytest.skip("the path of the socket is too long here")
        target = start_target(f"com:pipe,port={path}", "--seed", "3")
        arguments = ("kd", path)
    found = ask_ntoseye(home, *arguments)
    result = target.finish()

    assert [name for name, _ in found["modules"]] == [
        "ntoskrnl.exe",
        "leakydrv.sys",
        "busydrv.sys",
    ]
    assert found["processes"] == ["System"]
    assert found["break_stack"][0] == "nt!DbgBreakPointWithStatus"
    names = [symbol.split("+")[0] for symbol in found["break_stack"]]
    assert names[1:4] == [
        "nt!KdCheckForDebugBreak",
        "nt!KeUpdateSystemTime",
        "nt!KeClockInterruptNotify",
    ]
    assert names[-1] == "nt!KiSystemStartup"

    hit = [symbol.split("+")[0] for symbol in found["hit_stack"]]
    assert hit[0] in {"nt!ExAllocateHeapPool", "nt!ExFreeHeapPool"}
    assert hit[-2:] == ["nt!PspSystemThreadStartup", "nt!KiStartSystemThread"]
    assert any(name.startswith("leakydrv!") for name in hit)
    assert len(hit) >= 6

    # The static population has not changed since: compare it with the truth.
    assert "2 tables" in found["source"]
    truth: dict[str, list[int]] = {}
    for site in result["ground_truth"]:
        start = 0 if site["pool"] == "nonpaged" else 3
        row = truth.setdefault(site["tag"], [0] * 6)
        row[start] += site["allocs"]
        row[start + 1] += site["frees"]
        row[start + 2] += site["bytes"]
    static = {tag for tag, row in truth.items() if not row[1] and not row[4]}
    static -= {"Pool", "Thre"}
    shown = {tag: [value or 0 for value in row] for tag, row in found["usage"].items()}
    assert {tag: shown.get(tag) for tag in static} == {tag: truth[tag] for tag in static}
    assert len(static) > 80
    assert 0 < shown["Busy"][0] <= truth["Busy"][0]
    assert result["statistics"]["pool_hit_tag"] == 0xFFFFFF0F
