"""Builds the practice kernel and its drivers: ``python -m kdleak.practice.build [--check]``.

The results are committed under ``images/``, so nobody needs a compiler to use the practice target.
Every build of the same sources with the same clang and lld gives the same bytes, in whatever
folder it runs; ``--check`` builds in a temporary folder and compares with what is committed.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from kdleak.errors import ExitCode, MissingDependency, TargetError
from kdleak.practice.images import (
    BUILDS,
    DRIVERS,
    IMAGE_DIRECTORY,
    SCENARIO_DIRECTORY,
    kernel_directory,
)
from kdleak.practice.scenarios import SCENARIOS, VERSIONS
from kdleak.practice.version_script import version_script

KERNEL_SOURCES = Path(__file__).parent / "kernel"
COMPILER = "clang-19"
LINKER = "lld-link-19"
LIBRARIAN = "llvm-dlltool-19"
RESOURCE_COMPILER = "llvm-rc-19"
KERNEL_UNITS = ("ke", "mm", "tracker", "pool", "ledger", "kd", "population")

_TARGET = "--target=x86_64-pc-windows-msvc"
_COMPILE = (
    _TARGET,
    "-std=gnu11",
    "-O2",
    "-g",
    "-gcodeview",
    "-gno-codeview-command-line",
    "-ffreestanding",
    "-fno-builtin",
    "-fasynchronous-unwind-tables",
    "-mgeneral-regs-only",
    "-mno-red-zone",
    "-mno-stack-arg-probe",
    "-fno-stack-protector",
    "-fno-optimize-sibling-calls",
    "-fstandalone-debug",
    "-fdebug-compilation-dir=.",
    "-Wall",
    "-Wextra",
    "-Werror",
)
_LINK = (
    "/nologo",
    "/debug",
    "/pdbaltpath:%_PDB%",
    "/pdbsourcepath:.",
    "/Brepro",
    "/machine:x64",
    "/subsystem:native",
    "/nodefaultlib",
    "/dynamicbase",
    "/base:0x140000000",
)
_IMAGE_BASE = 0x140000000
_MAP_LINE = re.compile(r"\s*[0-9a-f]{4}:[0-9a-f]{8}\s+(\S+)\s+([0-9a-f]{16})\s")
_MZ_BYTES_ON_LAST_PAGE = 0x90


def missing_tools() -> tuple[str, ...]:
    """The programs of the toolchain that are not on this machine's path."""
    tools = (COMPILER, LINKER, LIBRARIAN, RESOURCE_COMPILER)
    return tuple(name for name in tools if shutil.which(name) is None)


def build_images(output: Path) -> tuple[Path, ...]:
    """Build every image below ``output``, laid out as ``images/`` is.

    Returns:
        The files written, relative to ``output``.

    Raises:
        MissingDependency: clang or lld is not there.
        TargetError: a tool failed; its own words are in the message.
    """
    missing = missing_tools()
    if missing:
        raise MissingDependency(
            "building the practice kernel",
            f"not found: {', '.join(missing)}",
            "install Debian's clang-19, lld-19 and llvm-19",
        )
    written: list[Path] = []
    with tempfile.TemporaryDirectory(prefix="practice-kernel-") as name:
        work = Path(name)
        for source in (*KERNEL_SOURCES.iterdir(), *(KERNEL_SOURCES / "scenarios").iterdir()):
            if source.is_file():
                shutil.copyfile(source, work / source.name)
        _run(work, LIBRARIAN, "-m", "i386:x86-64", "-d", "ntoskrnl.def", "-l", "ntoskrnl.lib")
        for build in BUILDS:
            _build_kernel(work, build)
            folder = kernel_directory(build).relative_to(IMAGE_DIRECTORY)
            written += _collect(work, "ntkrnlmp.exe", output, folder)
        for driver in DRIVERS:
            _build_driver(work, driver)
            written += _collect(work, f"{driver}.sys", output, Path())
        folder = SCENARIO_DIRECTORY.relative_to(IMAGE_DIRECTORY)
        for scenario in SCENARIOS:
            for index, driver in enumerate(scenario.drivers):
                _build_scenario_driver(work, driver, scenario.drivers[:index])
                written += _collect(work, f"{driver}.sys", output, folder)
    return tuple(sorted(written))


def _build_kernel(work: Path, build: int) -> None:
    for unit in KERNEL_UNITS:
        _run(
            work,
            COMPILER,
            *_COMPILE,
            "-DPRACTICE_KERNEL",
            f"-DPRACTICE_BUILD={build}",
            "-c",
            f"{unit}.c",
            "-o",
            f"{unit}.obj",
        )
    _run(work, COMPILER, _TARGET, "-c", "kestubs.S", "-o", "kestubs.obj")
    _run(
        work,
        LINKER,
        *_LINK,
        "/entry:KiSystemStartup",
        "/def:ntoskrnl.def",
        "/map:ntkrnlmp.map",
        "/out:ntkrnlmp.exe",
        "/pdb:ntkrnlmp.pdb",
        *(f"{unit}.obj" for unit in KERNEL_UNITS),
        "kestubs.obj",
    )


def _build_driver(work: Path, driver: str) -> None:
    _run(work, COMPILER, *_COMPILE, "-c", f"{driver}.c", "-o", f"{driver}.obj")
    _run(
        work,
        LINKER,
        *_LINK,
        "/driver",
        "/entry:DriverEntry",
        f"/map:{driver}.map",
        f"/out:{driver}.sys",
        f"/pdb:{driver}.pdb",
        f"{driver}.obj",
        "ntoskrnl.lib",
    )


def _build_scenario_driver(work: Path, driver: str, earlier: tuple[str, ...]) -> None:
    """A driver that may import from those before it, with a version resource."""
    inputs = [f"{driver}.obj", "ntoskrnl.lib"]
    inputs += [f"{name}.lib" for name in earlier if (work / f"{name}.lib").exists()]
    if driver in VERSIONS:
        (work / f"{driver}.rc").write_text(version_script(driver, VERSIONS[driver]), "ascii")
        _run(work, RESOURCE_COMPILER, "/FO", f"{driver}.res", f"{driver}.rc")
        inputs.append(f"{driver}.res")
    _run(work, COMPILER, *_COMPILE, "-c", f"{driver}.c", "-o", f"{driver}.obj")
    _run(
        work,
        LINKER,
        *_LINK,
        "/driver",
        "/entry:DriverEntry",
        f"/map:{driver}.map",
        f"/out:{driver}.sys",
        f"/pdb:{driver}.pdb",
        f"/implib:{driver}.lib",
        *inputs,
    )


def _collect(work: Path, image: str, output: Path, folder: Path) -> list[Path]:
    stem = Path(image).stem
    (output / folder).mkdir(parents=True, exist_ok=True)
    (output / folder / image).write_bytes(finish_image((work / image).read_bytes()))
    shutil.copyfile(work / f"{stem}.pdb", output / folder / f"{stem}.pdb")
    symbols = parse_map((work / f"{stem}.map").read_text("ascii"))
    text = json.dumps(symbols, indent=0, sort_keys=True) + "\n"
    (output / folder / f"{stem}.symbols.json").write_text(text, "ascii")
    return [folder / image, folder / f"{stem}.pdb", folder / f"{stem}.symbols.json"]


def finish_image(image: bytes) -> bytes:
    """Give an image the DOS header start Microsoft's linker writes, and a checksum.

    Debuggers look for ``MZ 90 00`` when they hunt for the kernel in memory; lld writes 0x78 there.
    """
    raw = bytearray(image)
    struct.pack_into("<H", raw, 2, _MZ_BYTES_ON_LAST_PAGE)
    checksum_at = int(struct.unpack_from("<I", raw, 0x3C)[0]) + 0x18 + 0x40
    struct.pack_into("<I", raw, checksum_at, 0)
    total = sum(struct.unpack(f"<{len(raw) // 2}H", raw[: len(raw) & ~1]))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    struct.pack_into("<I", raw, checksum_at, total + len(raw))
    return bytes(raw)


def parse_map(text: str) -> dict[str, int]:
    """Symbol name to RVA, from the linker's map: publics and static symbols alike."""
    symbols: dict[str, int] = {}
    for line in text.splitlines():
        match = _MAP_LINE.match(line)
        if match:
            symbols[match.group(1)] = int(match.group(2), 16) - _IMAGE_BASE
    return symbols


def _run(work: Path, program: str, *arguments: str) -> None:
    done = subprocess.run(
        [program, *arguments], cwd=work, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise TargetError(
            f"running {program} {' '.join(arguments)}",
            (done.stderr or done.stdout).strip(),
            "correct the source and build again",
        )


def differences(built: Path, committed: Path) -> tuple[str, ...]:
    """What is missing, extra or different in ``committed``, one line each; empty when equal."""
    found: list[str] = []
    wanted = {path.relative_to(built) for path in built.rglob("*") if path.is_file()}
    there = {
        path.relative_to(committed)
        for path in committed.rglob("*")
        if path.suffix in {".exe", ".sys", ".pdb", ".json"}
    }
    for path in sorted(wanted | there):
        if path not in there:
            found.append(f"{path}: not committed")
        elif path not in wanted:
            found.append(f"{path}: committed, but no longer built")
        elif (built / path).read_bytes() != (committed / path).read_bytes():
            found.append(f"{path}: differs")
    return tuple(found)


def main(arguments: list[str] | None = None) -> int:
    """Build, or with ``--check`` compare; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m kdleak.practice.build", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="build elsewhere and compare with the committed images"
    )
    options = parser.parse_args(arguments)
    if not options.check:
        for path in build_images(IMAGE_DIRECTORY):
            sys.stdout.write(f"{path}\n")
        return ExitCode.DONE
    with tempfile.TemporaryDirectory(prefix="practice-check-") as name:
        build_images(Path(name))
        found = differences(Path(name), IMAGE_DIRECTORY)
    for line in found:
        sys.stdout.write(f"{line}\n")
    sys.stdout.write("images differ from their sources\n" if found else "images are up to date\n")
    return ExitCode.GATE_EXCEEDED if found else ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main())
