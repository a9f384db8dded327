"""Fixtures of the practice target's tests, and readers that share no code with what they test."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pytest

from kdleak.practice.machine import PracticeMachine
from kdleak.practice.workload import Workload

SMALL = Workload(population=5)
"""Boots fast; everything but the amount of memory is as by default."""

# Row size, then (offset, format) of key and of allocs, frees, bytes in each pool; nt's own types.
LAYOUTS = {
    15063: (0x28, "<III4xqIIq"),
    19045: (0x38, "<I4xqQQqQQ"),
    22621: (0x50, "<I4xqQQqQQ"),
    26100: (0x50, "<I4xqQQqQQ"),
}


@dataclass(frozen=True)
class Row:
    """One row of a tag table."""

    key: int
    nonpaged_allocs: int
    nonpaged_frees: int
    nonpaged_bytes: int
    paged_allocs: int
    paged_frees: int
    paged_bytes: int


class TableReader:
    """Reads the tag tables of a machine."""

    def __init__(self, machine: PracticeMachine) -> None:
        self.machine = machine
        self.row_size, self._format = LAYOUTS[machine.build]
        self.size = machine.read_u64("PoolTrackTableSize")

    def tables(self) -> list[int]:
        raw = self.machine.read_virtual(self.machine.symbol("ExPoolTagTables"), 0x800 * 8)
        return [address for (address,) in struct.iter_unpack("<Q", raw) if address]

    def rows(self, table: int, count: int | None = None) -> list[Row]:
        wanted = (count or self.size) * self.row_size
        raw = self.machine.read_virtual(table, wanted)
        assert len(raw) == wanted
        return [self._row(raw, at) for at in range(0, wanted, self.row_size)]

    def _row(self, raw: bytes, at: int) -> Row:
        values = struct.unpack_from(self._format, raw, at)
        if self.row_size == 0x28:
            key, np_allocs, np_frees, np_bytes, p_allocs, p_frees, p_bytes = values
        else:
            key, np_bytes, np_allocs, np_frees, p_bytes, p_allocs, p_frees = values
        return Row(key, np_allocs, np_frees, np_bytes, p_allocs, p_frees, p_bytes)

    def sums(self) -> dict[int, Row]:
        """Key to counters summed over processors, 32-bit counters taken modulo 2**32."""
        found: dict[int, list[int]] = {}
        for table in self.tables():
            for row in self.rows(table):
                if row.key:
                    values = [
                        row.nonpaged_allocs, row.nonpaged_frees, row.nonpaged_bytes,
                        row.paged_allocs, row.paged_frees, row.paged_bytes,
                    ]  # fmt: skip
                    total = found.setdefault(row.key, [0] * 6)
                    found[row.key] = [one + two for one, two in zip(total, values, strict=True)]
        if self.row_size == 0x28:
            for total in found.values():
                for index in (0, 1, 3, 4):
                    total[index] &= 0xFFFFFFFF
        return {key: Row(key, *total) for key, total in found.items()}


@pytest.fixture
def machine():
    with PracticeMachine(workload=SMALL) as booted:
        yield booted


@pytest.fixture
def boot():
    """Boots machines and closes them at the end."""
    booted: list[PracticeMachine] = []

    def make(**settings: object) -> PracticeMachine:
        settings.setdefault("workload", SMALL)
        booted.append(PracticeMachine(**settings))
        return booted[-1]

    yield make
    for one in booted:
        one.close()


@pytest.fixture
def read_tables():
    return TableReader


@pytest.fixture
def small() -> Workload:
    return SMALL
