"""Every !vm sample of the corpus, field by field, with and without undecoration."""

import pytest
from corpus_sample import CORPUS, differences, load

from kdleak.dialect.source import decode
from kdleak.dialect.vm import parse_vm

NUMBERS = range(66, 69)


def _compare(log, expected):
    assert len(log.usages) == 1
    usage = log.usages[0]
    assert not usage.rejected
    wanted = {"page_files": expected["page_files"], "alerts": expected["alerts"]}
    assert differences(usage, wanted) == []
    values = {value.label: {"pages": value.pages, "kb": value.kb} for value in usage.values}
    assert values == expected["values"]
    assert len(values) == len(usage.values)
    assert dict(usage.plain) == expected.get("plain", {})


@pytest.mark.parametrize("number", NUMBERS)
def test_sample_as_the_log_walker_sees_it(number):
    lines, expected = load(number)
    _compare(parse_vm(lines), expected)


@pytest.mark.parametrize("number", NUMBERS)
def test_sample_as_it_came(number):
    _, expected = load(number)
    (path,) = CORPUS.glob(f"{number:02d}-*.txt")
    _compare(parse_vm(decode(path.read_bytes())), expected)
