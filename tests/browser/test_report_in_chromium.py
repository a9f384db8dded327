"""The HTML report as its readers use it: mouse, keyboard, screen reader, printer, small screens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from result_documents import hostile, many_stacks, sample

if TYPE_CHECKING:
    from conftest import Reports as Show
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

PHONE, DESK = 400, 1280


def branching() -> dict[str, Any]:
    """The sample with its three allocating stacks holding something: a graph with branches."""
    document = sample()
    for stack, blocks in zip(document["stacks"], (60, 30, 10)):
        stack.update(outstanding=blocks, outstanding_bytes=blocks * 100)
    return document


def frame(page: Page, name: str) -> Any:
    return page.locator(".frame", has_text=re.compile(f"^{re.escape(name)}"))


def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.getAttribute('aria-label') || ''"))


def width_of(page: Page, name: str) -> float:
    return float(frame(page, name).first.bounding_box()["width"])


def whole_width(page: Page) -> float:
    return float(page.locator("#flame-graph").bounding_box()["width"])


@pytest.mark.parametrize("width", [DESK, PHONE])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["practice-leak", "practice-rank"])
def test_it_loads_and_fits(show: Show, artefacts: Path, name: str, scheme: str, width: int) -> None:
    page = show(sample(name), width=width, scheme=scheme)
    assert page.locator("h1").inner_text()
    page.screenshot(path=artefacts / f"{name}-{width}-{scheme}.png", full_page=True)
    overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert overflow <= 0


def test_the_verdict_is_on_top(show: Show) -> None:
    page = show(sample())
    top = page.locator("#verdict .lead").bounding_box()
    assert top is not None
    assert top["y"] < 320
    assert "leakydrv!TrackRequest+0x1d allocates" in page.locator("#verdict .lead").inner_text()


def test_frames_are_as_wide_as_what_stays(show: Show) -> None:
    page = show(branching())
    whole = whole_width(page)
    for name, share in (("TrackRequest", 0.6), ("BuildContext", 0.3), ("CloneHeader", 0.1)):
        assert width_of(page, f"leakydrv!{name}") == pytest.approx(whole * share, abs=1.5)
    page.select_option("#flame-weight", label="allocations seen")
    for name in ("TrackRequest", "BuildContext", "CloneHeader"):
        assert width_of(page, f"leakydrv!{name}") == pytest.approx(whole / 3, abs=1.5)
    assert "213 allocations" in page.locator("#flame-detail").inner_text()


def test_the_mouse_zooms_and_the_button_goes_back(show: Show) -> None:
    page = show(branching())
    whole = whole_width(page)
    assert page.locator("#flame-reset").is_disabled()
    frame(page, "leakydrv!BuildContext").click()
    assert width_of(page, "leakydrv!BuildContext") == pytest.approx(whole, abs=1.5)
    assert frame(page, "leakydrv!TrackRequest").count() == 0
    assert "30.0 %" in page.locator("#flame-detail").inner_text()
    page.locator("#flame-reset").click()
    assert width_of(page, "leakydrv!BuildContext") == pytest.approx(whole * 0.3, abs=1.5)
    assert page.locator("#flame-reset").is_disabled()


def test_the_keyboard_moves_zooms_and_goes_back(show: Show) -> None:
    page = show(branching())
    whole = whole_width(page)
    page.locator("#flame-search").focus()
    page.keyboard.press("Tab")  # the button is disabled, so the graph comes next
    assert focused(page).startswith("all stacks: 10,000 bytes")
    for _ in range(6):
        page.keyboard.press("ArrowDown")
    assert focused(page).startswith("leakydrv!TrackRequest+0x1d: 6,000 bytes, 60.0 %")
    assert focused(page).endswith("; accused")
    page.keyboard.press("ArrowRight")
    assert focused(page).startswith("leakydrv!BuildContext")
    page.keyboard.press("ArrowRight")
    assert focused(page).startswith("leakydrv!CloneHeader")
    page.keyboard.press("ArrowRight")  # there is nothing further right
    assert focused(page).startswith("leakydrv!CloneHeader")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    assert width_of(page, "leakydrv!BuildContext") == pytest.approx(whole, abs=1.5)
    assert focused(page).startswith("leakydrv!BuildContext")
    page.keyboard.press("Escape")
    assert focused(page).startswith("leakydrv!HandleRequest")
    for _ in range(8):
        page.keyboard.press("Escape")
    assert focused(page).startswith("all stacks")
    assert width_of(page, "leakydrv!BuildContext") == pytest.approx(whole * 0.3, abs=1.5)
    page.keyboard.press("End")
    page.keyboard.press("Home")
    assert focused(page).startswith("all stacks")
    page.keyboard.press("Tab")  # one stop for the whole graph
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"


def test_search_marks_counts_and_jumps(show: Show) -> None:
    page = show(branching())
    page.locator("#flame-search").fill("buildcontext")
    assert (
        page.locator("#flame-found").inner_text() == "1 frame matches: 30.0 % of outstanding bytes"
    )
    assert page.locator(".frame.hit").count() == 1
    assert page.locator(".frame.miss").count() == page.locator(".frame").count() - 1
    page.keyboard.press("Enter")
    assert focused(page).startswith("leakydrv!BuildContext")
    page.locator("#flame-search").fill("leakydrv!")
    found = page.locator("#flame-found").inner_text()
    assert found.endswith(": 100 % of outstanding bytes")  # nested matches count once
    page.locator("#flame-search").fill("nothing like it")
    assert page.locator("#flame-found").inner_text() == "Nothing matches."
    page.keyboard.press("Escape")
    assert page.locator("#flame-search").input_value() == ""
    assert page.locator(".frame.miss").count() == 0


def test_the_graph_is_there_as_a_table(show: Show) -> None:
    page = show(branching())
    assert page.locator("#flame-table table").count() == 0
    page.locator("#flame-table summary").click()
    row = page.locator("#flame-table tbody tr", has_text="TrackRequest")
    assert row.inner_text().split() == ["6", "leakydrv!TrackRequest+0x1d", "6,000", "60", "71"]


def test_tables_can_be_read_on_a_small_screen(show: Show, artefacts: Path) -> None:
    page = show(branching(), width=PHONE)
    page.locator("#flame-table summary").click()
    caption = page.locator("caption").bounding_box()
    assert caption is not None
    assert caption["width"] > 200
    assert caption["height"] < 60
    for cell in page.locator("#flame-table td, #site-table tr:first-child td").all():
        assert cell.get_attribute("data-label")
    page.locator("#flame-table").screenshot(path=artefacts / "flame-table-400.png")


def first_names(page: Page) -> list[str]:
    return [str(text) for text in page.locator(".site-name").all_inner_texts()]


def test_call_sites_are_sorted_by_their_heads(show: Show) -> None:
    document = sample()
    page = show(document)
    assert first_names(page) == [site["frame"]["text"] for site in document["call_sites"]]
    head = page.locator("#site-table thead th", has_text="Freed here")
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    order = sorted(document["call_sites"], key=lambda site: -site["frees"])
    assert first_names(page) == [site["frame"]["text"] for site in order]
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    order = sorted(document["call_sites"], key=lambda site: site["frees"])
    assert first_names(page) == [site["frame"]["text"] for site in order]
    page.locator("#site-table thead th", has_text="Call site").get_by_role("button").click()
    assert head.get_attribute("aria-sort") is None
    assert first_names(page) == sorted(first_names(page), key=str.lower)


def test_stacks_open_under_their_call_site(show: Show) -> None:
    page = show(sample())
    lists = page.locator("ol.stack")
    lists.first.wait_for()
    assert lists.count() == 1  # of the first
    assert lists.first.locator("li.at").inner_text() == "leakydrv!TrackRequest+0x1d"
    page.locator("#site-table summary").nth(1).click()
    lists.nth(1).wait_for()
    assert lists.count() == 2
    assert lists.nth(1).locator("li").count() == 9


def test_hostile_names_do_nothing(show: Show, artefacts: Path) -> None:
    for width in (DESK, PHONE):
        page = show(hostile(), width=width)
        page.select_option("#flame-weight", index=2)
        page.locator("#flame-table summary").click()
        for summary in page.locator("#site-table summary").all():
            summary.click()
        page.locator("#flame-search").fill("<script>")
        assert page.locator(".frame.hit").count() > 0
        assert page.locator("img, iframe, object, embed").count() == 0
        assert page.locator("script").count() == 2
        assert page.evaluate(
            "[...document.querySelectorAll('*')].every((e) => [...e.attributes]"
            ".every((a) => !a.name.startsWith('on')))"
        )
        assert "<script>alert(1)</script>" in page.locator("body").inner_text()
        assert "\u202e" not in page.locator("body").inner_text()
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert page.locator("[role=alert]").count() == 1
        page.screenshot(path=artefacts / f"hostile-{width}.png")


def test_the_policy_stops_what_would_get_through(show: Show) -> None:
    page = show(sample())
    # Of the page's own making, so no complaint of the page: asked and answered inside.
    blocked = page.evaluate(
        """() => new Promise((done) => {
            const seen = [];
            const note = (event) => {
                seen.push(event.effectiveDirective);
                if (seen.length === 3) done(seen.sort());
            };
            document.addEventListener("securitypolicyviolation", note);
            const script = document.createElement("script");
            script.textContent = "window.harmed = true";
            document.body.append(script);
            const image = new Image();
            image.src = "file:///nowhere.png";
            const place = document.createElement("div");
            place.setAttribute("style", "color: red");
            document.body.append(place, image);
        })"""
    )
    assert blocked == ["img-src", "script-src-elem", "style-src-attr"]
    assert page.evaluate("window.harmed") is None
    # The browser says so on the console, too: three times, and nothing else.
    assert len(show.complaints) == 3
    assert all("Content Security Policy" in one for one in show.complaints)
    show.complaints.clear()
    assert show.requests.pop() == "file:///nowhere.png"  # asked for, and refused


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_system_and_the_button(show: Show, scheme: str) -> None:
    page = show(sample(), scheme=scheme)
    background = "getComputedStyle(document.body).backgroundColor"
    light, dark = "rgb(244, 245, 247)", "rgb(15, 19, 23)"
    mine, other = (light, dark) if scheme == "light" else (dark, light)
    assert page.evaluate(background) == mine
    page.get_by_role("button", name=re.compile("colours")).click()
    assert page.evaluate(background) == other
    page.get_by_role("button", name=re.compile("colours")).click()
    assert page.evaluate(background) == mine


CONTRAST = """(selector) => {
    const parse = (text) => text.match(/[0-9.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
        .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const behind = (element) => {
        for (let e = element; e; e = e.parentElement) {
            const colour = parse(getComputedStyle(e).backgroundColor);
            if (colour.length < 4 || colour[3] > 0) return colour;
        }
        return [255, 255, 255];
    };
    return [...document.querySelectorAll(selector)].map((e) => {
        const a = light(parse(getComputedStyle(e).color)), b = light(behind(e));
        return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.textContent.slice(0, 40)];
    });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(show: Show, scheme: str) -> None:
    for document in (sample(), hostile()):
        page = show(document, scheme=scheme)
        words = "h1, h2, p, dt, dd, summary, .badge, .frame, th button, td, li, code, .note"
        measured = page.evaluate(CONTRAST, words)
        assert len(measured) > 50
        assert [one for one in measured if one[0] < 4.5] == []


def test_screen_readers_get_names_and_structure(show: Show) -> None:
    page = show(branching())
    tree = page.locator("body").aria_snapshot()
    for words in (
        "Who leaks pool tag",
        "[level=1]",
        'region "Verdict"',
        'region "Call sites"',
        'tree "Flame graph of call stacks"',
        'treeitem "leakydrv!TrackRequest+0x1d: 6,000 bytes, 60.0 % of all outstanding bytes;',
        'searchbox "Search"',
        'combobox "Width"',
        'button "Bytes out"',
        'rowheader "leakydrv!TrackRequest+0x1d"',
        "status",
        "banner",
        "main",
        "contentinfo",
    ):
        assert words in tree, words
    unnamed = [
        line
        for line in tree.splitlines()
        if re.match(r"\s*- (button|treeitem|img|region|searchbox|combobox)\s*(:|$)", line)
    ]
    assert unnamed == []
    assert page.get_by_role("img").count() >= 2  # charts, with words
    for chart in page.locator("svg.chart").all():
        assert re.search(r"from .+ to .+ in ", chart.locator("desc").text_content() or "")


def test_every_control_can_be_reached_by_tab(show: Show) -> None:
    page = show(branching())
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                "document.activeElement.id || document.activeElement.className"
                " || document.activeElement.textContent"
            )
        )
    for control in ("skip", "theme", "flame-weight", "flame-search", "Bytes out", "Freed here"):
        assert control in reached, control


def test_it_prints(show: Show, artefacts: Path) -> None:
    page = show(sample(), scheme="dark")
    pdf = page.pdf(path=artefacts / "practice-leak.pdf", format="A4", print_background=True)
    assert pdf.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 12
    assert page.locator("ol.stack").count() == len(sample()["call_sites"])  # opened for print
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(26, 31, 38)"
    assert page.locator("#flame-tools").is_hidden()
    assert page.locator(".frame").first.is_visible()


def test_thousands_of_stacks_are_drawn_at_once(show: Show, artefacts: Path) -> None:
    page = show(many_stacks(3000, 10_000))
    took = page.evaluate(
        "() => { const t = performance.now();"
        " document.querySelectorAll('.frame')[3].click(); return performance.now() - t; }"
    )
    assert took < 1000
    assert page.locator(".frame").count() >= 6
    assert re.fullmatch(r"\d+ lighter frames", page.locator(".lighter").first.inner_text())
    assert "too light to be drawn" in page.locator("#flame").inner_text()
    page.screenshot(path=artefacts / "many-stacks.png")


def test_a_window_that_changes_keeps_the_graph_whole(show: Show) -> None:
    page = show(branching())
    page.set_viewport_size({"width": PHONE, "height": 900})
    whole = whole_width(page)
    assert whole < PHONE
    assert width_of(page, "leakydrv!TrackRequest") == pytest.approx(whole * 0.6, abs=1.5)


def test_nothing_stayed_shows_allocations(show: Show) -> None:
    document = sample()
    for stack in document["stacks"]:
        stack.update(outstanding=0, outstanding_bytes=0)
    page = show(document)
    chosen = page.evaluate("document.getElementById('flame-weight').selectedOptions[0].text")
    assert chosen == "allocations seen"
    assert page.locator(".frame").count() > 9
