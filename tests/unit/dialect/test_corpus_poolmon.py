"""Every PoolMon sample of the corpus, field by field, with and without undecoration."""

import pytest
from corpus_sample import CORPUS, differences, load

from kdleak.dialect.poolmon import parse_poolmon
from kdleak.dialect.source import decode

NUMBERS = range(78, 87)


def _compare(log, expected):
    assert len(log.screens) == 1
    wanted = {"header": expected["header"], "rows": expected["rows"]}
    assert differences(log.screens[0], wanted) == []


@pytest.mark.parametrize("number", NUMBERS)
def test_sample_as_the_log_walker_sees_it(number):
    lines, expected = load(number)
    _compare(parse_poolmon(lines), expected)


@pytest.mark.parametrize("number", NUMBERS)
def test_sample_as_it_came(number):
    _, expected = load(number)
    (path,) = CORPUS.glob(f"{number:02d}-*.txt")
    _compare(parse_poolmon(decode(path.read_bytes())), expected)
