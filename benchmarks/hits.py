"""What a hit costs: KD requests, hits per second and stopped time, over loopback KDNET.

Requests per hit is the figure that carries over to real links, where each one is a round trip
with the whole machine frozen (0.3 to 2 ms). WinDbg's own ``g; kb`` loop needs 21 for the same
six-frame stack and pykd with ``kb`` 19, counted by the same practice kernel; figures in seconds
are those of this machine and mean nothing elsewhere.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from kdleak.cli.practice_child import practice_child
from kdleak.cli.target_options import practice_symbols
from kdleak.engine.native import NativeEngine, attach_native, block_finder
from kdleak.hunt import hunt
from kdleak.hunt_options import HuntOptions
from kdleak.journal import Journal
from kdleak.result import HuntResult
from kdleak.tags import PoolTag

WINDBG_REQUESTS = 21
PYKD_REQUESTS = 19


def measure(hits: int, *, blocks: bool) -> tuple[HuntResult, NativeEngine, dict, float]:
    """Hunt ``hits`` hits at full speed; returns result, engine, practice statistics, seconds."""
    options = HuntOptions(
        tag=PoolTag.parse("Leak"),
        max_hits=hits,
        max_seconds=600.0,
        hits_per_second=None,
        max_stopped_share=None,
        measure_growth=False,
        settle_seconds=0.0,
    )
    with tempfile.TemporaryDirectory() as folder, practice_child(seed=1, rate=0) as child:
        engine = attach_native(child.connection, str(practice_symbols()), timeout=30.0)
        try:
            started = time.perf_counter()
            result = hunt(
                engine,
                options,
                journal=Journal(Path(folder)),
                block_finder_factory=block_finder if blocks else None,
            )
            seconds = time.perf_counter() - started
        finally:
            engine.close()
    return result, engine, child.result["statistics"], seconds


def report(name: str, hits: int, *, blocks: bool) -> float:
    """Print one line; returns KD requests per hit as the target counted them."""
    result, _, target, seconds = measure(hits, blocks=blocks)
    seen = len(result.hits)
    requests = target["requests_in_hits"] / seen
    frozen = target["seconds_stopped_in_hits"] / seen
    frames = sorted(len(hit.stack.frames) for hit in result.hits)[seen // 2]
    print(
        f"{name:34} {requests:8.2f} {seen / seconds:10.0f} {frozen * 1000:10.2f} {frames:8d}"
        f"   {WINDBG_REQUESTS / requests:5.1f} x fewer than g;kb,"
        f" {PYKD_REQUESTS / requests:4.1f} x than pykd"
    )
    return requests


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hits", type=int, default=1000)
    hits = parser.parse_args().hits
    print(f"{hits} hits on the practice kernel over loopback KDNET")
    print(f"{'':34} {'requests':>8} {'hits':>10} {'stopped':>10} {'frames':>8}")
    print(f"{'':34} {'per hit':>8} {'per second':>10} {'ms per hit':>10} {'(median)':>8}")
    plain = report("stacks only (like g; kb)", hits, blocks=False)
    report("stacks, block address and size", hits, blocks=True)
    return 0 if plain <= 4.0 else 1


if __name__ == "__main__":
    sys.exit(main())
