"""Which variables of nt lead to its tag tables, where no symbol tells.

nt!PoolTrackTable and the first slot of nt!ExPoolTagTables hold the same pointer; the slots behind
that lead to the tables of the other processors, which name the same tags in the same rows. That
tells the two apart, and both from any other pointer to a table or to what was one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kdleak.errors import MemoryUnreadable
from kdleak.nt.memory import MemoryReader, read_pointer
from kdleak.nt.places.image_data import ImageData
from kdleak.nt.places.tag_table_search import FEW_KEYS, ProvedTable, TableArray, TagTableSearch

TABLE = "nt!PoolTrackTable"
TABLES = "nt!ExPoolTagTables"

FIRST_BUILD_WITH_TABLES = 3790
"""Server 2003: XP has one table for all processors."""

_ARRAY_SLOTS = 64  # of nt!ExPoolTagTables on the kernels with the fewest
_MOST_PLACES = 256


@dataclass(frozen=True)
class LocatedTables:
    """The tag tables as found.

    Attributes:
        variable: address of nt!PoolTrackTable, or of another variable that holds the same.
        table: the first table.
        array: nt!ExPoolTagTables; None where it was not found.
        trusted: the debugger data block names the variable, and what it leads to is a table.
    """

    variable: int
    table: ProvedTable
    array: TableArray | None
    trusted: bool


class TagTablePlaces:
    """Finds nt!PoolTrackTable and nt!ExPoolTagTables.

    Args:
        memory: reads the target.
        data: nt's variables; empty where they are not known.
        search: over the same.
        build: Windows build number.
        pointer_size: 4 or 8.
        processors: logical processors, 0 where unknown.
        remark: takes one sentence for everything worth knowing.
    """

    def __init__(
        self,
        memory: MemoryReader,
        data: ImageData,
        search: TagTableSearch,
        *,
        build: int,
        pointer_size: int,
        processors: int,
        remark: Callable[[str], None],
    ) -> None:
        self.search = search
        self._memory = memory
        self._data = data
        self._build = build
        self._pointer_size = pointer_size
        self._processors = processors
        self._remark = remark

    def locate(self, named: int) -> LocatedTables | None:
        """The tables.

        Args:
            named: where the debugger data block says nt!PoolTrackTable is, 0 where it does not.
        """
        return self._by_name(named) or self._by_contents()

    def _by_name(self, named: int) -> LocatedTables | None:
        if not named:
            return None
        try:
            pointer = read_pointer(self._memory, named, self._pointer_size)
        except MemoryUnreadable:
            self._remark(f"the debugger data block's {TABLE} is not readable")
            return None
        table = self.search.prove(pointer, FEW_KEYS)
        if table is None:
            self._remark(
                f"the debugger data block's {TABLE} does not lead to a tag table: not believed"
            )
            return None
        arrays = self.search.arrays_of([table], leading=True)
        array = self._longest(arrays) if arrays else self._alone(table, named)
        return LocatedTables(named, table, array, True)

    def _by_contents(self) -> LocatedTables | None:
        tables = self.search.all_tables()
        if not tables:
            self._remark("no variable of nt points to a tag table that can be read")
            return None
        arrays = self.search.arrays_of(tables, leading=False)
        if not arrays:
            return self._single(tables)
        longest = self._longest(arrays)
        if longest is None:
            return None
        table = self.search.prove(longest.tables[0])
        return self._beside(table, longest) if table is not None else None

    def _longest(self, arrays: list[TableArray]) -> TableArray | None:
        """The list of tables with most of them: a part of it is no list of its own.

        Several with the same contents tell the same.
        """
        most = max(len(array.tables) for array in arrays)
        longest = [array for array in arrays if len(array.tables) == most]
        if len({array.tables for array in longest}) > 1:
            self._remark(
                f"{len(longest)} different lists of tables fit {TABLES} equally well: none is used"
            )
            return None
        return longest[0]

    def _alone(self, table: ProvedTable, but: int = 0) -> TableArray | None:
        """The list of a machine with one processor: a pointer with nothing but zeros behind it."""
        if self._processors != 1:
            return None
        width = self._pointer_size
        alone = [
            place
            for place in self._data.places_of(table.address)
            if place != but
            and not any(
                self._data.pointer_at(place + slot * width) for slot in range(1, _ARRAY_SLOTS)
            )
        ]
        return TableArray(alone[0], (table.address,), 0) if len(alone) == 1 else None

    def _beside(self, table: ProvedTable, array: TableArray) -> LocatedTables:
        """Take another variable that points to the first table for nt!PoolTrackTable.

        Where there are several, any will do, as they all say the same; the pool's variables lie
        close together.
        """
        others = [place for place in self._data.places_of(table.address) if place != array.address]
        if not others:
            self._remark(f"{TABLE} was not found; the first of {TABLES} is the same table")
        variable = min(others, key=lambda place: abs(place - array.address), default=array.address)
        return LocatedTables(variable, table, array, False)

    def _single(self, tables: list[ProvedTable]) -> LocatedTables | None:
        """The tables of other processors were not found, or there are none."""
        twice = [table for table in tables if len(self._data.places_of(table.address)) > 1]
        chosen = twice
        if not twice and (self._processors == 1 or self._build < FIRST_BUILD_WITH_TABLES):
            chosen = tables
        if len(chosen) != 1:
            self._remark(
                f"{len(tables)} tag tables are pointed to by nt, and which of them is {TABLE} "
                "cannot be told: none is used"
            )
            return None
        table = chosen[0]
        arrays = self.search.arrays_of([table], leading=True) if twice else []
        array = self._longest(arrays) if arrays else self._alone(table)
        if array is not None:
            return self._beside(table, array)
        return LocatedTables(self._data.places_of(table.address)[0], table, None, False)


def size_variables(data: ImageData, table: ProvedTable, near: int) -> tuple[int, int] | None:
    """Addresses of nt!PoolTrackTableSize and ...Mask: what they hold follows from the table.

    Where several variables hold these numbers, the two closest to each other are taken; all of
    them say the same.

    Args:
        data: nt's variables.
        table: the first tag table.
        near: address of nt!PoolTrackTable.
    """
    sizes = data.places_of(table.mask + 2)[:_MOST_PLACES]
    masks = data.places_of(table.mask)[:_MOST_PLACES]
    pairs = [(abs(one - other), abs(one - near), one, other) for one in sizes for other in masks]
    return min(pairs)[2:] if pairs else None
