"""What a hit costs: KD requests, hits per second and stopped time, over loopback KDNET.

Requests per hit is the figure that carries over to real links, where each one is a round trip
with the whole machine frozen (0.3 to 2 ms). WinDbg's own ``g; kb`` loop needs 21 for the same
six-frame stack and pykd with ``kb`` 19, counted by the same practice kernel; figures in seconds
are those of this machine and mean nothing elsewhere.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from kdleak.cli.practice_child import practice_child
from kdleak.cli.target_options import practice_symbols
from kdleak.engine.blocks import block_finder
from kdleak.engine.native import NativeEngine, attach_native
from kdleak.hunt import hunt
from kdleak.hunt_options import HuntOptions
from kdleak.journal import Journal
from kdleak.model import Stop, StopKind
from kdleak.tags import PoolTag

WINDBG_REQUESTS = 21
PYKD_REQUESTS = 19


@dataclass(frozen=True)
class Figures:
    """What one run cost.

    Attributes:
        hits: hits recorded.
        requests: KD requests from each hit to the next, mean, the first hit left out.
        first: KD requests of the first hit, which also reads the unwind data of its stack.
        seconds: from the first hit to the last.
        frozen: seconds the target stood still per hit, by the target's clock.
        frames: median depth of the stacks.
        unknown: hits whose block size is not known.
    """

    hits: int
    requests: float
    first: int
    seconds: float
    frozen: float
    frames: int
    unknown: int


def measure(hits: int, *, blocks: bool) -> Figures:
    """Hunt ``hits`` hits at full speed."""
    options = HuntOptions(
        tag=PoolTag.parse("Leak"),
        max_hits=hits,
        max_seconds=600.0,
        hits_per_second=None,
        max_stopped_share=None,
        measure_growth=False,
    )
    with tempfile.TemporaryDirectory() as folder, practice_child(seed=1, rate=0) as child:
        with attach_native(child.connection, ";".join(practice_symbols()), timeout=30.0) as engine:
            marks = watch_resume(engine)
            result = hunt(
                engine,
                options,
                journal=Journal(Path(folder)),
                block_finder_factory=block_finder if blocks else None,
            )
        asked = engine.requests
        time.sleep(0.2)  # the last Continue is acknowledged before the target counts it
    target = child.result["statistics"]
    counted = sum(target["requests"].values())
    if counted != asked:
        sys.exit(f"the target counted {counted} requests, the engine {asked}: no figure is right")
    marks = marks[: len(result.hits)]
    (start, began), (second, _), (last, ended) = marks[0], marks[1], marks[-1]
    return Figures(
        hits=len(result.hits),
        requests=(last - second) / (len(marks) - 2),
        first=second - start,
        seconds=ended - began,
        frozen=target["seconds_stopped_in_hits"] / len(result.hits),
        frames=statistics.median_low(len(hit.stack.frames) for hit in result.hits),
        unknown=result.completeness.unsized,
    )


def watch_resume(engine: NativeEngine) -> list[tuple[int, float]]:
    """Note the engine's request count and the time at every stop it reports."""
    marks: list[tuple[int, float]] = []
    resume = engine.resume

    def noted(timeout: float | None) -> Stop:
        stop = resume(timeout)
        if stop.kind is StopKind.BREAK_INSTRUCTION:
            marks.append((engine.requests, time.perf_counter()))
        return stop

    engine.resume = noted  # type: ignore[method-assign]
    return marks


def report(name: str, hits: int, *, blocks: bool) -> Figures:
    """Measure and print one line."""
    figures = measure(hits, blocks=blocks)
    rate = figures.hits / figures.seconds
    print(
        f"{name:32} {figures.requests:8.2f} {figures.first:9d} {rate:11.0f}"
        f" {figures.frozen * 1000:11.2f} {figures.frames:8d}"
        + (f"   {figures.unknown} sizes unknown" if blocks else "")
    )
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hits", type=int, default=1000)
    hits = parser.parse_args().hits
    print(f"{hits} hits on the practice kernel over loopback KDNET")
    print(f"{'':32} {'requests':>8} {'first':>9} {'hits':>11} {'stopped':>11} {'frames':>8}")
    print(
        f"{'':32} {'per hit':>8} {'hit':>9} {'per second':>11} {'ms per hit':>11} {'(median)':>8}"
    )
    plain = report("stacks", hits, blocks=False)
    report("stacks, block address and size", hits, blocks=True)
    print(
        f"WinDbg's g; kb: {WINDBG_REQUESTS} requests per hit "
        f"({WINDBG_REQUESTS / plain.requests:.2f} times as many), "
        f"pykd with kb: {PYKD_REQUESTS} ({PYKD_REQUESTS / plain.requests:.2f} times)"
    )
    return 0 if plain.requests <= 4.0 else 1


if __name__ == "__main__":
    sys.exit(main())
