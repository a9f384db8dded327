"""Records the sessions of samples/transcripts: hunts over Microsoft's engine in the rig.

Needs ``make rig``. Run as ``python -m scripts.record_samples`` from the project's folder.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.rig.channel_session import python_command  # noqa: E402
from tests.rig.conftest import plan_practice  # noqa: E402
from tests.rig.places import windows_path  # noqa: E402
from tests.rig.rig import MARK, NOT_BUILT, find_rig  # noqa: E402

FOLDER = ROOT / "samples" / "transcripts"
HITS = "90"
STARTS_AFTER = {"kd": 0.0, "pykd": 0.0}  # seconds until the debugger listens


def without_machine(path: Path, symbols: str) -> None:
    """Replace the folder of the symbols by one that says nothing about this machine."""
    quoted = re.escape(symbols.replace("\\", "\\\\"))
    text = re.sub(quoted, lambda _: "C:\\\\symbols", path.read_text(), flags=re.IGNORECASE)
    path.write_text(text)


def main() -> int:
    """Record every sample; the exit code."""
    rig = find_rig()
    if rig is None:
        print(NOT_BUILT)
        return 1
    os.environ[MARK] = rig.session
    os.environ.pop("_NT_SYMBOL_PATH", None)
    with rig.warm(), tempfile.TemporaryDirectory() as scratch:
        for engine, delay in STARTS_AFTER.items():
            # The port is in the recording: always the same, so that a new one differs little.
            practice = plan_practice("--leak-permille", "900", "--seed", "5", port=50005)
            symbols = practice.symbols
            program = ["--kd", str(rig.kd)]
            if engine != "kd":
                program = ["--python", python_command(rig, practice, Path(scratch))]
            late = threading.Timer(delay, practice.start)
            late.start()
            try:
                done = subprocess.run(
                    [
                        sys.executable, "-m", "kdleak", "hunt", "-k", practice.connection,
                        "-y", symbols, "--engine", engine, *program, "--tag", "Leak",
                        "--hits", HITS, "--full-speed", "--timeout", "60",
                        "--record", str(FOLDER / f"{engine}-hunt.jsonl"), "--force",
                    ],
                    cwd=ROOT,
                    check=False,
                )  # fmt: skip
            finally:
                late.join()
                practice.kill()
            if done.returncode not in (0, 4):
                return done.returncode
            without_machine(FOLDER / f"{engine}-hunt.jsonl", windows_path(Path(symbols)))
    rig.kill_processes()
    return 0


if __name__ == "__main__":
    sys.exit(main())
