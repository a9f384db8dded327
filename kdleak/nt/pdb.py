"""Symbols of a PDB file, as a plain list; the format itself is purepdb's business."""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kdleak.errors import MissingDependency
from kdleak.nt.names import undecorated

_MAXIMUM_FILE = 4 << 30
_MAXIMUM_SYMBOLS = 4_000_000
_DAMAGE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    BufferError,
    EOFError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
)
"""What a parser may trip over in a damaged file."""


class PdbSymbol(NamedTuple):
    """One name. A tuple, because there are tens of thousands of them.

    Attributes:
        rva: offset from the image base.
        name: undecorated where that is simple.
        function: marked as code.
        private: from a procedure record (full PDBs only), not from the public names.
        raw_name: the name as it stands in the file.
    """

    rva: int
    name: str
    function: bool
    private: bool
    raw_name: str


@dataclass(frozen=True)
class PdbFile:
    """What was read from one PDB.

    Attributes:
        guid: 32 upper-case hexadecimal digits.
        ages: the ages it claims; the one of the debug information stream counts.
        symbols: unordered.
    """

    guid: str
    ages: tuple[int, ...]
    symbols: tuple[PdbSymbol, ...]

    def belongs_to(self, guid: str, age: int) -> bool:
        """Whether it is the PDB of the image that names this GUID and age."""
        return self.guid == guid and age in self.ages


class PdbUnreadableError(Exception):
    """The file is no PDB that can be read; the text says why in one clause."""


def require_reader() -> None:
    """Make sure that PDBs can be read.

    Raises:
        MissingDependency: purepdb is not installed.
    """
    try:
        import purepdb  # noqa: F401, PLC0415 - heavy, needs Python 3.11, and only wanted here
    except ImportError as error:
        raise MissingDependency(
            "reading a PDB",
            "the package purepdb is not installed",
            "install kdleak[native] with Python 3.11 or newer",
        ) from error


def read_pdb(
    path: Path,
    pointer_size: int,
    expected: tuple[str, int] | None = None,
    *,
    names: bool = True,
) -> PdbFile:
    """Read GUID, age and names.

    Args:
        path: the file.
        pointer_size: of the image, for undoing decorations.
        expected: GUID and age wanted; when the file has others its names are not read.
        names: whether to read them at all.

    Raises:
        PdbUnreadableError: damaged, too large, or of an unknown kind.
        MissingDependency: purepdb is not installed.
    """
    require_reader()
    import purepdb  # noqa: PLC0415 - heavy, needs Python 3.11, and only wanted here

    try:
        if path.stat().st_size > _MAXIMUM_FILE:
            raise PdbUnreadableError("larger than 4 GiB")
        with purepdb.PDB.open(str(path)) as pdb:
            info = pdb.info()
            guid = uuid.UUID(bytes_le=bytes(info.guid)).hex.upper()
            ages = tuple(dict.fromkeys((pdb.dbi.age, info.age)))
            found = PdbFile(guid, ages, ())
            if not names or (expected is not None and not found.belongs_to(*expected)):
                return found
            return PdbFile(guid, ages, tuple(_symbols(pdb, pointer_size)))
    except purepdb.PdbError as error:
        raise PdbUnreadableError(str(error)) from error
    except OSError as error:
        raise PdbUnreadableError(error.strerror or "cannot be opened") from error
    except _DAMAGE as error:
        # A damaged file must not end the session, whatever it trips in the parser.
        raise PdbUnreadableError(f"damaged ({type(error).__name__})") from error


def _symbols(pdb: object, pointer_size: int) -> list[PdbSymbol]:
    found: list[PdbSymbol] = []
    for records, private in (
        (pdb.public_symbols(), False),  # type: ignore[attr-defined]
        (pdb.module_procs(), True),  # type: ignore[attr-defined]
    ):
        for record in records:
            rva = pdb.to_rva(record.segment, record.offset)  # type: ignore[attr-defined]
            if rva is None or rva <= 0 or not record.name:
                continue
            function = private or record.is_function
            name = record.name if private else undecorated(record.name, pointer_size)
            found.append(PdbSymbol(rva, name, function, private, record.name))
            if len(found) >= _MAXIMUM_SYMBOLS:
                return found
    return found
