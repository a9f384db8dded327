"""Blame in the reports: layers, drivers and the tag's owner; names from the target are harmless."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from report_samples import HUNTS

import kdleak.report
from kdleak.blamed import KnownOwner, LayerUse, ModuleDetails
from kdleak.report.html_blame import blame_facts, owner_sentence
from kdleak.report.json_report import hunt_json
from kdleak.report.result_document import Node, parse_result
from kdleak.report.text import render_hunt
from kdleak.result import HuntResult

jsonschema = pytest.importorskip("jsonschema")

SCHEMA = Path(kdleak.report.__file__).parent / "schema" / "hunt.schema.json"
EVIL = "drv\x1b]0;owned\x07\n\u202e\x9b2J\r<script>"


def blamed(
    *, found: bool = True, details: ModuleDetails | None = None, text: str = ""
) -> HuntResult:
    result = HUNTS["accused"]
    site = result.sites[0]
    symbol = replace(site.blame.symbol, module=text or "hiddendrv", name=text or "Open")
    site = replace(
        site,
        blame=replace(site.blame, address=site.blame.address + 0x40, symbol=symbol),
        through=(
            LayerUse(text or "Wdf01000", "KMDF", 2),
            LayerUse("ndis", "NDIS", 1),
            LayerUse("odd", "", 1),
            LayerUse("Wdf01000", "KMDF", 1),
        ),
        blame_found=found,
    )
    known = details or ModuleDetails(
        "hiddendrv", "hiddendrv.sys", "\\drivers\\hiddendrv.sys", 7, "1.2.3.4", "Contoso", "Odd one"
    )
    owner = KnownOwner(text or "Leak", "hiddendrv.sys", "", "pooltag.txt", text or "hiddendrv.sys")
    return replace(
        result, sites=(site, *result.sites[1:]), accused=site, blamed=(known,), tag_owner=owner
    )


def words(result: HuntResult, width: int = 100) -> str:
    return " ".join(render_hunt(result, width=width).split())


def test_text_says_through_what_and_whose_driver_it_is() -> None:
    text = words(blamed())
    assert "on behalf of hiddendrv!Open+" in text
    assert "through 5 frames of Wdf01000 (KMDF), ndis (NDIS), odd driver:" in text
    assert "driver: hiddendrv.sys, version 1.2.3.4, Contoso, Odd one" in text
    assert "pooltag.txt says of 'Leak': hiddendrv.sys." in text


def test_text_when_there_is_nobody_but_layers() -> None:
    text = words(blamed(found=False))
    assert "nothing but framework layers up to hiddendrv!Open+" in text
    assert "on behalf of" not in text


def test_text_when_the_version_is_not_known() -> None:
    details = ModuleDetails("hiddendrv", "hiddendrv.sys", unknown="it is paged out")
    text = words(blamed(details=details))
    assert "driver: hiddendrv.sys (version not known: it is paged out)" in text


def test_the_samples_name_no_driver() -> None:
    assert "driver:" not in words(HUNTS["accused"])


def test_names_from_the_target_are_harmless() -> None:
    details = ModuleDetails(EVIL, EVIL, EVIL, 1, EVIL, EVIL, EVIL, EVIL)
    text = render_hunt(blamed(details=details, text=EVIL))
    assert [char for char in text if char != "\n" and not char.isprintable()] == []
    assert "\\x1b]0;owned" in text
    assert hunt_json(blamed(details=details, text=EVIL)).isascii()


@pytest.mark.parametrize("unknown", ["", "it is paged out"])
def test_json_is_valid_and_every_null_has_its_reason(unknown: str) -> None:
    details = ModuleDetails("hiddendrv", "", "", 0, "" if unknown else "1.2.3.4", unknown=unknown)
    document = json.loads(hunt_json(blamed(details=details)))
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text("utf-8"))).validate(document)
    module = document["blamed_modules"][0]
    assert module["file_version"] == (None if unknown else "1.2.3.4")
    nulls = {key for key, value in module.items() if value is None}
    assert set(module["absent"]) == nulls
    if unknown:
        assert module["absent"]["company"] == unknown
    assert document["tag_owner"]["binary"] == "hiddendrv.sys"
    assert document["tag_owner"]["description"] is None
    site = document["call_sites"][0]
    assert site["through"][0] == {"module": "Wdf01000", "words": "KMDF", "frames": 2}
    assert site["blame_found"] is True
    assert document["stacks"][0]["blame"].startswith("0x")


def document_of(result: HuntResult) -> Node:
    return parse_result(hunt_json(result).encode(), "x", kinds=("kdleak.hunt",))


def test_sentences_of_the_html_report() -> None:
    hunt = document_of(blamed())
    site = hunt.nodes("call_sites")[0]
    assert blame_facts(hunt, site) == [
        "Looked through 5 frames of framework layers: Wdf01000 (KMDF), ndis (NDIS), odd.",
        "Driver: hiddendrv.sys, version 1.2.3.4, Contoso, Odd one.",
    ]
    assert owner_sentence(hunt) == "pooltag.txt says of the tag: hiddendrv.sys."
    nobody = document_of(blamed(found=False))
    assert blame_facts(nobody, nobody.nodes("call_sites")[0])[0].startswith(
        "Nothing but framework layers on its stack: Wdf01000 (KMDF)"
    )


def test_a_result_from_before_that_has_no_such_sentences() -> None:
    document = json.loads(hunt_json(blamed()))
    for key in ("blamed_modules", "tag_owner"):
        del document[key]
    for site in document["call_sites"]:
        del site["through"], site["blame_found"]
    hunt = Node(document)
    assert [blame_facts(hunt, site) for site in hunt.nodes("call_sites")] == [
        [] for _ in document["call_sites"]
    ]
    assert owner_sentence(hunt) == ""
