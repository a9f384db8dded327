"""The committed images of the practice kernel: where they are and what symbols they have."""

from __future__ import annotations

import json
from pathlib import Path

from kdleak.errors import UsageError
from kdleak.practice.scenarios import scenario_drivers

IMAGE_DIRECTORY = Path(__file__).parent
DEFAULT_BUILD = 22621
"""Windows build number the practice target claims unless told otherwise."""

BUILDS = (15063, 19045, 22621, 26100)
"""One kernel per layout of the tag tables: rows of 0x28, 0x38, 0x50 bytes, and 24H2's big pages."""

DRIVERS = ("leakydrv", "busydrv")

SCENARIO_DIRECTORY = IMAGE_DIRECTORY / "scenarios"
"""Drivers that only scenarios load."""


def kernel_directory(build: int) -> Path:
    """Folder of the kernel image that claims this Windows build.

    Raises:
        UsageError: there is no kernel for that build.
    """
    if build not in BUILDS:
        raise UsageError(
            f"choosing the practice kernel for build {build}",
            "there is none",
            f"take one of {', '.join(map(str, BUILDS))}",
        )
    return IMAGE_DIRECTORY if build == DEFAULT_BUILD else IMAGE_DIRECTORY / str(build)


def image_files(build: int = DEFAULT_BUILD, scenario: str = "") -> tuple[Path, ...]:
    """The images in load order: kernel first, then the drivers, then those of a scenario."""
    kernel = kernel_directory(build) / "ntkrnlmp.exe"
    return (
        kernel,
        *(IMAGE_DIRECTORY / f"{driver}.sys" for driver in DRIVERS),
        *(SCENARIO_DIRECTORY / f"{driver}.sys" for driver in scenario_drivers(scenario)),
    )


def symbol_directories(build: int = DEFAULT_BUILD, scenario: str = "") -> tuple[Path, ...]:
    """Folders that hold the .pdb files of a build: a symbol path for debuggers."""
    more = (SCENARIO_DIRECTORY,) if scenario else ()
    return tuple(dict.fromkeys((kernel_directory(build), IMAGE_DIRECTORY, *more)))


def load_symbols(image: Path) -> dict[str, int]:
    """Symbol name to RVA of one image, as the linker placed them (made by ``build.py``)."""
    symbols: dict[str, int] = json.loads(image.with_suffix(".symbols.json").read_text("ascii"))
    return symbols
