"""kdleak and ntoseye read the same tag tables of one stopped kernel: every row must agree."""

from __future__ import annotations

import pytest
from test_practice_ntoseye import ask_ntoseye, home, pytestmark  # noqa: F401 - fixture and marks

from kdleak.engine.native import attach_native
from kdleak.model import Pool
from kdleak.practice.images import symbol_directories

ROWS = """
import json, sys
import ntoseye
with ntoseye.attach(backend="kdnet", connect=sys.argv[1], key=sys.argv[2]) as debugger:
    found = {
        "modules": sorted(m.name for m in debugger.modules),
        "hit_tag": debugger.symbols.get("nt!PoolHitTag"),
        "rows": {
            r.tag: [r.nonpaged_allocs, r.nonpaged_frees, r.nonpaged_bytes,
                    r.paged_allocs, r.paged_frees, r.paged_bytes]
            for r in debugger.inspect.pool_usage("*").rows
        },
    }
print("RESULT" + json.dumps(found))
"""


@pytest.mark.parametrize("build", ["19045", "22621"])
def test_ntoseye_sums_the_same_rows(home, udp_port, start_target, build):  # noqa: F811
    start_target(f"net:host=127.0.0.1,port={udp_port},key=1.2.3.4", "--build", build)
    symbols = ";".join(map(str, symbol_directories(int(build))))
    engine = attach_native(f"net:port={udp_port},key=1.2.3.4", symbols, timeout=20)
    try:
        snapshot = engine.pool_usage()
        hit_tag = engine.symbol("nt!PoolHitTag")
        modules = {module.name for module in engine.modules()}
    finally:
        # Left as it is: the next debugger finds the same moment.
        engine.detach(leave_stopped=True)
    found = ask_ntoseye(home, f"127.0.0.1:{udp_port}", "1.2.3.4", script=ROWS)

    assert snapshot.gaps == ()
    assert {"leakydrv", "busydrv"} <= modules
    assert {"leakydrv.sys", "busydrv.sys"} <= set(found["modules"])
    ours = {
        row.tag.value: [
            value
            for pool in Pool
            for value in (row.of(pool).allocs, row.of(pool).frees, row.of(pool).bytes)
        ]
        for row in snapshot.rows
    }
    # ntoseye leaves out tags with nothing outstanding.
    ours = {tag: row for tag, row in ours.items() if row[0] != row[1] or row[3] != row[4]}
    theirs = {int(tag): [value or 0 for value in row] for tag, row in found["rows"].items()}
    assert len(ours) > 100
    assert theirs == ours
    assert found["hit_tag"] == hit_tag
