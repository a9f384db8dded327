"""Results read back: told by content, refused in one sentence, checked where they are read."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from result_documents import SAMPLES, node, sample

from kdleak.errors import UsageError
from kdleak.report.result_document import HUNT, RANK, is_json_result, parse_result, read_result


def test_the_samples_are_read() -> None:
    hunt = read_result(SAMPLES / "practice-leak.json", kinds=(HUNT, RANK))
    assert hunt.text("format") == HUNT
    assert hunt.node("tag").text("text") == "Leak"
    rank = read_result(SAMPLES / "practice-rank.json", kinds=(HUNT, RANK))
    assert rank.text("format") == RANK


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "it is not JSON"),
        (b"PAGEDU64", "it is not JSON"),
        (b"\xff\xfe\x00", "it is not JSON"),
        (b"[1, 2]", "not a result of kdleak"),
        (b"{}", "not a result of kdleak"),
        (b'{"format": 5}', "not a result of kdleak"),
        (
            b'{"format": "kdleak.dump", "format_version": "1.0"}',
            "it is kdleak.dump, not kdleak.hunt",
        ),
        (b'{"format": "other", "format_version": "1.0"}', "it is something else"),
        (b'{"format": "kdleak.hunt", "format_version": "2.0"}', "its format version is 2.0"),
        (b'{"format": "kdleak.hunt", "format_version": 1}', "its format version is none"),
        (b'{"format": "kdleak.hunt"}', "its format version is none"),
        (b'{"format": "kdleak.hunt", "format_version": "1.0", "x": NaN}', "it is not JSON"),
        (b"[" * 200_000, "nested too deeply"),
        (
            b'{"a": ' + b"9" * 5000 + b"}",
            # Pythons that set no bound for numbers read it.
            "it is not JSON" if hasattr(sys, "set_int_max_str_digits") else "not a result of",
        ),
    ],
)
def test_what_is_no_result_is_refused_in_one_sentence(data: bytes, words: str) -> None:
    with pytest.raises(UsageError, match=r"reading some\.json") as raised:
        parse_result(data, "some.json", kinds=(HUNT,))
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_what_a_shell_made_of_the_text_is_read(encoding: str) -> None:
    data = json.dumps(sample()).encode(encoding)
    assert parse_result(data, "x", kinds=(HUNT,)).text("format") == HUNT
    assert is_json_result(data[:64])


def test_a_newer_minor_version_with_more_in_it_is_read() -> None:
    document = {**sample(), "format_version": "1.7", "later": {"more": [1]}}
    assert parse_result(json.dumps(document).encode(), "x", kinds=(HUNT,)).text("format") == HUNT


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "big.json"
    file.write_bytes(b" " * (3 << 20))
    with pytest.raises(UsageError, match="too large"):
        read_result(file, kinds=(HUNT,), max_bytes=2 << 20)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.json"):
        read_result(tmp_path / "none.json", kinds=(HUNT,))
    with pytest.raises(UsageError, match="reading"):
        read_result(tmp_path, kinds=(HUNT,))


def test_fields_are_checked_when_they_are_read() -> None:
    one = node({"a": {"t": "x", "i": 5, "n": 1.5, "f": True, "l": [{}], "none": None}}).node("a")
    assert (one.text("t"), one.integer("i"), one.number("n"), one.flag("f")) == ("x", 5, 1.5, True)
    assert one.number("i") == 5.0
    assert one.text("gone", "d") == "d"
    assert one.integer("none", 3) == 3
    assert one.find_node("none") is None
    assert one.nodes("gone") == []
    assert one.nodes("l")[0].path == "a.l[0]"
    for read in (
        lambda: one.text("i"),
        lambda: one.text("gone"),
        lambda: one.text("i", "d"),
        lambda: one.integer("n"),
        lambda: one.integer("f"),
        lambda: one.number("t"),
        lambda: one.number("f"),
        lambda: one.flag("i"),
        lambda: one.node("t"),
        lambda: one.nodes("t"),
        lambda: one.texts("l"),
        lambda: one.numbers("l"),
        lambda: one.number_pairs("l"),
    ):
        with pytest.raises(UsageError, match=r"reading test\.json: a\.\w+ is not "):
            read()


@pytest.mark.parametrize("value", [1e400, float("nan"), 10**40, -(10**40)])
def test_numbers_beyond_all_bounds_are_refused(value: float) -> None:
    one = node({"n": value, "l": [value]})
    for read in (lambda: one.number("n"), lambda: one.numbers("l")):
        with pytest.raises(UsageError):
            read()
    with pytest.raises(UsageError):
        node({"i": 10**40}).integer("i")


def test_a_crash_dump_is_not_json() -> None:
    assert not is_json_result(b"PAGEDU64" + bytes(56))
    assert not is_json_result(b"")
    assert is_json_result(b'  \n{"format"')
