"""What is under the debugger: version, debugger data block, and a line that describes it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kdleak.engine.native_machine import MACHINES, MachineContext
from kdleak.errors import MemoryUnreadable, UnsupportedTarget
from kdleak.kd.packets import StateChange
from kdleak.kd.structures import Version
from kdleak.model import Architecture, TargetInfo
from kdleak.nt.kdbg import DebuggerData
from kdleak.nt.memory import MemoryReader
from kdleak.quantities import amount

_POINTER64 = 4
_LAB_LENGTH = 0x80


@dataclass(frozen=True)
class Identity:
    """A target as seen at attach.

    Attributes:
        info: the model's view of it.
        machine: its CONTEXT.
        module_list: address of nt!PsLoadedModuleList.
        debugger_data: KDBG, None when it was not found.
    """

    info: TargetInfo
    machine: MachineContext
    module_list: int
    debugger_data: DebuggerData | None


def is_windows(version: Version) -> bool:
    """NT, and not a boot application: the high byte of the major version tells."""
    return version.major >> 8 == 0


def machine_of(version: Version) -> MachineContext:
    """The machine of a target.

    Raises:
        UnsupportedTarget: none that kdleak knows.
    """
    machine = MACHINES.get(version.machine)
    if machine is None:
        raise UnsupportedTarget(
            "attaching",
            f"the target's machine type is 0x{version.machine:04x}",
            "kdleak knows x64 (0x8664), x86 (0x014c) and ARM64 (0xaa64)",
        )
    return machine


def identify(
    memory: MemoryReader, version: Version, change: StateChange, data: DebuggerData | None
) -> Identity:
    """Put together what is known of a target."""
    machine = machine_of(version)
    pointer_size = 4 if machine.architecture is Architecture.X86 else 8
    if machine.architecture is not Architecture.X86 and not version.flags & _POINTER64:
        pointer_size = 4
    kernel_base = version.kernel_base or (data.field("KernBase") if data else 0)
    lab = _build_lab(memory, data)
    processors = change.processors
    info = TargetInfo(
        architecture=machine.architecture,
        pointer_size=pointer_size,
        build=version.minor,
        live=True,
        processors=processors,
        kernel_base=kernel_base,
        description=(
            f"Windows build {version.minor} {machine.architecture.value}, "
            f"{amount(processors, 'processor')}" + (f", {lab}" if lab else "")
        ),
    )
    module_list = version.loaded_module_list
    if not module_list and data is not None:
        module_list = data.field("PsLoadedModuleList")
    return Identity(info, machine, module_list, data)


def _build_lab(memory: MemoryReader, data: DebuggerData | None) -> str:
    """nt!NtBuildLab ("19041.1.amd64fre.vb_release.191206-1406"); "" when it cannot be read."""
    address = data.field("NtBuildLab") if data is not None else 0
    if not address:
        return ""
    try:
        raw = memory.read(address, _LAB_LENGTH).split(b"\0")[0]
    except MemoryUnreadable:
        return ""
    text = raw.decode("ascii", "replace")
    return text if re.fullmatch(r"[\w.()-]{4,}", text) else ""
