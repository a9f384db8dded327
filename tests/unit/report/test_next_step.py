"""Command lines that reports propose."""

from __future__ import annotations

import pytest

from kdleak.report.next_step import path_word, tag_word
from kdleak.tags import PoolTag


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        (b"Leak", "Leak"),
        (b"Irp ", "Irp"),
        (b".Db.", ".Db."),
        (b"\x01Db\x02", "0x2624401"),
        (b"A B ", "0x20422041"),
        (b"a'b$", "0x24622761"),
        (b"0x12", "0x32317830"),
    ],
)
def test_a_tag_without_quotes_reads_back(raw: bytes, word: str) -> None:
    tag = PoolTag.from_bytes(raw)
    assert tag_word(tag) == word
    assert PoolTag.parse(word) == tag


def test_paths() -> None:
    assert path_word("dumps/MEMORY.DMP") == "dumps/MEMORY.DMP"
    assert path_word(r"C:\\Windows\\MEMORY.DMP") == r"C:\\Windows\\MEMORY.DMP"
    assert path_word("my dumps/MEMORY.DMP") == '"my dumps/MEMORY.DMP"'
