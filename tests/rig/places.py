"""Where the rig lies, and how Windows programs are started in it."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
REQUIREMENTS = HERE / "requirements-windows.txt"
SOURCE_FOLDER = HERE / "src"

ENGINE_LIBRARIES = "dbgeng,dbghelp,dbgmodel,symsrv,srcsrv,msdia140"


def rig_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """``$KDLEAK_RIG``, or a folder of the user's cache."""
    named = environment.get("KDLEAK_RIG")
    if named:
        return Path(named)
    cache = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "kdleak" / "rig"


@dataclass(frozen=True)
class Places:
    """The parts of a rig.

    Attributes:
        root: the folder all of it lies in.
    """

    root: Path

    @property
    def wheels(self) -> Path:
        """Downloaded wheels, as pip fetched them."""
        return self.root / "wheels"

    @property
    def kd(self) -> Path:
        """Microsoft's engine with our kd.exe, laid out as a debugger's folder is."""
        return self.root / "debuggers"

    @property
    def extensions(self) -> Path:
        """Our kdexts.dll. The engine looks here when ``_NT_DEBUGGER_EXTENSION_PATH`` says so."""
        return self.root / "extensions"

    @property
    def python(self) -> Path:
        """Windows CPython 3.9 with pykd, pybag and pytest."""
        return self.root / "python"

    @property
    def site_packages(self) -> Path:
        """Packages of that Python."""
        return self.python / "Lib" / "site-packages"

    @property
    def prefix(self) -> Path:
        """Wine's own folder."""
        return self.root / "prefix"

    @property
    def kd_command(self) -> Path:
        """A program for Linux that behaves as kd.exe."""
        return self.root / "kd"

    @property
    def done(self) -> Path:
        """Names what the finished rig was built from."""
        return self.root / "built-from"


def find_wine() -> Path | None:
    """The 64-bit loader: Debian hides it where no path leads."""
    hidden = Path("/usr/lib/wine/wine64")
    if hidden.exists():
        return hidden
    found = shutil.which("wine64") or shutil.which("wine")
    return Path(found) if found else None


def wine_environment(places: Places) -> dict[str, str]:
    """What Wine needs to know, beside the caller's own environment."""
    return {
        "WINEPREFIX": str(places.prefix),
        "WINEARCH": "win64",
        "WINEDEBUG": "-all",
        "WINEDLLOVERRIDES": (
            f"{ENGINE_LIBRARIES}=n;mscoree=n,b;mshtml,winemenubuilder.exe,winedbg.exe=d"
        ),
    }


def windows_path(path: Path | str) -> str:
    """A path of this machine as Wine's programs see it: drive Z: is the root folder."""
    return "Z:" + str(path).replace("/", "\\")


def digest(*files: Path) -> str:
    """Changes when one of the files does."""
    total = hashlib.sha256()
    for file in files:
        total.update(file.read_bytes())
    return total.hexdigest()[:16]


def ingredients() -> str:
    """What a rig built now would be made from; a stale rig says something else."""
    programs = [HERE / name for name in ("build.py", "places.py", "wrapper.py")]
    return digest(REQUIREMENTS, *programs, *sorted(SOURCE_FOLDER.iterdir())) + "\n"
