"""The user's own tag lists: ``pooltag.txt`` and ``localtag.txt``, found where debuggers keep them.

Microsoft's list comes with the Debugging Tools (``triage/pooltag.txt``) and the WDK; it is not
ours to ship. Looked for, in this order: the file the user names, ``%KDLEAK_POOLTAG%``, beside the
debugger in use, where the Windows Kits and the WinDbg package are installed. A ``localtag.txt``
beside a list holds the user's additions and is asked first.
"""

from __future__ import annotations

import functools
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, List, Mapping, Optional, Tuple

from kdleak.blamed import KnownOwner
from kdleak.dialect.pooltag import PoolTagEntry, PoolTagList, parse_pooltag
from kdleak.dialect.source import decode
from kdleak.errors import UsageError
from kdleak.quantities import amount
from kdleak.tags import PoolTag

POOLTAG_VARIABLE = "KDLEAK_POOLTAG"
"""Environment variable that names a list."""

_NAME = "pooltag.txt"
_LOCAL_NAME = "localtag.txt"
_LARGEST = 16 << 20
_PROGRAM_FILES = ("ProgramFiles(x86)", "ProgramFiles", "ProgramW6432")
_ARCHITECTURES = ("x64", "arm64", "x86")
_STORE_PACKAGES = "Microsoft.WinDbg*"


@dataclass(frozen=True)
class TagOwner:
    """What a list says about a tag.

    Attributes:
        tag: as the list writes it, wildcards included; four characters.
        binary: the driver as written; None where the list leaves it open.
        description: None where there is none.
        source: the list.
        others: further lines of the list about the same tag.
    """

    tag: str
    binary: Optional[str]
    description: Optional[str]
    source: Path
    others: int = 0

    @property
    def wildcard(self) -> bool:
        """The line stands for several tags."""
        return "?" in self.tag or "*" in self.tag

    def __str__(self) -> str:
        words = " - ".join(part for part in (self.binary, self.description) if part)
        if self.wildcard:
            words += f" (the list has '{self.tag}')"
        if self.others:
            words += f" (and {amount(self.others, 'more line')})"
        return words.strip()


@dataclass(frozen=True)
class TagLists:
    """Lists in the order in which they are asked.

    Attributes:
        lists: (file, contents).
        remarks: what could not be read, one sentence each.
    """

    lists: Tuple[Tuple[Path, PoolTagList], ...] = ()
    remarks: Tuple[str, ...] = ()

    @property
    def files(self) -> Tuple[Path, ...]:
        """The files."""
        return tuple(file for file, _ in self.lists)

    def owner_of(self, tag: PoolTag) -> Optional[TagOwner]:
        """What the first list that knows the tag says; an exact line wins over wildcards.

        None for a tag that no list has, or that holds bytes that are no text.
        """
        text = tag.text
        if PoolTag.from_bytes(text.encode("ascii")) != tag:
            return None
        matches = [(file, entries.find(text)) for file, entries in self.lists]
        matches = [(file, found) for file, found in matches if found]
        # A wildcard of the first list must not hide what another one says of this very tag.
        exact = [(file, found) for file, found in matches if not found[0].wildcard]
        for file, found in exact or matches:
            entry: PoolTagEntry = found[0]
            return TagOwner(entry.tag, entry.binary, entry.description, file, len(found) - 1)
        return None

    def known_owner(self, tag: PoolTag) -> Optional[KnownOwner]:
        """The same as a plain value for a result: without the folder of the list."""
        found = self.owner_of(tag)
        if found is None:
            return None
        return KnownOwner(
            found.tag, found.binary or "", found.description or "", found.source.name, str(found)
        )


def load_tag_lists(
    given: Optional[Path] = None,
    *,
    debugger: Optional[Path] = None,
    environ: Optional[Mapping[str, str]] = None,
    windows: Optional[bool] = None,
) -> TagLists:
    """Find and read the lists.

    Args:
        given: the file (or its folder) the user names; then nothing else is looked for.
        debugger: kd.exe or WinDbg in use; its folder is looked in.
        environ: environment variables; None for this process's.
        windows: look where Windows keeps programs; None: on Windows only.

    Raises:
        UsageError: the file the user names (here or in ``%KDLEAK_POOLTAG%``) cannot be read.
    """
    environ = os.environ if environ is None else environ
    named = given or (Path(environ[POOLTAG_VARIABLE]) if environ.get(POOLTAG_VARIABLE) else None)
    if named is not None:
        return _named(named)
    lists: List[Tuple[Path, PoolTagList]] = []
    remarks: List[str] = []
    windows = sys.platform == "win32" if windows is None else windows
    for folder in _folders(debugger, environ, windows=windows):
        for name in (_LOCAL_NAME, _NAME):
            file = folder / name
            if not _is_file(file):
                continue
            try:
                lists.append((file, _read(file)))
            except (OSError, ValueError) as error:
                remarks.append(f"{file} was not read: {error}")
        if any(file.name == _NAME for file, _ in lists):
            break  # another copy of the same list would say the same
    return TagLists(tuple(lists), tuple(remarks))


def _named(named: Path) -> TagLists:
    file = named
    lists = []
    try:
        if named.is_dir():
            file = named / _NAME
        beside = file.with_name(_LOCAL_NAME)
        if beside != file and _is_file(beside):
            lists.append((beside, _read(beside)))
        lists.append((file, _read(file)))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"reading the tag list {file}",
            getattr(error, "strerror", None) or str(error),
            "name a pooltag.txt with --pooltag: it comes with the Debugging Tools for Windows, "
            "in the folder triage",
        ) from error
    if not any(entries.entries for _, entries in lists):
        raise UsageError(
            f"reading the tag list {file}",
            "no line of it is 'Tag - driver - description'",
            "name a pooltag.txt",
        )
    return TagLists(tuple(lists))


def _read(file: Path) -> PoolTagList:
    if file.stat().st_size > _LARGEST:
        raise ValueError(f"it is larger than {_LARGEST >> 20} MB")
    return parse_pooltag(decode(file.read_bytes()))


def _is_file(file: Path) -> bool:
    try:
        return file.is_file()
    except OSError:
        return False


def _folders(
    debugger: Optional[Path], environ: Mapping[str, str], *, windows: bool
) -> Iterator[Path]:
    """Where a list may be, most likely first."""
    if debugger is not None:
        yield debugger.parent / "triage"
        yield debugger.parent
    if not windows:
        return
    bases = dict.fromkeys(environ[name] for name in _PROGRAM_FILES if environ.get(name))
    for base in bases:
        for kits in ("10", "8.1"):
            debuggers = Path(base) / "Windows Kits" / kits / "Debuggers"
            for architecture in _ARCHITECTURES:
                yield debuggers / architecture / "triage"
    yield from _store_packages(environ, tuple(bases))
    for base in bases:
        yield from _below(Path(base) / "Windows Kits" / "10" / "Tools", "*/*")
        yield from _below(Path(base), "Debugging Tools for Windows*/triage")


def _store_packages(environ: Mapping[str, str], bases: Tuple[str, ...]) -> Iterator[Path]:
    """The WinDbg of the Store: its folder lies below WindowsApps, which may not be listable."""
    for base in bases:
        for package in _below(Path(base) / "WindowsApps", _STORE_PACKAGES):
            for architecture in ("amd64", *_ARCHITECTURES):
                yield package / architecture / "triage"
            yield package / "triage"
    local = environ.get("LOCALAPPDATA")
    if local:
        yield Path(local) / "DBG" / "triage"


def _below(folder: Path, pattern: str) -> List[Path]:
    """Folders that match, newest name first; none where the folder cannot be listed."""
    try:
        return sorted(folder.glob(pattern), reverse=True)[:16]
    except OSError:
        return []


@functools.lru_cache(maxsize=1)
def _default_lists() -> TagLists:
    return load_tag_lists()


def owner_of(tag: PoolTag) -> Optional[TagOwner]:
    """What the lists on this machine say about a tag; they are looked for once.

    Raises:
        UsageError: ``%KDLEAK_POOLTAG%`` names a file that cannot be read.
    """
    return _default_lists().owner_of(tag)
