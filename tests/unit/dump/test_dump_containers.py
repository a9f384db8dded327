"""What is no kernel crash dump is refused by name, with what to do next."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from kdleak.dump.file import open_dump
from kdleak.errors import TargetError, UnsupportedTarget
from tests.dump_files.build_header import build_header
from tests.dump_files.build_memory import bitmap_dump


def elf(kind: int, order: str = "<") -> bytes:
    head = b"\x7fELF\x02" + (b"\x01" if order == "<" else b"\x02") + b"\x01"
    return head.ljust(16, b"\0") + struct.pack(order + "H", kind)


NAMED = [
    ("app.dmp", b"MDMP\x93\xa7", "user-mode minidump", "kernel or complete"),
    ("old.dmp", b"USERDUMP", "user-mode dump", "kernel or complete"),
    ("hiberfil.sys", b"HIBR", "hibernation", "MemProcFS"),
    ("hiberfil.sys", b"hibr", "hibernation", "MemProcFS"),
    ("hiberfil.sys", b"RSTR", "hibernation", "MemProcFS"),
    ("vm.core", elf(4), "ELF core", "elf2dmp"),
    ("vm.core", elf(4, ">"), "ELF core", "elf2dmp"),
    ("ls", elf(3), "ELF program", "MEMORY.DMP"),
    ("cut", b"\x7fELF", "ELF program", "MEMORY.DMP"),
    ("memory.lime", b"EMiL\x01\0\0\0", "LiME", "crash dump"),
    ("a.vmsn", b"\xd2\xbe\xd2\xbe\x08\0\0\0", "VMware", "vmss2core"),
    ("a.vmss", b"\xd0\xbe\xd2\xbe", "VMware", "vmss2core"),
    ("a.vmem", b"\x53\xff" + bytes(4096), "VMware", "vmss2core"),
    ("a.sav", b"\x7fVirtualBox SavedState V2.0\n", "VirtualBox", "dumpvmcore"),
    ("a.VMRS", b"\x01\x00" + bytes(100), "Hyper-V", "LiveKd"),
    ("a.vsv", b"\x01\x00" + bytes(100), "Hyper-V", "LiveKd"),
    ("memory.raw", b"\x53\xff" + bytes(4096), "raw image", "crash dump"),
    ("MEMORY.ZIP", b"PK\x03\x04", "ZIP", "unpack it first"),
    ("m.dmp.gz", b"\x1f\x8b\x08", "gzip", "unpack it first"),
    ("m.7z", b"7z\xbc\xaf\x27\x1c", "7-Zip", "unpack it first"),
    ("m.cab", b"MSCF\0\0\0\0", "cabinet", "unpack it first"),
    ("m.rar", b"Rar!\x1a\x07", "RAR", "unpack it first"),
    ("m.xz", b"\xfd7zXZ\0", "xz", "unpack it first"),
    ("m.zst", b"\x28\xb5\x2f\xfd", "zstd", "unpack it first"),
    ("nt.pdb", b"Microsoft C/C++ MSF 7.00\r\n\x1aDS", "PDB", "-y"),
    ("nt.exe", b"MZ\x90\0", "Windows program", "MEMORY.DMP"),
    ("a.evtx", b"ElfFile\0", "event log", "MEMORY.DMP"),
    ("disk.vhdx", b"vhdxfile", "virtual disk", "mount"),
    ("m.dmp", b"version https://git-lfs.github.com/spec/v1\n", "Git LFS", "git lfs pull"),
    ("hunt.log", b"0: kd> !poolused 2\r\n Sorting by NonPaged Pool\r\n", "text", "kdleak parse"),
    ("hunt.log", "\ufeff0: kd> k\n".encode("utf-16-le"), "text", "kdleak parse"),
    ("m.dmp", b"\0" * 9000, "zeros", "copy it again"),
    ("m.dmp", b"\x01\x02\x03\x04" + bytes(5000), "01 02 03 04", "MEMORY.DMP"),
    ("m.dmp", b"\xf4\x53\xff\0" * (1 << 18), "whole pages", "crash dump"),
    ("m.dmp", b"Enc_Dmp!" + bytes(5000), "encrypted", "private key"),
]


@pytest.mark.parametrize(("name", "start", "words", "next_step"), NAMED)
def test_named(name: str, start: bytes, words: str, next_step: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(start)
    with pytest.raises(UnsupportedTarget) as caught:
        open_dump(path)
    assert words in caught.value.came_back
    assert next_step in caught.value.next_step
    assert name in caught.value.tried


def test_encrypted_dump_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.dmp"
    path.write_bytes(bitmap_dump(8, [1, 2], attributes=0x100))
    with pytest.raises(UnsupportedTarget, match="encrypted"):
        open_dump(path)
    path.write_bytes(bitmap_dump(8, [1, 2], attributes=0x300))
    open_dump(path).close()


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "empty"),
        (b"PAGEPAGE" * 2000, "did not finish"),
        (b"PAGEDUMB" * 2000, "then says 44 55 4d 42"),
        (b"PAGEDU64", "ends after 8 of its 8192 bytes"),
        (bytes(build_header(8, 5))[:0x1FFF], "ends after 8191"),
    ],
)
def test_damaged_from_the_start(raw: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "m.dmp"
    path.write_bytes(raw)
    with pytest.raises(TargetError) as caught:
        open_dump(path)
    assert words in caught.value.came_back
    assert caught.value.next_step


def test_directory_and_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="is a directory"):
        open_dump(tmp_path)
    with pytest.raises(TargetError, match="no such file"):
        open_dump(tmp_path / "absent.dmp")
    with pytest.raises(TargetError, match="no file name"):
        open_dump(str(tmp_path / "a\0b"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_named_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TargetError, match="no regular file"):
        open_dump(tmp_path / "pipe")


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.dmp"
    path.write_bytes(b"PAGEDU64")

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("kdleak.dump.file.os.open", refuse)
    with pytest.raises(TargetError, match=r"permission denied.*administrators"):
        open_dump(path)


def test_file_that_cannot_be_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.dmp"
    path.write_bytes(bitmap_dump(8, [1, 2]))

    def refuse(*_: object, **__: object) -> object:
        raise OverflowError("Python int too large to convert to C ssize_t")

    monkeypatch.setattr("kdleak.dump.file.mmap.mmap", refuse)
    with pytest.raises(TargetError, match="64-bit Python"):
        open_dump(path)
