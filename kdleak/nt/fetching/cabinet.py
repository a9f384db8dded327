"""Expanding the compressed files of symbol stores (``.pd_``): cabinets, by whatever tool is there.

Python has no reader for them; Windows has expand.exe, macOS bsdtar, and Linux gets cabextract.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import BinaryIO

MAGIC = b"MSCF"

_CHUNK = 0x10000
_SECONDS = 300.0


class CabinetError(Exception):
    """A cabinet could not be expanded; the text says why in one clause."""


def _commands(cabinet: Path) -> list[list[str]]:
    """Ways to write the one file in a cabinet to standard output, the surest first."""
    found = []
    for tool, *options in (
        ("cabextract", "-q", "-p"),
        ("bsdtar", "-xOf"),
        ("7z", "e", "-so", "-y"),
    ):
        path = shutil.which(tool)
        if path is not None:
            found.append([path, *options, str(cabinet)])
    return found


def expand(cabinet: Path, target: Path, stream: BinaryIO, limit: int) -> None:
    """Write the file in a cabinet.

    Args:
        cabinet: the compressed file, untrusted.
        target: path of ``stream``, for tools that write a file themselves.
        stream: open for writing at its start.
        limit: bytes that the result may have.

    Raises:
        CabinetError: there is no tool, or it failed.
    """
    if os.name == "nt":
        _expand_windows(cabinet, stream, target.with_name(target.name + ".x"), limit)
        return
    commands = _commands(cabinet.absolute())
    if not commands:
        raise CabinetError("it is compressed and neither cabextract, bsdtar nor 7z is installed")
    for index, command in enumerate(commands):
        stream.seek(0)
        stream.truncate()
        try:
            _pipe(command, stream, limit)
        except CabinetError:
            if index + 1 == len(commands):
                raise
        else:
            return


def _pipe(command: list[str], stream: BinaryIO, limit: int) -> None:
    name = Path(command[0]).name
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError as error:
        raise CabinetError(f"{name} could not be started ({error.strerror})") from error
    size = 0
    with process:
        try:
            while part := process.stdout.read(_CHUNK) if process.stdout else b"":
                size += len(part)
                if size > limit:
                    raise CabinetError(f"its contents are larger than {limit:,} bytes")
                stream.write(part)
            code = process.wait(_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise CabinetError(f"{name} did not end") from error
        finally:
            process.kill()
    if code != 0 or size == 0:
        raise CabinetError(f"{name} could not expand it")


def _expand_windows(cabinet: Path, stream: BinaryIO, result: Path, limit: int) -> None:
    tool = Path(os.environ.get("SYSTEMROOT", r"C:\Windows")) / "System32" / "expand.exe"
    try:
        done = subprocess.run(
            [str(tool), str(cabinet.absolute()), str(result.absolute())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_SECONDS,
            check=False,
        )
        if done.returncode or not result.is_file():
            raise CabinetError("expand.exe could not expand it")
        if result.stat().st_size > limit:
            raise CabinetError(f"its contents are larger than {limit:,} bytes")
        with result.open("rb") as expanded:
            shutil.copyfileobj(expanded, stream)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CabinetError("expand.exe could not be used") from error
    finally:
        result.unlink(missing_ok=True)
