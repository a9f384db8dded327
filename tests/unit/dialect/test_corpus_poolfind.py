"""Every sample of ``!poolfind`` gives every expected value."""

from __future__ import annotations

import pytest
from corpus_sample import differences, load

from kdleak.dialect.poolfind import parse_poolfind


@pytest.mark.parametrize("number", [56, 57, 58])
def test_sample(number):
    lines, expected = load(number)
    found = parse_poolfind(lines)
    assert differences(found.searches, expected["searches"]) == []
    assert [entry.text for entry in found.unparsed] == []
