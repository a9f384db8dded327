"""Finding Microsoft's console kernel debugger, kd.exe, on this machine.

kd.exe comes with the Debugging Tools for Windows (part of the Windows SDK and WDK) and with
WinDbg from the Store, which also offers it on the path as ``kdX64.exe``. cdb.exe opens kernel
dumps as well, but no live kernel.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path
from typing import Callable, Iterator, List, Mapping, Optional, Tuple

from kdleak.errors import MissingDependency, UsageError

VARIABLE = "KDLEAK_KD"
_LIVE = ("kd.exe", "kdX64.exe")
_DUMP = ("kd.exe", "cdb.exe", "kdX64.exe", "cdbX64.exe")
_KITS_KEY = r"SOFTWARE\Microsoft\Windows Kits\Installed Roots"
_PACKAGES_KEY = (
    r"Software\Classes\Local Settings\Software\Microsoft\Windows\CurrentVersion"
    r"\AppModel\Repository\Packages"
)


class Registry:
    """What the registry says about installed debuggers; nothing outside Windows."""

    def kits_root(self) -> str:
        """Folder of the Windows Kits 10, "" if unknown."""
        if sys.platform == "win32":
            import winreg  # noqa: PLC0415 - Windows only

            for view in (winreg.KEY_WOW64_32KEY, winreg.KEY_WOW64_64KEY):
                with (
                    contextlib.suppress(OSError),
                    winreg.OpenKey(
                        winreg.HKEY_LOCAL_MACHINE, _KITS_KEY, 0, winreg.KEY_READ | view
                    ) as key,
                ):
                    return str(winreg.QueryValueEx(key, "KitsRoot10")[0])
        return ""

    def store_packages(self) -> Tuple[str, ...]:
        """Folders of WinDbg as the Store installed it, newest last."""
        found: List[str] = []
        if sys.platform == "win32":
            import winreg  # noqa: PLC0415 - Windows only

            with (
                contextlib.suppress(OSError),
                winreg.OpenKey(winreg.HKEY_CURRENT_USER, _PACKAGES_KEY) as packages,
            ):
                for index in range(winreg.QueryInfoKey(packages)[0]):
                    name = winreg.EnumKey(packages, index)
                    if name.startswith("Microsoft.WinDbg"):
                        with winreg.OpenKey(packages, name) as package:
                            found.append(winreg.QueryValueEx(package, "PackageRootFolder")[0])
        return tuple(sorted(found))


def find_kd(
    named: Optional[str] = None,
    *,
    dump: bool = False,
    environment: Mapping[str, str] = os.environ,
    registry: Optional[Registry] = None,
    which: Callable[[str], Optional[str]] = shutil.which,
) -> Path:
    """Find the debugger: the one named, $KDLEAK_KD, the path, then where Microsoft installs it.

    Args:
        named: program or folder that the user gave with ``--kd``; nothing else is tried then.
        dump: a dump will be opened, which cdb.exe can do too.
        environment: variables of the process.
        registry: what Windows knows; the real one by default.
        which: looks a program up on the path.

    Raises:
        UsageError: what the user named is not there.
        MissingDependency: there is no debugger; names the places that were tried.
    """
    names = _DUMP if dump else _LIVE
    for text, origin in ((named, "--kd"), (environment.get(VARIABLE), f"${VARIABLE}")):
        if text:
            return _named(text, origin, names, which)
    for name in names:
        on_path = which(name)
        if on_path:
            return Path(on_path)
    tried = ["the path"]
    for folder in _folders(environment, registry or Registry()):
        tried.append(str(folder))
        for name in names:
            if (folder / name).is_file():
                return folder / name
    raise MissingDependency(
        "looking for Microsoft's kd.exe",
        "it is in none of these places: " + "; ".join(tried),
        "install WinDbg (winget install Microsoft.WinDbg) or the Debugging Tools of the Windows "
        f"SDK, or name kd.exe with --kd or ${VARIABLE}",
    )


def _named(
    text: str, origin: str, names: Tuple[str, ...], which: Callable[[str], Optional[str]]
) -> Path:
    path = Path(text).expanduser()
    if path.is_dir():
        for name in names:
            if (path / name).is_file():
                return path / name
        raise UsageError(f"starting the debugger of {origin}", f"there is no {names[0]} in {path}")
    if path.is_file():
        return path.absolute()
    on_path = which(text)
    if on_path:
        return Path(on_path)
    raise UsageError(
        f"starting the debugger of {origin}", f"{text}: no such file", "give the path of kd.exe"
    )


def _folders(environment: Mapping[str, str], registry: Registry) -> Iterator[Path]:
    """Folders that may hold the debugger, each once, the likeliest first."""
    machine = environment.get("PROCESSOR_ARCHITEW6432") or environment.get(
        "PROCESSOR_ARCHITECTURE", ""
    )
    ours = ("arm64", "x64") if machine.upper() == "ARM64" else ("x64", "x86")
    kits = [registry.kits_root()]
    for variable in ("ProgramFiles(x86)", "ProgramFiles"):
        base = environment.get(variable)
        kits.append(str(Path(base) / "Windows Kits" / "10") if base else "")
    folders = [Path(kit) / "Debuggers" / name for kit in kits if kit for name in ours]
    pybag = environment.get("WINDBG_DIR")
    if pybag:
        folders.append(Path(pybag))
    stores = ("arm64", "amd64") if ours[0] == "arm64" else ("amd64", "x86")
    folders += [
        Path(package) / name for package in reversed(registry.store_packages()) for name in stores
    ]
    yield from dict.fromkeys(folders)
