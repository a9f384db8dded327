"""Crash dumps, side by side in one run: kdleak, kdmp-parser and ntoseye on a dump of 16 GB.

``python -m benchmarks.dumps [FILE]`` makes the dump (see ``make_big_dump``: a million pages, 4 GB
of disk; an existing FILE is used as it is), then gives every reader a process of its own and counts
the time of the work itself, without starting Python and importing, and the largest memory the
process had. Then the pages of the dump are searched for the blocks of a tag, and the same scan is
done by plain loops (``dumps_find``). The ratios carry over to other machines, seconds do not.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.dumps_find import measure
from benchmarks.make_big_dump import make_big_dump
from kdleak.nt.pe import parse_rsds
from kdleak.practice.images import image_files

TAG = "Leak"
FASTEST_FIND = 1.0
"""GB of pool a second that ``find`` must look through."""
MOST_MEMORY = 400
"""MB that ``find`` may use, whatever the size of the dump."""
LEAST_RATIO = 20.0
"""Times that ``find`` must be faster than plain loops."""

_TAIL = """
import json
# Of this program alone: getrusage counts the process it was forked from, too.
with open("/proc/self/status") as status:
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
print("RESULT" + json.dumps([seconds, peak, what]))
"""

_READERS = {
    "kdleak: open and rank": """
import sys, time
from kdleak.engine.dump import open_dump_engine
import kdleak.nt.pool
began = time.perf_counter()
with open_dump_engine(sys.argv[1]) as engine:
    what = len(engine.pool_usage().rows)
    seconds = time.perf_counter() - began
""",
    "kdmp-parser: open": """
import sys, time
import kdmp_parser
began = time.perf_counter()
kept = kdmp_parser.KernelDumpParser(sys.argv[1])
seconds = time.perf_counter() - began
what = 0
""",
    "ntoseye: open and !poolused": """
import sys, time
import ntoseye
began = time.perf_counter()
with ntoseye.attach(backend="dmp", connect=sys.argv[1]) as debugger:
    what = len(debugger.inspect.pool_usage("*").rows)
    seconds = time.perf_counter() - began
""",
    "kdleak: find " + TAG: """
import sys, time
from kdleak.engine.dump import open_dump_engine
from kdleak.nt.blocks.search import search_blocks
from kdleak.tags import PoolTag
tag = PoolTag.parse("Leak")
with open_dump_engine(sys.argv[1]) as engine:
    began = time.perf_counter()
    found = search_blocks(
        tag, memory=engine.memory, modules=engine.modules(), symbol=engine.symbol,
        nearest=engine.nearest, build=engine.target.build,
        pointer_size=engine.target.pointer_size, limit=100, counters=engine.pool_usage().find(tag),
    )
    seconds = time.perf_counter() - began
what = found.bytes_searched
""",
}


@dataclass(frozen=True)
class Figures:
    """What one reader took.

    Attributes:
        seconds: best of some runs.
        megabytes: largest memory of its process.
        what: rows, or bytes looked through.
    """

    seconds: float
    megabytes: float
    what: int


def run(script: str, dump: Path, home: Path, times: int = 3) -> Figures:
    """Give a reader processes of its own."""
    environment = {**os.environ, "HOME": str(home), "_NT_SYMBOL_PATH": ""}
    results = []
    for _ in range(times):
        done = subprocess.run(
            [sys.executable, "-c", script + _TAIL, str(dump)],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
        if "RESULT" not in done.stdout:
            raise SystemExit(done.stdout + done.stderr)
        results.append(json.loads(done.stdout.split("RESULT", 1)[1]))
    seconds, kilobytes, what = min(results)
    return Figures(seconds, kilobytes / 1024, what)


def symbols_for_ntoseye(home: Path) -> None:
    """The practice kernel's PDBs where ntoseye looks; kdleak needs none."""
    for image in image_files(22621):
        raw = image.read_bytes()
        at = raw.index(b"RSDS")
        identity = parse_rsds(raw[at : at + 0x100])
        assert identity is not None
        folder = home / ".ntoseye" / "symbols" / identity.file_name / identity.key
        folder.mkdir(parents=True)
        shutil.copyfile(image.with_suffix(".pdb"), folder / identity.file_name)


def main() -> int:
    """Print the figures; 1 when one of them misses its mark."""
    given = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory(prefix="kdleak-bench-") as folder:
        home = Path(folder)
        symbols_for_ntoseye(home)
        dump = given or home / "big.dmp"
        if not dump.exists():
            print("making a dump of a million pages ...", flush=True)
            make_big_dump(dump)
        print(f"{dump.stat().st_size / 1e9:.1f} GB bitmap dump of a machine with 16 GB")
        found = {name: run(script, dump, home) for name, script in _READERS.items()}
    print(f"{'':30}{'seconds':>10}{'MB':>8}")
    for name, figures in found.items():
        print(f"{name:30}{figures.seconds:>10.3f}{figures.megabytes:>8.0f}")
    ours, opening, ranking, finding = found.values()
    through = finding.what / finding.seconds / 1e9
    print(f"find looked through {through:.2f} GB a second")
    times = {"kdmp-parser's open": opening, "ntoseye's open and !poolused": ranking}
    marks = {
        **{
            f"open and rank beside {name}: {other.seconds / ours.seconds:.1f} times as fast": (
                ours.seconds < other.seconds
            )
            for name, other in times.items()
        },
        f"find in {finding.megabytes:.0f} MB: memory does not grow with the dump": (
            finding.megabytes < MOST_MEMORY
        ),
        "in less memory than both": ours.megabytes < min(opening.megabytes, ranking.megabytes),
        f"find looks through {FASTEST_FIND} GB a second": through >= FASTEST_FIND,
    }
    for linked in (True, False):
        speeds = measure(256, linked=linked)
        ratio = speeds["speed"] / speeds["plain"]
        words = "chains" if linked else "single headers"
        marks[f"find of {words} beside plain loops: {ratio:.0f} times as fast"] = (
            ratio >= LEAST_RATIO
        )
    for words, kept in marks.items():
        print(f"{'yes' if kept else 'NO '}  {words}")
    return 0 if all(marks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
