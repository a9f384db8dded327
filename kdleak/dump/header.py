"""The header of a Windows kernel crash dump: what DUMP_HEADER32 or DUMP_HEADER64 say.

Header space that the writer did not set holds the repeating text ``PAGE``; a field that equals it
is absent. Nothing here judges a dump: values are given as they stand, absent ones as 0 or None.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from construct import Container

from kdleak.dump.header_layout import HEADER32, HEADER64
from kdleak.dump.kind import DumpKind
from kdleak.errors import TargetError, UnsupportedTarget
from kdleak.model import Architecture

FILL32 = 0x45474150
FILL64 = 0x4547415045474150

HEADER_SIZE_32 = 0x1000
HEADER_SIZE_64 = 0x2000

SIGNATURE_32 = b"PAGEDUMP"
SIGNATURE_64 = b"PAGEDU64"

MACHINE_I386 = 0x014C
MACHINE_AMD64 = 0x8664
MACHINE_ARM64 = 0xAA64

_ARCHITECTURES = {
    (4, MACHINE_I386): Architecture.X86,
    (8, MACHINE_AMD64): Architecture.X64,
    (8, MACHINE_ARM64): Architecture.ARM64,
}
_OTHER_MACHINES = {
    0x0166: "MIPS",
    0x0184: "Alpha",
    0x01C0: "ARM",
    0x01C4: "ARM",
    0x01F0: "PowerPC",
    0x0200: "Itanium",
    0x0284: "Alpha 64",
}
# sizeof(CONTEXT): the header's space for it is larger.
_CONTEXT_SIZES = {Architecture.X86: 0x2CC, Architecture.X64: 0x4D0, Architecture.ARM64: 0x390}


# DumpType of the header.
KINDS = {
    1: DumpKind.FULL,
    2: DumpKind.KERNEL,
    3: DumpKind.HEADER_ONLY,
    4: DumpKind.TRIAGE,
    5: DumpKind.BITMAP_FULL,
    6: DumpKind.BITMAP_KERNEL,
    7: DumpKind.BITMAP_KERNEL,
    8: DumpKind.KERNEL_RANGES,
    9: DumpKind.KERNEL_AND_USER_RANGES,
    10: DumpKind.COMPLETE_RANGES,
}


# What follows the header, for dumps whose DumpType is absent or damaged.
_KINDS_BY_MAP = {b"FDMP": DumpKind.BITMAP_FULL, b"SDMP": DumpKind.BITMAP_KERNEL}


class DumpAttributes(enum.IntFlag):
    """Attributes of the header."""

    HIBER_CRASH = 1 << 0
    DUMP_DEVICE_POWER_OFF = 1 << 1
    INSUFFICIENT_DUMPFILE_SIZE = 1 << 2
    KERNEL_GENERATED_TRIAGE_DUMP = 1 << 3
    LIVE_DUMP_GENERATED_DUMP = 1 << 4
    DUMP_IS_GENERATED_OFFLINE = 1 << 5
    FILTER_DUMP_FILE = 1 << 6
    EARLY_BOOT_CRASH = 1 << 7
    ENCRYPTED_DUMP_DATA = 1 << 8
    DECRYPTED_DUMP = 1 << 9


NO_ATTRIBUTES = DumpAttributes(0)


@dataclass(frozen=True)
class DumpHeader:
    """What the header of a dump says.

    Pointers of 32-bit targets are sign-extended to 64 bits; a pointer that is absent is 0.

    Attributes:
        pointer_size: bytes, 4 or 8.
        machine: IMAGE_FILE_MACHINE_*.
        architecture: the machine in our terms.
        kind: what the dump holds: by DumpType, or by what follows the header where it is absent.
        dump_type: DumpType as it stands; None when absent.
        build: Windows build number.
        major: 0xF for a free build of Windows, 0xC for a checked one.
        directory_table_base: physical address of the top page table; PCID and flags masked off.
        pfn_database: address of MmPfnDatabase.
        module_list: address of the list head PsLoadedModuleList.
        process_list: address of the list head PsActiveProcessHead.
        debugger_data: address of KDDEBUGGER_DATA64.
        processors: logical processors, 0 where absent.
        bug_check_code: 0x161 is a live dump; 0 where absent.
        bug_check_parameters: four, as wide as the target's pointers.
        pae: PaeEnabled of a 32-bit dump; None where it is unset, and for 64-bit dumps.
        context: CONTEXT of the processor that wrote the dump; b"" where absent.
        exception_code: NTSTATUS, 0 where absent.
        exception_address: address of the instruction.
        exception_parameters: those that the exception record claims, at most 15.
        comment: text of whoever made the dump; untrusted.
        attributes: flags.
        system_time: FILETIME when the dump was written (100 ns since 1601); None where absent.
        uptime: 100 ns since boot; None where absent.
        required_space: bytes of file the writer wanted; None where absent.
        product_type: 1 workstation, 2 domain controller, 3 server; None where absent.
        runs: (first frame, count) as the header lists them, in its order; empty where absent.
        number_of_runs: what the header claims; None where absent.
        number_of_pages: pages in all runs, as the header claims; None where absent.
        version_user: text; untrusted.
        kd_secondary_version: as DBGKD_GET_VERSION64 has it.
        mini_dump_fields: which parts a triage dump has; 0 where absent.
        secondary_data_state: NTSTATUS of the writer's call-backs; 0 where absent.
        suite_mask: 0 where absent.
        writer_status: 0 where absent.
        boot_id: number of the boot; 0 where absent.
    """

    pointer_size: int
    machine: int
    architecture: Architecture
    kind: DumpKind
    dump_type: int | None
    build: int = 0
    major: int = 0xF
    directory_table_base: int = 0
    pfn_database: int = 0
    module_list: int = 0
    process_list: int = 0
    debugger_data: int = 0
    processors: int = 0
    bug_check_code: int = 0
    bug_check_parameters: tuple[int, ...] = (0, 0, 0, 0)
    pae: bool | None = None
    context: bytes = b""
    exception_code: int = 0
    exception_address: int = 0
    exception_parameters: tuple[int, ...] = ()
    comment: str = ""
    attributes: DumpAttributes = NO_ATTRIBUTES
    system_time: int | None = None
    uptime: int | None = None
    required_space: int | None = None
    product_type: int | None = None
    runs: tuple[tuple[int, int], ...] = ()
    number_of_runs: int | None = None
    number_of_pages: int | None = None
    version_user: str = ""
    kd_secondary_version: int = 0
    mini_dump_fields: int = 0
    secondary_data_state: int = 0
    suite_mask: int = 0
    writer_status: int = 0
    boot_id: int = 0

    @property
    def size(self) -> int:
        """Bytes of the header in the file; what follows depends on the kind."""
        return HEADER_SIZE_64 if self.pointer_size == 8 else HEADER_SIZE_32

    @property
    def encrypted(self) -> bool:
        """Whether the pages are encrypted; a decrypted dump keeps the flag and adds another."""
        encrypted = bool(self.attributes & DumpAttributes.ENCRYPTED_DUMP_DATA)
        return encrypted and not self.attributes & DumpAttributes.DECRYPTED_DUMP


def parse_header(raw: bytes) -> DumpHeader:
    """The header at the start of a dump.

    Args:
        raw: the first bytes of the file: the header and, where there are, 0x40 bytes behind it.

    Raises:
        UnsupportedTarget: the dump of a machine that kdleak does not know.
        TargetError: no crash dump, cut off, or of a type that cannot be told.
    """
    wide = raw[:8] == SIGNATURE_64
    if not wide and raw[:8] != SIGNATURE_32:
        raise TargetError(
            "reading the dump's header", "it does not begin with PAGEDUMP or PAGEDU64"
        )
    size = HEADER_SIZE_64 if wide else HEADER_SIZE_32
    if len(raw) < size:
        raise TargetError(
            "reading the dump's header",
            f"the file ends after {len(raw)} of its {size} bytes",
            "copy the dump again and compare the size with the original",
        )
    fields = (HEADER64 if wide else HEADER32).parse(raw[:size])
    pointer_size = 8 if wide else 4
    architecture = _architecture(fields.machine, pointer_size)
    dump_type = _optional(fields.dump_type)
    return DumpHeader(
        pointer_size=pointer_size,
        machine=_present(fields.machine),
        architecture=architecture,
        kind=_kind(dump_type, raw[size : size + 0x40]),
        dump_type=dump_type,
        build=_present(fields.build) & 0xFFFF,
        major=_present(fields.major),
        directory_table_base=_table_base(fields, wide),
        pfn_database=_pointer(fields.pfn_database, wide),
        module_list=_pointer(fields.module_list, wide),
        process_list=_pointer(fields.process_list, wide),
        debugger_data=_pointer(fields.debugger_data, wide),
        processors=_present(fields.processors),
        bug_check_code=_present(fields.bug_check_code),
        bug_check_parameters=tuple(_present(value) for value in fields.bug_check_parameters),
        pae=None if wide else {0: False, 1: True}.get(fields.pae),
        context=_context(fields.context, architecture),
        exception_code=_present(fields.exception_code),
        exception_address=_pointer(fields.exception_address, wide),
        exception_parameters=_exception_parameters(fields),
        comment=_text(fields.comment),
        attributes=DumpAttributes(_present(fields.attributes) & 0x3FF),
        system_time=_optional(fields.system_time),
        uptime=_optional(fields.uptime),
        required_space=_optional(fields.required_space),
        product_type=_optional(fields.product_type),
        runs=_runs(fields),
        number_of_runs=_absent_as_none(fields.number_of_runs),
        number_of_pages=_absent_as_none(fields.number_of_pages),
        version_user=_text(fields.version_user),
        kd_secondary_version=fields.kd_secondary_version,
        mini_dump_fields=_present(fields.mini_dump_fields),
        secondary_data_state=_present(fields.secondary_data_state),
        suite_mask=_present(fields.suite_mask),
        writer_status=_present(fields.writer_status),
        boot_id=_present(fields.boot_id),
    )


def _architecture(machine: int, pointer_size: int) -> Architecture:
    known = _ARCHITECTURES.get((pointer_size, machine))
    if known is not None:
        return known
    if machine == FILL32 and pointer_size == 4:
        return Architecture.X86  # the only 32-bit machine left by the time of any such dump
    name = _OTHER_MACHINES.get(machine, f"machine type 0x{machine:x}")
    raise UnsupportedTarget(
        "reading the dump's header",
        f"it is a {8 * pointer_size}-bit dump of {name}; kdleak knows x86, x64 and ARM64",
        "if the dump should be of one of these, its header is damaged: copy it again",
    )


def _kind(dump_type: int | None, behind: bytes) -> DumpKind:
    if dump_type is not None and dump_type in KINDS:
        return KINDS[dump_type]
    # The type is absent (oldest dumps) or damaged; the page map behind the header has a name.
    if behind[4:8] == b"DUMP" and behind[:4] in _KINDS_BY_MAP:
        return _KINDS_BY_MAP[behind[:4]]
    if behind[4:12] == b"RDMPDUMP":
        return DumpKind.KERNEL_AND_USER_RANGES
    if dump_type is None:
        return DumpKind.FULL
    raise TargetError(
        "reading the dump's header",
        f"its dump type is {dump_type}; 1 to 10 are known, and no page map follows the header",
        "the header is damaged or of a kind newer than this kdleak",
    )


def _present(value: int) -> int:
    return 0 if value in {FILL32, FILL64} else int(value)


def _optional(value: int) -> int | None:
    return _present(value) or None


def _absent_as_none(value: int) -> int | None:
    # A count of 0 is a statement, the fill pattern is none.
    return None if value in {FILL32, FILL64} else int(value)


def _pointer(value: int, wide: bool) -> int:
    value = _present(value)
    return value if wide or not value & 0x80000000 else value | 0xFFFFFFFF00000000


def _table_base(fields: Container, wide: bool) -> int:
    # x64: PCID in the low 12 bits; ARM64: ASID in the top 16. A PAE table is 32-byte aligned.
    value = _present(fields.directory_table_base)
    return value & (0x000FFFFFFFFFF000 if wide else 0xFFFFFFE0)


def _context(raw: bytes, architecture: Architecture) -> bytes:
    if raw[:16] == b"PAGE" * 4 or not any(raw):
        return b""
    return bytes(raw[: _CONTEXT_SIZES[architecture]])


def _exception_parameters(fields: Container) -> tuple[int, ...]:
    count = _present(fields.exception_count)
    return tuple(fields.exception_parameters[: min(count, 15)])


def _text(raw: bytes) -> str:
    text = raw.split(b"\0", 1)[0]
    return "" if text.startswith(b"PAGEPAGE") else text.decode("latin-1")


def _runs(fields: Container) -> tuple[tuple[int, int], ...]:
    """The run list up to where it stops making sense; the claimed number may be absurd."""
    values = fields.runs
    claimed = _present(fields.number_of_runs)
    found: list[tuple[int, int]] = []
    for first, count in zip(values[0::2], values[1::2], strict=True):
        if len(found) >= claimed or count in {FILL32, FILL64}:
            break
        found.append((int(first), int(count)))
    return tuple(found)
