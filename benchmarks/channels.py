"""What a hit costs over each channel of Microsoft's engine: KD requests, as the target counts them.

Two hunts of different length on the same boot; the difference of their requests over the
difference of their hits leaves out attaching, naming the first stacks and disarming. Needs the
rig (``make rig``): DbgEng under Wine.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from kdleak.engine.blocks import block_finder
from kdleak.hunt import hunt
from kdleak.hunt_options import HuntOptions
from kdleak.journal import Journal
from kdleak.result import DisarmStatus
from kdleak.tags import PoolTag
from tests.rig.conftest import plan_practice
from tests.rig.engines import opened
from tests.rig.rig import MARK, NO_PYTHON, NOT_BUILT, Rig, find_rig

MOST_REQUESTS = 11.0
"""What a hit may cost at most over a binding that hands out memory without commands."""

ROWS = (
    ("native", "native", False),
    ("pykd", "pykd", False),
    ("pykd, kb at each hit", "pykd", True),
    ("pybag", "pybag", False),
    ("kd.exe", "kd", False),
    ("kd.exe, kb at each hit", "kd", True),
)


def requests(rig: Rig, name: str, hits: int, *, use_kb: bool, blocks: bool) -> int:
    """Requests the target counted for a whole hunt."""
    practice = plan_practice("--seed", "3")
    with tempfile.TemporaryDirectory() as folder:
        try:
            with opened(name, practice, rig, Path(folder), use_kb=use_kb) as engine:
                result = hunt(
                    engine,
                    HuntOptions(
                        tag=PoolTag.parse("Leak"),
                        max_hits=hits,
                        max_seconds=600,
                        hits_per_second=None,
                        max_stopped_share=None,
                        measure_growth=False,
                        settle_seconds=0,
                    ),
                    journal=Journal(Path(folder) / "journal"),
                    block_finder_factory=block_finder if blocks else None,
                )
            if result.disarm.status is not DisarmStatus.CONFIRMED or len(result.hits) != hits:
                sys.exit(f"{name}: {len(result.hits)} hits, {result.disarm.status.value}")
            return sum(practice.statistics["requests"].values())
        finally:
            practice.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", type=int, default=100)
    parser.add_argument("--long", type=int, default=400)
    given = parser.parse_args()
    rig = find_rig()
    if rig is None:
        print(f"channels of Microsoft's engine not measured: {NOT_BUILT}")
        return 0
    os.environ[MARK] = rig.session
    os.environ.pop("_NT_SYMBOL_PATH", None)
    failed = False
    print("KD requests per hit over loopback KDNET, stacks of 6 to 9 frames")
    print(f"{'':26} {'stacks':>8} {'with blocks':>12} {'times native':>13}")
    native = 0.0
    with rig.warm():
        for title, name, use_kb in ROWS:
            if name.startswith("py") and not rig.has_python:
                print(f"{title:26} not measured: {NO_PYTHON}")
                continue
            figures = []
            for blocks in (False, True):
                short, long = (
                    requests(rig, name, hits, use_kb=use_kb, blocks=blocks)
                    for hits in (given.short, given.long)
                )
                figures.append((long - short) / (given.long - given.short))
            native = native or figures[0]
            print(
                f"{title:26} {figures[0]:8.2f} {figures[1]:12.2f} {figures[0] / native:12.2f}x",
                flush=True,
            )
            failed |= name in ("pykd", "pybag") and not use_kb and figures[0] > MOST_REQUESTS
    rig.kill_processes()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
