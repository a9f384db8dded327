"""Draws docs/demo.svg: what `make demo` prints, from a real run.

Run it with the project's environment: ``.venv/bin/python scripts/picture.py`` (POSIX only).
"""

import os
import pty
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 104
KEEP_UNTIL = "Ranking"


def run_demo() -> tuple[str, str]:
    """Narration and coloured result of one demo."""
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(
        [sys.executable, "-m", "kdleak", "demo"],
        cwd=ROOT,
        env=environment,
        stdout=slave,
        stderr=subprocess.PIPE,
    ) as process:
        os.close(slave)
        result = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:
                break
            if not part:
                break
            result += part
        narration = process.stderr.read()
    os.close(master)
    if process.returncode:
        sys.exit(f"the demo ended with {process.returncode}: {narration.decode()}")
    return narration.decode(), result.decode().replace("\r\n", "\n")


def main() -> None:
    """Run, keep what fits a picture, draw."""
    narration, result = run_demo()
    said = [line for line in narration.splitlines() if line.startswith(("'", "Armed", "attached"))]
    lines = result.splitlines()
    end = next(i for i, line in enumerate(lines) if KEEP_UNTIL in line[:16])
    shown = ["$ make demo", *said, "", *lines[:end], "...", lines[-1]]
    console = Console(
        record=True, width=COLUMNS, file=StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(Text.from_ansi("\n".join(shown)))
    svg = console.export_svg(title="kdleak")
    # No fonts from the network: the reader's own monospace one.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code", "DejaVu Sans Mono, Consolas, Menlo")
    (ROOT / "docs" / "demo.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
