"""Tables of tests/corpus_tables, and those of both corpora in decorations that change nothing."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence

import pytest
from corpus_sample import CORPUS, differences

from kdleak.dialect.decoration import undecorate
from kdleak.dialect.log import parse_log
from kdleak.dialect.pool import Pool, parse_pool
from kdleak.dialect.poolfind import PoolFind, parse_poolfind
from kdleak.dialect.poolmon import PoolMonScreen, parse_poolmon
from kdleak.dialect.pooltag import parse_pooltag
from kdleak.dialect.poolused import PoolUsedTable, parse_poolused
from kdleak.dialect.source import Line, decode
from kdleak.dialect.verifier import Verifier, parse_verifier
from kdleak.dialect.verifier_log import VerifierLog, parse_verifier_log
from kdleak.dialect.vm import VmUsage, parse_vm

TABLES = CORPUS.parent / "corpus_tables"
META = {"kind", "notes", "tables", "rejected", "arch"}
Lines = Sequence[Line]


def _poolused(lines: Lines, expected: Dict[str, Any]) -> List[str]:
    lists = parse_poolused(lines)
    if expected.get("rejected"):
        rows = sum(len(table.rows) for table in lists.tables)
        return ([] if lists.rejected else ["accepted"]) + ([f"{rows} rows"] if rows else [])
    found = [lists.rejected] if lists.rejected else []
    tables = expected.get("tables", [expected])
    if len(lists.tables) != len(tables):
        found.append(f"{len(lists.tables)} lists instead of {len(tables)}")
    for table, of_json in zip(lists.tables, tables):
        wanted = {key: value for key, value in of_json.items() if key not in META}
        wanted.setdefault("filter", None)
        for row in wanted["rows"]:
            row.setdefault("unknown", False)
            row.setdefault("quoted_tag", None)
        found += differences(table, wanted)
    return found


def _poolmon(lines: Lines, expected: Dict[str, Any]) -> List[str]:
    screens = parse_poolmon(lines).screens
    wanted = {"header": expected["header"], "rows": expected["rows"]}
    return differences(list(screens), [wanted])


def _pooltag(lines: Lines, expected: Dict[str, Any]) -> List[str]:
    tags = parse_pooltag(lines)
    found: List[str] = []
    for field in ("entries", "ignored_lines", "comment_lines", "blank_lines"):
        found += differences(getattr(tags, field), expected[field], field)
    return found


def _vm(lines: Lines, expected: Dict[str, Any]) -> List[str]:
    usages = parse_vm(lines).usages
    if len(usages) != 1:
        return [f"{len(usages)} outputs"]
    (usage,) = usages
    wanted = {"page_files": expected["page_files"], "alerts": expected["alerts"]}
    values = {value.label: {"pages": value.pages, "kb": value.kb} for value in usage.values}
    found = differences(usage, wanted)
    if values != expected["values"] or len(values) != len(usage.values):
        found.append(f"values {values}")
    if dict(usage.plain) != expected.get("plain", {}):
        found.append(f"plain {usage.plain}")
    return found


def _poolfind(lines: Lines, expected: Dict[str, Any]) -> List[str]:
    return differences(parse_poolfind(lines).searches, expected["searches"])


def _pool(lines: Lines, expected: Dict[str, Any]) -> List[str]:
    return differences(parse_pool(lines).pages, expected["pages"])


def _verifier(lines: Lines, expected: Dict[str, Any]) -> List[str]:
    if "searches" in expected:
        return differences(parse_verifier_log(lines).searches, expected["searches"])
    reports = parse_verifier(lines).reports
    if len(reports) != 1:
        return [f"{len(reports)} reports"]
    (report,) = reports
    for driver in expected.get("drivers", [expected.get("driver")]):
        for name, value in driver.items():
            if isinstance(value, list) and name != "allocations":
                driver[name] = tuple(value)
    names = ("command", "level", "drivers", "irql_log", "allocations")
    found = differences(report, {name: expected[name] for name in names if name in expected})
    if "driver" in expected:
        found += differences(list(report.drivers), [expected["driver"]])
    flags = {f"0x{flag.value:08x}": flag.enabled for flag in report.flags}
    if flags != expected.get("flags", {}):
        found.append(f"flags {flags}")
    return found


READERS: Dict[str, Callable[[Lines, Dict[str, Any]], List[str]]] = {
    "poolused": _poolused,
    "poolmon": _poolmon,
    "pooltag": _pooltag,
    "vm": _vm,
    "poolfind": _poolfind,
    "pool": _pool,
    "verifier": _verifier,
}


def _expected(path: Path) -> Dict[str, Any]:
    expected: Dict[str, Any] = json.loads(path.with_suffix(".json").read_text("utf-8"))
    return expected


def _read(data: bytes, expected: Dict[str, Any]) -> List[str]:
    lines = decode(data)
    if expected["kind"] != "pooltag":  # a tag list is a file, nobody quotes it
        lines = undecorate(lines)
    return READERS[expected["kind"]](lines, expected)


OWN = sorted(TABLES.glob("*.txt"))
BOTH = [
    path
    for path in [*sorted(CORPUS.glob("*.txt")), *OWN]
    if _expected(path)["kind"] in set(READERS) - {"pooltag"}
]


def test_there_are_samples_of_every_kind():
    assert {_expected(path)["kind"] for path in OWN} == set(READERS)


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.stem)
def test_sample(path):
    assert _read(path.read_bytes(), _expected(path)) == []


def _each(change: Callable[[str], str]) -> Callable[[str], str]:
    return lambda text: "\n".join(change(line) for line in text.split("\n"))


DECORATIONS: Dict[str, Callable[[str], str]] = {
    "cr lf": lambda text: text.replace("\n", "\r\n"),
    "indented": _each(lambda line: "   " + line),
    "behind a TAB": _each(lambda line: "\t" + line),
    "quoted": _each(lambda line: "> " + line),
    "quoted twice": _each(lambda line: "> > " + line),
    "comment": _each(lambda line: "//   " + line),
    "star comment": _each(lambda line: "* : " + line),
    "entities": lambda text: html.escape(text, quote=False),
    "quotes are entities too": html.escape,
    "double-spaced": lambda text: text.replace("\n", "\n\n"),
    "quoted and double-spaced": lambda text: "> " + text.rstrip("\n").replace("\n", "\n\n> "),
    "no end of line": lambda text: text.rstrip("\n"),
    "fenced": lambda text: f"```\n{text}\n```\n",
    "no-break blanks": lambda text: text.replace("  ", "\N{NO-BREAK SPACE} "),
    "in a mail": lambda text: f"Hello,\n\nhere is the log:\n\n{text}\n\nRegards\nA Customer\n",
    "a prompt behind it": lambda text: text.rstrip("\n") + "\n0: kd> .logclose\n",
}
ONCE_MORE = {"quoted", "quoted twice", "comment", "star comment", "quoted and double-spaced"}
DOUBLE = {"double-spaced", "quoted and double-spaced"}


@pytest.mark.parametrize("decoration", DECORATIONS)
def test_decoration_changes_nothing(decoration):
    decorate = DECORATIONS[decoration]
    for path in BOTH:
        data = path.read_bytes()
        encoding = "utf-16" if data[:2] == b"\xff\xfe" else "utf-8-sig"
        text = data.decode(encoding).replace("\r\n", "\n")
        quoted = "\n> " in text or text.startswith(">")
        if quoted and decoration in ONCE_MORE | DOUBLE:
            continue  # it has signs of its own; which go first is open
        found = _read(decorate(text).encode("utf-8"), _expected(path))
        assert found == [], (path.stem, decoration)


OUTPUTS = (PoolUsedTable, PoolMonScreen, Pool, PoolFind, VmUsage, Verifier, VerifierLog)


def _text_of(path: Path) -> str:
    text = decode(path.read_bytes()).lstrip("\N{BYTE ORDER MARK}").replace("\r\n", "\n")
    return text if text.endswith("\n") else text + "\n"


def _outputs(text: str) -> List[object]:
    return [event.value for event in parse_log(text).events if isinstance(event.value, OUTPUTS)]


@pytest.mark.parametrize("between", ["", "\n"], ids=["directly", "an empty line"])
def test_two_outputs_run_together_are_read_as_each_alone(between):
    # Rows without anything above them go on with whatever rows stand there.
    second = [path for path in BOTH if not path.stem.startswith(("173-", "184-"))]
    for index, path in enumerate(BOTH):
        first = _text_of(path) + between
        alone = _outputs(first)
        for step in (1, 17, 31, 46):
            other = second[(index + step) % len(second)]
            below = _outputs("\n" * first.count("\n") + _text_of(other))
            assert _outputs(first + _text_of(other)) == alone + below, (path.stem, other.stem)
