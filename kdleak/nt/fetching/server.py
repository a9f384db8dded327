"""Fetching PDBs along a symbol path, web stores included, into the stores on their left.

Only what was asked for explicitly gets here: nothing else in kdleak touches the network for
symbols. What is fetched is kept only after its GUID and age were read back.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from kdleak.nt.fetching.http import FetchLimits, TransferError, Transport, WebClient
from kdleak.nt.fetching.names import is_foreign_path, is_safe_file_name, printable
from kdleak.nt.fetching.store import PartialFile, folder_in, install, partial_file, why_not
from kdleak.nt.fetching.web import Wanted, WebStore, expand_packed
from kdleak.nt.pdb import require_reader
from kdleak.nt.pe import PdbIdentity
from kdleak.nt.symbol_path import (
    CACHE_VARIABLE,
    MICROSOFT_SERVER,
    Element,
    ElementKind,
    Place,
    PlaceKind,
    default_cache,
    find_pdb_files,
    parse_elements,
)

_GUID = re.compile(r"[0-9A-F]{32}")
_LONGEST_POINTER = 0x1000


class SymbolFetcher:
    """Finds PDBs along a symbol path and fetches what only a web store has.

    A chain is searched left to right, and a hit is copied into every store on its left and into
    the ``cache*`` folders before it. A server that does not have a file, or cannot be reached, is
    not asked for it again.

    Args:
        symbol_path: in the grammar of ``_NT_SYMBOL_PATH``; "" is Microsoft's server.
        narrate: takes a sentence before each download.
        cache: the default store; None for ``default_cache()``.
        transport: sends requests; None for the package requests.
        limits: what a server may cost.
        clock: seconds, monotonic.
        sleep: waits a number of seconds.

    Attributes:
        remarks: what failed and what to do about it, one sentence each.

    Raises:
        MissingDependency: purepdb is not installed, or the path has a web store and requests
            is not.
    """

    def __init__(
        self,
        symbol_path: str,
        *,
        narrate: Callable[[str], None],
        cache: Path | None = None,
        transport: Transport | None = None,
        limits: FetchLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.remarks: list[str] = []
        self._cache = cache if cache is not None else default_cache()
        self._elements = parse_elements(symbol_path.strip() or MICROSOFT_SERVER, self._cache)
        self._limits = limits if limits is not None else FetchLimits()
        self._found: dict[tuple[str, str], Path | None] = {}
        self._transport = transport
        require_reader()
        servers = [
            place.location
            for element in self._elements
            for place in element.stores
            if place.kind is PlaceKind.WEB
        ]
        if servers and self._transport is None:
            from kdleak.nt.fetching.requests_transport import RequestsTransport  # noqa: PLC0415 - heavy

            self._transport = RequestsTransport()
        self._servers: dict[str, WebStore] = {}
        if self._transport is not None:
            client = WebClient(self._transport, self._limits, clock, sleep)
            self._servers = {
                base: WebStore(base, client, narrate=narrate, remark=self._remark)
                for base in servers
            }

    # -- asking

    def pdb(self, identity: PdbIdentity) -> Path | None:
        """The PDB of an image on this machine, fetched if need be; None when no store has it.

        Never raises for what a server or a store does; ``remarks`` say it.
        """
        name = identity.file_name
        if _GUID.fullmatch(identity.guid) is None or not (
            is_safe_file_name(name) and name.lower().endswith(".pdb")
        ):
            self._remark(f"{printable(name)!r} is no name of a PDB that is asked a server for")
            return None
        asked = (name.lower(), identity.key)
        if asked not in self._found:
            try:
                self._found[asked] = self._search(Wanted(identity, name))
            finally:
                if self._transport is not None:
                    self._transport.close()
        return self._found[asked]

    def keep(self, identity: PdbIdentity, path: Path) -> None:
        """Copy a PDB that was found in a local store into the stores on its left."""
        caches: list[Place] = []
        for element in self._elements:
            left = list(caches)
            for place in element.stores:
                if place.kind is not PlaceKind.WEB and _lies_in(path, place):
                    self._copy(path, left, identity)
                    return
                left.append(place)
            if element.kind is ElementKind.CACHE:
                caches += element.stores

    def _search(self, wanted: Wanted) -> Path | None:
        caches: list[Place] = []
        for element in self._elements:
            found = self._search_element(element, wanted, caches)
            if found is not None:
                return found
            if element.kind is ElementKind.CACHE:
                caches += element.stores
        return None

    def _search_element(self, element: Element, wanted: Wanted, caches: list[Place]) -> Path | None:
        left = list(caches)
        for place in element.stores:
            if place.kind is PlaceKind.WEB:
                server = self._servers[place.location]
                found = server.fetch(wanted, lambda write: self._land(wanted, left, write))
            else:
                found = self._from_store(place, wanted, left)
            if found is not None:
                return found
            if place.kind is PlaceKind.STORE:
                left.append(place)
        return None

    # -- local stores

    def _from_store(self, place: Place, wanted: Wanted, left: list[Place]) -> Path | None:
        if is_foreign_path(place.location):
            return None
        for candidate in find_pdb_files((place,), wanted.identity, "sys"):
            if not why_not(candidate.path, wanted.identity):
                return self._copy(candidate.path, left, wanted.identity)
        folder = folder_in(Path(place.location).expanduser(), wanted.name, wanted.identity.key)
        packed, pointer = folder / wanted.packed, folder / "file.ptr"
        try:
            if packed.is_file():
                return self._land(
                    wanted,
                    [*left, place],
                    lambda part: expand_packed(packed, part, self._limits.size),
                )
            if not pointer.is_file():
                return None
            with pointer.open("rb") as stream:
                text = stream.read(_LONGEST_POINTER).decode("utf-8", "replace")
        except (OSError, TransferError) as error:
            self._remark(f"{wanted.name} in {place.location} cannot be used: {error}")
            return None
        return self._follow_local(text, wanted, place, left)

    def _follow_local(
        self, text: str, wanted: Wanted, place: Place, left: list[Place]
    ) -> Path | None:
        kind, _, value = text.strip().partition(":")
        if kind.upper() == "PATH" and value.strip():
            path = Path(value.strip())
            reason = why_not(path, wanted.identity)
            if not reason:
                return self._copy(path, left, wanted.identity)
            self._remark(
                f"{place.location} says that {wanted.name} is at {printable(value)}: {reason}"
            )
        elif text.strip():
            self._remark(f"{place.location} says of {wanted.name}: {printable(value or text)}")
        return None

    def _copy(self, path: Path, stores: list[Place], identity: PdbIdentity) -> Path:
        """Copy into stores; those that cannot be written are passed over. The first copy."""
        first: Path | None = None
        for place in stores:
            if place.kind is not PlaceKind.STORE or is_foreign_path(place.location):
                continue
            try:
                copy = install(path, Path(place.location).expanduser(), identity)
            except (OSError, RuntimeError):
                continue  # as WinDbg does: not everybody may write a shared store
            first = first or copy
        return first or path

    # -- keeping

    def _land(
        self, wanted: Wanted, stores: list[Place], write: Callable[[PartialFile], None]
    ) -> Path:
        """Have a PDB written into the first store that takes it, and copied into the others.

        Raises:
            TransferError: from ``write``; no store takes it; it is not the PDB wanted.
        """
        with ExitStack() as stack:
            place, partial = self._open(stack, wanted, stores)
            try:
                write(partial)
                partial.stream.flush()
                reason = why_not(partial.path, wanted.identity)
                if reason:
                    raise TransferError(reason, "tell who runs the server")
                path = partial.commit()
            except OSError as error:
                raise TransferError(
                    f"{place.location} cannot be written ({error.strerror or error})",
                    "make room there, or name another store in the symbol path",
                ) from error
        self._copy(path, [other for other in stores if other != place], wanted.identity)
        return path

    def _open(
        self, stack: ExitStack, wanted: Wanted, stores: list[Place]
    ) -> tuple[Place, PartialFile]:
        named = [place for place in stores if place.kind is PlaceKind.STORE]
        spare = [] if self._cache is None else [Place(PlaceKind.STORE, str(self._cache))]
        reasons = []
        for place in dict.fromkeys((*named, *spare)):
            try:
                root = Path(place.location).expanduser()
                entering = partial_file(root, wanted.name, wanted.identity.key)
                partial = stack.enter_context(entering)
            except (OSError, RuntimeError) as error:
                reasons.append(f"{place.location}: {getattr(error, 'strerror', '') or error}")
                continue
            if reasons:
                self._remark(
                    f"symbols are kept in {place.location}, because the stores before it cannot "
                    f"be written ({'; '.join(reasons)}): name one that can be in the symbol path"
                )
            return place, partial
        raise TransferError(
            f"no store can be written ({'; '.join(reasons) or 'there is none'})",
            f"name a folder for it with {CACHE_VARIABLE}",
        )

    def _remark(self, sentence: str) -> None:
        if sentence not in self.remarks:
            self.remarks.append(sentence)


def _lies_in(path: Path, place: Place) -> bool:
    try:
        return path.is_relative_to(Path(place.location).expanduser())
    except RuntimeError:
        return False
