"""The sample dumps and what the practice machine's ledger says is in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.make_sample_dumps import DUMPS, FOLDER


@pytest.fixture(params=sorted(DUMPS))
def sample(request) -> Path:
    return FOLDER / request.param


@pytest.fixture(scope="session")
def all_truth() -> dict:
    return json.loads((FOLDER / "truth.json").read_text("utf-8"))


@pytest.fixture
def truth(sample, all_truth) -> dict:
    return all_truth[sample.name]
