"""Log files in: bounded, decoded, and refused in a sentence when they are no text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, List, Sequence, Tuple

from kdleak.dialect.source import decode
from kdleak.errors import UsageError

if TYPE_CHECKING:
    from kdleak.dialect.log import DebuggerLog

STDIN = "-"

MEGABYTE = 1 << 20

DEFAULT_MEGABYTES = 32
"""Reading takes one second (odd ones five) and 40 MB of memory for each MB of log."""

_HEAD = 1 << 16
"""Bytes that tell text from anything else."""

_MANY_CONTROLS = 0.02
"""Part of control characters that no text has; any other file has several times that."""

_HARMLESS = frozenset("\t\n\r\f\b\x1a\x1b")

_RECORDING = b'{"format": "kdleak.recording"'

_KNOWN = (
    (b"PAGEDU", "it is a crash dump, not a log"),
    (b"MDMP", "it is a user-mode dump, not a log"),
    (b"PK\x03\x04", "it is a zip archive"),
    (b"\x1f\x8b", "it is compressed"),
    (b"7z\xbc\xaf", "it is a 7z archive"),
    (b"MSCF", "it is a cabinet archive"),
    (b'{"format": "kdleak.', "it is a file of kdleak's own"),
)


def names_of_logs(files: Sequence[str]) -> Tuple[str, ...]:
    """Names of logs for people: the file's own, with its folder where two are called the same."""
    names = [_name(file) for file in files]
    return tuple(
        name if names.count(name) == 1 else (file if file != STDIN else name)
        for name, file in zip(names, files)
    )


def _name(file: str) -> str:
    return "stdin" if file == STDIN else Path(file).name or file


def read_log(file: str, megabytes: int = DEFAULT_MEGABYTES) -> DebuggerLog:
    """Read and parse a log.

    Args:
        file: a path, or ``-`` for stdin.
        megabytes: largest size to take.

    Raises:
        UsageError: it cannot be read, is larger than that, or is no text.
    """
    from kdleak.dialect.log import parse_log  # noqa: PLC0415 - slow to import; a target needs none

    return parse_log(decode(_read(file, megabytes)))


def is_recording(file: Path) -> bool:
    """Whether a file is a session that kdleak recorded, or cannot be read; else it may be a log."""
    try:
        with file.open("rb") as stream:
            return stream.read(len(_RECORDING)) == _RECORDING
    except OSError:
        return True  # whoever opens it next says why it cannot be read


def _shown(file: str) -> str:
    return "stdin" if file == STDIN else file


def _read(file: str, megabytes: int) -> bytes:
    try:
        if file == STDIN:
            return _take(sys.stdin.buffer, file, megabytes)
        with Path(file).open("rb") as stream:
            return _take(stream, file, megabytes)
    except (OSError, ValueError) as error:
        # ValueError: a NUL in the name.
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"reading {_shown(file)}", why, "name a log that can be read") from (error)


def _take(stream: BinaryIO, file: str, megabytes: int) -> bytes:
    limit = megabytes * MEGABYTE
    parts: List[bytes] = []
    size = 0
    checked = False
    # A stream without an end (a device, a pipe) is left as soon as it is too large.
    while size <= limit:
        part = stream.read(min(MEGABYTE, limit + 1 - size))
        if not part:
            break
        parts.append(part)
        size += len(part)
        if not checked:
            _refuse_other_than_text(part[:_HEAD], file)
            checked = True
    if size > limit:
        raise UsageError(
            f"reading {_shown(file)}",
            f"it is larger than {megabytes} MB, and each MB takes a second or more and 40 MB of "
            "memory",
            "cut out what matters, or allow more with --max-size",
        )
    return b"".join(parts)


def _refuse_other_than_text(data: bytes, file: str) -> None:
    why = next((words for magic, words in _KNOWN if data.startswith(magic)), "")
    if not why:
        # A log whose machine or disk stopped ends in zeros.
        text = decode(data.rstrip(b"\0") or data)
        controls = sum(
            (char < " " or "\x7f" <= char <= "\x9f") and char not in _HARMLESS for char in text
        )
        if controls > len(text) * _MANY_CONTROLS:
            why = "it is no text"
    if why:
        raise UsageError(
            f"reading {_shown(file)}",
            why,
            "name a log of WinDbg or kd (.logopen), or text that was copied out of one",
        )
