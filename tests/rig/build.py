"""Builds the rig: Microsoft's debugger engine, pykd, pybag and Windows CPython under Wine.

``python -m tests.rig.build`` fetches pinned wheels from the package index, compiles our own C
parts and creates a Wine prefix, all in one cache folder. What is up to date is left alone.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.rig.places import (
    REQUIREMENTS,
    ROOT,
    SOURCE_FOLDER,
    Places,
    digest,
    find_wine,
    ingredients,
    rig_folder,
    wine_environment,
)
from tests.rig.wrapper import kd_wrapper

COMPILER = "x86_64-w64-mingw32-gcc"
OPTIONS = (
    "-O1",
    "-s",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unused-parameter",
    "-Wno-cast-function-type",
)

ENGINE_FILES = (
    "dbgeng.dll",
    "dbghelp.dll",
    "DbgModel.dll",
    "symsrv.dll",
    "srcsrv.dll",
    "msdia140.dll",
)

SOURCES = {
    "kd.exe": ("kd.c", ("-lole32", "-luuid")),
    "kdfix.dll": ("kdfix.c", ("-shared",)),
    "mscoree.dll": ("mscoree.c", ("-shared", "-luuid")),
    "bcryptprimitives.dll": ("bcryptprimitives.c", ("-shared", "-ladvapi32")),
    "python.exe": ("python.c", ("-municode",)),
    "kdexts.dll": ("kdexts.c", ("-shared", "-luuid")),
    "ext.dll": ("noexts.c", ("-shared",)),
    "exts.dll": ("noexts.c", ("-shared",)),
    "kext.dll": ("noexts.c", ("-shared",)),
}

UNUSED_STDLIB = ("test", "lib-dynload", "site-packages", "idlelib", "tkinter", "turtledemo")
WINEBOOT_SECONDS = 300


class BuildFailed(Exception):
    """Why the rig cannot be built, as one sentence with the next step."""


def check_programs() -> Path:
    """Find Wine and the compiler.

    Raises:
        BuildFailed: naming the Debian packages that are missing.
    """
    wine = find_wine()
    missing = [] if wine else ["wine64"]
    if not shutil.which(COMPILER):
        missing.append("gcc-mingw-w64-x86-64")
    if wine is None or missing:
        names = " ".join(missing)
        raise BuildFailed(
            f"missing Debian packages: {names}. "
            f"Next: apt-get install --no-install-recommends {names}"
        )
    return wine


def find_python39() -> list[str]:
    """The CPython 3.9 whose standard library is copied, as ``make test39`` finds it.

    Raises:
        BuildFailed: there is none.
    """
    find = runpy.run_path(str(ROOT / "scripts" / "make.py"))["find_python"]
    found: list[str] | None = find((3, 9), exact=True)
    if found is None:
        raise BuildFailed(
            "no CPython 3.9 on this machine: its standard library is a part of the rig. Next: "
            "install one (pyenv install 3.9), or put a python3.9 on the path"
        )
    return found


def fetch_wheels(places: Places) -> None:
    """Download the pinned wheels; pip compares the hashes."""
    places.wheels.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    pip += ["--no-deps", "--only-binary=:all:", "--require-hashes", "--dest", str(places.wheels)]
    pip += ["--find-links", str(places.wheels)]
    pip += ["--platform", "win_amd64", "--implementation", "cp", "--python-version", "39"]
    run([*pip, "-r", str(REQUIREMENTS)], "pip could not fetch the wheels")


def run(command: list[str], failure: str, **more: object) -> None:
    """Run a program.

    Raises:
        BuildFailed: with what it printed.
    """
    done = subprocess.run(  # type: ignore[call-overload]
        command, capture_output=True, text=True, check=False, **more
    )
    if done.returncode:
        raise BuildFailed(f"{failure}:\n{done.stdout}{done.stderr}")


def wheel(places: Places, name: str, version: str) -> zipfile.ZipFile:
    """The wheel of a distribution that the requirements pin.

    Raises:
        BuildFailed: it was not downloaded.
    """
    found = list(places.wheels.glob(f"{name}-{version}-*.whl"))
    if len(found) != 1:
        raise BuildFailed(f"no wheel of {name} {version} in {places.wheels}")
    return zipfile.ZipFile(found[0])


def pinned() -> Iterator[tuple[str, str]]:
    """(distribution, version) of each wheel, spelled as in file names."""
    for line in REQUIREMENTS.read_text(encoding="ascii").splitlines():
        if line and not line.startswith("#"):
            name, version = line.split(" ")[0].split("==")
            yield name.replace("-", "_"), version


def unpack_python(places: Places) -> None:
    """Windows CPython with its standard library and packages."""
    shutil.rmtree(places.python, ignore_errors=True)
    places.python.mkdir(parents=True)
    versions = dict(pinned())
    with wheel(places, "panda3d", versions.pop("panda3d")) as archive:
        for entry in archive.namelist():
            name = entry.partition("deploy_libs/")[2]
            if name and not name.startswith(("api-ms-", "tcl", "tk", "_tkinter", "VCRUNTIME")):
                (places.python / name).write_bytes(archive.read(entry))
    try:
        copy_standard_library(places)
    except BuildFailed as reason:
        # The engine and kd.exe do without it; the tests of Windows Python then skip.
        sys.stderr.write(f"rig: NO WINDOWS PYTHON: {reason}\n")
    places.site_packages.mkdir(parents=True)
    for name, version in versions.items():
        with wheel(places, name, version) as archive:
            archive.extractall(places.site_packages)


def copy_standard_library(places: Places) -> None:
    """The part of the standard library that is written in Python.

    Raises:
        BuildFailed: there is none on this machine.
    """
    question = "import sysconfig; print(sysconfig.get_path('stdlib'))"
    answer = subprocess.run(
        [*find_python39(), "-c", question], capture_output=True, text=True, check=True
    )
    shutil.copytree(
        answer.stdout.strip(),
        places.python / "Lib",
        ignore=shutil.ignore_patterns(*UNUSED_STDLIB, "__pycache__", "config-*"),
    )


def lay_out_engine(places: Places) -> None:
    """The engine's files where kd.exe finds them: the same ones that pykd brings."""
    shutil.rmtree(places.kd, ignore_errors=True)
    places.kd.mkdir(parents=True)
    for name in ENGINE_FILES:
        os.link(places.site_packages / "pykd" / name, places.kd / name)


def compile_sources(places: Places) -> None:
    """Our own C parts, each to where it is needed."""
    places.extensions.mkdir(exist_ok=True)
    folders = {
        "kd.exe": [places.kd],
        "kdfix.dll": [places.kd, places.python],
        "mscoree.dll": [places.python],
        "bcryptprimitives.dll": [places.python],
        "python.exe": [places.python],
    }
    with tempfile.TemporaryDirectory(dir=places.root) as scratch:
        for name, (source, libraries) in SOURCES.items():
            built = Path(scratch) / name
            command = [COMPILER, *OPTIONS, "-o", str(built), str(SOURCE_FOLDER / source)]
            run([*command, *libraries], f"{source} does not compile")
            for folder in folders.get(name, [places.extensions]):
                shutil.copy(built, folder / name)


def create_prefix(places: Places, wine: Path) -> None:
    """A Wine prefix of our own."""
    shutil.rmtree(places.prefix, ignore_errors=True)
    environment = {**os.environ, **wine_environment(places)}
    environment.pop("DISPLAY", None)
    try:
        run(
            [str(wine), "wineboot.exe", "--init"],
            "Wine could not create its prefix",
            env=environment,
            timeout=WINEBOOT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise BuildFailed(f"Wine's first start took over {WINEBOOT_SECONDS} s") from None
    finally:
        server = [str(wine.with_name("wineserver"))]
        for option in ("-w", "-k"):
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run([*server, option], env=environment, check=False, timeout=30)
    if not (places.prefix / "system.reg").exists():
        raise BuildFailed(f"Wine left no registry in {places.prefix}")


def write_wrapper(places: Places, wine: Path) -> None:
    """The program that Linux starts as if it were kd.exe."""
    places.kd_command.write_text(kd_wrapper(places, wine), encoding="ascii")
    places.kd_command.chmod(0o755)


def step(places: Places, name: str, made_from: str, work: Callable[[], None]) -> bool:
    """Do one step unless its stamp says that it was done with the same ingredients."""
    stamp = places.root / f"{name}.stamp"
    if stamp.exists() and stamp.read_text(encoding="ascii") == made_from:
        return False
    print(f"rig: {name} ...", flush=True)
    stamp.unlink(missing_ok=True)
    work()
    stamp.write_text(made_from, encoding="ascii")
    return True


def build(places: Places) -> None:
    """Bring the rig up to date.

    Raises:
        BuildFailed: and the rig counts as not built.
    """
    wine = check_programs()
    places.root.mkdir(parents=True, exist_ok=True)
    with (places.root / "lock").open("w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        program = Path(__file__)
        wheels = digest(REQUIREMENTS)
        recipe = digest(REQUIREMENTS, program)
        step(places, "wheels", wheels, lambda: fetch_wheels(places))
        renewed = step(places, "python", recipe, lambda: unpack_python(places))
        if renewed:
            (places.root / "engine.stamp").unlink(missing_ok=True)
        if step(places, "engine", recipe, lambda: lay_out_engine(places)) or renewed:
            (places.root / "programs.stamp").unlink(missing_ok=True)
        sources = digest(program, *sorted(SOURCE_FOLDER.iterdir()))
        step(places, "programs", sources, lambda: compile_sources(places))
        step(places, "prefix", str(wine), lambda: create_prefix(places, wine))
        write_wrapper(places, wine)
        places.done.write_text(ingredients(), encoding="ascii")


def main() -> int:
    """Build, as a program."""
    parser = argparse.ArgumentParser(prog="python -m tests.rig.build", description=__doc__)
    parser.add_argument("--folder", type=Path, default=rig_folder(), help="default: %(default)s")
    places = Places(parser.parse_args().folder.resolve())
    try:
        build(places)
    except BuildFailed as reason:
        sys.stderr.write(f"rig: {reason}\n")
        return 1
    print(f"rig: ready in {places.root}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
