"""What is known of the kernel in dumps without physical pages: small ones, and mere headers."""

from __future__ import annotations

import struct

from kdleak.dump.file import DumpFile
from kdleak.dump.triage import TriageDriver
from kdleak.engine.dump_kernel import DumpKernel
from kdleak.errors import MemoryUnreadable
from kdleak.model import Module
from kdleak.nt.kdbg import FIELDS, OWNER_TAG, DebuggerData
from kdleak.nt.memory import MemoryReader
from kdleak.nt.modules import base_name, windbg_name
from kdleak.nt.pe import read_image


class NoMemory:
    """The memory of a dump that is only a header."""

    def read(self, address: int, size: int) -> bytes:
        """Refused.

        Raises:
            MemoryUnreadable: always.
        """
        raise MemoryUnreadable(address, size, "the dump holds no memory, only its header")


def small_kernel(dump: DumpFile, memory: MemoryReader) -> DumpKernel:
    """The modules and the debugger data block that a small memory dump lists.

    Args:
        dump: without physical pages.
        memory: reads what blocks of memory it has.
    """
    if dump.triage is None:
        return DumpKernel(None, 0, None, 0, ())
    data = _debugger_data(dump, bytes(dump.triage.debugger_data))
    drivers = [driver for driver in dump.triage.drivers if driver.base and driver.size]
    base = data.field("KernBase") if data is not None else 0
    if drivers and base not in {driver.base for driver in drivers}:
        base = drivers[0].base  # the list is in load order, and nt is loaded first
    image = read_image(memory, base) if base else None
    return DumpKernel(image, base, data, dump.header.module_list, _modules(drivers, base))


def _debugger_data(dump: DumpFile, raw: bytes) -> DebuggerData | None:
    if len(raw) <= FIELDS["KernBase"] or struct.unpack_from("<I", raw, 0x10)[0] != OWNER_TAG:
        return None
    return DebuggerData(dump.header.debugger_data, raw)


def _modules(drivers: list[TriageDriver], base: int) -> tuple[Module, ...]:
    """The drivers as modules, each with a name of its own, as WinDbg makes them."""
    found: list[Module] = []
    taken: set[str] = set()
    for driver in drivers:
        file_name = base_name(driver.name)
        name = "nt" if driver.base == base else windbg_name(file_name)
        if not name or name.lower() in taken:
            name = f"{name or 'image'}_{driver.base & 0xFFFFFFFF:08x}"
        taken.add(name.lower())
        found.append(
            Module(name, driver.base, driver.size, file_name, driver.timestamp, driver.name)
        )
    return tuple(found)
