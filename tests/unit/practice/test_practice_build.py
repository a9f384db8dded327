"""The committed images come from the committed sources, byte for byte."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from kdleak.errors import UsageError
from kdleak.practice import build
from kdleak.practice.images import (
    BUILDS,
    IMAGE_DIRECTORY,
    image_files,
    kernel_directory,
    load_symbols,
    symbol_directories,
)

needs_toolchain = pytest.mark.skipif(
    bool(build.missing_tools()),
    reason=f"not installed: {', '.join(build.missing_tools())}",
)


@needs_toolchain
@pytest.mark.build
def test_committed_images_are_what_the_sources_give(tmp_path):
    build.build_images(tmp_path)
    assert build.differences(tmp_path, IMAGE_DIRECTORY) == ()


@needs_toolchain
@pytest.mark.build
def test_a_changed_image_is_noticed(tmp_path):
    built, committed = tmp_path / "built", tmp_path / "committed"
    for folder in (built, committed):
        shutil.copytree(
            IMAGE_DIRECTORY, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__")
        )
    driver = committed / "leakydrv.sys"
    driver.write_bytes(driver.read_bytes()[:-1] + b"\x01")
    (committed / "busydrv.pdb").unlink()
    (built / "ntkrnlmp.exe").unlink()
    assert build.differences(built, committed) == (
        "busydrv.pdb: not committed",
        "leakydrv.sys: differs",
        "ntkrnlmp.exe: committed, but no longer built",
    )


@pytest.mark.parametrize("number", BUILDS)
def test_images_and_symbols_belong_together(number):
    for image in image_files(number):
        raw = image.read_bytes()
        record = raw.index(b"RSDS")
        assert raw[record + 24 :].split(b"\0")[0].decode() == image.with_suffix(".pdb").name
        pdb = image.with_suffix(".pdb").read_bytes()
        assert raw[record + 4 : record + 20] in pdb
        assert any(folder == image.parent for folder in symbol_directories(number))
        assert load_symbols(image)


def test_no_path_of_the_builder_is_left_in_the_images():
    for path in IMAGE_DIRECTORY.rglob("*"):
        if path.suffix in {".exe", ".sys", ".pdb"}:
            raw = path.read_bytes().lower()
            for trace in (b"/tmp", b"/home", b"/root", b"/work", b"practice-kernel-"):
                assert trace not in raw, path.name


def test_checksum_is_the_one_the_format_asks_for():
    raw = bytearray((IMAGE_DIRECTORY / "leakydrv.sys").read_bytes())
    at = struct.unpack_from("<I", raw, 0x3C)[0] + 0x58
    (stored,) = struct.unpack_from("<I", raw, at)
    raw[at : at + 4] = bytes(4)
    total = 0
    for (word,) in struct.iter_unpack("<H", raw):
        total += word
        total = (total & 0xFFFF) + (total >> 16)
    assert stored == total + len(raw)


def test_every_kernel_function_has_unwind_data_or_is_a_leaf():
    image = image_files()[0]
    raw = image.read_bytes()
    optional = struct.unpack_from("<I", raw, 0x3C)[0] + 0x18
    rva, size = struct.unpack_from("<II", raw, optional + 0x70 + 8 * 3)
    sections = struct.unpack_from("<H", raw, optional - 0x18 + 6)[0]
    covered = set()
    for index in range(sections):
        at = optional + 0xF0 + 40 * index
        length, start, _, offset = struct.unpack_from("<4I", raw, at + 8)
        if start <= rva < start + length:
            begin = offset + rva - start
            covered = {one[0] for one in struct.iter_unpack("<III", raw[begin : begin + size])}
    symbols = load_symbols(image)
    for name in (
        "ExAllocateHeapPool",
        "ExpAllocatePoolWithTagFromNode",
        "ExAllocatePool2",
        "ExAllocatePoolWithTag",
        "ExFreeHeapPool",
        "ExFreePool",
        "KdCheckForDebugBreak",
        "KiInterruptDispatchNoLockNoEtw",
        "KiStartSystemThread",
        "PspSystemThreadStartup",
    ):
        assert symbols[name] in covered
    assert symbols["DbgBreakPointWithStatus"] not in covered


def test_map_reader_takes_publics_and_static_symbols():
    text = (
        " 0001:00000010       KiSwap                     0000000140001010     ke.obj\n"
        " Static symbols\n"
        " 0003:00000000       KiThreads                  0000000140005000     ke.obj\n"
        " entry point at        0001:00000000\n"
    )
    assert build.parse_map(text) == {"KiSwap": 0x1010, "KiThreads": 0x5000}


def test_a_build_nobody_made_is_refused():
    with pytest.raises(UsageError, match="7601"):
        kernel_directory(7601)


def test_missing_tools_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "COMPILER", "no-such-clang")
    with pytest.raises(UsageError, match="no-such-clang"):
        build.build_images(tmp_path)
    assert not list(Path(tmp_path).iterdir())
