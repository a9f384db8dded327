"""The journal: what we changed in a target and how to undo it, on disk before the change.

One JSON file per armed target in a state directory. It is written whole, synchronised to the
disk before the first write to the target, and removed only after the restored value was read
back. Whatever kills this process, the next one finds what to repair. It never holds a key.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Type, Union

from kdleak.errors import JournalError, TargetBusy, format_address
from kdleak.journal_lock import FileLock
from kdleak.model import Architecture, TargetInfo
from kdleak.tags import PoolTag

FORMAT = "kdleak.journal"
FORMAT_VERSION = 1

_MAX_BYTES = 64 * 1024
_SUFFIX = ".json"
_PAST_SUFFIX = ".past"
_SECRET = re.compile(r"(key|password)\s*=\s*[^,;\s]*", re.IGNORECASE)


@dataclass(frozen=True)
class JournalEntry:
    """One change to one target.

    Attributes:
        where: the connection without its key.
        build: Windows build number.
        kernel_base: load address of nt, which tells one boot from another.
        architecture: machine.
        address: of nt!PoolHitTag.
        original: its 4 bytes before we came.
        armed: the 4 bytes we write.
        pid: process that wrote the entry.
        written_at: host wall clock, seconds since 1970 (UTC).
    """

    where: str
    build: int
    kernel_base: int
    architecture: Architecture
    address: int
    original: bytes
    armed: bytes
    pid: int
    written_at: float

    @property
    def tag(self) -> PoolTag:
        """The tag that was armed."""
        return PoolTag.from_bytes(self.armed)

    def same_boot(self, target: TargetInfo, address: int) -> bool:
        """Whether the entry is about this target since its last start."""
        return (self.build, self.kernel_base, self.architecture, self.address) == (
            target.build,
            target.kernel_base,
            target.architecture,
            address,
        )

    def to_json(self) -> str:
        """The file's text."""
        document = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "where": self.where,
            "target": {
                "build": self.build,
                "kernel_base": f"0x{self.kernel_base:x}",
                "architecture": self.architecture.value,
            },
            "symbol": "nt!PoolHitTag",
            "address": f"0x{self.address:x}",
            "original": self.original.hex(),
            "armed": self.armed.hex(),
            "pid": self.pid,
            "written_at": self.written_at,
        }
        return json.dumps(document, indent=2) + "\n"


@dataclass(frozen=True)
class JournalFile:
    """An entry and the file it came from."""

    path: Path
    entry: JournalEntry


@dataclass(frozen=True)
class DamagedFile:
    """A journal file that could not be understood; it is kept.

    Attributes:
        path: where it lies.
        why: what is wrong with it, one clause.
    """

    path: Path
    why: str


@dataclass(frozen=True)
class JournalScan:
    """All journal files of a state directory.

    Attributes:
        files: entries of targets that may still be armed.
        damaged: files that cannot be used.
        past: entries set aside because another boot answered on their connection.
    """

    files: Tuple[JournalFile, ...] = ()
    damaged: Tuple[DamagedFile, ...] = ()
    past: Tuple[JournalFile, ...] = ()


def state_directory(
    environ: Optional[Mapping[str, str]] = None, platform: str = sys.platform
) -> Path:
    r"""The folder journals live in.

    ``KDLEAK_STATE_DIR`` when set; else ``%LOCALAPPDATA%\kdleak`` on Windows and
    ``$XDG_STATE_HOME/kdleak`` (``~/.local/state/kdleak``) elsewhere.

    Raises:
        JournalError: there is no home folder to fall back on.
    """
    environment = os.environ if environ is None else environ
    chosen = environment.get("KDLEAK_STATE_DIR", "")
    if chosen:
        return Path(chosen)
    variable = "LOCALAPPDATA" if platform == "win32" else "XDG_STATE_HOME"
    base = environment.get(variable, "")
    if base and Path(base).is_absolute():
        return Path(base) / "kdleak"
    home = environment.get("USERPROFILE" if platform == "win32" else "HOME", "")
    if not home:
        try:
            home = str(Path.home())
        except RuntimeError as error:
            raise JournalError(
                "looking for a folder to keep the journal in",
                "there is no home folder",
                "set KDLEAK_STATE_DIR to a folder you can write to",
            ) from error
    if platform == "win32":
        return Path(home) / "AppData" / "Local" / "kdleak"
    return Path(home) / ".local" / "state" / "kdleak"


def parse_entry(data: bytes) -> JournalEntry:
    """Read the text of a journal file.

    Raises:
        ValueError: with one clause that says what is wrong.
    """
    if len(data) > _MAX_BYTES:
        raise ValueError(f"larger than {_MAX_BYTES} bytes")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError("not JSON (cut short, or not ours)") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError("not a kdleak journal")
    version = document.get("format_version")
    if version != FORMAT_VERSION:
        raise ValueError(f"format version {version!r}, this kdleak knows {FORMAT_VERSION}")
    target = document.get("target")
    if not isinstance(target, dict):
        raise ValueError('no "target" object')  # noqa: TRY004 - one error type for content
    name = _text(target, "architecture")
    try:
        architecture = Architecture(name)
    except ValueError as error:
        raise ValueError(f"unknown architecture {name!r}") from error
    return JournalEntry(
        where=_text(document, "where"),
        build=_number(target, "build"),
        kernel_base=_address(target, "kernel_base"),
        architecture=architecture,
        address=_address(document, "address"),
        original=_four_bytes(document, "original"),
        armed=_four_bytes(document, "armed"),
        pid=_number(document, "pid"),
        written_at=_time(document, "written_at"),
    )


class Claim:
    """The right to write one target's journal entry; held while a tag may be armed.

    Attributes:
        stale: the entry an earlier process left for this very target, if any.
        moved_aside: a damaged file of the same name that was kept under another one.
    """

    def __init__(self, journal: Journal, path: Path, lock: FileLock) -> None:
        self._journal = journal
        self._path = path
        self._lock = lock
        self.stale: Optional[JournalEntry] = None
        self.moved_aside: Optional[Path] = None
        found = journal.read_file(self._path)
        if isinstance(found, JournalFile):
            self.stale = found.entry
        elif found is not None:
            self.moved_aside = found.path.with_suffix(f".damaged-{int(journal.now())}")

    @property
    def file_name(self) -> str:
        """Name of the journal file, without its folder."""
        return self._path.name

    def record(self, entry: JournalEntry) -> None:
        """Put the entry on the disk, synchronised. Must happen before the target is written.

        Raises:
            JournalError: it could not be written; then nothing may be written to the target.
        """
        if self.moved_aside is not None and self._path.exists():
            with _journal_errors(f"keeping the damaged journal file {self._path.name}"):
                _replace(self._path, self.moved_aside, self._journal.sleep)
        temporary = self._path.with_suffix(f".tmp-{self._journal.pid}")
        with _journal_errors(f"writing the journal file {self._path.name}"):
            try:
                _write_synchronised(temporary, entry.to_json().encode("ascii"))
                _replace(temporary, self._path, self._journal.sleep)
            except BaseException:
                with contextlib.suppress(OSError):
                    temporary.unlink()
                raise
            _synchronise_directory(self._journal.directory)
        self.stale = None

    def close(self) -> None:
        """Remove the entry: the target is known to hold its original value, or to be gone.

        Raises:
            JournalError: the file could not be removed.
        """
        with _journal_errors(f"removing the journal file {self._path.name}"):
            _remove(self._path, self._journal.sleep)
            _synchronise_directory(self._journal.directory)
        self.stale = None

    def set_aside(self) -> None:
        """Keep the entry out of the way: its boot is gone, or another machine answered.

        It is found again should that very boot turn up on the same or another connection.

        Raises:
            JournalError: the file could not be renamed.
        """
        with _journal_errors(f"setting aside the journal file {self._path.name}"):
            _replace(self._path, self._path.with_suffix(_PAST_SUFFIX), self._journal.sleep)
            _synchronise_directory(self._journal.directory)
        self.stale = None

    def release(self) -> None:
        """Let other processes have the target's entry. Never raises."""
        self._lock.release()

    def __enter__(self) -> Claim:  # noqa: PYI034 - no Self on 3.9
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.release()


@dataclass
class Journal:
    """Journal files of one state directory.

    Attributes:
        directory: where they lie; made when first needed.
        now: host wall clock, seconds since 1970 (UTC).
        sleep: waits between tries where Windows has a file open elsewhere.
        pid: of this process.
    """

    directory: Path
    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    pid: int = field(default_factory=os.getpid)

    @classmethod
    def default(cls) -> Journal:
        """The journal of this user (see ``state_directory``)."""
        return cls(state_directory())

    def entry(
        self, where: str, target: TargetInfo, address: int, original: bytes, armed: bytes
    ) -> JournalEntry:
        """An entry of this process, now."""
        return JournalEntry(
            where=without_secrets(where),
            build=target.build,
            kernel_base=target.kernel_base,
            architecture=target.architecture,
            address=address,
            original=bytes(original),
            armed=bytes(armed),
            pid=self.pid,
            written_at=self.now(),
        )

    def claim(self, where: str, address: int) -> Claim:
        """Take the journal entry of a target for this process.

        Args:
            where: the connection without its key.
            address: of nt!PoolHitTag.

        Raises:
            TargetBusy: another living kdleak process has it.
            JournalError: the folder or its locks cannot be used.
        """
        return self._claim(_stem(without_secrets(where), address))

    def claim_file(self, found: JournalFile) -> Claim:
        """Take the journal entry found in a file.

        Raises:
            TargetBusy: another living kdleak process has it.
            JournalError: the folder or its locks cannot be used.
        """
        return self._claim(found.path.stem, found.path.suffix)

    def _claim(self, stem: str, suffix: str = _SUFFIX) -> Claim:
        with _journal_errors(f"making the journal folder {self.directory.name}"):
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = FileLock(self.directory / (stem + ".lock"))
        if not lock.acquire():
            raise TargetBusy(
                f"opening the journal entry {stem}",
                "another kdleak process is at work on this target",
                "wait for it or stop it with Ctrl+C (it disarms first), then try again",
            )
        try:
            return Claim(self, self.directory / (stem + suffix), lock)
        except BaseException:
            lock.release()
            raise

    def scan(self) -> JournalScan:
        """All entries, in order of their file names. A missing folder is an empty journal.

        Raises:
            JournalError: the folder is there but cannot be listed.
        """
        damaged: List[DamagedFile] = []
        files = self._read_all(_SUFFIX, damaged)
        past = self._read_all(_PAST_SUFFIX, damaged)
        return JournalScan(tuple(files), tuple(damaged), tuple(past))

    def _read_all(self, suffix: str, damaged: List[DamagedFile]) -> List[JournalFile]:
        with _journal_errors(f"listing the journal folder {self.directory.name}"):
            try:
                paths = sorted(self.directory.glob("*" + suffix))
            except FileNotFoundError:
                paths = []
        files: List[JournalFile] = []
        for path in paths:
            found = self.read_file(path)
            if isinstance(found, JournalFile):
                files.append(found)
            elif found is not None:
                damaged.append(found)
        return files

    def read_file(self, path: Path) -> Union[JournalFile, DamagedFile, None]:
        """One journal file; None when it is not there. Never raises for its content."""
        try:
            with path.open("rb") as stream:
                data = stream.read(_MAX_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            return DamagedFile(path, error.strerror or "cannot be read")
        try:
            return JournalFile(path, parse_entry(data))
        except ValueError as error:
            return DamagedFile(path, str(error))


def without_secrets(where: str) -> str:
    """The connection text with anything that looks like a key blanked: a second safeguard."""
    return _SECRET.sub(lambda match: f"{match.group(1)}=...", where)


def _stem(where: str, address: int) -> str:
    # Readable for people, kept apart by the checksum when two connections read alike.
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", where).strip("-.")[:60] or "target"
    checksum = zlib.crc32(where.encode("utf-8", "surrogatepass"))
    return f"{readable}-{checksum:08x}-{format_address(address).replace('`', '')}"


def _text(document: Dict[str, Any], name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name!r} is not a text")  # noqa: TRY004 - one error type for content
    return value


def _number(document: Dict[str, Any], name: str) -> int:
    value = document.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name!r} is not a number")
    return value


def _time(document: Dict[str, Any], name: str) -> float:
    value = document.get(name)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1e12:
        raise ValueError(f"{name!r} is not a time")
    return float(value)


def _address(document: Dict[str, Any], name: str) -> int:
    text = _text(document, name)
    if not re.fullmatch(r"0x[0-9a-fA-F]{1,16}", text):
        raise ValueError(f"{name!r} is not an address")
    return int(text, 16)


def _four_bytes(document: Dict[str, Any], name: str) -> bytes:
    text = _text(document, name)
    if not re.fullmatch(r"[0-9a-fA-F]{8}", text):
        raise ValueError(f"{name!r} is not 4 bytes in hexadecimal")
    return bytes.fromhex(text)


class _journal_errors:  # noqa: N801 - reads as a statement: with _journal_errors("...")
    """Turns an OSError into a JournalError that says what was tried."""

    def __init__(self, tried: str) -> None:
        self._tried = tried

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if isinstance(error, OSError):
            raise JournalError(
                self._tried,
                error.strerror or str(error),
                "make the folder writable, or point KDLEAK_STATE_DIR at another one",
            ) from error


def _write_synchronised(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _replace(source: Path, destination: Path, sleep: Callable[[float], None]) -> None:
    _patiently(lambda: os.replace(source, destination), sleep)  # noqa: PTH105


def _remove(path: Path, sleep: Callable[[float], None]) -> None:
    def remove() -> None:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()

    _patiently(remove, sleep)


def _patiently(action: Callable[[], object], sleep: Callable[[float], None]) -> None:
    """Try a few times: on Windows a virus scanner may have the file open for a moment."""
    for _ in range(4):
        try:
            action()
        except PermissionError:  # noqa: PERF203 - four rounds, not a hot loop
            sleep(0.05)
        else:
            return
    action()


def _synchronise_directory(directory: Path) -> None:
    # Windows opens no folders as files; NTFS journals the rename itself.
    if sys.platform != "win32":
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
