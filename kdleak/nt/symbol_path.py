"""Symbol paths as WinDbg writes them (``_NT_SYMBOL_PATH``), and finding a PDB along one.

Understood: plain folders, ``srv*`` and ``symsrv*dll*`` chains, ``cache*``. Here only what lies on
this machine (or a mounted share) is searched; ``symbol_server`` asks the web stores.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kdleak.nt.fetching.names import is_safe_file_name
from kdleak.nt.pe import PdbIdentity

_MAXIMUM_ELEMENTS = 256
_MAXIMUM_STORES = 16

MICROSOFT_SERVER = "https://msdl.microsoft.com/download/symbols"
"""The store that ``srv*`` alone means, as WinDbg's ``.symfix`` does."""

CACHE_VARIABLE = "KDLEAK_SYMBOL_CACHE"
"""Environment variable that names the default store instead of ``~/.cache/kdleak/symbols``."""


def default_cache() -> Path | None:
    """Folder that an empty store of a chain means; None where there is no home folder."""
    named = os.environ.get(CACHE_VARIABLE, "").strip()
    try:
        if named:
            return Path(named).expanduser()
        return Path.home() / ".cache" / "kdleak" / "symbols"
    except RuntimeError:  # no such user, no home
        return None


class PlaceKind(enum.Enum):
    """How files are laid out in a place."""

    FOLDER = "folder"
    STORE = "store"
    WEB = "web"


@dataclass(frozen=True)
class Place:
    """One folder or store of a symbol path.

    Attributes:
        kind: its layout.
        location: a folder, or the address of a web store, which may hold credentials.
    """

    kind: PlaceKind
    location: str


class ElementKind(enum.Enum):
    """What an element of a symbol path does."""

    FOLDER = "folder"
    CHAIN = "chain"
    """Searched left to right; what is found is copied into every store on its left."""
    CACHE = "cache"
    """Keeps what the elements on its right find."""


@dataclass(frozen=True)
class Element:
    """One part of a symbol path, between semicolons.

    Attributes:
        kind: what it does.
        stores: one place, of a chain all of them in order.
    """

    kind: ElementKind
    stores: tuple[Place, ...]


def parse_elements(text: str, cache: Path | None = None) -> tuple[Element, ...]:
    """Read a symbol path, in order.

    ``path := element { ';' element }``; ``element := 'cache*'[dir] | 'srv*'chain |
    'symsrv*'dll'*'chain | folder``; ``chain := store { '*' store }``. Keywords in any case. The
    dll of ``symsrv*`` makes no difference here.

    Args:
        text: the path.
        cache: what an empty store means; it also stands in front of a web store that is alone
            in its chain, because what is fetched is always kept. ``srv*`` alone is Microsoft's
            server with it. None leaves all these out.
    """
    elements: list[Element] = []
    for part in text.split(";")[:_MAXIMUM_ELEMENTS]:
        element = part.strip().strip('"').strip()
        if not element:
            continue
        parts = [item.strip() for item in element.split("*")[: _MAXIMUM_STORES + 2]]
        keyword = parts[0].lower()
        if len(parts) > 1 and keyword == "cache":
            found = Element(ElementKind.CACHE, _cache_stores(parts[1:], cache))
        elif len(parts) > 1 and keyword in ("srv", "symsrv"):
            stores = _chain(parts[1 if keyword == "srv" else 2 :], cache)
            found = Element(ElementKind.CHAIN, stores)
        else:
            place = _place(element, PlaceKind.FOLDER)
            kind = ElementKind.FOLDER if place.kind is PlaceKind.FOLDER else ElementKind.CHAIN
            found = Element(kind, _behind_cache((place,), cache))
        if found.stores:
            elements.append(found)
    return tuple(elements)


def _cache_stores(folders: list[str], cache: Path | None) -> tuple[Place, ...]:
    named = [Place(PlaceKind.STORE, folder) for folder in folders if folder and not _web(folder)]
    if not named and cache is not None:
        named = [Place(PlaceKind.STORE, str(cache))]
    return tuple(named)


def _chain(stores: list[str], cache: Path | None) -> tuple[Place, ...]:
    if cache is None:
        places = [_place(store, PlaceKind.STORE) for store in stores if store]
    elif not any(stores):
        places = [_place(MICROSOFT_SERVER, PlaceKind.STORE)]
    else:
        places = [_place(store or str(cache), PlaceKind.STORE) for store in stores]
    return _behind_cache(tuple(dict.fromkeys(places)), cache)


def _behind_cache(places: tuple[Place, ...], cache: Path | None) -> tuple[Place, ...]:
    """The chain, with the default store on the left of a web store that has none."""
    if cache is not None and places and places[0].kind is PlaceKind.WEB:
        return (Place(PlaceKind.STORE, str(cache)), *places)
    return places


def parse_symbol_path(text: str, cache: Path | None = None) -> tuple[Place, ...]:
    """Every place that a symbol path names, in order, each once.

    Args:
        text: see ``parse_elements``.
        cache: what an empty store means; None leaves it out.
    """
    elements = parse_elements(text, cache)
    return tuple(dict.fromkeys(place for element in elements for place in element.stores))


def _web(text: str) -> bool:
    return text.lower().startswith(("http:", "https:"))


def _place(text: str, kind: PlaceKind) -> Place:
    return Place(PlaceKind.WEB if _web(text) else kind, text)


@dataclass(frozen=True)
class Candidate:
    """A file that may be the PDB wanted.

    Attributes:
        path: where it lies.
        keyed: its folder is named after the identity wanted, so that it claims to match.
    """

    path: Path
    keyed: bool


def find_pdb_files(
    places: tuple[Place, ...], identity: PdbIdentity, image_extension: str
) -> Iterator[Candidate]:
    """Existing files that may be the PDB, best first.

    In a store: ``<pdb>/<key>/<pdb>``, or the same below a folder named after the first two
    characters. In a folder: that too, ``symbols/<ext>/<pdb>``, ``<ext>/<pdb>``, ``<pdb>``. Names
    are compared without regard to case, as the systems that fill stores do.

    Args:
        places: the symbol path.
        identity: from the image's CodeView record.
        image_extension: "sys", "exe", "dll", without the dot.
    """
    name = identity.file_name
    if not is_safe_file_name(name):
        return  # the image chose it, and it must not lead out of the places
    keyed: tuple[tuple[str, ...], ...] = (
        (name, identity.key, name),
        (name[:2], name, identity.key, name),
    )
    flat: tuple[tuple[str, ...], ...] = (
        ("symbols", image_extension, name),
        (image_extension, name),
        (name,),
    )
    for place in places:
        if place.kind is PlaceKind.WEB:
            continue
        root = Path(place.location).expanduser()
        for parts in keyed:
            path = _descend(root, parts)
            if path is not None:
                yield Candidate(path, keyed=True)
        if place.kind is PlaceKind.FOLDER:
            for parts in flat:
                path = _descend(root, parts)
                if path is not None:
                    yield Candidate(path, keyed=False)


def _descend(root: Path, parts: tuple[str, ...]) -> Path | None:
    """The file reached by following names in any case; None when there is none."""
    path = root
    for part in parts:
        if not part:
            continue
        below = _child(path, part)
        if below is None:
            return None
        path = below
    try:
        return path if path.is_file() else None
    except OSError:
        return None


def _child(folder: Path, name: str) -> Path | None:
    exact = folder / name
    try:
        if exact.exists():
            return exact
        wanted = name.casefold()
        return next((entry for entry in folder.iterdir() if entry.name.casefold() == wanted), None)
    except OSError:
        return None  # unreadable folders are passed over, as WinDbg does
