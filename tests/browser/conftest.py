"""A headless Chromium that reads our reports, and watches what they try to load."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "report"))

from result_documents import node

from kdleak.report.html_report import render_html

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        if os.environ.get("KDLEAK_BROWSER_REQUIRED"):
            pytest.fail("there is no chromium, and this machine is to have one")
        pytest.skip("there is no chromium; apt-get install chromium")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as driver:
        # Everything in it is ours, and a container has no user namespaces for the sandbox.
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def artefacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots are kept: $KDLEAK_ARTEFACTS, else pytest's temporary folder."""
    named = os.environ.get("KDLEAK_ARTEFACTS")
    folder = Path(named) if named else tmp_path_factory.mktemp("artefacts")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Reports:
    """Opens documents as reports, and keeps what the pages asked for and complained of."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self._browser = browser
        self._folder = folder
        self._contexts: list[Any] = []
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.opened: list[str] = []

    def __call__(
        self, document: dict[str, Any], *, width: int = 1280, scheme: str = "light"
    ) -> Page:
        file = self._folder / f"report{len(self.opened)}.html"
        file.write_text(render_html(node(document)), encoding="utf-8")
        context = self._browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme
        )
        self._contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (self.complaints.append("dialog"), dialog.dismiss()))
        page.on("popup", lambda _: self.complaints.append("popup"))
        context.on("request", lambda request: self.requests.append(request.url))
        page.goto(file.as_uri())
        self.opened.append(file.as_uri())
        return page

    def close(self) -> None:
        for context in self._contexts:
            context.close()


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Reports]:
    """Open a document's report; at the end nothing was loaded and nothing complained."""
    reports = Reports(browser, tmp_path)
    yield reports
    reports.close()
    assert reports.complaints == []
    assert reports.requests == reports.opened
