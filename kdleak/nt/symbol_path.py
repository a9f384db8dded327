"""Symbol paths as WinDbg writes them (``_NT_SYMBOL_PATH``), and finding a PDB along one.

Understood: plain folders, ``srv*`` and ``symsrv*dll*`` chains, ``cache*``. Only what lies on this
machine (or a mounted share) is searched; an http store is answered with a remark.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kdleak.nt.pe import PdbIdentity

_MAXIMUM_ELEMENTS = 256


class PlaceKind(enum.Enum):
    """How files are laid out in a place."""

    FOLDER = "folder"
    STORE = "store"
    WEB = "web"


@dataclass(frozen=True)
class Place:
    """One folder or store of a symbol path."""

    kind: PlaceKind
    location: str


def parse_symbol_path(text: str) -> tuple[Place, ...]:
    """Read a symbol path into the places to search, in order.

    ``path := element { ';' element }``; ``element := 'cache*'[dir] | 'srv*'chain |
    'symsrv*'dll'*'chain | folder``; ``chain := store { '*' store }``. Keywords in any case. Empty
    stores (WinDbg's own default folder) are left out.
    """
    places: list[Place] = []
    for part in text.split(";")[:_MAXIMUM_ELEMENTS]:
        element = part.strip().strip('"').strip()
        if not element:
            continue
        parts = element.split("*")
        keyword = parts[0].strip().lower()
        if len(parts) == 1:
            places.append(_place(element, PlaceKind.FOLDER))
        elif keyword in ("srv", "cache"):
            places += [_place(store, PlaceKind.STORE) for store in parts[1:] if store.strip()]
        elif keyword == "symsrv":
            places += [_place(store, PlaceKind.STORE) for store in parts[2:] if store.strip()]
        else:
            places.append(_place(element, PlaceKind.FOLDER))
    return tuple(dict.fromkeys(places))


def _place(text: str, kind: PlaceKind) -> Place:
    text = text.strip()
    if text.lower().startswith(("http:", "https:")):
        return Place(PlaceKind.WEB, text)
    return Place(kind, text)


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
    if not name or name in (".", ".."):
        return
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
