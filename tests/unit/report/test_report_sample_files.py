"""The samples in the repository are what the schemas say."""

import json
from pathlib import Path

import pytest

import kdleak.report

jsonschema = pytest.importorskip("jsonschema")
SAMPLES = Path(__file__).resolve().parents[3] / "samples" / "hunts"
SCHEMAS = Path(kdleak.report.__file__).parent / "schema"


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.json")), ids=lambda path: path.name)
def test_sample(path):
    document = json.loads(path.read_text(encoding="utf-8"))
    kind = document["format"].partition(".")[2]
    schema = json.loads((SCHEMAS / f"{kind}.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(document)


def test_the_hunt_accuses_the_leak():
    document = json.loads((SAMPLES / "practice-leak.json").read_text(encoding="utf-8"))
    accused = document["call_sites"][document["accused"]]
    assert accused["frame"]["text"].startswith("leakydrv!TrackRequest+0x")
    assert document["disarm"]["status"] == "confirmed"
