"""Which registers a channel hands over, by WinDbg's names.

Only what a KD CONTEXT holds: control registers and the like would cost the target a round trip.
"""

from __future__ import annotations

from typing import Dict, Tuple

_SEGMENTS = ("cs", "ds", "es", "fs", "gs", "ss")

REGISTERS: Dict[str, Tuple[str, ...]] = {
    "AMD64": (
        "rax",
        "rbx",
        "rcx",
        "rdx",
        "rsi",
        "rdi",
        "rbp",
        "rsp",
        *(f"r{number}" for number in range(8, 16)),
        "rip",
        "efl",
        *_SEGMENTS,
    ),
    "I386": ("eax", "ebx", "ecx", "edx", "esi", "edi", "ebp", "esp", "eip", "efl", *_SEGMENTS),
    "ARM64": (*(f"x{number}" for number in range(29)), "fp", "lr", "sp", "pc", "cpsr"),
}
"""By name of the processor as pykd spells it (``CPUType``)."""

PROGRAM_COUNTERS: Dict[str, str] = {"AMD64": "rip", "I386": "eip", "ARM64": "pc"}
"""The register that tells the machines apart, and without which the others are of no use."""


def width_mask(machine: str) -> int:
    """All bits of a register of the machine: bindings may hand out 32-bit values sign-extended."""
    return 0xFFFFFFFF if machine == "I386" else 0xFFFFFFFFFFFFFFFF
