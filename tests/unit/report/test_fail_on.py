"""``--fail-on``: one grammar for hunts and dumps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from result_documents import node
from test_hunt_diff import hunt

from kdleak.cli.fail_on import (
    Condition,
    ConditionKind,
    met_by_hunts,
    parse_conditions,
    refuse_for_dumps,
)
from kdleak.errors import UsageError
from kdleak.report.hunt_diff import compare_hunts


@pytest.mark.parametrize(
    ("text", "limit", "per_hour"),
    [
        ("growth:0", 0, False),
        ("growth:4096", 4096, False),
        ("growth:1KB", 1024, False),
        ("growth:1.5mb", 1.5 * (1 << 20), False),
        ("Growth:2GiB/h", 2 << 30, True),
        ("growth:7B", 7, False),
    ],
)
def test_sizes(text: str, limit: float, per_hour: bool) -> None:
    assert parse_conditions([text]) == (Condition(ConditionKind.GROWTH, limit, per_hour),)


@pytest.mark.parametrize(
    "text",
    ["", "leaks", "leak:1", "growth", "growth:", "growth:-1", "growth:1TB", "growth:1MB/s",
     "growth:1e9", "growth:nan", "leak,,worse", "growth:1 MB"],
)  # fmt: skip
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="it is no condition"):
        parse_conditions([text])


def test_conditions_add_up() -> None:
    kinds = [one.kind.value for one in parse_conditions(["leak, worse", "growth:1"])]
    assert kinds == ["leak", "worse", "growth"]


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse_conditions([text])
    except UsageError as error:
        assert "--fail-on" in str(error)  # noqa: PT017 - most texts are refused, some are not


@pytest.mark.parametrize(
    ("before", "after", "met"),
    [
        (hunt(), hunt(0), ""),
        (hunt(), hunt(30), "leak growth"),
        (hunt(), hunt(71), "leak worse growth"),
        (hunt(), hunt(6), "leak growth"),
        (hunt(0), hunt(), "leak worse new growth"),
        (hunt(), hunt(0, 5), "unknown"),
        (hunt(0), hunt(0), ""),
    ],
)
def test_what_hunts_meet(before: dict, after: dict, met: str) -> None:
    conditions = parse_conditions(["leak,worse,new,unknown,growth:1KB"])
    comparison = compare_hunts(node(before), node(after))
    found = [condition.kind.value for condition, _ in met_by_hunts(conditions, comparison)]
    assert " ".join(found) == met


def test_growth_has_a_limit_and_a_rate() -> None:
    comparison = compare_hunts(node(hunt()), node(hunt(30)))
    for text, met in (
        ("growth:9599", True),
        ("growth:9600", False),
        ("growth:1MB/h", True),
        ("growth:1GB/h", False),
    ):
        assert bool(met_by_hunts(parse_conditions([text]), comparison)) is met


def test_dumps_show_no_new_leak() -> None:
    refuse_for_dumps(parse_conditions(["leak,unknown,growth:1"]))
    for text in ("worse", "new"):
        with pytest.raises(UsageError, match="only two hunts do"):
            refuse_for_dumps(parse_conditions([text]))
