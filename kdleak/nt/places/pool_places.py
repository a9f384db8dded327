"""Where nt's pool variables are: by its symbols, by the debugger data block, or by what they hold.

A dump often comes without symbols, and the debugger data block names one of the variables only.
The others are found by their contents: nt's data are searched for pointers to memory that is a
tag table, or the table of big blocks, beyond doubt. Where two different things fit, neither is
taken.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from kdleak.errors import MemoryUnreadable, SymbolNotFound, format_address
from kdleak.nt.kdbg import FIELDS, DebuggerData
from kdleak.nt.layouts import big_page_layout, tracker_candidates
from kdleak.nt.memory import MemoryReader, read_pointer
from kdleak.nt.pe import Image
from kdleak.nt.places.big_page_search import BigPageSearch, ProvedBigPageTable
from kdleak.nt.places.image_data import ImageData
from kdleak.nt.places.tag_table_places import (
    FIRST_BUILD_WITH_TABLES,
    TABLE,
    TABLES,
    TagTablePlaces,
    size_variables,
)
from kdleak.nt.places.tag_table_search import FEW_KEYS, TableArray, TagTableSearch

TABLE_SIZE = "nt!PoolTrackTableSize"
TABLE_MASK = "nt!PoolTrackTableMask"
BIG_PAGES = "nt!PoolBigPageTable"
BIG_PAGES_SIZE = "nt!PoolBigPageTableSize"

_NO_VARIABLES = frozenset({"KernBase", "BreakpointWithStatus", "PteBase"})
"""Fields of KDBG that are not the address of what they are named after."""
_BY_CONTENTS = (TABLE, TABLE_SIZE, TABLE_MASK, TABLES, BIG_PAGES, BIG_PAGES_SIZE)
_SPELLING = {name.lower(): name for name in (*_BY_CONTENTS, *(f"nt!{field}" for field in FIELDS))}
"""Names are taken in any case, as WinDbg does."""


class Way(enum.Enum):
    """What the place of a variable rests on."""

    SYMBOL = "symbols"
    DEBUGGER_DATA = "the debugger data block"
    CONTENTS = "contents"


@dataclass(frozen=True)
class _Place:
    address: int
    way: Way


class PoolPlaces:
    """Addresses of nt's pool variables; ``symbol`` is what the readers of the tables take.

    Args:
        memory: reads the target, which stands still.
        image: nt's headers; None where they are not known: nothing is searched for then.
        build: Windows build number.
        pointer_size: 4 or 8.
        processors: logical processors, 0 where unknown.
        symbol: address of ``nt!Name`` from nt's symbols, raising ``SymbolNotFound``; None where
            there are no symbols.
        debugger_data: KDBG, None where it was not found.

    Attributes:
        remarks: how things were found and what was not, one sentence each.
    """

    def __init__(
        self,
        memory: MemoryReader,
        image: Image | None,
        *,
        build: int,
        pointer_size: int,
        processors: int = 0,
        symbol: Callable[[str], int] | None = None,
        debugger_data: DebuggerData | None = None,
    ) -> None:
        self.remarks: list[str] = []
        self._memory = memory
        self._image = image
        self._build = build
        self._pointer_size = pointer_size
        self._processors = processors
        self._symbol = symbol
        self._kdbg = debugger_data
        self._places: dict[str, _Place] = {}
        self._done: set[str] = set()
        self._image_data: ImageData | None = None
        self._tag_places: TagTablePlaces | None = None
        self._array: TableArray | None = None

    # -- what callers ask

    def symbol(self, name: str) -> int:
        """Address of ``nt!Name``.

        Raises:
            SymbolNotFound: no symbol tells, KDBG does not name it, and it cannot be told by
                what it holds (or is none of the variables that can).
        """
        name = _SPELLING.get(name.lower(), name)
        place = self._places.get(name)
        if place is None:
            place = self._find(name)
            self._places[name] = place
        return place.address

    def find(self, name: str) -> int | None:
        """As ``symbol``; None where that raises."""
        try:
            return self.symbol(name)
        except SymbolNotFound:
            return None

    def how(self, name: str) -> Way:
        """What the place of a variable rests on.

        Raises:
            SymbolNotFound: as ``symbol``.
        """
        self.symbol(name)
        return self._places[_SPELLING.get(name.lower(), name)].way

    @property
    def processors(self) -> int:
        """Slots of nt!ExPoolTagTables to read: the processors, or more where more have tables."""
        try:
            address = self.symbol(TABLES)
        except SymbolNotFound:
            return self._processors
        array = self._array
        if array is None or array.address != address:
            array = self._array_by_symbol(address)
        return max(self._processors, len(array.tables)) if array else self._processors

    # -- the ways, best first

    def _find(self, name: str) -> _Place:
        if self._symbol is not None:
            try:
                return self._readable(name, _Place(self._symbol(name), Way.SYMBOL))
            except SymbolNotFound:
                pass
        if name in (TABLE, TABLES, TABLE_SIZE, TABLE_MASK):
            self._find_tag_tables()
        elif name in (BIG_PAGES, BIG_PAGES_SIZE):
            self._find_big_pages()
        elif self._named_by_kdbg(name):
            return _Place(self._named_by_kdbg(name), Way.DEBUGGER_DATA)
        place = self._places.get(name)
        if place is None:
            raise self._not_found(name)
        return place

    def _not_found(self, name: str) -> SymbolNotFound:
        if self._image is None:
            return SymbolNotFound(
                f"looking for {name}",
                "nt itself was not found in the dump's memory",
                "see whether the file was copied whole; if it was, the pages are not in the dump",
            )
        return SymbolNotFound(
            f"looking for {name}",
            "no symbols of nt tell where it is, and nothing in nt's data is it beyond doubt",
            "give a symbol path that has nt's PDB (-y or _NT_SYMBOL_PATH)",
        )

    def _readable(self, name: str, place: _Place) -> _Place:
        """nt!ExPoolTagTables in place of nt!PoolTrackTable where only its page is there."""
        if name != TABLE or self._pointer(place.address) is not None or self._symbol is None:
            return place
        try:
            other = self._symbol(TABLES)
        except SymbolNotFound:
            return place
        if self._pointer(other) is None:
            return place
        self._remark(f"{TABLE} is not readable; the first of {TABLES} is the same table")
        return _Place(other, Way.SYMBOL)

    def _named_by_kdbg(self, name: str) -> int:
        module, bang, field = name.partition("!")
        if self._kdbg is None or not bang or module != "nt":
            return 0
        if field not in FIELDS or field in _NO_VARIABLES:
            return 0
        return self._kdbg.field(field)

    # -- the tag tables

    def _find_tag_tables(self) -> None:
        if "tag tables" in self._done:
            return
        self._done.add("tag tables")
        data = self._data()
        found = self._tag_tables().locate(self._named_by_kdbg(TABLE))
        if found is None:
            return
        self._array = found.array
        way = Way.DEBUGGER_DATA if found.trusted else Way.CONTENTS
        self._set(TABLE, _Place(found.variable, way))
        if found.array is not None:
            self._set(TABLES, _Place(found.array.address, Way.CONTENTS))
        elif self._processors != 1 and self._build >= FIRST_BUILD_WITH_TABLES:
            self._remark(f"{TABLES} was not found")
        if data is not None:
            pair = size_variables(data, found.table, found.variable)
            if pair is not None:
                self._set(TABLE_SIZE, _Place(pair[0], Way.CONTENTS))
                self._set(TABLE_MASK, _Place(pair[1], Way.CONTENTS))
        self._remark(
            f"the tag tables were found by {way.value}: {found.table.fit:.0%} of the tags of the "
            f"first one, at {format_address(found.table.address)}, lie where the kernel's hash "
            "puts them"
        )

    def _array_by_symbol(self, address: int) -> TableArray | None:
        """How many slots of nt!ExPoolTagTables have tables, where its symbol is known."""
        pointer = self._pointer(address)
        if not pointer or self._data() is None:
            return None
        search = self._tag_tables().search
        table = search.prove(pointer, FEW_KEYS)
        return search.array_at(address, table) if table is not None else None

    # -- the table of big blocks

    def _find_big_pages(self) -> None:
        if "big pages" in self._done:
            return
        self._done.add("big pages")
        data = self._data()
        if data is None:
            return
        layout = big_page_layout(self._build, self._pointer_size)
        search = BigPageSearch(self._memory, data, layout, self._build)
        table = self._known_big_pages(search) or self._one_big_page_table(search)
        if table is None:
            return
        if BIG_PAGES not in self._places:
            self._set(BIG_PAGES, _Place(data.places_of(table.address)[0], Way.CONTENTS))
        near = self._places[BIG_PAGES].address
        sizes = data.places_of(table.rows)
        if not sizes:
            self._remark(f"no variable of nt holds the {table.rows:,} rows of the big page table")
            return
        tags = (self.find(name) for name in (TABLE, TABLE_SIZE, TABLE_MASK))
        anchors = [near, *(at for at in tags if at is not None)]
        best = min(sizes, key=lambda at: min(abs(at - anchor) for anchor in anchors))
        self._set(BIG_PAGES_SIZE, _Place(best, Way.CONTENTS))
        self._remark(
            f"{BIG_PAGES} was found by {Way.CONTENTS.value}: {table.fit:.0%} of the blocks looked "
            f"at lie where the kernel's hash puts them in {table.rows:,} rows"
        )

    def _known_big_pages(self, search: BigPageSearch) -> ProvedBigPageTable | None:
        """The table where only its size is not known by symbol."""
        address = self.find(BIG_PAGES)
        pointer = self._pointer(address) if address is not None else None
        return search.prove(pointer) if pointer else None

    def _one_big_page_table(self, search: BigPageSearch) -> ProvedBigPageTable | None:
        tables = search.all_tables()
        if len(tables) == 1:
            return tables[0]
        self._remark(
            f"{len(tables)} tables fit {BIG_PAGES} equally well: none is used"
            if tables
            else "no variable of nt points to a table of big blocks that is in the dump"
        )
        return None

    # -- small parts

    def _set(self, name: str, place: _Place) -> None:
        self._places.setdefault(name, place)

    def _remark(self, text: str) -> None:
        if text not in self.remarks:
            self.remarks.append(text)

    def _pointer(self, address: int) -> int | None:
        try:
            return read_pointer(self._memory, address, self._pointer_size)
        except MemoryUnreadable:
            return None

    def _data(self) -> ImageData | None:
        """Writable variables of nt variables; None where nothing of them is there."""
        if self._image_data is None and self._image is not None:
            self._image_data = ImageData(self._memory, self._image, self._pointer_size)
            if self._image_data.missing:
                self._remark(
                    f"{self._image_data.missing // 1024:,} KB of nt's variables are not in the dump"
                )
        found = self._image_data
        return found if found is not None and found.runs else None

    def _tag_tables(self) -> TagTablePlaces:
        if self._tag_places is None:
            data = self._data() or ImageData(self._memory, None, self._pointer_size)
            search = TagTableSearch(
                self._memory,
                data,
                tracker_candidates(self._build, self._pointer_size),
                self._pointer_size,
                self._processors,
            )
            self._tag_places = TagTablePlaces(
                self._memory,
                data,
                search,
                build=self._build,
                pointer_size=self._pointer_size,
                processors=self._processors,
                remark=self._remark,
            )
        return self._tag_places
