"""Every !poolused sample of the corpus, field by field, with and without undecoration."""

import pytest
from corpus_sample import CORPUS, differences, load

from kdleak.dialect.poolused import parse_poolused
from kdleak.dialect.source import decode

NUMBERS = range(1, 13)
META = {"kind", "notes", "tables", "rejected", "arch"}


def _compare(lists, expected):
    if expected.get("rejected"):
        assert lists.rejected
        assert all(table.rows == () for table in lists.tables)
        return
    assert not lists.rejected
    tables = expected.get("tables", [expected])
    assert len(lists.tables) == len(tables)
    for table, one in zip(lists.tables, tables):
        wanted = {key: value for key, value in one.items() if key not in META}
        wanted.setdefault("filter", None)
        for row in wanted["rows"]:
            row.setdefault("unknown", False)
            row.setdefault("quoted_tag", None)
        assert differences(table, wanted) == []


@pytest.mark.parametrize("number", NUMBERS)
def test_sample_as_the_log_walker_sees_it(number):
    lines, expected = load(number)
    _compare(parse_poolused(lines), expected)


@pytest.mark.parametrize("number", NUMBERS)
def test_sample_as_it_came(number):
    _, expected = load(number)
    (path,) = CORPUS.glob(f"{number:02d}-*.txt")
    _compare(parse_poolused(decode(path.read_bytes())), expected)
