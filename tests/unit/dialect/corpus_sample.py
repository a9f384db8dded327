"""The samples of tests/corpus: text, and what a reader should get out of it."""

from __future__ import annotations

import enum
import json
from pathlib import Path
from typing import Any, Dict, List, Mapping, Tuple

from kdleak.dialect.decoration import undecorate
from kdleak.dialect.source import Line, decode

CORPUS = Path(__file__).parents[2] / "corpus"


def load(number: int) -> Tuple[Tuple[Line, ...], Dict[str, Any]]:
    """The lines of a sample, undecorated, and its expected values."""
    (text,) = CORPUS.glob(f"{number:02d}-*.txt")
    expected: Dict[str, Any] = json.loads(text.with_suffix(".json").read_text("utf-8"))
    return tuple(undecorate(decode(text.read_bytes()))), expected


def differences(actual: Any, expected: Any, where: str = "") -> List[str]:
    """Where a value differs from the expected JSON; keys the JSON lacks are not compared."""
    if isinstance(expected, Mapping):
        found: List[str] = []
        for key, value in expected.items():
            if not hasattr(actual, key):
                found.append(f"{where}.{key}: {type(actual).__name__} has no such field")
            else:
                found += differences(getattr(actual, key), value, f"{where}.{key}")
        return found
    if isinstance(expected, list):
        if len(actual) != len(expected):
            return [f"{where}: {len(actual)} instead of {len(expected)}: {actual!r}"]
        found = []
        for index, (one, other) in enumerate(zip(actual, expected)):
            found += differences(one, other, f"{where}[{index}]")
        return found
    if isinstance(actual, enum.Enum):
        actual = actual.value
    if isinstance(actual, int) and isinstance(expected, str) and expected.startswith("0x"):
        expected = int(expected, 16)
    same = actual == expected and isinstance(actual, bool) == isinstance(expected, bool)
    return [] if same else [f"{where}: {actual!r} instead of {expected!r}"]
