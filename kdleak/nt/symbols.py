"""Symbol tables of loaded images: loaded when first needed, searched by name and by address."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from kdleak.errors import MissingDependency, SymbolNotFound
from kdleak.model import Module, Symbolized, SymbolKind
from kdleak.nt.fetching.names import masked
from kdleak.nt.memory import MemoryReader
from kdleak.nt.names import preference
from kdleak.nt.pdb import PdbSymbol, PdbUnreadableError, read_pdb
from kdleak.nt.pe import Image, PdbIdentity, read_exports, read_image, read_pdb_identity
from kdleak.nt.symbol_path import Place, PlaceKind, find_pdb_files

_MAXIMUM_MISMATCHES = 8  # files with the right name that are opened before giving up


@dataclass(frozen=True)
class SymbolTable:
    """Names of one image.

    Attributes:
        kind: what they rest on.
        source: the PDB's path, or "exports".
        rvas: ascending.
        names: the name shown for each of ``rvas``.
        by_name: every name, in lower case, to its RVA.
    """

    kind: SymbolKind
    source: str
    rvas: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    by_name: dict[str, int] = field(default_factory=dict)

    def exactly_at(self, rva: int) -> str | None:
        """Name shown for an RVA that a symbol stands at."""
        index = bisect.bisect_left(self.rvas, rva)
        return self.names[index] if index < len(self.rvas) and self.rvas[index] == rva else None

    def nearest(self, rva: int) -> tuple[str, int] | None:
        """(name, bytes from it) of the last symbol at or below an RVA."""
        index = bisect.bisect_right(self.rvas, rva) - 1
        if index < 0:
            return None
        return self.names[index], rva - self.rvas[index]


def build_table(kind: SymbolKind, source: str, symbols: Iterable[PdbSymbol]) -> SymbolTable:
    """Order symbols by address, with one name to show for each."""
    best: dict[int, tuple[tuple[bool, bool, bool, int, str], str]] = {}
    by_name: dict[str, int] = {}
    for symbol in symbols:
        rank = preference(symbol.raw_name, function=symbol.function, private=symbol.private)
        known = best.get(symbol.rva)
        if known is None or rank < known[0]:
            best[symbol.rva] = (rank, symbol.name)
        for name in (symbol.name, symbol.raw_name):
            by_name.setdefault(name.lower(), symbol.rva)
    rvas = tuple(sorted(best))
    return SymbolTable(kind, source, rvas, tuple(best[rva][1] for rva in rvas), by_name)


class PdbFetcher(Protocol):
    """Gets PDBs that are not on this machine; ``symbol_server.SymbolFetcher`` is one.

    Attributes:
        remarks: what failed, one sentence each, growing.
    """

    remarks: list[str]

    def pdb(self, identity: PdbIdentity) -> Path | None:
        """The PDB, on this machine now; None when nobody has it."""
        ...

    def keep(self, identity: PdbIdentity, path: Path) -> None:
        """Copy one that was found locally to where the symbol path wants it kept."""
        ...


class SymbolLoader:
    """Finds and reads the symbols of an image.

    Args:
        memory: reads the target; what it reads here stays the same while the image is loaded.
        places: the symbol path.
        pointer_size: 4 or 8.
        fetch: asked where no local place has a PDB; None where nothing may be fetched.
    """

    def __init__(
        self,
        memory: MemoryReader,
        places: tuple[Place, ...],
        pointer_size: int,
        fetch: PdbFetcher | None = None,
    ) -> None:
        self._memory = memory
        self._places = places
        self._pointer_size = pointer_size
        self._fetch = fetch

    def advice(self, module: Module) -> str:
        """What to do for a module without symbols, one clause."""
        advice = (
            f"put the PDB of {module.file_name or module.name} into a folder or symbol store "
            "(WinDbg or symchk fetches it) and name that with -y or in _NT_SYMBOL_PATH"
        )
        return advice if self._fetch is not None else f"add --symbols to fetch it, or {advice}"

    def missing(self, module: Module) -> PdbIdentity | None:
        """The PDB of a module, when the image names one and no local place has it."""
        image = read_image(self._memory, module.base)
        identity = read_pdb_identity(self._memory, image) if image is not None else None
        if identity is None:
            return None
        for candidate in find_pdb_files(self._places, identity, "exe"):
            try:
                pdb = read_pdb(candidate.path, self._pointer_size, names=False)
            except PdbUnreadableError:
                continue
            if pdb.belongs_to(identity.guid, identity.age):
                return None
        return identity

    def load(self, module: Module, remark: Callable[[str], None]) -> SymbolTable:
        """The table of a module: from its PDB, else its exports, else empty.

        Args:
            module: the module.
            remark: called with one sentence for everything worth knowing.
        """
        image = read_image(self._memory, module.base)
        if image is None:
            remark(f"{module.name}: the image's headers cannot be read, so it has no symbols")
            return SymbolTable(SymbolKind.MODULE, "")
        identity = read_pdb_identity(self._memory, image)
        if identity is None:
            remark(f"{module.name}: the image does not say which PDB is its own")
        else:
            table = self._from_pdb(module, identity, remark)
            if table is not None:
                return table
        return self._from_exports(module, image, remark)

    def _from_pdb(
        self, module: Module, identity: PdbIdentity, remark: Callable[[str], None]
    ) -> SymbolTable | None:
        extension = module.file_name.rsplit(".", 1)[-1].lower() if "." in module.file_name else ""
        refused: list[str] = []
        for candidate in find_pdb_files(self._places, identity, extension):
            table = self._read(candidate.path, identity, refused)
            if table is not None:
                if self._fetch is not None:
                    self._fetch.keep(identity, candidate.path)
                return table
            if len(refused) >= _MAXIMUM_MISMATCHES:
                break
        if self._fetch is not None:
            said = len(self._fetch.remarks)
            path = self._fetch.pdb(identity)
            for sentence in self._fetch.remarks[said:]:
                remark(f"{module.name}: {sentence}")
            table = self._read(path, identity, refused) if path is not None else None
            if table is not None:
                return table
        remark(self._missing(module, identity, refused))
        return None

    def _read(self, path: Path, identity: PdbIdentity, refused: list[str]) -> SymbolTable | None:
        """The names of a PDB; None, and the reason in ``refused``, when it is not the one."""
        try:
            pdb = read_pdb(path, self._pointer_size, (identity.guid, identity.age))
        except MissingDependency as error:
            # As good as too many mismatches: no other file will fare better.
            refused += [f"{path} was not read: {error.came_back}"] * _MAXIMUM_MISMATCHES
            return None
        except PdbUnreadableError as error:
            refused.append(f"{path} cannot be used: {error}")
            return None
        if pdb.belongs_to(identity.guid, identity.age):
            return build_table(SymbolKind.PDB, str(path), pdb.symbols)
        refused.append(f"{path} belongs to another build ({pdb.guid}{pdb.ages[0]:X})")
        return None

    def _missing(self, module: Module, identity: PdbIdentity, refused: list[str]) -> str:
        text = f"{module.name}: {identity.file_name} {identity.key} not found"
        if refused:
            text += f"; {'; '.join(dict.fromkeys(refused))}"
        elif not self._places and self._fetch is None:
            return f"{text}; no symbol path was given"
        web = [masked(place.location) for place in self._places if place.kind is PlaceKind.WEB]
        local = [place.location for place in self._places if place.kind is not PlaceKind.WEB]
        if local and not refused:
            text += f"; searched {', '.join(local)}"
        if web and self._fetch is None:
            text += f"; not asked: {', '.join(web)} (add --symbols to fetch it)"
        return text

    def _from_exports(
        self, module: Module, image: Image, remark: Callable[[str], None]
    ) -> SymbolTable:
        symbols = [
            PdbSymbol(rva, name, function=True, private=False, raw_name=name)
            for rva, name in read_exports(self._memory, image)
        ]
        if not symbols:
            return SymbolTable(SymbolKind.MODULE, "")
        remark(f"{module.name}: only its {len(symbols)} exported names are known")
        return build_table(SymbolKind.EXPORT, "exports", symbols)


class Symbols:
    """Names and addresses over all modules of a target.

    Attributes:
        remarks: what loading had to say, oldest first.
    """

    def __init__(self, loader: SymbolLoader) -> None:
        self.remarks: list[str] = []
        self._loader = loader
        self._modules: tuple[Module, ...] = ()
        self._starts: list[int] = []
        self._sorted: list[Module] = []
        self._tables: dict[int, SymbolTable] = {}

    def set_modules(self, modules: tuple[Module, ...]) -> None:
        """Take a new module list; tables of images that went away are dropped."""
        known = {(module.base, module.size, module.name): module for module in self._modules}
        self._modules = modules
        self._sorted = sorted(modules, key=lambda module: module.base)
        self._starts = [module.base for module in self._sorted]
        stay = {m.base for m in modules if (m.base, m.size, m.name) in known}
        self._tables = {base: table for base, table in self._tables.items() if base in stay}

    def forget_tables(self) -> None:
        """Load every table anew when it is next needed."""
        self._tables.clear()
        self.remarks.clear()

    def drop(self, base: int) -> None:
        """Forget the table of the image at a load address: it was unloaded."""
        self._tables.pop(base, None)

    def is_loaded(self, module: Module) -> bool:
        """Whether a module's table is there already."""
        return module.base in self._tables

    def module_named(self, name: str) -> Module | None:
        """The module of a name, in any case."""
        wanted = name.strip().lower()
        return next((item for item in self._modules if item.name.lower() == wanted), None)

    def module_at(self, address: int) -> Module | None:
        """The module an address lies in."""
        index = bisect.bisect_right(self._starts, address) - 1
        if index >= 0 and address in self._sorted[index]:
            return self._sorted[index]
        return None

    def missing(self, module: Module) -> PdbIdentity | None:
        """The PDB of a module, when the image names one and no local place has it."""
        return self._loader.missing(module)

    def table(self, module: Module) -> SymbolTable:
        """The symbols of a module, loaded now if they were not."""
        table = self._tables.get(module.base)
        if table is None:
            table = self._loader.load(module, self.remarks.append)
            self._tables[module.base] = table
        return table

    def address(self, name: str) -> int:
        """Address of ``module!name`` (or ``name``: nt's).

        Raises:
            SymbolNotFound: with what was searched.
        """
        module_name, bang, symbol = name.partition("!")
        if not bang:
            module_name, symbol = "nt", name
        module = self.module_named(module_name)
        if module is None:
            raise SymbolNotFound(
                f"looking up {name}",
                f"no module is called {module_name}",
                "check the name in the list of modules",
            )
        table = self.table(module)
        rva = table.by_name.get(symbol.strip().lower())
        if rva is not None:
            return module.base + rva
        if table.kind is SymbolKind.PDB:
            raise SymbolNotFound(
                f"looking up {name}", f"it is not in {table.source}", "check the spelling"
            )
        reason = next((r for r in self.remarks if r.startswith(f"{module.name}: ")), "")
        raise SymbolNotFound(
            f"looking up {name}",
            reason.partition(": ")[2] or "the module has no symbols",
            self._loader.advice(module),
        )

    def nearest(self, address: int) -> Symbolized:
        """The nearest name at or below an address."""
        module = self.module_at(address)
        if module is None:
            return Symbolized(address)
        table = self.table(module)
        found = table.nearest(address - module.base)
        if found is None:
            return Symbolized(address, module.name, "", address - module.base, SymbolKind.MODULE)
        return Symbolized(address, module.name, found[0], found[1], table.kind)
