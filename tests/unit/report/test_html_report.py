"""The HTML report as text: nothing from outside, nothing that a name could break."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from report_samples import (
    accused,
    blind,
    bursts,
    foreign_stop,
    no_hits,
    not_confirmed,
    nothing_grew,
)
from result_documents import HOSTILE, hostile, many_stacks, node, sample

from kdleak.errors import UsageError
from kdleak.report.document_text import render_document
from kdleak.report.html_data import as_script_data, middle_cut
from kdleak.report.html_report import MAX_BYTES, render_html
from kdleak.report.hunt_series import site_lines
from kdleak.report.json_report import hunt_document
from kdleak.report.svg_chart import Line, line_chart, thinned

HUNTS = [accused, blind, bursts, foreign_stop, no_hits, not_confirmed, nothing_grew]
LOADING = {"src", "href", "srcset", "data", "poster", "action", "formaction", "background"}
VOID = {"meta", "link", "input", "br", "img", "hr"}


class Page(HTMLParser):
    """The elements, attributes and texts of a page; fails where tags do not fit."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self.texts: list[str] = []
        self.comments: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in self.raw:
            self.raw[self.open[-1]].append(data)
        else:
            self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    def data(self) -> dict[str, Any]:
        return json.loads(self.raw["script"][0])

    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.texts))


def page_of(document: dict[str, Any]) -> Page:
    return Page(render_html(node(document)))


def check_harmless(page: Page, text: str) -> None:
    tags = [tag for tag, _ in page.elements]
    assert tags.count("script") == 2
    assert tags.count("style") == 1
    assert not {"img", "iframe", "object", "embed", "link", "base", "form", "video"} & set(tags)
    for _, attributes in page.elements:
        for name, value in attributes.items():
            assert not name.startswith("on"), name
            assert name != "style"
            if name in LOADING:
                assert value is not None
                assert value.startswith("#"), value
    assert page.comments == []
    assert "url(" not in "".join(page.raw["style"])
    assert "@import" not in "".join(page.raw["style"])
    script = page.raw["script"][1]
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacent",
        "document.write",
        "eval(",
        "Function(",
    ):
        assert word not in script
    for char in "\x00\x1b\r\u202e\u2028\ud800":
        assert char not in text
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", text)


def check_policy(page: Page) -> None:
    policies = [
        attributes["content"]
        for tag, attributes in page.elements
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert len(policies) == 1
    assert policies[0] is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policies[0].split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["base-uri"] == rules["form-action"] == "'none'"
    for kind, text in (("style-src", page.raw["style"][0]), ("script-src", page.raw["script"][1])):
        digest = base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
        assert rules[kind] == f"'sha256-{digest}'"
    names = [attributes.get("http-equiv") for tag, attributes in page.elements if tag == "meta"]
    before = names.index("Content-Security-Policy")
    assert "script" not in [tag for tag, _ in page.elements[: before + 3]]


@pytest.mark.parametrize("make", HUNTS, ids=lambda make: make.__name__)
def test_every_kind_of_hunt_becomes_a_page(make: Any) -> None:
    document = json.loads(json.dumps(hunt_document(make())))
    text = render_html(node(document))
    page = Page(text)
    check_harmless(page, text)
    check_policy(page)
    for sentence in document["verdict"]:
        head, _, tail = sentence.partition(" that stay: ")
        assert head in page.text()
        assert tail[1:] in page.text()
    assert document["disarm"]["sentence"] in page.text()
    assert len(page.data().get("sites", [])) == len(document["call_sites"])


def test_a_ranking_becomes_a_page() -> None:
    document = sample("practice-rank")
    text = render_html(node(document))
    page = Page(text)
    check_harmless(page, text)
    check_policy(page)
    assert document["reason"] in page.text()
    assert [tag for tag, _ in page.elements].count("svg") >= 2
    assert "Call sites" not in page.text()


def test_hostile_names_stay_text() -> None:
    text = render_html(node(hostile()))
    page = Page(text)
    check_harmless(page, text)
    check_policy(page)
    names = page.data()["names"]
    assert any("<script>alert(1)</script>" in name for name in names)
    assert any("\\u202egpj.sys" in name for name in names)
    assert max(len(name) for name in names) <= 240
    data = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert data is not None
    assert "<" not in data[1]
    assert text.count("</script>") == 2
    assert "DISARM NOT CONFIRMED" in page.text()
    assert ("section", {"class": "card alarm", "role": "alert"}) in page.elements


@pytest.mark.parametrize("name", HOSTILE)
def test_script_data_comes_back_as_it_was(name: str) -> None:
    text = as_script_data({name: [name]})
    assert "<" not in text
    assert ">" not in text
    assert json.loads(text) == {name: [name]}


def test_the_alarm_is_there_only_when_needed() -> None:
    page = page_of(sample())
    assert "alert" not in {attributes.get("role") for _, attributes in page.elements}
    assert any(attributes.get("class") == "safe" for _, attributes in page.elements)
    page = page_of(hostile())
    assert any(attributes.get("class") == "unsafe" for _, attributes in page.elements)


def test_ids_are_unique_and_references_meet() -> None:
    for document in (sample(), sample("practice-rank"), hostile()):
        page = page_of(document)
        ids = [a["id"] for _, a in page.elements if "id" in a]
        assert len(ids) == len(set(ids))
        for _, attributes in page.elements:
            for reference in (attributes.get("aria-labelledby") or "").split():
                assert reference in ids
        levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
        assert levels[0] == 1
        assert all(after - before <= 1 for before, after in zip(levels, levels[1:]))


def test_ten_thousand_hits_stay_under_a_megabyte() -> None:
    text = render_html(node(many_stacks(3000, 10_000)))
    assert len(text.encode()) < MAX_BYTES
    page = Page(text)
    assert page.data()["sitesLeftOut"] == 3000 - len(page.data()["sites"])
    assert page.data()["leftOut"] > 0


def test_names_of_any_length_stay_under_a_megabyte() -> None:
    document = many_stacks(2000, 100, name_length=4000)
    assert len(render_html(node(document)).encode()) < MAX_BYTES


def test_a_hundred_thousand_hits_take_less_than_two_seconds() -> None:
    document = node(many_stacks(500, 100_000))
    begin = time.perf_counter()
    render_html(document)
    assert time.perf_counter() - begin < 2.0


def test_series_of_the_result_are_drawn_before_hits() -> None:
    document = sample()
    for site in document["call_sites"]:
        site.pop("series", None)
    of_hits = site_lines(node(document))
    site = document["call_sites"][0]
    assert of_hits[0].label == site["frame"]["text"]
    assert of_hits[0].points[-1][1] == site["outstanding_bytes"]
    assert of_hits[0].steps
    site["series"] = [
        {"at": 0.0, "outstanding": 0, "outstanding_bytes": 0},
        {"at": 1.0, "outstanding": 2, "outstanding_bytes": 77},
    ]
    lines = site_lines(node(document))
    assert [line.points for line in lines] == [((0.0, 0.0), (1.0, 77.0))]


def test_no_chart_is_made_of_hits_where_frees_were_not_seen() -> None:
    for key, value in (("bursts", 3), ("hits_left_out", 5)):
        document = sample()
        for site in document["call_sites"]:
            site.pop("series", None)
        document["completeness"][key] = value
        assert site_lines(node(document)) == ()


def test_watched_stretches_are_shaded() -> None:
    document = sample()
    document["watched"] = [[0.0, 0.2], [0.5, 0.7]]
    page = page_of(document)
    assert sum(a.get("class") == "watched" for _, a in page.elements) == 2
    assert "tag armed" in page.text()


def test_figures_of_a_sample_are_shown_with_their_error_bars() -> None:
    document = sample()
    scaled = {
        "blocks": 882.2,
        "blocks_within": {"low": 661, "high": 1070},
        "bytes": 282334.0,
        "bytes_within": {"low": 211525, "high": 342285},
    }
    document["call_sites"][0]["scaled"] = scaled
    document["call_sites"][0].update(oldest_age=24.9, median_age=13.2, min_age=0.109)
    document["scaling"] = {"method": "by bursts", "factor": 8.5, "total": scaled}
    page = page_of(document)
    facts = " ".join(page.data()["sites"][0]["facts"])
    assert "about 275.7 KiB in 882 blocks stayed (95 % interval: 206.6 KiB to 334.3 KiB)" in facts
    assert "24.9 s old, half of them for 13.2 s or longer; old is more than 109 ms" in facts
    assert "by bursts" in page.text()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("target",), None),
        (("target",), 5),
        (("call_sites",), {}),
        (("call_sites",), [5]),
        (("call_sites", 0, "frame"), None),
        (("call_sites", 0, "outstanding_bytes"), "many"),
        (("call_sites", 0, "stack", "frames"), ["x"]),
        (("stacks", 0, "outstanding"), 1.5),
        (("stacks", 0, "frames"), 7),
        (("accused",), 99),
        (("accused",), -1),
        (("verdict",), [1]),
        (("hits",), [[]]),
        (("hits", 0, "at"), "now"),
        (("disarm",), None),
        (("completeness", "share_watched"), "all"),
        (("rank", "rows", 0, "bytes_series"), [None]),
        (("rank", "rows", 0, "tag"), None),
        (("watched",), [[1]]),
        (("change",), "x"),
        (("growth", "bytes"), None),
    ],
)
def test_a_damaged_result_is_refused_in_one_sentence(path: tuple[Any, ...], value: object) -> None:
    document = sample()
    for site in document["call_sites"]:
        site.pop("series", None)
    at: Any = document
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    with pytest.raises(UsageError, match=r"^reading test\.json: .* is not .*\. Next: ") as raised:
        render_html(node(document))
    assert str(next(step for step in path if isinstance(step, str))) in str(raised.value)


def mutations() -> st.SearchStrategy[Any]:
    values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    return values | st.lists(values, max_size=3) | st.dictionaries(st.text(), values, max_size=3)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_damage_is_refused_or_drawn(data: st.DataObject) -> None:
    document = sample()
    document["hits"] = document["hits"][:30]
    at: Any = document
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = data.draw(st.sampled_from(keys))
        if isinstance(at[key], (dict, list)) and at[key] and data.draw(st.booleans()):
            at = at[key]
            continue
        at[key] = data.draw(mutations())
        break
    try:
        Page(render_html(node(document)))
        render_document(node(document))
    except UsageError:
        return  # in one sentence, see above; any other error fails


def test_the_text_ends_with_the_safety_line() -> None:
    text = render_document(node(sample()))
    assert text.endswith(f"{sample()['disarm']['sentence']}\n")
    assert sample()["call_sites"][0]["frame"]["text"] in text
    for line in render_document(node(hostile()), width=60).splitlines()[:-2]:
        assert line.isprintable()
    assert "Leak nonpaged steady" in render_document(node(sample("practice-rank")))


def test_a_long_line_keeps_its_ends_and_its_extremes() -> None:
    points = [(float(x), float((x * 7919) % 1000)) for x in range(5000)]
    points[1234] = (1234.0, 5e6)
    points[4321] = (4321.0, -9.0)
    kept = thinned(points, 100)
    assert len(kept) <= 100
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]
    assert (1234.0, 5e6) in kept
    assert (4321.0, -9.0) in kept
    assert [x for x, _ in kept] == sorted(x for x, _ in kept)
    assert thinned(points[:50], 100) == points[:50]


@given(st.lists(st.tuples(st.floats(0, 1e9), st.floats(-1e15, 1e15)), min_size=1, max_size=30))
def test_charts_stay_within_their_frame(points: list[tuple[float, float]]) -> None:
    points.sort()
    text = line_chart("c", "t", "d", [Line("l", tuple(points))], x_title="x")
    page = Page(text)
    for tag, attributes in page.elements:
        if tag == "circle":
            assert 0 <= float(attributes["cx"] or "") <= 560
            assert 0 <= float(attributes["cy"] or "") <= 230
    assert "nan" not in text
    assert "inf" not in text


def test_long_texts_are_cut_in_the_middle() -> None:
    cut = middle_cut("a" * 500 + "END", 40)
    assert len(cut) == 40
    assert cut.startswith("aaaa")
    assert cut.endswith("END")
    assert middle_cut("short\u202e", 40) == "short\\u202e"
