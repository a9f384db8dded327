"""Writes the dumps of samples/dumps and the truth about them; ``--check`` compares.

Run as ``python -m scripts.make_sample_dumps`` from the project's folder. The practice machine does
the same in every run, so the files differ only when the machine or the writer did.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "samples" / "dumps"

SMALL = (
    "--memory", "3.25",
    *("--workload", "population=1", "--workload", "background_operations=0"),
    *("--workload", "busy_operations=10", "--workload", "tracker_rows=513"),
    *("--workload", "big_page_rows=256", "--workload", "leak_requests=3"),
    *("--workload", "leak_permille=500"),
)  # fmt: skip
DUMPS = {
    "early.dmp": ("--dump-kind", "full", "--seed", "7", "--ticks", "100", *SMALL),
    "later.dmp": ("--dump-kind", "bitmap", "--seed", "7", "--ticks", "800", *SMALL),
    "nokdbg.dmp": ("--dump-kind", "kernel", "--no-kdbg", "--seed", "8", "--ticks", "100", *SMALL),
    "26100.dmp": ("--build", "26100", "--seed", "9", "--ticks", "100", *SMALL),
    "encoded.dmp": (
        "--build", "15063", "--encoded-kdbg", "--seed", "10", "--ticks", "100", *SMALL,
        "--workload", "bug_check_at_tick=60",
    ),
}  # fmt: skip


def make(name: str, folder: Path) -> dict[str, object]:
    """Write one dump; what ``kdleak practice`` says about it, summed up by tag."""
    command = [sys.executable, "-m", "kdleak", "practice", "--dump", str(folder / name)]
    done = subprocess.run(
        [*command, "--json", "--force", *DUMPS[name]],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    said = json.loads(done.stdout)
    tags: dict[str, dict[str, list[int]]] = {}
    for site in said["ground_truth"]:
        row = tags.setdefault(site["tag"], {}).setdefault(site["pool"], [0, 0, 0])
        for index, value in enumerate((site["allocs"], site["frees"], site["bytes"])):
            row[index] += value
    return {
        "options": " ".join(DUMPS[name]),
        **said["dump"],
        "modules": said["modules"],
        "tags": tags,
        "sites": [site for site in said["ground_truth"] if site["tag"] in {"Leak", "Busy"}],
    }


def write_truth(truth: dict[str, dict[str, object]], folder: Path) -> None:
    """As JSON, every row of numbers on a line of its own."""
    text = json.dumps(truth, indent=1)
    text = re.sub(r"\[([\d,\s]+)\]", lambda row: "[" + "".join(row[1].split()) + "]", text)
    (folder / "truth.json").write_text(text + "\n", "utf-8")


def main(arguments: list[str]) -> int:
    """Write or check every sample; the exit code."""
    if arguments not in ([], ["--check"]):
        print("usage: python -m scripts.make_sample_dumps [--check]")
        return 2
    with tempfile.TemporaryDirectory(prefix="sample-dumps-") as name:
        folder = Path(name) if arguments else FOLDER
        write_truth({dump: make(dump, folder) for dump in DUMPS}, folder)
        if not arguments:
            return 0
        differing = [
            file
            for file in (*DUMPS, "truth.json")
            if (folder / file).read_bytes() != (FOLDER / file).read_bytes()
        ]
    print("differ: " + ", ".join(differing) if differing else "sample dumps are up to date")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
