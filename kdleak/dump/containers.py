"""Files that are no kernel crash dumps, recognised by name, with what to do next.

Sources: the magic numbers these formats are publicly known by. Recognition looks at the first
bytes and, for formats that have none, at the extension.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from kdleak.errors import TargetError, UnsupportedTarget

_UNPACK = "unpack it first, then open the .dmp file in it"
_CONVERT_IMAGE = (
    "turn it into a crash dump first (QEMU's elf2dmp and MemProcFS can), or take the dump "
    "on the target itself"
)
_CRASH_IT = "take a kernel or complete memory dump of the target instead"
_VMWARE = "VMware's vmss2core -W8 turns a snapshot (.vmsn or .vmss, with its .vmem) into memory.dmp"
_VIRTUALBOX = (
    "with the machine running, VBoxManage debugvm NAME dumpvmcore writes an ELF core that "
    "QEMU's elf2dmp turns into a crash dump"
)
_HYPER_V = (
    "on the host, LiveKd -hv NAME -o FILE takes a crash dump of the running guest; or take one "
    "in the guest itself"
)
_DISK = "mount it and copy the dump out of it"


@dataclass(frozen=True)
class _Container:
    name: str
    next_step: str


_BY_MAGIC: tuple[tuple[bytes, _Container], ...] = (
    (
        b"MDMP",
        _Container(
            "a user-mode minidump: the memory of one process, without kernel pool", _CRASH_IT
        ),
    ),
    (
        b"USERDUMP",
        _Container("an old user-mode dump of one process, without kernel pool", _CRASH_IT),
    ),
    (
        b"USERDU64",
        _Container("an old user-mode dump of one process, without kernel pool", _CRASH_IT),
    ),
    (
        b"Enc_Dmp!",
        _Container(
            "an encrypted crash dump",
            "decrypt it with the private key that belongs to the target's dump encryption "
            "policy, then open the result",
        ),
    ),
    *(
        (
            magic,
            _Container(
                "a Windows hibernation file (hiberfil.sys)",
                "turn it into a raw image or crash dump first (MemProcFS can), or take a kernel "
                "memory dump of the target",
            ),
        )
        for magic in (b"hibr", b"HIBR", b"rstr", b"RSTR", b"wake", b"WAKE")
    ),
    (b"EMiL", _Container("a LiME image of physical memory", _CONVERT_IMAGE)),
    (b"AVML", _Container("an AVML image of physical memory", _CONVERT_IMAGE)),
    *(
        (magic, _Container("a VMware snapshot or suspended state (.vmsn, .vmss)", _VMWARE))
        for magic in (
            b"\xd0\xbe\xd2\xbe",
            b"\xd1\xba\xd1\xba",
            b"\xd2\xbe\xd2\xbe",
            b"\xd3\xbe\xd3\xbe",
        )
    ),
    (b"\x7fVirtualBox SavedState", _Container("a VirtualBox saved state", _VIRTUALBOX)),
    (b"\x14\x20\x28\x01", _Container("a Hyper-V saved state or configuration", _HYPER_V)),
    (b"QEVM", _Container("a QEMU saved state", _CONVERT_IMAGE)),
    (b"LibvirtQemud", _Container("a libvirt saved state", _CONVERT_IMAGE)),
    (
        b"KDUMP   ",
        _Container(
            "a compressed kdump file (makedumpfile)",
            "take it again as an ELF core (virsh dump --memory-only --format elf), which QEMU's "
            "elf2dmp turns into a crash dump",
        ),
    ),
    (b"PK\x03\x04", _Container("a ZIP archive", _UNPACK)),
    (b"PK\x05\x06", _Container("an empty ZIP archive", "look for the archive that has the dump")),
    (b"\x1f\x8b", _Container("a gzip-compressed file", _UNPACK)),
    (b"7z\xbc\xaf\x27\x1c", _Container("a 7-Zip archive", _UNPACK)),
    (b"MSCF", _Container("a cabinet (.cab)", _UNPACK + " (expand -F:* does it on Windows)")),
    (b"Rar!", _Container("a RAR archive", _UNPACK)),
    (b"\xfd7zXZ\x00", _Container("an xz-compressed file", _UNPACK)),
    (b"BZh", _Container("a bzip2-compressed file", _UNPACK)),
    (b"\x28\xb5\x2f\xfd", _Container("a zstd-compressed file", _UNPACK)),
    (b"\x04\x22\x4d\x18", _Container("an lz4-compressed file", _UNPACK)),
    (
        b"Microsoft C/C++ ",
        _Container(
            "a PDB (symbols), no memory", "name the dump here, and the PDB's folder with -y"
        ),
    ),
    (
        b"MZ",
        _Container("a Windows program or driver, no memory", "name the dump, such as MEMORY.DMP"),
    ),
    (
        b"ElfFile\x00",
        _Container("a Windows event log", "name the dump, such as MEMORY.DMP"),
    ),
    (b"EVF\x09", _Container("an EnCase image", _DISK)),
    (b"vhdxfile", _Container("a virtual disk (.vhdx)", _DISK)),
    (b"conectix", _Container("a virtual disk (.vhd)", _DISK)),
    (b"KDMV", _Container("a virtual disk (.vmdk)", _DISK)),
    (b"QFI\xfb", _Container("a virtual disk (.qcow2)", _DISK)),
    (
        b"version https://git-lfs",
        _Container(
            "a Git LFS pointer that stands for the file", "fetch the file itself: git lfs pull"
        ),
    ),
)

_BY_EXTENSION = {
    ".vmem": _Container("a VMware image of physical memory (.vmem)", _VMWARE),
    ".vmsn": _Container("a VMware snapshot (.vmsn)", _VMWARE),
    ".vmss": _Container("a VMware suspended state (.vmss)", _VMWARE),
    ".vmrs": _Container("a Hyper-V saved state (.vmrs)", _HYPER_V),
    ".vsv": _Container("a Hyper-V saved state (.vsv)", _HYPER_V),
    ".sav": _Container("a VirtualBox saved state (.sav)", _VIRTUALBOX),
    ".lime": _Container("a LiME image of physical memory", _CONVERT_IMAGE),
    ".raw": _Container("a raw image of physical memory", _CONVERT_IMAGE),
    ".mem": _Container("a raw image of physical memory", _CONVERT_IMAGE),
    ".img": _Container("a raw image of physical memory or of a disk", _CONVERT_IMAGE),
    ".bin": _Container("a raw image of physical memory", _CONVERT_IMAGE),
    ".dd": _Container("a raw image of physical memory or of a disk", _CONVERT_IMAGE),
    ".aff4": _Container("an AFF4 image", _CONVERT_IMAGE),
    ".vhd": _Container("a virtual disk (.vhd)", _DISK),
}
_COPY_AGAIN = "copy it again from the target, and compare the size with the original"
_RAW_IMAGE_AT_LEAST = 1 << 20


def refuse_container(path: Path, start: bytes, size: int) -> NoReturn:
    """Says what a file is that does not begin as a kernel crash dump does.

    Args:
        path: the file.
        start: its first bytes; at least 8 KB of them where there are so many.
        size: bytes of the file.

    Raises:
        UnsupportedTarget: it is something else, with a name.
        TargetError: it is empty, or the start of a crash dump that is damaged.
    """
    tried = f"opening the dump {path}"
    if not size:
        raise TargetError(tried, "the file is empty", _COPY_AGAIN)
    if start.startswith(b"PAGE"):
        raise TargetError(tried, *_damaged_start(start))
    found = recognise(path, start, size)
    if found:
        raise UnsupportedTarget(tried, f"it is no kernel crash dump but {found[0]}", found[1])
    if not any(start):
        came_back = f"its first {len(start)} bytes are zeros: the copy failed, or it is no dump"
        raise UnsupportedTarget(tried, came_back, _COPY_AGAIN)
    raise UnsupportedTarget(
        tried,
        f"it begins with {start[:8].hex(' ')}, a kernel crash dump with PAGEDU64 or PAGEDUMP",
        "name the dump, such as MEMORY.DMP",
    )


def _damaged_start(start: bytes) -> tuple[str, str]:
    if start.startswith(b"PAGEPAGE"):
        return (
            "Windows started this dump and did not finish it: its header was never filled in",
            "see whether an older or newer dump exists; the disk or dump file may be too small",
        )
    return f"it begins like a crash dump, but then says {start[4:8].hex(' ')}", _COPY_AGAIN


def recognise(path: Path, start: bytes, size: int) -> tuple[str, str] | None:
    """(what a file is, what to do next), or None.

    Args:
        path: the file; its extension counts for formats without a magic number.
        start: its first bytes.
        size: bytes of the file.
    """
    if start.startswith(b"\x7fELF"):
        return _elf(start)
    for magic, container in _BY_MAGIC:
        if start.startswith(magic):
            return container.name, container.next_step
    extension = path.suffix.lower()
    if extension in _BY_EXTENSION:
        return _BY_EXTENSION[extension].name, _BY_EXTENSION[extension].next_step
    if _looks_like_text(start):
        return "text", "if it is a debugger's log, read it with: kdleak parse"
    if size >= _RAW_IMAGE_AT_LEAST and not size % 0x1000 and any(start):
        return "a file of whole pages without any header, as a raw image of physical memory is", (
            _CONVERT_IMAGE
        )
    return None


def _elf(start: bytes) -> tuple[str, str]:
    order = ">" if start[5:6] == b"\x02" else "<"
    kind = struct.unpack(order + "H", start[16:18])[0] if len(start) >= 18 else 0
    if kind == 4:
        return "an ELF core (QEMU, VirtualBox and others write memory so)", (
            "QEMU's elf2dmp turns the core of a Windows guest into a crash dump"
        )
    return "an ELF program or library", "name the dump, such as MEMORY.DMP"


def _looks_like_text(start: bytes) -> bool:
    if start.startswith((b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf")):
        return True
    # Control characters other than white space, escape sequences and the odd Ctrl+Z are not text.
    control = sum(byte < 0x20 and byte not in b"\t\n\v\f\r\x1a\x1b" for byte in start)
    return not control and sum(0x20 <= byte < 0x7F for byte in start) * 10 >= len(start) * 7
