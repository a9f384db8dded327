"""Stores of symbols on this machine: where a PDB lies in one, and putting it there safely.

A file appears under its name only when it is whole and its GUID and age were read back: it is
written beside that place under a name of its own and then renamed, which no other process can
see half done.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kdleak.nt.fetching.names import is_foreign_path
from kdleak.nt.pdb import PdbUnreadableError, read_pdb
from kdleak.nt.pe import PdbIdentity

_PREFIX, _SUFFIX = ".kdleak-", ".part"
_STALE = 24 * 3600.0  # seconds after which a partial file belongs to a process that died
_TIERS = "index2.txt"
"""A file of this name in the root says that folders of the first two letters come first."""
_POINTER_SIZE = 8  # any: only names are undone by it, and none are read here


def why_not(path: Path, identity: PdbIdentity) -> str:
    """Why a file is not the PDB wanted, in one clause; "" when it is.

    Raises:
        MissingDependency: purepdb is not installed.
    """
    try:
        pdb = read_pdb(path, _POINTER_SIZE, names=False)
    except PdbUnreadableError as error:
        return f"it is no PDB that can be read ({error})"
    if pdb.belongs_to(identity.guid, identity.age):
        return ""
    return f"it is the PDB of another build ({pdb.guid}{pdb.ages[0]:X})"


def folder_in(root: Path, name: str, key: str) -> Path:
    """The folder that holds a PDB in a store."""
    with contextlib.suppress(OSError):
        if (root / _TIERS).is_file():
            return root / name[:2] / name / key
    return root / name / key


@dataclass
class PartialFile:
    """A file being written beside the place it is for.

    Attributes:
        path: its present name.
        target: the name it gets.
        stream: takes its contents.
    """

    path: Path
    target: Path
    stream: BinaryIO

    def commit(self) -> Path:
        """Give it its name; what was there is replaced.

        Raises:
            OSError: it cannot be.
        """
        self.stream.flush()
        os.fsync(self.stream.fileno())
        self.stream.close()
        try:
            self.path.replace(self.target)
        except PermissionError:
            # Windows: another process has just put the same file there and has it open.
            if not self.target.is_file():
                raise
        return self.target


@contextlib.contextmanager
def partial_file(root: Path, name: str, key: str) -> Iterator[PartialFile]:
    """A new file for a PDB in a store; unless it is committed, nothing stays behind.

    Args:
        root: the store; made when it is not there.
        name: the PDB's, a safe file name.
        key: its GUID and age.

    Raises:
        OSError: the store cannot be written.
    """
    if is_foreign_path(str(root)):
        raise NotADirectoryError(f"{root} is a path of Windows")
    folder = folder_in(root, name, key)
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        path = folder / f"{_PREFIX}{secrets.token_hex(8)}{_SUFFIX}"
        # Not tempfile's: a shared store is for everybody whom the umask allows.
        handle = os.open(
            path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666
        )
        with os.fdopen(handle, "w+b") as stream:
            partial = PartialFile(path, folder / name, stream)
            try:
                yield partial
            finally:
                stream.close()  # first: Windows removes no open file
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
    finally:
        for empty in made:
            with contextlib.suppress(OSError):
                empty.rmdir()  # refuses when anything is in it


def _sweep(folder: Path) -> None:
    """Remove what processes that died while downloading left."""
    with contextlib.suppress(OSError):
        for path in folder.glob(f"{_PREFIX}*{_SUFFIX}*"):
            if path.stat().st_mtime < time.time() - _STALE:
                path.unlink(missing_ok=True)


def install(source: Path, root: Path, identity: PdbIdentity) -> Path:
    """Copy a PDB into a store, unless it is there.

    Raises:
        OSError: the store cannot be written.
        MissingDependency: purepdb is not installed.
    """
    name = identity.file_name
    there = folder_in(root, name, identity.key) / name
    if there.is_file() and (there == source or not why_not(there, identity)):
        return there
    with partial_file(root, name, identity.key) as partial, source.open("rb") as original:
        shutil.copyfileobj(original, partial.stream)
        partial.stream.flush()
        reason = why_not(partial.path, identity)
        if reason:
            raise OSError(f"the copy of {source} is not whole: {reason}")
        return partial.commit()
