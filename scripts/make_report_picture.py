"""Makes docs/report.png: a hunt of the practice kernel over KDNET, its HTML report, a screenshot.

Run as ``python -m scripts.make_report_picture`` in the environment of the tests, with Chromium.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "report.png"
KEY = "1.2.3.4"
WIDTH, HEIGHT = 1280, 1800


def hunt(page: Path) -> None:
    """Hunt a practice kernel of its own and write the report."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    kdleak = [sys.executable, "-m", "kdleak"]
    with subprocess.Popen(
        [*kdleak, "practice", "--kdnet", f"127.0.0.1:{port}", "--key", KEY, "--until-eof"],
        stdin=subprocess.PIPE,
        cwd=ROOT,
    ) as practice:
        done = subprocess.run(
            [*kdleak, "hunt", "-k", f"net:port={port},key={KEY}", "--interval", "10",
             "--hits", "1500", "--html", str(page), "--force"],
            cwd=ROOT,
            check=False,
        )  # fmt: skip
        if practice.stdin is not None:
            practice.stdin.close()
    if done.returncode:
        sys.exit(f"the hunt ended with {done.returncode}")


def photograph(page: Path, picture: Path) -> None:
    """The upper part of the report, as a browser shows it."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only here

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        view = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        view.goto(page.as_uri())
        view.screenshot(path=str(picture))
        browser.close()


def main() -> None:
    """Hunt, and take the picture."""
    with tempfile.TemporaryDirectory(prefix="kdleak-picture-") as folder:
        page = Path(folder) / "report.html"
        hunt(page)
        photograph(page, PICTURE)
    print(f"{PICTURE}: {PICTURE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
