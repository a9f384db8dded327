"""The debugger's breakpoints in the practice kernel: 32 slots, each an int3 in memory."""

from __future__ import annotations

from dataclasses import dataclass

from kdleak.practice.machine import PracticeMachine

SLOTS = 32
_INT3 = b"\xcc"


@dataclass
class Breakpoint:
    """One slot in use: the address and the byte that belongs there."""

    address: int
    original: bytes


class BreakpointTable:
    """Handles 1 to 32, as the kernel's own table (KD protocol, WriteBreakPoint)."""

    def __init__(self, machine: PracticeMachine) -> None:
        self._machine = machine
        self._slots: list[Breakpoint | None] = [None] * SLOTS

    def insert(self, address: int) -> int:
        """Write an int3; returns the handle, 0 when it cannot be done."""
        if any(slot is not None and slot.address == address for slot in self._slots):
            return 0
        original = self._machine.read_virtual(address, 1)
        if not original or None not in self._slots:
            return 0
        self._machine.write_virtual(address, _INT3)
        free = self._slots.index(None)
        self._slots[free] = Breakpoint(address, original)
        return free + 1

    def remove(self, handle: int) -> bool:
        """Put the original byte back; False when the handle is not in use."""
        if not 1 <= handle <= SLOTS:
            return False
        slot = self._slots[handle - 1]
        if slot is None:
            return False
        self._machine.write_virtual(slot.address, slot.original)
        self._slots[handle - 1] = None
        return True

    def remove_range(self, first: int, end: int) -> None:
        """Remove every breakpoint in ``[first, end)``, as the kernel does where it stopped."""
        for handle, slot in enumerate(self._slots, start=1):
            if slot is not None and first <= slot.address < end:
                self.remove(handle)

    def hide(self, address: int, data: bytes) -> bytes:
        """Memory as it would be without breakpoints."""
        end = address + len(data)
        shown: bytearray | None = None
        for slot in self._slots:
            if slot is not None and address <= slot.address < end:
                shown = shown if shown is not None else bytearray(data)
                shown[slot.address - address] = slot.original[0]
        return data if shown is None else bytes(shown)

    def write(self, address: int, data: bytes) -> int:
        """Write memory below the breakpoints: they stay, and what they hide changes."""
        done = self._machine.write_virtual(address, data)
        for slot in self._slots:
            if slot is not None and address <= slot.address < address + done:
                slot.original = data[slot.address - address :][:1]
                self._machine.write_virtual(slot.address, _INT3)
        return done
