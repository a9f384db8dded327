"""JSON reports: stable text, valid against the shipped schema, every null with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Iterator

import pytest
from parse_samples import LOGRANKS, PARSED
from report_samples import GOLDEN, HUNTS, RANKS, RESTORES

import kdleak.report
from kdleak import __version__
from kdleak.report.json_report import hunt_json, rank_json, restore_json
from kdleak.report.parse_json import logged_rank_json, parse_json

jsonschema = pytest.importorskip("jsonschema")

SCHEMAS = Path(kdleak.report.__file__).parent / "schema"
DOCUMENTS = {
    **{f"hunt_{name}": (hunt_json, result) for name, result in HUNTS.items()},
    **{f"rank_{name}": (rank_json, result) for name, result in RANKS.items()},
    **{f"restore_{name}": (restore_json, result) for name, result in RESTORES.items()},
    **{f"parse_{name}": (lambda one: parse_json([one]), log) for name, log in PARSED.items()},
    **{f"logrank_{name}": (logged_rank_json, rank) for name, rank in LOGRANKS.items()},
}


def schema(name: str) -> Any:
    path = SCHEMAS / f"{name.partition('_')[0]}.schema.json"
    return json.loads(path.read_text(encoding="utf-8"))


def text_of(name: str) -> str:
    write, result = DOCUMENTS[name]
    return write(result)


def objects(value: Any) -> Iterator[dict]:
    if isinstance(value, dict):
        yield value
        for item in value.values():
            yield from objects(item)
    elif isinstance(value, list):
        for item in value:
            yield from objects(item)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_golden(name: str) -> None:
    # The version of the program is the one thing that moves without the format moving.
    text = text_of(name).replace(f'"version": "{__version__}"', '"version": "0"')
    assert text == (GOLDEN / f"{name}.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_valid_against_the_shipped_schema(name: str) -> None:
    jsonschema.Draft202012Validator(schema(name)).validate(json.loads(text_of(name)))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_null_has_a_reason_and_every_reason_a_null(name: str) -> None:
    found = 0
    for item in objects(json.loads(text_of(name))):
        nulls = {key for key, value in item.items() if value is None}
        assert set(item.get("absent", {})) == nulls
        assert all(item.get("absent", {}).values())
        found += len(nulls)
    assert found > 0 or name.startswith(("rank", "restore"))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_ascii_one_newline_at_the_end_and_the_head_first(name: str) -> None:
    text = text_of(name)
    assert text.isascii()
    assert text.endswith("}\n")
    document = json.loads(text)
    assert list(document)[:3] == ["format", "format_version", "generator"]
    assert document["format"] == f"kdleak.{name.partition('_')[0]}"
    assert document["generator"] == {"name": "kdleak", "version": __version__}


@pytest.mark.parametrize("kind", ["hunt", "rank", "restore", "parse", "logrank"])
def test_the_schemas_are_good_and_describe_every_property(kind: str) -> None:
    document = schema(kind)
    jsonschema.Draft202012Validator.check_schema(document)
    for item in objects(document):
        for name, prop in item.get("properties", {}).items():
            described = "description" in prop or "$ref" in prop
            assert described, name


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_schema_knows_every_property_written(name: str) -> None:
    """``additionalProperties`` is open for readers of later versions, but not for us now."""
    strict = json.loads(
        json.dumps(schema(name)).replace(
            '"additionalProperties": true', '"additionalProperties": false'
        )
    )
    jsonschema.Draft202012Validator(strict).validate(json.loads(text_of(name)))


def test_the_schema_refuses_another_major_version() -> None:
    document = json.loads(text_of("rank_growth"))
    document["format_version"] = "2.0"
    errors = list(jsonschema.Draft202012Validator(schema("rank")).iter_errors(document))
    assert len(errors) == 1


def test_indexes_point_where_they_say() -> None:
    document = json.loads(text_of("hunt_accused"))
    accused = document["call_sites"][document["accused"]]
    assert accused["judgement"] == "accused"
    for hit in document["hits"]:
        stack = document["stacks"][hit["stack"]]
        assert stack["frames"][0]["address"].startswith("0xfffff800")
    rank = document["rank"]
    assert rank["rows"][rank["suspect"]]["tag"] == document["tag"]
    assert document["started_at"] == "2023-11-14T22:13:20.250Z"


def test_a_key_in_a_log_is_blanked() -> None:
    text = text_of("parse_mail")
    assert "net:port=50000,key=..." in text
    assert "s3cr3tp4rt1" not in text


def test_indexes_of_a_log_point_where_they_say() -> None:
    (log,) = json.loads(text_of("parse_session"))["logs"]
    (hunt,) = log["hunts"]
    for hit in hunt["hits"]:
        if hit["call_site"] is not None:
            site = hunt["call_sites"][hit["call_site"]]["frame"]
            assert site in hit["stack"]["frames"]
    assert sum(hit["call_site"] is not None for hit in hunt["hits"]) == 10
    rank = json.loads(text_of("logrank_growth"))
    assert rank["rows"][rank["suspect"]]["tag"]["text"] == "Leak"
